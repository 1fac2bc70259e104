#!/usr/bin/env python3
"""Two servers behind one address, every host in a network namespace of its own, without root: programs run while one
server is drained, and then killed.

usage: tools/demo_balance.py OUTBOARD PROGRAM   (PROGRAM takes the seconds that it runs for)
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ADDRESS, SOURCE, BALANCER = "192.0.2.10", "192.0.2.20", "192.0.2.5"
SERVERS, CLIENTS = ["192.0.2.11", "192.0.2.12"], ["192.0.2.101", "192.0.2.102"]
PORT = 4833
URL = f"tcp://{ADDRESS}:{PORT}"
WAIT_S_MAX = 10
NEEDED = ["ip", "unshare", "nsenter"]
CONFIG = f"""[plane]
kind = "packet"
interfaces = ["eth0"]
[[service]]
name = "gpu"
address = "{ADDRESS}:{PORT}"
forward = "full-nat"
sources = ["{SOURCE}"]
affinity = true
check = {{ kind = "outboard", interval_ms = 200, rise = 1, fall = 2 }}
backend = [{", ".join(f'{{ address = "{one}:{PORT}" }}' for one in SERVERS)}]
"""


def enter(arguments: list[str]) -> str:
    """Goes on inside of a namespace; returns why there can be none."""
    missing = [name for name in NEEDED if not shutil.which(name)]
    if missing:
        return f"{', '.join(missing)} of iproute2 and util-linux are not here"
    for options in ["-Urn", "-n"]:
        tried = subprocess.run(["unshare", options, "ip", "link", "add", "br0", "type", "bridge"], capture_output=True)
        if tried.returncode == 0:
            os.execvp("unshare", ["unshare", options, sys.executable, __file__, "--inside", *arguments])
    return f"this system gives no network namespaces ({tried.stderr.decode().strip()})"


class Hosts:
    """Hosts on one switch, and what runs there."""

    def __init__(self, outboard: str, folder: Path) -> None:
        self.outboard, self.folder = outboard, folder
        self.pids: dict[str, int] = {}
        sh("ip link add br0 type bridge forward_delay 0; ip link set br0 up")

    def add(self, host: str) -> None:
        holder = subprocess.Popen(["unshare", "-n", "sh", "-c", "echo; exec sleep 60"], **PIPED)
        holder.stdout.readline()
        pid, number = holder.pid, len(self.pids)
        self.pids[host] = pid
        sh(f"ip link add v{number} type veth peer name eth0 netns {pid}; ip link set v{number} master br0 up")
        sh(f"nsenter -t {pid} -n sh -c 'ip link set lo up; ip addr add {host}/24 dev eth0; ip link set eth0 up'")

    def start(self, host: str, *words: str, said: str = "", **options: Any) -> subprocess.Popen[str]:
        """Starts the command at a host, and shows it."""
        if said:
            print(f"\n# {said}")
        print(f"{host}$ outboard {' '.join(words)}", flush=True)
        command = ["nsenter", "-t", str(self.pids[host]), "-n", self.outboard, *words]
        # The user is root inside: what root has outside is another user's.
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(self.folder)}
        return subprocess.Popen(command, cwd=self.folder, env=environment, **{**PIPED, **options})

    def serve(self, host: str, *words: str, said: str = "") -> subprocess.Popen[str]:
        """Starts something that says in one line when it is ready."""
        log = self.folder / f"{host}.log"
        process = self.start(host, *words, said=said, stderr=log.open("w"))
        if not process.stdout.readline():
            raise SystemExit(log.read_text())
        return process

    def show(self, process: subprocess.Popen[str], code: int) -> None:
        out, _ = process.communicate(timeout=WAIT_S_MAX)
        print("".join(f"  {line}\n" for line in out.splitlines()), end="", flush=True)
        if process.returncode != code:
            raise SystemExit(f"it ended with {process.returncode}")

    def do(self, *words: str, said: str = "") -> None:
        self.show(self.start(BALANCER, "balance", *words, "--api", "balance.sock", said=said), 0)

    def asked(self, *words: str) -> Any:
        command = [self.outboard, "balance", *words, "--json", "--api", self.folder / "balance.sock"]
        return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)

    def until(self, what: str, find: Callable[[], Any]) -> Any:
        """Waits until something is found, and returns it."""
        end = time.monotonic() + WAIT_S_MAX
        while not (found := find()):
            if time.monotonic() > end:
                raise SystemExit(f"{what}: not within {WAIT_S_MAX} s\n{self.asked('status')}")
            time.sleep(0.05)
        return found

    def home(self, client: str, program: subprocess.Popen[str]) -> str:
        """Returns the server of a client's program, once it has one."""

        def find() -> str:
            if program.poll() is not None:
                self.show(program, -1)
            flows = self.asked("flows", "--phase", "established")
            return next((one["backend"] for one in flows if one["client"].startswith(f"{client}:")), "")

        return str(self.until("the program has its server", find))

    def is_down(self, server: str) -> bool:
        return not any(
            one["is_up"] for one in self.asked("status")["services"][0]["backends"] if one["address"] == server
        )


PIPED: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}


def sh(script: str) -> None:
    subprocess.run(["sh", "-ec", script], check=True)


def kill(pid: int) -> None:
    """Ends a program with all its processes: each has a group of its own, once it has begun."""
    for way in [os.killpg, os.kill]:
        with contextlib.suppress(ProcessLookupError):
            way(pid, signal.SIGKILL)


def end_all() -> None:
    """Ends all that was started, wherever this program was interrupted."""
    for number in [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]:
        signal.signal(number, signal.SIG_IGN)
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        kill(int(pid))
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def demo(hosts: Hosts, program: str) -> None:
    for host in [BALANCER, *SERVERS, *CLIENTS]:
        hosts.add(host)
    said = "Two servers, each on a host of its own"
    servers = {}
    for host in SERVERS:
        listen = ["--device", "soft", "--no-config", "--insecure", "--listen", f"tcp://{host}:{PORT}"]
        servers[f"{host}:{PORT}"] = hosts.serve(host, "serve", *listen, said=said)
        said = ""
    (hosts.folder / "balance.toml").write_text(CONFIG)
    command = ["balance", "run", "balance.toml", "--api", "balance.sock"]
    hosts.serve(BALANCER, *command, said=f"A balancer gives them one address, {ADDRESS}")

    def run(client: str, *arguments: str, said: str = "") -> subprocess.Popen[str]:
        return hosts.start(client, "run", "--gpu", URL, "--", program, *arguments, said=said)

    first = run(CLIENTS[0], "4", said="A program runs for some seconds, and its server is drained meanwhile")
    home = hosts.home(CLIENTS[0], first)
    hosts.do("drain", home)
    second = run(CLIENTS[1], said="A program of another client goes to the other server")
    hosts.show(second, 0)
    print(f"\n# The first one has finished where it was, at {home}")
    hosts.show(first, 0)
    hosts.do("drain", home, "--end", said="The server takes new clients again")
    third = run(CLIENTS[0], "60", said="A program whose server is killed gets an error")
    home = hosts.home(CLIENTS[0], third)
    time.sleep(0.5)
    print(f"{home.split(':')[0]}$ kill -9 {servers[home].pid}", flush=True)
    kill(servers[home].pid)
    hosts.show(third, 1)
    hosts.until("the killed one is down", lambda: hosts.is_down(home))
    hosts.show(run(CLIENTS[0], said="The next one runs on the other server"), 0)
    hosts.do("status", said="What the balancer says of it")


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[0] != "--inside":
        why = enter(arguments)
        print(f"\nThe balancer is not shown: {why}.")
        return
    outboard, program = (str(Path(one).resolve()) for one in arguments[1:])
    # One way to the end for all signals, on which what was started is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGHUP, lambda *_: sys.exit(129))
    with tempfile.TemporaryDirectory() as folder:
        try:
            demo(Hosts(outboard, Path(folder)), program)
        except KeyboardInterrupt:
            sys.exit(130)
        finally:
            end_all()


if __name__ == "__main__":
    main()

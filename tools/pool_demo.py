#!/usr/bin/env python3
"""A pool in a minute: a manager, three boxes with software GPUs, two programs, a broken GPU that a spare replaces, and
a manager that is killed and comes back while the programs go on. Usage: pool_demo.py OUTBOARD"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = [sys.executable, str(ROOT / "tests" / "programs" / "pool_checksums.py")]
BEGAN = time.monotonic()


def say(words: str) -> None:
    print(f"\n\033[1m{time.monotonic() - BEGAN:5.1f} s  {words}\033[0m", flush=True)


def until(what: Callable[[], bool], why: str, seconds: float = 60) -> float:
    start = time.monotonic()
    while not what():
        if time.monotonic() > start + seconds:
            sys.exit(f"pool-demo: {why} is not there within {seconds:.0f} s")
        time.sleep(0.02)
    return time.monotonic() - start


class Demo:
    def __init__(self, outboard: str, folder: Path) -> None:
        self.outboard, self.folder = outboard, folder
        self.processes: list[subprocess.Popen[str]] = []
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.url = f"http://{self.address}"

    def start(self, log: str, *argv: str) -> subprocess.Popen[str]:
        with (self.folder / log).open("a") as to:
            process = subprocess.Popen([self.outboard, *argv], stdout=subprocess.PIPE, stderr=to, text=True)
        self.processes.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            sys.exit(f"pool-demo: it did not start:\n{(self.folder / log).read_text()}")
        print(f"       {line.strip()}", flush=True)
        return process

    def manager(self) -> subprocess.Popen[str]:
        return self.start(
            "manager.log", "pool", "serve", "--store", str(self.folder / "pool"), "--listen", self.address
        )

    def box(self, name: str) -> None:
        (self.folder / f"{name}.broken").touch()
        argv = ["serve", "--no-config", "--device", "soft", "--devices", "2", "--no-cache"]
        argv += ["--listen", "tcp://127.0.0.1:0", "--pool", self.url, "--pool-name", name]
        argv += ["--pool-state", str(self.folder / name), "--pool-check", f"cat {self.folder / name}.broken"]
        self.start(f"{name}.log", *argv)

    def pool(self, *words: str) -> str:
        done = subprocess.run([self.outboard, "pool", *words, "--pool", self.url], text=True, capture_output=True)
        return done.stdout

    def view(self) -> Any:
        said = self.pool("list", "--json")
        return json.loads(said) if said else {"gpus": [], "leases": []}

    def show(self) -> None:
        for line in self.pool("list").splitlines():
            print(f"       {line}")

    def program(self, name: str, *options: str) -> Program:
        return Program(self, name, options)

    def stop(self) -> None:
        for process in reversed(self.processes):
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            process.wait(20)


class Program:
    """A program that computes checksums on its GPUs until it is told to end."""

    def __init__(self, demo: Demo, name: str, options: tuple[str, ...]) -> None:
        self.name, self.gpus, self.lines = name, "", [""]
        argv = [demo.outboard, "run", "--pool", demo.url, *options, "--", *PROGRAM]
        print(f"       {name}: outboard run --pool URL {' '.join(options)} -- ...", flush=True)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(argv, text=True, **pipes)
        demo.processes.append(self.process)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            print(f"       {self.name} says: {line.strip()}", flush=True)
            self.lines.append(line)
            if line.startswith("GPU-"):
                self.gpus = line.strip()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("end\n")
        self.process.stdin.flush()
        code = self.process.wait(30)
        until(lambda: self.lines[-1].startswith("right"), f"the sum of {self.name}")
        if code:
            sys.exit(f"pool-demo: {self.name} ended with {code}")


def run(demo: Demo) -> None:
    say("A manager, and three boxes with two software GPUs each")
    manager = demo.manager()
    for name in ("box1", "box2", "box3"):
        demo.box(name)
    until(lambda: [gpu["state"] for gpu in demo.view()["gpus"]] == ["free"] * 6, "the pool")
    say("One GPU is held back as a spare: outboard pool spares 1")
    demo.pool("spares", "1")
    demo.show()
    say("Two programs ask for GPUs; the first is to run again if it loses one")
    first = demo.program("first", "--gpus", "3", "--restart", "1")
    second = demo.program("second", "--gpus", "2", "--term", "5s")
    until(lambda: bool(first.gpus and second.gpus), "both programs")
    demo.show()
    broken = first.gpus.split(",")[0]
    say(f"{broken} breaks: its box's check finds an Xid")
    of = next(gpu["box"] for gpu in demo.view()["gpus"] if gpu["uuid"] == broken)
    before, first.gpus = first.gpus, ""
    (demo.folder / f"{of}.broken").write_text(f"{broken} Xid 79: fallen off the bus\n")
    until(lambda: any(it["replaced"] for lease in demo.view()["leases"] for it in lease["lost"]), "the spare")
    until(lambda: bool(first.gpus), "the first program's second run")
    if broken in first.gpus or first.gpus == before:
        sys.exit("pool-demo: the broken GPU was not replaced")
    demo.show()
    say("The manager is killed. Programs go on: they do not need it until their leases are over")
    manager.kill()
    manager.wait()
    time.sleep(2)
    say("It is started again on the same store")
    demo.manager()
    waited = until(lambda: len(demo.view()["leases"]) == 2, "the leases")
    print(f"       it serves after {waited:.1f} s, and knows both leases")
    time.sleep(5)
    demo.show()
    say("Both programs end: their sums were right all the time, also past the 5 s of the second one's lease")
    first.end()
    second.end()
    until(lambda: sum(gpu["state"] == "free" for gpu in demo.view()["gpus"]) == 4, "the end of the leases")
    demo.show()
    say("The broken GPU is not given out until an operator says: outboard pool untaint UUID")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="outboard-pool-demo-") as folder:
        demo = Demo(sys.argv[1], Path(folder))
        try:
            run(demo)
        finally:
            demo.stop()


if __name__ == "__main__":
    main()

"""The long forms of the balancer's tests, between hosts in namespaces.

usage: PYTHONPATH=tests python tests/balance/long.py RESULT [PART...]   (make balance-soak)

Parts: packet and xdp, transfers while backends come and go and the balancer restarts and is taken over, by that way of
frames; flood and flood_user_namespace, SYNs beside connections and new clients, as root and without. Each replaces its
own part of the result.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import OUTBOARD, TEST_PROGRAMS
from test_balance import (
    BALANCER,
    CLIENTS,
    ECHO_PORT,
    PLANE,
    SERVERS,
    VIP,
    Balancer,
    Net,
    serve,
    service,
    warm_up,
)

TRANSFERS = 10_000
ESTABLISHED = 100
NEW_CLIENTS = 1_000
FLOOD_S = 20
# The table of half-open connections, and SYNs each second.
FLOODS = [(256, 2_560), (1_024, 10_240), (4_096, 2_048), (4_096, 40_960)]
CHECK = 'check = { kind = "tcp", interval_ms = 200, fall = 5 }'
XDP = '[plane]\nkind = "xdp"\ninterfaces = ["eth0"]\n'
WAIT_S_MAX = 900


class Changes:
    """What happens to the balancer and its backends, again and again."""

    def __init__(self, balancer: Balancer, head: str) -> None:
        self.balancer, self.head = balancer, head
        self.counts = dict.fromkeys(["drained", "removed", "restarted", "taken_over"], 0)
        self.rng = random.Random(1)

    def whole(self, servers: list[str]) -> None:
        self.balancer.write(self.head + service("echo", ECHO_PORT, CHECK, servers))
        self.balancer.command("reload")

    def one(self) -> None:
        """Makes all changes once, with a backend left at each time."""
        pause = 0.3
        for host in self.rng.sample(SERVERS, len(SERVERS)):
            self.balancer.command("drain", f"{host}:{ECHO_PORT}")
            self.counts["drained"] += 1
            time.sleep(pause)
            self.balancer.command("drain", f"{host}:{ECHO_PORT}", "--end")
        for host in self.rng.sample(SERVERS, len(SERVERS)):
            self.whole([one for one in SERVERS if one != host])
            self.counts["removed"] += 1
            time.sleep(pause)
            self.whole(SERVERS)
        self.balancer.stop()
        self.balancer.start()
        self.counts["restarted"] += 1
        time.sleep(pause)
        before = self.balancer.process
        self.balancer.start("--take-over")
        assert before.wait(20) == 0, self.balancer.log.read_text()
        self.counts["taken_over"] += 1
        time.sleep(pause)


def soak(kind: str) -> dict[str, Any]:
    """Makes transfers while everything changes."""
    head = XDP if kind == "xdp" else PLANE
    with hosts(kind == "xdp") as (net, folder):
        for host in SERVERS:
            serve(net, host, "serve", host)
        balancer = Balancer(net, folder, head + service("echo", ECHO_PORT, CHECK))
        warm_up(net, balancer)
        begin = time.monotonic()
        changes = Changes(balancer, head)
        echo = [sys.executable, TEST_PROGRAMS / "transfers.py", "transfer", VIP, str(ECHO_PORT), str(TRANSFERS)]
        transfers = net.start(CLIENTS[0], *echo, stdout=subprocess.PIPE)
        while transfers.poll() is None:
            assert time.monotonic() - begin < WAIT_S_MAX
            changes.one()
        report = json.loads(transfers.communicate()[0])
        seconds = time.monotonic() - begin
        balancer.stop()
    right = report["results"].get("right", 0)
    return {
        "transfers": TRANSFERS,
        "bytes_each": 100_000,
        "right": right,
        "broken": {text: count for text, count in report["results"].items() if text.startswith("broken")},
        "wrong": report["results"].get("wrong", 0),
        "servers": report["servers"],
        "changes": changes.counts,
        "seconds": round(seconds, 1),
    }


def flood(capacity: int, rate: int, as_root: bool) -> dict[str, Any]:
    """Counts what becomes of connections, and of clients that come, under a flood of SYNs."""
    with hosts(as_root) as (net, folder):
        for host in SERVERS:
            serve(net, host, "serve", host)
        limits = f"[limits]\nhalf_open = {capacity}\n"
        balancer = Balancer(net, folder, PLANE + limits + service("echo", ECHO_PORT, CHECK))
        warm_up(net, balancer)
        program = [sys.executable, TEST_PROGRAMS / "clients.py", VIP, str(ECHO_PORT)]
        clients = net.start(
            CLIENTS[0], *program, str(ESTABLISHED), str(NEW_CLIENTS), str(FLOOD_S - 2), stdout=subprocess.PIPE
        )
        assert clients.stdout is not None and clients.stdout.readline() == "ready\n"
        before = balancer.status()
        sender = [sys.executable, TEST_PROGRAMS / "flood.py", VIP, str(ECHO_PORT), str(rate), str(FLOOD_S)]
        flooding = net.start(CLIENTS[1], *sender, stdout=subprocess.PIPE)
        report = json.loads(clients.stdout.read())
        assert flooding.stdout is not None and flooding.stdout.readline() == "ready\n"
        sent = json.loads(flooding.stdout.read())
        after = balancer.status()
        balancer.stop()
    passed = after["packets"][0] - before["packets"][0]
    return {
        "half_open": capacity,
        "syn_sent": sent["sent"],
        "syn_per_second": round(sent["sent"] / sent["seconds"]),
        "syn_over_capacity_each_second": round(sent["sent"] / sent["seconds"] / capacity, 1),
        "packets_of_clients_passed": passed,
        "evicted": after["half_open_evicted"] - before["half_open_evicted"],
        "dropped": {reason: count - before["dropped"].get(reason, 0) for reason, count in after["dropped"].items()},
        **report,
    }


@contextlib.contextmanager
def hosts(as_root: bool) -> Any:
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        net = Net(stack, as_root)
        for host in [BALANCER, *SERVERS, *CLIENTS]:
            net.add(host)
        yield net, Path(folder)


def floods(as_root: bool) -> list[dict[str, Any]]:
    return [flood(capacity, rate, as_root) for capacity, rate in FLOODS]


PARTS: dict[str, Callable[[], Any]] = {
    "packet": lambda: soak("packet"),
    "xdp": lambda: soak("xdp"),
    "flood": lambda: floods(True),
    "flood_user_namespace": lambda: floods(False),
}
# XDP programs are loaded by root.
AS_ROOT = {"xdp", "flood"}


def about() -> dict[str, Any]:
    version = subprocess.run([OUTBOARD, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "outboard": version,
        "profile": OUTBOARD.parent.name,
        "kernel": platform.release(),
        "processor": model[0].split(":")[1].strip() if model else "",
        "cores": os.cpu_count(),
    }


def main() -> None:
    # A terminal's Ctrl-C reaches all hosts by itself.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    path, parts = Path(sys.argv[1]), sys.argv[2:] or list(PARTS)
    result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for part in parts:
        if part in AS_ROOT and os.geteuid() != 0:
            print(f"{part} is left out: it needs root")
            continue
        made = PARTS[part]()
        result[part] = {"machine": about(), "load": os.getloadavg()[0], "measured": made}
        path.write_text(json.dumps(result, indent=2) + "\n")
        print(part, json.dumps(made), flush=True)


if __name__ == "__main__":
    main()

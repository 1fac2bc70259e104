#!/usr/bin/env python3
"""Measures the pool's manager, and keeps the numbers: bench_pool.py RESULT.json [PART...] replaces the parts of the
result that are named, or all; page RESULT.json DOCUMENT writes the table of a document from it. Needs release builds of
outboard and of the example pool_load, and etcd, if it is to be measured, too."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RELEASE = Path(os.environ.get("RELEASE", ROOT / "target" / "release"))
OUTBOARD = RELEASE / "outboard"
LOAD = RELEASE / "examples" / "pool_load"
BEGIN, END = "<!-- numbers: begin -->", "<!-- numbers: end -->"
BOXES, GPUS = 64, 512
# Claims take turns with single transactions: seconds of each round.
CLIENTS, CLAIMS_S, CLAIMS_ROUNDS = 64, 3, 3
ROUNDS = 5
STARTS = 30
CPU_S = 20


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(what: Callable[[], bool], seconds: float = 60) -> float:
    start = time.monotonic()
    while not what():
        if time.monotonic() > start + seconds:
            raise TimeoutError(f"not within {seconds} s")
        time.sleep(0.005)
    return time.monotonic() - start


def text(url: str, limit: float = 1) -> str:
    try:
        with urllib.request.urlopen(url, timeout=limit) as answer:
            return answer.read().decode()
    except OSError:
        return ""


def load(*arguments: str) -> Any:
    return json.loads(subprocess.check_output([LOAD, *arguments], timeout=300))


def manager(folder: Path, port: int, *options: str) -> subprocess.Popen[str]:
    argv = [OUTBOARD, "pool", "serve", "--listen", f"127.0.0.1:{port}", *options]
    with (folder / f"manager{port}.log").open("a") as log:
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=log, text=True)


def claims_of(store: str, alone: str) -> Any:
    """Claims of a manager with a store, in turns with single transactions of another one of its kind."""
    return load("claims", store, alone, str(CLIENTS), str(CLAIMS_S), str(CLAIMS_ROUNDS))


def claims(folder: Path) -> Any:
    return claims_of(str(folder / "pool"), str(folder / "single"))


def claims_etcd(folder: Path) -> Any:
    if shutil.which("etcd") is None:
        return None
    with etcd(folder) as store:
        return claims_of(f"{store}/pool", f"{store}/single")


@contextlib.contextmanager
def etcd(folder: Path) -> Iterator[str]:
    """Three members on this machine; the address of the cluster, without the name of a pool."""
    ports = [(free_port(), free_port()) for _ in range(3)]
    cluster = ",".join(f"m{at}=http://127.0.0.1:{peer}" for at, (_, peer) in enumerate(ports))
    members = []
    for at, (client, peer) in enumerate(ports):
        own, theirs = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
        argv = ["etcd", "--name", f"m{at}", "--data-dir", str(folder / f"etcd{at}"), "--initial-cluster", cluster]
        argv += ["--listen-client-urls", own, "--advertise-client-urls", own]
        argv += ["--listen-peer-urls", theirs, "--initial-advertise-peer-urls", theirs]
        members.append(subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    try:
        until(lambda: "true" in text(f"http://127.0.0.1:{ports[0][0]}/health"))
        yield "etcd://" + ",".join(f"127.0.0.1:{client}" for client, _ in ports)
    finally:
        for member in members:
            member.kill()
            member.wait()


def decisions(_: Path) -> Any:
    return {str(gpus): load("decisions", str(gpus), "100000") for gpus in (GPUS, 100_000)}


def starts(folder: Path) -> Any:
    """What --pool adds to the start of a program."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    serving = manager(folder, port, "--store", str(folder / "pool"))
    argv = [OUTBOARD, "serve", "--no-config", "--device", "soft", "--devices", "2", "--no-cache", "--pool", url]
    argv += ["--listen", "tcp://127.0.0.1:0", "--pool-name", "a", "--pool-state", str(folder / "a")]
    box = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert box.stdout is not None
    address = box.stdout.readline().removeprefix("listening on ").strip()
    try:
        until(lambda: 'state="free"} 2' in text(f"{url}/metrics"))
        times: dict[str, list[float]] = {"--gpu": [], "--pool": []}
        for _ in range(STARTS):
            for option, value in (("--gpu", address), ("--pool", url)):
                start = time.monotonic()
                subprocess.run([OUTBOARD, "run", option, value, "--", "/bin/true"], check=True)
                times[option].append(1e3 * (time.monotonic() - start))
                until(lambda: 'state="free"} 2' in text(f"{url}/metrics"))
    finally:
        for process in (box, serving):
            process.terminate()
            process.wait()
    medians = {option.strip("-"): statistics.median(of) for option, of in times.items()}
    return {"starts": STARTS, "median_ms": medians, "added_ms": medians["pool"] - medians["gpu"]}


def agents(folder: Path) -> Any:
    """A manager under 64 agents with 512 GPUs: its share of a core, and its restart."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    serving = manager(folder, port, "--store", str(folder / "agents"))
    boxes = subprocess.Popen([LOAD, "agents", url, str(BOXES), str(GPUS)], stdout=subprocess.DEVNULL)
    all_free = f'state="free"}} {GPUS}\n'

    def cpu_s() -> float:
        fields = Path(f"/proc/{serving.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    try:
        until(lambda: all_free in text(f"{url}/metrics"))
        time.sleep(3)
        before, start = cpu_s(), time.monotonic()
        time.sleep(CPU_S)
        share = (cpu_s() - before) / (time.monotonic() - start)
        restarts, first_answers = [], []
        for _ in range(ROUNDS):
            serving.kill()
            serving.wait()
            start = time.monotonic()
            serving = manager(folder, port, "--store", str(folder / "agents"))
            until(lambda: text(f"{url}/metrics") != "")
            first_answers.append(time.monotonic() - start)
            until(lambda: all_free in text(f"{url}/metrics"))
            restarts.append(time.monotonic() - start)
    finally:
        boxes.kill()
        boxes.wait()
        serving.terminate()
        serving.wait()
    return {
        "boxes": BOXES,
        "gpus": GPUS,
        "cpu_share": share,
        "restart_s": restarts,
        "first_answer_s": first_answers,
    }


def take_over(folder: Path) -> Any:
    """Time from the death of the manager that leads until another one serves."""
    if shutil.which("etcd") is None:
        return None
    with etcd(folder) as store:
        return {"take_over_s": leaders_killed(folder, f"{store}/bench")}


def leaders_killed(folder: Path, store: str) -> list[float]:
    managers: dict[int, subprocess.Popen[str]] = {}

    def start(port: int) -> None:
        managers[port] = manager(folder, port, "--store", store, "--grant-key", str(folder / "grants.key"))
        stdout = managers[port].stdout
        assert stdout is not None
        if not stdout.readline().startswith("manager at"):
            raise RuntimeError((folder / f"manager{port}.log").read_text())

    def leader() -> int:
        for port, process in managers.items():
            if process.poll() is None and text(f"http://127.0.0.1:{port}/v1/leader", 0.5):
                return port
        return 0

    times = []
    try:
        for _ in range(3):
            start(free_port())
        for _ in range(ROUNDS):
            until(lambda: leader() != 0)
            first = leader()
            managers[first].kill()
            managers[first].wait()
            times.append(until(lambda first=first: leader() not in (0, first)))
            start(first)
    finally:
        for process in managers.values():
            process.kill()
            process.wait()
    return times


PARTS: dict[str, Callable[[Path], Any]] = {
    "claims": claims,
    "claims_etcd": claims_etcd,
    "decisions": decisions,
    "starts": starts,
    "agents": agents,
    "take_over": take_over,
}


def measure(file: Path, parts: list[str]) -> None:
    result: dict[str, Any] = json.loads(file.read_text()) if parts and file.exists() else {}
    result |= {"cpus": len(os.sched_getaffinity(0)), "machine": platform.machine()}
    # On a disk: a store in memory would be as fast as one likes.
    base = Path(os.environ.get("FOLDER", file.resolve().parent))
    for name in parts or PARTS:
        loaded = os.getloadavg()[0]
        with tempfile.TemporaryDirectory(dir=base, prefix="bench-pool-") as folder:
            result[name] = PARTS[name](Path(folder))
        if result[name]:
            result[name] |= {"load_before": loaded, "date": time.strftime("%Y-%m-%d")}
        print(name, json.dumps(result[name]), flush=True)
        file.write_text(json.dumps(result, indent=1) + "\n")


def verdict(value: float, aim: float, is_least: bool = False) -> str:
    return "met" if (value >= aim if is_least else value <= aim) else "**missed**"


def table(result: dict[str, Any]) -> str:
    rows = ["| | aim | measured | |", "|---|---|---|---|"]

    def row(what: str, aim: str, measured: str, how: str) -> None:
        rows.append(f"| {what} | {aim} | {measured} | {how} |")

    for part, over, least, aim_ms in (("claims", "", 8, 2), ("claims_etcd", " over etcd", 3, 2)):
        of = result.get(part)
        if not of:
            continue
        raw, made = of["single"], of["claims"]
        ratio = made["per_s"] / raw["per_s"]
        row(
            f"durable claims{over}, {of['clients']} clients in flight",
            f"{least} times single transactions",
            f"{made['per_s']:.0f}/s, {ratio:.1f} times {raw['per_s']:.0f}/s",
            verdict(ratio, least, is_least=True),
        )
        raw_p99, p99 = raw["times"]["p99_ms"], made["times"]["p99_ms"]
        aim = f"twice one commit's ({raw_p99:.1f} ms), plus {aim_ms} ms"
        row("the same, p99", aim, f"{p99:.1f} ms", verdict(p99, 2 * raw_p99 + aim_ms))
    for gpus, aim_ms, said in (("512", 0.05, "50 us"), ("100000", 1.0, "1 ms")):
        p99 = result["decisions"][gpus]["times"]["p99_ms"]
        row(f"a decision at {int(gpus):,} GPUs, p99", said, f"{1e3 * p99:.0f} us", verdict(p99, aim_ms))
    for gpus in ("512", "100000"):
        rate = result["decisions"][gpus]["per_s"]
        what = f"decisions at {int(gpus):,} GPUs in a second of one core"
        row(what, "100,000/s", f"{rate:,.0f}/s", verdict(rate, 100_000, is_least=True))
    added = result["starts"]["added_ms"]
    row("what `--pool` adds to a program's start, median", "10 ms", f"{added:.1f} ms", verdict(added, 10))
    if result["take_over"]:
        worst = max(result["take_over"]["take_over_s"])
        times = len(result["take_over"]["take_over_s"])
        row(f"another manager serves (etcd), worst of {times}", "5 s", f"{worst:.1f} s", verdict(worst, 5))
    agents = result["agents"]
    under = f"under {agents['boxes']} agents with {agents['gpus']} GPUs"
    worst = max(agents["restart_s"])
    row(
        f"a manager's restart {under}, until all GPUs are free again, worst of 5",
        "1 s",
        f"{worst:.2f} s",
        verdict(worst, 1),
    )
    share = 100 * agents["cpu_share"]
    row(f"its share of a core {under}", "5 %", f"{share:.1f} %", verdict(share, 5))
    return "\n".join(rows)


def main() -> None:
    match sys.argv[1:]:
        case ["page", result, document]:
            page = Path(document)
            said = page.read_text()
            before, _, rest = said.partition(BEGIN)
            _, _, after = rest.partition(END)
            numbers = table(json.loads(Path(result).read_text()))
            page.write_text(f"{before}{BEGIN}\n{numbers}\n{END}{after}")
        case [result, *parts] if set(parts) <= set(PARTS):
            measure(Path(result), parts)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()

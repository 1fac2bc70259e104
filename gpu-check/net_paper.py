#!/usr/bin/env python3
"""Figures of the papers on networking that GPUs start themselves, redone with the software adapter (docs/net.md).

    python3 gpu-check/net.py build FOLDER                                        # with .toolchain, anywhere
    python3 gpu-check/net_paper.py FOLDER --out RESULTS.json                     # on a machine with a GPU
    python3 gpu-check/net_paper.py FOLDER --out RESULTS.json --by COMMAND         # kernels run by `COMMAND PROGRAM`

post        time to post one entry by payload: a thread of the GPU, and of the CPU
throughput  bytes a second by payload, with one doorbell an entry and one for 16
connections put to completion by payload, over a reliable connection and an unreliable one
limits      entries a second by threads and queues, each thread alone or each warp together
loops       seven loops that serve: request to answer; interrupts a second by payload, beside those of an idle machine
            and of the idle loop; time of the CPU by half seconds, before, while requests come, and after
periods     the same interrupts by the period of completions
waits       time of the CPU that sleeps, and of one that waits in cudaStreamSynchronize
minutes     the same over 90 s, of which requests come for 60, by 2 s; not by default
processes   request to answer between two processes, by shared memory and over tcp
memory      time to allocate memory of a device, pinned and managed, and stacks
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine

ALL_LOOPS = "abcdefg"
RUN_S_MAX = 180
EXIT_FAILED = 1
UNRELIABLE = 32
# Bytes of a request by program.
PAYLOADS = {"loops_small": 64, "loops": 4096, "loops_large": 16384}
# Longest sleep of the adapter of a program that answers: docs/net.md.
SLEEP_US = 200_000


@dataclass(frozen=True)
class Sizes:
    """How much is run."""

    bytes: tuple[int, ...] = (8, 64, 1024, 4096, 20480, 65536, 262144, 1048576)
    operations: int = 2000
    threads: tuple[int, ...] = (1, 4, 32, 128, 512, 1024)
    queues: tuple[int, ...] = (1, 4, 16, 64)
    requests: int = 5000
    # A loop's requests take this long: their number is known after the first run.
    serve_s: float = 2
    idle_s: float = 1.5
    long_idle_s: float = 20
    sample_s: float = 0.5
    repeats: int = 20
    minutes_serve_s: float = 60
    minutes_idle_s: float = 30
    minutes_sample_s: float = 2


QUICK = Sizes(
    bytes=(8, 4096),
    operations=64,
    threads=(1, 32),
    queues=(1, 4),
    requests=20,
    serve_s=0.3,
    idle_s=0.6,
    long_idle_s=1,
    sample_s=0.2,
    repeats=2,
    minutes_serve_s=1,
    minutes_idle_s=0.6,
    minutes_sample_s=0.2,
)


class Runner:
    def __init__(self, folder: Path, before: list[str]) -> None:
        self.folder, self.before = folder.resolve(), before
        self.failed: list[str] = []

    def command(self, program: str, *arguments: object) -> list[str]:
        before = [] if program.endswith("_cpu") else self.before
        return [*before, str(self.folder / program), *map(str, arguments)]

    def bench(self, program: str, *arguments: object) -> dict[str, Any]:
        """The line of bench.cu, or nothing and a failure."""
        command = self.command(program, *arguments)
        try:
            # Kernels' first posts wake nobody: a sleeping adapter would be in the times of short runs.
            env = {**os.environ, "OUTBOARD_NET_SLEEP_US": "50"}
            done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX, env=env)
            if done.returncode == 0:
                return {
                    key: value for key, value in json.loads(done.stdout).items() if key not in ("right", "syndrome")
                }
            why = done.stdout + done.stderr
        except subprocess.TimeoutExpired:
            why = f"no end within {RUN_S_MAX} s"
        self.failed.append(f"{program} {' '.join(map(str, arguments))}: {why.strip()}")
        return {}


def post(runner: Runner, sizes: Sizes) -> list[dict[str, Any]]:
    """Figures W5 and T7.8."""
    rows = []
    for size in sizes.bytes:
        for place in ("gpu", "host"):
            rows.append({"by": "gpu", "counters": place, "bytes": size})
            rows[-1] |= runner.bench("bench", 1, 1, size, sizes.operations, 1, 4, place)
        rows.append({"by": "cpu", "counters": "host", "bytes": size})
        rows[-1] |= runner.bench("bench_cpu", 1, 1, size, sizes.operations, 1, 4, "host")
    return rows


def throughput(runner: Runner, sizes: Sizes) -> list[dict[str, Any]]:
    """Figures W4 and T7.7."""
    rows = []
    for size in sizes.bytes:
        for by, program, place in (("gpu", "bench", "gpu"), ("cpu", "bench_cpu", "host")):
            for how in ("alone", "hold"):
                rows.append({"by": by, "how": how, "bytes": size})
                rows[-1] |= runner.bench(program, 1, 1, size, sizes.operations, 64, 4, place, how)
    return rows


def connections(runner: Runner, sizes: Sizes) -> list[dict[str, Any]]:
    """Figure T7.16."""
    rows = []
    for size in sizes.bytes:
        for by, program, place in (("gpu", "bench", "gpu"), ("cpu", "bench_cpu", "host")):
            for connection, flag in (("reliable", 0), ("unreliable", UNRELIABLE)):
                rows.append({"by": by, "connection": connection, "bytes": size})
                rows[-1] |= runner.bench(program, 1, 1, size, sizes.operations, 1, 4 | flag, place)
    return rows


def limits(runner: Runner, sizes: Sizes) -> list[dict[str, Any]]:
    """The end of T 7.6.1: threads, queues and batches."""
    rows = []
    for threads in sizes.threads:
        for queues in (queues for queues in sizes.queues if queues <= threads):
            for how in ("alone", "each"):
                if how == "each" and (threads % 32 or queues > threads // 32):
                    continue
                rows.append({"threads": threads, "queues": queues, "how": how})
                operations = max(64, sizes.operations // 4)
                rows[-1] |= runner.bench("bench", threads, queues, 8, operations, 16, 0, "gpu", how)
    return rows


def interrupts() -> int:
    """Interrupts of all processors since the start."""
    lines = Path("/proc/interrupts").read_text().splitlines()[1:]
    return sum(int(word) for line in lines for word in line.split()[1:] if word.isdigit())


def cpu_s(pid: int) -> dict[str, float]:
    """Seconds of the CPU that each thread of a process has used, by name; threads of one name together."""
    used: dict[str, float] = {}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            stat = (thread / "stat").read_text()
        except OSError:
            continue
        name, rest = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :].split()
        ticks = int(rest[11]) + int(rest[12])
        used[name] = used.get(name, 0) + ticks / os.sysconf("SC_CLK_TCK")
    return used


def loop(
    runner: Runner,
    name: str,
    program: str,
    requests: int,
    *,
    idle_s: float,
    sample_s: float,
    every: int = 1,
    how: str = "",
    provider: str = "nic",
) -> dict[str, Any]:
    """One loop: under requests, and then idle."""
    command = runner.command(program, "alone", name, requests, int(idle_s * 1000), every, *([how] if how else []))
    env = {**os.environ, "OUTBOARD_NET_SLEEP_US": str(SLEEP_US), "OUTBOARD_NET_PROVIDER": provider}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    samples = sampled(process, sample_s)
    said = process.communicate(timeout=RUN_S_MAX)[0]
    row: dict[str, Any] = {"loop": name, "provider": provider, "bytes": PAYLOADS[program], "every": every}
    row["waits"] = how or "sleeps"
    times = re.search(r"median ([\d.]+) us, 99 % below ([\d.]+) us", said)
    if process.returncode != 0 or not times:
        runner.failed.append(f"{program} {name}: {said.strip()}")
        return row
    end = json.loads(next(line for line in said.splitlines() if line.startswith('{"loop"')))
    row |= {"us_median": float(times[1]), "us_99_percent": float(times[2]), "requests": requests, "idle_s": idle_s}
    row |= {key: end[key] for key in ("rounds", "wakes", "cpu_percent", "process_percent", "stop_us")}
    return row | {"samples": samples} | interrupts_of(samples, requests * float(times[1]) / 1e6, idle_s, sample_s)


def interrupts_of(samples: list[dict[str, float]], serves_s: float, idle_s: float, sample_s: float) -> dict[str, float]:
    """Medians of the interrupts a second while requests came, and while none did: of whole samples, from the end."""
    rates = [sample["interrupts_a_second"] for sample in samples]
    idle = max(0, int(idle_s / sample_s) - 1)
    served = int(serves_s / sample_s) - 1
    means = {}
    if idle > 0 and len(rates) >= idle:
        means["interrupts_a_second_idle"] = statistics.median(rates[-idle:])
    rates = rates[: len(rates) - idle - 1]
    if served > 0 and len(rates) >= served:
        means["interrupts_a_second_serving"] = statistics.median(rates[-served:])
    return means


def sampled(process: subprocess.Popen[str], every_s: float) -> list[dict[str, float]]:
    """Interrupts a second of the machine, and percents of a core by thread, in each interval."""
    samples, last, calls, at = [], cpu_s(process.pid), interrupts(), time.monotonic()
    # One sleep an interval: looks for the end would be interrupts, too.
    end = os.pidfd_open(process.pid)
    while not select.select([end], [], [], every_s)[0]:
        took = time.monotonic() - at
        now, now_calls = cpu_s(process.pid), interrupts()
        sample = {of: round(100 * (used - last.get(of, 0)) / took, 2) for of, used in now.items()}
        samples.append({"interrupts_a_second": round((now_calls - calls) / took, 1), **sample})
        last, calls, at = now, now_calls, at + took
    os.close(end)
    return samples


def requests_in(runner: Runner, name: str, program: str, sizes: Sizes, serve_s: float = 0) -> int:
    """How many requests a loop answers in the time for which it is looked at."""
    row = loop(runner, name, program, sizes.requests // 10, idle_s=0, sample_s=sizes.sample_s)
    return max(sizes.requests // 10, int((serve_s or sizes.serve_s) * 1e6 / row.get("us_median", 1e6)))


def idle_interrupts(sizes: Sizes) -> float:
    before = interrupts()
    time.sleep(4 * sizes.sample_s)
    return round((interrupts() - before) / (4 * sizes.sample_s), 1)


def loops(runner: Runner, sizes: Sizes, only: str) -> dict[str, Any]:
    """Figures T7.9 and W7."""
    idle, rows = idle_interrupts(sizes), []
    for name in only:
        for program in PAYLOADS:
            requests = requests_in(runner, name, program, sizes)
            # The kernel that stays is looked at for longest.
            idle_s = sizes.long_idle_s if name == "g" and program == "loops" else sizes.idle_s
            rows.append(loop(runner, name, program, requests, idle_s=idle_s, sample_s=sizes.sample_s))
            # The GPU itself writes to the client's memory, and no adapter.
            if name == "g":
                rows.append(loop(runner, name, program, requests, idle_s=0, sample_s=sizes.sample_s, provider="nvlink"))
    return {"idle_interrupts_a_second": [idle, idle_interrupts(sizes)], "longest_sleep_us": SLEEP_US, "rows": rows}


def periods(runner: Runner, sizes: Sizes, only: str) -> dict[str, Any]:
    """Figure T7.10."""
    rows = []
    for name in (name for name in "bdg" if name in only):
        requests = requests_in(runner, name, "loops_small", sizes)
        for every in (1, 4, 16, 32):
            rows.append(loop(runner, name, "loops_small", requests, idle_s=0, sample_s=sizes.sample_s, every=every))
    return {"idle_interrupts_a_second": idle_interrupts(sizes), "rows": rows}


def waits(runner: Runner, sizes: Sizes, only: str) -> dict[str, Any]:
    """Figure W7's other half: each loop that the GPU drives, with a CPU that synchronises."""
    rows = []
    for name in (name for name in "bcdg" if name in only):
        requests = requests_in(runner, name, "loops_small", sizes)
        for how in ("", "synchronise"):
            idle_s = sizes.idle_s
            rows.append(loop(runner, name, "loops_small", requests, idle_s=idle_s, sample_s=sizes.sample_s, how=how))
    return {"rows": rows}


def minutes(runner: Runner, sizes: Sizes, only: str) -> dict[str, Any]:
    """Figures W7 and T7.17: each loop with a CPU that sleeps; where it can, with one that synchronises."""
    rows = []
    for name in only:
        requests = requests_in(runner, name, "loops_small", sizes, sizes.minutes_serve_s)
        for how in ("", "synchronise") if name in "bcdg" else ("",):
            idle_s, sample_s = sizes.minutes_idle_s, sizes.minutes_sample_s
            rows.append(loop(runner, name, "loops_small", requests, idle_s=idle_s, sample_s=sample_s, how=how))
    return {"rows": rows}


def processes(runner: Runner, sizes: Sizes, only: str) -> list[dict[str, Any]]:
    """Request to answer between a server and a client of their own."""
    rows = []
    for name in (name for name in "dg" if name in only):
        for program in PAYLOADS:
            for way in ("shm", "tcp"):
                rows.append({"loop": name, "bytes": PAYLOADS[program], "way": way})
                rows[-1] |= between(runner, name, program, way, sizes.requests)
    return rows


def between(runner: Runner, name: str, program: str, way: str, requests: int) -> dict[str, float]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    env = {**os.environ, "OUTBOARD_NET_SLEEP_US": "50", "OUTBOARD_NET_WAY": way}
    server = subprocess.Popen(
        runner.command(program, "serve", name, address),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
    )
    command = [str(runner.folder / program), "ask", address, str(requests), "0"]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX, env=env)
    server.send_signal(signal.SIGTERM)
    server.communicate(timeout=RUN_S_MAX)
    times = re.search(r"median ([\d.]+) us, 99 % below ([\d.]+) us", asked.stdout)
    if asked.returncode != 0 or not times:
        runner.failed.append(f"{program} {name} {way}: {(asked.stdout + asked.stderr).strip()}")
        return {}
    return {"us_median": float(times[1]), "us_99_percent": float(times[2])}


def memory(runner: Runner, sizes: Sizes) -> list[dict[str, Any]]:
    """Figure T7.18, and the end of T 7.6.3.5."""
    command = runner.command("allocate", sizes.repeats)
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX)
    if done.returncode != 0:
        runner.failed.append(f"allocate: {(done.stdout + done.stderr).strip()}")
        return []
    return [json.loads(line) for line in done.stdout.splitlines()]


BY_BENCH = {"post": post, "throughput": throughput, "connections": connections, "limits": limits, "memory": memory}
BY_LOOPS = {"loops": loops, "periods": periods, "waits": waits, "processes": processes, "minutes": minutes}
BY_DEFAULT = [name for name in [*BY_BENCH, *BY_LOOPS] if name != "minutes"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="programs of gpu-check/net.py build")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default=",".join(BY_DEFAULT))
    parser.add_argument("--loops", default=ALL_LOOPS)
    parser.add_argument("--by", default="", metavar="COMMAND")
    options = parser.parse_args()
    if not options.by and not machine.has_gpu():
        print("NOT RUN: there is no NVIDIA GPU with a driver here")
        return 77
    runner, sizes = Runner(options.folder, shlex.split(options.by)), QUICK if options.quick else Sizes()
    described = {key: value for key, value in machine.describe(["true"]).items() if key != "outboard"}
    results: dict[str, Any] = {"format": 1, "what": __doc__, "is_software": bool(options.by), "machine": described}
    for name in options.only.split(","):
        if name in BY_LOOPS:
            results[name] = BY_LOOPS[name](runner, sizes, options.loops)
        else:
            results[name] = BY_BENCH[name](runner, sizes)
        results["failed"] = runner.failed
        options.out.write_text(json.dumps(machine.scrub(results), indent=1) + "\n")
        print(json.dumps(results[name]), flush=True)
    for why in runner.failed:
        print(f"FAILED: {why}")
    return EXIT_FAILED if runner.failed else 0


if __name__ == "__main__":
    sys.exit(main())

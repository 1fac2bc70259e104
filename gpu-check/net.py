#!/usr/bin/env python3
"""Kernels that post to the software adapter, on the GPU of this machine: each result looked at.

    python3 gpu-check/net.py build FOLDER                            # with .toolchain and target/release, anywhere
    python3 gpu-check/net.py run NAME=FOLDER... --out RESULTS.json   # on a machine with a GPU
    python3 gpu-check/net.py bench NAME=FOLDER... --out RESULTS.json # the same, timed
    python3 gpu-check/net.py peers NAME=FOLDER... --out RESULTS.json # beside GPUNetIO's headers on such a ring
    python3 gpu-check/net_tests.py --out RESULTS.json                # the project's tests of all this, on that GPU

Several folders, built from several commits or with several headers (--include), take turns with each case, so that
what differs between them is not the machine. Ends with 1 where a result is wrong, a program hangs or none could be
run, with 77 where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import machine

ROOT = Path(__file__).resolve().parent.parent
NVCC = ROOT / ".toolchain" / "cuda" / "bin" / "nvcc"
LIBRARY = "liboutboard_net.so"
SOURCES = {
    "soak": ROOT / "tests" / "programs" / "net" / "soak.cu",
    "messages": ROOT / "tests" / "programs" / "net" / "messages.cu",
    "two_kernels": ROOT / "examples" / "net" / "two_kernels.cu",
    "bench": ROOT / "tests" / "programs" / "net" / "bench.cu",
    "bench_rings": ROOT / "tests" / "programs" / "net" / "bench.cu",
    "loops": ROOT / "examples" / "net" / "loops.cu",
    "loops_small": ROOT / "examples" / "net" / "loops.cu",
    "loops_large": ROOT / "examples" / "net" / "loops.cu",
    "allocate": ROOT / "tests" / "programs" / "net" / "allocate.cu",
}
# Flags of nvcc for some of them.
MORE = {
    "loops": ["-rdc=true"],
    "loops_small": ["-rdc=true", "-DLOOPS_WORDS=8"],
    "loops_large": ["-rdc=true", "-DLOOPS_WORDS=2048"],
    "bench_rings": ["-DBENCH_PROVIDERS=Providers::rings"],
}
GPUNETIO_BENCH = ROOT / "tests" / "packages" / "gpunetio_bench.cu"
# Arguments of each program, which its first lines explain; SEED is the round's number.
CASES = {
    "soak": [
        "1 200 6 0 SEED",
        "32 20 6 0 SEED",
        "32 20 6 20000 SEED",
        "64 150 5 0 SEED",
        "256 40 8 0 SEED",
        "32 20 6 20000 SEED gpu",
        "64 150 5 0 SEED gpu",
        "256 40 8 0 SEED gpu",
        "1 200 6 0 SEED gpu 4",
    ],
    "messages": [
        "thread 16 16 40 6 4 1 0 0 SEED",
        "thread 32 32 20 6 4 16 1 20000 SEED",
        "warp 4 4 40 6 3 33 0 0 SEED",
        "block 2 2 20 6 2 1 1 0 SEED",
    ],
    "two_kernels": ["100"],
}
# Threads, queues, bytes, operations, operations to a wait, flags of a queue (4: exclusive), where counters are, and how
# they put if not each alone: with one doorbell for 16, or the threads of a warp together.
TIMED = [
    *(f"1 1 {size} 2000 1 {flags} {place}" for size in (8, 20480) for flags in (0, 4) for place in ("host", "gpu")),
    *(f"1 1 {size} 1000 1 4 gpu" for size in (64, 1024, 4096, 65536, 1048576)),
    *(f"1 1 {size} 4000 64 4 gpu" for size in (8, 1024, 4096, 20480, 65536, 1048576)),
    *(f"{threads} 1 8 2000 16 0 gpu" for threads in (32, 128, 512)),
    *(f"{threads} 1 8 300 16 0 host" for threads in (32, 128, 512)),
    *(f"{threads} 1 8 500 16 0 gpu" for threads in (1, 1024)),
    *(f"{threads} {queues} 8 1000 16 0 gpu" for threads, queues in ((64, 4), (256, 4), (64, 64), (1024, 64))),
    *(f"1 1 {size} 4000 64 4 gpu hold" for size in (8, 4096, 20480, 65536)),
    *(f"32 1 {size} 2000 16 {flags} gpu each" for size in (8, 20480) for flags in (0, 4)),
    *(f"{threads} {queues} 8 1000 16 0 gpu each" for threads, queues in ((128, 1), (512, 1), (256, 4), (1024, 32))),
]
# Bytes, operations, operations to a wait, of gpunetio_bench.
PEERED = ["8 2000 1", "20480 2000 1", "8 4096 64", "20480 4096 64"]
EXIT_USAGE = 2
EXIT_FAILED = 1
EXIT_NOT_RUN = 77


@dataclass
class Outcome:
    """One run of one case: what its last line says, or why there is none."""

    build: str
    program: str
    case: str
    is_right: bool
    said: list[str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="do", required=True)
    one = commands.add_parser("build")
    one.add_argument("folder", type=Path)
    one.add_argument("--include", type=Path, default=ROOT / "include", help="the folder of outboard/net.cuh")
    one.add_argument("--library", type=Path, default=ROOT / "target" / "release" / LIBRARY)
    one.add_argument("--define", action="append", default=[], metavar="NAME[=VALUE]")
    one.add_argument("--nvcc", type=Path, default=NVCC)
    one.add_argument("--only", default="", help="programs, by comma")
    one.add_argument("--gpunetio", type=Path, help="the folder of GPUNetIO's doca_gpunetio_device.h")
    for do in ("run", "bench", "peers"):
        one = commands.add_parser(do)
        one.add_argument("builds", nargs="+", metavar="NAME=FOLDER")
        one.add_argument("--out", type=Path, required=True)
        one.add_argument("--rounds", type=int, default=3)
        one.add_argument("--timeout-s", type=float, default=90, help="for one run")
        one.add_argument("--only", default="", help="programs, by comma")
    options = parser.parse_args()
    # Kernels' first posts wake nobody: a sleeping adapter would be in the times of short runs.
    os.environ.setdefault("OUTBOARD_NET_SLEEP_US", "50")
    return {"build": build, "run": run, "bench": bench, "peers": peers}[options.do](options)


def build(options: argparse.Namespace) -> int:
    """Builds the programs for GPUs from sm_80 on, with the library beside them."""
    options.folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(options.library, options.folder / LIBRARY)
    # By its name in the folder: a path would be that of this machine.
    link = [f"-L{options.folder}", f"-l:{LIBRARY}"]
    commands: list[list[Any]] = []
    for name, source in {**SOURCES, **({"gpunetio_bench": GPUNETIO_BENCH} if options.gpunetio else {})}.items():
        if options.only and name not in options.only.split(","):
            continue
        command = [options.nvcc, "-std=c++17", "-O2", "-gencode", "arch=compute_80,code=compute_80"]
        command += ["-gencode", "arch=compute_90,code=sm_90", f"-I{options.include}", *MORE.get(name, [])]
        command += [f"-D{define}" for define in options.define]
        if name == "gpunetio_bench":
            command += [f"-I{options.gpunetio}"]
        commands.append([*command, source, "-o", options.folder / name, *link, "-Xlinker", "-rpath=$ORIGIN"])
    # This source compiles for threads of the CPU, too.
    on_cpu = ["-x", "c++", SOURCES["bench"], "-x", "none"]
    command = ["g++", "-std=c++17", "-O2", "-pthread", f"-I{options.include}", *on_cpu]
    commands.append([*command, "-o", options.folder / "bench_cpu", *link, "-Wl,-rpath,$ORIGIN"])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done in pool.map(lambda command: subprocess.run(command), commands):
            done.check_returncode()
    return 0


def run(options: argparse.Namespace) -> int:
    if not machine.has_gpu():
        print("NOT RUN: there is no NVIDIA GPU with a driver here")
        return EXIT_NOT_RUN
    builds = dict(text.split("=", 1) for text in options.builds)
    programs = [name for name in CASES if not options.only or name in options.only.split(",")]
    outcomes: list[Outcome] = []
    for seed in range(1, options.rounds + 1):
        for program in programs:
            for case in CASES[program]:
                for name, folder in builds.items():
                    path = Path(folder).resolve() / program
                    if path.exists():
                        outcome = one_case(name, path, case.replace("SEED", str(seed)), options.timeout_s)
                        outcomes.append(outcome)
                        print(
                            f"{name}: {program} {outcome.case}: {'right' if outcome.is_right else 'WRONG'}", flush=True
                        )
                        write(options.out, builds, outcomes)
    wrong = sum(not outcome.is_right for outcome in outcomes)
    print(f"{len(outcomes) - wrong} of {len(outcomes)} are right")
    return EXIT_FAILED if wrong or not outcomes else 0


def bench(options: argparse.Namespace) -> int:
    """Times each case, builds in turns, and prints the medians."""
    what = "tests/programs/net/bench.cu with the software adapter: medians of builds in turns; a case is THREADS QUEUES"
    what += " BYTES OPERATIONS WINDOW FLAGS COUNTERS [HOW]"
    return timed(options, [("bench", case) for case in TIMED], what)


def peers(options: argparse.Namespace) -> int:
    """Times GPUNetIO's put and ours in turns."""
    what = "tests/packages/gpunetio_bench.cu with the software adapter: one thread, an exclusive queue of plain"
    what += " completions; a case is WHO BYTES OPERATIONS WINDOW"
    cases = [("gpunetio_bench", f"{who} {case}") for case in PEERED for who in ("gpunetio", "outboard", "rings")]
    return timed(options, cases, what)


def timed(options: argparse.Namespace, cases: list[tuple[str, str]], what: str) -> int:
    if not machine.has_gpu():
        print("NOT RUN: there is no NVIDIA GPU with a driver here")
        return EXIT_NOT_RUN
    builds = dict(text.split("=", 1) for text in options.builds)
    times: dict[tuple[str, str], list[dict[str, Any]]] = {}
    results: dict[str, Any] = {
        "format": 2,
        "what": what,
        "machine": this_machine(),
        "rounds": 0,
        "failed": 0,
        "rows": [],
    }
    for _ in range(options.rounds):
        for program, case in cases:
            for name, folder in builds.items():
                process = started([Path(folder).resolve() / program, *case.split()])
                ended, said = end_of(process, options.timeout_s)
                if ended:
                    times.setdefault((name, case), []).append(json.loads(said[-1]))
                elif process.returncode != EXIT_USAGE:
                    # An older build does not know all cases.
                    results["failed"] += 1
                    print(f"{name}: {case}: {' '.join(said)}", flush=True)
            results["rows"] = [{"build": of, "case": one, **medians(runs)} for (of, one), runs in times.items()]
            options.out.write_text(json.dumps(machine.scrub(results), indent=1) + "\n")
        results["rounds"] += 1
    for row in results["rows"]:
        print(" ".join(f"{key}={value}" for key, value in row.items()))
    return EXIT_FAILED if results["failed"] or not times else 0


def this_machine() -> dict[str, Any]:
    """What machine.py says of it, without the command, which takes no part."""
    return {key: value for key, value in machine.describe(["true"]).items() if key != "outboard"}


def medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0] if key not in ("right", "syndrome")}


def one_case(name: str, path: Path, case: str, timeout_s: float) -> Outcome:
    if path.name != "two_kernels":
        ended, said = ended_with([path, *case.split()], timeout_s)
        return Outcome(name, path.name, case, ended and said[-1:] != [] and said[-1].endswith(": right"), said)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    listener = started([path, "listen", address, case])
    connected, said = ended_with([path, "connect", address, case], timeout_s)
    listened, also_said = end_of(listener, timeout_s)
    is_right = connected and listened and said == also_said == [f"{case} of {case} rounds are right"]
    return Outcome(name, path.name, case, is_right, also_said + said)


def started(command: list[Any]) -> subprocess.Popen[str]:
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended_with(command: list[Any], timeout_s: float) -> tuple[bool, list[str]]:
    return end_of(started(command), timeout_s)


def end_of(process: subprocess.Popen[str], timeout_s: float, *, whole_group: bool = False) -> tuple[bool, list[str]]:
    """Whether a process ended by itself and with 0, and what it printed. One that does not is killed, with its group if
    that is its own."""
    try:
        said, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        if whole_group:
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        said, _ = process.communicate()
        return False, [*said.splitlines(), f"no end within {timeout_s:g} s"]
    lines = said.splitlines()
    if process.returncode < 0:
        lines.append(signal.Signals(-process.returncode).name)
    return process.returncode == 0, lines


def write(out: Path, builds: dict[str, str], outcomes: list[Outcome]) -> None:
    results = {
        "format": 2,
        "what": "kernels of tests/programs/net and examples/net with the software adapter, builds in turns",
        "machine": this_machine(),
        "builds": list(builds),
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }
    out.write_text(json.dumps(machine.scrub(results), indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())

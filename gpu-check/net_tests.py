#!/usr/bin/env python3
"""The project's own tests of kernels that post, with servers that have this machine's GPU.

    python3 gpu-check/net_tests.py --outboard target/release/outboard --out RESULTS.json [--only EXPRESSION]

`make test` runs them on the software device. Here the same tests need pytest, nvcc, g++, and for some of them PyTorch,
Triton, NCCL or numba-cuda: of the toolchain, or where that is missing this machine's. Ends with 1 where a test failed,
with 77 where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import machine
from suite import ROOT

FILES = ["tests/net", *(f"tests/packages/test_{name}.py" for name in ("gpunetio", "net_calls", "nccl"))]
# Why some tell nothing here.
NOT_HERE = {
    "test_rings_over_the_adapter": "expects that NCCL's kernels have no image for the device",
    "test_both_ranks_in_one_process": "expects servers of a GPU each",
    "test_a_process_for_each_rank": "expects servers of a GPU each",
    "test_collectives_over_shared_memory": "expects servers of a GPU each",
    "test_bench_net": "says what the software device is",
    "test_queues_are_made_by_commands": "uses the system's libraries of RDMA",
    "test_a_device_has_memory_of_the_gpu_until_it_is_freed": "the stand-ins take no dma-buf of a GPU",
    "test_one_sided_calls": "needs an NCCL with ncclPutSignal",
}
SAID_MAX = 2000
INTERRUPTED_S_MAX = 30
PYTEST_INTERRUPTED = 2
EXIT_FAILED = 1
EXIT_NOT_RUN = 77


def stand_in() -> None:
    """Puts this machine's compiler and Python where tests look for those of the toolchain."""
    toolchain = ROOT / ".toolchain"
    nvcc = toolchain / "bin" / "nvcc"
    if not nvcc.exists() and (here := shutil.which("nvcc")):
        passes_on(nvcc, here)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for name in ("torch", "numba_cupy"):
        place = toolchain / "packages" / name
        if place.exists():
            continue
        packages = place / "lib" / version / "site-packages"
        packages.parent.mkdir(parents=True)
        packages.symlink_to(sysconfig.get_path("purelib"))
        passes_on(place / "bin" / "python", sys.executable)


def passes_on(script: Path, to: str) -> None:
    """Makes a script that runs another command. By a link, that would look for its files beside the link."""
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(f'#!/bin/sh\nexec {to} "$@"\n')
    script.chmod(0o755)


def run(options: argparse.Namespace, report: Path) -> tuple[int, str | None]:
    """Runs the tests. Returns pytest's status, and why it was interrupted."""
    chosen = " and ".join([*(f"not {name}" for name in NOT_HERE), *([f"({options.only})"] if options.only else [])])
    env = {**os.environ, "OUTBOARD": str(options.outboard.resolve()), "OUTBOARD_TESTS_DEVICE": "nvidia"}
    command = [sys.executable, "-m", "pytest", "-v", *(["-x"] if options.stop else []), "-p", "no:cacheprovider"]
    command += ["--junitxml", report, "-k", chosen, *(options.files or FILES)]
    tests = subprocess.Popen(list(map(str, command)), cwd=ROOT, env=env)
    try:
        status = tests.wait(options.timeout_s)
        return status, "by a signal" if status == PYTEST_INTERRUPTED else None
    except subprocess.TimeoutExpired:
        why = f"no end within {options.timeout_s:g} s"
        print(why)
        # It reports what it has.
        tests.send_signal(signal.SIGINT)
        tests.wait(INTERRUPTED_S_MAX)
        return EXIT_FAILED, why


def outcomes(report: Path) -> list[dict[str, Any]]:
    """Each test of pytest's report, and what a failed one said.

    A run that is interrupted has a row without a name for the test that was under way: that one is no result.
    """
    rows = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        if not case.get("name"):
            continue
        row: dict[str, Any] = {"test": case.get("name"), "seconds": float(case.get("time", "0")), "outcome": "passed"}
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                row["outcome"] = child.tag.replace("failure", "failed")
                row["said"] = f"{child.get('message', '')}\n{child.text or ''}"[:SAID_MAX]
        rows.append(row)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outboard", type=Path, default=ROOT / "target" / "release" / "outboard")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="an expression of pytest's -k")
    parser.add_argument("--stop", action="store_true", help="at the first that fails")
    parser.add_argument("--timeout-s", type=float, default=500, help="for all")
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    if not machine.has_gpu():
        print("NOT RUN: there is no NVIDIA GPU with a driver here")
        return EXIT_NOT_RUN
    stand_in()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        ended, interrupted = run(options, report)
        rows = outcomes(report) if report.exists() else []
    results = {
        "format": 1,
        "what": "the project's tests of kernels that post, with servers that have this machine's GPU",
        "machine": machine.describe([str(options.outboard)]),
        "not_here": NOT_HERE,
        "interrupted": interrupted,
        "tests": rows,
    }
    options.out.write_text(json.dumps(machine.scrub(results), indent=1) + "\n")
    failed = [row["test"] for row in rows if row["outcome"] not in ("passed", "skipped")]
    print(f"{len(rows)} tests, {len(failed)} failed: {' '.join(failed)}")
    if interrupted:
        print(f"interrupted: {interrupted}")
    return EXIT_FAILED if failed or ended != 0 or not rows else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Parts of this machine's GPU by MPS: what programs with `--share gpu-percent=` see and get.

    python3 gpu-check/mps.py --outboard target/release/outboard --out RESULTS.json

Starts a control daemon of MPS of its own. For each percentage a program of PyTorch says how many multiprocessors it
sees, and how long a product of matrices takes it; then two programs compute at once, with and without MPS. Ends with 1
where a part is not kept, with 77 without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import machine

CONTROL = "nvidia-cuda-mps-control"
PERCENTAGES = [10, 25, 50, 100]
# By then programs that are to compute at once have loaded PyTorch.
READY_S = 25
EXIT_FAILED = 1
EXIT_NOT_RUN = 77
PROGRAM = """
import json, sys, time, torch
rounds, start = int(sys.argv[1]), float(sys.argv[2])
a = torch.randn(4096, 4096, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
right = (a.double() @ a.double()[:, :8])
(a @ a); torch.cuda.synchronize()
while time.time() < start: time.sleep(0.001)
begin = time.perf_counter()
for _ in range(rounds): b = a @ a
torch.cuda.synchronize()
took = time.perf_counter() - begin
error = (b[:, :8].double() - right).abs().max().item()
multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
print(json.dumps({"multiprocessors": multiprocessors, "ms_each": took * 1000 / rounds, "error": error}))
"""


@contextmanager
def daemon(folder: Path) -> Iterator[dict[str, str]]:
    """A control daemon, and the environment of its clients."""
    pipes, logs = folder / "pipes", folder / "logs"
    pipes.mkdir()
    logs.mkdir()
    env = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(logs)}
    subprocess.run([CONTROL, "-d"], env=env, check=True, timeout=30)
    try:
        yield env
    finally:
        subprocess.run([CONTROL], input="quit\n", text=True, env=env, timeout=60)


@contextmanager
def server(outboard: Path, folder: Path, env: dict[str, str], *options: str) -> Iterator[str]:
    """A server with these options, and its address."""
    address = f"shm://{folder}/gpu.sock"
    argv = [outboard, "serve", "--no-config", "--device", "nvidia", "--listen", address, *options]
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE) as served:
        assert served.stdout is not None and served.stdout.readline(), "the server did not start"
        try:
            yield address
        finally:
            served.terminate()


def programs(outboard: Path, address: str, count: int, rounds: int = 50) -> list[dict[str, Any]]:
    """What `count` programs say that compute at once."""
    start = time.time() + READY_S if count > 1 else 0
    argv = [outboard, "run", "--gpu", address, "--", sys.executable, "-c", PROGRAM, str(rounds), str(start)]
    running = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    return [json.loads(one.communicate(timeout=120)[0]) for one in running]


def parts(outboard: Path, folder: Path, env: dict[str, str]) -> list[dict[str, Any]]:
    """One program with each percentage."""
    rows = []
    for percent in PERCENTAGES:
        with server(outboard, folder, env, "--share", f"gpu-percent={percent}") as address:
            [said] = programs(outboard, address, 1)
        rows.append({"gpu_percent": percent, **said})
        print(rows[-1], flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--outboard", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if shutil.which(CONTROL) is None or not machine.has_gpu():
        print("NOT RUN: there is no GPU here, or no MPS")
        return EXIT_NOT_RUN
    outboard = args.outboard.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with server(outboard, folder, dict(os.environ)) as address:
            together = {"two programs, time slices": programs(outboard, address, 2)}
        with daemon(folder) as env:
            rows = parts(outboard, folder, env)
            with server(outboard, folder, env, "--share", "gpu-percent=50") as address:
                together["two programs, MPS, 50 percent each"] = programs(outboard, address, 2)
        refused = subprocess.run(
            [outboard, "serve", "--no-config", "--device", "nvidia", "--share", "gpu-percent=50", "--check-config"],
            env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipes")},
            capture_output=True,
            text=True,
        )
    whole = rows[-1]["multiprocessors"]
    # MPS rounds a part up to what it can set aside, at most eight multiprocessors.
    kept = all(row["multiprocessors"] <= whole * row["gpu_percent"] / 100 + 8 for row in rows)
    is_right = kept and refused.returncode == 2 and all(row["error"] < 1 for row in rows)
    what = "parts of a GPU by MPS: multiprocessors that a program sees, and 4096-wide products of 32 bits"
    results = {"format": 1, "what": what, "machine": machine.describe([str(args.outboard)]), "is_right": is_right}
    results |= {"parts": rows, "together": together, "without_daemon": refused.stderr.strip()}
    args.out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(together, indent=1), refused.stderr)
    return 0 if is_right else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""NCCL over the software adapter: two processes on this machine's GPUs, or on its one GPU, each under `nic run`.

    python3 gpu-check/nic_nccl.py --outboard target/release/outboard --out RESULTS.json [--nccl libnccl.so.2]

NCCL is told to use nothing but its network NET/IB: first through host memory, then with the GPU's own memory
registered (GPU Direct RDMA by dma-buf); then the one-sided calls that need no kernel, by the proxy that GIN has, too.
Both ranks check each sum of all-reduces, each broadcast and each put, to the word; NCCL's log has to say which way the
data goes. Ends with 1 where a value is wrong, a rank fails or hangs, or the way is another, with 77 without a GPU or
NCCL. A way whose calls this NCCL does not have is not run, and the results say so.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

import machine
from suite import ROOT

PROGRAMS = ROOT / "tests" / "programs"
RANKS = 2
EXIT_FAILED = 1
EXIT_NOT_RUN = 77
SETTINGS = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH",
    "NCCL_NET": "IB",
    "NCCL_IB_HCA": "mlx5_0",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MAX_NCHANNELS": "2",
}
# The program of each way, what it needs, and what NCCL says if it goes that way.
WAYS = {
    "host memory": ("nccl_ranks.py", {"NCCL_NET_GDR_LEVEL": "LOC"}, "via NET/IB/0"),
    "GPU memory": ("nccl_ranks.py", {"NCCL_NET_GDR_LEVEL": "SYS", "NCCL_NET_GDR_READ": "1"}, "via NET/IB/0/GDRDMA"),
    "one-sided, by a proxy": ("nccl_put.py", {"NCCL_GIN_TYPE": "2"}, "RMA_IB_PROXY"),
}
# Calls of the programs that not every NCCL has.
NEEDED = {"nccl_put.py": "ncclPutSignal"}
# Words of NCCL's log that tell how far it came.
TELLING = ("NET/IB", "RMA", "GIN", "NCCL WARN", "outboard nic", "Init COMPLETE")
LINES_MAX = 60


def find_nccl() -> Path | None:
    for place in (sysconfig.get_path("purelib"), *sys.path):
        for found in Path(place).glob("nvidia/nccl/lib/libnccl.so.2"):
            return found
    return None


def run(outboard: Path, nccl: Path, way: str, gpus: int, timeout_s: float) -> dict[str, Any]:
    """Runs both ranks. Returns what each said, and whether it is right."""
    program, settings, expected = WAYS[way]
    if (needed := NEEDED.get(program)) and not hasattr(ctypes.CDLL(str(nccl)), needed):
        return {"way": way, "is_right": None, "not_run": f"this NCCL has no {needed}"}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ranks = []
        for rank in range(RANKS):
            argv = [outboard, "nic", "run", "--fabric", folder / "fabric", "--"]
            argv += [sys.executable, PROGRAMS / program, nccl, str(rank), folder / "number"]
            env = {**os.environ, **SETTINGS, **settings, "CUDA_VISIBLE_DEVICES": str(rank % gpus)}
            # Ranks of one machine may not share a GPU.
            env["NCCL_HOSTID"] = f"host-{rank}"
            log = (folder / f"rank{rank}").open("w+")
            process = subprocess.Popen(argv, env=env, stdout=log, stderr=log, start_new_session=True)
            ranks.append((process, log))
        rows = []
        for process, log in ranks:
            try:
                code: int | str = process.wait(max(1, began + timeout_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                code = "did not end"
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            log.seek(0)
            said = log.read().splitlines()
            log.close()
            is_right = code == 0 and "right" in said and any(expected in line for line in said)
            telling = [line for line in said if any(word in line for word in TELLING)]
            rows.append({"exit": code, "is_right": is_right, "ways": sum(expected in line for line in said)})
            rows[-1]["said"] = telling[-LINES_MAX:] + ([] if is_right else said[-10:])
    is_right = all(row["is_right"] for row in rows)
    return {"way": way, "is_right": is_right, "seconds": round(time.monotonic() - began, 1), "ranks": rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--outboard", type=Path, required=True)
    parser.add_argument("--nccl", type=Path, default=find_nccl())
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=WAYS)
    parser.add_argument("--timeout-s", type=float, default=100, help="for each way")
    args = parser.parse_args()
    gpus = len(machine.gpus())
    if gpus == 0 or args.nccl is None:
        print("NOT RUN: there is no GPU here, or no NCCL")
        return EXIT_NOT_RUN
    ways = [args.only] if args.only else list(WAYS)
    rows = []
    for way in ways:
        rows.append(run(args.outboard.resolve(), args.nccl.resolve(), way, min(gpus, RANKS), args.timeout_s))
        if "not_run" in rows[-1]:
            print(f"{way}: NOT RUN: {rows[-1]['not_run']}", flush=True)
            continue
        print(f"{way}: {'right' if rows[-1]['is_right'] else 'WRONG'}, {rows[-1]['seconds']} s", flush=True)
    results = {
        "format": 1,
        "what": "NCCL's all-reduce and broadcast of two processes over NET/IB of the software adapter",
        "machine": machine.describe([str(args.outboard)]),
        "is_right": all(row["is_right"] for row in rows if "not_run" not in row),
        "ways": rows,
    }
    args.out.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if results["is_right"] else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())

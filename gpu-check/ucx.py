"""UCX's own ucx_perftest with kernels that put by its device library: the cases of net_peers.py, and its figures."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import net

# Below the folder of the programs: UCX's package, with its libraries and the runtime that they need.
PERFTEST = Path("ucx") / "bin" / "ucx_perftest"
# Between processes with a GPU each, by CUDA IPC.
ENVIRONMENT = {"UCX_TLS": "cuda_copy,cuda_ipc,tcp,sm,self", "UCX_NET_DEVICES": "lo"}
PORT = 13337
# Figures of a line of -v: percentile, average and overall latency in us, two bandwidths in MiB/s, two rates.
FIELDS = 8
BLOCK = 512
START_S = 1.0


def arguments(case: str) -> list[str]:
    """The options of ucx_perftest for a case. Each of its blocks puts all of the bytes."""
    kind, *values = case.split()
    if kind == "latency":
        scope, size, rounds = values[:3]
        shape = f"{dict(thread=1, warp=32, block=BLOCK)[scope]}:1"
    elif kind == "bandwidth":
        scope, size, rounds, shape = "block", values[0], values[1], f"{BLOCK}:{values[2]}"
    else:
        scope, size, rounds, threads = "thread", "8", values[1], int(values[0])
        shape = f"{min(threads, 256)}:{max(1, threads // 256)}"
    test = "ucp_put_lat" if kind == "latency" else "ucp_put_bw"
    memory = ["-m", "cuda", "-a", "cuda", "-s", size, "-n", rounds, "-w", "100"]
    return ["-t", test, *memory, "-L", scope, "-T", shape, "-p", str(PORT), "-f", "-v"]


def result(folder: Path, case: str, env: dict[str, str], timeout_s: float) -> dict[str, Any]:
    """One run of a case between two GPUs: its figure, or `failed`."""
    root = folder / PERFTEST.parts[0]
    libraries = f"{root / 'lib'}:{root / 'cudart'}:{env.get('LD_LIBRARY_PATH', '')}"
    env = {**env, **ENVIRONMENT, "LD_LIBRARY_PATH": libraries, "UCX_MODULE_DIR": str(root / "lib" / "ucx")}
    command = [str(folder / PERFTEST), *arguments(case)]
    listens = started(command, env, "1")
    time.sleep(START_S)
    connects = started([command[0], "127.0.0.1", *command[1:]], env, "0")
    ended, lines = net.end_of(connects, timeout_s, whole_group=True)
    if listens.poll() is None and not ended:
        os.killpg(listens.pid, signal.SIGKILL)
    _, others = net.end_of(listens, START_S, whole_group=True)
    rows = [line.split(",") for line in lines if line.count(",") >= FIELDS - 1 and line[:1].isdigit()]
    if not ended or not rows:
        return {"failed": " ".join(lines + others)[-600:] or f"ended with {connects.returncode}"}
    return {"gpus": 2, **figure(case, [float(field) for field in rows[-1][:FIELDS]])}


def started(command: list[str], env: dict[str, str], gpu: str) -> subprocess.Popen[str]:
    env = {**env, "CUDA_VISIBLE_DEVICES": f"{gpu},{1 - int(gpu)}"}
    out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, env=env, text=True, process_group=0, **out)


def figure(case: str, fields: list[float]) -> dict[str, float]:
    _, _, _, latency_us, _, mib_a_second, _, rate = fields
    if case.startswith("latency"):
        return {"one_way_ns": latency_us * 1e3}
    if case.startswith("bandwidth"):
        return {"gigabytes_a_second": mib_a_second * 2**20 / 1e9}
    return {"operations_a_second": rate}

#!/usr/bin/env python3
"""Figures of papers on networking that GPUs start that need verbs of a kernel: in a guest, on software RoCE.

    PYTHONPATH=tests:tools python3 tests/rdma/paper_net.py RESULTS.json [--quick]    # make paper-net-guest

Unreliable against reliable connections (T, figure 7.16), by perftest's ib_write_bw. Throughput by payload (W, figure 4;
T, figure 7.7): verbs by perftest, and what net.cuh posts to the proxy, which posts the same verbs. One guest, all in
turns; medians. The packets are made by the guest's processors, so that only the ratios between rows tell something.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from rdma_guest.guest import Guest, one_guest  # noqa: E402
from rdma_guest.image import prepare  # noqa: E402

LIBRARY = ROOT / "target" / "release"
SIZES = (8, 64, 1024, 4096, 20480, 65536)
ROUNDS, OPERATIONS, WINDOW = 3, 500, 64
RUN_S_MAX = 120
# The provider whose thread posts verbs. (`nic` executes entries between queues of one process itself.)
OWN = {"proxy": "OUTBOARD_NET_PROVIDER=proxy OUTBOARD_RDMA=device=rxe0"}
FAILED = 1


def build(folder: Path) -> Path:
    """The benchmark for threads of the CPU."""
    program = folder / "bench_cpu"
    source = ROOT / "tests" / "programs" / "net" / "bench.cu"
    command = ["g++", "-std=c++17", "-O2", "-pthread", f"-I{ROOT / 'include'}", "-x", "c++", source, "-x", "none"]
    command += ["-o", program, f"-L{LIBRARY}", "-loutboard_net", f"-Wl,-rpath,{LIBRARY}"]
    subprocess.run(list(map(str, command)), check=True)
    return program


def by_perftest(guest: Guest, connection: str, size: int, operations: int) -> dict[str, float]:
    """Gigabits a second of ib_write_bw from one device to the other, or why there are none."""
    options = f"-c {connection} -s {size} -n {operations} -t {WINDOW} -F --report_gbits"
    server = guest.start(f"ib_write_bw -d rxe1 {options}")
    done = guest.run(f"sleep 0.5; ib_write_bw -d rxe0 {options} 10.213.78.2", timeout_s=RUN_S_MAX)
    server.kill()
    rows = [line.split() for line in done.output.splitlines() if line.split()[:1] == [str(size)]]
    if done.status != 0 or not rows:
        raise RuntimeError(f"ib_write_bw {options}: {done.output[-400:]}")
    return {"gigabits_a_second": float(rows[-1][3]), "million_a_second": float(rows[-1][4])}


def by_net(guest: Guest, program: Path, way: str, size: int, operations: int) -> dict[str, float]:
    done = guest.run(f"{OWN[way]} {program} 1 1 {size} {operations} {WINDOW} 4 host", timeout_s=RUN_S_MAX)
    lines = [line for line in done.output.splitlines() if line.startswith("{")]
    if done.status != 0 or not lines or not (said := json.loads(lines[-1]))["right"]:
        raise RuntimeError(f"{way}, {size} bytes: {done.output[-400:]}")
    rate = said["million_a_second"]
    return {"gigabits_a_second": rate * size * 8 / 1e3, "million_a_second": rate, "post_us": said["post_us"]}


def measured(guest: Guest, program: Path, quick: bool) -> tuple[list[dict[str, Any]], list[str]]:
    runs: dict[tuple[str, int], list[dict[str, float]]] = {}
    failed = []
    operations, sizes = (100, SIZES[:2]) if quick else (OPERATIONS, SIZES)
    for _ in range(1 if quick else ROUNDS):
        for size in sizes:
            for way in ("RC", "UC", *OWN):
                try:
                    if way in OWN:
                        one = by_net(guest, program, way, size, operations)
                    else:
                        one = by_perftest(guest, way, size, operations)
                except RuntimeError as error:
                    failed.append(str(error))
                    continue
                runs.setdefault((way, size), []).append(one)
                print(f"{way}, {size} bytes: {one}", flush=True)
    rows = [
        {"way": way, "bytes": size, **{key: round(statistics.median(run[key] for run in of), 4) for key in of[0]}}
        for (way, size), of in runs.items()
    ]
    return rows, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--quick", action="store_true", help="few operations, two sizes, one round")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, one_guest(prepare()) as guest:
        program = guest.shared / "bench_cpu"
        program.write_bytes(build(Path(folder)).read_bytes())
        program.chmod(0o755)
        kernel = guest.check("uname -r").strip()
        rows, failed = measured(guest, program, options.quick)
    results = {
        "format": 1,
        "what": "ib_write_bw by RC and UC, and net.cuh by the proxy, on software RoCE in a guest:"
        f" one thread, {WINDOW} entries under way, medians in turns",
        "machine": {
            "date_utc": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "cores": os.cpu_count(),
            "guest_kernel": kernel,
            "python": platform.python_version(),
        },
        "failed": failed,
        "rows": rows,
    }
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    for error in failed:
        print(error)
    return FAILED if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())

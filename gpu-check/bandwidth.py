"""All-reduces of two GPUs, two processes: bus bandwidth on this machine's driver and through Outboard, in turns.

    python3 gpu-check/bandwidth.py --outboard target/release/outboard --out docs/results/two-gpus.json

Each mode has a pair of ranks that lives for the whole run and is measured when its turn comes, so that what slows the
machine down for a while slows all modes down. The bus bandwidth of an all-reduce of two ranks is its size over time.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import statistics
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import machine
from server import Server
from suite import ROOT, WORKLOADS_DIR

SIZES = tuple(8 << (3 * n) for n in range(10))
START_S_MAX = 90
TURN_S_MAX = 60
TARGET = 0.97


def often(size: int) -> int:
    return 2000 if size <= 1 << 18 else 200 if size <= 1 << 24 else 20


class Pair:
    """Two ranks of one mode."""

    def __init__(self, mode: str, prefix: list[str], folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        environment = {**os.environ, "NCCL_NVLS_ENABLE": "0", "NCCL_SOCKET_IFNAME": "lo"}
        ranks = str(WORKLOADS_DIR / "ranks.py")
        self.mode = mode
        self.logs = [folder / f"{mode}-{rank}.log" for rank in range(2)]
        self.processes = [
            subprocess.Popen(
                [*prefix, sys.executable, ranks, "serve", str(rank), port],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log.open("w"),
                text=True,
                env=environment,
            )
            for rank, log in enumerate(self.logs)
        ]

    def _lines(self, timeout: float) -> list[dict[str, Any]]:
        answers = []
        for process, log in zip(self.processes, self.logs, strict=True):
            assert process.stdout is not None
            ready, _, _ = select.select([process.stdout], [], [], timeout)
            line = process.stdout.readline() if ready else ""
            if not line:
                raise RuntimeError(f"{self.mode}: a rank says nothing: {log.read_text()[-2000:]}")
            answers.append(json.loads(line))
        return answers

    def ready(self) -> None:
        self._lines(START_S_MAX)

    def measure(self, size: int) -> float:
        """Seconds of one all-reduce: the slower rank's."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"{size} {often(size)}\n")
            process.stdin.flush()
        answers = self._lines(TURN_S_MAX)
        if not all(answer["right"] for answer in answers):
            raise RuntimeError(f"{self.mode}: an all-reduce of {size} bytes is wrong")
        return max(answer["seconds"] for answer in answers)

    def __enter__(self) -> Pair:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def run(outboard: list[str], modes: list[str], rounds: int, folder: Path) -> dict[str, Any]:
    """Returns seconds by mode and size, one figure per round; and the errors of modes that failed."""
    folder.mkdir(parents=True, exist_ok=True)
    links = [mode for mode in modes if mode != "local"]
    seconds: dict[str, dict[int, list[float]]] = {mode: {size: [] for size in SIZES} for mode in modes}
    broken: dict[str, str] = {}
    with Server(outboard, links, "nvidia", folder / "server.log", START_S_MAX) as server:
        pairs: list[Pair] = []
        try:
            for mode in modes:
                prefix = [] if mode == "local" else [*outboard, "run", "--gpu", server.urls[mode], "--"]
                pairs.append(Pair(mode, prefix, folder))
                try:
                    pairs[-1].ready()
                except RuntimeError as error:
                    broken[mode] = str(error)
            for turn in range(rounds):
                for size in SIZES:
                    order = pairs[turn % len(pairs) :] + pairs[: turn % len(pairs)]
                    for pair in order:
                        if pair.mode in broken:
                            continue
                        try:
                            seconds[pair.mode][size].append(pair.measure(size))
                        except (RuntimeError, OSError) as error:
                            broken[pair.mode] = str(error)
        finally:
            for pair in pairs:
                with pair:
                    pass
    return {"seconds": seconds, "broken": broken}


def rows(seconds: dict[str, dict[int, list[float]]]) -> list[dict[str, Any]]:
    """Returns medians of bandwidths, and of the ratios within each round."""
    table = []
    for size in SIZES:
        row: dict[str, Any] = {"bytes": size}
        local = seconds.get("local", {}).get(size, [])
        for mode, by_size in seconds.items():
            times = by_size[size]
            if not times:
                continue
            row[mode] = {"us": round(statistics.median(times) * 1e6, 2)}
            row[mode]["gb_per_s"] = round(size / statistics.median(times) / 1e9, 4)
            if mode != "local" and local:
                ratios = [a / b for a, b in zip(local, times, strict=False)]
                row[mode]["ratio"] = round(statistics.median(ratios), 4)
                row[mode]["ratios"] = [round(ratio, 4) for ratio in ratios]
        table.append(row)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--outboard", type=Path, default=ROOT / "target/release/outboard")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--modes", default="local,shm,tcp")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    outboard = [str(options.outboard.resolve())]
    if len(machine.gpus()) < 2:
        print("one GPU only: nothing is measured")
        return 2
    measured = run(outboard, options.modes.split(","), options.rounds, ROOT / "build" / "bandwidth")
    table = rows(measured["seconds"])
    options.out.write_text(
        json.dumps({**machine.describe(outboard), "rows": table, "broken": measured["broken"]}, indent=1) + "\n"
    )
    for row in table:
        cells = [f"{mode} {row[mode]['us']} us {row[mode].get('ratio', '')}" for mode in row if mode != "bytes"]
        print(row["bytes"], *cells, sep="  ")
    for mode, why in measured["broken"].items():
        print(f"{mode} broke: {why}")
    short = [
        (row["bytes"], mode, row[mode]["ratio"])
        for row in table
        for mode in row
        if mode not in ("bytes", "local") and row[mode].get("ratio", 1) < TARGET
    ]
    print("below the target:", short or "none")
    return 1 if measured["broken"] or short else 0


if __name__ == "__main__":
    sys.exit(main())

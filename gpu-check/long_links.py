"""Bandwidth of copies over long, fast networks, emulated over shm and tcp:

    python3 gpu-check/long_links.py --outboard target/release/outboard --out docs/results/long-fat-links.json

For each round trip, Gbps of a copy to the GPU (up) and from it (down): one copy from its call to its end, which
includes the way, and a copy among others, by the difference of three in a row and one; and of one copy each way at
once. Ends within `--budget-s`; what does not fit is not measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import machine
from server import Server
from suite import ROOT, WORKLOADS_DIR

RTTS = ("10us", "100us", "1ms", "3ms", "10ms", "30ms")
START_S_MAX = 30
FORMAT = 2


def networks(rtts: list[str], gbps: float) -> list[str]:
    return [f"rtt={rtt},bandwidth={gbps:g}Gbps" for rtt in rtts]


def measure(command: list[str], seconds: float) -> tuple[list[dict[str, Any]], str | None]:
    """Returns the lines that the program printed in this time, and why there are no more."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        output, wrong = done.stdout, done.stderr[-2000:] if done.returncode else None
    except subprocess.TimeoutExpired as late:
        output = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        wrong = f"not done within {seconds:.0f} s"
    return [json.loads(line) for line in output.splitlines() if line.startswith("{") and line.endswith("}")], wrong


def table(link: str, rows: list[dict[str, Any]]) -> str:
    lines = [f"{link:4} {'network':30} {'up':>14} {'down':>14} {'both':>14}"]
    for row in rows:
        ways = " ".join(f"{' '.join(str(figure or '-') for figure in row[way]):>14}" for way in ("up", "down", "both"))
        lines.append(f"{'':4} {row['network']:30} {ways}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outboard", default=str(ROOT / "target/release/outboard"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="nvidia", choices=("nvidia", "soft"))
    parser.add_argument("--links", default="shm,tcp")
    parser.add_argument("--rtts", default=",".join(RTTS))
    parser.add_argument("--gbps", type=float, default=100)
    parser.add_argument("--mib", type=int, default=256, help="length of a copy")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget-s", type=float, default=110)
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.budget_s
    links = arguments.links.split(",")
    over = networks(arguments.rtts.split(","), arguments.gbps)
    folder = ROOT / "build" / "gpu-check"
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {
        "format": FORMAT,
        "what": (
            f"pinned copies of {arguments.mib} MiB over an emulated {arguments.gbps:g} Gbps; Gbps of one copy from its "
            f"call to its end, and by the difference of three and one; median of {arguments.rounds}; both: one copy "
            "each way at once, Gbps up and down"
        ),
        "machine": machine.describe([arguments.outboard]),
        "links": {},
        "wrong": {},
    }
    program = [sys.executable, str(WORKLOADS_DIR / "long_copies.py"), str(arguments.mib), str(arguments.rounds)]
    with Server([arguments.outboard], links, arguments.device, folder / "long-links.log", START_S_MAX) as server:
        for index, link in enumerate(links):
            left = (until - time.monotonic()) / (len(links) - index)
            run = [arguments.outboard, "run", "--gpu", server.urls[link], "--emulate", over[0], "--"]
            rows, wrong = measure([*run, *program, *over], left)
            results["links"][link] = rows
            print(table(link, rows), flush=True)
            if wrong:
                results["wrong"][link] = wrong
                print(f"{link}: {wrong}", flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    return 1 if results["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())

"""The long form of the attacks: `make hostile`, or `long.py RESULTS [PART,...] [--scale 0.1]`. Writes the results as
JSON, after each part."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import attacks
from harness import OUTBOARD, ROOT, start_server

FORMAT = 1
# The counts of the long form.
KILLED, MESSAGES, TEXTS, FAULTS, IN_A_ROW, AT_ONCE, MIXED_S = 1_464, 40_003, 4_627, 1_000, 1_000, 64, 3_600


def machine() -> dict[str, object]:
    release = subprocess.run([OUTBOARD, "--version"], capture_output=True, text=True).stdout.strip()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {
        "date_utc": date,
        "commit": commit,
        "outboard": release,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "device": "soft",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("parts", nargs="?", help="some of the parts, with commas between them")
    parser.add_argument("--scale", type=float, default=1, help="the part of each count that is done")
    arguments = parser.parse_args()

    def of(count: int) -> int:
        return max(1, round(count * arguments.scale))

    in_server: dict[str, Callable[[attacks.Server], attacks.Counts]] = {
        "killed_workers": lambda server: attacks.killed_workers(server, of(KILLED)),
        "mutated_messages": lambda server: attacks.mutated_messages(server, of(MESSAGES)),
        "mutated_ptx": lambda server: attacks.mutated_ptx(server, of(TEXTS)),
        "faults_beside": lambda server: attacks.faults_beside(server, of(FAULTS)),
        "sessions_in_a_row": lambda server: attacks.sessions_in_a_row(server, of(IN_A_ROW)),
        "sessions_at_once": lambda server: attacks.sessions_at_once(server, AT_ONCE),
    }
    of_their_own: dict[str, Callable[[Path], attacks.Counts]] = {
        "failing_allocations": lambda folder: attacks.failing_allocations(folder, 1),
        "jumping_clocks": lambda folder: attacks.jumping_clocks(folder, 60 * arguments.scale),
        "full_cache": attacks.full_cache,
        "mixed_work": lambda folder: attacks.mixed_work(folder, MIXED_S * arguments.scale, late_max=3),
    }
    names = [*of_their_own, *in_server]
    chosen = arguments.parts.split(",") if arguments.parts else names
    results: dict[str, object] = {"format": FORMAT, "machine": machine(), "scale": arguments.scale, "parts": {}}
    failed = 0
    for name in chosen:
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                if name in in_server:
                    server = start_server(Path(folder), "--sessions-max", "80")
                    try:
                        seen = in_server[name](server)
                    finally:
                        server.stop()
                else:
                    seen = of_their_own[name](Path(folder))
            except Exception as error:  # the other parts run nevertheless
                seen, failed = {"error": f"{type(error).__name__}: {error}"[:2000]}, failed + 1
        seen["took_s"] = round(time.monotonic() - begin, 1)
        results["parts"][name] = seen  # type: ignore[index]
        arguments.results.write_text(json.dumps(results, indent=1) + "\n")
        print(name, seen, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

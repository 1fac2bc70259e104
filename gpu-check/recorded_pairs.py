#!/usr/bin/env python3
"""Compares recordings of one program, such as here, through the server, and through it over a network: which calls, and
which of the program's own code between them, take longer.

    python3 gpu-check/recorded_pairs.py --outboard target/release/outboard a.trace a.through.trace a.through-100us.trace

A row is what a step spends on a part, in us, the median of the iterations that are not timed on the GPU. Own code is
the time between two calls of a thread. It is told apart by what comes before it: a wait, another thread that made calls
while this one was silent (a hand-off: from that thread's last call on), or any other call.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Calls of another thread in a gap that cannot be a coincidence, as the model has it.
HANDOFF_CALLS_MIN = 8
# Rows of which less is spent than this part of a step, in all recordings, are added up.
PART_MIN = 0.002


@dataclass(frozen=True)
class Call:
    thread: int
    name: str
    kind: str
    start_us: float
    end_us: float


def calls_of(events: list[dict[str, Any]]) -> list[list[Call]]:
    """Returns the calls of each iteration that the GPU was not timed in; of all iterations if it was in each."""
    marks = [e for e in events if e.get("cat") == "mark" and e["name"] == "iteration"]
    starts = sorted(e["ts"] for e in marks if e["ph"] == "b")
    ends = sorted(e["ts"] for e in marks if e["ph"] == "e")
    spans = [e for e in events if e.get("ph") == "X"]
    made = [Call(e["tid"], e["name"], e["cat"], e["ts"], e["ts"] + e["dur"]) for e in spans if e["pid"] == 1]
    made.sort(key=lambda call: call.start_us)
    worked = sorted(e["ts"] for e in spans if e["pid"] != 1)
    iterations = [
        (any(start <= at < end for at in worked), [call for call in made if start <= call.start_us < end])
        for start, end in zip(starts, ends, strict=False)
    ]
    untimed = [calls for is_timed, calls in iterations if not is_timed]
    return untimed or [calls for _, calls in iterations]


def parts(calls: list[Call]) -> dict[str, tuple[int, float]]:
    """Returns how often a step has each part, and the time of all of them together, in us."""
    counts: Counter[str] = Counter()
    spent: defaultdict[str, float] = defaultdict(float)
    last: dict[int, tuple[int, Call]] = {}
    for index, call in enumerate(calls):
        before_index, before = last.get(call.thread, (-1, None))
        others = [other for other in calls[before_index + 1 : index] if other.thread != call.thread]
        found = [(f"call {call.name}", call.end_us - call.start_us)]
        if len(others) >= HANDOFF_CALLS_MIN:
            since = max(other.end_us for other in others)
            found.append((f"hand-off to thread {call.thread}", max(0.0, call.start_us - since)))
        elif before is not None:
            what = "after a wait" if before.kind == "synchronous" else "own code"
            found.append((f"{what}, thread {call.thread}", call.start_us - before.end_us))
        for name, us in found:
            counts[name] += 1
            spent[name] += us
        last[call.thread] = (index, call)
    if calls:
        whole = max(call.end_us for call in calls) - calls[0].start_us
        counts["step"], spent["step"] = 1, whole
    return {name: (counts[name], us) for name, us in spent.items()}


def medians(iterations: list[list[Call]]) -> dict[str, tuple[int, float]]:
    """Returns for each part the medians of its number and of its time."""
    found = [parts(calls) for calls in iterations]
    names = {name for one in found for name in one}
    middle = {}
    for name in names:
        each = [one.get(name, (0, 0.0)) for one in found]
        middle[name] = (round(statistics.median(n for n, _ in each)), statistics.median(us for _, us in each))
    return middle


def table(recordings: list[tuple[str, dict[str, tuple[int, float]]]]) -> list[str]:
    """Returns lines: each part's number and time in the recordings, those that differ most first."""
    step_us = max(parts["step"][1] for _, parts in recordings)
    first, final = recordings[0][1], recordings[-1][1]
    names = {name for _, parts in recordings for name in parts} - {"step"}
    large = {
        name for name in names if any(parts.get(name, (0, 0.0))[1] >= PART_MIN * step_us for _, parts in recordings)
    }

    def more(name: str) -> float:
        return final.get(name, (0, 0.0))[1] - first.get(name, (0, 0.0))[1]

    lines = [" ".join([f"{'us a step':36}", *(f"{name:>20}" for name, _ in recordings), f"{'last - first':>14}"])]
    for name in ["step", *sorted(large, key=lambda name: -abs(more(name)))]:
        cells = [parts.get(name, (0, 0.0)) for _, parts in recordings]
        lines.append(" ".join([f"{name:36}", *(f"{n:>8} x {us:>9.1f}" for n, us in cells), f"{more(name):>+14.1f}"]))
    rest = [sum(us for name, (_, us) in parts.items() if name in names - large) for _, parts in recordings]
    lines.append(" ".join([f"{'all else':36}", *(f"{us:>20.1f}" for us in rest), f"{rest[-1] - rest[0]:>+14.1f}"]))
    return lines


def events_of(outboard: Path, recording: Path) -> list[dict[str, Any]]:
    with tempfile.NamedTemporaryFile(suffix=".json") as exported:
        command = [str(outboard), "trace", "export", "--chrome", str(recording), "-o", exported.name]
        subprocess.run(command, check=True, capture_output=True)
        return list(json.loads(Path(exported.name).read_text())["traceEvents"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outboard", type=Path, required=True, help="the outboard program")
    parser.add_argument("recordings", type=Path, nargs="+", help="of one program, with marked iterations")
    options = parser.parse_args()
    found = []
    for recording in options.recordings:
        try:
            iterations = calls_of(events_of(options.outboard, recording))
        except (subprocess.CalledProcessError, OSError, ValueError) as error:
            print(f"{recording} cannot be read: {error}", file=sys.stderr)
            return 1
        if not any(iterations):
            print(f"{recording} has no marked iterations with calls", file=sys.stderr)
            return 1
        found.append((recording.name.removesuffix(".trace")[-20:], medians(iterations)))
    print("\n".join(table(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

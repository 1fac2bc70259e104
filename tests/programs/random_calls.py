"""Runs random programs of driver calls on two drivers: expects equal answers, or prints the
shortest program that differs.

`random_calls.py [--seed N] [--programs N] [--seconds S] LEFT --- RIGHT`: LEFT and RIGHT are what `ordering.py` is
started with, such as `env` for the machine's own driver and `outboard run --gpu URL --` for one through Outboard.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ordering_programs import program
from ordering_rules import Step

PROGRAM = Path(__file__).with_name("ordering.py")
BATCH = 20
PLAY_S_MAX = 60
Answer = Any


def answers(command: list[str], programs: list[list[Step]]) -> list[Answer]:
    """Returns the answers of programs. A program that ends its process is answered by how it ended."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.writelines(json.dumps(steps) + "\n" for steps in programs)
        file.flush()
        run = [*command, sys.executable, str(PROGRAM), "--answers-of", file.name]
        try:
            done = subprocess.run(run, capture_output=True, text=True, timeout=PLAY_S_MAX, check=False)
            said, status, why = done.stdout, done.returncode, done.stderr.strip().splitlines()[-1:]
        except subprocess.TimeoutExpired as late:
            said, status, why = (late.stdout or b"").decode(), -1, ["hangs"]
    found: list[Answer] = [json.loads(line) for line in said.splitlines()]
    if len(found) < len(programs):
        found.append(["ended", status, why])
    return found


def differs(left: list[str], right: list[str], steps: list[Step]) -> str | None:
    """Describes the first difference between two drivers' answers to a program."""
    (one, *_), (other, *_) = answers(left, [steps]), answers(right, [steps])
    return None if one == other or is_laxer(one, other) else first_difference(one, other)


def is_laxer(one: Answer, other: Answer) -> bool:
    """Whether only LEFT reads what the model's order forbids.

    CUDA lets a driver return from a copy of at most 64 KiB of pageable memory before its bytes arrive.
    """
    ended = "ended" in (one[0], other[0])
    return not ended and one[0] is not None and other[0] is None and one[1] == other[1]


def first_difference(one: Answer, other: Answer) -> str:
    if len(one) == len(other) == 3 and one[0] != "ended" and other[0] != "ended":
        for left, right in zip(one, other, strict=True):
            if left != right and isinstance(left, list) and isinstance(right, list):
                for a, b in zip(left, right, strict=False):
                    if a != b:
                        return f"{a} here, {b} there"
    return f"{one} here, {other} there"


def shrink(left: list[str], right: list[str], steps: list[Step], why: str, seconds: float) -> tuple[list[Step], str]:
    """Returns the shortest program found whose answers differ, and the difference."""
    deadline = time.monotonic() + seconds
    chunk = len(steps) // 2
    while chunk > 0 and time.monotonic() < deadline:
        at = 1
        while at < len(steps) and time.monotonic() < deadline:
            candidate = steps[:at] + steps[at + chunk :]
            if found := differs(left, right, candidate):
                steps, why = candidate, found
            else:
                at += chunk
        chunk //= 2
    return steps, why


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("drivers", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    drivers: list[str] = options.drivers[1:] if options.drivers[:1] == ["--"] else options.drivers
    cut = drivers.index("---")
    left, right = drivers[:cut], drivers[cut + 1 :]
    deadline = time.monotonic() + options.seconds
    compared = laxer = 0
    for first in range(options.seed, options.seed + options.programs, BATCH):
        if time.monotonic() > deadline:
            break
        batch = [program(seed) for seed in range(first, min(first + BATCH, options.seed + options.programs))]
        one, other = answers(left, batch), answers(right, batch)
        for number, (a, b) in enumerate(zip(one, other, strict=False)):
            if is_laxer(a, b):
                laxer += 1
                continue
            if a != b:
                steps, why = shrink(left, right, batch[number], first_difference(a, b), options.seconds / 2)
                print(f"seed {first + number}: {why}", *map(json.dumps, steps), sep="\n")
                return 1
            compared += 1
    print(f"{compared} programs answered alike, {laxer} in an order on the left that the model forbids")
    return 0


if __name__ == "__main__":
    sys.exit(main())

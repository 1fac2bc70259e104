"""The long form of tests/net/test_net_queues.py: millions of operations of 64 threads on queues whose messages are lost
by seed.

usage: PYTHONPATH=tests python tests/net/long.py RESULT [OPERATIONS [SEED]]   (make net-soak)
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import ROOT
from posting import build_on_cpu

OPERATIONS = 10_000_000
ROUNDS = 3_000
MESSAGES = 2_000
RUN_S_MAX = 1_800
RUNS_MAX = 100
# Losses of each million messages, which a run after another has.
LOSSES_PPM = (20, 100, 500, 0)
PLAIN = 1


def said(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip().partition("\n")[0]


def one_sided(chance: random.Random, loss_ppm: int, seed: int) -> str:
    """Arguments of soak.cu: 64 threads, each verb that has no receive."""
    return f"64 {ROUNDS} {chance.randint(5, 12)} {loss_ppm} {seed} host {chance.choice((0, PLAIN))}"


def two_sided(chance: random.Random, loss_ppm: int, seed: int) -> str:
    """Arguments of messages.cu: 32 threads that send, 32 that receive."""
    blocks, receives = chance.randint(7, 12), chance.randint(5, 10)
    every, flags = chance.choice((1, 16, 33)), chance.choice((0, PLAIN))
    return f"thread 32 32 {MESSAGES} {blocks} {receives} {every} {flags} {loss_ppm} {seed}"


def run(program: Path, arguments: str) -> dict[str, object]:
    start = time.monotonic()
    done = subprocess.run([program, *arguments.split()], capture_output=True, text=True, timeout=RUN_S_MAX)
    said = done.stdout.strip()
    count = re.search(r"(\d+) (?:operations|entries)", said)
    again = re.search(r"(\d+) sent again", said)
    return {
        "program": program.parent.name,
        "arguments": arguments,
        "seconds": round(time.monotonic() - start, 1),
        "operations": int(count[1]) if count else 0,
        "sent_again": int(again[1]) if again else 0,
        "right": done.returncode == 0 and said.endswith(": right"),
        "said": said,
    }


def main() -> None:
    result = Path(sys.argv[1])
    given = [int(word) for word in sys.argv[2:4]]
    wanted, seed = [*given, *(OPERATIONS, 1)[len(given) :]]
    head = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} CPUs, {platform.machine()}, Linux {platform.release()}",
        "versions": [said("rustc", "--version"), said("g++", "--version")],
        "commit": said("git", "rev-parse", "--short", "HEAD"),
        "seed": seed,
        "load_before": os.getloadavg()[0],
    }
    runs: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="net-soak-") as name:
        programs = []
        for source in ("soak", "messages"):
            folder = Path(name) / source
            folder.mkdir()
            programs.append(build_on_cpu(folder, f"{source}.cu"))
        chance, done = random.Random(seed), 0
        while done < wanted and len(runs) < RUNS_MAX:
            number = len(runs)
            loss_ppm = LOSSES_PPM[number // 2 % len(LOSSES_PPM)]
            arguments = (one_sided, two_sided)[number % 2](chance, loss_ppm, seed * RUNS_MAX + number)
            runs.append(run(programs[number % 2], arguments))
            done += int(str(runs[-1]["operations"]))
            wrong = [one for one in runs if not one["right"]]
            numbers = {"operations": done, "sent_again": sum(int(str(one["sent_again"])) for one in runs)}
            result.write_text(json.dumps({**head, **numbers, "wrong": len(wrong), "runs": runs}, indent=1) + "\n")
            print(json.dumps(runs[-1]), flush=True)
    if wrong or done < wanted:
        sys.exit(f"{len(wrong)} of {len(runs)} runs are wrong, {done} of {wanted} operations were done")


if __name__ == "__main__":
    main()

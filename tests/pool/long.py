"""The long form of tests/test_pool_faults.py: a pool between hosts in namespaces, whose processes are killed and
stopped and whose links are cut while programs compute.

usage: PYTHONPATH=tests python tests/pool/long.py RESULT [SECONDS [SEED]]   (make pool-faults)
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import OUTBOARD, ROOT
from pool_faults import BOXES, ETCDS, GPUS, MANAGERS, Found, World, judge, run, summary

SECONDS = 1_800
FAULT_S = (1.0, 4.0)
CALM_EVERY_S = 120.0


def said(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip().partition("\n")[0]


def main() -> None:
    result = Path(sys.argv[1])
    given = [int(word) for word in sys.argv[2:4]]
    seconds, seed = [*given, *(SECONDS, 1)[len(given) :]]
    head = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} CPUs, {platform.machine()}, Linux {platform.release()}",
        "commit": said("git", "rev-parse", "--short", "HEAD"),
        "outboard": said(str(OUTBOARD), "--version"),
        "etcd": said("etcd", "--version"),
        "pool": f"{len(ETCDS)} members of etcd, {len(MANAGERS)} managers, {len(BOXES)} boxes, {GPUS} software GPUs",
        "seed": seed,
        "load_before": os.getloadavg()[0],
    }
    start = time.monotonic()

    def tell(found: Found) -> None:
        numbers = {"seconds": round(time.monotonic() - start), "wrong": judge(found), **summary(found)}
        result.write_text(json.dumps({**head, **numbers}, indent=1) + "\n")
        print(json.dumps(numbers), flush=True)

    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pool-faults-")))
        world = World(stack, folder, seed)
        run(world, seconds, FAULT_S, CALM_EVERY_S, tell)
        panics = [log.name for log in folder.glob("*.log") if "panicked" in log.read_text(errors="replace")]
    found = world.found
    found.wrong += [f"{name} tells of a panic" for name in panics]
    tell(found)
    if wrong := judge(found):
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()

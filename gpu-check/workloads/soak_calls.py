"""A long mixed program of driver calls alone, in an order by seed: each step has the result that it must have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from harness import Result, Settings, require

__all__ = ["WORKLOADS", "first_result", "healthy"]

PROGRAM = Path(__file__).resolve().parents[2] / "tests" / "programs" / "soak_calls.py"
STEPS_FULL, STEPS_QUICK = 2000, 400


def first_result() -> None:
    """The program computes by itself."""


def healthy() -> bool:
    return True


def soak_calls(settings: Settings) -> Result:
    """The program looks at its results itself; its times in the mix, and of the same steps alone, are reported."""
    steps = str(settings.iterations(full=STEPS_FULL, quick=STEPS_QUICK))
    options = ["--seconds", os.environ.get("OUTBOARD_SOAK_S", "0"), "--seed", os.environ.get("OUTBOARD_SOAK_SEED", "1")]
    command = [sys.executable, str(PROGRAM), "--steps", steps, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    require(done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-600:]}")
    found = json.loads(done.stdout)
    times = {name: kind["median_ms"] for name, kind in found["kinds"].items()}
    for name, kind in found["kinds"].items():
        if "ratio" in kind:
            times |= {f"{name}, alone": kind["alone_ms"], f"{name}, the same in the mix": kind["mixed_ms"]}
    return Result(facts={"seed": found["seed"], "right": True}, timings_ms=times)


WORKLOADS: dict[str, Callable[[Settings], Result]] = {"soak_calls": soak_calls}

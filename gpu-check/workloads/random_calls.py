"""Random programs of driver calls: what they are answered is the same on every driver, and what CUDA's order allows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from harness import Result, Settings, digest_bytes, require

__all__ = ["WORKLOADS", "first_result", "healthy"]

PROGRAM = Path(__file__).resolve().parents[2] / "tests" / "programs" / "ordering.py"
SECONDS_MAX = 120


def first_result() -> None:
    """The programs compute by themselves."""


def healthy() -> bool:
    return True


def random_calls(settings: Settings) -> Result:
    """`RANDOM_CALLS_SEED` is the first seed; as many programs in every mode, since their answers are compared."""
    seed, programs = os.environ.get("RANDOM_CALLS_SEED", "1"), settings.iterations(full=150, quick=20)
    command = [sys.executable, str(PROGRAM), "--answers", seed, str(programs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    require(done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-300:]}")
    lines = done.stdout.splitlines()
    wrong = [line for line in lines if not line.startswith("[null")]
    require(not wrong and len(lines) == programs, f"{wrong[:1]}, {len(lines)} programs")
    return Result(digest=digest_bytes(done.stdout.encode()), facts={"programs": len(lines)})


WORKLOADS: dict[str, Callable[[Settings], Result]] = {"random_calls": random_calls}

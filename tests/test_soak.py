"""A long mixed program of driver calls, for some seconds: each step is right in any order (`soak_calls.py`)."""

from __future__ import annotations

import json
import sys

import pytest

from harness import TEST_PROGRAMS, Server

PROGRAM = TEST_PROGRAMS / "soak_calls.py"
SECONDS = 3
SEEDS = {"shm": 1, "tcp": 2}


@pytest.mark.parametrize("which", [[], ["--only", "at_once"]], ids=["all_kinds", "threads_at_once"])
def test_steps_in_any_order_are_right(server: Server, link: str, which: list[str]) -> None:
    options = ["--seconds", str(SECONDS), "--seed", str(SEEDS[link]), "--alone", "0", *which]
    done = server.run(link, sys.executable, PROGRAM, *options)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}\n{server.log.read_text()[-2000:]}"
    found = json.loads(done.stdout)
    assert found["steps"] > 10 and found["bytes_right"] > 1 << 20, found

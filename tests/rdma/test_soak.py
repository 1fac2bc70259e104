"""A long mixed program of driver calls over RDMA, for some seconds: each step is right in any order."""

from __future__ import annotations

import json
import sys

from cable import ports_of
from serving import serving

from harness import TEST_PROGRAMS
from rdma_guest.guest import Guest

SECONDS = 5
STEPS_MIN = 12


def test_steps_in_any_order_are_right(guest: Guest) -> None:
    server, client = ports_of(guest)
    with serving(server, client) as gpu:
        # The management library waits 5 s for a connection of its own: less than a guest may take.
        options = ["--seconds", SECONDS, "--steps", STEPS_MIN, "--seed", 5, "--alone", 0, "--without", "nvml"]
        done = gpu.run(sys.executable, TEST_PROGRAMS / "soak_calls.py", *map(str, options))
    assert done.status == 0, f"{done.output}\n{gpu.command.output()}"
    assert json.loads(done.output.splitlines()[-1])["steps"] >= STEPS_MIN, done.output

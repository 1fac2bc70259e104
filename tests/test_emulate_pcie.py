"""`outboard run --local --emulate-pcie`: work begins later by the paper's delay, and results stay
equal.

The machine's own driver is the client library in front of a server here, as in test_record_local.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import EXAMPLES, OUTBOARD, TEST_PROGRAMS, Server
from test_record import show
from test_record_local import DRIVER

COUNT = 20
DELTA_S = 0.02
# 140 tags of 128 bytes in flight.
IN_FLIGHT_BYTES = 140 * 128
PCIE = f"rtt={DELTA_S + 1.2e-6}s,tags=140,mrs=128"
TIMES = [TEST_PROGRAMS / "work_takes.py", str(COUNT), str(20 * IN_FLIGHT_BYTES)]


def run_here(server: Server, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    argv = [str(OUTBOARD), "run", "--local", *map(str, arguments)]
    environment = {**os.environ, "OUTBOARD_DRIVER": str(DRIVER), "OUTBOARD_GPU": server.urls["shm"]}
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120)


def test_each_kind_of_work_is_later_by_its_part(server: Server) -> None:
    done = run_here(server, "--emulate-pcie", PCIE, "--", sys.executable, *TIMES)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    taken = json.loads(done.stdout)
    assert taken["memset"] >= COUNT * DELTA_S
    # Half the delay, but not all, even on a slow machine.
    assert DELTA_S / 2 <= taken["to host"] < DELTA_S
    assert taken["to device"] >= DELTA_S
    # 20 times what the tags suffice for: as many round trips, less those of a native PCIe.
    assert 20 * DELTA_S <= taken["to device, long"] < 40 * DELTA_S
    native = run_here(server, "--emulate-pcie", "rtt=1.2us", "--", sys.executable, *TIMES)
    assert native.returncode == 0, native.stderr
    assert sum(json.loads(native.stdout).values()) < COUNT * DELTA_S


@pytest.mark.parametrize("program", ["vector_add", "streams_events", "graph_capture", "two_threads", "driver_api"])
def test_results_stay(server: Server, program: str) -> None:
    done = run_here(server, "--emulate-pcie", "rtt=100us", "--", EXAMPLES / program)
    assert done.returncode == 0 and f"{program}: every result is right" in done.stdout, done.stderr


def test_it_can_be_recorded(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "a.trace"
    options = ["--record", file, "--emulate-pcie", "rtt=100us"]
    done = run_here(server, *options, "--", EXAMPLES / "vector_add")
    assert done.returncode == 0, done.stderr
    # The program's calls only, not those of the emulation.
    plain = tmp_path / "b.trace"
    assert run_here(server, "--record", plain, "--", EXAMPLES / "vector_add").returncode == 0
    counts = [{f["name"]: f["calls"] for f in show(path)["functions"]} for path in (file, plain)]
    assert counts[0] == counts[1] and counts[0]["cuLaunchKernel"] >= 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--emulate-pcie", "rtt=6.8"], "6.8"),
        (["--emulate-pcie", "tags=140"], "no rtt"),
        (["--emulate-pcie", "rtt=1us"], "shorter than the native"),
        (["--emulate-pcie", "rtt=6.8us", "--emulate", "rtt=1us"], "cannot be used with"),
    ],
)
def test_what_means_nothing_is_refused(server: Server, arguments: list[str], text: str) -> None:
    done = run_here(server, *arguments, "--", "true")
    assert done.returncode == 2 and text in done.stderr, done.stderr


def test_it_is_for_the_local_driver(server: Server) -> None:
    argv = [str(OUTBOARD), "run", "--gpu", server.urls["shm"], "--emulate-pcie", "rtt=6.8us", "--", "true"]
    assert subprocess.run(argv, capture_output=True, timeout=60).returncode == 2
    done = run_here(server, "--", "true")
    assert done.returncode == 2 and "--emulate-pcie" in done.stderr and "--record" in done.stderr

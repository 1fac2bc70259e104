"""Two ends that meet, at servers and in programs: they exchange data, or one is killed."""

from __future__ import annotations

import os
import signal
import time
from itertools import product
from pathlib import Path

import pytest

from harness import Server
from posting import RUN_S_MAX, meeting, with_devices, workers_of

WITH_TCP = [("nic", "tcp", "shm"), ("nic", "shm", "tcp"), ("nvlink", "tcp", "tcp"), ("nvlink", "shm", "tcp")]


@pytest.mark.parametrize(("provider", "one", "other"), WITH_TCP)
def test_ends_at_a_server_and_in_a_program_meet(
    server: Server, ends: Path, provider: str, one: str, other: str
) -> None:
    with meeting(server, ends, one, other, rounds=10, provider=provider) as processes:
        said = [process.communicate(timeout=RUN_S_MAX)[0] for process in processes]
    assert said == ["10 rounds: right\n"] * 2


@pytest.mark.parametrize(("provider", "one", "other"), WITH_TCP)
@pytest.mark.parametrize("victim", ["program", "worker"])
def test_an_end_that_is_killed_is_an_error_of_the_other_and_leaves_nothing(
    server: Server, ends: Path, provider: str, one: str, other: str, victim: str
) -> None:
    workers_of(server, 1)
    with meeting(server, ends, one, other, rounds=10**9, provider=provider) as processes:
        workers = workers_of(server, 3)
        if victim == "program":
            processes[0].kill()
        else:
            os.kill(workers[0], signal.SIGKILL)
        start = time.monotonic()
        said = [process.communicate(timeout=RUN_S_MAX)[0] for process in processes]
        assert time.monotonic() - start < 60
        # A second of silence, then the question whether the peer is there. Who is in whose session is not known.
        assert any("syndrome 0x15" in one or "syndrome 0x5" in one for one in said), said
        assert all(process.returncode != 0 for process in processes)
    workers_of(server, 1)


LINKS = [("tcp", "tcp"), ("tcp", "shm"), ("shm", "tcp")]
BY_DEVICES = [(provider, *links) for provider, links in product(("proxy", "mlx5"), LINKS)]


@pytest.mark.parametrize(("provider", "one", "other"), BY_DEVICES)
def test_ends_of_devices_at_servers_and_of_programs_meet(
    lending: Server, ends: Path, fabric: Path, provider: str, one: str, other: str
) -> None:
    how = {"provider": provider, "under": with_devices(fabric)}
    with meeting(lending, ends, one, other, rounds=10, **how) as processes:
        said = [process.communicate(timeout=RUN_S_MAX)[0] for process in processes]
    assert said == ["10 rounds: right\n"] * 2
    # An endpoint that is closed is gone for the other.
    with meeting(lending, ends, one, other, rounds=(10, 10**9), **how) as processes:
        said = [process.communicate(timeout=RUN_S_MAX)[0] for process in processes]
    assert said[0] == "10 rounds: right\n" and "syndrome 0x15" in said[1], said


@pytest.mark.parametrize(("provider", "one", "other"), BY_DEVICES)
@pytest.mark.parametrize("victim", ["program", "worker"])
def test_an_end_of_a_device_that_is_killed_is_an_error_of_the_other(
    lending: Server, ends: Path, fabric: Path, provider: str, one: str, other: str, victim: str
) -> None:
    workers_of(lending, 1)
    how = {"provider": provider, "under": with_devices(fabric)}
    with meeting(lending, ends, one, other, rounds=10**9, **how) as processes:
        workers = workers_of(lending, 3)
        if victim == "program":
            processes[0].kill()
        else:
            os.kill(workers[0], signal.SIGKILL)
        start = time.monotonic()
        said = [process.communicate(timeout=RUN_S_MAX)[0] for process in processes]
        assert time.monotonic() - start < 60
        assert any("syndrome 0x15" in one or "syndrome 0x5" in one for one in said), said
        assert all(process.returncode != 0 for process in processes)
    workers_of(lending, 1)

"""Failures of a session over RDMA: lost packets, a peer that dies, a port that goes down."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator

import pytest
from cable import loss, port_down, ports_between
from serving import EXAMPLES, Serving, serving

from harness import TEST_PROGRAMS
from rdma_guest.guest import Command, Guest

SOAK = TEST_PROGRAMS / "soak.py"
SOAK_S = float(os.environ.get("OUTBOARD_RDMA_SOAK", "8"))
# Time to end, and to send lost data again.
SOAK_S_MAX = 180
SOAK_BYTES_MIN = 200_000
LOSS_PERCENT = 5
UNDER_WAY_S_MAX = 60
# A process that dies is noticed by its socket, a machine by its silence (PEER_VANISHED_MS_MAX); and a guest is slow.
DEATH_S_MAX = 10
VANISHED_S_MAX = 25
LONG_S = 600
LOOK_S = 0.1


@pytest.fixture
def gpu(pair: tuple[Guest, Guest]) -> Iterator[Serving]:
    server, client = ports_between(pair)
    with serving(server, client) as gpu:
        yield gpu
        # Whatever happened, the next program is served.
        done = gpu.run(EXAMPLES / "vector_add")
        assert done.status == 0 and "every result is right" in done.output, done.output


def soak(gpu: Serving, seconds: float) -> Command:
    command = gpu.start(sys.executable, SOAK, str(seconds), str(256 << 10))
    command.wait_for("under way", UNDER_WAY_S_MAX)
    return command


def test_lost_packets_are_sent_again_and_no_byte_is_wrong(gpu: Serving) -> None:
    ports = (gpu.port, gpu.client)
    before = [port.counters() for port in ports]
    with loss(LOSS_PERCENT, *ports):
        done = soak(gpu, SOAK_S).wait(SOAK_S_MAX)
    right = re.search(r"^(\d+) bytes right$", done.output, re.MULTILINE)
    assert done.status == 0 and right and int(right[1]) > SOAK_BYTES_MIN, f"{done.output}\n{gpu.command.output()}"
    for port, counted in zip(ports, before, strict=True):
        again = ("completer_retry_err", "duplicate_request", "rcvd_seq_err", "out_of_seq_request")
        assert sum(port.counters()[name] - counted[name] for name in again) > 0


def lost_within(command: Command, seconds: float) -> None:
    """The program gets an error from its call, and prints one line."""
    said = command.wait_for("CUDA_ERROR_DEVICE_UNAVAILABLE\n", seconds)
    assert said.count("the session with the GPU server is lost") == 1, said


def ended_sessions(gpu: Serving) -> int:
    """Reads the server's log."""
    return gpu.command.output().count(": ended after ")


def ends_within(gpu: Serving, seconds: float, ended: int) -> None:
    """The server ends a session."""
    deadline = time.monotonic() + seconds
    while ended_sessions(gpu) == ended:
        assert time.monotonic() < deadline, gpu.command.output()
        time.sleep(LOOK_S)


def none_is_left(gpu: Serving, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while workers := gpu.workers():
        assert time.monotonic() < deadline, workers


def test_worker_killed(gpu: Serving) -> None:
    running = soak(gpu, LONG_S)
    [worker] = gpu.workers()
    gpu.port.guest.check(f"kill -KILL {worker}")
    lost_within(running, DEATH_S_MAX)
    assert running.wait(DEATH_S_MAX).status == 1


def test_client_killed(gpu: Serving) -> None:
    running = soak(gpu, LONG_S)
    assert len(gpu.workers()) == 1
    running.kill()
    ends_within(gpu, DEATH_S_MAX, 0)
    none_is_left(gpu, DEATH_S_MAX)


@pytest.mark.parametrize("side", ["server", "client"])
def test_port_goes_down_and_comes_back(gpu: Serving, side: str) -> None:
    running = soak(gpu, LONG_S)
    with port_down(gpu.port if side == "server" else gpu.client):
        lost_within(running, VANISHED_S_MAX)
    # With packets that wait for the cable, software RoCE keeps a process from ending, on either side.
    assert running.wait(VANISHED_S_MAX).status == 1
    ends_within(gpu, VANISHED_S_MAX, 0)
    none_is_left(gpu, VANISHED_S_MAX)


def test_a_program_that_closes_the_devices_descriptor_gets_nothing_in_its_files(gpu: Serving) -> None:
    folder = "/tmp/taken"
    gpu.client.guest.check(["mkdir", folder])
    done = gpu.run(sys.executable, TEST_PROGRAMS / "descriptors.py", "taken", folder)
    assert done.status == 0 and done.output.endswith("right\n"), done.output
    assert "the program has closed the RDMA device's descriptor" in done.output

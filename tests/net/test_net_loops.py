"""Loops that serve, from one that the CPU drives to a kernel that stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import OUTBOARD, Server
from posting import RUN_S_MAX, build_on_gpu, free_address

# Served in one process and asked by another: loops that the CPU drives, and those that it only starts.
DRIVEN, STARTED = "abc", "defg"
REPORT_MS = 250


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_on_gpu(tmp_path_factory.mktemp("loops"), "loops.cu", "-rdc=true")


@contextmanager
def serving(server: Server, loops: Path, loop: str, address: str, link: str = "shm") -> Iterator[subprocess.Popen[str]]:
    """A server in this loop, in a group of its own."""
    command = [OUTBOARD, "run", "--gpu", server.urls[link], "--", loops, "serve", loop, address, str(REPORT_MS)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def end_of(process: subprocess.Popen[str]) -> dict[str, float]:
    said, _ = process.communicate(timeout=RUN_S_MAX)
    reports = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert reports and "loop" in reports[-1], said
    return {**reports[-1], "reports": len(reports) - 1, "said": said}


@pytest.mark.parametrize("loop", DRIVEN + STARTED)
def test_each_loop_answers_and_stops_in_the_midst_of_a_wait(server: Server, loops: Path, loop: str) -> None:
    """Requests wake nobody where the CPU only starts the loop: it wakes for its reports, and for the end."""
    address, requests = free_address(), 130 if loop == "f" else 40
    with serving(server, loops, loop, address) as process:
        # It stays, so that the loop is idle for some reports, and then told.
        ask = [loops, "ask", address, str(requests), str(RUN_S_MAX * 1000)]
        with subprocess.Popen(ask, stdout=subprocess.PIPE, text=True) as peer:
            assert peer.stdout is not None
            said = peer.stdout.readline() + peer.stdout.readline()
            time.sleep(3 * REPORT_MS / 1000)
            os.killpg(process.pid, signal.SIGTERM)
            end = end_of(process)
            peer.kill()
        assert said.endswith(f"{requests} of {requests} answers are right\n"), said
    assert process.returncode == 0, end["said"]
    assert end["served"] == requests
    assert end["stop_us"] > 0, "it was told, and did not end by itself"
    if loop in STARTED:
        assert end["wakes"] <= end["reports"] + 6, end["said"]
        assert end["cpu_percent"] < 10, end["said"]


@pytest.mark.parametrize("loop", "ag")
def test_a_loop_where_the_gpu_is_answers_a_program_without_one(server: Server, loops: Path, loop: str) -> None:
    address = free_address()
    with serving(server, loops, loop, address, "tcp") as process:
        asked = subprocess.run([loops, "ask", address, "20"], capture_output=True, text=True, timeout=RUN_S_MAX)
        end = end_of(process)
    assert asked.stdout.endswith("20 of 20 answers are right\n"), asked.stdout + end["said"]


@pytest.mark.parametrize("loop", "adefg")
def test_a_loop_ends_when_its_peer_is_killed(server: Server, loops: Path, loop: str) -> None:
    address = free_address()
    with serving(server, loops, loop, address) as process:
        peer = subprocess.Popen([loops, "ask", address, "1000000"], stdout=subprocess.DEVNULL)
        assert process.stdout is not None
        while json.loads(process.stdout.readline())["served"] < 5:
            pass
        peer.kill()
        peer.wait()
        end = end_of(process)
    assert process.returncode == 1, end["said"]
    assert "syndrome 0x15" in end["said"] or "syndrome 0x5" in end["said"], end["said"]
    assert end["stop_us"] == -1

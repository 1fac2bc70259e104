"""A program that takes the server's own memory is refused at its budget, and disturbs nobody."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import EXAMPLES, OUTBOARD, TEST_PROGRAMS, Server, start_server

BUDGET_MIB = 64
# What passes the budget before a worker ends, and the worker's own code and stacks.
MARGIN_MIB = 64
WORKER_MIB = 96


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start_server(tmp_path_factory.mktemp("small"), "--host-memory", f"{BUDGET_MIB}MiB", "--spare", "0")
    yield server
    assert server.process.poll() is None, f"the server died:\n{server.log.read_text()}"
    assert server.stop() == 0


def resident_mib(process: int) -> int:
    """Returns the most memory that a process has had, in MiB; 0 if it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    peak = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(peak[0]) // 1024 if peak else 0


def children(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


@pytest.mark.parametrize("way", ["graphs", "copies", "registered", "watched", "variables", "threads"])
def test_more_than_the_budget_is_refused_and_the_session_goes_on(small: Server, link: str, way: str) -> None:
    most, ended = [0], threading.Event()

    def look() -> None:
        while not ended.wait(0.01):
            most.extend(resident_mib(child) for child in children(small.process.pid))

    looking = threading.Thread(target=look)
    looking.start()
    done = small.run(link, sys.executable, TEST_PROGRAMS / "takes_host_memory.py", way)
    ended.set()
    looking.join()
    assert done.returncode == 0, done.stderr + small.log.read_text()
    assert done.stdout == "CUDA_ERROR_OUT_OF_MEMORY\ngoes on 7 0\n", done.stderr
    assert max(most) <= BUDGET_MIB + MARGIN_MIB + WORKER_MIB
    other = small.run(link, EXAMPLES / "vector_add")
    assert other.returncode == 0, other.stderr


def test_the_kernel_ends_workers_before_the_server(small: Server) -> None:
    # Workers of earlier programs end soon after these.
    deadline = time.monotonic() + 20
    while children(small.process.pid):
        assert time.monotonic() < deadline, "a worker does not end"
        time.sleep(0.01)
    argv = [str(OUTBOARD), "run", "--gpu", small.urls["shm"], "--", sys.executable, "-c"]
    waits = "import ctypes, sys; ctypes.CDLL('libcuda.so.1').cuInit(0); print('is open', flush=True); sys.stdin.read()"
    with subprocess.Popen([*argv, waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "is open\n"
        scores = [Path(f"/proc/{child}/oom_score_adj").read_text() for child in children(small.process.pid)]
        program.communicate()
    assert scores == ["500\n"]
    assert Path(f"/proc/{small.process.pid}/oom_score_adj").read_text() != "500\n"


def test_a_budget_that_serves_no_program_is_refused() -> None:
    argv = [str(OUTBOARD), "serve", "--device", "soft", "--host-memory", "1MiB"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    assert done.returncode != 0 and "at least" not in done.stdout
    assert "--host-memory: no program can be served with less than 64 MiB" in done.stderr

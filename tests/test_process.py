"""The library in processes that fork, end, or close and reopen it; and its answers for missing
functions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness import OUTBOARD, TEST_PROGRAMS, Server

pytestmark = pytest.mark.smoke


@pytest.mark.parametrize("level", ["batch=64", "or+sr+local"])
def test_a_child_that_exits_leaves_its_parent_alone(server: Server, link: str, level: str, tmp_path: Path) -> None:
    stats = tmp_path / "stats.json"
    env = {"OUTBOARD_STATS": str(stats), "OUTBOARD_OPTIMISE": level}
    done = server.run(link, sys.executable, TEST_PROGRAMS / "forks.py", stats, env=env)
    # Each child ended and wrote neither files nor counts; each launch of the parent ran once.
    assert done.stdout.splitlines() == ["exit 0 0 False"] * 20 + ["105"], done.stderr
    assert sum(json.loads(stats.read_text())["by_call"]["cuLaunchKernel"].values()) == 105
    assert "lost" not in done.stderr


def test_a_forked_child_can_name_errors(server: Server, link: str, tmp_path: Path) -> None:
    """Names depend on the arguments alone; every other call of the child is refused, and it writes no recording."""
    trace = tmp_path / "a.trace"
    program = TEST_PROGRAMS / "names_in_child.py"
    for options in [[], ["--record", str(trace)]]:
        command = [OUTBOARD, "run", "--gpu", server.urls[link], *options, "--", sys.executable, program]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.stdout.splitlines() == [
            "CUDA_ERROR_NOT_INITIALIZED CUDA_ERROR_OUT_OF_MEMORY 0 an illegal memory access was encountered 54321 1 ",
            "0 CUDA_SUCCESS",
        ], done.stdout + done.stderr
    assert [file.name for file in tmp_path.iterdir()] == [trace.name]


@pytest.mark.parametrize(("how", "status"), [("host", 0), ("object", 0), ("fails", 1)])
def test_an_interpreter_ends_while_its_function_runs(server: Server, how: str, status: int) -> None:
    """CPython ends our thread in the function, which must not end the process."""
    done = server.run("shm", sys.executable, TEST_PROGRAMS / "ends_in_callbacks.py", how)
    assert done.returncode == status and not done.stdout, (done.returncode, done.stdout, done.stderr)
    assert ("AssertionError: as it is to" in done.stderr) == (how == "fails"), done.stderr
    assert "FATAL" not in done.stderr and "outboard:" not in done.stderr, done.stderr


def test_a_library_that_is_closed_can_be_used_again(server: Server, link: str) -> None:
    program = TEST_PROGRAMS / "closes.py"
    done = server.run(link, sys.executable, program, "libcuda.so.1", "cuInit:0", "cuDeviceGetCount")
    assert done.stdout.splitlines()[:3] == ["0 0"] * 3, done.stdout + done.stderr
    done = server.run(link, sys.executable, program, "libnvidia-ml.so.1", "nvmlInit_v2:0", "nvmlDeviceGetCount_v2")
    assert done.stdout.splitlines()[:3] == ["0 0"] * 3, done.stdout + done.stderr


@pytest.mark.parametrize("library", ["client", "nvml", "recorder"])
def test_a_library_that_is_closed_stays(library: str) -> None:
    path = OUTBOARD.parent / f"liboutboard_{library}.so"
    command = [sys.executable, TEST_PROGRAMS / "closes.py", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "True", done.stderr


def test_what_is_not_there_is_named_once(server: Server, link: str) -> None:
    done = server.run(link, sys.executable, TEST_PROGRAMS / "asks_for_tables.py")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        "outboard: the driver's private table 6e163fbf-b958-444d-835c-e182aff1991e is not supported",
        "outboard: nvml: nvmlGpmSampleAlloc is not supported",
        "outboard: nvml: the private table 03020100-0504-0706-0809-0a0b0c0d0e0f is not supported",
    ]

"""Options of `outboard serve` for the software device, and limits set with `cuCtxSetLimit`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness import OUTBOARD, TEST_PROGRAMS, Server, start_server

PROGRAM = TEST_PROGRAMS / "device_options.py"

OK, INVALID = "CUDA_SUCCESS", "CUDA_ERROR_INVALID_VALUE"
REFUSED = "CUDA_ERROR_INVALID_PTX"

# Limits that differ: threads and blocks of a multiprocessor; shared memory of a block, of one that
# opted in, of a multiprocessor.
CAPABILITIES = {
    "7.5": ("1024 16", "49152 65536 65536", "75", ["sm_52", "sm_75"]),
    "8.0": ("2048 32", "49152 166912 167936", "80", ["sm_52", "sm_75", "sm_80"]),
    "9.0": ("2048 32", "49152 232448 233472", "90", ["sm_52", "sm_75", "sm_80", "sm_86", "sm_90", "sm_90a"]),
    "12.0": ("1536 24", "49152 101376 102400", "120", ["sm_52", "sm_75", "sm_80", "sm_86", "sm_90", "sm_120"]),
}


def lines(server: Server, link: str, case: str) -> list[str]:
    done = server.run(link, sys.executable, PROGRAM, case)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_capability(tmp_path: Path, capability: str) -> None:
    server = start_server(tmp_path, "--capability", capability)
    blocks, shared, binary, runs = CAPABILITIES[capability]
    out = lines(server, "shm", "capability")
    assert out[:4] == [
        capability,
        f"threads, blocks of a multiprocessor {blocks}",
        f"shared memory {shared}",
        f"binary version {binary}",
    ]
    loads = [line.split(maxsplit=2) for line in out[4:11]]
    assert [target for target, status, *_ in loads if status == OK] == runs
    for target, status, *log in loads:
        assert status == OK or (status == REFUSED and target.replace("sm", "compute") in log[0]), (target, status, log)
    # Features of 9.0 that the device lacks are refused by name and line; features that the target
    # lacks, as on any other.
    assert out[11].startswith(f"clusters {REFUSED}"), out[11]
    assert ("line" in out[11] and "barrier.cluster" in out[11]) == ("sm_90" in runs), out[11]
    assert server.stop() == 0


def test_without_the_option_it_is_of_compute_capability_8(server: Server, link: str) -> None:
    assert lines(server, link, "capability")[0] == "8.0"


def test_memory_is_what_the_device_has(tmp_path: Path, link: str) -> None:
    server = start_server(tmp_path, "--memory", "64MiB")
    size = 64 << 20
    assert lines(server, link, "memory") == [
        f"total {size}",
        f"info {size} {size}",
        OK,
        "left 0",
        "CUDA_ERROR_OUT_OF_MEMORY",
    ]
    assert server.stop() == 0


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--capability", "8.1"], 2, ["--capability", "8.1", "known are 7.5, 8.0"]),
        (["--capability", "sm_90"], 2, ["sm_90", "known are"]),
        (["--capability", ""], 2, ["--capability"]),
        (["--memory", "0"], 2, ["no program can work with 0 bytes"]),
        (["--memory", "much"], 2, ["--memory"]),
        (["--memory", "2000GiB"], 2, ["--memory", "at most 1024 GiB"]),
    ],
)
def test_bad_values_are_refused(tmp_path: Path, options: list[str], code: int, words: list[str]) -> None:
    argv = [OUTBOARD, "serve", "--device", "soft", "--listen", f"shm://{tmp_path}/gpu.sock", *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    assert done.returncode == code and not done.stdout, done.stdout + done.stderr
    assert all(word in done.stderr for word in words), done.stderr


def test_the_options_are_in_the_help_and_the_manual() -> None:
    for argv in [[OUTBOARD, "serve", "--help"], [OUTBOARD, "man"]]:
        text = subprocess.run(argv, capture_output=True, text=True, timeout=20).stdout.replace("\\-", "-")
        assert "--capability" in text and "--memory" in text


HEAP_MIB = 256  # Allocations of 4,096 bytes in one MiB.


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (
            "heap",
            [f"default {8 << 20}", f"{INVALID} {OK}", f"set {1 << 20}", f"[{HEAP_MIB}, 1] {OK}", INVALID],
        ),
        ("heap_default", [f"[{8 * HEAP_MIB}, 1] {OK}"]),
        ("heap_anew", [f"{OK} [{HEAP_MIB}, 1] {OK}", f"{OK} [{2 * HEAP_MIB}, 1] {OK}"]),
        ("heap_of_nothing", [f"{OK} [0, 0] {OK}"]),
        # The buffer holds the last hundred messages.
        ("fifo", [OK, *(f"line {i:04}" for i in range(900, 1000)), OK]),
        ("fifo_default", [*(f"line {i:04}" for i in range(1000)), OK]),
        ("stack_default", [f"[{50 * 51}, 0] {OK}"]),
        ("stack_large", [f"{OK} [{50 * 51}, 0] {OK}"]),
        ("stack_small", [f"{OK} [0, 0] CUDA_ERROR_HARDWARE_STACK_ERROR"]),
        ("stack_absurd", [f"{INVALID} {INVALID}"]),
    ],
)
def test_limits(server: Server, link: str, case: str, expected: list[str]) -> None:
    assert lines(server, link, case) == expected

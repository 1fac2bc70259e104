"""Kernels on the software device, and threads of the CPU, that post RDMA operations to the adapter in software."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness import OUTBOARD, ROOT, TEST_PROGRAMS, Server

LIBRARY = OUTBOARD.parent
NVCC = ROOT / ".toolchain" / "bin" / "nvcc"
SOURCE = TEST_PROGRAMS / "net" / "soak.cu"
LINK = [f"-L{LIBRARY}", "-loutboard_net"]
RUN_S_MAX = 100


def build(target: Path, *command: str | Path) -> Path:
    done = subprocess.run(
        [*command, "-std=c++17", "-O2", f"-I{ROOT / 'include'}", SOURCE, "-o", target, *LINK],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    flags = ["-x", "c++", "-Wall", "-Wextra", "-Werror", "-pthread", f"-Wl,-rpath,{LIBRARY}"]
    return build(tmp_path_factory.mktemp("net") / "cpu", "g++", *flags)


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    flags = ["-gencode", "arch=compute_80,code=compute_80", "-Xlinker", f"-rpath={LIBRARY}"]
    return build(tmp_path_factory.mktemp("net") / "gpu", NVCC, *flags)


# Threads, rounds of seven operations, logarithm of the ring's entries, losses of each million, seed. 10,000 rounds pass
# the 16 bits of an index; 64 threads fill a ring of 32 entries.
@pytest.mark.parametrize("case", ["1 10000 5 0 1", "64 150 5 0 1", "16 20 6 20000 3"])
def test_threads_of_the_cpu_share_a_queue(on_cpu: Path, case: str) -> None:
    done = subprocess.run([on_cpu, *case.split()], capture_output=True, text=True, timeout=RUN_S_MAX)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(": right\n")


def test_a_ring_that_has_no_room_for_a_warp_is_refused(on_cpu: Path) -> None:
    done = subprocess.run([on_cpu, "1", "1", "4", "0", "1"], capture_output=True, text=True, timeout=RUN_S_MAX)
    assert done.returncode == 1
    assert "a queue has 2^5 to 2^15 entries, not 2^4" in done.stdout


@pytest.mark.parametrize("case", ["1 20 5 0 1", "64 10 5 0 1", "32 5 6 20000 3"])
def test_threads_of_a_kernel_share_a_queue(server: Server, on_gpu: Path, case: str) -> None:
    """The adapter runs in the program's process: over shm its memory is the kernel's, too."""
    done = server.run("shm", on_gpu, *case.split())
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(": right\n")

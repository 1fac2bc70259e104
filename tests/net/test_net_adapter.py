"""The adapter in software as a kernel of the GPU."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from harness import OUTBOARD, Server
from posting import build_on_gpu, is_right

# The adapter is a kernel, of one warp here: each takes its time on the software device.
BY_KERNEL = {"OUTBOARD_NET_PROVIDER": "nic", "OUTBOARD_NET_ENGINE": "gpu,warps=1"}


@pytest.mark.parametrize(
    "case",
    [
        "soak 32 5 6 0 1",
        "soak 16 5 6 0 1 gpu",
        "messages thread 32 32 10 6 4 16 1 0 4",
        "messages warp 2 2 12 6 3 33 0 0 3",
    ],
)
def test_kernels_post_to_an_adapter_that_is_a_kernel(
    server: Server, soak_on_gpu: Path, messages_on_gpu: Path, case: str
) -> None:
    name, *arguments = case.split()
    program = {"soak": soak_on_gpu, "messages": messages_on_gpu}[name]
    is_right(server.run("shm", program, *arguments, env=BY_KERNEL))
    blocks = {**BY_KERNEL, "OUTBOARD_NET_ENGINE": "gpu,blocks=2,warps=2"}
    is_right(server.run("shm", program, *arguments, env=blocks))


@pytest.fixture(scope="module")
def by_kernel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_on_gpu(tmp_path_factory.mktemp("adapter"), "adapter.cu")


def test_an_adapter_that_is_a_kernel_reaches_the_gpus_memory_and_takes_keys_while_kernels_post(
    server: Server, by_kernel: Path, soak_on_gpu: Path
) -> None:
    for case in ([], ["others"]):
        done = server.run("shm", by_kernel, *case, env=BY_KERNEL)
        assert done.returncode == 0 and done.stdout == "right\n", done.stdout + done.stderr
    for link, case, engine, why in (
        ("tcp", "1 1 5 0 1", "gpu", "only where program and GPU have the same memory"),
        ("shm", "1 1 5 20000 1", "gpu", "a perfect network alone"),
        ("shm", "1 1 5 0 1", "gpu,warps=99", "there is no engine gpu,warps=99"),
    ):
        done = server.run(link, soak_on_gpu, *case.split(), env={**BY_KERNEL, "OUTBOARD_NET_ENGINE": engine})
        assert done.returncode == 1 and why in done.stdout, done.stdout + done.stderr


def test_a_killed_program_leaves_no_kernel_that_is_an_adapter(
    server: Server, by_kernel: Path, soak_on_gpu: Path
) -> None:
    command = [OUTBOARD, "run", "--gpu", server.urls["shm"], "--", by_kernel, "linger"]
    with subprocess.Popen(command, env={**os.environ, **BY_KERNEL}, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "under way\n"
        program.kill()
    is_right(server.run("shm", soak_on_gpu, "1", "5", "5", "0", "1", env=BY_KERNEL))

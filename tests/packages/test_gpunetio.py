"""GPUNetIO's device headers beside ours: the kernels that NVIDIA's packages bring post to the software adapter."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from test_packages import ENVIRONMENTS, HERE, skip_without

from harness import OUTBOARD, ROOT, Server, start_server

LIBRARY = OUTBOARD.parent
NVCC = ROOT / ".toolchain" / "bin" / "nvcc"
# The packages that bring the headers, each its own version: where they lie, and a header that they leave to others.
BROUGHT_BY = {
    "nccl": ("nccl/include/nccl_device/gin/gdaki/doca_gpunetio", "nccl/include/nccl_device/utility.h"),
    "nvshmem": ("nvshmem/include/gpunetio", None),
}
# From 9.0 on they poll a byte of a completion, and fence otherwise.
CASES = [("nccl", "8.0"), ("nvshmem", "9.0")]
PARTS = ["gpu", "block", "one", "warp", "errors", "collapsed", "entries"]


def build(target: Path, package: str, capability: str) -> Path:
    folder, first = BROUGHT_BY[package]
    arch = capability.replace(".", "")
    flags = ["-std=c++17", "-O2", "-gencode", f"arch=compute_{arch},code=compute_{arch}"]
    headers = [
        f"-I{ROOT / 'include'}",
        f"-I{nvidia() / folder}",
        *(["-include", str(nvidia() / first)] if first else []),
    ]
    link = [f"-L{LIBRARY}", "-loutboard_net", "-Xlinker", f"-rpath={LIBRARY}"]
    done = subprocess.run(
        [NVCC, *flags, *headers, HERE / "gpunetio.cu", "-o", target, *link], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return target


def nvidia() -> Path:
    """The folder of the packages that the environment of PyTorch has."""
    [folder] = (ENVIRONMENTS / "torch" / "lib").glob("python3*/site-packages/nvidia")
    return folder


@pytest.fixture(scope="module")
def hopper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start_server(tmp_path_factory.mktemp("hopper"), "--capability", "9.0")
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Compiles all at once: each takes a core 7 s."""
    skip_without("torch")
    folder = tmp_path_factory.mktemp("gpunetio")
    with ThreadPoolExecutor() as pool:
        built = pool.map(lambda case: build(folder / case[0], *case), CASES)
        return dict(zip((package for package, _ in CASES), built, strict=True))


@pytest.mark.parametrize(("package", "capability"), CASES)
def test_kernels_of_gpunetio_post_to_the_adapter(
    server: Server, hopper: Server, programs: dict[str, Path], package: str, capability: str
) -> None:
    """Its entries are executed, and its pollers read the completions; its entries have the bytes of ours."""
    done = (hopper if capability == "9.0" else server).run("shm", programs[package], "16", "5", "6")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == PARTS


def test_kernels_of_gpunetio_post_to_an_adapter_that_is_a_kernel(server: Server, programs: dict[str, Path]) -> None:
    engine = {"OUTBOARD_NET_ENGINE": "gpu,warps=1"}
    done = server.run("shm", programs["nccl"], "16", "5", "6", env=engine)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == PARTS


def test_queues_are_made_by_commands_of_gpunetios_header(tmp_path: Path) -> None:
    """DEVX without an adapter: a program posts, and reads completions, through queues that it made by commands."""
    skip_without("torch")
    program = tmp_path / "devx"
    headers = nvidia() / "nvshmem" / "include" / "gpunetio" / "host"
    command = ["cc", "-O1", "-Wall", f"-I{headers}", HERE / "devx.c", "-o", program, "-libverbs", "-lmlx5"]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    done = subprocess.run([OUTBOARD, "nic", "run", "--", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "right\n", done.stdout + done.stderr
    assert "mlx5dv_devx_obj_create: command 0x90c is not served" in done.stderr

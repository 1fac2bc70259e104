"""NCCL between the GPUs of two servers: over shm its collectives are right; where its kernels would wait for ever, it
gets an error, and the reason. Over the adapter in software it connects, and kernels of its device interface put."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_gpunetio import NVCC, nvidia
from test_packages import ENVIRONMENTS, HERE, skip_without

from harness import OUTBOARD, TEST_PROGRAMS, Server, start_server

RANKS = TEST_PROGRAMS / "nccl_ranks.py"
SETTINGS = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_MAX_NCHANNELS": "1"}
WHY = "NET/Outboard: NCCL's kernels wait for words in host memory"
# The capability that its PTX is for, and memory for loading it.
OPTIONS = ("--capability", "12.0", "--host-memory", "4GiB")
PATIENCE_S = 300
# Ways of GIN, each with its number and what NCCL calls it: kernels post to the adapter, or tell a thread of NCCL's what
# to post, by verbs or by our plugin.
GIN_KINDS = {"gdaki": ("3", "GIN_IB_GDAKI"), "proxy": ("2", "RMA_IB_PROXY"), "plugin": ("2", "OUTBOARD")}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    skip_without("torch")
    first, second = (start_server(tmp_path_factory.mktemp("nccl")) for _ in range(2))
    yield first, second
    assert [server.stop() for server in (first, second)] == [0, 0]


def library() -> Path:
    [found] = (ENVIRONMENTS / "torch" / "lib").glob("python3*/site-packages/nvidia/nccl/lib/libnccl.so.2")
    return found


def start(urls: list[str], visible: str, *rank: str | Path, host: str = "") -> subprocess.Popen[str]:
    """`host` tells NCCL's ranks apart, as if they were on different machines."""
    argv = [OUTBOARD, "run", "--gpu", ",".join(urls), "--", sys.executable, RANKS, library(), *rank]
    environment = {**os.environ, **SETTINGS, "CUDA_VISIBLE_DEVICES": visible, **({"NCCL_HOSTID": host} if host else {})}
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def refused(process: subprocess.Popen[str], function: str) -> str:
    """Checks that this function failed; returns what the program said on standard error."""
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1 and out.startswith(f"{function}: "), out + err
    return err


def urls(pair: tuple[Server, Server]) -> list[str]:
    """Returns addresses of three GPUs. The first is not for NCCL: this machine may have another device at its place."""
    return [pair[0].urls["shm"], pair[0].urls["tcp"], pair[1].urls["tcp"]]


def test_both_ranks_in_one_process(pair: tuple[Server, Server]) -> None:
    assert WHY in refused(start(urls(pair), "1,2", "all"), "ncclCommInitAll")


def test_a_process_for_each_rank(pair: tuple[Server, Server], tmp_path: Path) -> None:
    place = tmp_path / "number"
    ranks = [start(urls(pair), str(rank + 1), str(rank), place, host=f"host-{rank}") for rank in (0, 1)]
    said = [refused(rank, "ncclCommInitRank") for rank in ranks]
    assert any(WHY in err for err in said), said


def test_collectives_over_shared_memory(tmp_path: Path) -> None:
    """The first server's GPU is not for NCCL, as above."""
    skip_without("torch")
    folders = [tmp_path / str(number) for number in range(3)]
    for folder in folders:
        folder.mkdir()
    servers = [start_server(folder, *OPTIONS) for folder in folders]
    try:
        process = start([server.urls["shm"] for server in servers], "1,2", "all", "few")
        out, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out) == (0, "right\n"), out + err
    finally:
        ends = [server.stop() for server in servers]
    assert ends == [0, 0, 0]


def over_the_adapter(folder: Path, program: list[str | Path], *after: str, **settings: str) -> list[str]:
    """Runs two ranks over NET/IB on the software device; returns what each says."""
    nic_run = [OUTBOARD, "nic", "run", "--fabric", folder / "fabric", "--"]
    return two_ranks(folder, nic_run, program, after, {"NCCL_NET": "IB"}, settings)


def by_the_plugin(folder: Path, program: list[str | Path], *after: str, **settings: str) -> list[str]:
    """Runs two ranks over sockets, but for what GIN does."""
    plugin = {"NCCL_NET": "Socket", "NCCL_RMA_PLUGIN": str(OUTBOARD.parent / "liboutboard_nic.so")}
    return two_ranks(folder, [], program, after, {**plugin, "OUTBOARD_NIC_FABRIC": str(folder / "fabric")}, settings)


def two_ranks(
    folder: Path,
    first: list[str | Path],
    program: list[str | Path],
    after: tuple[str, ...],
    more: dict[str, str],
    settings: dict[str, str],
) -> list[str]:
    """`first` begins the command, `after` ends it, and `settings` are for the program alone."""
    skip_without("torch")
    server = start_server(folder)
    # The second GPU: this machine may have another device at the place of the first.
    gpus = ",".join([server.urls["shm"]] * 2)
    more = {**more, "NCCL_P2P_DISABLE": "1", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH"}
    ranks = []
    for rank in "01":
        argv = [*first, OUTBOARD, "run", "--gpu", gpus, "--"]
        argv += ["env", *(f"{name}={value}" for name, value in settings.items())]
        argv += [*program, rank, folder / "number", *after]
        environment = {**os.environ, **SETTINGS, **more, "NCCL_HOSTID": rank, "CUDA_VISIBLE_DEVICES": "1"}
        ranks.append(
            subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    said = [rank.communicate(timeout=PATIENCE_S)[0] for rank in ranks]
    assert server.stop() == 0
    return said


def test_rings_over_the_adapter_in_software(tmp_path: Path) -> None:
    """NET/IB between two processes, until the first kernel: without PTX for the device, there is none."""
    for one in over_the_adapter(tmp_path, [sys.executable, RANKS, library()], NCCL_RUNTIME_CONNECT="0"):
        ways = [line for line in one.splitlines() if "via NET/IB/0" in line]
        assert len(ways) == 2 and "Connected all rings" in one and "Init COMPLETE" in one, one
        assert "no kernel image is available" in one, one


@pytest.fixture(scope="module")
def reachable(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """NCCL asks a GPU whether an adapter reaches it, which the preload answers."""
    preload = tmp_path_factory.mktemp("reachable") / "reachable.so"
    source = HERE / "reachable.c"
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", preload, source], check=True)
    return {"LD_PRELOAD": str(preload), "NCCL_CUMEM_HOST_ENABLE": "0"}


def test_one_sided_calls_over_the_adapter_in_software(tmp_path: Path, reachable: dict[str, str]) -> None:
    """Puts into the other GPU's memory and signals by GIN's proxy."""
    program = [sys.executable, TEST_PROGRAMS / "nccl_put.py", library()]
    for one in over_the_adapter(tmp_path, program, **reachable, NCCL_GIN_TYPE="2"):
        assert one.splitlines()[-1] == "right" and "Assigned plugin RMA_IB_PROXY" in one, one


@pytest.fixture(scope="module")
def gin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program whose kernels use GIN: its own kernels are PTX, and no other's are needed."""
    skip_without("torch")
    target, there = tmp_path_factory.mktemp("gin") / "gin", nvidia() / "nccl"
    flags = ["-std=c++17", "-gencode", "arch=compute_80,code=compute_80", f"-I{there / 'include'}"]
    link = [f"-L{there / 'lib'}", "-l:libnccl.so.2", "-Xlinker", f"-rpath={there / 'lib'}"]
    command = [NVCC, *flags, HERE / "nccl_gin.cu", "-o", target, *link]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.parametrize("way", GIN_KINDS)
def test_kernels_put_over_the_adapter_in_software(
    gin: Path, tmp_path: Path, reachable: dict[str, str], way: str
) -> None:
    """And in turns, 8 bytes ten times, which take some time: gpu-check/nic_peers.py asks for it."""
    kind, plugin = GIN_KINDS[way]
    run = by_the_plugin if way == "plugin" else over_the_adapter
    for one in run(tmp_path, [gin], "8", "10", **reachable, NCCL_GIN_TYPE=kind):
        assert one.splitlines()[-1] == "right" and f"GIN/Plugin: Assigned plugin {plugin} type {kind}" in one, one
        assert '{"bytes": 8, "rounds": 10, "one_way_ns": ' in one, one

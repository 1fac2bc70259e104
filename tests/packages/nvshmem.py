"""Unmodified NVSHMEM between two processes over the adapter in software, on the software device: `make nvshmem`. Not of
every test run: its host library has 84 MB of PTX, which each process links (4 s of a core, 1.2 GB)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from test_gpunetio import NVCC, nvidia
from test_packages import HERE, skip_without

from harness import OUTBOARD, start_server

# Its PTX is for this capability alone.
CAPABILITY = "12.0"
SETTINGS = {
    "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "lo",
    # Two PEs of one machine use the adapter, and NVSHMEM does not ask which is nearest.
    "NVSHMEM_DISABLE_P2P": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "NVSHMEM_ENABLE_NIC_PE_MAPPING": "1",
    "NVSHMEM_IB_GID_INDEX": "0",
    "NVSHMEM_IB_DISABLE_DMABUF": "1",
    "NVSHMEM_DISABLE_CUDA_VMM": "1",
    "NVSHMEM_SYMMETRIC_SIZE": "64M",
}
# Where the device's operations go: to a thread of the host that posts verbs, or to the adapter's rings.
TRANSPORTS = {"ibrc": {}, "ibgda": {"NVSHMEM_IB_ENABLE_IBGDA": "1", "NVSHMEM_IBGDA_NIC_HANDLER": "gpu"}}
PATIENCE_S = 600


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    skip_without("torch")
    target = tmp_path_factory.mktemp("nvshmem") / "put"
    there = nvidia() / "nvshmem"
    # The linker needs code for a GPU beside the PTX.
    flags = ["-std=c++17", "-rdc=true", "-gencode", "arch=compute_120,code=[compute_120,sm_120]"]
    link = [f"-L{there / 'lib'}", "-l:libnvshmem_host.so.3", "-lnvshmem_device", "-Xlinker", f"-rpath={there / 'lib'}"]
    command = [NVCC, *flags, f"-I{there / 'include'}", HERE / "nvshmem_put.cu", "-o", target, *link]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_puts_signals_and_additions(program: Path, tmp_path: Path, transport: str) -> None:
    folders = [tmp_path / str(number) for number in range(2)]
    for folder in folders:
        folder.mkdir()
    servers = [start_server(folder, "--capability", CAPABILITY, "--host-memory", "4GiB") for folder in folders]
    gpus = ",".join(server.urls["shm"] for server in servers)
    environment = {**os.environ, **SETTINGS, **TRANSPORTS[transport]}
    both = []
    for number in "01":
        argv = [OUTBOARD, "nic", "run", "--fabric", tmp_path / "fabric", "--", OUTBOARD, "run", "--gpu", gpus, "--"]
        argv += [program, number, tmp_path / "id", "8", "10"]
        out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        both.append(subprocess.Popen(argv, env=environment, **out))
    said = [one.communicate(timeout=PATIENCE_S)[0] for one in both]
    assert [server.stop() for server in servers] == [0, 0]
    for one, process in zip(said, both, strict=True):
        assert process.returncode == 0 and "right" in one.splitlines(), one
        assert '{"bytes": 8, "rounds": 10, "one_way_ns": ' in one, one

"""Kernels of numba that post by net.cuh, as docs/net.md says."""

from __future__ import annotations

import subprocess
from pathlib import Path

from test_gpunetio import LIBRARY, NVCC
from test_packages import ENVIRONMENTS, HERE, skip_without

from harness import ROOT, Server


def test_kernels_of_numba_post(server: Server, tmp_path: Path) -> None:
    skip_without("numba_cupy")
    ptx = tmp_path / "net_calls.ptx"
    flags = ["-std=c++17", "-O2", "-rdc=true", "-arch=compute_80", "-ptx", f"-I{ROOT / 'include'}"]
    subprocess.run([NVCC, *flags, ROOT / "include" / "outboard" / "net_calls.cu", "-o", ptx], check=True)
    python = ENVIRONMENTS / "numba_cupy" / "bin" / "python"
    env = {"PYTHONPATH": str(ROOT / "python"), "OUTBOARD_NET_LIBRARY": str(LIBRARY / "liboutboard_net.so")}
    done = server.run("shm", python, HERE / "numba_net.py", ptx, env=env, timeout=120)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stdout + done.stderr

"""Kernels of numba and Triton that post by net.cuh, as docs/net.md says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from test_gpunetio import LIBRARY, NVCC
from test_packages import ENVIRONMENTS, HERE, skip_without

from harness import ROOT, Server

ENV = {"PYTHONPATH": str(ROOT / "python"), "OUTBOARD_NET_LIBRARY": str(LIBRARY / "liboutboard_net.so")}


def test_kernels_of_numba_post(server: Server, tmp_path: Path) -> None:
    skip_without("numba_cupy")
    ptx = tmp_path / "net_calls.ptx"
    flags = ["-std=c++17", "-O2", "-rdc=true", "-arch=compute_80", "-ptx", f"-I{ROOT / 'include'}"]
    subprocess.run([NVCC, *flags, ROOT / "include" / "outboard" / "net_calls.cu", "-o", ptx], check=True)
    python = ENVIRONMENTS / "numba_cupy" / "bin" / "python"
    done = server.run("shm", python, HERE / "numba_net.py", ptx, env=ENV, timeout=120)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stdout + done.stderr


def test_kernels_of_triton_post(server: Server, tmp_path: Path) -> None:
    """Clang compiles what they call at the first use, and not again."""
    skip_without("torch")
    python = ENVIRONMENTS / "torch" / "bin" / "python"
    env = {**ENV, "XDG_CACHE_HOME": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    done = server.run("shm", python, HERE / "triton_net.py", env=env, timeout=240)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stdout + done.stderr
    [made] = (tmp_path / "outboard").iterdir()
    again = compiled(env, str(compiler(tmp_path)))
    assert again.stdout == f"{made / 'net_calls.bc'}\n", again.stderr
    missing = compiled(env, "no-such-clang").stderr
    assert "no-such-clang was not found" in missing and "OUTBOARD_CLANG names another one" in missing
    (tmp_path / "outboard" / made.name).rename(tmp_path / "elsewhere")
    assert "does not compile" in compiled(env, str(compiler(tmp_path))).stderr


def compiled(env: dict[str, str], clang: str) -> subprocess.CompletedProcess[str]:
    asks = [sys.executable, "-c", "from outboard import _net_calls; print(_net_calls.compiled(None)[0])"]
    environment = {**os.environ, **env, "OUTBOARD_CLANG": clang}
    return subprocess.run(asks, env=environment, capture_output=True, text=True, timeout=120)


def compiler(folder: Path) -> Path:
    """A clang that says its version, and compiles nothing."""
    script = folder / "clang"
    script.write_text('#!/bin/sh\n[ "$1" = --version ] && exec clang --version\necho compiled again >&2; exit 1\n')
    script.chmod(0o755)
    return script

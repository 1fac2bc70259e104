"""Calls of NVIDIA's libraries beyond the driver's manual, made by programs that need neither the
libraries nor a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from conftest import Server

pytestmark = pytest.mark.smoke

HERE = Path(__file__).parent


def test_cufft_finds_the_kernel_of_a_module(server: Server, link: str) -> None:
    done = server.run(link, sys.executable, HERE / "private_tables.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["1 ['store']", "2 ['other', 'store']", "0 []"]


def test_cudnn_reads_what_it_captured(server: Server, link: str) -> None:
    done = server.run(link, sys.executable, HERE / "captured_nodes.py")
    assert done.returncode == 0, done.stderr
    nodes = ["type 2 CUDA_ERROR_INVALID_VALUE", "kernel [2, 3, 1] [32, 1, 1] 48 0x2848a0"]
    assert done.stdout.splitlines() == [
        "memset outside a capture CUDA_ERROR_INVALID_VALUE",
        "captured memset CUDA_SUCCESS",
        *nodes,
        *nodes,
    ]


def test_nccl_captures_what_its_streams_do(server: Server, link: str) -> None:
    done = server.run(link, sys.executable, HERE / "strong_streams.py")
    assert (done.returncode, done.stdout) == (0, "364 1\n"), done.stderr

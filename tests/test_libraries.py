"""Calls of NVIDIA's libraries beyond the driver's manual, made by programs that need neither the
libraries nor a GPU."""

from __future__ import annotations

import sys

import pytest

from harness import TEST_PROGRAMS, Server

pytestmark = pytest.mark.smoke


def test_cufft_finds_the_kernel_of_a_module(server: Server, link: str) -> None:
    done = server.run(link, sys.executable, TEST_PROGRAMS / "private_tables.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["1 ['store']", "2 ['other', 'store']", "0 []"]
    # A private table that is not known is named once, but not one that nobody needs.
    named = [line for line in done.stderr.splitlines() if "private table" in line]
    assert named == ["outboard: the driver's private table 00010203-0405-0607-0809-0a0b0c0d0e0f is not supported"]


def test_cudnn_reads_what_it_captured(server: Server, link: str) -> None:
    done = server.run(link, sys.executable, TEST_PROGRAMS / "captured_nodes.py")
    assert done.returncode == 0, done.stderr
    nodes = ["type 2 CUDA_ERROR_INVALID_VALUE", "kernel [2, 3, 1] [32, 1, 1] 48 0x2848a0"]
    assert done.stdout.splitlines() == [
        "memset outside a capture CUDA_ERROR_INVALID_VALUE",
        "captured memset CUDA_SUCCESS",
        *nodes,
        *nodes,
    ]


def test_nccl_captures_what_its_streams_do(server: Server, link: str) -> None:
    done = server.run(link, sys.executable, TEST_PROGRAMS / "strong_streams.py")
    assert (done.returncode, done.stdout) == (0, "364 1\n"), done.stderr

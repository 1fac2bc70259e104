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


def test_xla_moves_child_graphs(server: Server, link: str) -> None:
    """And a copy's pitch may be 0. An H200 answers the same, but for graphs inside themselves; the
    last six answers are not compared with it."""
    done = server.run(link, sys.executable, TEST_PROGRAMS / "moved_graphs.py")
    assert done.returncode == 0, done.stdout + done.stderr
    answers = done.stdout.replace("CUDA_ERROR_", "").replace("CUDA_", "")
    assert answers.splitlines() == [
        "move SUCCESS",
        "node 4 True",
        "instantiate it NOT_SUPPORTED",
        "destroy it INVALID_VALUE",
        "clone it SUCCESS SUCCESS",
        "into another NOT_SUPPORTED NOT_SUPPORTED",
        "allocate in it NOT_SUPPORTED",
        "without a graph INVALID_VALUE INVALID_VALUE",
        "into itself INVALID_VALUE INVALID_VALUE",
        "launch SUCCESS 5",
        "changed in the executable 7",
        "changed in the graph 8",
        "extended 9",
        "clone of the parent 9",
        "without its node INVALID_VALUE 0",
        "nested SUCCESS SUCCESS SUCCESS 6 INVALID_VALUE",
        "destroyed INVALID_VALUE INVALID_VALUE INVALID_VALUE",
        "refused at last True SUCCESS",
        "allocating SUCCESS NOT_SUPPORTED SUCCESS",
        "free in it NOT_SUPPORTED",
        "launch SUCCESS SUCCESS NOT_SUPPORTED",
        "left 3 INVALID_VALUE SUCCESS",
        "pitches 0 8 SUCCESS 00010203ffffffff04050607ffffffff08090a0bffffffff",
        "pitches 8 0 SUCCESS 0001020308090a0b10111213ffffffffffffffffffffffff",
        "pitches 0 0 SUCCESS 000102030405060708090a0bffffffffffffffffffffffff",
        "pitches 2 8 INVALID_VALUE " + "ff" * 24,
        "destroy a body INVALID_VALUE SUCCESS",
        "destroy a child's INVALID_VALUE SUCCESS",
        "with the parent INVALID_VALUE",
        "captured into ILLEGAL_STATE SUCCESS SUCCESS True SUCCESS 1 SUCCESS INVALID_VALUE",
        "move SUCCESS",
        "captured into SUCCESS STREAM_CAPTURE_INVALIDATED STREAM_CAPTURE_INVALIDATED False INVALID_VALUE 1 "
        "INVALID_VALUE INVALID_VALUE",
    ]


def test_memory_of_graphs_goes_with_them(server: Server, link: str) -> None:
    """However little of it there is, whoever frees it, and if its node is refused or its context goes."""
    done = server.run(link, sys.executable, TEST_PROGRAMS / "graph_memory.py")
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stderr

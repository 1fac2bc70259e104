"""Reads of random programs are allowed by CUDA's ordering rules."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness import EXAMPLES, OUTBOARD, TEST_PROGRAMS, Server, start_server
from ordering_programs import program
from ordering_rules import FIRST_VALUE, Model
from random_calls import answers, shrink

PROGRAM = TEST_PROGRAMS / "ordering.py"
SEED, PROGRAMS, SECONDS = 1, 100, 6


@pytest.mark.smoke
def test_random_programs(server: Server, link: str) -> None:
    done = server.run(link, sys.executable, PROGRAM, str(SEED), str(PROGRAMS), str(SECONDS))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{server.log.read_text()[-4000:]}"
    assert "all as CUDA orders them" in done.stdout


@pytest.mark.skipif("release" in OUTBOARD.parts, reason="only a build with debug assertions has the fault")
def test_an_overtaken_copy_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the fault switched on, random programs find a synchronous copy overtaken by later work
    of other streams."""
    monkeypatch.setenv("OUTBOARD_FAULT", "overtaken-copies")
    server = start_server(tmp_path)
    try:
        done = server.run("tcp", sys.executable, PROGRAM, str(SEED), "1000", "30", env={"ORDERING_SHRINK_S": "3"})
        assert done.returncode == 1, f"{done.stdout}\n{done.stderr}"
        assert any(line.startswith('["copy_in"') for line in done.stdout.splitlines()), done.stdout
    finally:
        server.stop()


def test_a_memset_of_host_memory_is_synchronous(server: Server, link: str) -> None:
    done = server.run(link, sys.executable, TEST_PROGRAMS / "pinned_sets.py")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("program", ["sync_copy_order", "graph_pageable"])
def test_what_cuda_leaves_open_is_seen(server: Server, link: str, program: str) -> None:
    """A synchronous copy of pageable memory is over when it returns; a graph's copy reads when its turn comes."""
    done = server.run(link, EXAMPLES / program)
    assert done.returncode == 0, done.stdout
    assert "# seen: " in done.stdout and "# not seen" not in done.stdout, done.stdout


def test_both_links_answer_alike(server: Server) -> None:
    """Programs give equal answers over shm and, waiting for every call, over tcp."""
    run = [str(OUTBOARD), "run", "--gpu"]
    shm, tcp = [*run, server.urls["shm"], "--"], [*run, server.urls["tcp"], "--optimise", "sync", "--"]
    batch = [program(seed) for seed in range(900, 908)]
    for steps, one, other in zip(batch, answers(shm, batch), answers(tcp, batch), strict=True):
        if one != other:
            shortest, why = shrink(shm, tcp, steps, "", 20)
            pytest.fail(f"{why}\n{shortest}")


def read_after(prepare: str) -> set[int] | None:
    """Returns the values that a work of `free0` may read of a place that the default stream wrote
    before."""
    model, spot = Model(), ("D0", 0)
    copy = model.on("default", {spot: 7})
    match prepare:
        case "synchronous":
            model.done |= model.through(copy)
        case "event":
            model.on("free0", {}, copy)
    return model.may_see(model.on("free0", {}), spot)


@pytest.mark.smoke
def test_the_model_knows_what_orders_works() -> None:
    assert read_after("nothing") == {FIRST_VALUE, 7}
    assert read_after("synchronous") == {7}
    assert read_after("event") == {7}
    # The default stream and blocking streams wait for each other; later writes may be seen early
    # elsewhere.
    model, spot = Model(), ("D0", 0)
    model.on("blocking0", {spot: 5})
    middle = model.on("default", {})
    free = model.on("free0", {})
    model.on("blocking1", {spot: (spot, 2)})
    assert model.may_see(middle, spot) == {5}
    assert model.may_see(free, spot) == {FIRST_VALUE, 5, 7}

"""The levels of `--optimise`: equal results at each, and round trips for exactly the calls that a
level does not free."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from harness import EXAMPLES, OUTBOARD, TEST_PROGRAMS, Server, start_server, without_run
from test_bad_input import CASES, MISUSE
from test_calls import counts
from test_programs import PROGRAMS, SCRIPTS

# Calls that waited for the server, in a whole run of each program. The first column is all calls of the program after
# cuInit, so that it changes only with the program or the CUDA runtime in it; the others must not rise.
LEVELS = ["sync", "or", "or+sr", "or+sr+local"]
WAITED = """
    async_copies         153  143  137    6
    atomics_warp         160  149  142   11
    coalesced_groups     192  165  152   14
    constant_symbols     170  161  157   15
    cooperative          153  146  140    8
    copies_2d_3d         156  147  142   11
    cub_algorithms       326  281  258   38
    device_assert        139  137  135    5
    device_heap          149  141  136    5
    device_printf        141  139  138    6
    device_query         204  199  196   11
    driver_api           67   47   38   14
    dynamic_shared       191  174  164    9
    fork_child           144  139  136    8
    fp64_math            256  226  198   48
    graph_capture        289  187  175   37
    graph_conditional    408  327  318  130
    graph_memory         233  198  195   45
    graph_nodes          288  250  240   78
    graph_pageable       236  197  191  56
    graph_params         378  331  325  136
    half_precision       186  157  142   10
    histogram_atomics    142  138  135    6
    host_callbacks       277  165  155   23
    illegal_address      138  137  135    5
    library_kernels      150  145  142   10
    malloc_async         290  185  147    9
    managed_memory       248  214  211   47
    managed_variables    159  153  151   14
    matmul_tiled         160  144  134    6
    mipmaps_cubemaps     287  225  205   71
    nvrtc                593  586  582    8
    out_of_memory        149  143  136    6
    pinned_mapped        186  169  165   23
    reduce_shuffle       154  146  139    9
    scan                 194  165  143   14
    separate_compilation 145  140  137    7
    streams_events       281  169  151   14
    sync_copy_order      509  328  320  132
    tensor_cores         302  207  167   21
    textures             603  403  360  203
    two_threads          349  220  210   52
    vector_add           144  139  135    6
    virtual_memory       42   18   13    6
"""
WAITED_MAX = {
    name: dict(zip(LEVELS, map(int, waited), strict=True)) for name, *waited in map(str.split, WAITED.split("\n")[1:-1])
}

# Calls that a program may make before cuInit, which opens the session.
BEFORE_INIT = {"cuInit", "cuDriverGetVersion", "cuGetProcAddress_v2", "cuGetExportTable", "cuDeviceGetCount"}
# Without a context the client answers by itself at every level.
LOSES_CONTEXT = {"device_assert", "illegal_address"}
OVER_TCP = [
    "vector_add",
    "streams_events",
    "graph_capture",
    "host_callbacks",
    "malloc_async",
    "pinned_mapped",
    "two_threads",
]
BATCHES = ["batch=1", "batch=8", "batch=1024", "batch=8+sr+local"]
ENDS = [LEVELS[0], LEVELS[-1]]
BETWEEN = [*LEVELS[1:-1], *BATCHES]
# `LEVELS=all` runs everything at every level; another seed assigns the middle levels differently.
IS_WHOLE = os.environ.get("LEVELS") == "all"
SEED = int(os.environ.get("LEVELS_SEED", "1"))


def dealt(named: Iterable[str], ends: list[str], between: list[str]) -> list[tuple[str, str]]:
    """Returns each name with its levels: both ends, and one in between, assigned evenly by the
    seed."""
    names = list(named)
    if IS_WHOLE:
        return [(name, level) for name in names for level in [*ends, *between]]
    order = random.Random(SEED).sample(range(len(names)), len(names))
    one = {names[place]: between[turn % len(between)] for turn, place in enumerate(order)}
    return [(name, level) for name in names for level in [*ends, one[name]]]


def stats_of(server: Server, link: str, level: str, folder: Path, program: str) -> dict[str, dict[str, int]]:
    """Runs an example at a level; returns the counts of each of its calls by class."""
    stats = folder / "stats.json"
    done = server.run(link, EXAMPLES / program, env={"OUTBOARD_OPTIMISE": level, "OUTBOARD_STATS": str(stats)})
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{server.log.read_text()[-4000:]}"
    assert f"{program}: every result is right" in done.stdout
    by_call: dict[str, dict[str, int]] = json.loads(stats.read_text())["by_call"]
    return by_call


def check_counts(program: str, level: str, by_call: dict[str, dict[str, int]]) -> None:
    def total(kind: str) -> int:
        return sum(done[kind] for done in by_call.values())

    waited, waited_max = total("synchronous"), WAITED_MAX[program][level]
    assert waited <= waited_max, f"{program} at {level}: {waited} calls waited"
    if program in LOSES_CONTEXT:
        return
    if level == "sync":
        assert total("outstanding") == total("shadowed") == 0
        assert waited == waited_max, f"{program} makes {waited} calls after cuInit"
        assert {call for call, done in by_call.items() if done["local"]} <= BEFORE_INIT
    elif level == "or":
        assert total("shadowed") == 0
        assert total("outstanding") > 0
    elif level == "or+sr":
        assert total("shadowed") + total("outstanding") > 0
        for call in ["cuCtxGetCurrent", "cuCtxGetDevice", "cuDeviceGetAttribute", "cuDeviceGet", "cuCtxSetCurrent"]:
            assert by_call.get(call, {"local": 0})["local"] == 0, call


@pytest.mark.smoke
@pytest.mark.parametrize("level", [*LEVELS, "batch=8"])
def test_each_level_frees_its_calls(server: Server, link: str, tmp_path: Path, level: str) -> None:
    few, many = (counts(server, link, tmp_path, iterations, level) for iterations in (10, 20))
    waits = {
        call for call, done in many.items() if done["synchronous"] > few.get(call, {"synchronous": 0})["synchronous"]
    }
    every_call = {call for call, done in many.items() if sum(done.values()) > sum(few[call].values())}
    freed = {
        "cuLaunchKernel",
        "cuMemcpyHtoD_v2",
        "cuMemsetD8Async",
        "cuEventRecord",
        "cuStreamDestroy_v2",
        "cuMemFree_v2",
    }
    match level:
        case "sync":
            freed = set()
        case "or+sr":
            freed |= {"cuMemAlloc_v2", "cuStreamCreate"}
        case "or+sr+local":
            freed = every_call - {"cuMemcpyDtoH_v2", "cuCtxSynchronize"}
    assert waits == every_call - freed


@pytest.mark.smoke
def test_every_program_has_its_counts() -> None:
    assert sorted(WAITED_MAX) == PROGRAMS


@pytest.mark.smoke
def test_every_program_runs_at_both_ends_and_every_level_runs() -> None:
    runs = dealt(PROGRAMS, ENDS, BETWEEN)
    assert len(set(runs)) == len(runs)
    assert {level for _, level in runs} == {*ENDS, *BETWEEN}
    for program in PROGRAMS:
        levels = {level for name, level in runs if name == program}
        assert levels > set(ENDS) and (levels == {*ENDS, *BETWEEN} or not IS_WHOLE)


@pytest.mark.parametrize(("program", "level"), dealt(PROGRAMS, ENDS, BETWEEN))
def test_program_over_shm(server: Server, tmp_path: Path, program: str, level: str) -> None:
    by_call = stats_of(server, "shm", level, tmp_path, program)
    check_counts(program, re.sub("batch=[0-9]+", "or", level), by_call)


@pytest.mark.parametrize(("program", "level"), dealt(OVER_TCP, ENDS, LEVELS[1:-1]))
def test_program_over_tcp(server: Server, tmp_path: Path, program: str, level: str) -> None:
    check_counts(program, level, stats_of(server, "tcp", level, tmp_path, program))


@pytest.mark.parametrize(("program", "level"), dealt(OVER_TCP, [], BATCHES[1:]))
def test_program_in_batches_over_tcp(server: Server, tmp_path: Path, program: str, level: str) -> None:
    stats_of(server, "tcp", level, tmp_path, program)


@pytest.mark.parametrize("level", ["sync", "batch=8", "or"])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
def test_python_example(server: Server, script: Path, level: str) -> None:
    done = server.run("shm", sys.executable, script, env={"OUTBOARD_OPTIMISE": level})
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize(("case", "level"), dealt(CASES, ["sync"], ["batch=8", "or+sr"]))
def test_errors_keep_their_moment(server: Server, case: str, level: str) -> None:
    done = server.run("shm", sys.executable, MISUSE, case, env={"OUTBOARD_OPTIMISE": level})
    assert done.returncode == 0, done.stderr
    assert re.match(CASES[case], done.stdout, re.DOTALL), done.stdout + done.stderr


@pytest.mark.parametrize("level", [*LEVELS, "batch=1024+sr+local"])
def test_a_program_that_only_watches_memory_gets_on(server: Server, level: str) -> None:
    # Over tcp, memory that kernels wrote comes back only during a wait.
    done = server.run("shm", sys.executable, TEST_PROGRAMS / "polls_memory.py", env={"OUTBOARD_OPTIMISE": level})
    assert done.returncode == 0, done.stderr


def test_a_level_that_does_not_exist_is_refused(server: Server, tmp_path: Path) -> None:
    run = [str(OUTBOARD), "run", "--gpu", server.urls["shm"], "--optimise", "all", "--", "true"]
    refused = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert "or+sr+local" in refused.stderr
    # A program not started by `outboard run`.
    program = [sys.executable, TEST_PROGRAMS / "calls.py", "cuInit:0"]
    env = {**without_run(tmp_path), "OUTBOARD_GPU": server.urls["shm"], "OUTBOARD_OPTIMISE": "all"}
    done = subprocess.run(program, env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "46", "CUDA_ERROR_DEVICE_UNAVAILABLE"
    assert 'OUTBOARD_OPTIMISE: "all" is no level' in done.stderr


# Prints the rows of WAITED for the programs named, as measured now: python tests/test_levels.py
# vector_add
if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        started = start_server(Path(folder))
        for name in sys.argv[1:]:
            row = [
                sum(done["synchronous"] for done in stats_of(started, "shm", level, Path(folder), name).values())
                for level in LEVELS
            ]
            print(f"    {name:<20} {'  '.join(f'{waited:3}' for waited in row)}")
        started.stop()

"""Costs of calls: no round trip for a launch, an allocation or a local question."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import EXAMPLES, ROOT, TEST_PROGRAMS, Server

pytestmark = pytest.mark.smoke

PROGRAM = TEST_PROGRAMS / "steady_state.py"
DECLARATIONS = ROOT / "crates" / "api" / "src" / "driver.calls"


def counts(
    server: Server, link: str, folder: Path, iterations: int, level: str = "or+sr+local"
) -> dict[str, dict[str, int]]:
    """Returns how often each call of the program was local, outstanding, shadowed or synchronous."""
    stats = folder / f"{link}-{iterations}.json"
    env = {"OUTBOARD_STATS": str(stats), "OUTBOARD_OPTIMISE": level}
    done = server.run(link, sys.executable, PROGRAM, str(iterations), env=env)
    assert done.returncode == 0, done.stderr
    by_call: dict[str, dict[str, int]] = json.loads(stats.read_text())["by_call"]
    return by_call


def test_steady_state(server: Server, link: str, tmp_path: Path) -> None:
    few, many = counts(server, link, tmp_path, 10), counts(server, link, tmp_path, 30)

    def per_iteration(call: str, kind: str) -> float:
        return (many[call][kind] - few.get(call, {}).get(kind, 0)) / 20

    synchronous = {call: per_iteration(call, "synchronous") for call in many}
    # The two questions that only the GPU can answer, once per iteration each.
    assert {c: n for c, n in synchronous.items() if n > 0} == {"cuMemcpyDtoH_v2": 1, "cuCtxSynchronize": 1}
    # Sent without waiting.
    assert per_iteration("cuLaunchKernel", "outstanding") == 4
    assert per_iteration("cuMemcpyHtoD_v2", "outstanding") == 1
    assert per_iteration("cuMemsetD8Async", "outstanding") == 1
    assert per_iteration("cuEventRecord", "outstanding") == 1
    assert per_iteration("cuMemAlloc_v2", "shadowed") + per_iteration("cuMemAlloc_v2", "local") == 1
    assert per_iteration("cuStreamCreate", "shadowed") == 1
    # Never sent.
    for question in [
        "cuCtxGetCurrent",
        "cuCtxGetDevice",
        "cuFuncGetAttribute",
        "cuDeviceGetAttribute",
        "cuStreamIsCapturing",
        "cuPointerGetAttribute",
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        "cuMemGetInfo_v2",
    ]:
        assert per_iteration(question, "local") == 1, question


def test_first_launch(server: Server, link: str, tmp_path: Path) -> None:
    stats = tmp_path / "stats.json"
    done = server.run(link, EXAMPLES / "vector_add", env={"OUTBOARD_STATS": str(stats)})
    assert done.returncode == 0, done.stderr
    calls = json.loads(stats.read_text())["by_call"]
    # The kernel comes with its module, and with its limits: its first launch waits for nothing.
    assert calls["cuLaunchKernel"]["synchronous"] == 0
    assert calls["cuLaunchKernel"]["outstanding"] > 0
    assert calls["cuLibraryLoadData"]["synchronous"] == 1


def test_counts_go_to_files_alone(server: Server, link: str, tmp_path: Path) -> None:
    """A pipe that nobody reads would keep the program from ending."""
    pipe, stats = tmp_path / "pipe", tmp_path / "stats.json"
    os.mkfifo(pipe)
    done = server.run(link, EXAMPLES / "vector_add", env={"OUTBOARD_STATS": str(pipe)})
    assert done.returncode == 0 and f"OUTBOARD_STATS={pipe}: this is no file" in done.stderr, done.stderr
    # A longer text was there.
    stats.write_text("x" * (1 << 20))
    done = server.run(link, EXAMPLES / "vector_add", env={"OUTBOARD_STATS": str(stats)})
    assert done.returncode == 0 and "by_call" in json.loads(stats.read_text()), done.stderr


def test_limits_are_asked_once(server: Server, link: str, tmp_path: Path) -> None:
    """But for the stack, which a driver enlarges for a kernel: once between two launches."""
    stats, rounds = tmp_path / "stats.json", 20
    program = TEST_PROGRAMS / "asks_limits.py"
    done = server.run(link, sys.executable, program, str(rounds), env={"OUTBOARD_STATS": str(stats)})
    assert (done.stdout, done.returncode) == ("4096 True\n", 0), done.stderr
    asked = json.loads(stats.read_text())["by_call"]["cuCtxGetLimit"]
    # The heap before the rounds; the stack in each; both after the change. 3 questions a round, and 3 more.
    assert asked["synchronous"] == 1 + rounds + 2
    assert asked["local"] == 3 * rounds + 3 - asked["synchronous"]


def test_a_wait_for_copies_to_the_device_asks_nobody(server: Server, link: str, tmp_path: Path) -> None:
    stats, rounds = tmp_path / "stats.json", 50
    program = TEST_PROGRAMS / "waited_copies.py"
    done = server.run(link, sys.executable, program, str(rounds), env={"OUTBOARD_STATS": str(stats)})
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stderr
    calls = json.loads(stats.read_text())["by_call"]
    # Two copies a round are waited for, and the copy back has waited for itself.
    assert calls["cuStreamSynchronize"] == {"local": rounds, "outstanding": 2 * rounds, "shadowed": 0, "synchronous": 0}
    assert calls["cuMemcpyDtoHAsync_v2"]["synchronous"] == rounds


def test_memory_is_freed_after_the_work_before(server: Server, link: str, tmp_path: Path) -> None:
    stats = tmp_path / "stats.json"
    program = TEST_PROGRAMS / "frees_after_work.py"
    done = server.run(link, sys.executable, program, env={"OUTBOARD_STATS": str(stats)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "5 kinds of memory are freed after the work before\n"
    calls = json.loads(stats.read_text())["by_call"]["cuMemFree_v2"]
    # Those with nothing under way are not waited for.
    assert (calls["local"], calls["synchronous"]) == (10, 3), calls


@pytest.mark.parametrize("part", ["context", "none", "function"])
def test_memory_that_is_freed_under_a_copy_stays_until_it_has_come(server: Server, part: str) -> None:
    done = server.run("tcp", sys.executable, TEST_PROGRAMS / "frees_under_copies.py", part)
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stderr


def test_memory_that_threads_allocate_is_there_at_once(server: Server, link: str) -> None:
    done = server.run(link, sys.executable, TEST_PROGRAMS / "allocates_in_threads.py", "3")
    assert (done.stdout, done.returncode) == ("each piece has its own bytes\n", 0), done.stderr


def test_physical_memory_needs_no_context(server: Server, link: str) -> None:
    done = server.run(link, sys.executable, TEST_PROGRAMS / "memory_without_context.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "without a context: right\nafter its context was destroyed: right\n"


def test_null_streams_of_ptsz_calls_are_the_threads_own(server: Server, link: str) -> None:
    program = TEST_PROGRAMS / "per_thread.py"
    done = server.run(link, sys.executable, program, EXAMPLES / "kernels.ptx")
    assert (done.stdout, done.returncode) == ("2 1000\n", 0), done.stderr


def test_work_behind_a_host_function_is_bounded(server: Server, link: str, tmp_path: Path) -> None:
    """A driver's call would wait where its stream is full, and with it the session that must hear of the function's
    end. So the client waits before."""
    stats = tmp_path / "stats.json"
    program = TEST_PROGRAMS / "behind_host_function.py"
    done = server.run(link, sys.executable, program, env={"OUTBOARD_STATS": str(stats)})
    assert done.returncode == 0, done.stderr
    lines = ["kernels 3000 functions 1", "mixed 3300 functions 2", "graphs 3600 functions 302"]
    assert done.stdout.splitlines() == lines
    waited = {call: kinds["synchronous"] for call, kinds in json.loads(stats.read_text())["by_call"].items()}
    # 3,000 launches, 500 in a row; the function may have returned at the first wait.
    assert 1 <= waited["cuLaunchKernel"] <= 7, waited
    # 300 launches, 23 or 24 in a row.
    assert 12 <= waited["cuGraphLaunch"] <= 14, waited
    # 600 copies of four works, 124 or 125 in a row; off shm they are the program's own.
    assert link != "shm" or 4 <= waited["cuMemcpyAsync"] <= 5, waited


def test_a_launch_and_its_wait_are_one_segment_each_way(server: Server) -> None:
    """Over tcp, once the program has waited three times in a row after equally many messages."""
    done = server.run("tcp", sys.executable, TEST_PROGRAMS / "foreseen.py", "segments")
    assert (done.returncode, done.stdout) == (0, "1.0 1.0\n1.0 1.0\n2.0 1.0\n"), done.stdout + done.stderr


def test_a_foreseen_wait_that_does_not_come_is_harmless(server: Server, link: str) -> None:
    done = server.run(link, sys.executable, TEST_PROGRAMS / "foreseen.py", "misses")
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stdout + done.stderr


# Groups of `driver_answers.py`, asked from the first question on, up to one that ends the context (NEXT_PROCESS).
ANSWERS = ["contexts", "memory", "streams", "launches", "graphs", "captures", "another context", "none current"]
NEXT_PROCESS = 9


def test_calls_that_are_declared_local_send_nothing(server: Server, tmp_path: Path) -> None:
    """Launches that are held back are not sent before them: what they sent would overtake these."""
    declared = [line.split() for line in DECLARATIONS.read_text().splitlines() if " : local" in line]
    may_send = {name for name, *words in declared if {"may-ask", "queries"} & {word.strip(";") for word in words}}
    local = {name for name, *_ in declared} - may_send
    calls = TEST_PROGRAMS / "local_calls.py"
    programs: list[list[str | Path]] = [[sys.executable, calls], [EXAMPLES / "graph_nodes"], [EXAMPLES / "driver_api"]]
    programs += [[sys.executable, calls, group, "0"] for group in ANSWERS]
    made, sent = set[str](), dict[str, dict[str, int]]()
    for number, program in enumerate(programs):
        stats = tmp_path / f"{number}.json"
        env = {"OUTBOARD_STATS": str(stats), "OUTBOARD_OPTIMISE": "or+sr+local"}
        done = server.run("shm", *program, env=env)
        assert done.returncode in (0, NEXT_PROCESS) and stats.exists(), f"{program}: {done.stdout}\n{done.stderr}"
        by_call: dict[str, dict[str, int]] = json.loads(stats.read_text())["by_call"]
        made |= set(by_call)
        sent |= {name: kinds for name, kinds in by_call.items() if sum(kinds.values()) > kinds["local"]}
    assert {name: kinds for name, kinds in sent.items() if name in local} == {}
    assert local <= made


@pytest.mark.parametrize("level", ["or+sr+local", "sync"])
@pytest.mark.parametrize("what", ["told", "untold", "other", "foreign", "nowhere", "many"])
def test_failures_before_the_end_of_a_context_are_no_other_contexts(
    server: Server, link: str, what: str, level: str
) -> None:
    env = {"OUTBOARD_OPTIMISE": level}
    done = server.run(link, sys.executable, TEST_PROGRAMS / "faults.py", what, env=env)
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stderr


@pytest.mark.parametrize("level", ["or+sr+local", "sync"])
@pytest.mark.parametrize("what", ["apart", "frees", "function", "held", "keeps"])
def test_a_lost_context_keeps_no_other_from_going_on(server: Server, link: str, what: str, level: str) -> None:
    env = {"OUTBOARD_OPTIMISE": level}
    done = server.run(link, sys.executable, TEST_PROGRAMS / "faults.py", what, env=env)
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stderr


def test_what_fails_after_a_fault_fails_by_it(server: Server, link: str) -> None:
    done = server.run(link, sys.executable, TEST_PROGRAMS / "faults.py", "event")
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stderr


@pytest.mark.parametrize("what", ["use", "reset"])
def test_holders_of_a_primary_context_may_come_and_go_in_threads(
    server: Server, link: str, tmp_path: Path, what: str
) -> None:
    program = tmp_path / "primary_holders"
    flags = ["-O1", "-Wall", "-Werror", "-pthread"]
    subprocess.run(["cc", *flags, "-o", program, TEST_PROGRAMS / "primary_holders.c"], check=True)
    done = server.run(link, program, what, "100")
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stderr


@pytest.mark.parametrize("what", ["lost", "stored"])
def test_a_primary_context_is_made_again(server: Server, link: str, what: str) -> None:
    done = server.run(link, sys.executable, TEST_PROGRAMS / "primary_ends.py", what)
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stderr

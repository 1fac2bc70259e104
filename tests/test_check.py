"""`outboard serve --check` and `--seed`: mistakes are reported, correct programs are not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import EXAMPLES, TEST_PROGRAMS, Server, start_server
from test_levels import LOSES_CONTEXT
from test_programs import PROGRAMS

MISTAKES = TEST_PROGRAMS / "mistakes.py"

# Texts in the report of each program.
FOUND = {
    "neighbours": ["race: kernel `neighbours`", "of shared memory", "check.cu:4)", "check.cu:6)"],
    "lost_update": ["race: kernel `lost_update`", "block (0,0,0), thread (0,0,0)", "check.cu:21)"],
    "shared_hole": ["uninitialised memory: kernel `shared_hole`", "thread (56,0,0)", "check.cu:52)"],
    "unwritten": ["uninitialised memory: kernel `copy_ints`", "reads 4 bytes at"],
    "two_barriers": ["diverged barrier: kernel `two_barriers`", "thread (32,0,0)"],
}


@pytest.fixture(scope="module")
def watching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start_server(tmp_path_factory.mktemp("watching"), "--check", "all")
    yield server
    assert server.stop() == 0


@pytest.mark.parametrize("case", FOUND)
def test_mistakes_are_found(watching: Server, link: str, case: str) -> None:
    done = watching.run(link, sys.executable, MISTAKES, case)
    assert done.returncode == 0 and "CUDA_SUCCESS" in done.stdout, done.stderr
    reports = [line for line in done.stdout.splitlines() if line.startswith("========= ")]
    assert any(all(words in report for words in FOUND[case]) for report in reports), done.stdout
    assert all(words in watching.log.read_text() for words in FOUND[case])
    done = watching.run(link, sys.executable, MISTAKES, case, "correct")
    assert done.returncode == 0 and "CUDA_SUCCESS" in done.stdout, done.stderr
    assert "=========" not in done.stdout


@pytest.mark.parametrize("case", ["beyond", "after_free"])
def test_accesses_beside_allocations_are_faults(watching: Server, link: str, case: str) -> None:
    done = watching.run(link, sys.executable, MISTAKES, case)
    assert "========= fault: kernel `copy_ints`, block (0,0,0)" in done.stdout, done.stderr
    assert done.stdout.endswith("CUDA_ERROR_ILLEGAL_ADDRESS\n"), done.stdout
    done = watching.run(link, sys.executable, MISTAKES, case, "correct")
    assert done.stdout == "CUDA_SUCCESS\n", done.stderr


def test_a_launch_with_findings_can_fail(tmp_path: Path) -> None:
    server = start_server(tmp_path, "--check", "race", "--check-fail")
    done = server.run("shm", sys.executable, MISTAKES, "neighbours")
    assert "========= race: kernel `neighbours`" in done.stdout, done.stderr
    assert done.stdout.endswith("CUDA_ERROR_LAUNCH_FAILED\n"), done.stdout
    log = server.log.read_text()
    assert "race: kernel `neighbours`" in log and "found by --check" in log
    assert server.stop() == 0


@pytest.mark.parametrize("program", PROGRAMS)
def test_correct_programs_give_no_report(watching: Server, program: str) -> None:
    done = watching.run("shm", EXAMPLES / program)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{watching.log.read_text()[-4000:]}"
    kinds = [line.split(":")[0] for line in done.stdout.splitlines() if line.startswith("=========")]
    assert kinds == (["========= fault"] if program in LOSES_CONTEXT else [])


def test_a_seed_decides_what_a_race_does(tmp_path: Path) -> None:
    outcomes = []
    for seed in range(4):
        folder = tmp_path / str(seed)
        folder.mkdir()
        server = start_server(folder, "--seed", str(seed))
        runs = {server.run("shm", sys.executable, MISTAKES, "lost_update").stdout for _ in range(3)}
        assert len(runs) == 1, runs
        outcomes.append(runs.pop())
        assert server.stop() == 0
    assert len(set(outcomes)) > 1, outcomes

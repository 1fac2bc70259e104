"""OUTBOARD_STATS_TIMES: durations of calls, and their parts sending and waiting."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import EXAMPLES, TEST_PROGRAMS, Server

pytestmark = pytest.mark.smoke

KINDS = {"local", "outstanding", "shadowed", "synchronous"}


def stats(server: Server, link: str, path: Path, *command: str | Path, **env: str) -> dict[str, Any]:
    done = server.run(link, *command, env={"OUTBOARD_STATS": str(path), **env})
    assert done.returncode == 0, done.stderr
    return dict(json.loads(path.read_text()))


def test_times_of_a_program(server: Server, link: str, tmp_path: Path) -> None:
    counted = stats(server, link, tmp_path / "stats", EXAMPLES / "streams_events", OUTBOARD_STATS_TIMES="1")
    times = counted["times"]
    assert 0 < times["clock_ns"] < 10_000
    waits = 0
    for name, kinds in times["by_call"].items():
        for kind, spent in kinds.items():
            assert kind in KINDS
            # The call that opened the session was not timed, because there was no session yet.
            assert counted["by_call"][name][kind] - 1 <= spent["calls"] <= counted["by_call"][name][kind]
            assert spent["send_ns"] + spent["wait_ns"] <= spent["whole_ns"]
            assert (spent["sends"] > 0) >= (spent["send_ns"] > 0)
            if kind == "local":
                assert spent["sends"] == spent["waits"] == 0
            if kind == "synchronous":
                assert spent["waits"] >= spent["calls"] and spent["wait_ns"] > 0
            else:
                assert spent["waits"] == 0
            waits += spent["waits"]
    assert waits > 0 and times["by_call"]["cuLaunchKernel"]["outstanding"]["sends"] > 0


def test_no_times_unless_asked_for(server: Server, link: str, tmp_path: Path) -> None:
    for env in ({}, {"OUTBOARD_STATS_TIMES": "0"}, {"OUTBOARD_STATS_TIMES": ""}):
        assert "times" not in stats(server, link, tmp_path / "stats", EXAMPLES / "vector_add", **env)


def test_only_what_lies_between_profiler_start_and_stop(server: Server, link: str, tmp_path: Path) -> None:
    program = TEST_PROGRAMS / "profiled_region.py"
    counted = stats(server, link, tmp_path / "stats", sys.executable, program, OUTBOARD_STATS_TIMES="1")
    assert counted["by_call"]["cuEventRecord"]["outstanding"] == 12
    assert counted["times"]["by_call"]["cuEventRecord"]["outstanding"]["calls"] == 5
    assert "cuCtxSynchronize" not in counted["times"]["by_call"]


def test_at_the_lowest_level_everything_waits(server: Server, link: str, tmp_path: Path) -> None:
    env = {"OUTBOARD_STATS_TIMES": "1", "OUTBOARD_OPTIMISE": "sync"}
    counted = stats(server, link, tmp_path / "stats", EXAMPLES / "vector_add", **env)
    launches = counted["times"]["by_call"]["cuLaunchKernel"]
    assert set(launches) == {"synchronous"} and launches["synchronous"]["waits"] >= launches["synchronous"]["calls"]

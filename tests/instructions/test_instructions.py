"""Counts the instructions of the client library that a call costs: the same on any machine, however busy.

The expected numbers are read from SPECIFICATION.md. `make instructions` builds the library and runs this test.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from harness import ROOT, Server

SOURCE = Path(__file__).with_name("hot_paths.c")
LIBRARY = Path(os.environ.get("OUTBOARD_CLIENT", ROOT / "target" / "release" / "liboutboard_client.so"))
RECORDER = LIBRARY.with_name("liboutboard_recorder.so")
SPECIFICATION = ROOT / "SPECIFICATION.md"
RUN_S_MAX = 120
# As in hot_paths.c.
TIMES = 200
# As in hot_paths.c, and their rows in the specification.
HISTORIES = {
    "pinned": "pinned",
    "registered": "registered",
    "managed": "managed, freed since",
    "freed": "pinned, freed since",
    "forked": "pinned, and the process has forked",
}


def promised() -> dict[str, dict[str, int]]:
    """The table of the specification: call, then instructions over shm and over tcp."""
    row = re.compile(r"^\| `(cu\w+)` \| ([\d,]+) \| ([\d,]+) \|$", re.MULTILINE)
    found = row.findall(SPECIFICATION.read_text())
    return {call: {"shm": int(shm.replace(",", "")), "tcp": int(tcp.replace(",", ""))} for call, shm, tcp in found}


def calls_from(profile: Path, caller: str) -> dict[str, tuple[int, int]]:
    """Returns how often `caller` called each function, and the instructions spent there, from a
    profile in callgrind's format."""
    names: dict[str, str] = {}
    spent: dict[str, tuple[int, int]] = {}
    function = called = ""
    calls = 0

    def name(text: str) -> str:
        match = re.match(r"(\(\d+\))(?: (.+))?$", text)
        if not match:
            return text
        if match[2]:
            names[match[1]] = match[2]
        return names[match[1]]

    for line in profile.read_text().splitlines():
        key, _, value = line.partition("=")
        if key == "fn":
            function = name(value)
        elif key == "cfn":
            called = name(value)
        elif key == "calls":
            calls = int(value.split()[0])
        elif calls:
            # The line after "calls=" has the call's position, and its inclusive cost.
            if function == caller:
                so_far = spent.get(called, (0, 0))
                spent[called] = (so_far[0] + calls, so_far[1] + int(line.split()[1]))
            calls = 0
    return spent


@pytest.fixture(scope="module")
def hot_paths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("instructions") / "hot_paths"
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-O2", "-g", "-Wall", "-Wextra", "-o", program, SOURCE, "-ldl"], check=True)
    return program


def on_two_cores() -> None:
    """With more, a thread of the library may send for the program's, and how often it does is chance."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])


def costs_of(library: Path, hot_paths: Path, profile: Path, history: str = "", **env: str) -> dict[str, float]:
    """Instructions of each call, run with the library as the driver, after a history."""
    assert shutil.which("valgrind"), "valgrind is not installed: apt-get install valgrind"
    assert library.exists(), f"{library} is not built: make instructions"
    callgrind = ["valgrind", "--tool=callgrind", "--collect-atstart=no", "--toggle-collect=measured"]
    command = [*callgrind, f"--callgrind-out-file={profile}", str(hot_paths), str(library)]
    command += [history] if history else []
    environment = {**os.environ, **env}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=RUN_S_MAX, preexec_fn=on_two_cores
    )
    assert done.returncode == 0 and done.stdout == "done\n", done.stdout + done.stderr
    measured = calls_from(profile, "measure")
    for call in promised():
        # Calls are counted before counting is on, too.
        assert measured[call][0] >= TIMES, f"{call} was called {measured[call][0]} times"
    return {call: measured[call][1] / TIMES for call in promised()}


def test_instructions(server: Server, link: str, hot_paths: Path, tmp_path: Path) -> None:
    costs = costs_of(LIBRARY, hot_paths, tmp_path / "profile", OUTBOARD_GPU=server.urls[link])
    limits = promised()
    print(f"\n{link}: " + ", ".join(f"{call} {cost:.0f}" for call, cost in costs.items()))
    over = {call: round(cost) for call, cost in costs.items() if cost > limits[call][link]}
    assert not over, f"more instructions over {link} than SPECIFICATION.md promises: {over}"


@pytest.mark.parametrize("history", HISTORIES)
def test_instructions_after_memory_that_kernels_were_given(
    server: Server, hot_paths: Path, tmp_path: Path, history: str
) -> None:
    """Over tcp, where each of these was a mirror."""
    row = re.search(rf"^\| {HISTORIES[history]} \| ([\d,]+) \| ([\d,]+) \|$", SPECIFICATION.read_text(), re.MULTILINE)
    assert row
    launch, copy = (int(number.replace(",", "")) for number in row.groups())
    costs = costs_of(LIBRARY, hot_paths, tmp_path / "profile", history, OUTBOARD_GPU=server.urls["tcp"])
    print(f"\nafter {history}: launch {costs['cuLaunchKernel']:.0f}, copy {costs['cuMemcpyHtoDAsync_v2']:.0f}")
    assert costs["cuLaunchKernel"] <= launch
    assert costs["cuMemcpyHtoDAsync_v2"] <= copy


def test_instructions_of_recording(server: Server, hot_paths: Path, tmp_path: Path) -> None:
    row = re.search(r"at most ([\d,]+) instructions more behind a server, ([\d,]+) locally", SPECIFICATION.read_text())
    assert row
    profile, file = tmp_path / "profile", tmp_path / "a.trace"
    env = {"OUTBOARD_GPU": server.urls["shm"], "OUTBOARD_DRIVER": str(LIBRARY), "OUTBOARD_CUPTI": "none"}
    plain = costs_of(LIBRARY, hot_paths, profile, **env)
    there = costs_of(LIBRARY, hot_paths, profile, OUTBOARD_RECORD=str(file), **env)
    assert file.stat().st_size > 0
    file.unlink()
    # The recorder's driver is the client library, whose own instructions are the plain ones.
    here = costs_of(RECORDER, hot_paths, profile, OUTBOARD_RECORD_LOCAL=str(file), **env)
    assert file.stat().st_size > 0
    for name, recorded, limit in (("behind a server", there, row[1]), ("locally", here, row[2])):
        more = {call: round(recorded[call] - plain[call]) for call in plain}
        print(f"\nrecorded {name}: {more}")
        over = {call: cost for call, cost in more.items() if cost > int(limit.replace(",", ""))}
        assert not over, f"recording {name} costs more instructions than SPECIFICATION.md promises: {over}"
        assert min(more.values()) > 50, "nothing was recorded"

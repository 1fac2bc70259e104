"""What a call costs the program, in instructions of the client library: the same on any machine, however busy.

The numbers are those of SPECIFICATION.md, which this reads. `make instructions` builds the library and runs it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import ROOT, Server

SOURCE = Path(__file__).with_name("hot_paths.c")
LIBRARY = Path(os.environ.get("OUTBOARD_CLIENT", ROOT / "target" / "release" / "liboutboard_client.so"))
RUN_S_MAX = 120
# As in hot_paths.c.
TIMES = 200


def promised() -> dict[str, dict[str, int]]:
    """The table of the specification: call, then instructions over shm and over tcp."""
    row = re.compile(r"^\| `(cu\w+)` \| ([\d,]+) \| ([\d,]+) \|$", re.MULTILINE)
    found = row.findall((ROOT / "SPECIFICATION.md").read_text())
    return {call: {"shm": int(shm.replace(",", "")), "tcp": int(tcp.replace(",", ""))} for call, shm, tcp in found}


def calls_from(profile: Path, caller: str) -> dict[str, tuple[int, int]]:
    """How often `caller` called what, and the instructions spent there, from a profile in callgrind's format."""
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
            # The line behind "calls=": where the call stands, and its inclusive cost.
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


def test_instructions(server: Server, link: str, hot_paths: Path, tmp_path: Path) -> None:
    assert shutil.which("valgrind"), "valgrind is not installed: apt-get install valgrind"
    assert LIBRARY.exists(), f"{LIBRARY} is not built: make instructions"
    profile = tmp_path / "profile"
    callgrind = ["valgrind", "--tool=callgrind", "--collect-atstart=no", "--toggle-collect=measured"]
    command = [*callgrind, f"--callgrind-out-file={profile}", str(hot_paths), str(LIBRARY)]
    env = {**os.environ, "OUTBOARD_GPU": server.urls[link]}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=RUN_S_MAX, preexec_fn=on_two_cores)
    assert done.returncode == 0 and done.stdout == "done\n", done.stdout + done.stderr
    measured = calls_from(profile, "measure")
    limits = promised()
    assert len(limits) > 10
    for call in limits:
        # Calls are counted before counting is on, too.
        assert measured[call][0] >= TIMES, f"{call} was called {measured[call][0]} times"
    costs = {call: measured[call][1] / TIMES for call in limits}
    print(f"\n{link}: " + ", ".join(f"{call} {cost:.0f}" for call, cost in costs.items()))
    over = {call: round(cost) for call, cost in costs.items() if cost > limits[call][link]}
    assert not over, f"more instructions over {link} than SPECIFICATION.md promises: {over}"

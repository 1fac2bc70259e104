"""Questions with wrong, freed or missing arguments are answered as a GPU's driver answered them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from harness import ROOT, TEST_PROGRAMS, Server

pytestmark = pytest.mark.smoke

PROGRAM = TEST_PROGRAMS / "driver_answers.py"
RECORDED = json.loads(PROGRAM.with_suffix(".json").read_text())
ANSWERS: dict[str, str] = RECORDED["answers"]
DIFFERS: dict[str, dict[str, str]] = RECORDED["differs"]
# The driver reads through a wrong pointer.
CRASH = "crash"


def test_answers_are_a_drivers(server: Server, link: str, tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    done = server.run(link, sys.executable, PROGRAM, env={"ANSWERS_JSON": str(path)})
    assert done.returncode == 0, done.stderr
    answers: dict[str, str] = json.loads(path.read_text())["answers"]
    wanted = {
        name: DIFFERS[name]["outboard"] if name in DIFFERS else answer
        for name, answer in ANSWERS.items()
        if answer != CRASH
    }
    assert {name: answers.get(name) for name in wanted} == wanted
    # The program must go on, even where the driver crashes.
    assert not {name for name, answer in answers.items() if answer in (CRASH, "hangs") or name.endswith(".end")}


def test_the_specification_counts_them() -> None:
    counts = sum(answer != CRASH for answer in ANSWERS.values()), len(DIFFERS)
    said = re.search(r"\| (\d+) questions, (\d+) differences:", (ROOT / "SPECIFICATION.md").read_text())
    assert said and tuple(map(int, said.groups())) == counts


def test_differences_are_differences_and_have_reasons() -> None:
    assert len(ANSWERS) > 120
    for name, differs in DIFFERS.items():
        assert ANSWERS[name] not in (CRASH, differs["outboard"]), name
        assert differs["why"], name

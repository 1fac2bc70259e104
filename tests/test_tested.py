"""tools/tested.py counts what could not run and what ran again; what fails twice has failed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import tested

pytestmark = pytest.mark.smoke

# A test that fails in its first `failures` runs.
TEST = """
import pathlib, pytest
def count(name):
    file = pathlib.Path(__file__).with_name(name)
    file.write_text(file.read_text() + "x" if file.exists() else "x")
    return len(file.read_text())
{tests}
def test_that_passes():
    pass
def test_that_cannot_run():
    pytest.skip("no such device")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tested, "FOLDER", tmp_path / "tested")
    monkeypatch.setattr(tested, "ROOT", tmp_path)
    return tmp_path


def run(folder: Path, failures: dict[str, int], *options: str) -> tuple[int, tested.Counts]:
    """Runs a file of tests of which these fail so often at first."""
    tests = "".join(f"def test_{name}():\n    assert count({name!r}) > {fails}\n" for name, fails in failures.items())
    file = folder / "test_file.py"
    file.write_text(TEST.format(tests=tests))
    counts = tested.Counts()
    arguments = ["--rootdir", str(folder), "-c", "/dev/null", "-o", f"cache_dir={folder}/cache", *options, str(file)]
    return tested.run_pytest("part", arguments, True, counts), counts


def test_nothing_failed(folder: Path) -> None:
    status, counts = run(folder, {})
    assert (status, counts.passed, counts.again) == (0, 1, [])
    assert counts.not_run == [("test_file::test_that_cannot_run", "no such device")]


@pytest.mark.parametrize("options", [(), ("-n", "2", "--dist", "loadfile")])
def test_one_failure_runs_again_and_is_said(folder: Path, options: tuple[str, ...]) -> None:
    status, counts = run(folder, {"shaky": 1}, *options)
    assert (status, counts.passed, counts.again) == (0, 2, ["test_file::test_shaky"])
    lines = tested.summary({"part": counts})
    assert "WARNING: part: passed only when run again: test_file::test_shaky" in lines
    assert lines[-1] == "2 passed, 1 not run, 1 run again, 0 ignored with their reason"


@pytest.mark.parametrize("failures", [{"shaky": 2}, {"shaky": 1, "other": 2}, {"shaky": 1, "other": 1, "third": 1}])
def test_a_second_failure_is_one(folder: Path, failures: dict[str, int]) -> None:
    status, _ = run(folder, failures)
    assert status == 1


# A `cargo` whose first run fails as cargo test does, and whose second is what `again` says.
CARGO = """#!/bin/sh
echo "$*" >>{folder}/runs
case "$*" in
*--exact*) echo '{again}' ;;
*) echo '---- slow::crowd stdout ----'
   echo 'test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s'
   echo 'error: 1 target failed:'
   echo '    `-p outboard-link --test vanish`'
   exit 101 ;;
esac
"""
PASSED = "test result: ok. {passed} passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; finished in 1.00s"


@pytest.mark.parametrize("passed", [1, 0])
def test_a_failure_of_cargo_runs_again_by_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch, passed: int) -> None:
    cargo = folder / "cargo"
    cargo.write_text(CARGO.format(folder=folder, again=PASSED.format(passed=passed)))
    cargo.chmod(0o755)
    monkeypatch.setenv("CARGO", str(cargo))
    counts = tested.Counts()
    status = tested.run_cargo("unit", ["--workspace"], True, counts)
    assert (folder / "runs").read_text().splitlines() == [
        "test --no-fail-fast --workspace",
        "test --quiet -p outboard-link --test vanish -- --exact slow::crowd",
    ]
    if passed:
        assert (status, counts.passed, counts.again) == (0, 4, ["slow::crowd"])
    else:
        # A name that the second run did not find is not a pass.
        assert status != 0 and counts.again == []


def test_lines_of_cargo(folder: Path) -> None:
    script = "printf '..NOT RUN: rdma::links: no device: none\\n'; "
    script += "echo 'test result: ok. 7 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 1.00s'"
    counts = tested.Counts()
    assert tested.run_command(["sh", "-c", script], counts) == 0
    assert (counts.passed, counts.ignored, counts.not_run) == (7, 2, [("rdma::links", "no device: none")])
    assert tested.summary({"unit": counts})[0] == "WARNING: unit: NOT RUN, 1 tests: no device: none"
    assert tested.run_command(["sh", "-c", "exit 3"], counts) == 3


def test_a_command_keeps_its_own_separator(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(tested, "run_command", lambda command, counts: ran.append(command) or 0)
    monkeypatch.setattr(sys, "argv", ["tested.py", "command", "lint", "--", "cargo", "clippy", "--", "-D", "warnings"])
    assert tested.main() == 0
    assert ran == [["cargo", "clippy", "--", "-D", "warnings"]]
    assert tested.load("lint") == tested.Counts()


def test_a_full_disk_is_said_before_anything_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = {tmp_path: 4_000 << 20, Path("/tmp"): 900 << 20}
    monkeypatch.setattr(tested.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free[folder]))
    fresh = tested.lacking_room(tmp_path, [Path("/tmp")])
    assert [line.split(": ")[1] for line in fresh] == [
        f"4000 MiB free at {tmp_path}, 8000 MiB needed",
        "900 MiB free at /tmp, 1000 MiB needed",
    ]
    built = tmp_path / "target" / "debug" / "outboard"
    built.parent.mkdir(parents=True)
    built.touch()
    assert tested.lacking_room(tmp_path, []) == []

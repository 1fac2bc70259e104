"""gpu-check/net.py with programs that only print: what is right, wrong, hung, crashed, and builds in turns."""

import json
import sys
from pathlib import Path

import pytest

import net

PRINTS = "#!/bin/sh\n{}\n"


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Runs the check on folders of fake programs: what each is called, and its lines of shell."""
    monkeypatch.setattr(net.machine, "has_gpu", lambda: True)
    monkeypatch.setattr(net, "CASES", {"soak": ["1 SEED"], "two_kernels": ["7"]})

    def run(builds: dict[str, dict[str, str]], *arguments: str) -> tuple[int, list[dict]]:
        names = []
        for build, programs in builds.items():
            (tmp_path / build).mkdir()
            names.append(f"{build}={tmp_path / build}")
            for program, lines in programs.items():
                path: Path = tmp_path / build / program
                path.write_text(PRINTS.format(lines))
                path.chmod(0o755)
        out = tmp_path / "net.json"
        monkeypatch.setattr(sys, "argv", ["net.py", "run", *names, "--out", str(out), *arguments])
        status = net.main()
        return status, json.loads(out.read_text())["outcomes"] if out.exists() else []

    return run


RIGHT = {"soak": 'echo "seed $2: right"', "two_kernels": 'echo "$3 of $3 rounds are right"'}


def test_builds_take_turns_and_all_are_right(check):
    status, outcomes = check({"old": RIGHT, "new": RIGHT}, "--rounds", "2")
    assert status == 0 and all(outcome["is_right"] for outcome in outcomes)
    order = [(outcome["build"], outcome["program"], outcome["case"]) for outcome in outcomes]
    assert order[:4] == [
        ("old", "soak", "1 1"),
        ("new", "soak", "1 1"),
        ("old", "two_kernels", "7"),
        ("new", "two_kernels", "7"),
    ]
    assert order[4] == ("old", "soak", "1 2")


@pytest.mark.parametrize(
    ("soak", "said"),
    [
        ("echo '3 lost: WRONG'", "3 lost: WRONG"),
        ("echo ': right'; exit 1", ": right"),
        ("exit 0", None),
        ("kill -SEGV $$", "SIGSEGV"),
        ("exec sleep 600", "no end within 1 s"),
    ],
)
def test_what_is_not_right_fails(check, soak, said):
    status, outcomes = check({"new": {"soak": soak}}, "--rounds", "1", "--timeout-s", "1")
    assert status == net.EXIT_FAILED and [outcome["is_right"] for outcome in outcomes] == [False]
    assert outcomes[0]["said"][-1:] == ([said] if said else [])


def test_one_of_two_processes_that_is_wrong_fails(check):
    one_is_wrong = {
        "two_kernels": '[ "$1" = listen ] && echo "7 of 7 rounds are right" || echo "6 of 7 rounds are right"'
    }
    status, outcomes = check({"new": one_is_wrong}, "--rounds", "1")
    assert status == net.EXIT_FAILED and not outcomes[0]["is_right"]


def test_without_programs_or_a_gpu(check, monkeypatch):
    assert check({"new": {}})[0] == net.EXIT_FAILED
    monkeypatch.setattr(net.machine, "has_gpu", lambda: False)
    assert check({"other": RIGHT})[0] == net.EXIT_NOT_RUN


def test_times_of_a_build_that_does_not_know_a_case_are_left_out(check, tmp_path, monkeypatch):
    """Its program says so by the status for wrong arguments; any other failure counts."""
    monkeypatch.setattr(net, "TIMED", ["1", "2"])
    line = """echo '{"us_each": 2, "right": true}'"""
    programs = {"old": f'[ "$1" = 1 ] && {line} || exit 2', "new": line, "wrong": "exit 1"}
    for name, lines in programs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "bench").write_text(PRINTS.format(lines))
        (tmp_path / name / "bench").chmod(0o755)
    monkeypatch.setattr(net.machine, "has_gpu", lambda: True)
    out = tmp_path / "times.json"
    builds = [f"{name}={tmp_path / name}" for name in programs]
    for folders, status in ((builds[:2], 0), (builds, net.EXIT_FAILED)):
        monkeypatch.setattr(sys, "argv", ["net.py", "bench", *folders, "--out", str(out), "--rounds", "1"])
        assert net.main() == status
    results = json.loads(out.read_text())
    assert [(row["build"], row["case"], row["us_each"]) for row in results["rows"]] == [
        ("old", "1", 2),
        ("new", "1", 2),
        ("new", "2", 2),
    ]
    assert results["failed"] == 2

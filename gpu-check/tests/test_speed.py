"""The interleaved measurement, with a fake outboard program and fake workloads."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from test_parts import literal_keys
from test_run import FAKES, assert_nothing_runs

import paper_cases
import speed
import turns
from speed_cases import CASES, select
from suite import ROOT, Group
from turns import Case, Outcome

OUTBOARD = Path(os.environ.get("OUTBOARD", ROOT / "target" / "debug" / "outboard"))
GROUP = Group("fake", (), directory=FAKES)


def case(step, **options):
    return Case(step, f"the {step} case", "fake_steps", step, group="fake", **options)


def measure(tmp_path, *cases, modes="local,shm,tcp", extra=(), group=GROUP):
    out = tmp_path / "speed.json"
    arguments = ["--outboard", str(FAKES / "outboard"), "--out", str(out), "--modes", modes, "--device", "soft"]
    arguments += ["--log-dir", str(tmp_path / "logs"), "--rounds", "3", "--turn-s", "0.05", "--budget-s", "60", *extra]
    if not any(word == "--only" for word in extra):
        arguments += ["--only", ",".join(c.name for c in cases)]
    status = speed.main(arguments, cases, group, "fake_steps")
    return status, json.loads(out.read_text())


def test_modes_take_turns_and_are_compared(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FAKE_JOURNAL", str(tmp_path / "journal"))
    status, results = measure(tmp_path, case("sleeps", samples=2, targets={"shm": 1.0, "tcp": 9.0}))
    assert status == 0 and results["complete"] and results["errors"] == []
    modes = results["cases"]["sleeps"]["modes"]
    assert list(modes) == ["local", "shm", "tcp"]
    assert all(len(entry["rounds_ms"]) == 3 and entry["samples"] == 6 for entry in modes.values())
    # Remote steps take 6 ms, local ones 2 ms, by the clock of the fake.
    assert modes["local"]["median_ms"] == 2 and "ratio_to_local" not in modes["local"]
    assert modes["shm"]["ratio_to_local"] == 3
    printed = capsys.readouterr().out
    assert " > 1)" in printed and "; 9)" in printed
    # The first mode changes with each round.
    turns_taken = [line for line in (tmp_path / "journal").read_text().split() if line]
    order = [turns_taken[0]]
    for mode in turns_taken[1:]:
        if mode != order[-1]:
            order.append(mode)
    assert order[-8:] == ["shm", "tcp", "shm", "tcp", "local", "tcp", "local", "shm"]
    assert_nothing_runs()


def test_levels_are_modes_of_their_own(tmp_path):
    status, results = measure(tmp_path, case("level"), modes="local,shm:sync,shm:batch=4")
    assert status == 0
    modes = results["cases"]["level"]["modes"]
    assert [modes[name]["median_ms"] for name in ("local", "shm:sync", "shm:batch=4")] == [4, 4, 8]


@pytest.mark.parametrize("fault", ["hangs", "crashes", "raises"])
def test_a_fault_loses_one_mode_of_one_case(tmp_path, monkeypatch, fault):
    monkeypatch.setattr(turns, "TURN_EXTRA_S_MAX", 2.0)
    monkeypatch.setattr(turns, "PREPARE_S_MAX", 3.0)
    started = time.monotonic()
    status, results = measure(tmp_path, case(fault), case("sleeps"), modes="local,tcp")
    assert status == 1 and time.monotonic() - started < 40
    modes = results["cases"][fault]["modes"]
    assert modes["local"]["status"] == "ok" and modes["tcp"]["status"] == "error"
    expected = {"hangs": "no answer in time", "crashes": "SIGSEGV", "raises": "two and two"}[fault]
    assert expected in modes["tcp"]["error"]
    assert all(entry["status"] == "ok" for entry in results["cases"]["sleeps"]["modes"].values())
    assert_nothing_runs()


def test_what_cannot_be_prepared_is_an_error_and_what_is_not_installed_is_skipped(tmp_path):
    missing = Case("missing", "m", "imports_nothing_that_exists", "m", group="fake")
    status, results = measure(tmp_path, case("sleeps"), missing, modes="local,shm")
    assert status == 0
    entry = results["cases"]["missing"]["modes"]["shm"]
    assert entry["status"] == "skip" and "imports_nothing_that_exists" in entry["error"]
    status, results = measure(tmp_path, case("cannot_be_made"), modes="local,shm")
    assert status == 1 and "no such model" in results["cases"]["cannot_be_made"]["modes"]["local"]["error"]


def test_mode_that_does_not_start_is_not_tried_again(tmp_path, monkeypatch):
    group = replace(GROUP, environment={"FAKE_NO_DEVICE": "1"})
    status, results = measure(tmp_path, case("sleeps"), case("level"), modes="local,shm", group=group)
    assert status == 1
    for name in ("sleeps", "level"):
        modes = results["cases"][name]["modes"]
        assert modes["local"]["status"] == "ok" and "no CUDA-capable device" in modes["shm"]["error"]


def test_budget(tmp_path):
    status, results = measure(tmp_path, case("sleeps"), extra=["--budget-s", "1"], modes="local")
    assert status == 1 and not results["complete"]
    assert "used up before sleeps" in results["errors"][0]
    # Rounds end with the time, not with their number.
    started = time.monotonic()
    extra = ["--budget-s", "14", "--rounds", "100000"]
    status, results = measure(tmp_path, case("sleeps"), case("level"), extra=extra, modes="local,shm")
    assert status == 0 and time.monotonic() - started < 20
    assert len(results["cases"]["level"]["modes"]["shm"]["rounds_ms"]) > 3


def test_startup(tmp_path):
    status, results = measure(tmp_path, extra=["--only", "startup"], modes="local,shm")
    assert status == 0
    startup = results["startup"]
    assert len(startup["local"]["rounds_s"]) == speed.STARTUP_ROUNDS
    assert 0 < startup["local"]["import_to_first_result_s"] <= startup["local"]["whole_s"]
    # The fake's first result takes 2 s more remotely, by its own clock; its import is timed too.
    assert 1 < startup["shm"]["over_local_s"] < 3


@pytest.mark.parametrize("fault", ["silent", "exits"])
def test_server_that_does_not_start(tmp_path, monkeypatch, fault):
    monkeypatch.setenv("FAKE_SERVER", fault)
    monkeypatch.setattr(speed, "SERVER_START_S", 2.0)
    status, results = measure(tmp_path, case("sleeps"))
    assert status == 1 and "not ready" in results["errors"][0]


@pytest.mark.skipif(not OUTBOARD.is_file(), reason="outboard has not been built")
def test_the_real_program_at_two_levels(tmp_path):
    """On the software device: levels reach the program, and every mode of every case is measured."""
    cases = [Case(step, step, "driver_steps", step, calls=20, group="real") for step in ("fill_and_read", "ask")]
    out, stats = tmp_path / "speed.json", tmp_path / "stats"
    stats.mkdir()
    arguments = ["--outboard", str(OUTBOARD), "--out", str(out), "--modes", "shm,tcp,shm:sync", "--device", "soft"]
    arguments += ["--log-dir", str(tmp_path / "logs"), "--rounds", "3", "--turn-s", "0.05", "--budget-s", "60"]
    group = replace(GROUP, environment={"FAKE_STATS": str(stats)})
    status = speed.main(arguments, tuple(cases), group, "driver_steps")
    results = json.loads(out.read_text())
    assert status == 0, results
    for entry in results["cases"].values():
        assert list(entry["modes"]) == ["shm", "tcp", "shm:sync"]
        assert all(mode["status"] == "ok" and mode["median_ms"] > 0 for mode in entry["modes"].values())
    assert results["startup"]["tcp"]["whole_s"] > 0
    # A call that is answered here at the best level waits for an answer at the other.
    counted = {level: [0, 0] for level in ("best", "sync")}
    for file in stats.iterdir():
        ask = json.loads(file.read_text())["by_call"].get("cuCtxGetDevice", {"local": 0, "synchronous": 0})
        kinds = counted["sync" if file.name.startswith("sync-") else "best"]
        kinds[0] += ask["local"]
        kinds[1] += ask["synchronous"]
    assert counted["best"][0] >= 20 and counted["best"][1] == 0
    assert counted["sync"][0] == 0 and counted["sync"][1] >= 20


def test_names_and_modes_that_there_are_not(tmp_path, capsys):
    assert speed.main(["--dry-run", "--only", "nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err
    for modes in ("rdma", "local:sync", "shm,shm", ""):
        with pytest.raises(SystemExit):
            speed.main(["--dry-run", "--modes", modes])
    assert speed.main(["--dry-run"]) == 0
    assert "resnet18_infer_b1" in capsys.readouterr().out


@pytest.mark.parametrize("case", [*CASES, *paper_cases.CASES], ids=lambda case: case.name)
def test_every_case_has_a_step(case):
    assert case.step in literal_keys(case.module, "STEPS")


def test_every_step_that_is_only_timed_is_in_a_table():
    timed = {(c.module, c.step) for c in (*CASES, *paper_cases.CASES)}
    for module in ("models", "diffusion"):
        for step in literal_keys(module, "STEPS"):
            assert (module, step) in timed


def test_select():
    assert len(select(CASES, [])) == len(CASES) == len({c.name for c in CASES})
    assert {c.group for c in select(CASES, ["copies"])} == {"copies"}
    assert [c.name for c in select(CASES, ["item"])] == ["item"]


def test_ratios_are_formed_within_rounds():
    local = Outcome(rounds=[[1.0], [10.0], [1.0]])
    ours = Outcome(rounds=[[2.0, 2.0], [20.0, 20.0], [2.0, 9.0]])
    figures = ours.figures(local)
    assert figures["ratio_to_local"] == 2.0 and figures["samples"] == 6
    assert figures["p10_ms"] == 2.0 and figures["median_ms"] == 5.5
    assert Outcome("error", "no").figures(local) == {"status": "error", "error": "no"}
    assert Outcome().figures(None)["status"] == "not run"

"""The measurements of the paper: with fakes, and single calls with the real program on the software device."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from test_parts import literal_keys
from test_run import FAKES, assert_nothing_runs

import breakdown
import classes
import paper
import turns
from paper_cases import CASES, FACTORS, FACTORS_TRAINING
from suite import ROOT, Group
from turns import Case

GROUP = Group("fake", (), directory=FAKES)
OUTBOARD = Path(os.environ.get("OUTBOARD", ROOT / "target" / "debug" / "outboard"))


def case(name, step="sleeps", group="inference"):
    return Case(name, f"the {name} case", "fake_steps", step, group=group, warm_up=1, samples=2)


def measure(tmp_path, *cases, outboard=FAKES / "outboard", calls=breakdown.CALLS, extra=(), local=True):
    out = tmp_path / "paper.json"
    arguments = ["--outboard", str(outboard), "--out", str(out), "--device", "soft", "--budget-s", "90"]
    arguments += ["--log-dir", str(tmp_path / "logs"), "--rounds", "2", "--turn-s", "0.01", *extra]
    if not local:
        arguments.append("--no-local")
    status = paper.main(arguments, cases, GROUP, calls)
    return status, json.loads(out.read_text())["parts"]


@pytest.fixture(autouse=True)
def any_machine(monkeypatch):
    monkeypatch.setattr("machine.has_gpu", lambda: True)
    monkeypatch.setattr(turns, "PREPARE_S_MAX", 5.0)


def test_programs_in_every_mode(tmp_path):
    status, parts = measure(tmp_path, case("resnet18_infer_b1"), case("another"), extra=["--only", "table5,figure7"])
    assert status == 0 and set(parts) == {"table5", "figure7"}
    table = parts["table5"]
    assert table["modes"] == list(paper.TABLE5_MODES) and table["not_run"] == []
    assert set(table["cases"]) == {"resnet18_infer_b1", "another"}
    modes = table["cases"]["another"]["modes"]
    assert list(modes) == table["modes"] and 1.5 < modes["shm:sync"]["ratio_to_local"] < 3.5
    # Only the models that the paper's figure has; every level over both links, without the local GPU.
    assert set(parts["figure7"]["cases"]) == {"resnet18_infer_b1"}
    assert len(parts["figure7"]["modes"]) == 8 and "local" not in parts["figure7"]["modes"]
    assert parts["figure7"]["machine"]["outboard"] == "outboard fake"
    assert_nothing_runs()


def test_batches(tmp_path):
    status, parts = measure(tmp_path, case("bert_infer_b1"), extra=["--only", "figure6"])
    assert status == 0
    assert [mode for mode in parts["figure6"]["modes"] if "batch" in mode] == [
        f"tcp:batch={n}+sr+local" for n in (1, 2, 4, 8, 16, 32, 64)
    ]


def test_parts_and_cases_that_are_not_asked_for_stay(tmp_path):
    cases = (case("one"), case("two", group="training"))
    measure(tmp_path, *cases, extra=["--only", "table5"])
    first = json.loads((tmp_path / "paper.json").read_text())["parts"]["table5"]
    status, parts = measure(tmp_path, *cases, extra=["--only", "table5", "--cases", "training"])
    assert status == 0 and set(parts["table5"]["cases"]) == {"one", "two"}
    # Kept cases name their machine; the part names that of the others.
    assert parts["table5"]["cases"]["one"] == first["cases"]["one"] | {"machine": first["machine"]}
    assert "machine" not in parts["table5"]["cases"]["two"]
    status, parts = measure(tmp_path, case("gpt2_gen32"), extra=["--only", "figure6"])
    assert set(parts) == {"table5", "figure6"}


def test_classes_of_calls(tmp_path):
    right = Case("resnet18_infer_b1", "r", "fake_workloads", "right", group="inference")
    status, parts = measure(tmp_path, right, extra=["--only", "table2"])
    assert status == 0
    modes = parts["table2"]["cases"]["resnet18_infer_b1"]["modes"]
    assert modes["tcp:or"]["calls"] == {"async": 0.0, "local": 0.0, "sync": 1.0}
    # 3 us a call, less five readings of the clock.
    assert modes["tcp:or"]["ms"]["sync"] == pytest.approx(0.0029)
    assert modes[f"tcp:{paper.BEST}"]["calls"]["local"] == 1.0


def test_time_that_is_used_up_is_said(tmp_path):
    status, parts = measure(tmp_path, case("one"), extra=["--only", "table5", "--budget-s", "0"])
    assert status == 1 and parts["table5"]["not_run"] == ["one"]


def test_failure_of_one_mode_fails_the_run(tmp_path):
    status, parts = measure(tmp_path, case("one", "raises"), extra=["--only", "table5"])
    assert status == 1
    modes = parts["table5"]["cases"]["one"]["modes"]
    assert modes["local"]["status"] == "ok" and modes["tcp:sync"]["status"] == "error"


def test_missing_library_is_said_and_fails_nothing(tmp_path):
    missing = Case("sd_unet_b1", "m", "imports_nothing_that_exists", "m", group="inference")
    status, parts = measure(tmp_path, case("one"), missing, extra=["--only", "table5"])
    assert status == 0
    assert "not installed" in parts["table5"]["cases"]["sd_unet_b1"]["modes"]["local"]["error"]


@pytest.mark.parametrize(
    ("text", "extra"),
    [("", ["--only", "figure4"]), ("", ["--cases", "nothing"]), ("no json", []), ('{"format": 9}', [])],
)
def test_what_cannot_be_done_is_refused_at_once(tmp_path, capsys, text, extra):
    out = tmp_path / "paper.json"
    if text:
        out.write_text(text)
    assert paper.main(["--outboard", "x", "--out", str(out), *extra], (case("one"),), GROUP) == 2
    assert "paper: " in capsys.readouterr().err
    assert not text or out.read_text() == text


def test_no_gpu_is_said(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("machine.has_gpu", lambda: False)
    assert paper.main(["--outboard", "x", "--out", str(tmp_path / "x.json")]) == 2
    assert "no NVIDIA GPU" in capsys.readouterr().err


@pytest.mark.skipif(not OUTBOARD.is_file(), reason="outboard has not been built")
def test_where_the_time_of_a_call_goes(tmp_path, monkeypatch):
    """The real program, on the software device."""
    monkeypatch.setattr(breakdown, "ROUNDS", 2)
    monkeypatch.setattr(breakdown, "TURN_MS", 20)
    status, parts = measure(tmp_path, outboard=OUTBOARD, extra=["--only", "figure3"], local=False)
    calls = parts["figure3"]["calls"]
    assert status == 0, calls
    assert set(calls) == {call.name for call in breakdown.CALLS} and parts["figure3"]["not_run"] == []
    for entry in calls.values():
        assert list(entry["modes"]) == [mode for mode in paper.FIGURE3_MODES if mode != "local"]
        for name, parts_us in entry["modes"].items():
            # A local answer takes as long as a reading of the clock, which is subtracted: nothing
            # may remain.
            assert parts_us["whole_us"] >= 0 and parts_us["seen_by_program_us"] >= 0
            total = parts_us["send_us"] + parts_us["wait_us"] + parts_us["client_us"]
            assert total == pytest.approx(parts_us["whole_us"], rel=0.01, abs=0.01)
            # Without the optimisations every call waits.
            if name.endswith("sync"):
                assert parts_us["wait_us"] > 0 and parts_us["whole_us"] > 0 and parts_us["seen_by_program_us"] > 0
    for link in ("shm", "tcp"):
        assert calls["get_device"]["modes"][f"{link}:{paper.BEST}"]["wait_us"] == 0
        assert calls["launch"]["modes"][f"{link}:{paper.BEST}"]["send_us"] > 0
        assert calls["memcpy_d2h_4096"]["modes"][f"{link}:{paper.BEST}"]["wait_us"] > 0


def test_parts_of_a_call():
    spent = {"calls": 10, "whole_ns": 100_000, "sends": 10, "send_ns": 20_000, "waits": 10, "wait_ns": 60_000}
    counted = {"times": {"clock_ns": 100.0, "by_call": {"a": {"synchronous": spent}, "b": {"local": spent}}}}
    # 10 us each: 2 us of sending and 6 of waiting, less a reading of the clock each; the whole
    # contains five.
    assert breakdown.parts_us(counted, ("a",)) == {
        "whole_us": 9.5,
        "send_us": 1.9,
        "wait_us": 5.9,
        "client_us": 1.7,
    }
    assert breakdown.parts_us(counted, ("a", "b"))["whole_us"] == 19.0
    for wrong in ({}, {"times": {"clock_ns": 1.0, "by_call": {}}}):
        with pytest.raises(breakdown.WorkerError):
            breakdown.parts_us(wrong, ("a",))


def test_classes_add_up():
    spent = {"calls": 20, "whole_ns": 2e6, "sends": 0, "send_ns": 0, "waits": 0, "wait_ns": 0}
    times = {"clock_ns": 0.0, "by_call": {"a": {"outstanding": spent, "local": spent}, "b": {"shadowed": spent}}}
    found = classes.evaluate(times, 20)
    assert found["calls"] == {"async": 2.0, "local": 1.0, "sync": 0.0}
    assert found["ms"] == {"async": 0.2, "local": 0.1, "sync": 0.0}


def test_the_paper_s_models_are_among_the_cases():
    known = {c.name for c in CASES}
    assert len(known) == len(CASES)
    for name in FACTORS + FACTORS_TRAINING:
        assert name in known
    # Counting takes the same steps as timing does.
    for one in CASES:
        assert one.step in literal_keys(one.module, "STEPS")
    assert {c.group for c in CASES} == {"inference", "training"}
    assert replace(CASES[0]).module == "torch_inference"


@pytest.mark.skipif(not OUTBOARD.is_file(), reason="outboard has not been built")
def test_a_call_that_cannot_be_made_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(breakdown, "TURN_MS", 20)
    calls = (
        breakdown.Call("wrong", "wrong", "no_such_work", ("cuInit",)),
        breakdown.Call("unseen", "unseen", "context_device", ("cuArrayCreate_v2",)),
        breakdown.CALLS[0],
    )
    extra = ["--only", "figure3"]
    status, parts = measure(tmp_path, outboard=OUTBOARD, calls=calls, extra=extra, local=False)
    found = parts["figure3"]["calls"]
    assert status == 1
    assert "the worker ended" in found["wrong"]["error"] and "no_such_work" in found["wrong"]["error"]
    assert "cuArrayCreate_v2 was not called" in found["unseen"]["error"]
    assert "error" not in found["get_device"]
    assert_nothing_runs()

"""The measurements of the pool's paper: arithmetic by hand, the rest with the real program on the software device."""

import json
import os
import sys
from pathlib import Path

import pytest
from test_parts import literal_keys
from test_run import FAKES, assert_nothing_runs

import pool
import pool_cases
import turns
from pool_cases import Part
from suite import ROOT, WORKLOADS_DIR, Group
from turns import Case, Outcome

OUTBOARD = Path(os.environ.get("OUTBOARD", ROOT / "target" / "debug" / "outboard"))
# The driver behind the recorder is the client library, in front of this check's own server.
BEHIND = {
    "OUTBOARD_DRIVER": str(OUTBOARD.parent / "liboutboard_client.so"),
    "OUTBOARD_GPU": f"shm:///tmp/outboard-gpu-check-{os.getpid()}.sock",
}
GROUP = Group("fake", (), BEHIND, directory=FAKES)
FILL = Case("fill_and_read", "fill and read", "driver_steps", "fill_and_read", warm_up=1, samples=2)
PARTS = {
    "injection": Part((), (FILL,), 1.0),
    "one": Part(("local", "alone", "19us", "shm"), (FILL,), 1.0, (FILL.name,)),
    "two": Part(("local", "6.8us"), (FILL, Case("wrong", "w", "driver_steps", "no_such_step")), 1.0),
}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(turns, "PREPARE_S_MAX", 20.0)
    monkeypatch.setattr(pool, "TRIED_US", (pool.LEAST_US, 5000.0))


def measure(tmp_path, *extra):
    out = tmp_path / "pool.json"
    arguments = ["--outboard", str(OUTBOARD), "--out", str(out), "--device", "soft", "--no-local", "--budget-s", "90"]
    arguments += ["--log-dir", str(tmp_path / "logs"), "--rounds", "2", "--turn-s", "0.01", *extra]
    status = pool.main(arguments, PARTS, GROUP)
    return status, json.loads(out.read_text())["parts"]


@pytest.mark.skipif(not OUTBOARD.is_file(), reason="outboard has not been built")
def test_programs_behind_a_longer_pcie(tmp_path):
    folder = tmp_path / "recordings"
    status, parts = measure(tmp_path, "--only", "one", "--record", str(folder))
    assert status == 0, parts
    assert set(parts) == {"injection", "recordings", "one"}
    # The memset begins later by the delay, and the copy to the host by half of it; a busy host blurs both medians.
    [tried] = parts["injection"]["cases"].values()
    assert tried["delays_a_step"] > 1.4 and tried["had_us_by_asked_us"]["5000"] > 4500
    assert set(tried["asked_us"]) == {"4.9us", "6.8us", "8us", "19us"}
    found = parts["one"]
    assert list(found["cases"]["fill_and_read"]["modes"]) == list(PARTS["one"].modes) == found["modes"]
    assert all(entry["status"] == "ok" for entry in found["cases"]["fill_and_read"]["modes"].values())
    pcie = found["cases"]["fill_and_read"]["pcie"]
    assert set(pcie) == {"alone", "19us"} and "tags=" in pcie["19us"]
    assert parts["recordings"]["recorded"] == {"fill_and_read": "recorded"}
    assert (folder / "fill_and_read.trace").stat().st_size > 0
    assert_nothing_runs()


@pytest.mark.skipif(not OUTBOARD.is_file(), reason="outboard has not been built")
def test_what_fails_is_said_and_other_parts_stay(tmp_path):
    measure(tmp_path, "--only", "one", "--cases", "fill_and_read")
    status, parts = measure(tmp_path, "--only", "two")
    assert status == 1 and {"one", "two"} < set(parts)
    wrong = parts["two"]["cases"]["wrong"]["modes"]
    assert "no_such_step" in wrong["local"]["error"] and parts["two"]["not_run"] == []
    assert parts["two"]["cases"]["fill_and_read"]["modes"]["6.8us"]["status"] == "ok"
    status, parts = measure(tmp_path, "--only", "two", "--cases", "wrong", "--budget-s", "1")
    assert status == 1 and set(parts["two"]["cases"]) == {"fill_and_read", "wrong"}
    assert_nothing_runs()


def test_what_is_asked_for_gives_the_papers_delays_and_rates():
    # 5.6 us, and 0.3610 ns a byte: 2.635 GB/s on a link of 54.
    assert pool.pcie_of(5.6, 6.8) == "rtt=6.800us,tags=121,mrs=128"
    for rtt_us, asked_us in ((6.8, 5.6), (4.9, 3.7), (19.0, 17.8), (6.8, 4.1)):
        text = dict(part.split("=") for part in pool.pcie_of(asked_us, rtt_us).split(","))
        longer_ns = (float(text["rtt"].removesuffix("us")) - 1.2) * 1e3 / (int(text["tags"]) * 128)
        gb_per_s = 1 / (longer_ns + 1 / 54.0)
        assert gb_per_s == pytest.approx(140 * 128 / rtt_us / 1e3, rel=0.006)


def test_the_injections_own_cost_is_taken_off():
    measured = {0.002: 1.4, 1.5: 1.5, 3.0: 3.9, 4.5: 5.1, 6.0: 6.3}
    assert pool.asked_for(5.6, measured) == pytest.approx(4.5 + 1.5 * 0.5 / 1.2)
    # A delay beyond those that were tried is asked for as it is.
    assert pool.asked_for(17.8, measured) == 17.8 and pool.asked_for(5.6, {}) == 5.6
    # 100 delays a step, and 1.5 us more for each.
    outcomes = {
        "local": Outcome(rounds=[[1.0, 1.0], [2.0, 2.2, 2.1]]),
        "0": Outcome(rounds=[[1.15], [2.25]]),
        "5": Outcome(rounds=[[1.65], [2.75]]),
        "10": Outcome(rounds=[[2.15], [3.25]]),
        "lost": Outcome("error", "why"),
    }
    tried = {"0": 0.0, "5": 5.0, "10": 10.0, "lost": 7.0}
    assert pool.delays_had(outcomes, tried) == (100.0, {0.0: 1.5, 5.0: 6.5, 10.0: 11.5})
    assert pool.delays_had({**outcomes, "10": outcomes["lost"], "5": outcomes["lost"]}, tried) == (0.0, {})


def test_the_page_is_what_the_committed_results_say():
    sys.path.append(str(ROOT / "tools"))
    import paper_pool

    page = ROOT / "docs" / "pool-paper.md"
    source = "results/paper-pool.json"
    text, pictures = paper_pool.document(json.loads((ROOT / "docs" / source).read_text()), source, page.stem)
    assert text == page.read_text(), "make paper-pool makes the page again"
    folder = page.with_suffix("")
    assert {path.name: path.read_text() for path in folder.glob("*.svg")} == pictures


def test_numbers_that_say_nothing_are_marked():
    sys.path.append(str(ROOT / "tools"))
    from paper_pool_gpu import Emulated, is_ordered

    def case(**ms):
        modes = {name: {"median_ms": one, "ratio_to_local": one / ms["local"]} for name, one in ms.items()}
        return {"modes": modes | {"local": {"median_ms": ms["local"]}}}

    right, wrong = case(local=10.0, alone=10.5, **{"6.8us": 12.5}), case(local=10.0, alone=13.0, **{"6.8us": 12.5})
    assert is_ordered(right) and not is_ordered(wrong)
    gpu = Emulated({"one": {"cases": {"a": right, "b": wrong}}})
    assert gpu.cell(gpu.case("a", "none", "one"), "6.8us") == "80.0 %"
    assert gpu.cell(gpu.case("b", "one"), "6.8us") == "80.0 % \\*"
    assert gpu.cell(gpu.case("a", "one"), "19us") == gpu.cell(gpu.case("c", "one"), "6.8us") == "not run"


def test_every_case_exists():
    sys.path.append(str(WORKLOADS_DIR))
    import pool_kinds

    known = set(pool_kinds.CELLS)
    known |= {f"ssd_b{n}" for n in pool_kinds.DETECTOR_BATCHES} | {f"ncf_b{n}" for n in pool_kinds.RECOMMENDER_BATCHES}
    for part in pool_cases.PARTS.values():
        for case in part.cases:
            steps = known if case.module == "pool_models" else literal_keys(case.module, "STEPS")
            assert case.step in steps, case
        assert set(part.recorded) <= {case.name for case in part.cases}
    timed = {case.name for name in ("figure4", "table9", "compiled") for case in pool_cases.PARTS[name].cases}
    assert timed == set(pool_kinds.CELLS)
    # Every recording has its program, and is timed.
    timed = {case.name for name in ("bert", "programs") for case in pool_cases.PARTS[name].cases}
    assert timed == {path.stem for path in pool_cases.RECORDINGS.glob("*.trace")}


def test_what_cannot_be_done_is_refused_at_once(tmp_path, capsys, monkeypatch):
    arguments = ["--outboard", "x", "--out", str(tmp_path / "x.json")]
    assert pool.main([*arguments, "--only", "table99"]) == 2 and "table99" in capsys.readouterr().err
    assert pool.main([*arguments, "--dry-run"]) == 0 and "table8: gemm_fp16" in capsys.readouterr().out
    monkeypatch.setattr("machine.has_gpu", lambda: False)
    assert pool.main(arguments) == 2 and "no NVIDIA GPU" in capsys.readouterr().err

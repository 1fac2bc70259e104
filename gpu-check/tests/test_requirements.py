"""Predictions held against emulated networks: the arithmetic with made-up answers, the whole with the real program."""

import argparse
import collections
import json
import math
import os
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from test_run import FAKES, assert_nothing_runs

import cores
import paper_plots
import recorded_pairs
import requirement_checks
import requirements
import requirements_page
import requirements_stage
from suite import ROOT, Group
from turns import Case

GROUP = Group("fake", (), directory=FAKES)
OUTBOARD = Path(os.environ.get("OUTBOARD", ROOT / "target" / "debug" / "outboard"))


def case(step, name=None):
    return Case(name or step, f"the {step} case", "driver_steps", step, group="fake", warm_up=1, samples=2)


def measure(tmp_path, *cases, extra=()):
    out = tmp_path / "requirements.json"
    arguments = ["--outboard", str(OUTBOARD), "--out", str(out), "--device", "soft", "--budget-s", "60", "--no-local"]
    arguments += ["--log-dir", str(tmp_path / "logs"), "--recordings", str(tmp_path / "recordings")]
    arguments += ["--rounds", "1", "--turn-s", "0.005", *extra]
    status = requirements.main(arguments, cases, GROUP)
    return status, json.loads(out.read_text()) if out.exists() else None


def test_a_program_is_recorded_predicted_and_run_over_every_network(tmp_path, capsys):
    status, results = measure(tmp_path, case("fill_and_read"), case("no_such_step"))
    assert status == 1
    failed = results["cases"]["no_such_step"]
    assert failed["status"] == "error" and "no_such_step" in failed["error"]
    entry = results["cases"]["fill_and_read"]
    assert entry["status"] == "ok", entry
    assert len(entry["networks"]) == len(requirements.RTTS_US) * len(requirements.BANDWIDTHS_GBPS)
    # One call of the step waits: no network is faster than its round trip.
    for network, found in entry["networks"].items():
        rtt_us = float(network.partition("us")[0].removeprefix("rtt="))
        assert found["ms"] * 1e3 >= rtt_us, network
        assert set(found["predicted_overhead"]) == set(found["error"]) == {"simulated", "closed_form"}
    assert set(entry["summary"]) == {"simulated", "closed_form"} and "fill_and_read" in capsys.readouterr().out
    assert entry["recorded"]["iterations"] == requirements_stage.ITERATIONS
    assert (tmp_path / "recordings" / "fill_and_read.trace").stat().st_size > 0
    # Predicting again needs no program, and says the same.
    status, again = measure(tmp_path, case("fill_and_read"), extra=["--parts", "predict"])
    assert status == 0 and again["constants"] == again["constants"]
    for part in ("networks", "checks", "summary", "local_ms", "machine", "recording_overhead"):
        assert again["cases"]["fill_and_read"][part] == entry[part], part
    entry = again["cases"]["fill_and_read"]
    # Measuring only the recording's cost leaves everything else unchanged.
    status, again = measure(tmp_path, case("fill_and_read"), extra=["--parts", "cost"])
    costs = again["cases"]["fill_and_read"]
    assert status == 0 and costs["recording_overhead"] > -1 and costs["recording_overhead_machine"]["cores"] > 0
    assert costs | {"recording_overhead": 0, "recording_overhead_machine": 0} == entry | {
        "recording_overhead": 0,
        "recording_overhead_machine": 0,
    }
    entry = costs
    # Parts not asked for stay.
    status, again = measure(tmp_path, case("fill_and_read"), case("no_such_step"), extra=["--only", "no_such_step"])
    assert status == 1 and again["cases"]["fill_and_read"] == entry
    assert_nothing_runs()


def test_what_recording_costs_needs_no_recording(tmp_path, capsys):
    status, results = measure(
        tmp_path, case("fill_and_read"), case("no_such_step"), extra=["--parts", "cost", "--turn-s", "0.01"]
    )
    assert status == 1 and results["cases"]["fill_and_read"]["recording_overhead"] > -1
    assert results["cases"]["no_such_step"]["status"] == "error"
    assert "recorded" in capsys.readouterr().out
    assert_nothing_runs()


def test_links_are_measured_without_a_network(tmp_path):
    extra = ["--parts", "record,links,grid", "--rtts-us", "2,500", "--gbps", "100"]
    status, results = measure(tmp_path, case("fill_and_read"), extra=extra)
    entry = results["cases"]["fill_and_read"]
    assert status == 0 and set(entry["links"]) == {"local_ms", "shm", "shm, emulated", "tcp", "tcp, emulated"}
    assert list(entry["networks"]) == ["rtt=2us,bandwidth=100Gbps", "rtt=500us,bandwidth=100Gbps"]
    assert entry["links"]["shm"]["ms"] < entry["networks"]["rtt=500us,bandwidth=100Gbps"]["ms"]
    assert_nothing_runs()


def test_errors_are_of_step_times():
    networks = {f"rtt={n}us": {"error": {"simulated": n / 100, "closed_form": -n / 10}} for n in range(1, 12)}
    found = requirements.summary(networks)
    assert found["simulated"] == {"median": 0.06, "p90": 0.1, "max": 0.11}
    assert found["closed_form"] == {"median": 0.6, "p90": 1.0, "max": 1.1}
    rounds = {"rtt=1us": [[1.0, 2.0], [3.0, 1.5]], "rtt=2us": [[5.0, 6.0], [1.0, 6.0]], "rtt=3us": [[2.0, 2.0]]}
    assert requirements.local_ms(rounds) == 1.0 and requirements.local_ms({}) == 0
    assert requirements.figures(rounds["rtt=1us"], 1.0)["overhead"] == 0.5


def test_what_seemed_slower_than_over_a_harder_network_is_measured_again():
    rounds = {
        "rtt=2us,bandwidth=200Gbps": [[1.0, 5.0], [1.0, 1.01]],
        "rtt=2us,bandwidth=10Gbps": [[1.0, 1.0]],
        "rtt=5us,bandwidth=200Gbps": [[1.0, 3.0]],
        "rtt=5us,bandwidth=10Gbps": [[1.0, 2.0]],
        "rtt=100us,bandwidth=200Gbps": [[1.0, 1.9]],
    }
    # 1.01 may be noise; 3 is more than 1.9 with twenty times the round trip; 2 has no harder one beside it.
    assert requirements.suspects(rounds) == ["rtt=5us,bandwidth=200Gbps"]
    rounds["rtt=5us,bandwidth=200Gbps"].append([1.0, 1.9])
    assert requirements.suspects(rounds) == [] == requirements.suspects({})


def test_what_is_checked_follows_from_the_answer():
    def answer(limit):
        return {"rtt_max": [{"bits_per_s": 1e11, "rtt_ns": {"simulated": limit}}]}

    assert requirements.checks(answer({"limit": "at", "value": 8e3})) == {
        "half": "rtt=4us,bandwidth=100Gbps",
        "at": "rtt=8us,bandwidth=100Gbps",
        "double": "rtt=16us,bandwidth=100Gbps",
    }
    assert requirements.checks(answer({"limit": "never"})) == {}


@pytest.mark.parametrize("extra", [["--only", "nonsense"], ["--out", "junk"]])
def test_wrong_arguments(tmp_path, extra, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("junk").write_text("my notes")
    status, _ = measure(tmp_path, case("ask"), extra=extra)
    assert status == 2 and "requirements:" in capsys.readouterr().err
    assert Path("junk").read_text() == "my notes"


def made_up():
    """A program whose overhead is 1 % a microsecond; the replay is right, the closed form says twice that."""
    networks = {}
    for gbps in requirements.BANDWIDTHS_GBPS:
        for rtt in requirements.RTTS_US:
            overhead = rtt / 100
            closed = 2 * overhead
            networks[requirements.network_name(rtt, gbps)] = {
                "ms": 10 * (1 + overhead),
                "overhead": overhead,
                "predicted_overhead": {"simulated": overhead, "closed_form": closed},
                "error": {"simulated": 0.0, "closed_form": (1 + closed) / (1 + overhead) - 1},
            }
    checks = {
        name: {"network": f"rtt={5 * by:g}us,bandwidth=100Gbps", "overhead": 0.05 * by}
        for name, by in requirements.CHECKED.items()
    }
    entry = {
        "status": "ok",
        "title": "A <program>",
        "local_ms": 10.0,
        "machine": {"gpus": [{"name": "A GPU", "driver_version": "1"}], "date_utc": "now", "commit": "abc"},
        "networks": networks,
        "summary": requirements.summary(networks),
        "noise": {"median": 0.01, "p90": 0.02},
        "checks": checks,
    }
    shm, tcp = {"ms": 10.5, "overhead": 0.05}, {"ms": 12.0, "overhead": 0.2}
    entry["links"] = {
        "local_ms": 10.0,
        "shm": shm,
        "shm, emulated": shm | {"ms": 10.6},
        "tcp": tcp,
        "tcp, emulated": tcp,
    }
    failed = {"status": "error", "title": "Another", "error": "it hung"}
    return {"format": 1, "budget": "5%", "check_gbps": 100, "cases": {"a": entry, "b": failed}}


def test_the_page_shows_the_papers_values_beside_its_own(tmp_path):
    """By hand: 602,112 and 8 bytes in 10 ms are 60.2 MB/s; the GPU's 2 ms are a fifth of them."""
    measured = made_up()
    entry = measured["cases"].pop("a")
    sent = {"class": "outstanding", "calls": 3, "request_bytes": 602_112, "response_bytes": 0}
    received = {"class": "synchronous", "calls": 1, "request_bytes": 0, "response_bytes": 8}
    entry["recorded"] = {"gpu_busy_ns": 2e6, "classes": [sent, received]}
    narrow = entry["networks"][requirements.network_name(10, 1)]
    narrow["overhead"], narrow["predicted_overhead"] = 2.3, {"simulated": 1.2, "closed_form": 0.0}
    measured["cases"]["resnet18_infer_b1"] = entry
    results, page = tmp_path / "r.json", tmp_path / "page.md"
    results.write_text(json.dumps(measured))
    assert paper_plots.main([str(results), str(page)], make=requirements_page.document, program="page") == 0
    text = page.read_text()
    assert "| ResNET, inference | 253 | A <program> | 60.2 | 602,112 | 8 |" in text
    # 1 % a microsecond: 5 us are the longest within 5 %; no bandwidth is at 10 us.
    assert "| ResNET | 5 us, 200 Gbps | A <program> | +5.0% (+5.0%) | 5 us | none |" in text
    # 3.3 steps over 1.1, and 2.2 over 1.1.
    assert "1 Gbps over 200 Gbps | 135 to 277 % | A <program> | +200.0% (+100.0%) |" in text
    assert "| A <program> | 2 | 10 | 20% |" in text
    assert "Bert" not in text.partition("| --- |")[2].partition("\n\n")[0]


def test_the_page_shows_errors_checks_and_what_failed(tmp_path):
    results, page = tmp_path / "results" / "r.json", tmp_path / "page.md"
    results.parent.mkdir()
    results.write_text(json.dumps(made_up()))
    assert paper_plots.main([str(results), str(page)], make=requirements_page.document, program="page") == 0
    text = page.read_text()
    assert "| A <program> | 10 | 1.0% (2.0%) | 0.0% (0.0%, 0.0%) |" in text
    assert "| A <program> | 5us | +2.5% | +5.0% | +10.0% | yes, yes, yes |" in text
    assert "| A <program> | 10 | +5.0% | +5.0% | +20.0% | +20.0% | +100 |" in text
    assert "- Another: error, it hung" in text and "A GPU (driver 1)" in text
    assert "+20.0% (+20.0%; +40.0%)" in text
    picture = ElementTree.parse(tmp_path / "page" / "slopes.svg")
    assert "A <program>" in "".join(picture.getroot().itertext())
    for broken in ("", "{}", "[]"):
        results.write_text(broken)
        assert paper_plots.main([str(results), str(page)], make=requirements_page.document) == 1
    assert page.read_text() == text


def test_a_program_is_recorded_through_the_server(tmp_path):
    options = argparse.Namespace(
        outboard=OUTBOARD, device="soft", log_dir=tmp_path / "logs", recordings=tmp_path, set={}, twin=False
    )
    options.log_dir.mkdir()
    checks = requirement_checks.Checks(options, tmp_path)
    checks.group = GROUP
    try:
        cases = [case("fill_and_read"), case("no_such_step")]
        errors = checks.record(cases, requirement_checks.NO_NETWORK)
        assert not checks.record(cases[:1], "rtt=100us,bandwidth=100Gbps")
    finally:
        checks.close()
    assert set(errors) == {"no_such_step"}
    command = [
        str(OUTBOARD),
        "require",
        str(tmp_path / "fill_and_read.through.trace"),
        "--budget",
        "1000%",
        "--json",
        "-",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["recording"]["iterations"] == requirement_checks.ITERATIONS
    assert sorted(path.name for path in tmp_path.glob("*.trace")) == [
        "fill_and_read.through-100us.trace",
        "fill_and_read.through.trace",
    ]
    assert json.loads((tmp_path / "fill_and_read.through-100us.stats.json").read_text())
    # Longer steps have longer pairs.
    assert checks.weight(case("fill_and_read")) > checks.weight(case("never_recorded")) == requirement_checks.PAIR_S
    assert_nothing_runs()


def test_turns_that_are_looked_at_several_times_err_no_more_often_than_the_interval_says():
    """The budget is the median itself: each pair lies above it or not. `lasting` has the probability of each number of
    pairs above it after which nothing was decided."""
    lasting, before = {0: 1.0}, 0
    for count in requirement_checks.LOOKS:
        new, outer = count - before, requirement_checks.rank(count, requirement_checks.LOOK_CONFIDENCE)
        after: dict[int, float] = {}
        for above, probability in lasting.items():
            for more in range(new + 1):
                total = above + more
                if outer <= total <= count - outer:
                    after[total] = after.get(total, 0.0) + probability * math.comb(new, more) / 2**new
        lasting, before = after, count
    assert 0.08 < 1 - sum(lasting.values()) < 1 - requirement_checks.CONFIDENCE


def test_a_budget_within_the_interval_of_the_median_is_not_decided():
    assert requirement_checks.interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]) == (2.0, 7.0)
    assert requirement_checks.interval([float(n) for n in range(20)]) == (5.0, 14.0)
    assert requirement_checks.verdict([[1.0, 1.01]] * 8) == "keeps"
    assert requirement_checks.verdict([[1.0, 1.1]] * 8) == "breaks"
    assert requirement_checks.verdict([[1.0, 1.04], [1.0, 1.06]] * 4) == "not decided"
    # Between two looks nothing is decided anew.
    assert requirement_checks.verdict([[1.0, 1.04], [1.0, 1.06]] * 4 + [[1.0, 1.04]] * 3) == "not decided"
    assert requirement_checks.verdict([[1.0, 1.04], [1.0, 1.06]] * 2 + [[1.0, 1.04]] * 12) == "keeps"
    # After the last look no more turns are worth their time.
    unsure = [[1.0, 1.04], [1.0, 1.06]]
    assert requirement_checks.is_open("at", unsure * 63) and not requirement_checks.is_open("at", unsure * 64)
    # Three turns decide nothing.
    assert requirement_checks.verdict([[1.0, 1.01]] * 3) == "not decided"
    assert requirement_checks.figures([[1.0, 1.01]] * 3)["interval"] is None


NETWORK = "rtt=800us,bandwidth=100Gbps"


class Steady(requirement_checks.Checks):
    """Checks of a program whose step takes 10 ms here, 9 without a network, and a round trip more over one."""

    def __init__(self, tmp_path):
        self.options = argparse.Namespace(twin=False, recordings=tmp_path)
        self.outboard, self.constants = ["outboard"], tmp_path / "constants.json"
        self.rtt_ms, self.networks = 0.0, []
        self.recent_ms, self.rtts_us = collections.deque(maxlen=requirement_checks.RECENT), {}
        self.slower, self.step_s = 1.0, {}
        self.cores = argparse.Namespace(place=lambda leader: None, described=dict)
        self.process = argparse.Namespace(pid=0)
        self.players = {"local": self, "emulated": self}

    def ask(self, command):
        if command["do"] == "network":
            self.networks.append(command["network"])
            named = command["network"].partition(",")[0].removeprefix("rtt=")
            self.rtt_ms = 0.0 if named == "1ns" else float(named.removesuffix("us")) / 1e3

    def answer(self, what, seconds):
        pass

    def turn(self, which, case):
        return 10.0 * self.slower if which == "local" else 9.0 * self.slower + self.rtt_ms


def answered(step_ms, known):
    """An answer of `outboard require` for a program that bears a round trip of 8 % of its step."""
    answer: dict[str, Any] = {name: {} for name in requirement_checks.ANSWERED}
    limit = {"limit": "at", "value": 0.08 * step_ms * 1e6}
    answer["rtt_max"] = [{"bits_per_s": 1e11, "rtt_ns": {"simulated": limit}}]
    return answer | {"without_network": {"overhead": known[0], "error": known[1], "foreseen": -0.12}}


def test_a_program_is_measured_without_a_network_before_its_figure_is_asked_for(tmp_path, monkeypatch):
    checks, asked = Steady(tmp_path), []

    def require(outboard, recording, constants, step_ms, known):
        asked.append((step_ms, known, set(checks.networks)))
        return answered(step_ms, known)

    monkeypatch.setattr(requirement_checks, "require", require)
    found = checks.check(case("fill_and_read"), requirement_checks.time.monotonic() + 60)
    # Nothing but the link without a network was run before, and it is no evidence afterwards.
    [(step_ms, known, networks)] = asked
    assert step_ms == 10 and known == (pytest.approx(-0.1), 0) and networks == {requirement_checks.NO_NETWORK}
    assert found["without_network"]["overhead"] == pytest.approx(-0.1)
    assert len(found["without_network"]["rounds_ms"]) == requirement_checks.ROUNDS_MIN
    assert [(name, check["verdict"]) for name, check in found["checks"].items()] == [
        ("half", "keeps"),
        ("at", "keeps"),
        ("double", "breaks"),
        ("none again", "keeps"),
    ]
    assert found["checks"]["none again"]["overhead"] == pytest.approx(-0.1)
    assert "rtts_us" not in found["checks"]["none again"]


def test_a_round_trip_follows_the_step_of_a_machine_that_becomes_slower(tmp_path, monkeypatch):
    checks = Steady(tmp_path)

    def require(outboard, recording, constants, step_ms, known):
        checks.slower = 1.5
        return answered(step_ms, known)

    monkeypatch.setattr(requirement_checks, "require", require)
    found = checks.check(case("fill_and_read"), requirement_checks.time.monotonic() + 60)
    assert found["step_ms"] == 10 and found["checks"]["at"]["network"] == "rtt=800us,bandwidth=100Gbps"
    # It is half as long again for a step that is, after some turns; double of the first one would have been kept.
    assert found["checks"]["at"]["rtts_us"] == [800] + [1200] * 7
    assert found["checks"]["double"]["rtts_us"] == [1600] + [2400] * 11
    assert [check["verdict"] for check in found["checks"].values()] == ["keeps", "keeps", "breaks", "keeps"]
    # A pair's own local turn has no part in its round trip, and one slow turn none in any.
    monkeypatch.setattr(checks, "recent_ms", collections.deque([10.0] * 5, maxlen=5))
    checks.rtts_us, turns = {}, iter([10.0, 9.0, 30.0, 9.0] + [10.0, 9.0] * 20)
    monkeypatch.setattr(checks, "turn", lambda which, case: next(turns))
    checks.pairs(case("fill_and_read"), {"at": NETWORK}, requirement_checks.time.monotonic(), 10.0)
    assert checks.rtts_us == {"at": [800] * requirement_checks.ROUNDS_MIN}


def test_turns_here_and_there_follow_each_other_over_all_networks(tmp_path, monkeypatch):
    checks, places = Steady(tmp_path), []
    monkeypatch.setattr(checks, "turn", lambda which, case: places.append(which) or 10.0)
    checks.pairs(case("fill_and_read"), {"half": NETWORK, "at": NETWORK}, requirement_checks.time.monotonic())
    assert places == ["local", "emulated"] * (2 * requirement_checks.ROUNDS_MIN)


def test_time_that_is_left_goes_to_what_is_not_decided(tmp_path, capsys):
    checks = Steady(tmp_path)
    network = "rtt=400us,bandwidth=100Gbps"
    unsure = requirement_checks.figures([[10.0, 10.4], [10.0, 10.6]] * 4)
    entry = {"status": "ok", "title": "one", "step_ms": 10.0, "margin": {"margin": 0.05}}
    entry["checks"] = {"half": {"network": network, **requirement_checks.figures([[10.0, 9.0]] * 8)}}
    entry["checks"]["at"] = {"network": network, **unsure}
    assert requirement_checks.undecided(entry) == ["at"]
    ran, results = case("fill_and_read"), {"cases": {"fill_and_read": entry}}
    requirement_checks.decide(checks, [ran], results, requirement_checks.time.monotonic())
    assert entry["checks"]["at"]["verdict"] == "not decided"
    requirement_checks.decide(checks, [ran], results, requirement_checks.time.monotonic() + 60)
    assert entry["checks"]["at"]["verdict"] == "keeps" and len(entry["checks"]["at"]["rounds_ms"]) > 8
    assert len(entry["checks"]["half"]["rounds_ms"]) == 8
    # On a machine that is slower now, turns have a longer round trip.
    more = len(entry["checks"]["at"]["rounds_ms"]) - 8
    assert entry["checks"]["at"]["rtts_us"] == [400] * more
    entry["checks"]["at"] |= unsure
    checks.slower = 1.5
    requirement_checks.decide(checks, [ran], results, requirement_checks.time.monotonic() + 60)
    assert entry["checks"]["at"]["rtts_us"] == [400] * more + [600] * more


def test_all_programs_have_their_turns_and_are_counted(tmp_path, capsys, monkeypatch):
    class Whole(Steady):
        def __init__(self, options, scratch):
            super().__init__(scratch)
            self.options = options
            self.open = self.calibrate = self.close = self.restart = lambda: None

        def record(self, cases, through=""):
            recorded.append(([one.name for one in cases], through))
            self.step_s = {"fill_and_read": 0.01}
            return {"no_such_step": "it hung"} if not through else {}

    recorded, out = [], tmp_path / "checks.json"
    monkeypatch.setattr(requirement_checks, "Checks", Whole)
    monkeypatch.setattr(requirement_checks, "CASES", (case("no_such_step"), case("fill_and_read")))
    monkeypatch.setattr(requirement_checks, "require", lambda *asked: answered(*asked[3:5]))
    monkeypatch.setattr(requirement_checks.machine, "describe", lambda outboard: {})
    arguments = ["--outboard", "outboard", "--out", str(out), "--log-dir", str(tmp_path), "--recordings", str(tmp_path)]
    arguments += ["--budget-s", "20", "--through", "fill_and_read", "--through-network", "rtt=10us"]
    monkeypatch.setattr(requirement_checks.sys, "argv", ["checks", *arguments])
    monkeypatch.setattr(requirement_checks, "line", lambda entry: entry["title"])
    assert requirement_checks.main() == requirement_checks.EXIT_FAILED
    both = ["no_such_step", "fill_and_read"]
    assert recorded == [(both, ""), (both[1:], requirement_checks.NO_NETWORK), (both[1:], "rtt=10us")]
    assert (
        "1 of 2 programs have a figure: half holds for 1, it holds for 1, double breaks for 1"
        in capsys.readouterr().out
    )
    assert json.loads(out.read_text())["cases"]["no_such_step"]["error"] == "it hung"
    # A program that had no time this time is not counted by what an earlier run found.
    monkeypatch.setattr(requirement_checks, "Checks", lambda *asked: Whole(*asked))
    monkeypatch.setattr(requirement_checks.sys, "argv", ["checks", *arguments, "--budget-s", "-1"])
    requirement_checks.main()
    assert "0 of 2 programs have a figure" in capsys.readouterr().out
    monkeypatch.setattr(requirement_checks.sys, "argv", ["checks", *arguments])
    requirement_checks.main()
    assert json.loads(out.read_text())["cases"]["fill_and_read"]["attempts"] == 2


def test_turns_without_a_network_go_on_until_their_median_is_known():
    assert requirement_checks.deviation([[1.0, 0.9]] * 3) == 1
    assert requirement_checks.is_open("none", [[1.0, 0.8], [1.0, 1.0]] * 4)
    assert not requirement_checks.is_open("none", [[1.0, 0.9]] * 8)
    # Half of the distance of the second from the seventh, in deviations of a normal distribution.
    pairs = [[1.0, 1 + number / 100] for number in range(8)]
    assert requirement_checks.deviation(pairs) == pytest.approx(0.05 / (2 * 1.645))


def test_the_measurement_is_passed_on_to_outboard(tmp_path, monkeypatch):
    def run(command, **_):
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, "{}", "")

    commands = []
    monkeypatch.setattr(requirement_checks.subprocess, "run", run)
    for known in (None, (-0.093, 0.0075)):
        requirement_checks.require(["outboard"], tmp_path / "a", tmp_path / "c", 5.0, known)
    assert not [part for part in commands[0] if "without" in part]
    assert "--without-network=-9.3000%" in commands[1] and "--without-network-error=0.7500%" in commands[1]


def test_programs_are_counted_by_what_their_figures_were_right_about():
    def entry(half, at, double):
        checks = {"half": half, "at": at, "double": double}
        return {"status": "ok", "checks": {name: {"verdict": verdict} for name, verdict in checks.items()}}

    entries = [
        entry("keeps", "keeps", "breaks"),
        entry("keeps", "not decided", "breaks"),
        entry("keeps", "keeps", "keeps"),
        {"status": "ok", "checks": {}},
        {"status": "error", "error": "it hung"},
    ]
    assert requirement_checks.totals(entries) == (
        "3 of 5 programs have a figure: half holds for 3, it holds for 2, double breaks for 2, all three for 1"
    )


def test_threads_of_one_physical_core_are_not_both_given(tmp_path):
    # Sixteen threads of eight cores, as firmware numbers them and as hypervisors do.
    for pairs in ([{n, n + 8} for n in range(8)], [{2 * n, 2 * n + 1} for n in range(8)]):
        found = cores.Cores({core: frozenset(pair) for pair in pairs for core in pair})
        given = [found.first, found.gradients, *({core} for core in found.others), found.server]
        touched = [{n for n, pair in enumerate(pairs) if pair & its} for its in given]
        assert found.are_enough and sum(map(len, touched)) == len(set().union(*touched)) == 8
        assert len(found.first) == len(found.gradients) == 1 and len(found.others) == 3 and len(found.server) == 6
    alone = cores.Cores({core: frozenset({core}) for core in range(16)})
    assert (alone.first, alone.gradients, alone.others) == ({2}, {4}, {6, 8, 10}) and alone.server == set(range(11, 16))
    few = cores.Cores({core: frozenset({core}) for core in range(4)})
    assert not few.are_enough and few.first == {0} and few.server == set(range(4))
    for core, text in ((0, "0,2-3\n"), (2, "0,2-3"), (3, "?")):
        (tmp_path / f"cpu{core}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{core}" / "topology" / "thread_siblings_list").write_text(text)
    assert cores.siblings_of([0, 1, 2], tmp_path) == {0: frozenset({0, 2}), 1: frozenset({1}), 2: frozenset({0, 2})}
    assert cores.siblings_of([3], tmp_path) == {3: frozenset({3})}


def event(thread, name, start, end, kind="outstanding", pid=1):
    return {"ph": "X", "pid": pid, "tid": thread, "name": name, "cat": kind, "ts": start, "dur": end - start}


def iteration_at(start, wait_us, handoff_us):
    """Events of an iteration: two launches, backward on another thread, and a wait."""
    backward = start + 20 + handoff_us
    mark = {"cat": "mark", "name": "iteration"}
    return [
        mark | {"ph": "b", "ts": start},
        event(0, "launch", start + 1, start + 3),
        event(0, "launch", start + 13, start + 15),
        *(event(1, "launch", backward + 2 * n, backward + 2 * n + 1) for n in range(8)),
        event(0, "wait", backward + 20, backward + 20 + wait_us, "synchronous"),
        event(0, "read", backward + 27 + wait_us, backward + 28 + wait_us, "local"),
        mark | {"ph": "e", "ts": backward + 30 + wait_us},
    ]


def test_recordings_of_a_program_are_compared_call_by_call_and_gap_by_gap(tmp_path, capsys, monkeypatch):
    here = [*iteration_at(0, 5, 1), *iteration_at(100, 5, 1)]
    # The GPU was timed in an iteration that took longer.
    here += [*iteration_at(200, 50, 1), event(0, "kernel", 203, 204, "kernel", pid=100)]
    through = iteration_at(0, 105, 31)
    recorded = {"here.trace": here, "here.through.trace": through, "empty.trace": []}
    monkeypatch.setattr(recorded_pairs, "events_of", lambda outboard, recording: recorded[recording.name])
    found = recorded_pairs.medians(recorded_pairs.calls_of(here))
    assert found["call launch"] == (10, 2 + 2 + 8) and found["call wait"] == (1, 5)
    assert found["own code, thread 0"] == (1, 10) and found["own code, thread 1"] == (7, 7)
    assert found["hand-off to thread 0"] == (1, 5) and found["after a wait, thread 0"] == (1, 7)
    assert found["step"] == (1, 20 + 1 + 28 + 5 - 1)
    names = ["here.trace", "here.through.trace"]
    monkeypatch.setattr(recorded_pairs.sys, "argv", ["pairs", "--outboard", "outboard", *names])
    assert recorded_pairs.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["step", "1", "x", "53.0", "1", "x", "183.0", "+130.0"]
    assert lines[2].split() == ["call", "wait", "1", "x", "5.0", "1", "x", "105.0", "+100.0"]
    monkeypatch.setattr(recorded_pairs.sys, "argv", ["pairs", "--outboard", "outboard", "empty.trace"])
    assert recorded_pairs.main() == 1

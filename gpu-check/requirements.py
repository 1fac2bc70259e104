#!/usr/bin/env python3
"""Holds what `outboard require` predicts from a recording against programs that run over emulated networks.

    python3 gpu-check/requirements.py --outboard target/release/outboard --out docs/results/paper-requirements.json

For each program: it is recorded once on this machine's GPU; then one process on that GPU and one behind an emulated
network take turns, network after network, round by round; and the recording is asked for the same networks. What is
predicted is the overhead: the predicted step time is that overhead on the measured local step. Beside them stands the
largest round-trip time that is predicted to keep the budget: the program runs at it, at half and at double.

The grid is that of Figure 9 of "Characterizing Network Requirements for GPU API Remoting in AI Applications".
Programs that are not asked for stay in the results as they are; `requirements_page.py` makes the document.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kept
import machine
from paper_cases import CASES
from process import Mode, Runner
from server import Server, ServerError
from speed import names
from suite import ROOT, Group
from turns import Case, Player, PlayerError, PlayerSkip, significant

FORMAT_VERSION = 1
RTTS_US = (2, 5, 10, 20, 50, 100)
BANDWIDTHS_GBPS = (1, 10, 40, 100, 200)
# The requirement that is checked by running at it.
BUDGET = "5%"
CHECK_GBPS = 100
# Iterations that are recorded, and those of them during which the GPU is not timed.
ITERATIONS = 10
UNTIMED = 6
# Of programs whose iterations are many thousand calls.
LONG = ("gpt2_gen32", "gpt2_gen32_b512", "sd_sample_b1")
ITERATIONS_OF_LONG = 5
UNTIMED_OF_LONG = 3
WARM_UP_S = 0.3
# Marks come to an end before.
NEVER_TIMED = 1_000_000
ROUNDS_MAX = 5
COST_ROUNDS = 5
TURN_S = 0.12
BUDGET_S = 900.0
SERVER_START_S = 60.0
RECORD_S_MAX = 300.0
REQUIRE_S_MAX = 120.0
CALIBRATE_S_MAX = 120.0
CHANGE_S_MAX = 10.0
TURN_EXTRA_S_MAX = 60.0
EXIT_FAILED = 1
EXIT_USAGE = 2
# `outboard require`: no network meets the budget.
EXIT_NONE_MEETS = 3


class RequirementsError(Exception):
    """Something that one program is lost for."""


@dataclass
class Setting:
    options: argparse.Namespace
    runner: Runner
    server: Server
    group: Group
    recordings: Path
    constants: Path
    deadline: float


@dataclass
class Turns:
    """By network: the step times of its turns and of the local GPU's turns just before them, in milliseconds."""

    rounds: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, network: str, local: list[float], ours: list[float]) -> None:
        self.rounds.setdefault(network, []).append((statistics.median(local), statistics.median(ours)))

    def local_ms(self) -> float:
        return statistics.median(local for rounds in self.rounds.values() for local, _ in rounds)

    def figures(self, network: str) -> dict[str, Any]:
        rounds = self.rounds[network]
        return {
            "median_ms": significant(statistics.median(ours for _, ours in rounds)),
            "rounds_ms": [[significant(local), significant(ours)] for local, ours in rounds],
            "overhead": significant(statistics.median(ours / local for local, ours in rounds) - 1),
        }


def network_name(rtt_us: float, gbps: float) -> str:
    return f"rtt={rtt_us:g}us,bandwidth={gbps:g}Gbps"


class Stage:
    """A program's processes, all up at once: here, recorded, and behind a network that can be changed."""

    def __init__(self, setting: Setting, case: Case) -> None:
        self.setting, self.case = setting, case
        self.recording = setting.recordings / f"{case.name}.trace"
        self.whole = setting.runner.scratch / "whole.trace"
        for path in (self.recording, self.whole):
            path.unlink(missing_ok=True)
        self.players: dict[str, Player] = {}
        url = setting.server.urls["shm"]
        # Without a local GPU everything is held against the bare server.
        here = url if setting.options.no_local else None
        scratch = setting.runner.scratch
        is_long = case.name in LONG
        self.iterations = ITERATIONS_OF_LONG if is_long else ITERATIONS
        untimed = UNTIMED_OF_LONG if is_long else UNTIMED
        # The first network sizes what holds the messages that are on their way.
        widest = network_name(max(RTTS_US), max(BANDWIDTHS_GBPS))
        modes = [
            Mode("local", here),
            Mode("recorded", here, record=str(self.whole), untimed=untimed),
            Mode("calls", here, record=str(scratch / "calls.trace"), untimed=NEVER_TIMED),
            Mode("emulated", url, emulate=widest),
        ]
        try:
            for mode in modes:
                if mode.url is not None:
                    setting.runner.prepare_remote()
                self.players[mode.name] = Player(setting.runner, mode, setting.group, case.module)
            for player in self.players.values():
                player.wait_until_ready(setting.deadline)
            for player in self.players.values():
                player.ask({"do": "prepare", "module": case.module, "step": case.step, "warm_up": case.warm_up})
            for player in self.players.values():
                player.answer(f"preparing {case.name}", RECORD_S_MAX)
        except BaseException:
            self.close()
            raise

    def record(self) -> Path:
        """The program's recording, made on this machine's GPU."""
        player = self.players["recorded"]
        player.ask({"do": "record", "iterations": self.iterations, "warm_up_s": WARM_UP_S})
        player.answer(f"recording {self.case.name}", RECORD_S_MAX)
        self.players.pop("recorded").close()
        command = [*self.setting.runner.outboard, "trace", "cut", str(self.whole), "-o", str(self.recording)]
        command += ["--program", self.case.title]
        done = subprocess.run(command, capture_output=True, text=True, timeout=REQUIRE_S_MAX)
        if done.returncode != 0:
            raise RequirementsError(done.stderr.strip())
        return self.recording

    def cost(self) -> float:
        """How much longer a step takes while its calls are recorded."""
        ratios = []
        for number in range(COST_ROUNDS):
            names = ("local", "calls") if number % 2 == 0 else ("calls", "local")
            step = {name: statistics.median(self.turn(name)) for name in names}
            ratios.append(step["calls"] / step["local"])
        self.players.pop("calls").close()
        return significant(statistics.median(ratios) - 1)

    def measure(self, networks: list[str]) -> Turns:
        """The program on this machine's GPU and behind each network, in turns."""
        turns = Turns()
        for number in range(self.setting.options.rounds):
            if number > 0 and time.monotonic() >= self.setting.deadline:
                break
            shift = number % len(networks)
            for network in networks[shift:] + networks[:shift]:
                there = self.players["emulated"]
                there.ask({"do": "network", "network": network})
                there.answer(f"changing to {network}", CHANGE_S_MAX)
                # Machines have slower and faster seconds: each network is held against its neighbours in time.
                before = self.turn("local")
                turns.add(network, before, self.turn("emulated"))
        return turns

    def turn(self, name: str) -> list[float]:
        case, turn_s = self.case, self.setting.options.turn_s
        command = {"do": "run", "calls": case.calls, "wait": case.wait, "samples": case.samples, "budget_s": turn_s}
        self.players[name].ask(command)
        event = self.players[name].answer(f"running {case.name}", turn_s + TURN_EXTRA_S_MAX)
        return [float(ms) for ms in event["ms"]]

    def close(self) -> None:
        for player in self.players.values():
            player.close()


def calibrate(setting: Setting) -> None:
    """What sending and answering cost here, over an emulated network that costs nothing."""
    command = [*setting.runner.outboard, "calibrate", "--gpu", setting.server.urls["shm"]]
    environment = {**os.environ, "OUTBOARD_EMULATE": "rtt=1ns"}
    command += ["--json", str(setting.constants)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=CALIBRATE_S_MAX)
    if done.returncode != 0:
        raise ServerError(f"outboard calibrate: {done.stderr.strip()}")


def require(setting: Setting, recording: Path) -> dict[str, Any]:
    """What `outboard require` answers."""
    command = [*setting.runner.outboard, "require", str(recording), "--budget", BUDGET, "--json", "-"]
    command += ["--constants", str(setting.constants)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=REQUIRE_S_MAX)
    if done.returncode not in (0, EXIT_NONE_MEETS):
        raise RequirementsError(done.stderr.strip() or f"outboard require ended with {done.returncode}")
    return dict(json.loads(done.stdout))


def predictions(answer: dict[str, Any]) -> dict[str, dict[str, float]]:
    """By network: the overhead that both models predict, on the grid that the answer has."""
    grid = answer["grid"]
    found: dict[str, dict[str, float]] = {}
    for bits, row in zip(grid["bandwidths"], grid["overhead"], strict=True):
        for rtt_ns, overhead in zip(grid["rtts_ns"], row, strict=True):
            found[network_name(rtt_ns / 1e3, bits / 1e9)] = overhead
    return found


def checks(answer: dict[str, Any]) -> dict[str, str]:
    """Networks at, at half and at double the largest round-trip time that is predicted to keep the budget."""
    [largest] = [r["rtt_ns"]["simulated"] for r in answer["rtt_max"] if r["bits_per_s"] == CHECK_GBPS * 1e9]
    if largest["limit"] != "at" or largest["value"] <= 0:
        return {}
    rtt_us = largest["value"] / 1e3
    return {name: network_name(round(rtt_us * by, 3), CHECK_GBPS) for name, by in CHECKED.items()}


CHECKED = {"half": 0.5, "at": 1.0, "double": 2.0}


def one(setting: Setting, case: Case) -> dict[str, Any]:
    """Everything of one program."""
    with contextlib.closing(Stage(setting, case)) as stage:
        return _play(setting, stage)


def _play(setting: Setting, stage: Stage) -> dict[str, Any]:
    recording = stage.record()
    answer = require(setting, recording)
    predicted = predictions(answer)
    grid = [network_name(rtt, gbps) for gbps in BANDWIDTHS_GBPS for rtt in RTTS_US]
    missing = [network for network in grid if network not in predicted]
    if missing:
        raise RequirementsError(f"outboard require says nothing of {missing[0]}")
    at = checks(answer)
    recording_overhead = stage.cost()
    turns = stage.measure(list(dict.fromkeys([*grid, *at.values()])))
    local_ms = turns.local_ms()
    networks = {}
    for network in grid:
        measured = turns.figures(network)
        errors = {
            model: significant((1 + predicted[network][model]) / (1 + measured["overhead"]) - 1)
            for model in ("simulated", "closed_form")
        }
        networks[network] = measured | {"predicted_overhead": predicted[network], "error": errors}
    return {
        "title": stage.case.title,
        "recording_overhead": recording_overhead,
        "recording_bytes": recording.stat().st_size,
        "recorded": answer["recording"],
        "constants": answer["constants"],
        "local_ms": significant(local_ms),
        "networks": networks,
        "summary": summary(networks),
        "checks": {name: {"network": network, **turns.figures(network)} for name, network in at.items()},
        "rtt_max": answer["rtt_max"],
    }


def summary(networks: dict[str, Any]) -> dict[str, dict[str, float]]:
    """By model: the median and the 90th percentile of the errors' sizes."""
    found = {}
    for model in ("simulated", "closed_form"):
        sizes = sorted(abs(entry["error"][model]) for entry in networks.values())
        found[model] = {
            "median": significant(statistics.median(sizes)),
            "p90": significant(sizes[round(0.9 * (len(sizes) - 1))]),
            "max": significant(sizes[-1]),
        }
    return found


def main(arguments: list[str] | None = None, cases: tuple[Case, ...] = CASES, group: Group | None = None) -> int:
    options = _parse(arguments)
    known = {case.name for case in cases} | {case.group for case in cases}
    if unknown := sorted(set(options.only) - known):
        print(
            f"requirements: there is no case {', '.join(unknown)}; there are {', '.join(sorted(known))}",
            file=sys.stderr,
        )
        return EXIT_USAGE
    if not options.no_local and not machine.has_gpu():
        print("requirements: there is no NVIDIA GPU with a driver here (--no-local does without)", file=sys.stderr)
        return EXIT_USAGE
    try:
        results = kept.load(
            options.out, {"format": FORMAT_VERSION, "budget": BUDGET, "check_gbps": CHECK_GBPS, "cases": {}}
        )
    except ValueError as error:
        print(f"requirements: {error}", file=sys.stderr)
        return EXIT_USAGE
    # An end asked for from outside ends the server and the programs too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_FAILED))
    options.log_dir.mkdir(parents=True, exist_ok=True)
    options.recordings.mkdir(parents=True, exist_ok=True)
    chosen = [case for case in cases if not options.only or case.name in options.only or case.group in options.only]
    with tempfile.TemporaryDirectory(prefix="requirements-") as scratch:
        outboard = [str(options.outboard)]
        server = Server(outboard, ["shm"], options.device, options.log_dir / "server.log", SERVER_START_S)
        runner = Runner(
            [sys.executable], outboard, Path(scratch), options.log_dir, False, prepare_remote=server.ensure_running
        )
        constants = options.constants or Path(scratch) / "constants.json"
        group = group or Group("requirements", ())
        setting = Setting(options, runner, server, group, options.recordings, constants, 0)
        return _run(setting, chosen, results)


def _run(setting: Setting, chosen: list[Case], results: dict[str, Any]) -> int:
    options = setting.options
    until = time.monotonic() + options.budget_s
    ok = True
    try:
        setting.server.start()
        if options.constants is None:
            calibrate(setting)
        about = machine.describe(setting.runner.outboard)
        for number, case in enumerate(chosen):
            now = time.monotonic()
            if now >= until:
                print(f"no time was left for {', '.join(left.name for left in chosen[number:])}")
                ok = False
                break
            setting.deadline = now + (until - now) / (len(chosen) - number)
            try:
                entry: dict[str, Any] = {"status": "ok", **one(setting, case)}
            except PlayerSkip as reason:
                entry = {"status": "skip", "title": case.title, "error": str(reason)}
            except (PlayerError, RequirementsError, ServerError, subprocess.TimeoutExpired) as error:
                entry = {"status": "error", "title": case.title, "error": str(error)}
                ok = False
            results["cases"][case.name] = {"machine": about, **entry}
            print(_line(entry), flush=True)
            kept.write(options.out, results)
    except ServerError as error:
        print(f"requirements: {error}", file=sys.stderr)
        ok = False
    finally:
        setting.server.stop()
    print(f"\nresults: {options.out}, recordings: {options.recordings}, logs: {options.log_dir}")
    return 0 if ok else EXIT_FAILED


def _line(entry: dict[str, Any]) -> str:
    if entry["status"] != "ok":
        return f"{entry['title']:44} {entry['status']}: {entry['error']}"
    text = f"{entry['title']:44} {entry['local_ms']:>9g} ms"
    for model, errors in entry["summary"].items():
        text += f"   {model} {errors['median']:.1%} (90 %: {errors['p90']:.1%})"
    return text + "".join(f"   {name} {check['overhead']:+.1%}" for name, check in entry["checks"].items())


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outboard", type=Path, required=True, help="the outboard program")
    parser.add_argument("--out", type=Path, required=True, help="the results (JSON); other programs in it are kept")
    parser.add_argument("--only", type=names, default=[], metavar="NAME,...", help="these programs or groups only")
    parser.add_argument("--recordings", type=Path, default=ROOT / "build" / "recordings", help="where they are kept")
    parser.add_argument("--constants", type=Path, help="what `outboard calibrate` measured here")
    parser.add_argument(
        "--budget-s", type=float, default=BUDGET_S, help="for everything; shared out among the programs"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS_MAX, help="turns of each network at most")
    parser.add_argument("--turn-s", type=float, default=TURN_S, help="the length of a turn")
    parser.add_argument("--no-local", action="store_true", help="without the local GPU: against the bare server")
    parser.add_argument("--device", default="nvidia", help="passed to `outboard serve`")
    parser.add_argument("--log-dir", type=Path, default=ROOT / "build" / "requirements")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

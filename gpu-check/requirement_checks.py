#!/usr/bin/env python3
"""Checks the round-trip times that `outboard require` gives for a budget, by programs run at them, at half and at
double.

    python3 gpu-check/requirement_checks.py --outboard target/release/outboard --out docs/results/checks.json

All programs are recorded first, in processes of their own. Then two processes, one on this machine's GPU and one behind
an emulated network, take short turns with one program after the other: first without a network, which gives `outboard
require --without-network` what it asks for, and when that has given its figure, at the figure, at half and at double.
The turns without a network are no evidence for the figure. Machines that are shared have slow and fast moments, so:

* an overhead is the median of the ratios of neighbouring turns, and stands with an interval for the median. Where the
  budget lies in that interval nothing is decided, and turns go on while there is time;
* whether it does is asked after certain numbers of pairs only, each time with an interval of 97 %: all these hold the
  median with a probability of 90 %, where one that is looked at after each pair leaves it sooner or later;
* both processes have the same cores for the same threads, and the server has others (`cores.py`);
* turns follow each other in the same way over all networks, here and there in turns: after a turn of its own a process
  is some per cent faster;
* the first steps of a turn are not timed;
* a program's time is as long as its pairs of turns are, so that all have about as many of them, and what is left at the
  end goes to those of which something is not decided;
* a figure is for a step of a certain length, and proportional to it. The machine becomes faster and slower, so a turn's
  round trip is the figure's times the median of the last local turns, those before the pair's own, over that length.

A third process, which is local too, shows what the same comparison makes of nothing at all (`--twin`). `--through`
records programs through the server as well, over a network without a round trip: such a recording (NAME.through.trace)
has what each call took there, and how often the program really waited; `--through-network` adds such recordings over
networks (NAME.through-10us.trace), which show what becomes longer with a round trip (`recorded_pairs.py`). Beside them
is what the client counted (NAME.through.stats.json).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import kept
import machine
from cores import Cores
from process import Mode, Runner
from requirement_cases import CASES
from requirements import BUDGET, CHECK_GBPS, CHECKED, EXIT_FAILED, EXIT_NONE_MEETS, network_name
from requirements_stage import LONG, RECORD_S_MAX, REQUIRE_S_MAX, StageError, cut
from server import Server
from speed import names
from suite import ROOT, Group
from turns import Case, Player, PlayerError, PlayerSkip, significant

FORMAT_VERSION = 1
# Fields of an answer that are kept.
ANSWERED = ("recording", "constants", "margin", "perfect", "rtt_max", "rtt_beyond")
LIMIT = float(BUDGET.rstrip("%")) / 100
CONFIDENCE = 0.9
# Numbers of pairs after which it is asked whether something is decided, each time with such an interval, so that all of
# them hold the median with CONFIDENCE.
LOOKS = (8, 12, 16, 24, 32, 48, 64, 96, 128)
LOOK_CONFIDENCE = 0.97
# Processes that start at the same time.
BATCH = 10
ITERATIONS, UNTIMED = 10, 6
ITERATIONS_OF_LONG, UNTIMED_OF_LONG = 5, 3
WARM_UP_S = 0.15
# Steps before those that are timed, and these. A step that is longer than that is timed at once.
SETTLE = {"samples": 1, "budget_s": 0.01}
TURN = {"samples": 20, "budget_s": 0.02}
LONG_STEP_S = 0.03
ROUNDS_MIN = 8
# The turns without a network go on until their median has this standard deviation, or until they have had this part of
# a program's time. Half of it would make a margin of 5 % smaller by half a per cent, and take four times as many.
NONE_ERROR = 0.0125
NONE_PART = 0.35
ROUNDS_MAX = 128
# Local turns before a pair whose median says how long a step takes now.
RECENT = 5
# Time of a pair of turns beside that of its steps, and the steps in it.
PAIR_S, STEPS_OF_PAIR, STEPS_OF_LONG_PAIR = 0.05, 5, 2
# Less time than this is not worth preparing a program again, and no program is so often.
GO_ON_S_MIN = 5.0
GO_ON_MAX = 3
# Sizes the rings as `outboard calibrate` has them.
NETWORK_FIRST = "rtt=1ns,bandwidth=100Gbps"
NO_NETWORK = f"rtt=1ns,bandwidth={CHECK_GBPS}Gbps"
# Turns without a network among those of the figure show whether it is still what was measured.
NONE, AGAIN, TWIN = "none", "none again", "twin"
# Standard deviations between the bounds of an interval that holds the median with CONFIDENCE.
INTERVAL_DEVIATIONS = 2 * 1.645


class Checks:
    """The server, the two or three processes that take turns, and the recordings."""

    def __init__(self, options: argparse.Namespace, scratch: Path) -> None:
        self.options, self.scratch, self.cores = options, scratch, Cores()
        self.outboard = [str(options.outboard)]
        self.group = Group("checks", ())
        with self.cores.of(self.cores.server):
            self.server = Server(self.outboard, ["shm"], options.device, options.log_dir / "server.log", 60.0)
            self.server.start()
        self.runner = Runner([sys.executable], self.outboard, scratch, options.log_dir, False)
        self.constants = scratch / "constants.json"
        self.players: dict[str, Player] = {}
        # Times of a step in the last local turns of the program that was prepared.
        self.recent_ms: deque[float] = deque(maxlen=RECENT)
        # Round trips of its turns, by what they were to check.
        self.rtts_us: dict[str, list[float]] = {}
        # About how long a recorded step took, by the program's name.
        self.step_s: dict[str, float] = {}

    def open(self) -> None:
        url = self.server.urls["shm"]
        modes = [Mode("local", None), Mode("emulated", url, emulate=NETWORK_FIRST)]
        modes += [Mode(TWIN, None)] if self.options.twin else []
        with self.cores.of(self.cores.others | self.cores.first):
            self.players = {mode.name: Player(self.runner, mode, self.group, "plain_models") for mode in modes}
            for player in self.players.values():
                player.wait_until_ready(time.monotonic() + 180)

    def calibrate(self) -> None:
        with self.cores.of(self.cores.others | self.cores.first):
            url = self.server.urls["shm"]
            command = [*self.outboard, "calibrate", "--gpu", url, "--json", str(self.constants)]
            environment = {**os.environ, "OUTBOARD_EMULATE": NO_NETWORK.partition(",")[0]}
            subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)
        known = json.loads(self.constants.read_text()) | self.options.set
        self.constants.write_text(json.dumps(known))

    def restart(self) -> None:
        """Starts the processes again after one of them has failed."""
        for player in self.players.values():
            player.kill()
        self.server.ensure_running()
        self.open()

    def close(self) -> None:
        for player in self.players.values():
            player.close()
        self.server.stop()

    def record(self, cases: list[Case], through: str = "") -> dict[str, str]:
        """Records the programs, one after the other in processes that start together, on this machine's GPU or, over a
        network, through the server; returns why some could not be."""
        players, errors = {}, {}
        with self.cores.of(self.cores.others | self.cores.first):
            for case in cases:
                untimed = UNTIMED_OF_LONG if case.name in LONG else UNTIMED
                whole = str(self.scratch / f"{case.name}.whole")
                mode = Mode(f"recorded {case.name}", None, record=whole, untimed=untimed, caches="recorded")
                if through:
                    url = self.server.urls["shm"]
                    mode = Mode(f"through {case.name}", url, emulate=through, record=whole, caches="emulated")
                players[case.name] = Player(self.runner, mode, self.group, case.module)
        for do in (self._ready, self._prepared, self._recorded):
            for case in cases:
                if case.name in errors:
                    continue
                try:
                    do(players[case.name], case)
                except (PlayerError, PlayerSkip) as error:
                    errors[case.name] = str(error)
        closing = [threading.Thread(target=player.close) for player in players.values()]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
        for case in cases:
            if case.name not in errors:
                whole = self.scratch / f"{case.name}.whole"
                try:
                    cut(self.runner, whole, self.recording(case, through), case.title)
                except StageError as error:
                    errors[case.name] = str(error)
                whole.unlink(missing_ok=True)
            counted = self.scratch / f"{self.group.name}-through-{case.name}.stats.json"
            if through and counted.exists():
                counted.replace(self.recording(case, through).with_suffix(".stats.json"))
        return errors

    def recording(self, case: Case, through: str = "") -> Path:
        rtt = through.partition(",")[0].removeprefix("rtt=")
        kind = "" if not through else ".through" if through == NO_NETWORK else f".through-{rtt}"
        return Path(self.options.recordings) / f"{case.name}{kind}.trace"

    def _ready(self, player: Player, case: Case) -> None:
        player.wait_until_ready(time.monotonic() + 180)
        prepare(player, case)

    def _prepared(self, player: Player, case: Case) -> None:
        player.answer(f"preparing {case.name}", RECORD_S_MAX)
        self.cores.place(player.process.pid)

    def _recorded(self, player: Player, case: Case) -> None:
        iterations = ITERATIONS_OF_LONG if case.name in LONG else ITERATIONS
        started = time.monotonic()
        player.ask({"do": "record", "iterations": iterations, "warm_up_s": WARM_UP_S})
        player.answer(f"recording {case.name}", RECORD_S_MAX)
        self.step_s[case.name] = max(0.0, time.monotonic() - started - WARM_UP_S) / iterations

    def weight(self, case: Case) -> float:
        """Returns about how long a pair of turns takes, in seconds."""
        step_s = self.step_s.get(case.name, 0.0)
        return PAIR_S + (STEPS_OF_PAIR if step_s < LONG_STEP_S else STEPS_OF_LONG_PAIR) * step_s

    def prepare(self, case: Case) -> None:
        for player in self.players.values():
            prepare(player, case)
        for player in self.players.values():
            player.answer(f"preparing {case.name}", RECORD_S_MAX)
            self.cores.place(player.process.pid)
        self.recent_ms.clear()
        self.rtts_us.clear()

    def drop(self) -> None:
        for player in self.players.values():
            player.ask({"do": "drop"})
            player.answer("dropping", 60)

    def check(self, case: Case, until: float) -> dict[str, Any]:
        """Runs a program at the round-trip time that it is said to bear, at half and at double."""
        began = time.monotonic()
        self.prepare(case)
        now = time.monotonic()
        alone = self.pairs(case, {NONE: NO_NETWORK}, now + NONE_PART * (until - now))[NONE]
        step_ms = statistics.median(local for local, _ in alone)
        known = (statistics.median(overheads(alone)), deviation(alone))
        answer = require(self.outboard, self.recording(case), self.constants, step_ms, known)
        networks = asked_for(answer)
        networks |= {AGAIN: NO_NETWORK} if networks else {}
        networks |= {TWIN: TWIN} if self.options.twin else {}
        pairs = self.pairs(case, networks, until, step_ms)
        self.drop()
        return {
            "status": "ok",
            "title": f"{case.title}, {case.group}",
            "step_ms": significant(step_ms),
            **{name: answer[name] for name in ANSWERED},
            "without_network": answer["without_network"] | {"rounds_ms": alone},
            "checks": self.noted(networks, pairs),
            "took_s": round(time.monotonic() - began, 1),
        }

    def go_on(self, case: Case, entry: dict[str, Any], until: float) -> None:
        """Adds turns to what is not decided of a program."""
        checks = entry["checks"]
        left = {name: checks[name]["network"] for name in undecided(entry)}
        self.prepare(case)
        so_far = {name: checks[name]["rounds_ms"] for name in left}
        pairs = self.pairs(case, left, until, entry["step_ms"], so_far)
        self.drop()
        earlier = {name: checks[name].get("rtts_us", []) for name in left}
        checks |= self.noted(left, pairs, earlier)

    def pairs(
        self,
        case: Case,
        networks: dict[str, str],
        until: float,
        step_ms: float | None = None,
        so_far: dict[str, list[list[float]]] | None = None,
    ) -> dict[str, list[list[float]]]:
        """Returns, for each network, the times of a step in neighbouring turns, local and remote, those `so_far` first.
        Round trips to be checked are those for a step of `step_ms`."""
        before = so_far or {}
        pairs = {name: list(before.get(name, [])) for name in networks}
        while step_ms is not None and len(self.recent_ms) < RECENT:
            self.recent_ms.append(self.turn("local", case))
        for number in range(ROUNDS_MAX):
            # Of those without a verdict the shares of time are larger.
            left = [name for name in networks if len(pairs[name]) < ROUNDS_MIN or is_open(name, pairs[name])]
            if not left or (number >= (1 if before else ROUNDS_MIN) and time.monotonic() > until):
                break
            shift = number % len(left)
            for name in left[shift:] + left[:shift]:
                other = TWIN if name == TWIN else "emulated"
                if name != TWIN:
                    self.change(name, networks[name], step_ms)
                here, there = (significant(self.turn(which, case)) for which in ("local", other))
                self.recent_ms.append(here)
                pairs[name].append([here, there])
        return pairs

    def change(self, name: str, network: str, step_ms: float | None) -> None:
        """Changes the network, to that for the step of the last local turns if a figure for a step of `step_ms` is to
        be checked."""
        if name in CHECKED and step_ms is not None:
            its_us = round(rtt_us(network) * statistics.median(self.recent_ms) / step_ms, 3)
            self.rtts_us.setdefault(name, []).append(its_us)
            network = network_name(its_us, CHECK_GBPS)
        self.players["emulated"].ask({"do": "network", "network": network})
        self.players["emulated"].answer("changing the network", 10)

    def noted(
        self,
        networks: dict[str, str],
        pairs: dict[str, list[list[float]]],
        earlier_us: dict[str, list[float]] | None = None,
    ) -> dict[str, Any]:
        """Returns what was found over each network, and the round trips of its pairs after those of earlier ones."""
        found: dict[str, Any] = {name: {"network": networks[name], **figures(pairs[name])} for name in networks}
        for name, its_us in self.rtts_us.items():
            found[name]["rtts_us"] = (earlier_us or {}).get(name, []) + its_us
        return found

    def turn(self, which: str, case: Case) -> float:
        player = self.players[which]
        is_long = self.step_s.get(case.name, 0.0) >= LONG_STEP_S
        for extent in (TURN,) if is_long else (SETTLE, TURN):
            player.ask({"do": "run", "calls": case.calls, "wait": case.wait, **extent})
            event = player.answer(f"running {case.name}", 60)
        return statistics.median(float(ms) for ms in event["ms"])


def asked_for(answer: dict[str, Any]) -> dict[str, str]:
    """Returns the networks at which the answer's figure is run; none if it has no figure."""
    [largest] = [r["rtt_ns"]["simulated"] for r in answer["rtt_max"] if r["bits_per_s"] == CHECK_GBPS * 1e9]
    if largest["limit"] != "at" or largest["value"] <= 0:
        return {}
    rtt_us = largest["value"] / 1e3
    return {name: network_name(round(rtt_us * by, 3), CHECK_GBPS) for name, by in CHECKED.items()}


def rtt_us(network: str) -> float:
    """Returns the round trip of a network at which a figure is run."""
    return float(network.partition(",")[0].removeprefix("rtt=").removesuffix("us"))


def undecided(entry: dict[str, Any]) -> list[str]:
    """Returns the networks of a program for which turns should go on."""
    checks = entry.get("checks", {})
    return [name for name, check in checks.items() if is_open(name, check["rounds_ms"])]


def require(
    outboard: list[str],
    recording: Path,
    constants: Path,
    step_ms: float,
    known: tuple[float, float] | None = None,
    at: str = "",
) -> dict[str, Any]:
    """Asks for a program's network; `known` is its overhead without one, and the standard deviation of that."""
    command = [*outboard, "require", str(recording), "--budget", BUDGET, "--json", "-"]
    command += ["--constants", str(constants), "--step", f"{step_ms:g}ms"] + (["--at", at] if at else [])
    if known is not None:
        overhead, error = (f"{share:.4%}" for share in known)
        command += [f"--without-network={overhead}", f"--without-network-error={error}"]
        command += [f"--without-network-at={NO_NETWORK}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=REQUIRE_S_MAX)
    if done.returncode not in (0, EXIT_NONE_MEETS):
        raise StageError(done.stderr.strip() or f"outboard require ended with {done.returncode}")
    return dict(json.loads(done.stdout))


def prepare(player: Player, case: Case) -> None:
    player.ask({"do": "prepare", "module": case.module, "step": case.step, "warm_up": case.warm_up})


def rank(count: int, confidence: float) -> int:
    """Returns the largest number of ordered draws on either side of an interval that holds their median with this
    confidence, its own bound included, by the binomial distribution; 0 if they are too few."""
    outside, found = 0.0, 0
    while found < count // 2:
        outside += 2 * math.comb(count, found) / 2**count
        if outside > 1 - confidence:
            break
        found += 1
    return found


def interval(ratios: list[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Returns the numbers between which the median of what `ratios` are drawn from lies with this confidence; infinite
    if they are too few."""
    ordered, at = sorted(ratios), rank(len(ratios), confidence)
    return (ordered[at - 1], ordered[-at]) if at else (-math.inf, math.inf)


def at_look(pairs: list[list[float]]) -> list[list[float]]:
    """Returns the pairs of the last look; none before the first."""
    return pairs[: max((count for count in LOOKS if count <= len(pairs)), default=0)]


def deviation(pairs: list[list[float]]) -> float:
    """Returns the standard deviation of the median of the pairs' overheads; 1 if they are too few."""
    low, high = interval(overheads(pairs))
    return min(1.0, (high - low) / INTERVAL_DEVIATIONS)


def overheads(pairs: list[list[float]]) -> list[float]:
    return [there / here - 1 for here, there in pairs]


def looked(pairs: list[list[float]]) -> tuple[float, float]:
    """Returns the interval of the last look."""
    return interval(overheads(at_look(pairs)), LOOK_CONFIDENCE)


def verdict(pairs: list[list[float]]) -> str:
    low, high = looked(pairs)
    return "keeps" if high <= LIMIT else "breaks" if low > LIMIT else "not decided"


def is_open(name: str, pairs: list[list[float]]) -> bool:
    if name == NONE:
        return deviation(at_look(pairs)) > NONE_ERROR
    return name in CHECKED and len(pairs) < LOOKS[-1] and verdict(pairs) == "not decided"


def figures(pairs: list[list[float]]) -> dict[str, Any]:
    low, high = looked(pairs)
    return {
        "rounds_ms": pairs,
        "step_ms": significant(statistics.median(local for local, _ in pairs)),
        "overhead": significant(statistics.median(overheads(pairs))),
        "interval": [significant(low), significant(high)] if math.isfinite(low) else None,
        "verdict": verdict(pairs),
    }


def predicted(results: dict[str, Any], options: argparse.Namespace) -> None:
    """Adds to each check the overhead that the model gives for its network and the step that the figure is for."""
    for name, entry in results["cases"].items():
        recording = Path(options.recordings) / f"{name}.trace"
        if entry["status"] != "ok" or not recording.exists():
            continue
        with tempfile.NamedTemporaryFile("w", suffix=".json") as constants:
            constants.write(json.dumps(entry["constants"]))
            constants.flush()
            measured = entry.get("without_network")
            known = (measured["overhead"], measured["error"]) if measured else None
            for check in entry["checks"].values():
                if check["network"] == TWIN:
                    continue
                asked = (recording, Path(constants.name), entry["step_ms"], known, check["network"])
                overhead = require([str(options.outboard)], *asked)["at_overhead"]["simulated"]
                check["predicted"] = significant(overhead)
                check["error"] = significant((1 + overhead) / (1 + check["overhead"]) - 1)


def line(entry: dict[str, Any]) -> str:
    if entry["status"] != "ok":
        return f"{entry['title']:44} {entry['status']}: {entry['error']}"
    text = f"{entry['title']:44} {entry['step_ms']:>8g} ms"
    if known := entry.get("without_network"):
        text += (
            f"  without a network {known['overhead']:+.1%} +- {known['error']:.1%}, foreseen {known['foreseen']:+.1%}"
        )
        text += f" ({len(known['rounds_ms'])} pairs)"
    text += f"  margin {entry['margin']['margin']:.1%}"
    for name, check in entry["checks"].items():
        low, high = check["interval"] or (math.nan, math.nan)
        text += f"  {name} {check['overhead']:+.1%} [{low:+.1%}, {high:+.1%}]"
        text += f" {check['verdict']}" if name in CHECKED else ""
    return text


def totals(entries: list[dict[str, Any]]) -> str:
    """Returns for how many programs the figure is right: at half and at it the budget is kept, at double it is not."""
    wanted = {"half": "keeps", "at": "keeps", "double": "breaks"}
    right = [
        {name: entry["checks"][name]["verdict"] == verdict for name, verdict in wanted.items()}
        for entry in entries
        if entry["status"] == "ok" and wanted.keys() <= entry["checks"].keys()
    ]
    half, at, double = (sum(one[name] for one in right) for name in wanted)
    everything = sum(all(one.values()) for one in right)
    return (
        f"{len(right)} of {len(entries)} programs have a figure: half holds for {half}, it holds for {at},"
        f" double breaks for {double}, all three for {everything}"
    )


def record_through(checks: Checks, cases: list[Case]) -> None:
    for network in (NO_NETWORK, *checks.options.through_network) if cases else ():
        for name, error in checks.record(cases, network).items():
            print(f"{name} could not be recorded through the server: {error}", flush=True)


def decide(checks: Checks, cases: list[Case], results: dict[str, Any], until: float) -> None:
    """Gives the time that is left to programs of which something is not decided."""
    for _ in range(GO_ON_MAX):
        left = [case for case in cases if undecided(results["cases"][case.name])]
        for number, case in enumerate(left):
            now = time.monotonic()
            if until - now < GO_ON_S_MIN:
                return
            share = checks.weight(case) / sum(map(checks.weight, left[number:]))
            entry = results["cases"][case.name]
            try:
                checks.go_on(case, entry, now + max(GO_ON_S_MIN, (until - now) * share))
            except (PlayerError, PlayerSkip) as error:
                print(f"{case.name} did not go on: {error}", flush=True)
                checks.restart()
            print(line(entry), flush=True)


def main() -> int:
    options = _parse()
    results = kept.load(options.out, {"format": FORMAT_VERSION, "budget": BUDGET, "cases": {}})
    if options.predict:
        predicted(results, options)
        kept.write(options.out, results)
        return 0
    options.log_dir.mkdir(parents=True, exist_ok=True)
    options.recordings.mkdir(parents=True, exist_ok=True)
    chosen = [case for case in CASES if not options.only or case.name in options.only or case.group in options.only]
    until = time.monotonic() + options.budget_s
    with tempfile.TemporaryDirectory(prefix="requirement-checks-") as scratch:
        checks = Checks(options, Path(scratch))
        try:
            ran: list[Case] = []
            checks.open()
            checks.calibrate()
            about = machine.describe(checks.outboard) | {"cores_given": checks.cores.described()}
            errors: dict[str, str] = {}
            for at in range(0, len(chosen), BATCH):
                errors |= checks.record(chosen[at : at + BATCH])
            record_through(checks, [case for case in chosen if case.name in options.through])
            for number, case in enumerate(chosen):
                now = time.monotonic()
                if now > until:
                    print(f"no time was left for {', '.join(left.name for left in chosen[number:])}")
                    break
                entry = {"status": "error", "title": case.title, "error": errors.get(case.name, "")}
                share = checks.weight(case) / sum(map(checks.weight, chosen[number:]))
                try:
                    if case.name not in errors:
                        entry = checks.check(case, now + (until - now) * share)
                except (PlayerError, PlayerSkip, StageError) as error:
                    entry["error"] = str(error)
                    checks.restart()
                print(line(entry), flush=True)
                # A verdict that was asked for again and again until it was the wanted one would be worth less.
                attempts = results["cases"].get(case.name, {}).get("attempts", 0) + 1
                results["cases"][case.name] = entry | {"machine": about, "attempts": attempts}
                kept.write(options.out, results)
                ran.append(case)
            decide(checks, ran, results, until)
            kept.write(options.out, results)
            untried = {"status": "no time"}
            print(totals([results["cases"][case.name] if case in ran else untried for case in chosen]), flush=True)
        finally:
            checks.close()
    return 0 if all(entry["status"] == "ok" for entry in results["cases"].values()) else EXIT_FAILED


def _constants(text: str) -> dict[str, float]:
    return {name: float(number) for name, _, number in (pair.partition("=") for pair in text.split(","))}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outboard", type=Path, required=True, help="the outboard program")
    parser.add_argument("--out", type=Path, required=True, help="the results (JSON); other programs in it are kept")
    parser.add_argument("--only", type=names, default=[], metavar="NAME,...", help="these programs or groups only")
    parser.add_argument("--recordings", type=Path, default=ROOT / "build" / "recordings", help="where they are kept")
    parser.add_argument("--budget-s", type=float, default=900.0, help="time for everything")
    parser.add_argument("--set", type=_constants, default={}, metavar="NAME=NUMBER,...", help="further constants")
    parser.add_argument("--twin", action="store_true", help="compare a second local process with the first, too")
    parser.add_argument(
        "--through", type=names, default=[], metavar="NAME,...", help="record these through the server, too"
    )
    parser.add_argument(
        "--through-network", action="append", default=[], metavar="NETWORK", help="over this one, too; repeatable"
    )
    parser.add_argument("--predict", action="store_true", help="add predictions to results; needs no GPU")
    parser.add_argument("--device", default="nvidia", help="passed to `outboard serve`")
    parser.add_argument("--log-dir", type=Path, default=ROOT / "build" / "requirement-checks")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""Processes that take turns: one per mode, all running at once, each timed while the others rest.

Whatever else the machine does then hits all modes alike. Figures are medians of the rounds' medians, ratios are formed
within a round.
"""

from __future__ import annotations

import contextlib
import json
import queue
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from process import EVENT_LINE_BYTES_MAX, Mode, Runner, end_process_group, exit_text, parse_event, read_tail
from suite import WORKLOADS_DIR, Group

# Up to the first result of a process: imports of several seconds, on a machine that starts several
# at once.
START_S_MAX = 180.0
# Building a model, and its first steps, in which kernels are loaded and compiled.
PREPARE_S_MAX = 180.0
# Time that a turn may take beyond its budget: one warm-up step and one sample are always taken.
TURN_EXTRA_S_MAX = 60.0
EXIT_S_MAX = 30.0
ERROR_CHARACTERS_MAX = 300


class PlayerError(Exception):
    """A process of a mode ended, hung, or could not do its task."""


class PlayerSkip(Exception):
    """The case cannot run here, without anyone's fault."""


@dataclass(frozen=True)
class Case:
    """A case to time: `step` of `module`'s STEPS."""

    name: str
    title: str
    module: str
    step: str
    # Steps in one sample, and whether the GPU is waited for at their end.
    calls: int = 1
    wait: bool = False
    # Samples of one turn at most; the turn's time limits them too.
    samples: int = 20
    warm_up: int = 3
    group: str = ""
    # Target of the ratio to local, by link.
    targets: dict[str, float] = field(default_factory=dict)
    # Names of the modes in which it is timed; empty for all.
    modes: tuple[str, ...] = ()


class Player:
    """The process of one mode."""

    def __init__(self, runner: Runner, mode: Mode, group: Group, first: str) -> None:
        self.mode = mode
        command = [*runner.python, str(WORKLOADS_DIR / "player.py"), first, "--modules", str(group.directory)]
        command = runner.through(mode, command)
        label = f"{group.name}-{mode.name.replace(' ', '-')}"
        self.stderr_path = runner.log_dir / f"{label}.stderr"
        environment = runner.environment(group, mode, runner.scratch / f"{label}.stats.json")
        self.started = time.monotonic()
        with self.stderr_path.open("wb") as stderr:
            # A session of its own, so that all descendants can be killed together.
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
                start_new_session=True,
            )
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        threading.Thread(target=self._pump, daemon=True).start()
        # Time from the start of the process to its first result on the host, and its own code's
        # share.
        self.ready_s = 0.0
        self.first_result_s = 0.0

    def wait_until_ready(self, deadline: float) -> None:
        event = self._event("starting", min(deadline, self.started + START_S_MAX))
        if event["event"] != "ready":
            raise PlayerError(f"no first result: {event.get('error', event)}")
        self.ready_s = round(time.monotonic() - self.started, 3)
        self.first_result_s = float(event["seconds"])

    def ask(self, command: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(command).encode() + b"\n")
            self.process.stdin.flush()
        except OSError as error:
            raise PlayerError(self._ended()) from error

    def answer(self, what: str, seconds_max: float) -> dict[str, Any]:
        event = self._event(what, time.monotonic() + seconds_max)
        if event["event"] == "skip":
            raise PlayerSkip(str(event["error"]))
        if event["event"] == "error":
            raise PlayerError(str(event["error"])[:ERROR_CHARACTERS_MAX])
        return event

    def close(self) -> None:
        """Lets the process end by itself, so that the client says goodbye; kills it if it does not."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(EXIT_S_MAX)
        end_process_group(self.process)

    def kill(self) -> None:
        end_process_group(self.process)

    def _event(self, what: str, until: float) -> dict[str, Any]:
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                self.kill()
                raise PlayerError(f"no answer in time while {what}: {self._said()}") from None
            if line is None:
                raise PlayerError(self._ended())
            event = parse_event(line)
            if "event" in event:
                return event

    def _ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(EXIT_S_MAX)
        return f"the process ended with {exit_text(self.process.returncode)}: {self._said()}"

    def _said(self) -> str:
        return " | ".join(read_tail(self.stderr_path)[-3:])[:ERROR_CHARACTERS_MAX]

    def _pump(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line[:EVENT_LINE_BYTES_MAX])
        self._lines.put(None)


@dataclass
class Outcome:
    """The outcome of one case in one mode."""

    status: str = "ok"
    error: str = ""
    # The samples of each round, in milliseconds.
    rounds: list[list[float]] = field(default_factory=list)

    def figures(self, baseline: Outcome | None) -> dict[str, Any]:
        if self.status != "ok" or not self.rounds:
            if self.status == "ok":
                return {"status": "not run", "error": "no time was left"}
            return {"status": self.status, "error": self.error}
        medians = [statistics.median(samples) for samples in self.rounds]
        samples = sorted(ms for samples in self.rounds for ms in samples)
        entry: dict[str, Any] = {
            "status": "ok",
            "median_ms": significant(statistics.median(medians)),
            "p10_ms": significant(quantile(samples, 0.1)),
            "p90_ms": significant(quantile(samples, 0.9)),
            "rounds_ms": [significant(ms) for ms in medians],
            "samples": len(samples),
        }
        if baseline is not None and baseline is not self and baseline.status == "ok" and baseline.rounds:
            entry["ratio_to_local"] = significant(ratio(self.rounds, baseline.rounds))
        return entry


def ratio(ours: list[list[float]], theirs: list[list[float]]) -> float:
    """Returns the median of the ratios of the rounds' medians."""
    pairs = zip(ours, theirs, strict=False)
    return statistics.median(statistics.median(a) / statistics.median(b) for a, b in pairs)


def quantile(ordered: list[float], share: float) -> float:
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def significant(value: float) -> float:
    """Rounds to five digits: more would be noise in the results' file."""
    return float(f"{value:.5g}")


@dataclass
class Table:
    """One process for each mode, and the cases that they time in turns."""

    runner: Runner
    group: Group
    modes: list[Mode]
    # Time after which nothing is waited for.
    deadline: float
    turn_s: float
    # The module of a process's first result; by default that of the first case.
    first: str = ""
    players: dict[str, Player] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)

    def open(self, modes: Sequence[Mode]) -> None:
        """Starts all of these modes' processes that are missing, at once."""
        missing = [mode for mode in modes if mode.name not in self.players and mode.name not in self.lost]
        for mode in missing:
            if mode.url is not None:
                self.runner.prepare_remote()
            self.players[mode.name] = Player(self.runner, mode, self.group, self.first)
        for mode in missing:
            try:
                self.players[mode.name].wait_until_ready(self.deadline)
            except PlayerError as error:
                self._lose(mode.name)
                # A mode that cannot start is not tried again.
                self.lost[mode.name] = str(error)

    def close(self) -> None:
        players, self.players = list(self.players.values()), {}
        for player in players:
            with contextlib.suppress(OSError):
                if player.process.stdin is not None:
                    player.process.stdin.close()
        for player in players:
            player.close()

    def play(self, case: Case, rounds_max: int, until: float) -> dict[str, Outcome]:
        """Times one case in each of its modes, round by round, up to `rounds_max` or until the time
        is used up."""
        known = {mode.name: mode for mode in self.modes}
        modes = [known[name] for name in case.modes or known]
        outcomes = {mode.name: Outcome() for mode in modes}
        self.open(modes)
        for name in outcomes.keys() & self.lost.keys():
            outcomes[name] = Outcome("error", self.lost[name])
        command = {"do": "prepare", "module": case.module, "step": case.step, "warm_up": case.warm_up}
        # Models are built at the same time; only timed work takes turns.
        self._all(outcomes, command, "prepared", f"preparing {case.name}", PREPARE_S_MAX)
        for number in range(rounds_max):
            names = [mode.name for mode in modes if outcomes[mode.name].status == "ok"]
            if not names or (number > 0 and time.monotonic() >= until) or time.monotonic() >= self.deadline:
                break
            shift = number % len(names)
            for name in names[shift:] + names[:shift]:
                self._turn(case, name, outcomes[name])
        self._all(outcomes, {"do": "drop"}, "dropped", f"dropping {case.name}", PREPARE_S_MAX)
        return outcomes

    def play_all(
        self, cases: Sequence[Case], rounds_max: int, until: float, done: Callable[[Case, dict[str, Outcome]], None]
    ) -> Case | None:
        """Times the cases one after the other, each for its share of the time; returns the first
        that no time was left for."""
        for number, case in enumerate(cases):
            now = time.monotonic()
            if now >= until:
                return case
            self.first = self.first or case.module
            done(case, self.play(case, rounds_max, now + (until - now) / (len(cases) - number)))
        return None

    def _turn(self, case: Case, name: str, outcome: Outcome) -> None:
        command = {
            "do": "run",
            "calls": case.calls,
            "wait": case.wait,
            "samples": case.samples,
            "budget_s": self.turn_s,
        }
        try:
            self.players[name].ask(command)
            event = self.players[name].answer(f"running {case.name}", self.turn_s + TURN_EXTRA_S_MAX)
            outcome.rounds.append([float(ms) for ms in event["ms"]])
        except (PlayerError, PlayerSkip) as error:
            outcome.status, outcome.error = "error", str(error)
            self._lose(name)

    def _all(
        self, outcomes: dict[str, Outcome], command: dict[str, Any], expected: str, what: str, most: float
    ) -> None:
        asked = []
        for name, player in [(name, self.players[name]) for name in outcomes if name in self.players]:
            try:
                player.ask(command)
                asked.append(name)
            except PlayerError as error:
                outcomes[name] = Outcome("error", str(error))
                self._lose(name)
        for name in asked:
            left = max(1.0, min(most, self.deadline - time.monotonic() + TURN_EXTRA_S_MAX))
            try:
                event = self.players[name].answer(what, left)
                if event["event"] != expected:
                    raise PlayerError(f"it answered {event['event']} while {what}")
            except PlayerSkip as reason:
                outcomes[name] = Outcome("skip", str(reason))
            except PlayerError as error:
                if outcomes[name].status == "ok":
                    outcomes[name].status, outcomes[name].error = "error", str(error)
                self._lose(name)

    def _lose(self, name: str) -> None:
        """Kills a process that failed; the next case starts another."""
        self.players.pop(name).kill()

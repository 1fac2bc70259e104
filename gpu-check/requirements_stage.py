"""The processes of one program for `requirements.py`: recorded, local, and over a network."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from process import Mode, Runner
from server import Server
from suite import Group
from turns import Case, Player, significant

# Iterations that are recorded, and those of them during which the GPU is not timed.
ITERATIONS = 10
UNTIMED = 6
# Programs whose iterations have many thousand calls.
LONG = ("gpt2_gen32", "gpt2_gen32_b512", "sd_sample_b1")
ITERATIONS_OF_LONG = 5
UNTIMED_OF_LONG = 3
WARM_UP_S = 0.3
# Greater than the number of marks.
NEVER_TIMED = 1_000_000
COST_ROUNDS = 12
RECORD_S_MAX = 300.0
REQUIRE_S_MAX = 120.0
CHANGE_S_MAX = 10.0
TURN_EXTRA_S_MAX = 60.0

# Emulates no delay; networks without any round trip are not accepted.
NO_DELAY = "rtt=1ns"

# By network, or by link: milliseconds of a step in each pair of turns, local and remote.
Rounds = dict[str, list[list[float]]]


class StageError(Exception):
    """A failure for which one program is given up."""


@dataclass
class Setting:
    options: argparse.Namespace
    runner: Runner
    server: Server
    group: Group
    recordings: Path
    constants: Path
    # The largest network in time and bandwidth.
    widest: str
    deadline: float
    # Description of the machine, for parts that are measured.
    about: dict[str, Any] = field(default_factory=dict)


def cut(runner: Runner, whole: Path, recording: Path, title: str) -> None:
    """Keeps of a recording its iterations, under a name for people."""
    command = [*runner.outboard, "trace", "cut", str(whole), "-o", str(recording), "--program", title]
    done = subprocess.run(command, capture_output=True, text=True, timeout=REQUIRE_S_MAX)
    if done.returncode != 0:
        raise StageError(done.stderr.strip())


class Stage:
    """A program's processes, all running at once: local, recorded, and over a network that can be
    changed."""

    def __init__(self, setting: Setting, case: Case, parts: frozenset[str]) -> None:
        self.setting, self.case = setting, case
        self.recording = setting.recordings / f"{case.name}.trace"
        self.whole = setting.runner.scratch / "whole.trace"
        self.whole.unlink(missing_ok=True)
        self.players: dict[str, Player] = {}
        url = setting.server.urls["shm"]
        # Without a local GPU the plain server is the reference.
        here = url if setting.options.no_local else None
        scratch = setting.runner.scratch
        is_long = case.name in LONG
        self.iterations = ITERATIONS_OF_LONG if is_long else ITERATIONS
        untimed = UNTIMED_OF_LONG if is_long else UNTIMED
        # The first network sizes the buffers of messages in flight.
        modes = [
            Mode("local", here),
            Mode("recorded", here, record=str(self.whole), untimed=untimed),
            Mode("calls", here, record=str(scratch / "calls.trace"), untimed=NEVER_TIMED),
            Mode("emulated", url, emulate=setting.widest),
        ]
        # Links without a network, and what emulating one adds to each.
        links = setting.server.urls if "links" in parts else {}
        for link, its_url in links.items():
            modes += [Mode(link, its_url), Mode(f"{link}, emulated", its_url, emulate=NO_DELAY)]
        self.links = [name for link in links for name in (link, f"{link}, emulated")]
        used = {"local"} | ({"recorded"} if "record" in parts else set()) | ({"calls"} if "cost" in parts else set())
        used |= {"emulated"} if {"grid", "checks"} & parts else set()
        used |= set(self.links)
        try:
            for mode in modes:
                if mode.name not in used:
                    continue
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
        """Records the program on this machine's GPU; returns the file."""
        player = self.players["recorded"]
        player.ask({"do": "record", "iterations": self.iterations, "warm_up_s": WARM_UP_S})
        player.answer(f"recording {self.case.name}", RECORD_S_MAX)
        self.players.pop("recorded").close()
        cut(self.setting.runner, self.whole, self.recording, self.case.title)
        return self.recording

    def cost(self) -> float:
        """Returns how much longer a step takes while its calls are recorded, both without the
        machine's slow seconds."""
        least: dict[str, float] = {}
        for number in range(COST_ROUNDS):
            for name in ("local", "calls") if number % 2 == 0 else ("calls", "local"):
                step = statistics.median(self.turn(name))
                least[name] = min(step, least.get(name, step))
        self.players.pop("calls").close()
        return significant(least["calls"] / least["local"] - 1)

    def measure(self, networks: list[str], rounds_max: int) -> Rounds:
        """Runs the program on this machine's GPU and over each network, in turns; returns the
        medians of each pair of turns."""
        rounds: Rounds = {network: [] for network in networks}
        for number in range(rounds_max):
            if number > 0 and time.monotonic() >= self.setting.deadline:
                break
            shift = number % len(networks)
            for network in networks[shift:] + networks[:shift]:
                there = self.players["emulated"]
                there.ask({"do": "network", "network": network})
                there.answer(f"changing to {network}", CHANGE_S_MAX)
                # Machines have slower and faster seconds, so each network is compared with its
                # neighbour in time.
                pair = [significant(statistics.median(self.turn(name))) for name in ("local", "emulated")]
                rounds[network].append(pair)
        return rounds

    def measure_links(self, rounds: int) -> Rounds:
        """Runs the program on this machine's GPU and over each link without a network, in turns."""
        found: Rounds = {link: [] for link in self.links}
        for number in range(rounds):
            shift = number % len(self.links)
            for link in self.links[shift:] + self.links[:shift]:
                found[link].append([significant(statistics.median(self.turn(name))) for name in ("local", link)])
        for link in self.links:
            self.players.pop(link).close()
        return found

    def local_ms(self, rounds: int) -> float:
        """Returns a local step's time without the machine's slow seconds."""
        return min(significant(statistics.median(self.turn("local"))) for _ in range(rounds))

    def turn(self, name: str) -> list[float]:
        case, turn_s = self.case, self.setting.options.turn_s
        command = {"do": "run", "calls": case.calls, "wait": case.wait, "samples": case.samples, "budget_s": turn_s}
        self.players[name].ask(command)
        event = self.players[name].answer(f"running {case.name}", turn_s + TURN_EXTRA_S_MAX)
        return [float(ms) for ms in event["ms"]]

    def close(self) -> None:
        for player in self.players.values():
            player.close()

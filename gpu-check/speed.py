#!/usr/bin/env python3
"""Times programs through Outboard against the local GPU, all taking turns in one run.

    python3 gpu-check/speed.py --outboard target/release/outboard --out docs/results/speed.json --budget-s 280

One process for each mode holds the model; they are timed round by round, so that a machine that is slow for a while
is slow for all of them. Medians of rounds; ratios are formed within a round. A mode is a link, or a link and a level
of optimisation: local, shm, tcp, shm:sync, tcp:or+sr.
"""

from __future__ import annotations

import argparse
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import kept
import machine
from process import Mode, Runner
from server import Server, ServerError
from speed_cases import CASES, HISTORY, STARTUP, STARTUP_MODULE, STARTUP_TARGETS_S, select
from suite import ROOT, Group
from turns import Case, Outcome, Player, PlayerError, Table, significant

FORMAT_VERSION = 1
GROUP = Group("speed", ())
LINKS = ("shm", "tcp")
MODES = ("local", "shm", "tcp")
ROUNDS_MAX = 20
STARTUP_ROUNDS = 5
TURN_S = 0.4
BUDGET_S = 280.0
SERVER_START_S = 60.0
# Part of the whole time for starting and ending processes after the last case.
RESERVE_S = 10.0
EXIT_FAILED = 1
EXIT_USAGE = 2


def case_entry(case: Case, outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """Returns one case as it is stored in the results' file."""
    entry: dict[str, Any] = {"title": case.title, "group": case.group, "steps_per_sample": case.calls}
    if case.targets:
        entry["ratio_aimed_at"] = case.targets
    entry["modes"] = {mode: outcome.figures(outcomes.get("local")) for mode, outcome in outcomes.items()}
    return entry


class Results:
    """Results, written after each case, so that an interrupted run keeps them."""

    def __init__(self, path: Path, about: dict[str, Any], modes: list[str]) -> None:
        self.path = path
        self.modes = modes
        # Seed of the cases' order, after a history of pinned memory; None for the listed order.
        self.mixed: int | None = None
        self.complete = False
        self.errors: list[str] = []
        self.cases: dict[str, dict[str, Any]] = {}
        self.startup: dict[str, dict[str, Any]] = {}
        self._about = about

    def add(self, case: Case, outcomes: dict[str, Outcome]) -> None:
        entry = case_entry(case, outcomes)
        self.cases[case.name] = entry
        self.write()

    def write(self) -> None:
        """Replaces the file in one step."""
        document = {
            "format": FORMAT_VERSION,
            "machine": self._about,
            "modes": self.modes,
            "mixed": self.mixed,
            "complete": self.complete,
            "errors": self.errors,
            "cases": self.cases,
        }
        if self.startup:
            document["startup"] = self.startup
        kept.write(self.path, document)

    @property
    def ok(self) -> bool:
        """Whether every mode of every case was timed, or cannot be for want of a library."""
        entries = [entry for case in self.cases.values() for entry in case["modes"].values()]
        entries += list(self.startup.values())
        return bool(entries) and all(e["status"] in ("ok", "skip") for e in entries) and not self.errors


def main(
    arguments: list[str] | None = None,
    cases: tuple[Case, ...] = CASES,
    group: Group = GROUP,
    startup_module: str = STARTUP_MODULE,
) -> int:
    options = _parse(arguments)
    try:
        chosen = select(cases, options.only, (STARTUP,))
    except ValueError as error:
        print(f"speed: {error}", file=sys.stderr)
        return EXIT_USAGE
    with_startup = not options.only or STARTUP in options.only
    if options.mixed is not None:
        chosen = mixed(chosen, options.mixed)
    if options.dry_run:
        for case in chosen:
            print(f"{case.group}: {case.name}: {case.title}")
        if with_startup:
            print(f"{STARTUP}: from the start of a process to its first result")
        return 0
    if options.outboard is None or options.out is None:
        print("speed: --outboard and --out are needed (or --dry-run)", file=sys.stderr)
        return EXIT_USAGE
    if options.device == "nvidia" and not machine.has_gpu():
        print("speed: there is no NVIDIA GPU with a driver here", file=sys.stderr)
        return EXIT_USAGE
    # A signal from outside ends the server and the workloads too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_FAILED))
    options.log_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="speed-") as scratch:
        return _run(options, chosen, startup_module if with_startup else "", group, Path(scratch))


def _run(
    options: argparse.Namespace, chosen: tuple[Case, ...], startup_module: str, group: Group, scratch: Path
) -> int:
    deadline = time.monotonic() + options.budget_s
    outboard = [str(options.outboard)]
    results = Results(options.out, machine.describe(outboard), options.modes)
    results.mixed = options.mixed
    links = [link for link in LINKS if any(mode.partition(":")[0] == link for mode in options.modes)]
    server_log = options.log_dir / "server.log"
    server_log.unlink(missing_ok=True)
    server = Server(outboard, links, options.device, server_log, SERVER_START_S)
    runner = Runner([sys.executable], outboard, scratch, options.log_dir, False, prepare_remote=server.ensure_running)
    modes = [mode_of(name, server.urls) for name in options.modes]
    table = Table(runner, group, modes, deadline, options.turn_s)
    results.write()
    try:
        if links:
            server.start()
        print_head(options.modes)
        if startup_module:
            share = (deadline - time.monotonic()) * STARTUP_ROUNDS / (STARTUP_ROUNDS + max(len(chosen), 1) * 2)
            results.startup = startup(runner, group, modes, startup_module, min(deadline, time.monotonic() + share))
            results.write()
            print_startup(results.startup)

        def done(case: Case, outcomes: dict[str, Outcome]) -> None:
            results.add(case, outcomes)
            print_case(case, results.cases[case.name])

        left_out = table.play_all(chosen, options.rounds, deadline - RESERVE_S, done)
        results.complete = left_out is None
        if left_out is not None:
            results.errors.append(f"the time was used up before {left_out.name}")
    except ServerError as error:
        results.errors.append(str(error))
    finally:
        table.close()
        server.stop()
        if server.restarts:
            results.errors.append(f"the server died and was started again, {server.restarts} times")
        results.write()
    for error in results.errors:
        print(f"speed: {error}", file=sys.stderr)
    print(f"\nresults: {options.out}, logs: {options.log_dir}")
    return 0 if results.ok and results.complete else EXIT_FAILED


def mixed(cases: tuple[Case, ...], seed: int) -> tuple[Case, ...]:
    """Returns the cases in an order by seed, after a typical history of pinned memory."""
    order = list(cases)
    random.Random(seed).shuffle(order)
    return (HISTORY, *order)


def mode_of(name: str, urls: dict[str, str]) -> Mode:
    """Parses `shm` or `shm:LEVEL`."""
    link, _, level = name.partition(":")
    return Mode(name, None if link == "local" else urls[link], level)


def startup(runner: Runner, group: Group, modes: list[Mode], module: str, until: float) -> dict[str, dict[str, Any]]:
    """Times the start of processes up to their first result on the host, one process at a time, in
    turns."""
    times: dict[str, list[tuple[float, float]]] = {mode.name: [] for mode in modes}
    errors: dict[str, str] = {}
    # Once each untimed: files are read from the disk, images are compiled and cached.
    for number in range(-1, STARTUP_ROUNDS):
        if number > 0 and time.monotonic() >= until:
            break
        shift = max(number, 0) % len(modes)
        for mode in modes[shift:] + modes[:shift]:
            if mode.name in errors:
                continue
            try:
                if mode.url is not None:
                    runner.prepare_remote()
                player = Player(runner, mode, group, module)
                try:
                    player.wait_until_ready(float("inf"))
                finally:
                    player.close()
            except PlayerError as error:
                errors[mode.name] = str(error)
                continue
            if number >= 0:
                times[mode.name].append((player.ready_s, player.first_result_s))
    return {mode.name: _startup_entry(times, mode.name, errors.get(mode.name)) for mode in modes}


def _startup_entry(times: dict[str, list[tuple[float, float]]], name: str, error: str | None) -> dict[str, Any]:
    if error is not None or not times[name]:
        return {"status": "error", "error": error or "not run"}
    inside = [first for _, first in times[name]]
    entry: dict[str, Any] = {
        "status": "ok",
        "whole_s": significant(statistics.median(whole for whole, _ in times[name])),
        "import_to_first_result_s": significant(statistics.median(inside)),
        "rounds_s": [significant(s) for s in inside],
    }
    local = [first for _, first in times.get("local", [])]
    if local and name != "local":
        over = statistics.median(a - b for a, b in zip(inside, local, strict=False))
        entry["over_local_s"] = significant(over)
    return entry


TITLE_WIDTH = 44
CELL_WIDTH = 26


def print_head(modes: list[str]) -> None:
    print("median, ms (over local; what is aimed at)".ljust(TITLE_WIDTH) + "".join(m.rjust(CELL_WIDTH) for m in modes))


def print_case(case: Case, entry: dict[str, Any]) -> None:
    cells = "".join(cell(mode, figures, case.targets).rjust(CELL_WIDTH) for mode, figures in entry["modes"].items())
    print(case.title.ljust(TITLE_WIDTH) + cells, flush=True)
    for mode, figures in entry["modes"].items():
        if figures["status"] != "ok":
            print(f"  {mode}: {figures['status']}: {figures['error']}", flush=True)


def cell(mode: str, figures: dict[str, Any], targets: dict[str, float]) -> str:
    if figures["status"] != "ok":
        return str(figures["status"])
    text = f"{figures['median_ms']:.4g}"
    ratio = figures.get("ratio_to_local")
    if ratio is None:
        return text
    # Only the best level is held to the target.
    target = targets.get(mode)
    if target is None:
        return f"{text} ({ratio:.2f})"
    return f"{text} ({ratio:.2f}{' > ' if ratio > target else '; '}{target:g})"


def print_startup(entries: dict[str, dict[str, Any]]) -> None:
    cells = []
    for mode, entry in entries.items():
        if entry["status"] != "ok":
            cells.append(entry["status"])
            continue
        text = f"{entry['import_to_first_result_s'] * 1e3:.0f}"
        if "over_local_s" in entry:
            target = STARTUP_TARGETS_S.get(mode)
            text += f" ({entry['over_local_s'] * 1e3:+.0f}{f'; {target * 1e3:+.0f}' if target else ''})"
        cells.append(text)
    print("import to first result".ljust(TITLE_WIDTH) + "".join(text.rjust(CELL_WIDTH) for text in cells), flush=True)
    for mode, entry in entries.items():
        if entry["status"] != "ok":
            print(f"  {mode}: {entry['error']}", flush=True)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outboard", type=Path, help="the outboard program")
    parser.add_argument("--out", type=Path, help="where the results are written (JSON)")
    parser.add_argument("--only", type=names, default=[], metavar="NAME,...", help="these cases or groups only")
    parser.add_argument("--modes", type=modes_of, default=list(MODES), metavar="local,shm,tcp,LINK:LEVEL")
    parser.add_argument("--mixed", type=int, metavar="SEED", help="in an order by seed, after copies of pinned memory")
    parser.add_argument("--rounds", type=int, default=ROUNDS_MAX, help="turns of each mode at most")
    parser.add_argument("--turn-s", type=float, default=TURN_S, help="the length of a turn")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="for everything; shared out among the cases")
    parser.add_argument("--device", default="nvidia", help="passed to `outboard serve`")
    parser.add_argument("--log-dir", type=Path, default=ROOT / "build" / "speed")
    parser.add_argument("--dry-run", action="store_true", help="list the cases, and run nothing")
    return parser.parse_args(arguments)


def names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def modes_of(text: str) -> list[str]:
    modes = names(text)
    unknown = [mode for mode in modes if mode.partition(":")[0] not in MODES or mode.startswith("local:")]
    if unknown or not modes or len(set(modes)) < len(modes):
        raise argparse.ArgumentTypeError(f"modes are {', '.join(MODES)}, and shm:LEVEL and tcp:LEVEL; each once")
    return modes


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Repeats the measurements of a paper on remote GPUs on this system, everything taking turns in one run.

    python3 gpu-check/paper.py --outboard target/release/outboard --out docs/results/paper-remoting.json

The paper: "Characterizing Network Requirements for GPU API Remoting in AI Applications" (Wang et al.). Its parts are
figure3 (where the time of a call goes), table2 (calls by class), figure6 (batching against outstanding requests),
figure7 (each optimisation on top of the others) and table5 (programs, locally and remotely). Parts and
cases that are not asked for stay in the results as they are, so that a machine lent for minutes can do one after the
other; `paper_plots.py` makes the document from the results.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import breakdown
import classes
import kept
import machine
from paper_cases import CASES, FACTORS, FACTORS_TRAINING
from process import Limits, Mode, Runner
from server import Server, ServerError
from speed import case_entry, mode_of, names, print_case, print_head
from suite import ROOT, Group
from turns import Case, Outcome, Table

FORMAT_VERSION = 1
# Each part's share of the whole time.
PARTS = {"figure3": 1.5, "table2": 2.0, "figure6": 2.5, "figure7": 2.5, "table5": 4.0}
BATCHES = (1, 2, 4, 8, 16, 32, 64)
BEST = "or+sr+local"
LEVELS = ("sync", "or", "or+sr", BEST)
FIGURE3_MODES = ("local", "shm:sync", f"shm:{BEST}", "tcp:sync", f"tcp:{BEST}")
TABLE2_MODES = ("tcp:or", f"tcp:{BEST}")
FIGURE6_MODES = ("local", *(f"tcp:batch={n}+sr+local" for n in BATCHES), f"tcp:{BEST}")
FIGURE7_MODES = tuple(f"{link}:{level}" for link in ("shm", "tcp") for level in LEVELS)
TABLE5_MODES = ("local", "shm:sync", f"shm:{BEST}", "tcp:sync", f"tcp:{BEST}")
ROUNDS_MAX = 12
TURN_S = 0.3
BUDGET_S = 900.0
SERVER_START_S = 60.0
TABLE2_WORKLOAD_S = 120.0
TABLE2_START_S = 120.0
EXIT_S = 30.0
EXIT_FAILED = 1
EXIT_USAGE = 2


@dataclass
class Setting:
    """Settings shared by the parts."""

    options: argparse.Namespace
    runner: Runner
    server: Server
    group: Group
    cases: tuple[Case, ...]
    calls: tuple[breakdown.Call, ...]
    scratch: Path

    def modes(self, named: tuple[str, ...]) -> list[Mode]:
        return [mode_of(name, self.server.urls) for name in named if not (name == "local" and self.options.no_local)]

    def chosen(self, of: tuple[str, ...] = ()) -> tuple[Case, ...]:
        """Returns the cases asked for, among those of the part."""
        only = self.options.cases
        asked = (case for case in self.cases if not only or case.name in only or case.group in only)
        return tuple(case for case in asked if not of or case.name in of)


def figure3(setting: Setting, until: float) -> dict[str, Any]:
    """Figure 3: single calls, and the parts of their time."""
    modes = setting.modes(FIGURE3_MODES)
    calls = breakdown.measure(setting.runner.outboard, modes, setting.calls, setting.scratch, until)
    for entry in calls.values():
        totals = ", ".join(f"{mode} {parts['whole_us']:g}" for mode, parts in entry["modes"].items())
        local = f"{entry['local_us']:g}" if "local_us" in entry else "-"
        print(f"  {entry['title']:26} us: local {local}, {totals}{entry.get('error', '')}", flush=True)
    left = [call.name for call in setting.calls if call.name not in calls]
    return {"calls": calls, "not_run": left}


def table2(setting: Setting, until: float) -> dict[str, Any]:
    """Table 2: the calls of one inference step by class, without and with shadow resources and
    locality."""
    limits = Limits(TABLE2_WORKLOAD_S, TABLE2_START_S, EXIT_S, until)
    results: dict[str, Any] = {}
    for case in setting.chosen(FACTORS):
        modes = {}
        for mode in setting.modes(TABLE2_MODES):
            modes[mode.name] = classes.measure(setting.runner, case, mode, limits, setting.group)
            print(f"  {case.title} ({mode.name}): {modes[mode.name]}", flush=True)
        results[case.name] = {"title": case.title, "modes": modes}
    return {"steps": classes.STEPS, "cases": results}


def figure6(setting: Setting, until: float) -> dict[str, Any]:
    """Figure 6: messages in batches against single messages."""
    return _play(setting, setting.chosen(FACTORS + FACTORS_TRAINING), FIGURE6_MODES, until)


def figure7(setting: Setting, until: float) -> dict[str, Any]:
    """Figure 7: each optimisation on top of the others."""
    return _play(setting, setting.chosen(FACTORS + FACTORS_TRAINING), FIGURE7_MODES, until)


def table5(setting: Setting, until: float) -> dict[str, Any]:
    """Table 5: programs at batch 1 and at a batch that fills the GPU."""
    return _play(setting, setting.chosen(), TABLE5_MODES, until)


def _play(setting: Setting, cases: tuple[Case, ...], named: tuple[str, ...], until: float) -> dict[str, Any]:
    modes = setting.modes(named)
    results: dict[str, Any] = {}
    table = Table(setting.runner, setting.group, modes, until, setting.options.turn_s)
    print_head([mode.name for mode in modes])

    def done(case: Case, outcomes: dict[str, Outcome]) -> None:
        results[case.name] = case_entry(case, outcomes)
        print_case(case, results[case.name])

    try:
        left_out = table.play_all(cases, setting.options.rounds, until, done)
    finally:
        table.close()
    not_run = [] if left_out is None else [case.name for case in cases[cases.index(left_out) :]]
    return {"modes": [mode.name for mode in modes], "cases": results, "not_run": not_run}


RUNNERS: dict[str, Callable[[Setting, float], dict[str, Any]]] = {
    "figure3": figure3,
    "table2": table2,
    "figure6": figure6,
    "figure7": figure7,
    "table5": table5,
}


def main(
    arguments: list[str] | None = None,
    cases: tuple[Case, ...] = CASES,
    group: Group | None = None,
    calls: tuple[breakdown.Call, ...] = breakdown.CALLS,
) -> int:
    options = _parse(arguments)
    unknown = sorted(set(options.only) - set(PARTS))
    if unknown:
        print(f"paper: there is no part {', '.join(unknown)}; the parts are {', '.join(PARTS)}", file=sys.stderr)
        return EXIT_USAGE
    if not options.no_local and not machine.has_gpu():
        print("paper: there is no NVIDIA GPU with a driver here (--no-local does without)", file=sys.stderr)
        return EXIT_USAGE
    known = {case.name for case in cases} | {case.group for case in cases}
    unknown = sorted(set(options.cases) - known)
    if unknown:
        print(f"paper: there is no case {', '.join(unknown)}; there are {', '.join(sorted(known))}", file=sys.stderr)
        return EXIT_USAGE
    try:
        results = kept.load(options.out, {"format": FORMAT_VERSION, "parts": {}})
    except ValueError as error:
        print(f"paper: {error}", file=sys.stderr)
        return EXIT_USAGE
    # A signal from outside ends the server and the workloads too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_FAILED))
    options.log_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="paper-") as scratch:
        outboard = [str(options.outboard)]
        log = options.log_dir / "server.log"
        log.unlink(missing_ok=True)
        server = Server(outboard, ["shm", "tcp"], options.device, log, SERVER_START_S)
        runner = Runner(
            [sys.executable], outboard, Path(scratch), options.log_dir, False, prepare_remote=server.ensure_running
        )
        setting = Setting(options, runner, server, group or Group("paper", ()), cases, calls, Path(scratch))
        return _run(setting, results)


def _run(setting: Setting, results: dict[str, Any]) -> int:
    options = setting.options
    chosen = [part for part in PARTS if not options.only or part in options.only]
    deadline = time.monotonic() + options.budget_s
    about = machine.describe(setting.runner.outboard)
    ok = True
    try:
        setting.server.start()
        for number, part in enumerate(chosen):
            left = sum(PARTS[other] for other in chosen[number:])
            until = time.monotonic() + (deadline - time.monotonic()) * PARTS[part] / left
            print(f"{part}:", flush=True)
            measured = RUNNERS[part](setting, until)
            results["parts"][part] = kept.merged(results["parts"].get(part), measured, about, bool(options.cases))
            kept.write(options.out, results)
            ok = ok and is_whole(measured)
    except ServerError as error:
        print(f"paper: {error}", file=sys.stderr)
        ok = False
    finally:
        setting.server.stop()
    print(f"\nresults: {options.out}, logs: {options.log_dir}")
    return 0 if ok else EXIT_FAILED


def is_whole(measured: dict[str, Any]) -> bool:
    """Whether everything was measured, or cannot be because a library is missing."""
    entries = [entry for case in measured.get("cases", {}).values() for entry in case["modes"].values()]
    failed = [entry for entry in entries if entry["status"] not in ("ok", "skip")]
    failed += [entry for entry in measured.get("calls", {}).values() if "error" in entry]
    return not failed and not measured.get("not_run")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outboard", type=Path, required=True, help="the outboard program")
    parser.add_argument("--out", type=Path, required=True, help="the results (JSON); other parts in it are kept")
    parser.add_argument("--only", type=names, default=[], metavar="PART,...", help=", ".join(PARTS))
    parser.add_argument("--cases", type=names, default=[], metavar="NAME,...", help="these, or groups; not of figure3")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="for all parts asked for")
    parser.add_argument("--rounds", type=int, default=ROUNDS_MAX, help="turns of each mode at most")
    parser.add_argument("--turn-s", type=float, default=TURN_S, help="the length of a turn")
    parser.add_argument("--no-local", action="store_true", help="without the local GPU")
    parser.add_argument("--device", default="nvidia", help="passed to `outboard serve`")
    parser.add_argument("--log-dir", type=Path, default=ROOT / "build" / "paper")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

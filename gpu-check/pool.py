#!/usr/bin/env python3
"""Repeats the measurements of a paper on pools of GPUs on one GPU behind an emulated PCIe, everything in turns.

    python3 gpu-check/pool.py --outboard target/release/outboard --out docs/results/paper-pool-gpu.json

The paper: "DxPU: Large Scale Disaggregated GPU Pools in the Datacenter" (He et al.). Programs run on this machine's
GPU, there behind a PCIe of a longer round trip (`outboard run --local --emulate-pcie`), and over links to Outboard's
server; one process for each, round by round; ratios are formed within a round. First the injection is measured: a
kernel that waits costs more than it waits for, so less is asked for, until the delay is the paper's.

Parts and cases that are not asked for stay in the results as they are. `--record FOLDER` makes recordings of the parts'
programs too, which `make paper-pool` then plays through the simulation; tools/paper_pool.py makes the page.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import kept
import machine
from pool_cases import ALONE, FIGURE4_RTTS_US, LINKS, ON_TWO_GPUS, PARTS, Part, mode_name
from pool_record import record
from process import Mode, Runner
from server import Server, ServerError
from speed import case_entry, mode_of, names, print_case, print_head
from suite import ROOT, Group
from turns import Case, Outcome, Table, significant

FORMAT_VERSION = 1
GROUP = Group("pool", (), {"TORCHINDUCTOR_COMPILE_THREADS": "4"})
# The paper's PCIe.
NATIVE_US = 1.2
IN_FLIGHT_BYTES = 140 * 128
MRS_BYTES = 128
# Copies from pinned memory over PCIe 5.0 x16, as an H200 makes them.
LINK_GB_PER_S = 54.0
# Delays that are tried out. The least is one of 2 ns: the injection's own cost.
LEAST_US = 0.002
TRIED_US = (LEAST_US, 1.5, 2.5, 3.0, 3.7, 4.5, 5.6, 6.8, 15.5, 17.8)
INJECTION, RECORDINGS = "injection", "recordings"
ROUNDS_MAX = 5
TURN_S = 0.15
BUDGET_S = 540.0
# For the recordings, if some are wanted.
RECORD_SHARE = 6.5
RESERVE_S = 5.0
SERVER_START_S = 60.0
EXIT_FAILED = 1
EXIT_USAGE = 2


@dataclass
class Setting:
    """Settings shared by the parts."""

    options: argparse.Namespace
    runner: Runner
    server: Server
    group: Group
    parts: dict[str, Part]
    # Delay that is asked for, by the delay that is to be had, both in us.
    asked: dict[float, float] = field(default_factory=dict)

    def mode(self, name: str) -> Mode:
        # One machine and one driver: all may use the same compiled kernels.
        if name == "local":
            return Mode(name, self.server.urls["shm"] if self.options.no_local else None, caches="local")
        if name in LINKS:
            return replace(mode_of(name, self.server.urls), caches="local")
        if name == ALONE:
            return Mode(name, None, pcie=pcie_of(LEAST_US, NATIVE_US + LEAST_US), caches="local")
        rtt_us = float(name.removesuffix("us"))
        delta_us = rtt_us - NATIVE_US
        return Mode(name, None, pcie=pcie_of(self.asked.get(delta_us, delta_us), rtt_us), caches="local")

    def chosen(self, part: Part) -> tuple[Case, ...]:
        only = self.options.cases
        return tuple(case for case in part.cases if not only or case.name in only)


def pcie_of(asked_us: float, rtt_us: float) -> str:
    """Returns the PCIe that delays work by `asked_us`, and long copies to the rate of `rtt_us`.

    This machine's link is faster than the paper's, so that a byte has to be delayed by more: as if there were fewer
    tags.
    """
    ns_per_byte = rtt_us * 1e3 / IN_FLIGHT_BYTES - 1 / LINK_GB_PER_S
    tags = max(1, round(asked_us * 1e3 / ns_per_byte / MRS_BYTES)) if ns_per_byte > 0 else IN_FLIGHT_BYTES // MRS_BYTES
    return f"rtt={NATIVE_US + asked_us:.3f}us,tags={tags},mrs={MRS_BYTES}"


def delays_had(outcomes: dict[str, Outcome], tried: dict[str, float]) -> tuple[float, dict[float, float]]:
    """Returns how many delays a step has, and by the delay asked for the delay had, in us.

    A busy GPU is later by the same for each microsecond asked for: once for each delay.
    """
    local = outcomes["local"].rounds
    longer_us = {}
    for name, asked_us in tried.items():
        pairs = zip(outcomes[name].rounds, local, strict=False)
        longer = [statistics.median(ours) - statistics.median(theirs) for ours, theirs in pairs]
        if longer and outcomes[name].status == "ok":
            longer_us[asked_us] = statistics.median(longer) * 1e3
    if len(longer_us) < 2:
        return 0.0, {}
    least, most = min(longer_us), max(longer_us)
    delays = (longer_us[most] - longer_us[least]) / (most - least)
    if delays <= 0:
        return 0.0, {}
    return significant(delays), {asked: significant(us / delays) for asked, us in longer_us.items()}


def asked_for(delta_us: float, measured: dict[float, float]) -> float:
    """Returns the delay to ask for, so that `delta_us` are had: by lines between what was tried."""
    points = sorted(measured.items())
    for (low, had_low), (high, had_high) in pairwise(points):
        if had_low <= delta_us <= had_high and had_high > had_low:
            return low + (high - low) * (delta_us - had_low) / (had_high - had_low)
    return delta_us


def injection(setting: Setting, until: float) -> dict[str, Any]:
    """Measures what the injection adds to a kernel, and chooses what is asked for."""
    [case] = setting.parts[INJECTION].cases
    tried = {f"{us:g}": us for us in TRIED_US}
    modes = [setting.mode("local")]
    modes += [Mode(name, None, pcie=pcie_of(us, NATIVE_US + us)) for name, us in tried.items()]
    table = Table(setting.runner, setting.group, modes, until, setting.options.turn_s, first=case.module)
    try:
        outcomes = table.play(case, setting.options.rounds, until)
    finally:
        table.close()
    delays, had = delays_had(outcomes, tried)
    wanted = [rtt_us - NATIVE_US for rtt_us in FIGURE4_RTTS_US]
    setting.asked.update({delta_us: asked_for(delta_us, had) for delta_us in wanted})
    found = {
        "delays_a_step": delays,
        "had_us_by_asked_us": {f"{asked:g}": us for asked, us in had.items()},
        "asked_us": {mode_name(us + NATIVE_US): significant(asked) for us, asked in setting.asked.items()},
    }
    print(f"  {found}", flush=True)
    # One entry for each kind of GPU: parts may have been measured on several.
    gpu = next((gpu["name"] for gpu in machine.gpus()), "no GPU")
    not_run = [] if len(had) == len(tried) else [case.name]
    return {"cases": {gpu: case_entry(case, outcomes) | found}, "not_run": not_run}


def measure(setting: Setting, part: Part, table: Table, until: float) -> dict[str, Any]:
    """Times the cases of a part in its modes."""
    cases = tuple(replace(case, modes=case.modes or part.modes) for case in setting.chosen(part))
    known = {mode.name for mode in table.modes}
    table.modes += [setting.mode(name) for name in part.modes if name not in known]
    table.deadline = until + 60
    results: dict[str, Any] = {}
    print_head(list(part.modes))

    def done(case: Case, outcomes: dict[str, Outcome]) -> None:
        pcie = {mode.name: mode.pcie for mode in table.modes if mode.pcie and mode.name in outcomes}
        results[case.name] = case_entry(case, outcomes) | {"pcie": pcie}
        print_case(case, results[case.name])

    left_out = table.play_all(cases, setting.options.rounds, until, done)
    not_run = [] if left_out is None else [case.name for case in cases[cases.index(left_out) :]]
    return {"modes": list(part.modes), "cases": results, "not_run": not_run}


class Run:
    """One run: which parts, how much time each has, and what was found."""

    def __init__(self, setting: Setting, results: dict[str, Any]) -> None:
        self.setting, self.results = setting, results
        options = setting.options
        asked = options.only or [name for name in setting.parts if name not in ON_TWO_GPUS]
        self.parts = [name for name in setting.parts if name in asked and name != INJECTION]
        self.deadline = time.monotonic() + options.budget_s - RESERVE_S
        # Shares of what was not begun yet.
        self.shares = {name: setting.parts[name].share for name in (INJECTION, *self.parts)}
        if options.record:
            self.shares[RECORDINGS] = RECORD_SHARE
        self.about = machine.describe(setting.runner.outboard)
        self.is_whole = True

    def all(self) -> None:
        setting = self.setting
        table = Table(setting.runner, setting.group, [], self.deadline, setting.options.turn_s)
        try:
            setting.server.start()
            self._keep(INJECTION, injection(setting, self._until(INJECTION)))
            if setting.options.record:
                # While nothing else runs.
                self._keep(RECORDINGS, self._record(self._until(RECORDINGS)))
            for name in self.parts:
                print(f"{name}:", flush=True)
                self._keep(name, measure(setting, setting.parts[name], table, self._until(name)))
        finally:
            table.close()
            setting.server.stop()

    def _record(self, until: float) -> dict[str, Any]:
        setting, options = self.setting, self.setting.options
        parts = [setting.parts[name] for name in self.parts]
        cases = [case for part in parts for case in setting.chosen(part) if case.name in part.recorded]
        here = setting.server.urls["shm"] if options.no_local else None
        return record(setting.runner, setting.group, cases, options.record, until, here)

    def _until(self, name: str) -> float:
        """Returns when a part's share of the time that is left ends."""
        left = sum(self.shares.values())
        now = time.monotonic()
        return now + max(0.0, self.deadline - now) * self.shares.pop(name) / left

    def _keep(self, name: str, measured: dict[str, Any]) -> None:
        parts = self.results["parts"]
        keep = bool(self.setting.options.cases) or name == INJECTION
        parts[name] = kept.merged(parts.get(name), measured, self.about, keep)
        kept.write(self.setting.options.out, self.results)
        modes = [entry for case in measured["cases"].values() for entry in case["modes"].values()]
        failed = [entry for entry in modes if entry["status"] not in ("ok", "skip")]
        failed += [text for text in measured.get("recorded", {}).values() if text.startswith("error")]
        self.is_whole = self.is_whole and not failed and not measured["not_run"]


def main(arguments: list[str] | None = None, parts: dict[str, Part] = PARTS, group: Group = GROUP) -> int:
    options = _parse(arguments)
    known = {case.name for part in parts.values() for case in part.cases}
    unknown = sorted((set(options.only) - set(parts)) | (set(options.cases) - known))
    if unknown:
        print(f"pool: there is no {', '.join(unknown)}; the parts are {', '.join(parts)}", file=sys.stderr)
        return EXIT_USAGE
    if options.dry_run:
        for name, part in parts.items():
            for case in part.cases:
                print(f"{name}: {case.name}: {case.title} ({', '.join(case.modes or part.modes)})")
        return 0
    if not options.no_local and not machine.has_gpu():
        print("pool: there is no NVIDIA GPU with a driver here (--no-local does without)", file=sys.stderr)
        return EXIT_USAGE
    try:
        results = kept.load(options.out, {"format": FORMAT_VERSION, "parts": {}})
    except ValueError as error:
        print(f"pool: {error}", file=sys.stderr)
        return EXIT_USAGE
    # A signal from outside ends the server and the workloads too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_FAILED))
    options.log_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pool-") as scratch:
        outboard = [str(options.outboard)]
        log = options.log_dir / "server.log"
        log.unlink(missing_ok=True)
        server = Server(outboard, list(LINKS), options.device, log, SERVER_START_S)
        runner = Runner(
            [sys.executable], outboard, Path(scratch), options.log_dir, False, prepare_remote=server.ensure_running
        )
        measuring = Run(Setting(options, runner, server, group, parts), results)
        try:
            measuring.all()
        except ServerError as error:
            print(f"pool: {error}", file=sys.stderr)
            return EXIT_FAILED
    print(f"\nresults: {options.out}, logs: {options.log_dir}")
    return 0 if measuring.is_whole else EXIT_FAILED


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outboard", type=Path, required=True, help="the outboard program")
    parser.add_argument("--out", type=Path, required=True, help="the results (JSON); other parts in it are kept")
    parser.add_argument("--only", type=names, default=[], metavar="PART,...", help=", ".join(PARTS))
    parser.add_argument("--cases", type=names, default=[], metavar="NAME,...", help="these only")
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="make recordings of the parts' programs, too")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="for everything; shared out among the parts")
    parser.add_argument("--rounds", type=int, default=ROUNDS_MAX, help="turns of each mode at most")
    parser.add_argument("--turn-s", type=float, default=TURN_S, help="the length of a turn")
    parser.add_argument("--no-local", action="store_true", help="over shm in place of the local GPU")
    parser.add_argument("--device", default="nvidia", help="passed to `outboard serve`")
    parser.add_argument("--log-dir", type=Path, default=ROOT / "build" / "pool")
    parser.add_argument("--dry-run", action="store_true", help="list the cases, and run nothing")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

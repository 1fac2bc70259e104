#!/usr/bin/env python3
"""The differential check: the same programs on the local GPU and through Outboard, over each link.

    python3 gpu-check/run.py --outboard target/release/outboard --out docs/results/h200.json --quick

Starts `outboard serve` itself, runs every workload in every mode, compares, writes the results after each
group and prints a table. Ends with 0 only if everything that is expected to pass has passed. Nothing is
downloaded: weights are random, with fixed seeds.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import machine
import steady
from process import Limits, Mode, Runner
from report import Report, print_table
from server import Server, ServerError
from suite import ROOT, Group, groups, select, soaking

MODES = ("local", "shm", "tcp")
WORKLOAD_S = 240.0
WORKLOAD_QUICK_S = 60.0
START_S = 90.0
SERVER_START_S = 30.0
EXIT_S = 30.0
EXIT_FAILED = 1
EXIT_USAGE = 2


def main(arguments: list[str] | None = None, suite: tuple[Group, ...] | None = None) -> int:
    options = _parse(arguments)
    try:
        suite = soaking(groups() if suite is None else suite, options.soak_s, options.soak_seed)
        chosen = select(suite, options.only, options.quick)
    except ValueError as error:
        print(f"gpu-check: {error}", file=sys.stderr)
        return EXIT_USAGE
    if options.dry_run:
        _list(chosen, options.modes)
        return 0
    if options.outboard is None or options.out is None:
        print("gpu-check: --outboard and --out are needed (or --dry-run)", file=sys.stderr)
        return EXIT_USAGE
    if options.device == "nvidia" and not machine.has_gpu():
        print("gpu-check: there is no NVIDIA GPU with a driver here, and this check needs one", file=sys.stderr)
        return EXIT_USAGE
    # A signal from outside ends the server and the workloads too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_FAILED))
    options.log_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as scratch:
        return _check(options, chosen, Path(scratch))


def _check(options: argparse.Namespace, chosen: tuple[Group, ...], scratch: Path) -> int:
    outboard = [str(options.outboard)]
    limits = Limits(
        workload_s=options.timeout_s or (WORKLOAD_QUICK_S if options.quick else WORKLOAD_S),
        start_s=START_S,
        exit_s=EXIT_S,
        deadline=time.monotonic() + options.budget_s,
    )
    links = [mode for mode in options.modes if mode != "local"]
    server_log = options.log_dir / "server.log"
    server_log.unlink(missing_ok=True)
    server = Server(outboard, links, options.device, server_log, SERVER_START_S)
    report = Report(options.out, machine.describe(outboard), options.modes, options.quick)
    runner = Runner(
        [sys.executable], outboard, scratch, options.log_dir, options.quick, prepare_remote=server.ensure_running
    )
    try:
        if links:
            server.start()
        modes = [Mode(name, server.urls.get(name)) for name in options.modes]
        for group in chosen:
            for mode in modes:
                print(f"{group.name} ({mode.name}) ...", end="", flush=True)
                started = time.monotonic()
                run = runner.run_group(group, mode, _lasting(limits, group))
                report.add(group, mode, run)
                report.write()
                print(f" {time.monotonic() - started:.0f} s: {report.summary(group, mode.name)}", flush=True)
        if options.counts and links:
            counts_mode = next(mode for mode in modes if mode.url is not None)
            steady.count(chosen, counts_mode, runner, limits, report)
        report.complete = True
    except ServerError as error:
        report.fail(str(error))
        print(f"gpu-check: {error}", file=sys.stderr)
    finally:
        server.stop()
        report.finish(server.restarts, server.log_tail())
        report.write()
    print_table(report)
    print(f"\nresults: {options.out}, logs: {options.log_dir}")
    return 0 if report.ok else EXIT_FAILED


def _lasting(limits: Limits, group: Group) -> Limits:
    """The limits of a group whose workloads are asked to last."""
    return replace(limits, workload_s=limits.workload_s + group.lasts_s)


def _list(chosen: tuple[Group, ...], modes: list[str]) -> None:
    for group in chosen:
        print(f"{group.name}:")
        for workload in group.workloads:
            notes = []
            if workload.synchronous_max is not None:
                notes.append(f"at most {workload.synchronous_max:g} waiting calls an iteration")
            if workload.slow:
                notes.append("full run only")
            if workload.known_failure:
                notes.append(f"known failure: {workload.known_failure}")
            print(f"  {workload.name}" + (f"  ({'; '.join(notes)})" if notes else ""))
    count = sum(len(group.workloads) for group in chosen)
    print(f"{count} workloads in {len(chosen)} processes for each mode ({', '.join(modes)})")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outboard", type=Path, help="the outboard program")
    parser.add_argument("--out", type=Path, help="where the results are written (JSON)")
    parser.add_argument("--only", type=_names, default=[], metavar="NAME,...", help="these groups or workloads only")
    parser.add_argument("--modes", type=_modes, default=list(MODES), metavar="local,shm,tcp")
    parser.add_argument("--quick", action="store_true", help="few iterations: about 6 minutes for three modes")
    parser.add_argument("--timeout-s", type=float, help="most seconds for one workload in one mode")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="most seconds for the whole check")
    parser.add_argument("--soak-s", type=float, default=0, help="how long the soak lasts in each mode")
    parser.add_argument("--soak-seed", type=int, default=1, help="the order of the soak's steps")
    parser.add_argument("--counts", action="store_true", help="count the calls of a steady-state iteration too")
    parser.add_argument("--device", default="nvidia", help="passed to `outboard serve`")
    parser.add_argument("--log-dir", type=Path, default=ROOT / "build" / "gpu-check")
    parser.add_argument("--dry-run", action="store_true", help="list what would run, and run nothing")
    return parser.parse_args(arguments)


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _modes(text: str) -> list[str]:
    modes = _names(text)
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown or not modes:
        raise argparse.ArgumentTypeError(f"modes are {', '.join(MODES)}")
    # Local comes first, because the others are compared with it.
    return sorted(set(modes), key=MODES.index)


if __name__ == "__main__":
    sys.exit(main())

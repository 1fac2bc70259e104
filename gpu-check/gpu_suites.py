#!/usr/bin/env python3
"""Other people's programs and tests, on the local GPU and through Outboard, compared name by name.

    python3 gpu-check/gpu_suites.py --outboard target/release/outboard --out docs/results/gpu-suites.json
    python3 gpu-check/gpu_suites.py --page docs/results/gpu-suites.json > docs/gpu-suites.md

Sources are never downloaded: what is not at `--sources` is skipped and said so (gpu-check/README.md says what belongs
there). Ends with 0 if no case differs from the local GPU, and with 2 if nothing could be run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
from outside import results
from outside.cases import LEFT_OUT, SKIP, Outcome, kept, part_of
from outside.compare import DEFECTS, equal, judge
from outside.pool import Limits, Pool, Unusable, Where
from server import Server, ServerError
from suite import ROOT

SUITES = (
    "op_db",
    "module_db",
    "optim_db",
    "numba_cuda",
    "cuda_samples",
    "hecbench",
    "triton_unit",
    "jax_unit",
    "cupy_unit",
    "nccl_tests",
    "cutlass",
)
LINKS = {"shm": "shm", "tcp": "tcp", "soft": "shm"}
MODES = ("local", "shm", "tcp", "soft")
CASE_S = 60.0
START_S = 150.0
SERVER_START_S = 30.0
# Cases that differ run again in both modes, up to this many per suite and mode.
AGAIN_MAX = 400
EXIT_DIFFERENT = 1
EXIT_USAGE = 2


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    if options.page is not None:
        return _print_page(options.page)
    if options.outboard is None or options.out is None:
        print("gpu-suites: --outboard and --out are needed (or --page)", file=sys.stderr)
        return EXIT_USAGE
    if set(options.modes) - {"soft"} and not machine.has_gpu():
        print("gpu-suites: there is no NVIDIA GPU with a driver here: --modes soft needs none", file=sys.stderr)
        return EXIT_USAGE
    try:
        # Checked now, not after the first suite has run for its whole time.
        results.check(options.out)
        options.log_dir.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        print(f"gpu-suites: results or logs cannot be written: {error}", file=sys.stderr)
        return EXIT_USAGE
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_DIFFERENT))
    with tempfile.TemporaryDirectory(prefix="gpu-suites-") as scratch:
        check = Check(options, Path(scratch))
        try:
            return check.run()
        except ServerError as error:
            print(f"gpu-suites: {error}", file=sys.stderr)
            return EXIT_USAGE
        finally:
            check.stop()


class Check:
    """One run of the chosen suites in the chosen modes."""

    def __init__(self, options: argparse.Namespace, scratch: Path) -> None:
        self.options = options
        self.scratch = scratch
        self.servers: dict[str, Server] = {}
        self._lock = threading.Lock()
        outboard = [str(options.outboard)]
        for device, modes in (("nvidia", ("shm", "tcp")), ("soft", ("soft",))):
            links = [LINKS[mode] for mode in modes if mode in options.modes]
            if links:
                log = options.log_dir / f"server-{device}.log"
                log.unlink(missing_ok=True)
                self.servers[device] = Server(outboard, links, device, log, SERVER_START_S)

    def run(self) -> int:
        for server in self.servers.values():
            server.start()
        described = machine.describe([str(self.options.outboard)])
        settings = {name: getattr(self.options, name) for name in ("seed", "case_s", "modes")}
        suites: dict[str, Any] = {}
        for name in self.options.suites:
            started = time.monotonic()

            def keep(summary: dict[str, Any], name: str = name) -> None:
                suites[name] = summary
                results.write(self.options.out, described, settings, suites)

            keep(self._suite(name, keep))
            what = suites[name].get("missing") or suites[name]["modes"]
            print(f"{name}: {time.monotonic() - started:.0f} s: {what}", flush=True)
        restarts = {device: server.restarts for device, server in self.servers.items() if server.restarts}
        if restarts:
            print(f"gpu-suites: servers that died and were started again: {restarts}", file=sys.stderr)
        if all("missing" in suite for suite in suites.values()):
            print("gpu-suites: nothing was compared: no suite could be run here", file=sys.stderr)
            return EXIT_USAGE
        return EXIT_DIFFERENT if restarts or results.defects(suites) else 0

    def stop(self) -> None:
        for server in self.servers.values():
            server.stop()

    def _suite(self, name: str, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Runs one suite in all modes at once, then the differing cases once more.

        What there is after the first round, or when the check is stopped, goes to `keep`.
        """
        deadline = time.monotonic() + self.options.budget_s
        pools = {mode: self._pool(name, mode, deadline) for mode in self.options.modes}
        try:
            every = [case for case in next(iter(pools.values())).list_cases() if self.options.match in case]
            names = kept(every, self.options.slice, self.options.seed)
        except Unusable as why:
            return {"missing": str(why)}
        processes = max(1, self.options.processes // len(pools))
        runs: dict[str, dict[str, list[Outcome]]] = {mode: {} for mode in pools}
        try:
            self._round(pools, names, processes, runs)
            again = self._again(runs)
            if again:
                keep(self._summary(name, pools, runs))
                # The deadline was for the first round: differences must be confirmed in any case.
                late = time.monotonic() + self.options.budget_s / 2
                pools = {mode: self._pool(name, mode, late) for mode in self.options.modes}
                self._round(pools, again, processes, runs)
        except BaseException:
            keep(self._summary(name, pools, runs))
            raise
        return self._summary(name, pools, runs)

    def _summary(self, name: str, pools: dict[str, Pool], runs: dict[str, dict[str, list[Outcome]]]) -> dict[str, Any]:
        """Writes what each case did to the logs, and returns the suite's part of the results."""
        for mode, done in runs.items():
            lines = [runs_[0].line(case) for case, runs_ in sorted(done.items())]
            (self.options.log_dir / f"{name}-{mode}.outcomes").write_text("\n".join(lines) + "\n")
            log = {case: [run.fields() for run in runs_] for case, runs_ in sorted(done.items())}
            (self.options.log_dir / f"{name}-{mode}.json").write_text(json.dumps(log, indent=0) + "\n")
        summary = {"slice": "/".join(map(str, self.options.slice)), **results.summarise(runs)}
        summary["unusable"] = {mode: pool.unusable for mode, pool in pools.items() if pool.unusable}
        return summary

    def _round(
        self, pools: dict[str, Pool], names: list[str], processes: int, runs: dict[str, dict[str, list[Outcome]]]
    ) -> None:
        """Runs the cases in all modes at once, and adds what each did to `runs`."""
        threads = [threading.Thread(target=pool.run, args=(names, processes)) for pool in pools.values()]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:
            # Ctrl-C or SIGTERM: otherwise the threads would go on, and start servers again, until
            # the suite's time is up.
            for pool in pools.values():
                pool.stop()
            raise
        finally:
            for mode, pool in pools.items():
                for case, run in list(pool.outcomes.items()):
                    runs[mode].setdefault(case, []).append(run)

    def _again(self, runs: dict[str, dict[str, list[Outcome]]]) -> list[str]:
        """Returns the cases that are worth a second run in every mode."""
        local = runs.get("local", {})
        found: set[str] = set()
        for mode, done in runs.items():
            for case, one in done.items():
                if mode == "local" or one[0].outcome == LEFT_OUT:
                    continue
                mine = local.get(case, [])
                differs = bool(mine) and mine[0].outcome != LEFT_OUT and not equal(mine[0], one[0])
                if differs or (not mine and judge([], one) in DEFECTS and one[0].outcome != SKIP):
                    found.add(case)
        return sorted(found)[:AGAIN_MAX]

    def _pool(self, name: str, mode: str, deadline: float) -> Pool:
        limits = Limits(self.options.case_s, START_S, deadline)
        return Pool(name, self.options.sources, self._where(mode), limits, self.options.log_dir)

    def _where(self, mode: str) -> Where:
        environment = self._environment(mode)
        if mode == "local":
            return Where(mode, lambda command: command, environment)
        server = self.servers["soft" if mode == "soft" else "nvidia"]
        url = server.urls[LINKS[mode]]
        outboard = str(self.options.outboard)

        def prepare() -> None:
            with self._lock:
                server.ensure_running()

        return Where(mode, lambda command: [outboard, "run", "--gpu", url, "--", *command], environment, prepare)

    def _environment(self, mode: str) -> dict[str, str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("OUTBOARD_")}
        caches = self.scratch / "caches" / mode
        environment.update(
            CUBLAS_WORKSPACE_CONFIG=":4096:8",
            CUPY_CACHE_DIR=str(caches / "cupy"),
            NUMBA_CACHE_DIR=str(caches / "numba"),
            OMP_NUM_THREADS="1",
            OPENBLAS_NUM_THREADS="1",
            PYTHONHASHSEED="0",
            PYTHONUNBUFFERED="1",
            TORCHINDUCTOR_CACHE_DIR=str(caches / "inductor"),
            TRITON_CACHE_DIR=str(caches / "triton"),
        )
        return environment


def _print_page(path: Path) -> int:
    try:
        page = results.page(results.load(path))
    except (OSError, ValueError) as error:
        print(f"gpu-suites: there is no page of {path}: {error}", file=sys.stderr)
        return EXIT_USAGE
    print(page, end="")
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outboard", type=Path, help="the outboard program")
    parser.add_argument("--out", type=Path, help="where the results are written (JSON)")
    parser.add_argument("--page", type=Path, metavar="RESULTS", help="print the Markdown page of a results file")
    parser.add_argument("--sources", type=Path, default=ROOT / "build" / "suites", help="where checkouts lie")
    parser.add_argument("--suites", type=_among(SUITES), default=list(SUITES), metavar="NAME,...")
    parser.add_argument("--modes", type=_among(MODES), default=["local", "shm", "tcp"], metavar="local,shm,tcp,soft")
    parser.add_argument("--slice", type=_part, default=(1, 1), metavar="I/K", help="part of the cases, by their hash")
    parser.add_argument("--match", default="", metavar="TEXT", help="only the cases whose names have this in them")
    parser.add_argument("--seed", type=int, default=0, help="order of the cases")
    parser.add_argument(
        "--budget-s",
        type=float,
        default=600.0,
        help="most seconds for a suite; half as many more to run again what differs",
    )
    parser.add_argument("--case-s", type=float, default=CASE_S, help="most seconds for a case")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="at once, in all modes together")
    parser.add_argument("--log-dir", type=Path, default=ROOT / "build" / "gpu-suites")
    options = parser.parse_args(arguments)
    if options.processes < 1:
        parser.error("--processes begins at 1")
    return options


def _part(text: str) -> tuple[int, int]:
    try:
        return part_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not I/K with 1 <= I <= K, as 2/3") from error


def _among(known: tuple[str, ...]) -> Any:
    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            raise argparse.ArgumentTypeError(f"known are {', '.join(known)}")
        return sorted(set(names), key=known.index)

    return parse


if __name__ == "__main__":
    sys.exit(main())

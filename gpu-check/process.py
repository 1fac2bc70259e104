"""Runs one group of workloads in one mode, with a time limit on every wait.

A workload process talks on its standard output, a line an event, each with the prefix `GPU-CHECK `:

    {"event": "ready"}                             the first result of the GPU is on the host
    {"event": "unusable", "error": ...}            or there is none, and no workload was tried
    {"event": "begin", "name": ...}                a workload starts
    {"event": "result", "name": ..., "status": ...} and ends: pass, fail or skip, with what it measured
    {"event": "end"}                               all were run; the process must now exit

Other lines are kept in the log.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from server import ServerError
from suite import WORKLOADS_DIR, Group, Workload

EVENT_PREFIX = "GPU-CHECK "
STDERR_LINES_MAX = 12
# After this many hangs in one mode the group is given up.
TIMEOUTS_MAX = 3
STDERR_LINE_CHARACTERS_MAX = 400
EVENT_LINE_BYTES_MAX = 1 << 20


@dataclass(frozen=True)
class Mode:
    """A way to run the workloads: `url` is None for this machine's own GPU."""

    name: str
    url: str | None
    # Level for `outboard run --optimise`; empty for its default.
    optimise: str = ""
    # The emulated network; empty for none.
    emulate: str = ""
    # The file that every call is recorded in; empty for none. Without a `url`, on this machine's
    # own GPU.
    record: str = ""
    # Iterations before the GPU is timed.
    untimed: int = 0
    # The longer PCIe that this machine's own GPU seems to be behind; empty for none.
    pcie: str = ""
    # Name of the mode whose caches of compiled kernels it uses; empty for its own.
    caches: str = ""


@dataclass(frozen=True)
class Limits:
    """Time limits."""

    workload_s: float
    start_s: float
    exit_s: float
    # time.monotonic() after which nothing new starts and running processes are killed.
    deadline: float = float("inf")

    def until(self, seconds: float) -> float:
        return min(time.monotonic() + seconds, self.deadline)


@dataclass
class GroupRun:
    """The results of one group in one mode."""

    # By workload: the fields of its result event, which always include `status`.
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    startup_s: float | None = None
    exit_code: int | None = None
    exit_s: float | None = None
    exit_error: str = ""
    restarts: int = 0
    stats: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class _Attempt:
    """One process of a group."""

    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    running: str | None = None
    # Why not even the first result came; empty if it came.
    unusable: str = ""
    ready_s: float | None = None
    ended: bool = False
    exit_code: int | None = None
    exit_s: float | None = None
    # Why the runner killed the process; empty if it ended by itself.
    killed: str = ""
    stderr_tail: list[str] = field(default_factory=list)


class Runner:
    """Starts workload processes, in the same way in every mode."""

    def __init__(
        self,
        python: list[str],
        outboard: list[str],
        scratch: Path,
        log_dir: Path,
        quick: bool,
        prepare_remote: Callable[[], None] = lambda: None,
    ) -> None:
        self.python = python
        self.outboard = outboard
        self.scratch = scratch
        self.log_dir = log_dir
        self.quick = quick
        # Called before each process that needs a server; raises ServerError if there is none.
        self.prepare_remote = prepare_remote
        self._processes = 0

    def run_group(self, group: Group, mode: Mode, limits: Limits, steady_iterations: int = 0) -> GroupRun:
        """Runs all workloads of the group, in as many processes as hangs and crashes require."""
        run = GroupRun()
        remaining = list(group.workloads)
        while remaining:
            if time.monotonic() >= limits.deadline:
                _give_up(run, remaining, "not run", "the time for the whole check was used up")
                break
            try:
                if mode.url is not None:
                    self.prepare_remote()
            except ServerError as error:
                _give_up(run, remaining, "not run", str(error))
                break
            attempt = self._attempt(group, remaining, mode, limits, steady_iterations, run)
            for result in attempt.results.values():
                if result["status"] == "fail":
                    result["stderr"] = attempt.stderr_tail
            run.results.update(attempt.results)
            if run.startup_s is None:
                run.startup_s = attempt.ready_s
            remaining = [w for w in remaining if w.name not in attempt.results]
            if not remaining or attempt.ended:
                run.exit_code, run.exit_s = attempt.exit_code, attempt.exit_s
                run.exit_error = _exit_error(attempt, group.exit_code)
                _give_up(run, remaining, "fail", "the process ended without a result")
                break
            run.restarts += 1
            remaining = _blame(run, remaining, attempt)
            timeouts = sum(result["status"] == "timeout" for result in run.results.values())
            if remaining and timeouts >= TIMEOUTS_MAX:
                _give_up(run, remaining, "not run", f"{timeouts} workloads of this group hung before")
                break
        return run

    def command(
        self, group: Group, workloads: list[Workload], mode: Mode, workload_s: float, steady_iterations: int
    ) -> list[str]:
        """Returns the command line of one process, as a person would type it."""
        command = [*self.python, str(WORKLOADS_DIR / "main.py"), "--modules", str(group.directory)]
        command += ["--watchdog-s", f"{max(1.0, workload_s - 3):g}"]
        if self.quick:
            command.append("--quick")
        if steady_iterations:
            command += ["--steady", str(steady_iterations)]
        command += [w.target for w in workloads]
        return self.through(mode, command)

    def through(self, mode: Mode, command: list[str]) -> list[str]:
        """Returns the command as it is run in a mode."""
        if mode.url is None and not mode.record and not mode.pcie:
            return command
        where = ["--local"] if mode.url is None else ["--gpu", mode.url]
        emulate = ["--emulate", mode.emulate] if mode.emulate else []
        record = ["--record", mode.record] if mode.record else []
        if mode.untimed and mode.url is None:
            record += ["--untimed", str(mode.untimed)]
        pcie = ["--emulate-pcie", mode.pcie] if mode.pcie else []
        return [*self.outboard, "run", *where, *emulate, *pcie, *record, "--", *command]

    def _attempt(
        self,
        group: Group,
        workloads: list[Workload],
        mode: Mode,
        limits: Limits,
        steady_iterations: int,
        run: GroupRun,
    ) -> _Attempt:
        self._processes += 1
        label = f"{self._processes:03}-{group.name}-{mode.name}"
        stats_path = self.scratch / f"{label}.stats.json"
        stderr_path = self.log_dir / f"{label}.stderr"
        command = self.command(group, workloads, mode, limits.workload_s, steady_iterations)
        environment = self.environment(group, mode, stats_path)
        started = time.monotonic()
        with stderr_path.open("wb") as stderr:
            # A session of its own, so that all descendants can be killed together.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
                start_new_session=True,
            )
        attempt = _Attempt()
        try:
            _follow(process, attempt, limits, started, self.log_dir / f"{label}.stdout")
        finally:
            end_process_group(process)
        attempt.exit_code = process.returncode
        attempt.stderr_tail = read_tail(stderr_path)
        stats = _read_stats(stats_path)
        if stats is not None:
            run.stats.append(stats)
        return attempt

    def environment(self, group: Group, mode: Mode, stats_path: Path) -> dict[str, str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("OUTBOARD_")}
        # Where results are checked, every mode compiles for itself: a kernel from another mode's
        # cache would prove nothing.
        caches = self.scratch / "caches" / (mode.caches or mode.name)
        environment.update(
            CUBLAS_WORKSPACE_CONFIG=":4096:8",
            CUPY_CACHE_DIR=str(caches / "cupy"),
            HF_HUB_OFFLINE="1",
            NUMBA_CACHE_DIR=str(caches / "numba"),
            PYTHONHASHSEED="0",
            PYTHONUNBUFFERED="1",
            TOKENIZERS_PARALLELISM="false",
            TORCHINDUCTOR_CACHE_DIR=str(caches / "inductor"),
            TRANSFORMERS_OFFLINE="1",
            TRITON_CACHE_DIR=str(caches / "triton"),
        )
        if self.quick:
            environment["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        if mode.url is not None:
            environment["OUTBOARD_STATS"] = str(stats_path)
            # The server decides which GPUs there are.
            environment.pop("CUDA_VISIBLE_DEVICES", None)
        if mode.optimise:
            environment["OUTBOARD_OPTIMISE"] = mode.optimise
        environment.update(group.environment)
        return environment


def _follow(
    process: subprocess.Popen[bytes], attempt: _Attempt, limits: Limits, started: float, stdout_path: Path
) -> None:
    """Reads events until the process exits or one of its limits passes."""
    lines: queue.Queue[bytes | None] = queue.Queue()

    def pump() -> None:
        assert process.stdout is not None
        with stdout_path.open("wb") as log:
            for line in process.stdout:
                log.write(line)
                lines.put(line[:EVENT_LINE_BYTES_MAX])
        lines.put(None)

    threading.Thread(target=pump, daemon=True).start()
    until, waiting_for = limits.until(limits.start_s), "starting"
    ended_at = time.monotonic()
    while True:
        try:
            line = lines.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            what = "the time for the whole check was used up" if until == limits.deadline else "no answer in time"
            attempt.killed = f"{what} while {waiting_for}"
            return
        if line is None:
            break
        event = parse_event(line)
        ended_at = time.monotonic()
        match event.get("event"):
            case "ready":
                attempt.ready_s = round(ended_at - started, 3)
            case "unusable":
                attempt.unusable = str(event["error"])
            case "begin":
                attempt.running = str(event["name"])
                until, waiting_for = limits.until(limits.workload_s), f"running {attempt.running}"
            case "result":
                fields = {"status": "fail"} | {k: v for k, v in event.items() if k not in ("event", "name")}
                attempt.results[str(event["name"])] = fields
                attempt.running = None
                until, waiting_for = limits.until(limits.exit_s), "going on after a result"
            case "end":
                attempt.ended = True
                until, waiting_for = limits.until(limits.exit_s), "exiting"
    try:
        process.wait(timeout=limits.exit_s)
        attempt.exit_s = round(time.monotonic() - ended_at, 3)
    except subprocess.TimeoutExpired:
        attempt.killed = "it closed its output and did not exit"


def end_process_group(process: subprocess.Popen[bytes]) -> None:
    """Kills the process and all that it started. A polite end is not needed: results are already
    written lines."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _blame(run: GroupRun, remaining: list[Workload], attempt: _Attempt) -> list[Workload]:
    """Records why the process did not finish; returns the workloads still worth a try."""
    status = "timeout" if attempt.killed else "crash"
    reason = attempt.killed or f"the process ended with {exit_text(attempt.exit_code)}"
    if attempt.unusable:
        status, reason = "fail", f"no first result: {attempt.unusable}"
    outcome = {"status": status, "error": reason, "stderr": attempt.stderr_tail}
    if attempt.running is not None:
        run.results[attempt.running] = outcome
        return [w for w in remaining if w.name != attempt.running]
    if attempt.results:
        # It failed between two workloads, for instance because one ended the CUDA context.
        return remaining
    for workload in remaining:
        run.results[workload.name] = dict(outcome)
    return []


def _give_up(run: GroupRun, workloads: list[Workload], status: str, error: str) -> None:
    for workload in workloads:
        run.results[workload.name] = {"status": status, "error": error}


def _exit_error(attempt: _Attempt, expected: int) -> str:
    if attempt.killed:
        return attempt.killed
    if attempt.exit_code != expected:
        tail = " | ".join(attempt.stderr_tail[-3:])
        return f"the process ended with {exit_text(attempt.exit_code)}, expected {expected}: {tail}"
    return ""


def exit_text(code: int | None) -> str:
    """Describes an exit status; by the signal's name if a signal ended the process."""
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit status {code}"


def parse_event(line: bytes) -> dict[str, Any]:
    text = line.decode(errors="replace")
    if not text.startswith(EVENT_PREFIX):
        return {}
    try:
        event = json.loads(text[len(EVENT_PREFIX) :])
    except json.JSONDecodeError:
        return {}
    return event if isinstance(event, dict) else {}


def read_tail(path: Path) -> list[str]:
    lines = path.read_text(errors="replace").splitlines()
    return [line[:STDERR_LINE_CHARACTERS_MAX] for line in lines if line.strip()][-STDERR_LINES_MAX:]


def _read_stats(path: Path) -> dict[str, Any] | None:
    """Returns the client's counters, which it writes as it exits; None if it wrote none."""
    try:
        stats = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        return None
    return stats if isinstance(stats, dict) else None

"""Where the time of a single call goes, remotely: Figure 3 of the paper.

The calls are made by `outboard bench-worker`, a process for each mode, in turns. The client library tells at its end
how long its calls took, how long they were busy sending and how long they waited (OUTBOARD_STATS_TIMES); the local GPU
tells what the call itself takes.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import statistics
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from process import Mode, end_process_group, read_tail
from turns import significant

START_S_MAX = 90.0
TURN_EXTRA_S_MAX = 60.0
EXIT_S_MAX = 30.0
ROUNDS = 5
SAMPLES = 200
TURN_MS = 60
KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True)
class Call:
    """A call, or two that belong together; `work` repeats it."""

    name: str
    title: str
    # Argument of `outboard bench-worker`.
    work: Any
    # Driver functions whose times are added up; the calls of the first count how often the work was
    # done.
    functions: tuple[str, ...]


CALLS: tuple[Call, ...] = (
    Call("get_device", "GetDevice", "context_device", ("cuCtxGetDevice",)),
    Call("mem_get_info", "MemGetInfo", "memory_info", ("cuMemGetInfo_v2",)),
    Call("event_query", "EventQuery", "event_query_done", ("cuEventQuery",)),
    Call("event_record", "EventRecord", "event_record", ("cuEventRecord",)),
    Call("event_create", "EventCreate+Destroy", "event_create_destroy", ("cuEventCreate", "cuEventDestroy_v2")),
    Call("mem_alloc", "MemAlloc+Free", "allocate", ("cuMemAlloc_v2", "cuMemFree_v2")),
    Call("mem_alloc_async", "MemAllocAsync+FreeAsync", "allocate_async", ("cuMemAllocAsync", "cuMemFreeAsync")),
    Call("launch", "LaunchKernel", "launch_call", ("cuLaunchKernel",)),
    Call("graph_launch", "GraphLaunch", "graph_call", ("cuGraphLaunch",)),
    Call("stream_synchronize", "StreamSynchronize", "synchronize_after_launch", ("cuStreamSynchronize",)),
    *(
        Call(f"memcpy_h2d_{size}", f"MemcpyH2D {text}", {"to_device_call": {"bytes": size}}, ("cuMemcpyHtoD_v2",))
        for text, size in (("4 KB", 4 * KIB), ("32 KB", 32 * KIB), ("1 MB", MIB), ("16 MB", 16 * MIB))
    ),
    *(
        Call(
            f"memcpy_d2h_{size}",
            f"MemcpyD2H {text}",
            {"to_host": {"bytes": size, "pinned": False}},
            ("cuMemcpyDtoH_v2",),
        )
        for text, size in (("4 KB", 4 * KIB), ("1 MB", MIB), ("16 MB", 16 * MIB))
    ),
)


class WorkerError(Exception):
    """A worker ended, hung, or could not do its task."""


class Worker:
    """`outboard bench-worker` in one mode."""

    def __init__(self, outboard: list[str], mode: Mode, stats: Path) -> None:
        self.mode = mode
        self.stats = stats
        self.stderr = stats.with_suffix(".stderr")
        command = [*outboard, "bench-worker"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("OUTBOARD_")}
        if mode.url is not None:
            command = [*outboard, "run", "--gpu", mode.url, "--", *command]
            environment.update(OUTBOARD_STATS=str(stats), OUTBOARD_STATS_TIMES="1")
            if mode.optimise:
                environment["OUTBOARD_OPTIMISE"] = mode.optimise
        with self.stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
                start_new_session=True,
            )
        self.lines: queue.Queue[bytes | None] = queue.Queue()
        threading.Thread(target=self._pump, daemon=True).start()

    def ready(self) -> None:
        self._answer("ready", START_S_MAX)

    def run(self, work: Any) -> list[float]:
        """Returns the nanoseconds of the call, one number per sample."""
        request = {"run": {"work": work, "samples": SAMPLES, "budget_ms": TURN_MS}}
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except OSError as error:
            raise WorkerError(f"{self.mode.name}: the worker is gone") from error
        return [float(ns) for ns in self._answer("samples", TURN_MS / 1e3 + TURN_EXTRA_S_MAX)["ns"]]

    def finish(self) -> dict[str, Any]:
        """Ends the worker; returns the client library's counters."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(EXIT_S_MAX)
            return dict(json.loads(self.stats.read_text())) if self.mode.url is not None else {}
        except (subprocess.TimeoutExpired, OSError, ValueError) as error:
            raise WorkerError(f"{self.mode.name}: no statistics: {error}") from error
        finally:
            self.kill()

    def kill(self) -> None:
        end_process_group(self.process)

    def _answer(self, expected: str, seconds: float) -> dict[str, Any]:
        try:
            line = self.lines.get(timeout=seconds)
        except queue.Empty:
            raise WorkerError(f"{self.mode.name}: no answer within {seconds:g} s") from None
        if line is None:
            said = " | ".join(read_tail(self.stderr)[-3:])
            raise WorkerError(f"{self.mode.name}: the worker ended: {said}")
        answer = json.loads(line)
        if expected not in answer:
            raise WorkerError(f"{self.mode.name}: {answer.get('failed', {}).get('why', answer)}")
        return dict(answer[expected])

    def _pump(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)


def measure(outboard: list[str], modes: list[Mode], calls: tuple[Call, ...], scratch: Path, until: float) -> dict:
    """Returns for each call its time on the local GPU, and its parts in each other mode."""
    results: dict[str, dict[str, Any]] = {}
    for number, call in enumerate(calls):
        if time.monotonic() >= until:
            break
        stats = [scratch / f"breakdown-{number}-{at}.json" for at in range(len(modes))]
        entry: dict[str, Any] = {"title": call.title, "modes": {}}
        try:
            entry.update(_one(outboard, modes, call, stats))
        except WorkerError as error:
            entry["error"] = str(error)
        results[call.name] = entry
    return results


def _one(outboard: list[str], modes: list[Mode], call: Call, stats: list[Path]) -> dict[str, Any]:
    workers: list[Worker] = []
    try:
        workers = [Worker(outboard, mode, path) for mode, path in zip(modes, stats, strict=True)]
        for worker in workers:
            worker.ready()
        medians: dict[str, list[float]] = {mode.name: [] for mode in modes}
        for round_number in range(ROUNDS):
            shift = round_number % len(workers)
            for worker in workers[shift:] + workers[:shift]:
                medians[worker.mode.name].append(statistics.median(worker.run(call.work)))
        entry: dict[str, Any] = {"modes": {}}
        if "local" in medians:
            entry["local_us"] = significant(statistics.median(medians["local"]) / 1e3)
        for worker in workers:
            counted = worker.finish()
            if worker.mode.url is not None:
                seen_us = statistics.median(medians[worker.mode.name]) / 1e3
                parts = parts_us(counted, call.functions)
                entry["modes"][worker.mode.name] = parts | {"seen_by_program_us": significant(seen_us)}
        return entry
    finally:
        for worker in workers:
            worker.kill()


def parts_us(counted: dict[str, Any], functions: tuple[str, ...]) -> dict[str, float]:
    """Microseconds of one call: as a whole, sending, waiting, and the rest, which is the client's own work.

    The clock was read at the beginning and at the end of each part; what that cost is taken off.
    """
    times = counted.get("times")
    if times is None:
        raise WorkerError("the client library measured no times (OUTBOARD_STATS_TIMES)")
    clock_ns = float(times["clock_ns"])
    calls = 0
    whole_ns = send_ns = wait_ns = 0.0
    for function in functions:
        for kind in times["by_call"].get(function, {}).values():
            if function == functions[0]:
                calls += kind["calls"]
            reads = 2 * (kind["sends"] + kind["waits"])
            # A part contains one reading of the clock, and the whole contains those of its parts.
            whole_ns += kind["whole_ns"] - clock_ns * (kind["calls"] + reads)
            send_ns += kind["send_ns"] - clock_ns * kind["sends"]
            wait_ns += kind["wait_ns"] - clock_ns * kind["waits"]
    if calls == 0:
        raise WorkerError(f"{functions[0]} was not called")
    whole, send, wait = (max(0.0, ns) / calls / 1e3 for ns in (whole_ns, send_ns, wait_ns))
    return {
        "whole_us": significant(whole),
        "send_us": significant(send),
        "wait_us": significant(wait),
        "client_us": significant(max(0.0, whole - send - wait)),
    }

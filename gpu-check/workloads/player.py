"""The process of one mode in an interleaved measurement: it stays up, holds a model, and times it when it is its turn.

Commands come on standard input, a line of JSON each; each is answered by one event (see `harness.emit`):

    {"do": "prepare", "module": M, "step": S, "warm_up": N}              prepared, skip or error
    {"do": "run", "calls": N, "wait": BOOL, "samples": N, "budget_s": S}  samples or error
    {"do": "record", "iterations": N, "warm_up_s": S} recorded: so many steps, each marked as an iteration
    {"do": "network", "network": "rtt=10us"}          changed: messages travel over that one from now on
    {"do": "drop"}                                                       dropped: the model is let go

A sample is the time of one of `calls` steps issued one after the other; with `wait` the wait for the GPU at their
end is timed too, for steps that do not wait by themselves.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import importlib
import json
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, cast

from harness import Settings, SkipWorkload, emit

EXIT_NO_RESULT = 75
# Compiling takes longer than a turn; a stack printed meanwhile can end the process.
PREPARE_WATCHDOG_S = 170.0


class Player:
    """The state that the commands use."""

    def __init__(self) -> None:
        self.module: ModuleType | None = None
        self.step: Callable[[], object] | None = None
        # About how long a step takes.
        self.step_s = 0.0

    def prepare(self, command: dict[str, Any]) -> None:
        started = time.perf_counter()
        try:
            self.module = importlib.import_module(command["module"])
        except ModuleNotFoundError as error:
            raise SkipWorkload(f"not installed: {error.name}") from error
        self.step = self.module.STEPS[command["step"]](Settings())
        # Work of the first time only is not part of a step: kernels are loaded, libraries choose
        # algorithms.
        for _ in range(int(command["warm_up"])):
            before = time.perf_counter()
            self.step()
            self.step_s = time.perf_counter() - before
        self._wait()
        emit("prepared", seconds=round(time.perf_counter() - started, 3))

    def run(self, command: dict[str, Any]) -> None:
        calls, samples = int(command["calls"]), int(command["samples"])
        step, wait = self.step, bool(command["wait"])
        if step is None:
            raise SkipWorkload("nothing was prepared")
        budget_s = float(command["budget_s"])
        # Another process had the machine in between. A step that fills a turn is not slower for that.
        if self.step_s < budget_s:
            step()
            self._wait()
        times: list[float] = []
        until = time.perf_counter() + budget_s
        while not times or (len(times) < samples and time.perf_counter() < until):
            started = time.perf_counter()
            for _ in range(calls):
                step()
            if wait:
                self._wait()
            times.append((time.perf_counter() - started) / calls * 1e3)
        emit("samples", ms=times)

    def record(self, command: dict[str, Any]) -> None:
        if self.step is None:
            raise SkipWorkload("nothing was prepared")
        mark = _own("outboard_mark", ctypes.c_char_p, ctypes.c_int)
        # Other processes had the machine in between: processor and GPU have to come up to speed again.
        until = time.perf_counter() + float(command["warm_up_s"])
        while time.perf_counter() < until:
            self.step()
        for _ in range(int(command["iterations"])):
            mark(b"iteration", 0)
            self.step()
            mark(b"iteration", 1)
        self._wait()
        emit("recorded")

    def network(self, command: dict[str, Any]) -> None:
        change = _own("outboard_emulate", ctypes.c_char_p)
        if result := change(str(command["network"]).encode()):
            raise ValueError(f"outboard_emulate({command['network']!r}): CUDA error {result}")
        emit("changed")

    def drop(self, _: dict[str, Any]) -> None:
        self.step = None
        gc.collect()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        emit("dropped")

    def _wait(self) -> None:
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()


def _own(name: str, *types: Any) -> Callable[..., int]:
    """A function of Outboard's own library, which the process has in the driver's place."""
    try:
        function = getattr(ctypes.CDLL("libcuda.so.1"), name)
    except (OSError, AttributeError) as error:
        raise SkipWorkload(f"this process does not run through Outboard: {error}") from error
    function.argtypes, function.restype = types, ctypes.c_int
    return cast("Callable[..., int]", function)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("first", metavar="MODULE", help="the module whose first_result() is the process's first")
    parser.add_argument("--modules", required=True, help="the folder of the modules")
    parser.add_argument("--watchdog-s", type=float, default=60, help="seconds after which a stack is printed")
    options = parser.parse_args()
    sys.path.insert(0, options.modules)
    started = time.perf_counter()
    try:
        importlib.import_module(options.first).first_result()
    except Exception as error:
        emit("unusable", error=f"{type(error).__name__}: {error}")
        return EXIT_NO_RESULT
    emit("ready", seconds=round(time.perf_counter() - started, 6))
    player = Player()
    for line in sys.stdin:
        command = json.loads(line)
        # The stack of a hang, from a thread that needs no lock of the interpreter.
        watchdog_s = PREPARE_WATCHDOG_S if command["do"] == "prepare" else options.watchdog_s
        faulthandler.dump_traceback_later(watchdog_s, exit=False)
        try:
            commands = (player.prepare, player.run, player.record, player.network, player.drop)
            {do.__name__: do for do in commands}[command["do"]](command)
        except SkipWorkload as reason:
            emit("skip", error=str(reason))
        except Exception as error:
            emit("error", error=f"{type(error).__name__}: {error}")
        faulthandler.cancel_dump_traceback_later()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The process that runs workloads: `main.py NAME=MODULE:FUNCTION ...`, and prints an event a line.

The modules beside this file hold the workloads. A module has

    first_result()                 the shortest way to a result of the GPU on the host
    healthy() -> bool              whether the CUDA context still works (after a failure)
    WORKLOADS: {name: function}    each takes Settings and returns a Result, or raises
    STEPS: {name: function}        optional: each takes Settings and returns one steady-state iteration
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import os
import sys
from types import ModuleType

from harness import Result, Settings, SkipWorkload, emit

EXIT_CONTEXT_LOST = 75
STEADY_WARM_UP = 5


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("targets", nargs="+", metavar="NAME=MODULE:FUNCTION")
    parser.add_argument("--modules", required=True, help="the folder of the modules")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--steady", type=int, default=0, metavar="N", help="only N iterations, for counting calls")
    parser.add_argument("--watchdog-s", type=float, default=60, help="seconds after which a stack is printed")
    options = parser.parse_args()
    sys.path.insert(0, options.modules)
    settings = Settings(quick=options.quick)
    modules: dict[str, ModuleType | str] = {}
    ready = False
    for target in options.targets:
        name, _, place = target.partition("=")
        module_name, _, function = place.partition(":")
        # The stack of a hang, from a thread that needs no lock of the interpreter.
        faulthandler.dump_traceback_later(options.watchdog_s, exit=False)
        module = _load(modules, module_name)
        if isinstance(module, ModuleType) and not ready:
            if not _first_result(module):
                return EXIT_CONTEXT_LOST
            ready = True
        emit("begin", name=name)
        if isinstance(module, str):
            emit("result", name=name, status="skip", error=module)
            continue
        try:
            if options.steady:
                _run_steady(module, function, settings, options.steady)
                result = Result()
            else:
                result = module.WORKLOADS[function](settings)
            emit("result", name=name, status="pass", **result.fields())
        except SkipWorkload as reason:
            emit("result", name=name, status="skip", error=str(reason))
        except Exception as error:
            emit("result", name=name, status="fail", error=f"{type(error).__name__}: {error}")
            if not _healthy(module):
                print("gpu-check: the CUDA context is lost; the rest needs a new process", file=sys.stderr, flush=True)
                return EXIT_CONTEXT_LOST
    faulthandler.cancel_dump_traceback_later()
    emit("end")
    return 0


def _load(modules: dict[str, ModuleType | str], name: str) -> ModuleType | str:
    """The module, or why there is none: a library that is not installed is no failure."""
    if name not in modules:
        try:
            modules[name] = importlib.import_module(name)
        except ModuleNotFoundError as error:
            modules[name] = f"not installed: {error.name}"
    return modules[name]


def _first_result(module: ModuleType) -> bool:
    try:
        module.first_result()
    except Exception as error:
        emit("unusable", error=f"{type(error).__name__}: {error}")
        return False
    emit("ready")
    return True


def _healthy(module: ModuleType) -> bool:
    try:
        return bool(module.healthy())
    except Exception:
        return False


def _run_steady(module: ModuleType, function: str, settings: Settings, iterations: int) -> None:
    step = module.STEPS[function](settings)
    for _ in range(STEADY_WARM_UP):
        step()
    # Where calls are timed, only those of the steps that follow are.
    torch = sys.modules.get("torch") if os.environ.get("OUTBOARD_STATS_TIMES") else None
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
    for _ in range(iterations):
        step()
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    sys.exit(main())

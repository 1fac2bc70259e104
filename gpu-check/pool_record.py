"""Records programs on this machine's GPU, several prepared at the same time and one recorded after the other."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from process import Mode, Runner
from requirements_stage import RECORD_S_MAX, WARM_UP_S, StageError, cut
from suite import Group
from turns import Case, Player, PlayerError, PlayerSkip

# Iterations without and with times of the GPU.
ITERATIONS, UNTIMED = 4, 2
# Processes at a time: each holds its model.
TOGETHER = 8


def record(
    runner: Runner, group: Group, cases: list[Case], folder: Path, until: float, here: str | None
) -> dict[str, Any]:
    """Records each program into the folder; returns what became of them. `here` stands for the
    local GPU, if there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}
    left = list(cases)
    while left and time.monotonic() < until:
        now, left = left[:TOGETHER], left[TOGETHER:]
        for name, outcome in _together(runner, group, now, folder, here).items():
            results[name] = outcome
            print(f"  {name}: {outcome}", flush=True)
    return {"recorded": results, "cases": {}, "not_run": [case.name for case in left]}


def _together(runner: Runner, group: Group, cases: list[Case], folder: Path, here: str | None) -> dict[str, str]:
    outcomes: dict[str, str] = {}
    players: dict[str, Player] = {}
    wholes = {case.name: runner.scratch / f"{case.name}.whole.trace" for case in cases}

    def prepare(case: Case) -> None:
        players[case.name].wait_until_ready(float("inf"))
        command = {"do": "prepare", "module": case.module, "step": case.step, "warm_up": case.warm_up}
        players[case.name].ask(command)

    def prepared(case: Case) -> None:
        players[case.name].answer(f"preparing {case.name}", RECORD_S_MAX)

    def recorded(case: Case) -> None:
        players[case.name].ask({"do": "record", "iterations": ITERATIONS, "warm_up_s": WARM_UP_S})
        players[case.name].answer(f"recording {case.name}", RECORD_S_MAX)

    def kept(case: Case) -> None:
        players.pop(case.name).close()
        cut(runner, wholes[case.name], folder / f"{case.name}.trace", case.title)
        outcomes[case.name] = "recorded"

    try:
        for case in cases:
            mode = Mode(f"record-{case.name}", here, record=str(wholes[case.name]), untimed=UNTIMED, caches="local")
            players[case.name] = Player(runner, mode, group, case.module)
        for do in (prepare, prepared, recorded, kept):
            for case in cases:
                _try(outcomes, case, do)
    finally:
        for player in players.values():
            player.close()
        for whole in wholes.values():
            whole.unlink(missing_ok=True)
    return outcomes


def _try(outcomes: dict[str, str], case: Case, do: Callable[[Case], None]) -> None:
    """Does the next thing with a program that did not fail before."""
    if case.name in outcomes:
        return
    try:
        do(case)
    except PlayerSkip as reason:
        outcomes[case.name] = f"skip: {reason}"
    except (PlayerError, StageError, subprocess.SubprocessError) as error:
        outcomes[case.name] = f"error: {error}"

"""How many calls of a program wait for the server, and how long all of them take: Table 2 of the paper.

The client library counts and times the calls of some steps, which begin after a warm-up.
"""

from __future__ import annotations

from typing import Any

from process import Limits, Mode, Runner
from suite import Group, Workload
from turns import Case, significant

STEPS = 20
# The paper's word for each class of the client.
CLASSES = {"outstanding": "async", "shadowed": "async", "local": "local", "synchronous": "sync"}


def measure(runner: Runner, case: Case, mode: Mode, limits: Limits, group: Group) -> dict[str, Any]:
    """Returns calls and milliseconds of one step, by class."""
    alone = Group(
        f"classes-{group.name}",
        (Workload(case.name, case.module, case.step),),
        {**group.environment, "OUTBOARD_STATS_TIMES": "1"},
        directory=group.directory,
    )
    run = runner.run_group(alone, mode, limits, steady_iterations=STEPS)
    result = run.results[case.name]
    if result["status"] != "pass":
        return {"status": result["status"], "error": result.get("error", "")}
    if not run.stats or "times" not in run.stats[-1]:
        return {"status": "error", "error": "the client library measured no times (OUTBOARD_STATS_TIMES)"}
    return evaluate(run.stats[-1]["times"], STEPS)


def evaluate(times: dict[str, Any], steps: int) -> dict[str, Any]:
    """Returns calls and milliseconds of one step, from the counters of `steps` steps."""
    calls = {name: 0.0 for name in ("async", "local", "sync")}
    ms = dict(calls)
    for kinds in times["by_call"].values():
        for kind, spent in kinds.items():
            # The clock was read once for the call, and twice for each of its parts.
            reads = spent["calls"] + 2 * (spent["sends"] + spent["waits"])
            calls[CLASSES[kind]] += spent["calls"] / steps
            ms[CLASSES[kind]] += (spent["whole_ns"] - float(times["clock_ns"]) * reads) / steps / 1e6
    return {
        "status": "ok",
        "calls": {name: round(count, 1) for name, count in calls.items()},
        "ms": {name: significant(max(0.0, spent)) for name, spent in ms.items()},
    }

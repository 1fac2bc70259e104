"""Counts the calls of one steady-state iteration, by class.

A workload runs twice, with N and with 2N iterations; the difference of the client's counters over N is what
one iteration costs, with start-up and warm-up cancelled out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from process import Limits, Mode, Runner
from report import Report
from suite import Group, Workload

ITERATIONS = 10
CLASSES = ("local", "outstanding", "shadowed", "synchronous")


def count(chosen: tuple[Group, ...], mode: Mode, runner: Runner, limits: Limits, report: Report) -> None:
    """Counts every workload that has a bound, in one mode, because counts do not depend on the
    link."""
    for group in chosen:
        for workload in group.workloads:
            if workload.synchronous_max is None:
                continue
            counted = _count_one(group, workload, mode, runner, limits)
            report.add_counts(workload.name, counted)
            report.write()
            print(f"calls of {workload.name}: {describe(counted)}", flush=True)


def _count_one(group: Group, workload: Workload, mode: Mode, runner: Runner, limits: Limits) -> dict[str, Any]:
    alone = replace(group, workloads=(workload,))
    totals = []
    for iterations in (ITERATIONS, 2 * ITERATIONS):
        run = runner.run_group(alone, mode, limits, steady_iterations=iterations)
        result = run.results[workload.name]
        if result["status"] != "pass":
            return {"status": result["status"], "error": result.get("error", ""), "ok": result["status"] == "skip"}
        if not run.stats:
            return {"status": "fail", "error": "the client wrote no statistics (OUTBOARD_STATS)", "ok": False}
        totals.append(run.stats[-1])
    return evaluate(workload, totals[0], totals[1], ITERATIONS)


def evaluate(workload: Workload, n: dict[str, Any], twice: dict[str, Any], iterations: int) -> dict[str, Any]:
    """Returns the calls of one iteration from the counters of both runs, compared with the
    workload's bound."""
    per_iteration = {name: (_number(twice, name) - _number(n, name)) / iterations for name in CLASSES}
    by_call = {
        call: (_number(twice["by_call"], call) - _number(n.get("by_call", {}), call)) / iterations
        for call in twice.get("by_call", {})
    }
    bound = workload.synchronous_max
    return {
        "status": "pass",
        "iterations": iterations,
        "per_iteration": per_iteration,
        "by_call": dict(sorted(((c, v) for c, v in by_call.items() if v), key=lambda item: -item[1])),
        "synchronous_max": bound,
        "ok": bound is None or per_iteration["synchronous"] <= bound,
    }


def describe(counted: dict[str, Any]) -> str:
    if "per_iteration" not in counted:
        return f"{counted['status']}: {counted['error']}"
    classes = ", ".join(f"{value:g} {name}" for name, value in counted["per_iteration"].items())
    verdict = "" if counted["ok"] else " TOO MANY"
    return f"{classes} (at most {counted['synchronous_max']:g} synchronous){verdict}"


def _number(counters: dict[str, Any], name: str) -> float:
    value = counters.get(name, 0)
    return float(value) if isinstance(value, int | float) else 0.0

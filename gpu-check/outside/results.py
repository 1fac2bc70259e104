"""The results file, and the page made from it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import kept
from outside.cases import Outcome
from outside.compare import DEFECTS, VERDICTS, counts, judge

FORMAT_VERSION = 1
LOCAL = "local"
# Differences kept by name for one suite and mode.
NAMED_MAX = 400


def summarise(runs: dict[str, dict[str, list[Outcome]]]) -> dict[str, Any]:
    """Sums up one suite. `runs` has, for each mode, the runs of each case."""
    modes = [mode for mode in runs if mode != LOCAL] or [LOCAL]
    local = runs.get(LOCAL, {})
    summary: dict[str, Any] = {"cases": len(next(iter(runs.values()), {})), "modes": {}, "named": {}}
    for mode in modes:
        verdicts = {name: judge(local.get(name, []) if mode != LOCAL else [], runs[mode][name]) for name in runs[mode]}
        summary["modes"][mode] = counts(verdicts)
        defects = sorted(name for name, verdict in verdicts.items() if verdict in DEFECTS)
        for name in defects[:NAMED_MAX]:
            row = summary["named"].setdefault(name, {})
            row[mode] = {"verdict": verdicts[name], **_last(runs[mode][name])}
            if name in local:
                row[LOCAL] = _last(local[name])
        if len(defects) > NAMED_MAX:
            summary.setdefault("not_named", {})[mode] = len(defects) - NAMED_MAX
    return summary


def _last(runs: list[Outcome]) -> dict[str, Any]:
    first = runs[0]
    shown: dict[str, Any] = {"outcome": first.outcome}
    if first.detail:
        shown["detail"] = first.detail
    if len(runs) > 1:
        shown["again"] = [run.outcome for run in runs[1:]]
    return shown


def defects(suites: dict[str, Any]) -> int:
    """Number of cases and modes that differ from the local GPU."""
    return sum(
        counted.get(verdict, 0)
        for suite in suites.values()
        for counted in suite.get("modes", {}).values()
        for verdict in DEFECTS
    )


def load(path: Path) -> dict[str, Any]:
    """Reads results that are whole enough for a page. OSError, ValueError."""
    if not path.exists():
        raise FileNotFoundError("no such file")
    document = kept.load(path, {"format": FORMAT_VERSION, "machine": {}, "settings": {}, "suites": {}})
    absent = [f"machine.{name}" for name in ("date_utc", "commit") if name not in document["machine"]]
    absent += [f"settings.{name}" for name in ("seed", "case_s") if name not in document["settings"]]
    for name, suite in document["suites"].items():
        if not isinstance(suite, dict) or not ("missing" in suite or {"modes", "cases"} <= suite.keys()):
            absent.append(f"suites.{name}")
    if absent:
        raise ValueError(f"{path} lacks {', '.join(absent)}")
    return document


def check(path: Path) -> None:
    """Finds out whether results can be written there, and changes nothing. OSError, ValueError."""
    kept.load(path, {"format": FORMAT_VERSION, "machine": {}, "settings": {}, "suites": {}})
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path.parent):
        pass


def write(path: Path, machine: dict[str, Any], settings: dict[str, Any], suites: dict[str, Any]) -> None:
    """Writes the results so far; suites of an earlier run that this one did not run stay."""
    new: dict[str, Any] = {"format": FORMAT_VERSION, "machine": machine, "settings": settings, "suites": {}}
    document = kept.load(path, new)
    document.update(machine=machine, settings=settings)
    document["suites"].update(suites)
    kept.write(path, document)


def page(document: dict[str, Any]) -> str:
    """Returns the Markdown page of the results: a table of counts, and every difference by name."""
    lines = ["# Other people's programs and tests", "", *_heading(document), ""]
    shown = [verdict for verdict in VERDICTS if _total(document, verdict)]
    lines += ["| suite | part | cases | mode | " + " | ".join(shown) + " |", "|---|---|---|---|" + "---|" * len(shown)]
    for name, suite in document["suites"].items():
        if "missing" in suite:
            lines.append(f"| {name} | - | - | not run: {suite['missing']} |" + " |" * len(shown))
        for mode, counted in suite.get("modes", {}).items():
            cells = " | ".join(str(counted.get(verdict, 0)) for verdict in shown)
            lines.append(f"| {name} | {suite.get('slice', '1/1')} | {suite['cases']} | {mode} | {cells} |")
    lines += ["", *_differences(document)]
    return "\n".join(lines).rstrip() + "\n"


def _heading(document: dict[str, Any]) -> list[str]:
    machine, settings = document["machine"], document["settings"]
    gpu = ", ".join(gpu["name"] for gpu in machine.get("gpus", [])) or "the software device"
    packages = machine.get("packages", {})
    wanted = ("torch", "triton", "jax", "cupy-cuda13x", "numba", "numba-cuda")
    versions = ", ".join(f"{name} {packages[name]}" for name in wanted if name in packages)
    return [
        "What others wrote, run on the machine's own GPU and through Outboard, compared name by name.",
        "`make gpu-suites` writes the results, `gpu_suites.py --page` this page from them.",
        "",
        f"{machine['date_utc'][:10]}, {gpu}, commit `{machine['commit'][:12]}`; {versions}; "
        f"seed {settings['seed']}, {settings['case_s']:g} s for a case at most.",
    ]


def _total(document: dict[str, Any], verdict: str) -> int:
    return sum(
        counted.get(verdict, 0) for suite in document["suites"].values() for counted in suite.get("modes", {}).values()
    )


def _differences(document: dict[str, Any]) -> list[str]:
    lines = []
    for name, suite in document["suites"].items():
        for case, row in suite.get("named", {}).items():
            local = row.get(LOCAL, {}).get("outcome", "-")
            for mode, one in row.items():
                if mode != LOCAL:
                    what = f"{one['outcome']}: {one.get('detail', 'other bits')}".replace("|", "\\|").replace("`", "'")
                    lines.append(f"| {name} | `{case}` | {mode} | {one['verdict']} | {local} | {what} |")
    if not lines:
        return ["No case differs."]
    return ["| suite | case | mode | verdict | local | through Outboard |", "|---|---|---|---|---|---|", *lines]

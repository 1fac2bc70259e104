"""The results file and the table that is printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kept
from judge import Verdict, judge, ratios
from process import GroupRun, Mode
from suite import Group, Workload

FORMAT_VERSION = 1
ERROR_CHARACTERS_MAX = 600
TABLE_ERROR_CHARACTERS_MAX = 150


class Report:
    """Collects verdicts. It can be written at any time, so that an interrupted check keeps its
    results."""

    def __init__(self, path: Path, machine: dict[str, Any], modes: list[str], quick: bool) -> None:
        self.path = path
        self.modes = modes
        self.errors: list[str] = []
        # Whether the check was completed.
        self.complete = False
        # By workload, then by mode.
        self.rows: dict[str, dict[str, dict[str, Any]]] = {}
        self.counts: dict[str, dict[str, Any]] = {}
        self._document: dict[str, Any] = {
            "format": FORMAT_VERSION,
            "machine": machine,
            "modes": modes,
            "quick": quick,
        }
        self.processes: dict[str, dict[str, dict[str, Any]]] = {}
        self._local: dict[str, dict[str, Any]] = {}

    @property
    def ok(self) -> bool:
        entries = [entry for row in self.rows.values() for entry in row.values()]
        checks = [entry["ok"] for entry in entries] + [counted["ok"] for counted in self.counts.values()]
        return bool(checks) and all(checks) and self.complete and not self.errors

    def add(self, group: Group, mode: Mode, run: GroupRun) -> None:
        for workload in (each.in_mode(mode.name) for each in group.workloads):
            result = run.results[workload.name]
            remote = mode.url is not None
            if not remote:
                self._local[workload.name] = result
            local = self._local.get(workload.name)
            verdict = judge(workload, local, result, remote)
            self._row(workload.name)[mode.name] = _entry(workload, verdict, result, local if remote else None)
        process: dict[str, Any] = {
            "startup_s": run.startup_s,
            "exit_code": run.exit_code,
            "exit_s": run.exit_s,
            "restarts": run.restarts,
        }
        if run.stats:
            process["stats"] = run.stats
        self.processes.setdefault(group.name, {})[mode.name] = process
        if run.exit_error:
            self._row(f"{group.name}.exit")[mode.name] = {
                "status": "fail",
                "ok": False,
                "error": run.exit_error[:ERROR_CHARACTERS_MAX],
            }

    def add_counts(self, name: str, counted: dict[str, Any]) -> None:
        self.counts[name] = counted

    def fail(self, error: str) -> None:
        self.errors.append(error)

    def finish(self, server_restarts: int, server_log: list[str]) -> None:
        self._document["server_restarts"] = server_restarts
        if server_restarts:
            self.errors.append(f"the server died and was started again, {server_restarts} times")
        if not self.ok:
            self._document["server_log_tail"] = server_log

    def write(self) -> None:
        """Replaces the file in one step, so that a reader never sees half of it."""
        document = dict(
            self._document,
            ok=self.ok,
            complete=self.complete,
            errors=self.errors,
            workloads=self.rows,
            processes=self.processes,
            calls_per_iteration=self.counts,
        )
        kept.write(self.path, document)

    def summary(self, group: Group, mode: str) -> str:
        """Returns one line on one group in one mode."""
        entries = [self.rows[w.name][mode] for w in group.workloads]
        good = sum(entry["ok"] for entry in entries)
        failed = [w.name for w, entry in zip(group.workloads, entries, strict=True) if not entry["ok"]]
        return f"{good} of {len(entries)} right" + (f", wrong: {', '.join(failed)}" if failed else "")

    def _row(self, name: str) -> dict[str, dict[str, Any]]:
        return self.rows.setdefault(name, {})


def _entry(
    workload: Workload, verdict: Verdict, result: dict[str, Any], local: dict[str, Any] | None
) -> dict[str, Any]:
    entry: dict[str, Any] = {"status": verdict.status, "ok": verdict.ok}
    if verdict.equal is not None:
        entry["equal"] = verdict.equal
    if verdict.differences:
        entry["differences"] = verdict.differences
    if workload.known_failure:
        entry["known_failure"] = workload.known_failure
    entry.update((k, v) for k, v in result.items() if k != "status")
    if "error" in entry:
        entry["error"] = str(entry["error"])[:ERROR_CHARACTERS_MAX]
    ratio = ratios(local, result)
    if ratio:
        entry["ratio_to_local"] = ratio
    return entry


def print_table(report: Report) -> None:
    """Prints the verdicts, one line per workload; then its times, and the failures."""
    width = max([len(name) for name in report.rows] + [30]) + 2
    print("\n" + "workload".ljust(width) + "".join(mode.rjust(22) for mode in report.modes))
    for name, row in report.rows.items():
        print(name.ljust(width) + "".join(_verdict(row.get(mode)).rjust(22) for mode in report.modes))
        times = {key for entry in row.values() for key in entry.get("timings_ms", {})}
        for key in sorted(times):
            print(f"  {key}, ms".ljust(width) + "".join(_time(row.get(m), key).rjust(22) for m in report.modes))
    print("start-up to the first result".ljust(width))
    for name, process in report.processes.items():
        times_s = [process.get(mode, {}).get("startup_s") for mode in report.modes]
        print(f"  {name}, s".ljust(width) + "".join(("-" if s is None else f"{s:.1f}").rjust(22) for s in times_s))
    for name, row in report.rows.items():
        for mode, entry in row.items():
            if not entry["ok"] or (entry["status"] == "skip" and mode == report.modes[0]):
                reason = "; ".join(entry.get("differences", [])) or entry.get("error", "")
                print(f"{name} ({mode}): {entry['status']}: {reason[:TABLE_ERROR_CHARACTERS_MAX]}")
    for name, counted in report.counts.items():
        if not counted["ok"]:
            print(f"{name}: too many synchronous calls or not counted: {counted.get('error', '')}")
    for error in report.errors:
        print(f"error: {error}")
    print("everything expected to pass has passed" if report.ok else "FAILED")


def _verdict(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return "-"
    if entry["status"] != "pass":
        return str(entry["status"])
    return {None: "pass", True: "pass, equal", False: "DIFFERENT"}[entry.get("equal")]


def _time(entry: dict[str, Any] | None, key: str) -> str:
    ms = (entry or {}).get("timings_ms", {}).get(key)
    if ms is None:
        return "-"
    ratio = (entry or {}).get("ratio_to_local", {}).get(key)
    return f"{ms:.4g}" + (f" ({ratio:.2f}x)" if ratio is not None else "")

#!/usr/bin/env python3
"""Prints the medians of a results file as a Markdown table, beside those of local execution and of the peer.

    python3 gpu-check/compare.py docs/results/speed.json

Takes what `run.py` wrote, and what `speed.py` wrote.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

BASELINE = Path(__file__).resolve().parent / "baseline.json"
MISSING = "-"


def table(results: dict[str, Any], baseline: dict[str, Any]) -> str:
    """Makes the table: milliseconds, in brackets the ratio to the local GPU in the same run."""
    modes = results["modes"]
    head = ["median, ms", "local, reference", "peer (over local)"]
    head += ["GPU busy", *(f"{mode}, this run" for mode in modes)]
    lines = [_line(head), _line(["---"] * len(head))]
    for row in baseline["rows"]:
        entries = results["workloads"].get(row["workload"], {})
        local_ms = _time(entries.get("local"), row["timing"])
        cells = [row["title"], f"{row['local']:g}", f"{row['peer']:g} ({row['peer'] / row['local']:.2f})"]
        cells.append(f"{row['gpu_busy']:g}" if "gpu_busy" in row else MISSING)
        for mode in modes:
            cells.append(_cell(_time(entries.get(mode), row["timing"]), local_ms if mode != "local" else None))
        lines.append(_line(cells))
    notes = [
        "",
        f"Reference: {baseline['about']} Peer: {baseline['peer']}.",
        f"This run: {_machine(results['machine'])}.",
    ]
    return "\n".join(lines + notes)


def speed_table(results: dict[str, Any], baseline: dict[str, Any]) -> str:
    """Makes the table of `speed.py`'s results, with the targets; the peer's ratio is from its own
    run."""
    modes = [mode for mode in results["modes"] if mode != "local"]
    peers = {row["workload"]: row["peer"] / row["local"] for row in baseline["rows"]}
    head = ["median, ms (over local; aimed at)", "local", *modes, "peer, tcp"]
    lines = [_line(head), _line(["---"] * len(head))]
    for name, case in results["cases"].items():
        entries = case["modes"]
        cells = [case["title"], _cell(entries.get("local", {}).get("median_ms"), None)]
        for mode in modes:
            cells.append(_speed_cell(entries.get(mode, {}), case.get("ratio_aimed_at", {}).get(mode)))
        cells.append(f"({peers[name]:.2f})" if name in peers else MISSING)
        lines.append(_line(cells))
    return "\n".join(
        [*lines, "", f"This run: {_machine(results['machine'])}. Peer: {baseline['peer']}, in a run of its own."]
    )


def _speed_cell(entry: dict[str, Any], aimed_at: float | None) -> str:
    if "median_ms" not in entry:
        return entry.get("status", MISSING)
    ratio = entry.get("ratio_to_local")
    if ratio is None:
        return _cell(entry["median_ms"], None)
    aim = f"; {aimed_at:g}" if aimed_at is not None else ""
    return f"{entry['median_ms']:.4g} ({ratio:.2f}{aim})"


def _time(entry: dict[str, Any] | None, timing: str) -> float | None:
    ms = (entry or {}).get("timings_ms", {}).get(timing)
    return None if ms is None else float(ms)


def _cell(ms: float | None, local_ms: float | None) -> str:
    if ms is None:
        return MISSING
    return f"{ms:.4g}" + (f" ({ms / local_ms:.2f})" if local_ms else "")


def _machine(machine: dict[str, Any]) -> str:
    gpus = ", ".join(f"{gpu['name']} (driver {gpu['driver_version']})" for gpu in machine.get("gpus", []))
    return f"{gpus or 'no GPU'}, {machine['date_utc']}, commit {machine.get('commit', 'unknown')}"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    options = parser.parse_args()
    try:
        results = json.loads(options.results.read_text())
    except (OSError, json.JSONDecodeError) as error:
        print(f"compare: {options.results}: {error}", file=sys.stderr)
        return 1
    make = speed_table if "cases" in results else table
    print(make(results, json.loads(BASELINE.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())

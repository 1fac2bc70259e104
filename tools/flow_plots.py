"""Pictures of what flow-bench measured, a picture for each part of the page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "gpu-check"))

import svg
from svg import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, Bar, Line, Panel

Rows = dict[str, Any]

COLOURS = [BLUE, ORANGE, GREEN, SKY, PURPLE, RED]
CONTROL = "control: no table"
# Tables of pictures with a line for each, and their names there.
SHARDED = {"batched": "batched", "our chained": "chained", "our cuckoo": "cuckoo", "our robin hood": "robin hood"}
SHARED = {
    "concurrent": "concurrent",
    "liburcu": "liburcu",
    "libcuckoo": "libcuckoo",
    "rte_hash lock-free": "rte_hash",
    "lock-free cuckoo": "lock-free",
}
LOCKED = {
    "hierarchical": "hierarchical",
    "cuckoo, spinning read-write lock": "spinning read-write",
    "cuckoo, read-write lock": "read-write",
    "cuckoo, spinlock": "spinlock",
}
SHORT = {
    "our cuckoo++": "cuckoo\n++",
    "our cuckoo": "cuckoo",
    "our hopscotch": "hop-\nscotch",
    "our robin hood": "robin\nhood",
    "our chained": "chain",
    "our std": "std",
    "batched": "batch",
}
AGING = {
    "sharded, wheel": "sharded wheel",
    "sharded, lazy": "sharded lazy",
    "concurrent, wheel": "shared wheel",
    "concurrent, lazy": "shared lazy",
}
# Loads of figure 6.2 that fit one axis.
LOADS_MAX = 95


def plots(results: Rows, thesis_6_1: Rows, thesis_6_2: Rows, loads: list[int]) -> dict[str, str]:
    """Returns the pictures of the parts that were measured, by the parts' names."""
    drawn = {
        "goals": _batches,
        "6.1": lambda rows: _whole_path(rows, thesis_6_1),
        "6.2": lambda rows: _loads(rows, thesis_6_2, loads),
        "6.3": lambda rows: _cores({"campus": rows}, "A table for each core", SHARDED),
        "6.4": lambda rows: _cores(rows, "One table for all cores", SHARED),
        "6.5": _deletion,
        "6.6": lambda rows: _cores({"CAIDA": rows}, "Deletion and sharing", AGING),
    }
    found = {part: draw(results[part]) for part, draw in drawn.items() if part in results}
    if "6.4" in results:
        campus = {"campus": results["6.4"]["campus"]}
        found["6.4-locks"] = _cores(campus, "One table and its locks", LOCKED, control=False)
    return found


def _batches(rows: Rows) -> str:
    batches = rows["batches"]
    lines = [Line([one[kind] for one in batches], colour) for kind, colour in (("hit", BLUE), ("miss", ORANGE))]
    panel = Panel("Batched, 4 M entries", lines=lines, labels=[str(one["batch"]) for one in batches])
    return svg.chart("A key, by keys in a batch", [panel], [("hit", BLUE), ("miss", ORANGE)], 1, "ns")


def _whole_path(rows: Rows, thesis: Rows) -> str:
    panels = []
    for number, profile in enumerate(["campus", "caida"]):
        rates = {name: max(run["mpps"] for run in runs) for name, runs in rows[profile].items()}
        names = sorted((name for name in rates if name in thesis or name == "batched"), key=lambda name: -rates[name])
        bars = [Bar(SHORT.get(name, name), [(rates[name], BLUE)]) for name in names]
        lines = [Line([thesis[name][number] if name in thesis else None for name in names], GREY)]
        panels.append(Panel(profile, bars=bars, lines=lines))
    return svg.chart("The whole path on one core", panels, [("measured", BLUE), ("thesis", GREY)], 2, "Mpps")


def _loads(rows: Rows, thesis: Rows, loads: list[int]) -> str:
    shown = [number for number, load in enumerate(loads) if load <= LOADS_MAX]
    labels = [f"{loads[number]} %" for number in shown]
    panels = []
    for name in ["batched", "rte_hash", *thesis]:
        if name not in rows:
            continue
        by_load = {point["load"]: point for point in rows[name]}
        lines = []
        for kind, colour in (("lookup", BLUE), ("lookup in batches", GREEN), ("insert", ORANGE)):
            values = [by_load.get(loads[number], {}).get(kind) for number in shown]
            lines += [Line(values, colour)] if any(values) else []
        for of_thesis, colour in zip(thesis.get(name, ()), (BLUE, ORANGE), strict=False):
            lines.append(Line([of_thesis[number] for number in shown], colour, dashed=True))
        panels.append(Panel(name, lines=lines, labels=labels))
    legend = [("lookup", BLUE), ("in batches of 32", GREEN), ("insertion", ORANGE), ("dashed: thesis", GREY)]
    return svg.chart("Cycles over load", panels, legend, 2, "time stamp counter")


def _cores(profiles: Rows, title: str, tables: dict[str, str], control: bool = True) -> str:
    shown = [(name, label, colour, False) for (name, label), colour in zip(tables.items(), COLOURS, strict=False)]
    if control:
        shown.append((CONTROL, "no table", GREY, True))
    panels = []
    for profile, rows in profiles.items():
        cores = sorted(rows, key=int)
        rates = {name: [rows[count].get(name, {}).get("mpps") for count in cores] for name, *_ in shown}
        lines = [Line(rates[name], colour, dashed) for name, _, colour, dashed in shown if any(rates[name])]
        panels.append(Panel(f"{profile}, Mpps", lines=lines, labels=cores))
        if len(profiles) == 1:
            lines = [Line(_times(rates[name]), colour, dashed) for name, _, colour, dashed in shown if any(rates[name])]
            panels.append(Panel(f"{profile}, times {cores[0]} core", lines=lines, labels=cores))
    return svg.chart(title, panels, [(label, colour) for _, label, colour, _ in shown], 2, "by cores")


def _times(rates: list[float | None]) -> list[float | None]:
    return [rate and rates[0] and rate / rates[0] for rate in rates]


def _deletion(rows: Rows) -> str:
    colours = {"none": GREY, "lazy": GREEN, "scan": ORANGE, "wheel": BLUE}
    panels = []
    for name, ways in rows.items():
        bars = []
        for kind, colour in colours.items():
            of_kind = {
                way.partition(" ")[2].removesuffix(" Hz"): row for way, row in ways.items() if way.startswith(kind)
            }
            for hertz in sorted(of_kind, key=lambda hertz: int(hertz or 0)):
                dropped = of_kind[hertz]["dropped %"]
                bars.append(Bar(hertz, [(dropped, colour)], f"{dropped:.1f}"))
        panels.append(Panel(f"{name}, by Hz", bars=bars))
    return svg.chart("Packets that a queue of 512 would have dropped", panels, list(colours.items()), 2, "%")

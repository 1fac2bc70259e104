#!/usr/bin/env python3
"""Joins the results of flow-bench and writes the page that shows them beside the thesis' numbers.

python3 tools/paper_flow.py join FOLDER RESULTS.json      the parts that `flow-bench PART` wrote, into one file
python3 tools/paper_flow.py page RESULTS.json PAGE.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from flow_plots import plots

Rows = dict[str, Any]

# Chapter 6 of the thesis, by its authors' released results.
THESIS_6_1 = {
    "our cuckoo++": (5.96, 4.15),
    "our robin hood": (5.82, 3.90),
    "our hopscotch": (5.80, 3.94),
    "our cuckoo": (5.44, 3.68),
    "our chained": (5.41, 3.23),
    "our std": (4.86, 2.96),
}
# Parts that measure a share of a figure, for runs that have little time.
SHARES = {"6.1-campus": "6.1", "6.1-caida": "6.1", "slowest-few": "slowest"}
LOADS = [10, 30, 50, 70, 75, 80, 90, 95, 99]
THESIS_6_2 = {
    "our cuckoo++": ([53, 52, 52, 55, 56, 60, 66, 71, 88], [69, 69, 72, 109, 130, 163, 250, 400, 9954]),
    "our cuckoo": ([78, 92, 106, 124, 126, 129, 134, 136, 139], [148, 164, 186, 260, 296, 357, 588, 1047, 6650]),
    "our hopscotch": ([50, 54, 62, 71, 77, 78, 115, 416, 7508], [69, 83, 116, 188, 229, 270, 703, 1440, 5356]),
    "our robin hood": ([47, 57, 76, 119, 136, 145, 174, 199, 464], [34, 46, 77, 168, 226, 302, 990, 3409, 92134]),
    "our chained": ([58, 79, 100, 128, 139, 142, 153, 159, 164], [328, 341, 350, 363, 367, 369, 372, 374, 376]),
    "our std": ([86, 117, 148, 177, 184, 191, 198, 209, 214], [275, 291, 306, 315, 320, 321, 327, 329, 332]),
}
THESIS_6_4 = {
    "lock-free cuckoo": [41.4, 79.6, None, 97.6, 97.8],
    "cuckoo, spinning read-write lock": [39.5, 49.3, None, 49.5, 37.2],
    "hierarchical": [34.1, 41.7, None, 31.9, 28.9],
    "cuckoo, spinlock": [38.3, 40.6, None, 25.2, 16.7],
    "cuckoo, read-write lock": [38.1, 38.7, None, 17.3, 15.4],
}
THESIS_6_5 = {
    "none": [0.40, 0.33, 0.36, 0.35],
    "lazy": [0.44, 0.43, 0.41, 0.43],
    "wheel": [0.40, 0.95, 1.19, 1.13],
    "scan": [2.22, 4.19, 5.53, 4.34],
}


def main() -> int:
    match sys.argv[1:]:
        case ["join", folder, results]:
            joined: Rows = {}
            for path in sorted(Path(folder).glob("*.json")):
                if text := path.read_text().strip():
                    add(joined, json.loads(text))
            Path(results).write_text(json.dumps(joined, indent=1, sort_keys=True) + "\n")
        case ["page", results, page]:
            pictures = Path(page).with_suffix("")
            text, drawn = page_of(json.loads(Path(results).read_text()), pictures.name)
            Path(page).write_text(text)
            pictures.mkdir(exist_ok=True)
            for name, picture in drawn.items():
                (pictures / name).write_text(picture)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


def add(joined: Rows, run: Rows) -> None:
    """Adds the parts of one run, with its date, in place of those that are there."""
    machine, earlier = run.pop("machine"), run.pop("dates", {})
    dates = joined.setdefault("dates", {})
    joined["machine"] = machine
    for name, rows in run.items():
        part = SHARES.get(name, name)
        date = earlier.get(part, machine["date"])
        # A share joins the other share of its own day and replaces what is older.
        same_day = dates.get(part, "").split()[:1] == date.split()[:1]
        joined[part] = joined[part] | rows if part != name and same_day else rows
        dates[part] = date


def page_of(results: Rows, pictures: str) -> tuple[str, dict[str, str]]:
    """Returns the page, and its pictures by the names of their files."""
    machine = results["machine"]
    drawn = plots(results, THESIS_6_1, THESIS_6_2, LOADS)
    lines = [
        "# Connection tables: what was measured",
        "",
        "A page of `tools/paper_flow.py`, of what `make paper-flow` measures; [flow.md](flow.md) explains it and says "
        "what is missing.",
        "",
        f"{machine['date']} UTC, {machine['cores']} cores of {machine['cpu']}, model {machine['model']}, cache "
        f"{machine['cache']}, time stamp counter {machine['tsc GHz']:.2f} GHz, Linux {machine['kernel']}, huge pages "
        f"{machine['huge pages']}. There is no network adapter in any row.",
        "",
    ]
    for part, write in WRITERS.items():
        if part in results:
            title, *rest = write(results[part])
            picture = [f"![{title.strip('# ')}]({pictures}/{part}.svg)", ""] if part in drawn else []
            lines += [title, "", *picture, *rest[1:], ""]
            if part in results.get("dates", {}):
                lines += [f"Measured {results['dates'][part]} UTC.", ""]
    return "\n".join(lines).rstrip() + "\n", {f"{part}.svg": picture for part, picture in drawn.items()}


def table(head: list[str], rows: list[list[Any]]) -> list[str]:
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(shown(cell) for cell in row) + " |" for row in rows),
    ]


def shown(cell: Any) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.0f}" if abs(cell) >= 100 else f"{cell:.1f}" if abs(cell) >= 10 else f"{cell:.2f}"
    return str(cell)


def goals(rows: Rows, title: str = "One core, 4 M entries") -> list[str]:
    columns = ["hit 0 75", "hit 32 75", "miss 0 75", "miss 32 75", "hit 0 50", "hit 0 95", "hit 32 50", "hit 32 95"]
    fill = ["insert 50", "insert 75", "insert 90"]
    head = ["table", "hit", "hit, batch", "miss", "miss, batch", "hit at 50 %", "at 95 %", "batch at 50 %", "at 95 %"]
    body = []
    for name, row in sorted(rows.items(), key=lambda item: item[1].get("hit 0 75", 1e9) if item[0] != "batches" else 0):
        if name != "batches":
            times = [row.get(key) for key in fill]
            mean = (times[0] * 50 + times[1] * 25 + times[2] * 15) / 90 if all(times) else None
            body.append([name, *(row.get(key) for key in columns), mean])
    lines = [
        f"## {title}",
        "",
        "Nanoseconds a key, medians of rounds in turns; 75 % full if nothing else is said; batches of 32.",
        "",
    ]
    lines += table([*head, "insertion, to 90 %"], body)
    batches = [[row["batch"], row["hit"], row["miss"]] for row in rows.get("batches", [])]
    return [*lines, "", "`Batched` by the length of a batch:", "", *table(["keys", "hit", "miss"], batches)]


def figure_6_1(rows: Rows) -> list[str]:
    def best(profile: str, name: str, field: str) -> float | None:
        return max((run[field] for run in rows[profile].get(name, [])), default=None)

    body = []
    for name in sorted(rows["campus"], key=lambda one: -(best("campus", one, "mpps") or 0)):
        measured = [best(profile, name, field) for profile in ("campus", "caida") for field in ("mpps", "gbps")]
        body.append([name, *measured, *THESIS_6_1.get(name, (None, None))])
    head = ["table", "campus, Mpps", "Gbps at that mix", "CAIDA, Mpps", "Gbps", "thesis: campus, Mpps", "CAIDA"]
    return ["## Figure 6.1: the whole path, one core, 4 M entries", "", *table(head, body)]


def figure_6_2(rows: Rows) -> list[str]:
    lines = ["## Figure 6.2: cycles over load, 2 M entries", ""]
    for kind, which in [("lookup", 0), ("insert", 1)]:
        body = []
        for name, points in rows.items():
            by_load = {point["load"]: point.get(kind) for point in points}
            body.append([name, *(by_load.get(load) for load in LOADS)])
            if kind == "lookup" and any(point.get("lookup in batches") for point in points):
                by_load = {point["load"]: point.get("lookup in batches") for point in points}
                body.append([f"{name}, batches of 32", *(by_load.get(load) for load in LOADS)])
            if name in THESIS_6_2:
                body.append([f"{name}: thesis", *THESIS_6_2[name][which]])
        lines += [f"Cycles of one {kind} (time stamp counter; - means refused).", ""]
        lines += [*table(["table", *(f"{load} %" for load in LOADS)], body), ""]
    return lines[:-1]


def scaling(rows: Rows) -> list[str]:
    threads = sorted(rows, key=int)
    body = []
    for name in dict.fromkeys(name for count in threads for name in rows[count]):
        rates = [rows[count].get(name, {}).get("mpps") for count in threads]
        last = rates[-1] / rates[0] if rates[0] and rates[-1] else None
        body.append([name, *rates, last])
    first = "one core" if threads[0] == "1" else f"{threads[0]} cores"
    return table(["Mpps", *(f"{count} cores" for count in threads), f"times {first}"], body)


def figure_6_3(rows: Rows) -> list[str]:
    return ["## Figure 6.3: a table for each core, 8 M entries, campus", "", *scaling(rows)]


def figure_6_4_brief(rows: Rows) -> list[str]:
    lines = ["## Figure 6.4: lock-free tables only, one core and all"]
    for profile, counts in rows.items():
        lines += ["", f"{profile}:", "", *scaling(counts)]
    return lines


def figure_6_4(rows: Rows) -> list[str]:
    lines = ["## Figure 6.4: one table for all cores, 8 M entries", *figure_6_4_brief(rows)[1:]]
    head = ["thesis, Gbit/s, campus", "1 core", "2", "4", "8"]
    thesis = [[name, *(rate for rate in rates if rate is not None)] for name, rates in THESIS_6_4.items()]
    return [*lines, "", *table(head, thesis)]


def figure_6_5(rows: Rows) -> list[str]:
    lines = [
        "## Figure 6.5: deletion, one core 70 % busy, 4 M entries, 5 s",
        "",
        "After each call that deletes, the same core waits as long without doing anything: the control.",
    ]
    fields = [
        "dropped %",
        "cycles a packet",
        "share of deletion",
        "longest pause us",
        "pauses above 20 us",
        "longest wait of the control us",
        "waits above 20 us",
        "calls",
        "connections",
    ]
    for name, ways in rows.items():
        body = []
        for way, row in ways.items():
            kind, _, hertz = way.partition(" ")
            frequency = {"1000 Hz": 0, "100 Hz": 1, "10 Hz": 2, "1 Hz": 3}.get(hertz, 0)
            body.append([way, *map(row.get, fields), THESIS_6_5[kind][frequency]])
        lines += ["", f"{name}:", "", *table(["deletion", *fields, "thesis: dropped %"], body)]
    return lines


def figure_6_6(rows: Rows) -> list[str]:
    return ["## Figure 6.6: deletion and sharing, 16 M entries, CAIDA", "", *scaling(rows)]


def slowest(rows: Rows) -> list[str]:
    fields = ["mean", "p50", "p99", "p99.99", "max", "above 10 us"]
    body = []
    for name, row in rows.items():
        control = row.get("control", {})
        body.append([name, *map(row.get, fields), *map(control.get, fields[3:])])
    head = ["table", "mean", "p50", "p99", "p99.99", "longest", "above 10 us"]
    return [
        "## Single insertions while filling to 90 % of 4 M, ns",
        "",
        "Control: after each insertion the same core waits as long without any table.",
        "",
        *table([*head, "control: p99.99", "longest", "above 10 us"], body),
    ]


def extra(rows: Rows) -> list[str]:
    growth, chosen = rows["growth"], rows.get("chosen keys", {})
    pauses = [
        [name, row.get("above 10 us"), row["above 50 us"], row["max"] / 1000]
        for name, row in [
            ("insertions while the table grows", growth),
            ("another core at the same time, reading the clock", growth.get("another core reading the clock")),
            ("the same core afterwards, reading the clock", growth.get("this core reading the clock afterwards")),
        ]
        if row
    ]
    body = [
        [name, *(row[keys][field] for field in ("hit 32", "insert", "refused") for keys in ("random", "chosen"))]
        for name, row in chosen.items()
    ]
    head = ["table", "hit, random keys", "chosen", "insertion, random", "chosen", "refused, random", "chosen"]
    title = "Keys of which all have ten equal bits of CRC32, 75 % full; nanoseconds, and insertions refused:"
    chosen_keys = [title, "", *table(head, body)] if chosen else []
    return [
        "## Memory, growth, chosen keys",
        "",
        f"A connection takes {rows['memory']['bytes a connection at 90 %']:.1f} bytes at 90 %: table, state and timer.",
        "",
        f"Growth from 65,536 to {growth['capacity']:,} entries: mean {growth['mean']:.0f} ns, p99.99 "
        f"{growth['p99.99']:.0f} ns, {growth['refused']} refused while the next memory was not there. Pauses, and "
        "those of cores that only read the clock for as long, where they were measured:",
        "",
        *table(["", "above 10 us", "above 50 us", "longest, us"], pauses),
        "",
        *chosen_keys,
    ]


def brief(rows: Rows) -> list[str]:
    columns = ["hit 0", "hit 32", "hit 64", "miss 0", "miss 32", "miss 64"]
    head = ["table", "hit", "batch of 32", "of 64", "miss", "batch of 32", "of 64"]
    lines = [
        "## One core, 4 M entries, on a busy machine",
        "",
        "Nanoseconds a key: the fastest of 64 short passes in turns, each over other keys than the last, so that "
        "entries come from memory.",
    ]
    for load in (50, 75, 95):
        body = [[name, *(row.get(f"{column} {load}") for column in columns)] for name, row in rows.items()]
        lines += ["", f"{load} % full:", "", *table(head, sorted(body, key=lambda row: row[1]))]
    return lines


WRITERS = {
    "goals": goals,
    "brief": brief,
    "large": lambda rows: goals(rows, "One core, 32 M entries"),
    "slowest": slowest,
    "6.1": figure_6_1,
    "6.2": figure_6_2,
    "6.3": figure_6_3,
    "6.3-wide": lambda rows: ["## Figure 6.3, all cores", "", *scaling(rows)],
    "6.4": figure_6_4,
    "6.4-brief": figure_6_4_brief,
    "6.5": figure_6_5,
    "6.6": figure_6_6,
    "extra": extra,
}


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Makes docs/remoting.md and its pictures from the results of `paper.py`. Runs anywhere.

python3 gpu-check/paper_plots.py docs/results/paper-remoting.json docs/remoting.md
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import svg
from svg import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, Bar, Line, Panel

BEST = "or+sr+local"
LEVEL_COLOURS = {"sync": GREY, "or": ORANGE, "or+sr": SKY, BEST: BLUE}
LEVEL_LABELS = {"sync": "sync", "or": "+or", "or+sr": "+sr", BEST: "+local"}
PART_COLOURS = {"API": GREY, "Recv": PURPLE, "Send": GREEN, "S+D": ORANGE}
MODE_TITLES = {
    "local": "local",
    "shm:sync": "shm, sync",
    f"shm:{BEST}": "shm",
    "tcp:sync": "tcp, sync",
    f"tcp:{BEST}": "tcp",
}
MISSING = "-"

HEAD = """\
# Remoting, measured

This page repeats the measurements of "Characterizing Network Requirements for GPU API Remoting in AI Applications"
(Wang et al., 2024) on Outboard. It shows how much time remoting adds to a call, and how much outstanding requests
(OR), shadow resources (SR) and locality save. Two commands make the page and its results file,
[{results}]({results}):

```
make paper-remoting          # on a machine with an NVIDIA GPU
make paper-remoting-plots    # anywhere: this page and its pictures
```

Three things differ from the paper. Outboard replaces the driver, not the runtime and its libraries, so there are fewer
calls, and none that make tensor descriptors. Its second link is tcp over loopback instead of RDMA. All weights are
random. In each part, every mode has a process of its own, and the modes take turns in rounds. A figure is the median
of the rounds; a ratio compares two modes of the same round.

There are four modes. With `sync`, every call waits for its reply. With `or`, a call without a result is sent and
returns at once. With `or+sr`, the client also chooses handles and addresses, so that calls which return one need not
wait. With `or+sr+local`, the default, the client also answers calls from its own state.
"""


def document(results: dict[str, Any], source: str, pictures: str) -> tuple[str, dict[str, str]]:
    """Returns the page, and its pictures by file name. `source` and `pictures` are their paths as
    the page links them."""
    text, drawn = [HEAD.format(results=source)], {}
    for name, title, section in SECTIONS:
        part = results["parts"].get(name)
        text.append(f"## {title}\n")
        if part is None:
            text.append("Not measured yet.\n")
            continue
        body, picture = section(part)
        if picture:
            drawn[f"{name}.svg"] = picture
            body = f"![{title}]({pictures}/{name}.svg)\n\n{body}"
        text.append(body)
        if part.get("not_run"):
            text.append(f"Not measured, because the time was up: {', '.join(part['not_run'])}.\n")
        elsewhere: dict[str, list[str]] = {}
        for case in part.get("cases", {}).values():
            if "machine" in case:
                elsewhere.setdefault(about(case["machine"]), []).append(case["title"])
        said = "".join(f"; on {where}: {', '.join(titles)}" for where, titles in elsewhere.items())
        text.append(f"Measured on {about(part['machine'])}{said}.\n")
    return "\n".join(text), drawn


def _figure3(part: dict[str, Any]) -> tuple[str, str]:
    panels, rows = [], []
    for call in part["calls"].values():
        if "error" in call:
            rows.append([call["title"], call["error"]])
            continue
        local = call.get("local_us")
        bars = [] if local is None else [Bar("local", [(local, PART_COLOURS["API"])], _short(local))]
        row = [call["title"], MISSING if local is None else _short(local)]
        for mode, parts in call["modes"].items():
            split = breakdown_of(parts, local)
            stacked = [(split[name], PART_COLOURS[name]) for name in ("API", "Recv", "Send", "S+D")]
            bars.append(Bar(MODE_TITLES.get(mode, mode).replace(", ", "\n"), stacked, _short(parts["whole_us"])))
            row.append(f"{_short(parts['whole_us'])} ({' + '.join(_short(split[n]) for n in PART_COLOURS)})")
        panels.append(Panel(call["title"], bars))
        rows.append(row)
    modes = next((list(c["modes"]) for c in part["calls"].values() if "error" not in c), [])
    head = ["us", "local", *(f"{MODE_TITLES.get(mode, mode)} ({' + '.join(PART_COLOURS)})" for mode in modes)]
    text = (
        "Each call is repeated many times, and its time has four parts. API is the time of the call on the local GPU. "
        "Recv is the rest of the wait for the server. Send is the time to hand the message to the link. S+D is all "
        "other work of the client, such as laying out the message. Figures are means, and do not include the time to "
        "read the clock. A call that does not wait has no API and no Recv, because the server executes it while the "
        "program goes on. So with `or+sr+local`, a StreamSynchronize also waits for the launch before it, for which "
        "`sync` has waited already. Means include work that is done once: the first copies map their staging memory, "
        "which takes some milliseconds in a thousand copies.\n\n"
    )
    return text + table(head, rows), svg.chart(
        "Where the time of a call goes", panels, list(PART_COLOURS.items()), 4, "microseconds"
    )


def breakdown_of(parts: dict[str, float], local_us: float | None) -> dict[str, float]:
    """Returns the paper's four parts. Of a wait, the time that the call takes locally counts as the
    call itself."""
    api = min(parts["wait_us"], local_us or 0.0)
    return {"API": api, "Recv": parts["wait_us"] - api, "Send": parts["send_us"], "S+D": parts["client_us"]}


def _table2(part: dict[str, Any]) -> tuple[str, str]:
    rows = []
    for case in part["cases"].values():
        for mode, found in case["modes"].items():
            level = "OR alone" if mode.endswith(":or") else "+SR, locality"
            if found["status"] != "ok":
                rows.append([case["title"], level, f"{found['status']}: {found.get('error', '')}"])
                continue
            calls, ms = found["calls"], found["ms"]
            cells = [f"{calls[c]:,.0f}" for c in ("async", "local", "sync")] + [f"{sum(calls.values()):,.0f}"]
            cells += [f"{ms[c]:.3g}" for c in ("async", "local", "sync")] + [f"{sum(ms.values()):.3g}"]
            rows.append([case["title"], level, *cells])
    head = ["one step of inference, tcp", "", "async", "local", "sync", "calls"]
    head += ["async, ms", "local, ms", "sync, ms", "all, ms"]
    text = (
        "Numbers of calls in one step, by class, and the time that the program spent in them. The time of `sync` calls "
        "includes the GPU's own work, for which they would wait on a local GPU too.\n\n"
    )
    return text + table(head, rows), ""


def _figure6(part: dict[str, Any]) -> tuple[str, str]:
    batches = [mode for mode in part["modes"] if "batch=" in mode]
    best = next((mode for mode in part["modes"] if mode.endswith(BEST) and "batch=" not in mode), "")
    panels, rows = [], []
    for case in part["cases"].values():
        ratios = [_ratio(case, mode) for mode in batches]
        outstanding = _ratio(case, best)
        rows.append([_title(case), *(_number(r) for r in [*ratios, outstanding])])
        if any(r is not None for r in ratios):
            lines = [Line(ratios, ORANGE), Line([outstanding] * len(batches), BLUE, dashed=True)]
            labels = [_batch(mode) for mode in batches]
            panels.append(Panel(_title(case), lines=lines, labels=labels, mark=1.0))
    head = ["time over local", *(f"B = {_batch(mode)}" for mode in batches), "OR"]
    text = (
        "With batching, the client holds messages that need no reply until it has B of them. With OR, it sends each "
        "message at once. Both run over tcp, and nothing else differs.\n\n"
    )
    legend = [("batches of B", ORANGE), ("OR", BLUE)]
    return text + table(head, rows), svg.chart("Batching against outstanding requests", panels, legend, 3, "over local")


def _figure7(part: dict[str, Any]) -> tuple[str, str]:
    panels, rows = [], []
    for case in part["cases"].values():
        times = {mode: _median(case, mode) for mode in part["modes"]}
        known = [ms for ms in times.values() if ms is not None]
        fastest = min(known, default=None)
        over = {mode: None if ms is None or fastest is None else ms / fastest for mode, ms in times.items()}
        rows.append([_title(case), *(_number(r) for r in over.values())])
        bars = [
            Bar(
                f"{LEVEL_LABELS[_level(mode)]}\n{mode.partition(':')[0]}",
                [(r, LEVEL_COLOURS[_level(mode)])],
                f"{r:.2f}",
            )
            for mode, r in over.items()
            if r is not None
        ]
        if bars:
            panels.append(Panel(_title(case), bars, mark=1.0))
    head = ["over the fastest", *(mode.replace(":", ", ") for mode in part["modes"])]
    text = (
        "Each mode has the optimisations of the mode before it and one more, over shm (left) and tcp (right). "
        "Times are relative to the fastest mode.\n\n"
    )
    legend = list(LEVEL_COLOURS.items())
    return text + table(head, rows), svg.chart("What each optimisation adds", panels, legend, 2, "over the fastest")


def _table5(part: dict[str, Any]) -> tuple[str, str]:
    panels, rows = [], []
    for case in part["cases"].values():
        row = [_title(case)]
        for mode in part["modes"]:
            entry, ratio = case["modes"].get(mode, {}), _ratio(case, mode)
            if entry.get("status") != "ok":
                row.append(_why_not(entry))
                continue
            row.append(f"{entry['median_ms']:.4g}" + (f" ({ratio:.2f})" if ratio is not None else ""))
        rows.append(row)
        remote = [(mode, _ratio(case, mode)) for mode in part["modes"] if mode != "local"]
        colours = {mode: LEVEL_COLOURS[_level(mode)] for mode, _ in remote}
        bars = [
            Bar(MODE_TITLES.get(mode, mode).replace(", ", "\n"), [(r, colours[mode])], f"{r:.2f}")
            for mode, r in remote
            if r is not None
        ]
        if bars:
            panels.append(Panel(_title(case), bars, mark=1.0))
    head = ["ms (over local)", *(MODE_TITLES.get(mode, mode) for mode in part["modes"])]
    text = (
        "Time of one step: copy the input to the GPU, run the model, read the result back (in training, the loss). "
        "In brackets: the time relative to the local GPU.\n\n"
    )
    legend = [("sync", GREY), (BEST, BLUE)]
    return text + table(head, rows), svg.chart("Programs through Outboard", panels, legend, 3, "over local")


SECTIONS: tuple[tuple[str, str, Callable[[dict[str, Any]], tuple[str, str]]], ...] = (
    ("figure3", "Where the time of a call goes (Figure 3)", _figure3),
    ("figure6", "Batching against outstanding requests (Figure 6)", _figure6),
    ("table2", "Calls by class (Table 2)", _table2),
    ("figure7", "What each optimisation adds (Figure 7)", _figure7),
    ("table5", "Programs (Table 5)", _table5),
)


def _title(case: dict[str, Any]) -> str:
    group = case.get("group")
    return f"{case['title']}, {group}" if group else str(case["title"])


def _median(case: dict[str, Any], mode: str) -> float | None:
    ms = case["modes"].get(mode, {}).get("median_ms")
    return None if ms is None else float(ms)


def _ratio(case: dict[str, Any], mode: str) -> float | None:
    ratio = case["modes"].get(mode, {}).get("ratio_to_local")
    return None if ratio is None else float(ratio)


def _why_not(entry: dict[str, Any]) -> str:
    return f"{entry['status']}: {entry.get('error', '')}" if entry else MISSING


def _level(mode: str) -> str:
    return mode.partition(":")[2]


def _batch(mode: str) -> str:
    return mode.partition("batch=")[2].partition("+")[0]


def _number(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}"


def _short(us: float) -> str:
    """Formats two or three digits, without exponent."""
    return f"{us:.0f}" if us >= 100 else f"{us:.1f}" if us >= 10 else f"{us:.2f}"


def about(machine: dict[str, Any]) -> str:
    gpus = ", ".join(f"{gpu['name']} (driver {gpu['driver_version']})" for gpu in machine.get("gpus", []))
    versions = ", ".join(f"{n} {v}" for n, v in machine.get("packages", {}).items() if n in ("torch", "diffusers"))
    about = [gpus or "no GPU", f"{machine.get('cores', '?')} cores", versions, machine["date_utc"]]
    return ", ".join(part for part in about if part) + f", commit {machine.get('commit', 'unknown')}"


def table(head: list[str], rows: list[list[str]]) -> str:
    width = len(head)
    lines = [head, ["---"] * width, *([*row, *[""] * (width - len(row))] for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines) + "\n"


Make = Callable[[dict[str, Any], str, str], tuple[str, dict[str, str]]]


def main(
    arguments: list[str] | None = None,
    make: Make = document,
    program: str = "paper_plots",
    description: str | None = __doc__,
) -> int:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("page", type=Path, help="the Markdown file; its pictures go into a folder of its name")
    options = parser.parse_args(arguments)
    try:
        results = json.loads(options.results.read_text())
        source = options.results.resolve().relative_to(options.page.resolve().parent)
    except ValueError as error:
        print(f"{program}: {options.results}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    folder = options.page.with_suffix("")
    try:
        text, pictures = make(results, str(source), folder.name)
    except (KeyError, TypeError) as error:
        print(
            f"{program}: {options.results} is no file of results: {error!r}, missing or of another form",
            file=sys.stderr,
        )
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    options.page.write_text(text)
    for name, picture in pictures.items():
        (folder / name).write_text(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())

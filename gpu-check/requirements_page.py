#!/usr/bin/env python3
"""Makes docs/requirements-measured.md and its picture from the results of `requirements.py`. Runs anywhere.

python3 gpu-check/requirements_page.py docs/results/paper-requirements.json docs/requirements-measured.md
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import paper_plots
import svg
from requirements import BANDWIDTHS_GBPS, RTTS_US, network_name
from svg import BLUE, GREY, ORANGE, Line, Panel

MODELS = {"simulated": "replay", "closed_form": "closed form"}
SLOPE_GBPS = 200

HEAD = """\
# Requirements, measured

What `outboard require` predicts from one recording on a local GPU ([how](requirements.md)), against the same programs
run over emulated networks: round-trip times of {rtts} us, bandwidths of {bandwidths} Gbps. Made by two commands from
one file, [{results}]({results}):

```
make paper-requirements          # on a machine with an NVIDIA GPU
make paper-requirements-page     # anywhere: predicts again from the recordings, and makes this page and its picture
```

The program on the local GPU and behind the emulated network take turns, network after network. The machines are
virtual and shared, and have slower and faster seconds; what a step takes is the least of its rounds' medians, and the
local step the middle of as many such figures as there are networks. *Noise* is how far these local figures lie off
their middle, with nothing between program and GPU: no prediction can be seen to be better than that. A network over
which the step seemed slower than over one that is harder in every way is measured again, up to six times. An error is
the predicted step time over the measured one, less 1; the prediction knows the recording and the local step (`--step`).
"""


def document(results: dict[str, Any], source: str, pictures: str) -> tuple[str, dict[str, str]]:
    """Returns the page, and its pictures by file name."""
    lists = {"rtts": _list(RTTS_US), "bandwidths": _list(BANDWIDTHS_GBPS)}
    text = [HEAD.format(results=source, **lists)]
    measured = {n: entry for n, entry in results["cases"].items() if entry["status"] == "ok" and entry["networks"]}
    text.append("## How far off\n\n" + _errors(measured) + _all(measured))
    text.append("## At the requirement\n\n" + _checks(measured, results["budget"], results["check_gbps"]))
    text.append(
        f"## Overhead over round-trip time\n\n![Overhead over round-trip time]({pictures}/slopes.svg)\n\n"
        f"At {SLOPE_GBPS} Gbps: what was measured, and what both models predict.\n"
    )
    text += [_grid(entry) for entry in measured.values()]
    left = [f"- {e['title']}: {e['status']}, {e['error']}" for e in results["cases"].values() if e["status"] != "ok"]
    if left:
        text.append("## Not measured\n\n" + "\n".join(left) + "\n")
    return "\n".join(text), {"slopes.svg": _slopes(measured)}


def _errors(measured: dict[str, Any]) -> str:
    head = [
        "",
        "local, ms",
        "noise: median (90 %)",
        *(f"{title}: median error (90 %, most)" for title in MODELS.values()),
    ]
    rows = []
    for entry in measured.values():
        noise = entry["noise"]
        row = [entry["title"], f"{entry['local_ms']:.4g}", f"{noise['median']:.1%} ({noise['p90']:.1%})"]
        for model in MODELS:
            found = entry["summary"][model]
            row.append(f"{found['median']:.1%} ({found['p90']:.1%}, {found['max']:.1%})")
        rows.append(row)
    return paper_plots.table(head, rows)


def _all(measured: dict[str, Any]) -> str:
    """Summarises all programs and networks."""
    said = []
    for model, title in MODELS.items():
        networks = [network for entry in measured.values() for network in entry["networks"].values()]
        sizes = sorted(abs(network["error"][model]) for network in networks)
        if sizes:
            p90 = sizes[round(0.9 * (len(sizes) - 1))]
            said.append(f"{title} {statistics.median(sizes):.1%} (90th percentile {p90:.1%})")
    return f"\nOver all programs and networks, the median error: {'; '.join(said) or 'nothing was measured'}.\n"


def _checks(measured: dict[str, Any], budget: str, gbps: float) -> str:
    head = [
        "overhead",
        "largest RTT predicted",
        "at half of it",
        "at it",
        "at double",
        f"the {budget} hold, hold, break",
    ]
    limit = float(budget.removesuffix("%")) / 100
    rows = []
    for entry in measured.values():
        checks = entry["checks"]
        if not checks:
            continue
        overheads = [checks[name]["overhead"] for name in ("half", "at", "double")]
        holds = [overheads[0] <= limit, overheads[1] <= limit, overheads[2] > limit]
        rtt = checks["at"]["network"].partition(",")[0].removeprefix("rtt=")
        rows.append(
            [entry["title"], rtt, *(f"{o:+.1%}" for o in overheads), ", ".join("yes" if h else "no" for h in holds)]
        )
    return f"At {gbps} Gbps.\n\n" + (paper_plots.table(head, rows) if rows else "Not measured yet.\n")


def _grid(entry: dict[str, Any]) -> str:
    head = ["measured (replay; closed form)", *(f"{rtt} us" for rtt in RTTS_US)]
    rows = []
    for gbps in BANDWIDTHS_GBPS:
        row = [f"{gbps} Gbps"]
        for rtt in RTTS_US:
            found = entry["networks"][network_name(rtt, gbps)]
            predicted = "; ".join(f"{found['predicted_overhead'][model]:+.1%}" for model in MODELS)
            row.append(f"{found['overhead']:+.1%} ({predicted})")
        rows.append(row)
    about = f"{entry['title']}: {entry['local_ms']:.4g} ms on the local GPU"
    return (
        f"### {about}\n\n" + paper_plots.table(head, rows) + f"\nMeasured on {paper_plots.about(entry['machine'])}.\n"
    )


def _slopes(measured: dict[str, Any]) -> str:
    panels = []
    for entry in measured.values():
        found = [entry["networks"][network_name(rtt, SLOPE_GBPS)] for rtt in RTTS_US]
        lines = [Line([_percent(f["overhead"]) for f in found], GREY)]
        for model, colour in zip(MODELS, (BLUE, ORANGE), strict=True):
            lines.append(Line([_percent(f["predicted_overhead"][model]) for f in found], colour, dashed=True))
        panels.append(Panel(entry["title"], lines=lines, labels=[f"{rtt} us" for rtt in RTTS_US]))
    legend = [("measured", GREY), *zip(MODELS.values(), (BLUE, ORANGE), strict=True)]
    return svg.chart("Overhead over round-trip time", panels, legend, 3, "per cent")


def _percent(overhead: float) -> float:
    """Returns the overhead in percent. Faster than locally is drawn as 0, where the axes begin."""
    return max(0.0, overhead * 100)


def _list(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))


if __name__ == "__main__":
    sys.exit(paper_plots.main(make=document, program="requirements_page", description=__doc__))

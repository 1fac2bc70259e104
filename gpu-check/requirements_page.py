#!/usr/bin/env python3
"""Makes docs/requirements-measured.md and its picture from the results of `requirements.py`. Runs anywhere.

python3 gpu-check/requirements_page.py docs/results/paper-requirements.json docs/requirements-measured.md
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import paper_plots
import requirements_paper
import svg
from requirements import BANDWIDTHS_GBPS, RTTS_US, conditions, network_name
from svg import BLUE, GREY, ORANGE, Line, Panel

MODELS = {"simulated": "replay", "closed_form": "closed form"}
SLOPE_GBPS = 200

HEAD = """\
# Requirements, measured

This page compares the predictions of `outboard require` with measurements. A prediction needs one recording on a local
GPU ([requirements.md](requirements.md) explains the models). The same programs then run over emulated networks, with
round-trip times of {rtts} us and bandwidths of {bandwidths} Gbps. Two commands make the page and its results file,
[{results}]({results}):

```
make paper-requirements          # on a machine with an NVIDIA GPU
make paper-requirements-page     # anywhere: predicts again from the recordings, and makes this page and its picture
```

For each network, the program runs in turns on the local GPU and over the network. The machines are virtual and shared,
so their speed varies from second to second. Therefore the time of a step is the lowest of its rounds' medians. The
local time is the median of these figures over all networks. *Noise* is the deviation of the single local figures from
that median; no measurement can show an error below it. If a step was slower over one network than over a network with
less bandwidth and a longer round trip, it is measured again, up to six times. *Error* is the predicted step time
divided by the measured one, minus 1. The prediction uses the recording and the measured local step (`--step`).
"""


def document(results: dict[str, Any], source: str, pictures: str) -> tuple[str, dict[str, str]]:
    """Returns the page, and its pictures by file name."""
    lists = {"rtts": _list(RTTS_US), "bandwidths": _list(BANDWIDTHS_GBPS)}
    text = [HEAD.format(results=source, **lists)]
    measured = {n: entry for n, entry in results["cases"].items() if entry["status"] == "ok" and entry["networks"]}
    text.append("## Errors of the predictions\n\n" + _errors(measured) + _all(measured))
    text.append("## At the requirement\n\n" + _checks(measured, results["budget"], results["check_gbps"]))
    text += requirements_paper.sections(measured)
    text.append("## Links without a network\n\n" + _links(results["cases"]))
    text.append(
        f"## Overhead over round-trip time\n\n![Overhead over round-trip time]({pictures}/slopes.svg)\n\n"
        f"The measured overhead at {SLOPE_GBPS} Gbps, and the predictions of both models.\n"
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
        "noise: median (90th percentile)",
        *(f"{title}: median error (90th percentile, largest)" for title in MODELS.values()),
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
    return f"\nMedian error over all programs and networks: {'; '.join(said) or 'nothing was measured'}.\n"


def _checks(measured: dict[str, Any], budget: str, gbps: float) -> str:
    head = [
        "overhead",
        "predicted largest RTT",
        "at half that RTT",
        "at that RTT",
        "at twice that RTT",
        f"within {budget}, within, beyond: as predicted",
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
    about = (
        f"For each program, the largest round-trip time that the replay predicts to keep the overhead within {budget}, "
        f"and the overhead measured at half, once and twice that time, at {gbps} Gbps. The overhead should be within "
        f"{budget} at the first two and beyond it at the third. The round trips are those predicted when they were "
        "measured, before a margin was kept.\n\n"
    )
    return about + (paper_plots.table(head, rows) if rows else "Not measured yet.\n")


def _links(cases: dict[str, Any]) -> str:
    measured = {name: entry for name, entry in cases.items() if entry.get("links")}
    if not measured:
        return "Not measured yet.\n"
    links = ("shm", "shm, emulated", "tcp", "tcp, emulated")
    rows = []
    for entry in measured.values():
        found = entry["links"]
        row = [entry["title"], f"{found['local_ms']:.4g}", *(f"{found[link]['overhead']:+.1%}" for link in links)]
        rows.append([*row, f"{1e3 * (found['shm, emulated']['ms'] - found['shm']['ms']):+.0f}"])
    about = (
        "The same steps over each link, and over the same link while it emulates a network without delay. An emulated "
        "link shares no memory, and had no data connections then, so long copies cost more over it than over shm or "
        "tcp. The last column is what it adds to shm.\n\n"
    )
    head = ["overhead", "local, ms", *links, "emulation over shm, us a step"]
    return about + paper_plots.table(head, rows)


def _grid(entry: dict[str, Any]) -> str:
    measured = {conditions(network) for network in entry["networks"]}
    rtts, bandwidths = (sorted(set(values)) for values in zip(*measured, strict=True))
    head = ["measured (replay; closed form)", *(f"{rtt:g} us" for rtt in rtts)]
    rows = []
    for gbps in bandwidths:
        row = [f"{gbps:g} Gbps"]
        for rtt in rtts:
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
        networks = [network_name(rtt, SLOPE_GBPS) for rtt in RTTS_US]
        if not entry["networks"].keys() >= set(networks):
            continue
        found = [entry["networks"][network] for network in networks]
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

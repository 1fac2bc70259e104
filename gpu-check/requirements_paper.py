"""The tables of docs/requirements-measured.md that stand beside Table 4 and Figures 9 and 11 of "Characterizing Network
Requirements for GPU API Remoting in AI Applications". The results of `requirements.py` are all that they need."""

from __future__ import annotations

from typing import Any

import paper_plots
from requirements import BANDWIDTHS_GBPS, RTTS_US, network_name

LIMIT = 0.05
WIDE_GBPS = 200
SHORT_US = 10

# MB/s of Table 4 as printed, in its order of models, and the recordings to compare.
TABLE_4 = (
    ("ResNET", "inference", 253.0, "resnet18_infer_b1"),
    ("SD", "inference", 279.4, "sd_sample_b1"),
    ("Bert", "inference", 0.8, "bert_infer_b1"),
    ("GPT-2", "inference", 1.2, "gpt2_gen32"),
    ("ResNET", "training", 12.3, "resnet18_train_b64"),
    ("SD", "training", 24.6, "sd_train_b1"),
    ("Bert", "training", 220.4, "bert_train_b64"),
    ("GPT-2", "training", 390.8, "gpt2_train_b8"),
)

# Of section 5.1: the network that keeps an inference within 5 %, on both GPUs (RTT in us, Gbps).
FIGURE_9 = (
    ("ResNET", (5, 200), "resnet18_infer_b1"),
    ("SD", (10, 1), "sd_sample_b1"),
    ("Bert", (10, 1), "bert_infer_b1"),
    ("GPT-2", (10, 1), "gpt2_gen32"),
)

# Of section 5.1: how much longer than over 200 Gbps an inference takes over 1 Gbps, at 10 us.
NARROWED = ("ResNET", (10, 1), "135 to 277 %", "resnet18_infer_b1")

# Of section 5.1: overheads that the text names, as model, network (RTT in us, Gbps), what it says.
NAMED = (
    ("Bert inference", (5, 200), "-3.4 % (V100), 2.9 % (A100)", "bert_infer_b1"),
    ("Bert inference", (100, 200), "-1.8 % (V100), 4.6 % (A100)", "bert_infer_b1"),
    ("Bert training", (5, 200), "1.8 %", "bert_train_b64"),
    ("Bert training", (100, 200), "209.3 %", "bert_train_b64"),
    ("SD training", (100, 200), "400 %", "sd_train_b1"),
)

TABLE_4_ABOUT = """\
## Table 4 of the paper: bytes a second

The bytes that a step sends and receives over its time on the local GPU. The paper's table is titled "V100 (left) and
A100 (right)" and has eight numbers in the text at hand, which stand here by their columns; its section 5.1 says 253
for ResNET's inference, too, but 0.6 for Bert's. So most of its numbers may belong to other models than
here. Batches are 1 in inference; in training 64 (ResNet-18, BERT), 1 (Stable Diffusion) and 8 (GPT-2).

"""

FIGURE_9_ABOUT = """\
## Figure 9 of the paper: overhead by network

The networks that keep an inference within 5 %, as the text of the paper's section 5.1 reads them from the figure, and
what was measured (and predicted by replay) over the same networks here; the last two columns are the longest round trip
and the least bandwidth of those measured that keep it. The figure has no printed numbers but those of its text. Every
network's figure is further down.

"""

NAMED_ABOUT = """\

The paper's single numbers. It does not say the bandwidth of those over round trips; its Figure 10 has 200 Gbps.

"""

FIGURE_11_ABOUT = """\
## Figure 11 of the paper: the GPU's time and the program's

The GPU's time is the sum in which it does anything at all (kernels, copies, memsets) in a recorded step; the step is
the local one without recording. The paper's figure prints no numbers. Its text says that the GPU dominates in all its
programs: on an H200 it does where batches are large and in Stable Diffusion; in the other programs at batch 1 the
processor's time decides, and networks hide behind it.

"""


def sections(measured: dict[str, Any]) -> list[str]:
    """Returns the tables that have a row at least."""
    found = [_table_4(measured), _figure_9(measured), _figure_11(measured)]
    return [text for text in found if text]


def _table(about: str, head: list[str], rows: list[list[str]]) -> str:
    return about + paper_plots.table(head, rows) if rows else ""


def _table_4(measured: dict[str, Any]) -> str:
    rows = []
    for model, kind, published, name in TABLE_4:
        entry = measured.get(name)
        if entry is None or not entry.get("recorded"):
            continue
        sent, received = (
            sum(part[way] for part in entry["recorded"]["classes"]) for way in ("request_bytes", "response_bytes")
        )
        # Bytes over milliseconds, in millions of bytes a second.
        rate = (sent + received) / entry["local_ms"] / 1e3
        ours = [entry["title"], f"{rate:,.1f}", f"{sent:,}", f"{received:,}"]
        rows.append([f"{model}, {kind}", f"{published:g}", *ours])
    head = ["MB/s", "paper", "here", "H200", "bytes sent a step", "bytes received"]
    return _table(TABLE_4_ABOUT, head, rows)


def _figure_9(measured: dict[str, Any]) -> str:
    rows = []
    for model, (rtt, gbps), name in FIGURE_9:
        if name in measured:
            networks = measured[name]["networks"]
            there = _overhead(networks, rtt, gbps)
            longest = [r for r in RTTS_US if _keeps(networks, r, WIDE_GBPS)]
            least = [g for g in BANDWIDTHS_GBPS if _keeps(networks, SHORT_US, g)]
            farthest = f"{max(longest)} us" if longest else "none"
            narrowest = f"{min(least)} Gbps" if least else "none"
            rows.append([model, f"{rtt} us, {gbps} Gbps", measured[name]["title"], there, farthest, narrowest])
    head = [
        "within 5 %",
        "paper",
        "here",
        "measured there (replay)",
        f"longest RTT at {WIDE_GBPS} Gbps",
        f"least bandwidth at {SHORT_US} us",
    ]
    text = _table(FIGURE_9_ABOUT, head, rows)
    named = []
    for what, (rtt, gbps), says, name in NAMED:
        if name in measured:
            there = _overhead(measured[name]["networks"], rtt, gbps)
            named.append([f"{what}, {rtt} us, {gbps} Gbps", says, measured[name]["title"], there])
    model, (rtt, gbps), says, name = NARROWED
    networks = measured.get(name, {}).get("networks", {})
    ends = [networks.get(network_name(rtt, bandwidth)) for bandwidth in (gbps, WIDE_GBPS)]
    if all(ends):
        ours, replayed = (f"{(1 + a) / (1 + b) - 1:+.1%}" for a, b in zip(*(_both(end) for end in ends), strict=True))
        what = f"{model} inference, {rtt} us, {gbps} Gbps over {WIDE_GBPS} Gbps"
        named.insert(0, [what, says, measured[name]["title"], f"{ours} ({replayed})"])
    return text + _table(NAMED_ABOUT, ["overhead", "paper", "here", "measured (replay)"], named)


def _keeps(networks: dict[str, Any], rtt: float, gbps: float) -> bool:
    found = networks.get(network_name(rtt, gbps))
    return found is not None and found["overhead"] <= LIMIT


def _overhead(networks: dict[str, Any], rtt: float, gbps: float) -> str:
    found = networks.get(network_name(rtt, gbps))
    if found is None:
        return "-"
    return "{:+.1%} ({:+.1%})".format(*_both(found))


def _both(network: dict[str, Any]) -> tuple[float, float]:
    """Returns the overhead as measured and as the replay predicts it."""
    return network["overhead"], network["predicted_overhead"]["simulated"]


def _figure_11(measured: dict[str, Any]) -> str:
    rows = []
    for entry in measured.values():
        if entry.get("recorded"):
            gpu_ms = entry["recorded"]["gpu_busy_ns"] / 1e6
            share = f"{gpu_ms / entry['local_ms']:.0%}"
            rows.append([entry["title"], f"{gpu_ms:.4g}", f"{entry['local_ms']:.4g}", share])
    return _table(FIGURE_11_ABOUT, ["time a step, ms", "GPU", "program", "share"], rows)

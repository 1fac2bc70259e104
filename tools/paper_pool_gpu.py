"""Sections of docs/pool-paper.md that stand on a GPU behind an emulated PCIe (gpu-check/pool.py), and on "
"recordings."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EMULATED = ROOT / "docs" / "results" / "paper-pool-gpu.json"
sys.path.insert(0, str(ROOT / "gpu-check"))

import svg  # noqa: E402
from paper_plots import about, table  # noqa: E402
from svg import BLUE, GREEN, ORANGE, PURPLE, Line, Panel  # noqa: E402

NOT_RUN = "not run"
COPIED_GB = 64 * 2**20 / 1e9
DELTA_US = 5.6
COLOURS = (BLUE, ORANGE, GREEN, PURPLE)
# Marks numbers of a program whose modes are not in the order of their delays.
UNORDERED = " \\*"
# A mode is as slow as the next one if it is slower by no more.
ORDERED_WITHIN = 1.01
# Modes by growing delay.
BY_DELAY = ("local", "alone", "4.9us", "6.8us", "8us", "19us")
PAPER_8 = {
    "gemm_fp16": 97.2,
    "gemm_fp32": 99.5,
    "gemm_fp64": 99.1,
    "fft_fp16": 96.3,
    "fft_fp32": 97.5,
    "fft_fp64": 98.3,
    "stream_copy": 98.8,
    "stream_scale": 99.1,
    "stream_add": 99.3,
    "stream_triad": 99.3,
    "stream_read": 97.3,
    "stream_write": 97.5,
}
# Table 9, by batch: training and inference, without and with XLA; 0 is 128 with parameters on the host.
PAPER_9 = {
    "synthetic": {
        32: (85.2, 93.3, 95.4, 94.6),
        64: (92.7, 97.5, 98.6, 98.1),
        128: (95.5, 97.9, 99.5, 99.6),
        0: (90.9, 88.1, 83.4, 74.0),
    },
    "host": {
        32: (83.8, 92.4, 94.1, 93.2),
        64: (89.4, 96.8, 97.2, 97.1),
        128: (94.3, 97.3, 97.7, 97.6),
        0: (90.5, 88.0, 84.1, 73.5),
    },
}
# Table 10: the part of memory operations with parameters on the GPU and on the host, in percent.
PAPER_10 = {
    "train_synthetic": (0.2, 7.5),
    "infer_synthetic": (0.2, 15.6),
    "train_host": (2.8, 9.9),
    "infer_host": (9.0, 22.3),
}
# Figure 5: short kernels in percent, and the mean duration in us, by batch.
PAPER_5 = {32: (59.3, 56.0), 64: (58.9, 102.3), 128: (58.3, 193.0)}
PAPER_11 = {8: 81.53, 16: 84.62, 32: 84.47, 64: 83.64}
# Figure 6: the mean duration in us, by batch.
PAPER_6 = {8: 10.7, 16: 8.2, 32: 7.9, 64: 8.1}
RECOMMENDED = (16384, 65536, 262144, 1048576)
PAPER_1 = [
    ("user library (rCUDA, Bitfusion)", "80 to 95 %"),
    ("driver (cGPU)", "80 to 99 %"),
    ("PCIe fabric (Liqid)", "99 to 100 %"),
    ("PCIe over a network (DxPU)", "mostly 90 to 99 %"),
]


@dataclass(frozen=True)
class Emulated:
    """Results of gpu-check/pool.py."""

    parts: dict[str, Any]

    @staticmethod
    def read() -> Emulated:
        return Emulated(json.loads(EMULATED.read_text())["parts"])

    def case(self, name: str, *parts: str) -> dict[str, Any] | None:
        """Returns a case of the first of these parts that has it."""
        found = (self.parts[part]["cases"].get(name) for part in parts if part in self.parts)
        return next((case for case in found if case is not None), None)

    def cell(self, case: dict[str, Any] | None, mode: str) -> str:
        """Returns the performance in a mode, as a part of the local one."""
        entry = case["modes"].get(mode, {}) if case is not None else {}
        if "ratio_to_local" not in entry:
            return NOT_RUN
        assert case is not None
        mark = "" if is_ordered(case) else UNORDERED
        return f"{100 / entry['ratio_to_local']:.1f} %{mark}"

    def local(self, case: dict[str, Any] | None) -> str:
        ms = case["modes"].get("local", {}).get("median_ms") if case is not None else None
        return NOT_RUN if ms is None else f"{ms:.2f} ms"


def is_ordered(case: dict[str, Any]) -> bool:
    """Whether a longer delay takes longer: if not, the processor decided."""
    times = [case["modes"][mode].get("median_ms") for mode in BY_DELAY if mode in case["modes"]]
    known = [ms for ms in times if ms is not None]
    return all(a <= b * ORDERED_WITHIN for a, b in pairwise(known))


def percent(part: float) -> str:
    return f"{100 * part:.1f} %"


def models(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["recording"]: row for row in results["recordings"]["models"]}


def packets(row: dict[str, Any] | None) -> str:
    if row is None:
        return "no recording"
    at = row["at"][0]
    return percent(at["packets"]) + ("" if at["is_settled"] else ", not settled")


def injection(results: dict[str, Any]) -> tuple[str, str]:
    gpu: Emulated = results["emulated"]
    part = gpu.parts["injection"]
    rows, said = [], ""
    for name, case in part["cases"].items():
        had = [f"{asked} → {us:.1f}" for asked, us in case["had_us_by_asked_us"].items()]
        chosen = [f"{mode}: {us:.2f}" for mode, us in case["asked_us"].items()]
        rows.append([name, "; ".join(had), "; ".join(chosen)])
        said = f"{case['had_us_by_asked_us']['0.002']:.1f} us"
    text = (
        f"What is called *emulation* on this page: `gpu-check/pool.py` on {about(part['machine'])} "
        "([results](results/paper-pool-gpu.json)). Programs run on the GPU, there with the delays of section 3.4.2 "
        "(`outboard run --local --emulate-pcie`), and some over links to a server, a process each, in turns. Numbers "
        "are local time by time with delays, the median of the rounds' ratios; there are up to four rounds, and one "
        "where steps take long.\n\n"
        f"A kernel that waits costs the GPU {said} more than it waits for, so less was asked for, by the table: "
        "ResNet-50's inference at batch 128, whose GPU is always busy, is later by all delays. Figure 4 was "
        "measured at "
        "what the table says, the other parts at 2.27 and 4.15 us, from an earlier and less exact table: they had a "
        "delay 0.1 us shorter than the paper's. The link is faster than the paper's (54 GB/s), so fewer tags are "
        "asked for, "
        "until long copies have the paper's rate.\n\n"
        "Two things stay. Launching the waiting kernels takes the processor as long as launching the program's own. "
        "*Alone* is the injection with a delay of 2 ns: a program that loses as much by it loses nothing by a longer "
        "PCIe, which the replay of its recording then says. And programs whose GPU waits for the processor vary by "
        "a third "
        "from process to process on this virtual machine. Numbers with \\* are of programs where more delay did not "
        "take "
        "longer: there the processor, or the GPU's clock, decided.\n\n"
    )
    return text + table(["GPU", "delay asked for → had, us", "asked for in the end, us"], rows), ""


def table1(results: dict[str, Any]) -> tuple[str, str]:
    gpu: Emulated = results["emulated"]
    part = gpu.parts["table1"]["cases"]
    rows = [
        [case["title"], gpu.local(case), *(gpu.cell(case, mode) for mode in ("shm", "tcp", "6.8us"))]
        for case in part.values()
    ]
    text = (
        "Outboard is of the first kind, and is measured over shm and tcp (loopback) on one machine; the paper's "
        "numbers are others' own. Over shm it is between 99 and 104 % where the GPU is busy, over tcp between 96 and "
        "103 %; above 100 % because launching takes a remote program's processor less than the driver takes, most of "
        "all in the detector, whose GPU waits for its program. No RDMA adapter was there, so that link has no number "
        "here.\n\n"
    )
    head = ["", "local", "shm", "tcp", "emulation, 6.8 us"]
    return text + table(["kind", "paper"], [list(row) for row in PAPER_1]) + "\n" + table(head, rows), ""


def two_gpus(results: dict[str, Any]) -> str:
    """What is between two GPUs, and training on both."""
    gpu: Emulated = results["emulated"]
    cases = gpu.parts["two_gpus"]["cases"].values()
    rows = [[case["title"], gpu.local(case), *(gpu.cell(case, mode) for mode in ("4.9us", "6.8us"))] for case in cases]
    text = (
        "\nEmulated on two H200: over NVLink the longer PCIe is seen by waits alone. By way of the host a copy has the "
        "rate of Table 7's two copies, which a GPU's 128-byte reads decide. Training BERT on both, with gradients "
        "summed over NVLink, loses what it loses on one (the paper: 94.6 % on one GPU, 93.8 % on four).\n\n"
    )
    return text + table(["", "local", "emulation, 4.9 us", "6.8 us"], rows)


def table7(results: dict[str, Any]) -> str:
    """Rows of copies behind the emulated PCIe, for table 7."""
    gpu: Emulated = results["emulated"]
    rows = []
    for name, title, paper in (
        ("h2d_pinned", "host to GPU", ("3.9", "2.7 of 11.2")),
        ("d2h_pinned", "GPU to host", ("", "11.6 of 12.5")),
    ):
        case = gpu.case(name, "table7")
        rates = [_rate(case, mode) for mode in ("local", "4.9us", "6.8us")]
        rows.append([title, rates[0], rates[1], paper[0], rates[2], paper[1]])
    text = "\nEmulated, 64 MB from and to pinned memory:\n\n"
    return text + table(["GB/s", "local", "4.9 us", "paper", "6.8 us", "paper"], rows)


def _rate(case: dict[str, Any] | None, mode: str) -> str:
    ms = case["modes"][mode].get("median_ms") if case is not None else None
    return NOT_RUN if ms is None else f"{COPIED_GB / ms * 1e3:.2f}"


def table8(results: dict[str, Any]) -> tuple[str, str]:
    gpu: Emulated = results["emulated"]
    rows = []
    for name, paper in PAPER_8.items():
        case = gpu.case(name, "table8")
        if case is None:
            continue
        us = case["modes"]["local"]["median_ms"] * 1e3
        cells = [gpu.cell(case, mode) for mode in ("alone", "4.9us", "6.8us")]
        rows.append([case["title"], f"{us:.0f} us", *cells, percent(us / (us + DELTA_US)), f"{paper} %"])
    text = (
        "Twenty of each queued, then a wait. Products of 4096 x 4096, 16,384 transforms of 4,096 points, streams of "
        "512 MB; the paper does not say its sizes. *Formula* is t / (t + 5.6 us). A single percent here is a few us, "
        "which is what repeated local runs differ by.\n\n"
    )
    head = ["", "local, each", "alone", "emulation, 4.9 us", "6.8 us", "formula, 6.8 us", "paper"]
    return text + table(head, rows), ""


def _cell_name(mode: str, source: str, batch: int, is_compiled: bool) -> str:
    name = f"resnet50_{mode}_{source}_b{batch or 128}" + ("" if batch else "_parameters")
    return name + ("_compiled" if is_compiled else "")


def table9(results: dict[str, Any]) -> tuple[str, str]:
    gpu: Emulated = results["emulated"]
    recorded = models(results)
    rows = []
    for source, images in (("synthetic", "on the GPU"), ("host", "from the host")):
        for batch, papers in PAPER_9[source].items():
            for number, paper in enumerate(papers):
                mode, is_compiled = ("train", "infer")[number // 2], number % 2 == 1
                name = _cell_name(mode, source, batch, is_compiled)
                case = gpu.case(name, "figure4", "table9", "compiled")
                cells = [gpu.cell(case, one) for one in ("alone", "4.9us", "6.8us")]
                said = "training" if mode == "train" else "inference"
                said += ", compiled" if is_compiled else ""
                where = f"{batch or 128}, {images}" + ("" if batch else ", parameters on the host")
                rows.append([where, said, gpu.local(case), *cells, packets(recorded.get(name)), f"{paper} %"])
    exact = gpu.case("resnet50_train_synthetic_b64_exact", "figure4")
    replayed = packets(recorded.get("resnet50_train_synthetic_b64_exact"))
    text = (
        "torch.compile stands for XLA, compiled once for all batch sizes. Images from the host are copied one step "
        "ahead, beside the step's work, as the paper's program does. Parameters on the host are copied in at each "
        "step, gradients out, and the processor adds them. *Packets* are recordings (`recordings/pool`) in the "
        "simulation, at 6.8 us.\n\n"
        "Emulation and packets agree within two points where the GPU is busy. Both are lower than the paper's, by up "
        "to 13 points with everything on the GPU and by up to 58 with images or parameters from the host, for one "
        "reason: an H200 is faster than a V100. Its kernels are 42 us long at batch 64, not 102, so that a delay of "
        "5.6 us for each is more of it; and inference at batch 128 takes 18 ms, for which its 77 MB of images need "
        "29 "
        "ms at 2.6 GB/s. With products of 32 bits, whose kernels are 114 us long, training at batch 64 has "
        f"{gpu.cell(exact, '6.8us')} in emulation and {replayed} in packets: the paper's 92.7 % is between that and "
        "what the table has.\n\n"
        "What the paper finds by batch size is here too: a larger batch has longer kernels and loses less. What it "
        "finds of inference is not: its kernels are shorter than training's here, and it loses more. And compiling "
        "does not help: at batch 64 a step has 808 pieces of work in place of 792, and they are shorter, where XLA "
        "made the paper's longer. Compiled inference with parameters on the host was not emulated, nor was the same "
        "without compiling: no time was left.\n\n"
    )
    head = ["batch, images", "", "local", "alone", "emulation, 4.9 us", "6.8 us", "packets, 6.8 us", "paper"]
    return text + table(head, rows), ""


def table10(results: dict[str, Any]) -> tuple[str, str]:
    recorded = models(results)
    titles = {
        "train_synthetic": "training, images on the GPU",
        "infer_synthetic": "inference, images on the GPU",
        "train_host": "training, images from the host",
        "infer_host": "inference, images from the host",
    }
    rows = []
    for name, (on_gpu, on_host) in PAPER_10.items():
        shares = []
        for more in ("", "_parameters"):
            row = recorded.get(f"resnet50_{name}_b128{more}")
            shares.append("no recording" if row is None else percent(row["durations"]["memory"]))
        rows.append([titles[name], shares[0], f"{on_gpu} %", shares[1], f"{on_host} %"])
    text = (
        "Copies and memsets as a part of all work of the GPU, at batch 128, from recordings without any delay. They "
        "are close to the paper's, since both its link and its GPU are slower.\n\n"
    )
    head = ["", "parameters on the GPU", "paper", "on the host", "paper"]
    return text + table(head, rows), ""


def figure5(results: dict[str, Any]) -> tuple[str, str]:
    recorded = models(results)
    names = {
        batch: f"resnet50_train_synthetic_b{batch}"
        for batch in PAPER_5
        if f"resnet50_train_synthetic_b{batch}" in recorded
    }
    rows = []
    for batch, name in names.items():
        found, inferring = recorded[name]["durations"], recorded[name.replace("train", "infer")]["durations"]
        short, mean_us = PAPER_5[batch]
        ours = [percent(found["short"]), f"{short} %", f"{found['mean_us']:.1f} us", f"{mean_us} us"]
        rows.append([str(batch), str(found["kernels"]), *ours, f"{inferring['mean_us']:.1f} us"])
    text = (
        "ResNet-50 in training, images on the GPU, from recordings. Twice the batch takes kernels not quite twice "
        "as long, as in the "
        "paper. Short ones (up to 10 us) are fewer at a larger batch here, where the paper's stay at 59 %.\n\n"
    )
    head = ["batch", "kernels", "short", "paper", "mean", "paper", "mean in inference"]
    return text + table(head, rows), _cdf("Durations of ResNet-50's kernels", recorded, names)


def table11(results: dict[str, Any]) -> tuple[str, str]:
    gpu: Emulated = results["emulated"]
    recorded = models(results)
    rows = []
    names = {batch: f"ssd_b{batch}" for batch in PAPER_11}
    for name, paper in [
        *((names[batch], f"{paper} %") for batch, paper in PAPER_11.items()),
        *((f"ncf_b{batch}", "over 96 %") for batch in RECOMMENDED),
    ]:
        case = gpu.case(name, "table11")
        cells = [gpu.cell(case, mode) for mode in ("alone", "4.9us", "6.8us")]
        title = case["title"] if case is not None else name
        rows.append([title, gpu.local(case), *cells, packets(recorded.get(name)), paper])
    durations = []
    for batch, name in names.items():
        found = recorded.get(name)
        if found is not None:
            one = found["durations"]
            durations.append(
                [
                    str(batch),
                    str(one["kernels"]),
                    percent(one["short"]),
                    f"{one['mean_us']:.1f} us",
                    f"{PAPER_6[batch]} us",
                ]
            )
    text = (
        "The detector is a ResNet-50 with a feature pyramid at 320 x 320 (torchvision's RetinaNet; the paper's is "
        "TensorFlow's SSD320), the "
        "recommender NVIDIA's NCF with MovieLens' sizes, both with random weights. The detector's kernels are as "
        "short as "
        "the paper's, and it loses as much in emulation; but more than half of that is the injection's own "
        "launches, since its GPU "
        "waits for the program: in packets it loses 3 to 10 %. The recommender at a million pairs has the paper's "
        "96 %; "
        "at fewer an H200 needs only 2 to 8 ms for 190 kernels.\n\n"
    )
    head = ["", "local", "alone", "emulation, 4.9 us", "6.8 us", "packets, 6.8 us", "paper"]
    text += table(head, rows) + "\nFigure 6, the detector's kernels; the paper's are short to more than 90 %:\n\n"
    text += table(["batch", "kernels", "short", "mean", "paper"], durations)
    return text, _cdf("Durations of the detector's kernels", recorded, names)


def _cdf(title: str, recorded: dict[str, dict[str, Any]], names: dict[int, str]) -> str:
    """Returns the two cumulative distributions of the paper's figures 5 and 6."""
    found = {batch: recorded[name]["durations"]["cdf"] for batch, name in names.items() if name in recorded}
    panels = []
    for key, what in (("of_all", "of all kernels"), ("of_time", "of their time")):
        lines = [
            Line([100 * point[key] for point in points], colour)
            for points, colour in zip(found.values(), COLOURS, strict=False)
        ]
        labels = [_short(point["up_to_us"]) for point in next(iter(found.values()), [])]
        panels.append(Panel(what, lines=lines, labels=labels))
    legend = [(f"batch {batch}", colour) for batch, colour in zip(found, COLOURS, strict=False)]
    return svg.chart(title, panels, legend, 2, "percent, up to us")


def _short(us: int) -> str:
    return str(us) if us < 1000 else f"{us // 1000}k"


def section51(results: dict[str, Any]) -> str:
    """What became of writing the GPU's memory with the processor."""
    case = results["emulated"].case("written_by_processor", "section51")
    entry = case["modes"]["local"] if case is not None else {"error": NOT_RUN}
    if "median_ms" in entry:
        return f"\nOn the GPU of this page, the processor wrote {32 * 2**20 / 1e6 / entry['median_ms']:.2f} GB/s.\n"
    return (
        "\nOn the GPU of this page it could not be tried: the driver there maps none of the GPU's memory for the "
        "processor "
        f"({entry['error'].partition(': ')[2] or entry['error']}).\n"
    )


def recording(results: dict[str, Any], name: str, rtt_us: float) -> tuple[str, str]:
    """Returns the emulation of a recorded program, and the injection's own cost."""
    gpu: Emulated = results["emulated"]
    case = gpu.case(name, "bert", "programs")
    return gpu.cell(case, f"{rtt_us:g}us"), gpu.cell(case, "alone")

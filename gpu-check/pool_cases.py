"""Cases measured as in "DxPU: Large Scale Disaggregated GPU Pools in the Datacenter" (He et al.), by part.

Modes: `local`; `6.8us` and the like, this GPU behind a longer PCIe with that round trip; `alone`, the injection of
`--emulate-pcie` without a delay; links to Outboard's server.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import requirement_cases
from suite import ROOT
from turns import Case

RTTS_US = (4.9, 6.8)
FIGURE4_RTTS_US = (4.9, 6.8, 8.0, 19.0)
ALONE = "alone"
LINKS = ("shm", "tcp")
RECORDINGS = ROOT / "recordings" / "h200"


def mode_name(rtt_us: float) -> str:
    return f"{rtt_us:g}us"


EMULATED = ("local", ALONE, *map(mode_name, RTTS_US))
FIGURE4 = ("local", ALONE, *map(mode_name, FIGURE4_RTTS_US))
REMOTED = ("local", *LINKS, mode_name(6.8))
COPIES = ("local", *map(mode_name, RTTS_US))


@dataclass(frozen=True)
class Part:
    """Cases of one of the paper's tables, and their share of the time."""

    modes: tuple[str, ...]
    cases: tuple[Case, ...]
    share: float
    # Cases of which recordings are made.
    recorded: tuple[str, ...] = ()


def _basic() -> tuple[Case, ...]:
    titles = {f"gemm_{width}": f"product, {width}" for width in ("fp16", "fp32", "fp64")}
    titles |= {f"fft_{width}": f"Fourier transforms, {width}" for width in ("fp16", "fp32", "fp64")}
    titles |= {f"stream_{name}": f"stream, {name}" for name in ("copy", "scale", "add", "triad", "read", "write")}
    return tuple(
        Case(name, title, "pool_basic", name, calls=20, wait=True, group="basic") for name, title in titles.items()
    )


def resnet(is_training: bool, source: str, batch: int, *more: str) -> Case:
    """Returns a cell of table 9."""
    name = "_".join(["resnet50", "train" if is_training else "infer", source, f"b{batch}", *more])
    work = "training" if is_training else "inference"
    images = "images on the GPU" if source == "synthetic" else "images from the host"
    said = {"parameters": "parameters on the host", "compiled": "compiled", "exact": "32-bit products"}
    title = ", ".join([f"ResNet-50 {work}, batch {batch}", images, *(said[word] for word in more)])
    return Case(name, title, "pool_models", name, group="resnet")


def _cells(*more: str) -> tuple[Case, ...]:
    cells = [
        resnet(is_training, source, batch, *more)
        for batch in (64, 128, 32)
        for is_training in (True, False)
        for source in ("synthetic", "host")
    ]
    for is_training in (True, False):
        cells += [resnet(is_training, source, 128, "parameters", *more) for source in ("synthetic", "host")]
    return tuple(cells)


DEFAULT = resnet(True, "synthetic", 64)
# A program whose GPU is always busy, so that it is later by all delays.
INJECTED = resnet(False, "synthetic", 128)
SSD = tuple(Case(f"ssd_b{n}", f"detector, batch {n}", "pool_models", f"ssd_b{n}") for n in (8, 16, 32, 64))
NCF = tuple(
    Case(f"ncf_b{n}", f"recommender, batch {n}", "pool_models", f"ncf_b{n}") for n in (16384, 65536, 262144, 1048576)
)
TRIAD = Case("stream_triad", "a kernel in a queue", "pool_basic", "stream_triad", calls=20, wait=True)
PROGRAMS = tuple(case for case in requirement_cases.CASES if (RECORDINGS / f"{case.name}.trace").exists())
BERT = next(case for case in PROGRAMS if case.name == "bert_train_b64")
# Programs of which one step takes long, or four processes need more memory than there is.
LAST = ("gpt2_gen32", "gpt2_gen32_b512", "sd_unet_b1", "sd_sample_b1", "sd_train_b1")
SD_TRAIN_MODES = ("local", mode_name(6.8))
PLAIN, COMPILED = _cells(), _cells("compiled")


def _programs() -> tuple[Case, ...]:
    first = [case for case in PROGRAMS if case.name not in (*LAST, BERT.name)]
    last = [case for name in LAST for case in PROGRAMS if case.name == name]
    return tuple(replace(case, modes=SD_TRAIN_MODES) if case.name == "sd_train_b1" else case for case in first + last)


PARTS: dict[str, Part] = {
    # Always measured, before all others.
    "injection": Part((), (INJECTED,), 6.0),
    "figure4": Part(
        FIGURE4,
        (DEFAULT, resnet(True, "synthetic", 64, "exact")),
        8.0,
        (DEFAULT.name, "resnet50_train_synthetic_b64_exact"),
    ),
    "table7": Part(
        COPIES,
        (
            Case("h2d_pinned", "64 MB to the GPU", "micro", "h2d_pinned"),
            Case("d2h_pinned", "64 MB to the host", "micro", "d2h_pinned"),
        ),
        0.6,
    ),
    "table8": Part(EMULATED, _basic(), 2.5),
    "table11": Part(EMULATED, (*SSD, *NCF), 4.0, tuple(case.name for case in (*SSD, *NCF))),
    "table9": Part(
        EMULATED,
        tuple(case for case in PLAIN if case is not PLAIN[0]),
        5.0,
        tuple(case.name for case in PLAIN if case is not PLAIN[0]),
    ),
    "bert": Part(EMULATED, (BERT,), 0.7),
    "table1": Part(
        REMOTED,
        (DEFAULT, resnet(False, "synthetic", 64), BERT, SSD[0], NCF[1], _basic()[0], TRIAD),
        3.5,
    ),
    # Its mode is the local one: writes need no answer, and no delay is injected before them.
    "section51": Part(
        ("local",),
        (Case("written_by_processor", "32 MB, written by the processor", "pool_basic", "written_by_processor"),),
        0.1,
    ),
    "programs": Part(EMULATED, _programs(), 6.0),
    "compiled": Part(
        EMULATED,
        COMPILED,
        7.0,
        tuple(case.name for case in COMPILED if case.name.endswith(("synthetic_b64_compiled", "parameters_compiled"))),
    ),
    # Needs two GPUs.
    "two_gpus": Part(
        COPIES,
        tuple(
            Case(name, title, "pool_two", name)
            for name, title in (
                ("peer_copy", "256 MB to the other GPU, NVLink"),
                ("host_copy", "256 MB to the other GPU, by way of the host"),
                ("bert_one", "BERT training, batch 64, one GPU"),
                ("bert_two", "BERT training, batch 64 each, two GPUs"),
            )
        ),
        3.0,
    ),
}
ON_TWO_GPUS = ("two_gpus",)

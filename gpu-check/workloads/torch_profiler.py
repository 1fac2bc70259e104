"""Checks that torch.profiler reports the same kernels in the same order, with the same times.

Names, order, copies, memsets and their links to the program's operators are compared exactly; the times of kernels as
sums, within 5 %. Times of copies are only reported, since they depend on how the bytes get to the GPU.
"""

from __future__ import annotations

import collections
import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

import torch_training
from harness import Result, Settings, digest_bytes, require
from torch_tools import DEVICE, first_result, healthy, random, synchronize

__all__ = ["WORKLOADS", "first_result", "healthy"]

STEPS = 3
# Names whose kernels' times are compared one by one: those with the most threads.
NAMES = 8
# Below, a kernel's time moves by more than a twentieth from run to run on any GPU.
LONG_US = 1000
GPU = ("kernel", "gpu_memcpy", "gpu_memset")


def profiler_resnet18(settings: Settings) -> Result:
    """Training steps of ResNet-18, batch 64."""
    return _profiled(torch_training.resnet_step())


def profiler_bert(settings: Settings) -> Result:
    """Training steps of BERT, 16x128."""
    return _profiled(torch_training.bert_step())


def profiler_graph(settings: Settings) -> Result:
    """Replays of a CUDA graph of products, elementwise kernels, a copy and a memset."""
    a, b = random(512, 512).to(DEVICE), random(512, 512, seed=1).to(DEVICE)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            (a @ b).relu()
    synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        c = (a @ b).relu() + 1
        d = c.clone()
        d.zero_()
        d.copy_(a)

    def step() -> None:
        captured.replay()

    return _profiled(step)


def profiler_copies(settings: Settings) -> Result:
    """Copies both ways of pinned and pageable memory, on the device, and memsets, on two streams."""
    pinned, pageable = random(1 << 18).pin_memory(), random(1 << 16)
    there = torch.empty(1 << 18, device=DEVICE)
    side = torch.cuda.Stream()

    def step() -> None:
        there.copy_(pinned, non_blocking=True)
        pageable.to(DEVICE)
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.default_stream())
            other = there.clone()
            pinned.copy_(other, non_blocking=True)
            other.cpu()
        torch.cuda.default_stream().wait_stream(side)
        there.zero_()

    return _profiled(step)


def profiler_many(settings: Settings) -> Result:
    """Ten thousand kernels in flight when the profile ends."""
    x = torch.zeros(64, device=DEVICE)

    def step() -> None:
        for _ in range(10_000):
            x.add_(1)

    return _profiled(step, steps=1)


def _profiled(step: Callable[[], object], steps: int = STEPS) -> Result:
    """Profiles a few steps, and puts what the trace has of the GPU into a result."""
    for _ in range(3):
        step()
    synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        with profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
            schedule=schedule(wait=0, warmup=1, active=1),
            on_trace_ready=lambda p: p.export_chrome_trace(str(path)),
        ) as profiler:
            for _ in range(2):
                for _ in range(steps):
                    step()
                synchronize()
                profiler.step()
        events = json.loads(path.read_text())["traceEvents"]
    return _seen(events)


def _seen(events: list[dict[str, Any]]) -> Result:
    of = collections.defaultdict(list)
    for event in events:
        of[event.get("cat")].append(event)
    gpu = sorted((event for cat in GPU for event in of[cat]), key=lambda event: event["ts"])
    require(len(gpu) > 0, "the trace has nothing of the GPU")
    calls = {event["args"]["correlation"] for cat in ("cuda_runtime", "cuda_driver") for event in of[cat]}
    operators = {event["args"].get("External id") for event in of["cpu_op"]}
    before = [event for event in gpu if event["dur"] < 0]
    require(not before, f"{len(before)} pieces of work end before they begin")
    names = [event["name"] for event in gpu]
    kernels: dict[str, float] = collections.defaultdict(float)
    threads: dict[str, int] = collections.Counter()
    for event in of["kernel"]:
        kernels[event["name"]] += event["dur"]
        threads[event["name"]] += math.prod(event["args"]["grid"]) * math.prod(event["args"]["block"])
    # The same names in every mode, unlike the kernels that took longest.
    largest = sorted(threads, key=lambda name: (-threads[name], name))[:NAMES]
    launched = [e for e in gpu if e["cat"] == "kernel"]
    shapes = [f"{e['name']} {e['args'].get('grid')} {e['args'].get('block')}" for e in launched]
    streams = collections.Counter(e["args"].get("stream") for e in gpu)
    starts = {e["args"]["correlation"]: e["ts"] for cat in ("cuda_runtime", "cuda_driver") for e in of[cat]}
    early = [starts[e["args"]["correlation"]] - e["ts"] for e in gpu if e["args"]["correlation"] in starts]
    copied = collections.Counter(f"{e['name']} {e['args'].get('bytes')}" for e in of["gpu_memcpy"])
    return Result(
        facts={
            "names": digest_bytes("\n".join(n for n in names if not n.startswith("Mem")).encode()),
            "order": digest_bytes("\n".join(names).encode()),
            "shapes": digest_bytes("\n".join(shapes).encode()),
            "kernels": len(of["kernel"]),
            "copies": dict(sorted(copied.items())),
            "memsets": len(of["gpu_memset"]),
            "of a call": sum(e["args"]["correlation"] in calls for e in gpu),
            "of an operator": sum(e["args"].get("External id") in operators for e in gpu),
            "streams": sorted(streams.values()),
            "graph nodes": sum("graph node id" in e["args"] and e["args"]["graph node id"] != 0 for e in gpu),
            "begins before its call": sum(us > 20 for us in early),
        },
        numbers={"all kernels, us": sum(kernels.values())}
        | {f"us of {_short(name)}": kernels[name] for name in largest if sum(kernels.values()) > LONG_US},
        timings_ms={
            "gpu_memcpy": sum(e["dur"] for e in of["gpu_memcpy"]) / 1e3,
            "gpu_memset": sum(e["dur"] for e in of["gpu_memset"]) / 1e3,
            "kernel": sum(kernels.values()) / 1e3,
            "begins before its call at most": max(0.0, max(early, default=0.0)) / 1e3,
        },
    )


def _short(name: str) -> str:
    return f"{name[:40]}... {digest_bytes(name.encode())[:6]}"


WORKLOADS: dict[str, Callable[[Settings], Result]] = {
    step.__name__: step for step in (profiler_resnet18, profiler_bert, profiler_graph, profiler_copies, profiler_many)
}

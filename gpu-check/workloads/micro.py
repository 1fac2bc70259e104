"""Micro-benchmarks: what one call costs. Each also checks that its calls did what they say."""

from __future__ import annotations

from collections.abc import Callable

import torch

from harness import Result, Settings, median_ms, per_call_ms, require
from torch_tools import DEVICE, first_result, healthy, random
from torch_tools import synchronize as synchronize_device

__all__ = ["STEPS", "WORKLOADS", "first_result", "healthy"]

CALLS = 1000
LARGE_BYTES = 64 << 20
SMALL_BYTES = {"4kb": 4 << 10, "64kb": 64 << 10}
GRAPH_KERNELS = 8

Step = Callable[[], object]


def synchronize_step(_: Settings) -> Step:
    return torch.cuda.synchronize


def launch_step(_: Settings) -> Step:
    counter = torch.zeros(16, device=DEVICE)
    return lambda: counter.add_(1)


def item_step(_: Settings) -> Step:
    value = torch.full((), 42.0, device=DEVICE)
    return value.item


def graph_replay_step(_: Settings) -> Step:
    return _counting_graph()[0].replay


def launch_synchronize_step(_: Settings) -> Step:
    counter = torch.zeros(16, device=DEVICE)

    def step() -> None:
        counter.add_(1)
        synchronize_device()

    return step


def graph_replay_synchronize_step(_: Settings) -> Step:
    graph = _counting_graph()[0]

    def step() -> None:
        graph.replay()
        synchronize_device()

    return step


def copy_step(pinned: bool, to_device: bool) -> Step:
    """64 MB one way, waited for."""
    host = random(LARGE_BYTES // 4)
    if pinned:
        host = host.pin_memory()
    device = torch.zeros(host.shape, device=DEVICE)
    source, target = (host, device) if to_device else (device, host)

    def step() -> None:
        target.copy_(source, non_blocking=pinned)
        synchronize_device()

    return step


def _counting_graph() -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """A graph of a few small kernels that adds `GRAPH_KERNELS` to every element."""
    counter = torch.zeros(1024, device=DEVICE)
    # Once outside: nothing may be loaded for the first time inside a capture.
    counter.add_(1)
    counter.zero_()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_KERNELS):
            counter.add_(1)
    return graph, counter


def synchronize(settings: Settings) -> Result:
    return Result(timings_ms={"call": per_call_ms(torch.cuda.synchronize, lambda: None, CALLS)})


def launch(settings: Settings) -> Result:
    counter = torch.zeros(16, device=DEVICE)
    calls = 0

    def step() -> None:
        nonlocal calls
        calls += 1
        counter.add_(1)

    ms = per_call_ms(step, torch.cuda.synchronize, CALLS)
    require(counter.tolist() == [float(calls)] * 16, f"{calls} additions gave {counter.tolist()}")
    return Result(facts={"calls": calls}, timings_ms={"call": ms})


def item(settings: Settings) -> Result:
    step = item_step(settings)
    require(step() == 42.0, "item() gave another value than was stored")
    return Result(timings_ms={"call": per_call_ms(step, lambda: None, settings.iterations(full=1000, quick=200))})


def graph_replay(settings: Settings) -> Result:
    graph, counter = _counting_graph()
    replays = 0

    def step() -> None:
        nonlocal replays
        replays += 1
        graph.replay()

    def replay_and_wait() -> None:
        step()
        torch.cuda.synchronize()

    each_ms = per_call_ms(step, torch.cuda.synchronize, 100)
    alone_ms = median_ms(replay_and_wait, settings.iterations(full=200, quick=50))
    expected = float(replays * GRAPH_KERNELS)
    require(bool((counter == expected).all()), f"{replays} replays gave {counter[0].item()}, not {expected}")
    return Result(facts={"sum": expected}, timings_ms={"replay": each_ms, "replay_and_synchronize": alone_ms})


def copies_pinned(settings: Settings) -> Result:
    """64 MB each way between pinned and device memory, and that the bytes come back as they went."""
    host = random(LARGE_BYTES // 4).pin_memory()
    back = torch.empty_like(host, pin_memory=True)
    device = torch.empty(host.shape, device=DEVICE)
    iterations = settings.iterations(full=30, quick=10)

    def up() -> None:
        device.copy_(host, non_blocking=True)
        torch.cuda.synchronize()

    def down() -> None:
        back.copy_(device, non_blocking=True)
        torch.cuda.synchronize()

    timings = {"h2d_64mb": median_ms(up, iterations), "d2h_64mb": median_ms(down, iterations)}
    require(torch.equal(host, back), "64 MB came back different")
    return Result(timings_ms=timings)


def copies_pageable(settings: Settings) -> Result:
    """Copies from and to pageable memory, short and long."""
    timings = {}
    for name, size_bytes in {**SMALL_BYTES, "64mb": LARGE_BYTES}.items():
        host = random(size_bytes // 4, seed=size_bytes)
        back = torch.empty_like(host)
        device = torch.empty(host.shape, device=DEVICE)
        iterations = (
            settings.iterations(full=30, quick=5) if size_bytes == LARGE_BYTES else settings.iterations(300, 100)
        )

        def up(host: torch.Tensor = host, device: torch.Tensor = device) -> None:
            device.copy_(host)
            torch.cuda.synchronize()

        def down(back: torch.Tensor = back, device: torch.Tensor = device) -> None:
            back.copy_(device)

        timings[f"h2d_{name}"] = median_ms(up, iterations)
        timings[f"d2h_{name}"] = median_ms(down, iterations)
        require(torch.equal(host, back), f"{name} came back different")
    return Result(timings_ms=timings)


def allocations(settings: Settings) -> Result:
    """20 MB from the driver and back, past PyTorch's cache."""

    def step() -> None:
        block = torch.empty(20 << 20, dtype=torch.uint8, device=DEVICE)
        del block
        torch.cuda.empty_cache()

    torch.cuda.empty_cache()
    return Result(timings_ms={"allocate_and_free": median_ms(step, settings.iterations(full=100, quick=30))})


STEPS: dict[str, Callable[[Settings], Step]] = {
    "synchronize": synchronize_step,
    "launch": launch_step,
    "item": item_step,
    "graph_replay": graph_replay_step,
    "launch_synchronize": launch_synchronize_step,
    "graph_replay_synchronize": graph_replay_synchronize_step,
    "h2d_pinned": lambda _: copy_step(pinned=True, to_device=True),
    "d2h_pinned": lambda _: copy_step(pinned=True, to_device=False),
    "h2d_pageable": lambda _: copy_step(pinned=False, to_device=True),
    "d2h_pageable": lambda _: copy_step(pinned=False, to_device=False),
}
WORKLOADS = {
    "synchronize": synchronize,
    "launch": launch,
    "item": item,
    "graph_replay": graph_replay,
    "copies_pinned": copies_pinned,
    "copies_pageable": copies_pageable,
    "allocations": allocations,
}

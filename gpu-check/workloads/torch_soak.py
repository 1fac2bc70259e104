"""A long mixed program: steps in an order by seed, in one process, each with the result that it must have.

What other workloads try alone happens here after each other and beside each other: copies of every size from pinned and
pageable memory, memory that kernels read in place, managed memory, streams, events, threads, graphs, allocations up to
the last byte and back, libraries that are loaded late.
"""

from __future__ import annotations

import ctypes
import os
import random as chance
import statistics
import threading
import time
from collections.abc import Callable

import torch

from harness import CheckFailed, Result, Settings, require
from torch_tools import DEVICE, digest, first_result, healthy

__all__ = ["WORKLOADS", "first_result", "healthy"]

SEED = int(os.environ.get("OUTBOARD_SOAK_SEED", "1"))
STEPS_FULL, STEPS_QUICK = 1500, 300
# As long as this instead, where it is set.
SECONDS = float(os.environ.get("OUTBOARD_SOAK_S", "0"))
COPY_BYTES_MAX = 16 << 20
GRAPH_KERNELS = 5
THREADS = 3

Step = Callable[["Soak"], torch.Tensor]


class Soak:
    """State shared by the steps: a seed, and memory that persists between them."""

    def __init__(self) -> None:
        self.chance = chance.Random(SEED)
        self.kept: list[torch.Tensor] = []
        self.streams = [torch.cuda.Stream() for _ in range(3)]
        self.graph, self.counter = _counting_graph()

    def size(self, most: int = COPY_BYTES_MAX) -> int:
        """A number of words, small ones as often as large ones."""
        return max(1, int(2 ** self.chance.uniform(0, (most // 4).bit_length() - 1)))

    def words(self, count: int, pinned: bool = False) -> torch.Tensor:
        start = self.chance.randrange(1 << 20)
        return torch.arange(start, start + count, dtype=torch.int32, pin_memory=pinned)

    def keep(self, memory: torch.Tensor) -> None:
        self.kept.append(memory)
        if len(self.kept) > 12:
            self.kept.pop(self.chance.randrange(12))


def _counting_graph() -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    counter = torch.zeros(1000, dtype=torch.int64, device=DEVICE)
    counter.add_(1)
    counter.zero_()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_KERNELS):
            counter.add_(1)
    return graph, counter


def _there_and_back(soak: Soak, pinned: bool) -> torch.Tensor:
    host = soak.words(soak.size(), pinned)
    back = torch.empty_like(host, pin_memory=pinned)
    back.copy_(host.to(DEVICE, non_blocking=True) * 3 + 1, non_blocking=True)
    torch.cuda.synchronize()
    require(torch.equal(back, host * 3 + 1), f"{host.numel()} words, pinned: {pinned}")
    if pinned:
        soak.keep(host)
    return back


def copy_pinned(soak: Soak) -> torch.Tensor:
    return _there_and_back(soak, True)


def copy_pageable(soak: Soak) -> torch.Tensor:
    return _there_and_back(soak, False)


def copy_other_stream(soak: Soak) -> torch.Tensor:
    """A copy that has returned, then work in a stream that waits for nothing."""
    host = soak.words(soak.size())
    device = torch.zeros(host.shape, dtype=torch.int32, device=DEVICE)
    torch.cuda.synchronize()
    device.copy_(host)
    with torch.cuda.stream(soak.chance.choice(soak.streams)):
        result = (device + 7).cpu()
    require(torch.equal(result, host + 7), "a stream saw bytes from before a copy that had returned")
    return result


def streams_joined(soak: Soak) -> torch.Tensor:
    host = soak.words(soak.size(1 << 20))
    value = host.to(DEVICE)
    before = torch.cuda.current_stream()
    for stream in soak.streams:
        stream.wait_stream(before)
        with torch.cuda.stream(stream):
            value = value + 1
        before = stream
    torch.cuda.current_stream().wait_stream(before)
    result = value.cpu()
    require(torch.equal(result, host + len(soak.streams)), "streams that wait for each other")
    return result


def threads(soak: Soak) -> torch.Tensor:
    hosts = [soak.words(soak.size(1 << 20)) for _ in range(THREADS)]
    results: list[torch.Tensor | None] = [None] * THREADS

    def work(index: int) -> None:
        with torch.cuda.stream(soak.streams[index]):
            value = hosts[index].to(DEVICE)
            for _ in range(10):
                value = value * 3 - 1
            results[index] = value.cpu()

    workers = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for host, result in zip(hosts, results, strict=True):
        want = host
        for _ in range(10):
            want = want * 3 - 1
        require(result is not None and torch.equal(result, want), "a thread's own arithmetic")
    return torch.cat([r for r in results if r is not None])


def graph_replays(soak: Soak) -> torch.Tensor:
    soak.counter.zero_()
    times = soak.chance.randrange(1, 20)
    for _ in range(times):
        soak.graph.replay()
    result = soak.counter.cpu()
    require(bool((result == times * GRAPH_KERNELS).all()), "replays of a graph")
    return result


def product(soak: Soak) -> torch.Tensor:
    side = soak.chance.choice([8, 64, 200, 512, 1024])
    left = (soak.words(side * side) % 5).float().reshape(side, side)
    result = (left.to(DEVICE) @ left.to(DEVICE).T).cpu()
    # Integers below 2^24, which are exact in any order of addition.
    require(torch.equal(result, left @ left.T), f"a product of {side}")
    return result


def many_small_reads(soak: Soak) -> torch.Tensor:
    value = soak.words(64).to(DEVICE)
    return torch.tensor([int((value[i] * 2).item()) for i in range(0, 64, 4)])


def factorised(soak: Soak) -> torch.Tensor:
    """cuSOLVER, loaded when it is first needed."""
    side = soak.chance.choice([4, 32, 100])
    square = (soak.words(side * side) % 7).double().reshape(side, side)
    positive = square @ square.T + 100 * side * torch.eye(side, dtype=torch.float64)
    factor = torch.linalg.cholesky(positive.to(DEVICE)).cpu()
    require(torch.allclose(factor @ factor.T, positive, rtol=1e-9), "a Cholesky factor")
    return torch.zeros(1)


def transformed(soak: Soak) -> torch.Tensor:
    """cuFFT, loaded when it is first needed."""
    signal = (soak.words(soak.chance.choice([64, 1000, 4096])) % 11).double()
    back = torch.fft.irfft(torch.fft.rfft(signal.to(DEVICE)), n=signal.numel()).cpu()
    require(torch.allclose(back, signal, atol=1e-9), "a Fourier transform and its inverse")
    return torch.zeros(1)


def to_the_last_byte(soak: Soak) -> torch.Tensor:
    """Allocates until there is no more, and goes on as if nothing had been."""
    if soak.chance.random() > 0.1:
        return torch.zeros(1)
    taken = []
    try:
        while True:
            taken.append(torch.empty(8 << 30, dtype=torch.uint8, device=DEVICE))
    except torch.OutOfMemoryError:
        pass
    require(len(taken) > 0, "not even one piece of 8 GiB")
    taken.clear()
    torch.cuda.empty_cache()
    return torch.zeros(1)


def managed(soak: Soak) -> torch.Tensor:
    """Managed memory through the driver: written here, changed there, read here."""
    cuda = ctypes.CDLL("libcuda.so.1")
    count = soak.size(1 << 20)
    address = ctypes.c_uint64()
    status = cuda.cuMemAllocManaged(ctypes.byref(address), ctypes.c_size_t(count * 4), 1)
    require(status == 0, f"cuMemAllocManaged: {status}")
    host = soak.words(count)
    ctypes.memmove(address.value, host.data_ptr(), count * 4)
    torch.cuda.synchronize()
    value = soak.chance.randrange(1 << 30)
    half = count // 2
    status = cuda.cuMemsetD32_v2(address, ctypes.c_uint(value), ctypes.c_size_t(half))
    require(status == 0, f"cuMemsetD32: {status}")
    torch.cuda.synchronize()
    result = torch.empty(count, dtype=torch.int32)
    ctypes.memmove(result.data_ptr(), address.value, count * 4)
    host[:half] = value
    require(torch.equal(result, host), "managed memory")
    require(cuda.cuMemFree_v2(address) == 0, "cuMemFree of managed memory")
    return result


STEPS: list[Step] = [
    copy_pinned,
    copy_pageable,
    copy_other_stream,
    streams_joined,
    threads,
    graph_replays,
    product,
    many_small_reads,
    factorised,
    transformed,
    to_the_last_byte,
    managed,
]


def soak(settings: Settings) -> Result:
    """Steps in an order by seed; the result is the digest of all of theirs."""
    state = Soak()
    steps = settings.iterations(full=STEPS_FULL, quick=STEPS_QUICK)
    until = time.perf_counter() + SECONDS
    results: list[torch.Tensor] = []
    times: dict[str, list[float]] = {}
    done = 0
    while done < steps or (SECONDS and time.perf_counter() < until):
        step = state.chance.choice(STEPS)
        started = time.perf_counter()
        try:
            result = step(state)
        except CheckFailed as error:
            raise CheckFailed(f"step {done} of seed {SEED}, {step.__name__}: {error}") from error
        times.setdefault(step.__name__, []).append(time.perf_counter() - started)
        if done < steps:
            results.append(result.long().sum())
        done += 1
    medians = {name: round(statistics.median(taken) * 1e3, 4) for name, taken in sorted(times.items())}
    return Result(digest=digest(*results), timings_ms=medians)


WORKLOADS = {"soak": soak}

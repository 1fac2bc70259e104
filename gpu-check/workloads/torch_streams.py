"""Order and time: threads, streams, events, asynchronous copies, worker processes, and running out of memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch

from harness import CheckFailed, Result, Settings, require
from torch_tools import DEVICE, digest, first_result, healthy, integers, random

__all__ = ["WORKLOADS", "first_result", "healthy"]

THREADS = 4
# About 20 ms of a GPU's time, long enough for a missing wait to show.
DELAY_CYCLES = 40_000_000


def threads(settings: Settings) -> Result:
    """Four threads compute at once, each on a stream of its own; every sum is what one thread alone gets."""
    rounds = settings.iterations(full=200, quick=50)
    inputs = [random(512, 512, seed=i) / 512**0.5 for i in range(THREADS)]
    expected = [_power_sum(matrix, rounds) for matrix in inputs]
    actual: list[torch.Tensor | BaseException | None] = [None] * THREADS
    start = threading.Barrier(THREADS)

    def work(index: int) -> None:
        try:
            start.wait(timeout=30)
            with torch.cuda.stream(torch.cuda.Stream()):
                actual[index] = _power_sum(inputs[index], rounds)
        except BaseException as error:
            actual[index] = error

    workers = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for index, value in enumerate(actual):
        if not isinstance(value, torch.Tensor):
            raise CheckFailed(f"thread {index}: {type(value).__name__}: {value}")
        require(torch.equal(value, expected[index]), f"thread {index} has {value}, alone it has {expected[index]}")
    return Result(digest=digest(*expected))


def _power_sum(host: torch.Tensor, rounds: int) -> torch.Tensor:
    matrix = host.to(DEVICE)
    product = matrix
    for _ in range(rounds):
        product = torch.tanh(product @ matrix)
    return product.double().sum(dim=0).cpu()


def events(settings: Settings) -> Result:
    """Times between events are positive, add up, and fit into the time that the host saw."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
    torch.cuda.synchronize()
    started = time.perf_counter()
    marks[0].record()
    torch.cuda._sleep(DELAY_CYCLES)
    marks[1].record()
    pending = not marks[1].query()
    torch.cuda._sleep(DELAY_CYCLES)
    marks[2].record()
    marks[2].synchronize()
    wall_ms = (time.perf_counter() - started) * 1e3
    require(marks[2].query(), "an event that was waited for says that it is not done")
    first, second = marks[0].elapsed_time(marks[1]), marks[1].elapsed_time(marks[2])
    total = marks[0].elapsed_time(marks[2])
    require(first > 1 and second > 1, f"delays of {first} and {second} ms were asked to be about 20")
    require(abs(first + second - total) < 0.01 * total + 0.05, f"{first} + {second} ms is not {total} ms")
    require(total <= wall_ms + 0.5, f"{total} ms on the GPU do not fit into {wall_ms} ms")
    return Result(facts={"pending_after_record": pending}, timings_ms={"delay": first})


def stream_dependencies(settings: Settings) -> Result:
    """A consumer on another stream waits for a producer's event and never sees an earlier value."""
    producer, consumer = torch.cuda.Stream(), torch.cuda.Stream()
    value = torch.zeros(1 << 20, device=DEVICE)
    outputs = []
    torch.cuda.synchronize()
    for i in range(1, 11):
        with torch.cuda.stream(producer):
            torch.cuda._sleep(DELAY_CYCLES // 20)
            value.fill_(float(i))
            done = producer.record_event()
        with torch.cuda.stream(consumer):
            consumer.wait_event(done)
            outputs.append((value * 2).sum())
            read = consumer.record_event()
        producer.wait_event(read)
    torch.cuda.synchronize()
    sums = [output.item() for output in outputs]
    expected = [2.0 * i * (1 << 20) for i in range(1, 11)]
    require(sums == expected, f"the consumer saw {sums}, not {expected}")
    return Result(facts={"sums": sums})


def pinned_async_d2h(settings: Settings) -> Result:
    """Asynchronous copies into pinned memory hold the new value once their event has passed, not an older one."""
    host = torch.zeros(1 << 18, dtype=torch.int64, pin_memory=True)
    require(host.is_pinned(), "memory asked to be pinned is not")
    device = torch.zeros(1 << 18, dtype=torch.int64, device=DEVICE)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    for i in range(1, 21):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(DELAY_CYCLES // 40)
            device.fill_(i)
            host.copy_(device, non_blocking=True)
            done = stream.record_event()
        done.synchronize()
        require(bool((host == i).all()), f"copy {i} left {host.unique().tolist()} in pinned memory")
        # And up again: what the host writes now must be what arrives.
        host.fill_(-i)
        with torch.cuda.stream(stream):
            device.copy_(host, non_blocking=True)
            negative = device.sum()
            stream.synchronize()
        require(negative.item() == -i * (1 << 18), f"copy {i} to the device arrived as {negative.item()}")
    return Result()


class _Numbered(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Images that tell which they are."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3, 64, 64), float(index)), index


def dataloader(settings: Settings) -> Result:
    """Two forked workers, pinned batches, non-blocking copies: each image arrives unchanged and in
    order."""
    loader = torch.utils.data.DataLoader(
        _Numbered(), batch_size=32, num_workers=2, pin_memory=True, multiprocessing_context="fork", timeout=30
    )
    seen: list[int] = []
    total = torch.zeros((), dtype=torch.float64, device=DEVICE)
    for images, labels in loader:
        require(images.is_pinned(), "a batch is not pinned")
        on_device = images.to(DEVICE, non_blocking=True)
        expected = labels.to(DEVICE, non_blocking=True)
        wrong = (on_device != expected.view(-1, 1, 1, 1)).sum()
        total += on_device.double().sum()
        seen += labels.tolist()
        require(wrong.item() == 0, f"{wrong.item()} values of the batch at image {seen[-32]} are wrong")
    require(seen == list(range(512)), "images are missing or out of order")
    require(total.item() == 3 * 64 * 64 * sum(range(512)), f"the sum of all images is {total.item()}")
    return Result(facts={"sum": total.item()})


def out_of_memory(settings: Settings) -> Result:
    """Memory runs out with torch.OutOfMemoryError, at once or bit by bit, and the program goes on."""
    block_bytes = 8 << 30
    torch.cuda.empty_cache()
    free_before, total = torch.cuda.mem_get_info()
    _require_oom(lambda: torch.empty(2 * total, dtype=torch.uint8, device=DEVICE))
    kept: list[torch.Tensor] = []

    def fill() -> None:
        for _ in range(total // block_bytes + 2):
            kept.append(torch.empty(block_bytes, dtype=torch.uint8, device=DEVICE))

    _require_oom(fill)
    free_full, _ = torch.cuda.mem_get_info()
    require(free_full < block_bytes, f"{free_full} bytes are free, yet {block_bytes} were refused")
    blocks = len(kept)
    kept.clear()
    torch.cuda.empty_cache()
    free_after, _ = torch.cuda.mem_get_info()
    require(free_after >= free_before - (1 << 30), f"{free_before} bytes were free, {free_after} are free again")
    a = integers(10, 256, 256).float()
    require(torch.equal((a.to(DEVICE) @ a.to(DEVICE)).cpu(), a @ a), "a product is wrong after running out of memory")
    return Result(numbers={"blocks": float(blocks), "total": float(total)})


def _require_oom(allocate: Callable[[], object]) -> None:
    try:
        allocate()
    except torch.OutOfMemoryError:
        return
    raise CheckFailed("more memory was given than there is")


WORKLOADS = {
    "threads": threads,
    "events": events,
    "stream_dependencies": stream_dependencies,
    "pinned_async_d2h": pinned_async_d2h,
    "dataloader": dataloader,
    "out_of_memory": out_of_memory,
}

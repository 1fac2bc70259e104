"""Batches of copies whose sources are read during the call, in the stream's order, or at any time; prints what is
wrong, and "right" at the end: `batched_copies.py asynchronous|synchronous BYTES...`.

A stream is held by a host function, so that what a copy reads early or late is known.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, byref, c_char, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

from cuda import call, made, must, primary_context, short

STREAM, DURING_CALL, ANY = 1, 2, 3
PREFER_OVERLAP = 1
NON_BLOCKING, MAPPED, GLOBAL = 1, 2, 1
OLD, NEW = b"o", b"n"
# A call that waits for the held stream ends with it.
HELD_S_MAX = 5
# Long enough for another thread to be waiting.
SOON_S = 0.2
HostFunction = CFUNCTYPE(None, c_void_p)


class Attributes(ctypes.Structure):
    """`CUmemcpyAttributes`, with the kind and number of each place"""

    _fields_ = (("order", c_uint32), ("places", c_int * 4), ("flags", c_uint32))


Copy = tuple[int, int, int]


def batch(
    copies: list[Copy], orders: list[int], stream: object, firsts: list[int] | None = None, flags: int = 0
) -> tuple[str, int]:
    """Copies `(to, from, bytes)`; returns the name of the status, and what the call said about a copy."""
    arrays = [(c_uint64 * len(copies))(*values) for values in zip(*copies, strict=True)]
    # The device and the host as hints, which say nothing about memory that has a place.
    attributes = (Attributes * len(orders))(*(Attributes(order, (1, 0, 2, 0), flags) for order in orders))
    indices = (c_size_t * len(orders))(*(firsts or range(len(orders))))
    failed = c_size_t(77)
    count, length = c_size_t(len(copies)), c_size_t(len(orders))
    status = call("cuMemcpyBatchAsync", *arrays, count, attributes, indices, length, byref(failed), stream)
    again = (
        call("cuMemcpyBatchAsync_v2", *arrays, count, attributes, indices, length, stream) if failed.value != 77 else ""
    )
    assert again in ("", status), (status, again)
    return short(status), failed.value


def pinned(length: int, flags: int = 0) -> int:
    address = c_void_p()
    must("cuMemHostAlloc", byref(address), c_size_t(length), flags)
    return address.value or 0


def registered(length: int) -> int:
    kept.append(c_char.from_buffer(mmap.mmap(-1, length)))
    address = ctypes.addressof(kept[-1])
    must("cuMemHostRegister_v2", c_void_p(address), c_size_t(length), 0)
    return address


def managed(length: int) -> int:
    address = c_uint64()
    must("cuMemAllocManaged", byref(address), c_size_t(length), GLOBAL)
    return address.value


def pageable(length: int) -> int:
    kept.append(ctypes.create_string_buffer(length))
    return ctypes.addressof(kept[-1])


def device(length: int) -> int:
    address = c_uint64()
    must("cuMemAlloc_v2", byref(address), c_size_t(length))
    return address.value


kept: list[Any] = []
HOSTS: dict[str, Callable[[int], int]] = {
    "pinned": pinned,
    "mapped": lambda length: pinned(length, MAPPED),
    "registered": registered,
    "managed": managed,
    "pageable": pageable,
}


@contextmanager
def held(stream: object, act: Callable[[], object] = lambda: None) -> Iterator[list[bool]]:
    """Holds a stream until the end of the block, and then acts in it. The list gets whether the end came in time."""
    release, in_time = threading.Event(), []

    def hold(_: object) -> None:
        in_time.append(release.wait(HELD_S_MAX))
        act()

    function = HostFunction(hold)
    must("cuLaunchHostFunc", stream, function, None)
    yield in_time
    release.set()
    must("cuStreamSynchronize", stream)
    kept.append(function)


def fill(address: int, byte: bytes, length: int) -> None:
    ctypes.memset(address, byte[0], length)


def content(address: int, length: int) -> bytes:
    """Returns the distinct bytes of device memory."""
    whole = ctypes.create_string_buffer(length)
    must("cuMemcpyDtoH_v2", whole, c_uint64(address), c_size_t(length))
    return bytes(sorted(set(whole.raw)))


def expect(what: str, got: object, wanted: object) -> None:
    if got != wanted:
        wrong.append(what)
        print(f"{what}: {got!r}, not {wanted!r}", flush=True)


def during_the_call(kind: str, length: int) -> None:
    source, target = HOSTS[kind](length), device(length)
    fill(source, OLD, length)
    with held(stream) as in_time:
        answer = batch([(target, source, length)], [DURING_CALL], stream, flags=PREFER_OVERLAP)
        fill(source, NEW, length)
    expect(f"{kind} {length} during the call", (answer, in_time), (("SUCCESS", 77), [True]))
    expect(f"{kind} {length} read during the call", content(target, length), OLD)


def in_order(kind: str, length: int) -> None:
    source, target = HOSTS[kind](length), device(length)
    fill(source, OLD, length)
    timer = threading.Timer(SOON_S, lambda: release.set())
    release = threading.Event()

    @HostFunction
    def write(_: object) -> None:
        release.wait(HELD_S_MAX)
        fill(source, NEW, length)

    kept.append(write)
    must("cuLaunchHostFunc", stream, write, None)
    timer.start()
    answer = batch([(target, source, length)], [STREAM], stream)
    must("cuStreamSynchronize", stream)
    expect(f"{kind} {length} in order", (answer, content(target, length)), (("SUCCESS", 77), NEW))


def mixed(length: int) -> None:
    """Two copies in order, two during the call, one at any time: the host's second half of the sources changes."""
    sources = [pinned(length) for _ in range(5)]
    targets = [device(length) for _ in sources]
    for source in sources:
        fill(source, OLD, length)

    def write() -> None:
        for source in sources[:2]:
            fill(source, NEW, length)

    with held(stream, write):
        copies = [(to, source, length) for to, source in zip(targets, sources, strict=True)]
        if is_asynchronous:
            answer = batch(copies, [STREAM, DURING_CALL, ANY], stream, [0, 2, 4])
        else:
            # Off shm a copy in order waits for what may write its source.
            answer = batch(copies[2:], [DURING_CALL, ANY], stream, [0, 2])
        for source in sources[2:4]:
            fill(source, NEW, length)
    expect("mixed", answer, ("SUCCESS", 77))
    wanted = [NEW, NEW, OLD, OLD, OLD] if is_asynchronous else [OLD, OLD, OLD]
    expect("mixed bytes", [content(to, length) for to in targets[-len(wanted) :]], wanted)


def on_the_device(length: int) -> None:
    """The memory may be changed by another stream as soon as the call has returned."""
    other = made("cuStreamCreate", NON_BLOCKING)
    for name, target in (("device", device(length)), ("host", pinned(length))):
        source = device(length)
        must("cuMemsetD8_v2", c_uint64(source), OLD[0], c_size_t(length))
        must("cuMemsetD8_v2", c_uint64(target), NEW[0], c_size_t(length)) if name == "device" else None
        release = threading.Event()
        hold = HostFunction(lambda _, release=release: release.wait(HELD_S_MAX) and None)
        kept.append(hold)
        must("cuLaunchHostFunc", stream, hold, None)
        threading.Timer(SOON_S, release.set).start()
        answer = batch([(target, source, length)], [DURING_CALL], stream)
        must("cuMemsetD8Async", c_uint64(source), NEW[0], c_size_t(length), other)
        must("cuStreamSynchronize", other)
        must("cuStreamSynchronize", stream)
        got = content(target, length) if name == "device" else bytes(sorted(set(ctypes.string_at(target, length))))
        expect(f"device to {name}", (answer, got), (("SUCCESS", 77), OLD))


def refused() -> None:
    host, to = pinned(64), device(64)
    copy = (to, host, 64)
    none = (1 << 64) - 1
    cases: dict[str, tuple[tuple[str, int], int]] = {
        "order of none": (batch([copy], [0], stream), 0),
        "order beyond all": (batch([copy] * 3, [STREAM, 4], stream, [0, 2]), 2),
        "flags beyond all": (batch([copy], [STREAM], stream, flags=2), 0),
        "no attributes": (batch([copy], [], stream), none),
        "more attributes than copies": (batch([copy], [STREAM, ANY], stream), none),
        "a first of 1": (batch([copy] * 2, [STREAM], stream, [1]), none),
        "firsts that do not ascend": (batch([copy] * 3, [STREAM, ANY], stream, [0, 0]), none),
        "a first beyond all": (batch([copy] * 2, [STREAM, ANY], stream, [0, 2]), none),
        "null stream": (batch([copy], [STREAM], None), none),
        "legacy stream": (batch([copy], [STREAM], c_void_p(1)), none),
        "null source": (batch([copy, (to, 0, 64)], [STREAM], stream), 1),
        "null source during the call": (batch([copy, (to, 0, 64)], [DURING_CALL], stream), 1),
        "beyond an allocation": (batch([copy, (to, host, 4 << 20)], [DURING_CALL], stream), 1),
    }
    for name, (answer, index) in cases.items():
        expect(name, answer, ("INVALID_VALUE", index))
    expect("no bytes", batch([(to, 0, 0)], [DURING_CALL], stream), ("SUCCESS", 77))
    expect("per-thread stream", batch([copy], [DURING_CALL], c_void_p(2)), ("SUCCESS", 77))
    nothing = POINTER(c_uint64)()
    arrays = [byref(c_uint64(value)) for value in copy]
    attributes = [byref(Attributes(STREAM)), byref(c_size_t(0))]
    for missing in range(5):
        pointers: list[object] = [*arrays, *attributes]
        pointers[missing] = nothing
        one = c_size_t(1)
        status = call("cuMemcpyBatchAsync_v2", *pointers[:3], one, *pointers[3:], one, stream)
        expect(f"array {missing} is null", short(status), "INVALID_VALUE")
    zero = call("cuMemcpyBatchAsync_v2", *arrays, c_size_t(0), *attributes, c_size_t(0), stream)
    expect("no copies", short(zero), "INVALID_VALUE")
    must("cuStreamSynchronize", stream)


def captured() -> None:
    """A capture refuses batches, and goes on."""
    host, to = pinned(64), device(64)
    must("cuStreamBeginCapture_v2", stream, 2)
    for order in (STREAM, DURING_CALL):
        answer = batch([(to, host, 64)], [order], stream)
        expect(f"captured {order}", answer, ("STREAM_CAPTURE_UNSUPPORTED", (1 << 64) - 1))
    graph = c_void_p()
    must("cuStreamEndCapture", stream, byref(graph))


wrong: list[str] = []
is_asynchronous = sys.argv[1] == "asynchronous"
lengths = [int(argument) for argument in sys.argv[2:]]
primary_context()
stream = made("cuStreamCreate", NON_BLOCKING)
for kind in HOSTS:
    for length in lengths:
        during_the_call(kind, length)
        in_order(kind, length)
mixed(lengths[0])
on_the_device(lengths[0])
refused()
captured()
print(f"{len(wrong)} wrong" if wrong else "right")

"""Steps of `soak_calls.py`: each takes what it needs, looks at all that it computed, and gives everything back.

What is right is computed by this process from what it drew. Steps keep to what CUDA allows on every device: the
program waits before it touches memory that work uses, and streams that wait for each other are joined by events.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from ctypes import CFUNCTYPE, byref, c_int, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from pathlib import Path

import numpy as np

import mixed_calls
from cuda import call, kernels, made, must, primary_context
from mixed_calls import RELAXED, Wrong
from peers import Access, Location, PoolProperties, Properties
from soak_memory import (
    COPY_BYTES_MAX,
    OF_HOST,
    OF_KERNELS,
    PAGE_BYTES,
    PTX,
    VISITED_MAX,
    Memory,
    drawn,
    fetch,
    libc,
    look,
    made_of,
    memory,
    mix,
    own_pages,
    register,
    send,
    set_words,
    size_of,
    spread,
    words,
)

BLOCKING, NON_BLOCKING = 0, 1
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
NOT_READY = "CUDA_ERROR_NOT_READY"
MIB = 1 << 20
KEPT_MAX = 10
MAY_MOVE = 1
GREATER_OR_EQUAL = 0
DEVICE, BOTH_WAYS = 1, 3
TO_DEVICE, FROM_DEVICE = 1, 2
# Copies of a library that are opened in one process: none is ever closed.
LIBRARIES_MAX = 3
NVML_TRIES_MAX, NVML_REST_S = 5, 1.5

HostFunction = CFUNCTYPE(None, c_void_p)
Step = Callable[["Soak", random.Random], int]
Stream = c_void_p


class Soak:
    """State that steps share: streams, a graph, and memory that stays from step to step."""

    def __init__(self, libraries: list[Path]) -> None:
        self.context = primary_context()
        [self.mix] = kernels(mixed_calls.PTX, "mix")
        [self.spread] = kernels(PTX, "spread")
        self.streams = [made("cuStreamCreate", flags) for flags in (NON_BLOCKING, BLOCKING, NON_BLOCKING, BLOCKING)]
        self.kept: list[tuple[Memory, np.ndarray, ExitStack]] = []
        self.kept_by = threading.Lock()
        self.graph = Graph(self, random.Random(0))
        self.libraries = libraries
        self.opened: list[ctypes.CDLL] = []

    def close(self) -> None:
        self.graph.close()
        for _, _, stack in self.kept:
            stack.close()


@contextmanager
def in_stream(soak: Soak, choice: random.Random) -> Iterator[Stream]:
    """A new stream of any kind, or one that stays."""
    if choice.random() < 0.5:
        yield choice.choice(soak.streams)
        return
    stream = made("cuStreamCreate", choice.choice([BLOCKING, NON_BLOCKING]))
    yield stream
    must("cuStreamDestroy_v2", stream)


@contextmanager
def new_event(flags: int = 2) -> Iterator[c_void_p]:
    event = made("cuEventCreate", flags)
    yield event
    must("cuEventDestroy_v2", event)


def wait(choice: random.Random, stream: Stream) -> str:
    """Waits for a stream by one of the ways that there are; returns the way."""
    way = choice.randrange(4)
    if way == 0:
        must("cuStreamSynchronize", stream)
    elif way == 1:
        until_ready("cuStreamQuery", stream)
    else:
        with new_event() as event:
            must("cuEventRecord", event, stream)
            if way == 2:
                must("cuEventSynchronize", event)
            else:
                until_ready("cuEventQuery", event)
    return ("cuStreamSynchronize", "cuStreamQuery", "cuEventSynchronize", "cuEventQuery")[way]


def until_ready(function: str, handle: c_void_p) -> None:
    while (status := call(function, handle)) == NOT_READY:
        time.sleep(0.0002)
    if status != "CUDA_SUCCESS":
        raise Wrong(f"WRONG: {function}: {status}")


def join(before: Stream, after: Stream) -> None:
    """Later work of `after` comes after the work of `before`."""
    with new_event() as event:
        must("cuEventRecord", event, before)
        must("cuStreamWaitEvent", after, event, 0)


def copies(soak: Soak, choice: random.Random) -> int:
    """From memory of one kind to memory of another by way of the device, of any size, at an odd place."""
    size = size_of(choice, COPY_BYTES_MAX)
    sent = drawn(choice, size)
    at = choice.randrange(64)
    with (
        memory(choice, OF_HOST, size) as of,
        memory(choice, OF_HOST, size) as to,
        memory(choice, ["device"], size + 64) as data,
        in_stream(soak, choice) as stream,
    ):
        of.bytes()[:] = sent
        if choice.random() < 0.5:
            must("cuMemcpyHtoDAsync_v2", data.address(at), of.place(), c_size_t(size), stream)
        else:
            must("cuMemcpyHtoD_v2", data.address(at), of.place(), c_size_t(size))
            # It has been read; for a stream that waits for nothing it may still be under way.
            of.bytes()[:] = 0
            must("cuStreamSynchronize", None)
        if choice.random() < 0.5:
            must("cuMemcpyDtoHAsync_v2", to.place(), data.address(at), c_size_t(size), stream)
            wait(choice, stream)
        else:
            must("cuStreamSynchronize", stream)
            must("cuMemcpyDtoH_v2", to.place(), data.address(at), c_size_t(size))
        return look(f"a copy from {of.kind} to {to.kind}", to.bytes(), sent)


_END = {
    "x": c_size_t,
    "y": c_size_t,
    "kind": c_int,
    "host": c_void_p,
    "device": c_uint64,
    "array": c_void_p,
    "pitch": c_size_t,
}


class Pitched(ctypes.Structure):
    """`CUDA_MEMCPY2D`."""

    _fields_ = (
        *((f"{end}_{name}", kind) for end in ("of", "to") for name, kind in _END.items()),
        ("width", c_size_t),
        ("height", c_size_t),
    )


def rectangles(soak: Soak, choice: random.Random) -> int:
    """A rectangle of pitched memory, part of it set, into the middle of another: what is beside it stays."""
    width, height = choice.randint(1, 3000), choice.randint(1, 50)
    beside, x, y = choice.randint(0, 70), choice.randint(0, 30), choice.randint(0, 3)
    sent = drawn(choice, height * (width + beside))
    wide, high = width + x + choice.randint(0, 40), height + y + choice.randint(0, 3)
    value, part = choice.randrange(256), choice.randint(1, height)
    data, pitch = c_uint64(), c_size_t()
    must("cuMemAllocPitch_v2", byref(data), byref(pitch), c_size_t(width), c_size_t(height), 4)
    with (
        memory(choice, OF_HOST, len(sent)) as of,
        memory(choice, OF_HOST, wide * high) as to,
        in_stream(soak, choice) as stream,
    ):
        of.bytes()[:] = sent
        to.bytes()[:] = 0xEE
        there = Pitched(of_kind=1, of_host=of.host, of_pitch=width + beside, width=width, height=height)
        there.to_kind, there.to_device, there.to_pitch = 2, data.value, pitch.value
        must("cuMemcpy2DAsync_v2", byref(there), stream)
        must("cuMemsetD2D8Async", data, pitch, c_uint8(value), c_size_t(width), c_size_t(part), stream)
        back = Pitched(of_kind=2, of_device=data.value, of_pitch=pitch.value, width=width, height=height)
        back.to_kind, back.to_host, back.to_pitch, back.to_x, back.to_y = 1, to.host, wide, x, y
        must("cuMemcpy2DAsync_v2", byref(back), stream)
        wait(choice, stream)
        wanted = np.full((high, wide), 0xEE, np.uint8)
        wanted[y : y + height, x : x + width] = sent.reshape(height, width + beside)[:, :width]
        wanted[y : y + part, x : x + width] = value
        right = look(f"a rectangle from {of.kind} to {to.kind}", to.bytes(), wanted.reshape(-1))
    must("cuMemFree_v2", data)
    return right


def sets(soak: Soak, choice: random.Random) -> int:
    """Values of each width at odd places, in a stream."""
    size = size_of(choice, COPY_BYTES_MAX) + 64
    wanted = drawn(choice, size)
    with memory(choice, OF_KERNELS, size) as data, in_stream(soak, choice) as stream:
        sent = wanted.copy()
        send(data, sent, stream)
        for _ in range(choice.randint(1, 6)):
            width = choice.choice([1, 2, 4])
            kind = {1: c_uint8, 2: c_uint16, 4: c_uint32}[width]
            value = choice.randrange(1 << 8 * width)
            begin = choice.randrange(size // width)
            count = choice.randint(1, size // width - begin)
            function = f"cuMemsetD{8 * width}Async"
            must(function, data.address(begin * width), kind(value), c_size_t(count), stream)
            wanted[: size // width * width].view(kind)[begin : begin + count] = value
        return look(f"values in {data.kind}", fetch(data, stream), wanted)


def in_place(soak: Soak, choice: random.Random) -> int:
    """A kernel reads one memory and writes another, in turns with the program."""
    count = max(1, size_of(choice, MIB) // 4)
    stride = choice.randint(-(-count // VISITED_MAX), max(1, count // 2) + -(-count // VISITED_MAX))
    visits = -(-count // stride)
    right = 0
    with (
        memory(choice, OF_KERNELS, 4 * count) as of,
        memory(choice, OF_KERNELS, 4 * count) as to,
        in_stream(soak, choice) as stream,
    ):
        one, other = words(choice, count), words(choice, count)
        sent = one.copy(), other.copy()
        send(of, sent[0].view(np.uint8), stream)
        send(to, sent[1].view(np.uint8), stream)
        for _ in range(choice.randint(1, 4)):
            spread(soak.spread, to.data, of.data, visits, stride, stream)
            other[::stride] = made_of(one[::stride])
            right += look(f"what a kernel made of {of.kind}", fetch(to, stream).view(np.uint32), other)
            at, value = choice.randrange(count), choice.randrange(1 << 32)
            one[at:] = value
            if of.host:
                of.words()[at:] = value
            else:
                set_words(of.data + 4 * at, value, count - at, stream)
        return right + look(f"{of.kind} that a kernel reads", fetch(of, stream).view(np.uint32), one)


def streams_joined(soak: Soak, choice: random.Random) -> int:
    """Work that must keep its order, in many streams that events join; some end while their work is under way."""
    count = choice.randint(1, VISITED_MAX)
    wanted = words(choice, count)
    functions = []
    with memory(choice, OF_KERNELS, 4 * count) as data, memory(choice, OF_KERNELS, 4 * count) as other:
        stream = choice.choice(soak.streams)
        sent = wanted.copy()
        send(data, sent.view(np.uint8), stream)
        for _ in range(choice.randint(2, 8)):
            is_new = choice.random() < 0.3
            after = made("cuStreamCreate", NON_BLOCKING) if is_new else choice.choice(soak.streams)
            join(stream, after)
            wanted = work(soak, choice, data, other, wanted, after, functions)
            stream = choice.choice(soak.streams)
            join(after, stream)
            if is_new:
                must("cuStreamDestroy_v2", after)
        wait(choice, stream)
        return look(f"streams that wait for each other, {data.kind}", fetch(data, stream).view(np.uint32), wanted)


def work(
    soak: Soak,
    choice: random.Random,
    data: Memory,
    other: Memory,
    now: np.ndarray,
    stream: Stream,
    functions: list[object],
) -> np.ndarray:
    """Sends a piece of work to a stream; returns what it makes of the words."""
    kind = choice.randrange(4)
    count, now = len(now), now.copy()
    if kind == 0:
        mix(soak.mix, data.data, count, stream)
        return made_of(now)
    if kind == 1:
        at, value = choice.randrange(count), choice.randrange(1 << 32)
        set_words(data.data + 4 * at, value, count - at, stream)
        now[at:] = value
    elif kind == 2:
        size = c_size_t(4 * count)
        must("cuMemcpyDtoDAsync_v2", other.address(), data.address(), size, stream)
        set_words(data.data, 0, count, stream)
        spread(soak.spread, data.data, other.data, count, 1, stream)
        return made_of(now)
    else:
        functions.append(HostFunction(lambda _: time.sleep(0.001)))
        must("cuLaunchHostFunc", stream, functions[-1], None)
    return now


def host_functions(soak: Soak, choice: random.Random) -> int:
    """Functions of the program's and kernels change the same words in turns."""
    count = choice.randint(1, 500)
    wanted, functions = words(choice, count), []
    with memory(choice, ["pinned", "registered", "managed"], 4 * count) as data, in_stream(soak, choice) as stream:
        data.words()[:] = wanted

        def turn(_: object) -> None:
            data.words()[:] = data.words() * np.uint32(3) + np.uint32(1)

        functions.append(HostFunction(turn))
        for _ in range(choice.randint(1, 4)):
            must("cuLaunchHostFunc", stream, functions[0], None)
            mix(soak.mix, data.data, count, stream)
            wanted = made_of(wanted * np.uint32(3) + np.uint32(1))
        wait(choice, stream)
        return look(f"functions and kernels in {data.kind}", data.words(), wanted)


class Graph:
    """A captured graph of two branches: copies, kernels, a set and a function of the program's."""

    def __init__(self, soak: Soak, choice: random.Random) -> None:
        self.count = choice.randint(2, VISITED_MAX)
        self.half = choice.randint(1, self.count - 1)
        self.value = choice.randrange(1 << 32)
        size = 4 * self.count
        self.stack, self.calls, self.by = ExitStack(), 0, threading.Lock()
        self.of, self.to = (self.stack.enter_context(memory(choice, ["pinned"], size)) for _ in range(2))
        self.beside = self.stack.enter_context(memory(choice, ["pinned", "registered", "managed"], size))
        self.one, self.other = (self.stack.enter_context(memory(choice, ["device"], size)) for _ in range(2))
        self.function = HostFunction(self._called)
        self.executable = self._captured(soak)

    def _called(self, _: object) -> None:
        self.calls += 1

    def _captured(self, soak: Soak) -> c_void_p:
        graph, executable, size = c_void_p(), c_void_p(), c_size_t(4 * self.count)
        stream, branch = (made("cuStreamCreate", NON_BLOCKING) for _ in range(2))
        must("cuStreamBeginCapture_v2", stream, RELAXED)
        must("cuMemcpyHtoDAsync_v2", self.one.address(), self.of.place(), size, stream)
        join(stream, branch)
        must("cuMemcpyDtoDAsync_v2", self.other.address(), self.one.address(), size, branch)
        set_words(self.other.data, self.value, self.half, branch)
        spread(soak.spread, self.beside.data, self.other.data, self.count, 1, branch)
        join(branch, stream)
        mix(soak.mix, self.one.data, self.count, stream)
        must("cuLaunchHostFunc", stream, self.function, None)
        must("cuMemcpyDtoHAsync_v2", self.to.place(), self.one.address(), size, stream)
        must("cuStreamEndCapture", stream, byref(graph))
        must("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
        must("cuGraphDestroy", graph)
        must("cuStreamDestroy_v2", stream)
        must("cuStreamDestroy_v2", branch)
        return executable

    def replay(self, soak: Soak, choice: random.Random) -> int:
        right = 0
        with self.by, in_stream(soak, choice) as stream:
            for _ in range(choice.randint(1, 4)):
                sent, times, before = words(choice, self.count), choice.randint(1, 3), self.calls
                self.of.words()[:] = sent
                for _ in range(times):
                    must("cuGraphLaunch", self.executable, stream)
                by = wait(choice, stream)
                right += look(f"a graph's results after {by}", self.to.words(), made_of(sent))
                sent[: self.half] = self.value
                what = f"a graph's branch in {self.beside.kind} after {by}"
                right += look(what, self.beside.words(), made_of(sent))
                if self.calls != before + times:
                    raise Wrong(f"WRONG: {self.calls - before} calls of a graph's function in {times} launches")
        return right

    def close(self) -> None:
        must("cuGraphExecDestroy", self.executable)
        self.stack.close()


def graph_new(soak: Soak, choice: random.Random) -> int:
    graph = Graph(soak, choice)
    right = graph.replay(soak, choice)
    graph.close()
    return right


def graph_kept(soak: Soak, choice: random.Random) -> int:
    return soak.graph.replay(soak, choice)


def many_launches(soak: Soak, choice: random.Random) -> int:
    count, times = choice.randint(1, 40), choice.randint(50, 300)
    wanted = words(choice, count)
    with memory(choice, OF_KERNELS, 4 * count) as data, in_stream(soak, choice) as stream:
        sent = wanted.copy()
        send(data, sent.view(np.uint8), stream)
        for _ in range(times):
            mix(soak.mix, data.data, count, stream)
            wanted = made_of(wanted)
        return look(f"{times} launches on {data.kind}", fetch(data, stream).view(np.uint32), wanted)


def to_the_last_byte(_: Soak, choice: random.Random) -> int:
    """Allocates until there is no more, and goes on as if nothing had been."""
    free, total = c_size_t(), c_size_t()
    must("cuMemGetInfo_v2", byref(free), byref(total))
    piece, taken = max(1, free.value // 4 // MIB) * MIB, []
    while piece >= MIB:
        data = c_uint64()
        status = call("cuMemAlloc_v2", byref(data), c_size_t(piece))
        if status == OUT_OF_MEMORY:
            piece = piece // 2 // MIB * MIB
        elif status == "CUDA_SUCCESS":
            taken.append((Memory("device", piece, 0, data.value), choice.randrange(1 << 32)))
        else:
            raise Wrong(f"WRONG: an allocation of {piece} bytes: {status}")
    more = [call("cuMemAlloc_v2", byref(c_uint64()), total), call("cuMemAllocAsync", byref(c_uint64()), total, None)]
    if more != [OUT_OF_MEMORY] * len(more):
        raise Wrong(f"WRONG: there is no memory, and still {more}")
    right, out = 0, np.empty(PAGE_BYTES // 4, np.uint32)
    for data, value in taken:
        set_words(data.data + data.size - PAGE_BYTES, value, PAGE_BYTES // 4, None)
    for data, value in taken:
        end = data.address(data.size - PAGE_BYTES)
        must("cuMemcpyDtoH_v2", c_void_p(out.ctypes.data), end, c_size_t(PAGE_BYTES))
        right += look("the last memory", out, np.full_like(out, value))
    choice.shuffle(taken)
    for data, _ in taken:
        must("cuMemFree_v2", data.address())
    with memory(choice, ["device"], max(data.size for data, _ in taken)):
        return right


def registered_again(soak: Soak, choice: random.Random) -> int:
    """Pages that are registered, given up, moved, replaced and registered again."""
    pages = choice.randint(2, 200)
    size = pages * PAGE_BYTES
    address = own_pages(size)
    wanted = words(choice, size // 4)
    view = Memory("registered", size, address, 0)
    view.words()[:] = wanted
    right = 0
    stride = choice.randint(-(-len(wanted) // VISITED_MAX), 3000)
    with in_stream(soak, choice) as stream:
        for _ in range(choice.randint(1, 4)):
            data = register(address, size)
            view = Memory("registered", size, address, data)
            spread(soak.spread, data, data, -(-len(wanted) // stride), stride, stream)
            wanted[::stride] = made_of(wanted[::stride])
            wait(choice, stream)
            right += look("registered pages", view.words(), wanted)
            must("cuMemHostUnregister", c_void_p(address))
            address = changed_pages(choice, address, wanted)
    libc.munmap(c_void_p(address), c_size_t(size))
    return right


def changed_pages(choice: random.Random, address: int, contents: np.ndarray) -> int:
    """Gives some pages up, moves all or maps others there; returns where they are then."""
    size, page_words = contents.nbytes, PAGE_BYTES // 4
    kind, first = choice.randrange(4), choice.randrange(size // PAGE_BYTES)
    begin, count = address + first * PAGE_BYTES, c_size_t(size - first * PAGE_BYTES)
    if kind == 0:
        if libc.madvise(c_void_p(begin), count, mmap.MADV_DONTNEED) != 0:
            raise Wrong("madvise")
    elif kind == 1:
        over = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10
        if libc.mmap(c_void_p(begin), count, 3, over, -1, c_size_t(0)) != begin:
            raise Wrong("mmap")
    elif kind == 2:
        libc.mremap.restype = c_void_p
        target = own_pages(size)
        moved = libc.mremap(c_void_p(address), c_size_t(size), c_size_t(size), 3, c_void_p(target))
        if moved != target:
            raise Wrong("mremap")
        return target
    if kind < 2:
        contents[first * page_words :] = 0
    return address


def forked(soak: Soak, choice: random.Random) -> int:
    """A child that does nothing with CUDA, while work is under way."""
    count = choice.randint(1, VISITED_MAX)
    wanted = words(choice, count)
    with memory(choice, OF_KERNELS, 4 * count) as data, in_stream(soak, choice) as stream:
        sent = wanted.copy()
        send(data, sent.view(np.uint8), stream)
        mix(soak.mix, data.data, count, stream)
        child = os.fork()
        if child == 0:
            os._exit(0)
        mix(soak.mix, data.data, count, stream)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
            raise Wrong("WRONG: a child that does nothing fails")
        return look(f"{data.kind} in spite of a fork", fetch(data, stream).view(np.uint32), made_of(made_of(wanted)))


def virtual_memory(soak: Soak, choice: random.Random) -> int:
    """One piece of memory at two addresses, one after the other and both at once."""
    granularity, wanted = c_size_t(), Properties(kind=1, location=Location(DEVICE, 0))
    must("cuMemGetAllocationGranularity", byref(granularity), byref(wanted), 0)
    size = granularity.value * choice.randint(1, 3)
    handle, one, other = c_uint64(), c_uint64(), c_uint64()
    access = Access(Location(DEVICE, 0), BOTH_WAYS)
    must("cuMemCreate", byref(handle), c_size_t(size), byref(wanted), c_uint64(0))
    for where in (one, other):
        must("cuMemAddressReserve", byref(where), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0))
        must("cuMemMap", where, c_size_t(size), c_size_t(0), handle, c_uint64(0))
        must("cuMemSetAccess", where, c_size_t(size), byref(access), c_size_t(1))
    count = choice.randint(1, VISITED_MAX)
    at = 4 * choice.randrange(size // 4 - count)
    contents = words(choice, count)
    place = c_void_p(contents.ctypes.data)
    out = np.empty_like(contents)
    with in_stream(soak, choice) as stream:
        must("cuMemcpyHtoDAsync_v2", c_uint64(one.value + at), place, c_size_t(4 * count), stream)
        mix(soak.mix, other.value + at, count, stream)
        must("cuStreamSynchronize", stream)
        must("cuMemUnmap", other, c_size_t(size))
        must("cuMemAddressFree", other, c_size_t(size))
        mix(soak.mix, one.value + at, count, stream)
        must("cuMemcpyDtoHAsync_v2", c_void_p(out.ctypes.data), c_uint64(one.value + at), c_size_t(4 * count), stream)
        wait(choice, stream)
    must("cuMemUnmap", one, c_size_t(size))
    must("cuMemRelease", handle)
    must("cuMemAddressFree", one, c_size_t(size))
    return look("memory at two addresses", out, made_of(made_of(contents)))


def pools(soak: Soak, choice: random.Random) -> int:
    """Memory of a pool of its own and of the device's, freed in one stream and used again in another."""
    pool, wanted = c_void_p(), PoolProperties(kind=1, location=Location(DEVICE, 0))
    must("cuMemPoolCreate", byref(pool), byref(wanted))
    right = 0
    with in_stream(soak, choice) as stream, in_stream(soak, choice) as other:
        for _ in range(choice.randint(1, 6)):
            count = max(1, size_of(choice, MIB) // 4)
            stride = -(-count // VISITED_MAX)
            data, contents = c_uint64(), words(choice, count)
            size, out = c_size_t(4 * count), np.empty(count, np.uint32)
            if choice.random() < 0.5:
                must("cuMemAllocFromPoolAsync", byref(data), size, pool, stream)
            else:
                must("cuMemAllocAsync", byref(data), size, stream)
            must("cuMemcpyHtoDAsync_v2", data, c_void_p(contents.ctypes.data), size, stream)
            join(stream, other)
            spread(soak.spread, data.value, data.value, -(-count // stride), stride, other)
            must("cuMemcpyDtoHAsync_v2", c_void_p(out.ctypes.data), data, size, other)
            must("cuMemFreeAsync", data, other)
            wait(choice, other)
            contents[::stride] = made_of(contents[::stride])
            right += look("memory of a pool", out, contents)
            if choice.random() < 0.3:
                must("cuMemPoolTrimTo", pool, c_size_t(0))
            stream, other = other, stream
    must("cuMemPoolDestroy", pool)
    return right


def waited_words(soak: Soak, choice: random.Random) -> int:
    """A stream waits for a word that another one writes."""
    count, number = choice.randint(1, VISITED_MAX), choice.randrange(1, 1 << 31)
    contents = words(choice, count)
    one, other = (made("cuStreamCreate", NON_BLOCKING) for _ in range(2))
    with memory(choice, ["device"], 4 * count) as data, memory(choice, ["device"], 8) as flag:
        set_words(flag.data, 0, 2, other)
        must("cuStreamSynchronize", other)
        must("cuStreamWaitValue32_v2", one, flag.address(), c_uint32(number), GREATER_OR_EQUAL)
        mix(soak.mix, data.data, count, one)
        sent = contents.copy()
        send(data, sent.view(np.uint8), other)
        must("cuStreamWriteValue32_v2", other, flag.address(), c_uint32(number), 0)
        right = look("work that waited for a word", fetch(data, one).view(np.uint32), made_of(contents))
    must("cuStreamDestroy_v2", one)
    must("cuStreamDestroy_v2", other)
    return right


def late_library(soak: Soak, choice: random.Random) -> int:
    """A library that uses the driver, opened in the middle of it all."""
    if len(soak.opened) < min(LIBRARIES_MAX, len(soak.libraries)):
        soak.opened.append(ctypes.CDLL(str(soak.libraries[len(soak.opened)])))
    if not soak.opened:
        return 0
    runtime, data = choice.choice(soak.opened), c_void_p()
    sent = drawn(choice, size_of(choice, MIB))
    size, back = c_size_t(len(sent)), np.empty_like(sent)
    half = len(sent) // 2
    statuses = [
        runtime.cudaMalloc(byref(data), size),
        runtime.cudaMemcpy(data, c_void_p(sent.ctypes.data), size, TO_DEVICE),
        runtime.cudaMemset(data, 17, c_size_t(half)),
        runtime.cudaMemcpy(c_void_p(back.ctypes.data), data, size, FROM_DEVICE),
        runtime.cudaFree(data),
    ]
    if any(statuses):
        raise Wrong(f"WRONG: a late library's calls: {statuses}")
    sent[:half] = 17
    return look("a late library's copies", back, sent)


def nvml(_: Soak, __: random.Random) -> int:
    """The management library, begun and ended."""
    library, count, tries = ctypes.CDLL("libnvidia-ml.so.1"), c_int(), NVML_TRIES_MAX
    # It waits 5 s for a connection of its own, which a busy host may exceed, and then rests.
    while (begun := library.nvmlInit_v2()) and (tries := tries - 1):
        time.sleep(NVML_REST_S)
    statuses = [begun, library.nvmlDeviceGetCount_v2(byref(count)), library.nvmlShutdown()]
    if any(statuses) or count.value < 1:
        raise Wrong(f"WRONG: NVML: {statuses}, {count.value} devices")
    return 0


LIBRARY = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .global .align 4 .u32 table[64];
.visible .entry rows(.param .u64 to)
{
    .reg .u32 %r<3>;
    .reg .u64 %d<4>;
    ld.param.u64 %d0, [to];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %d1, %r0, 4;
    mov.u64 %d2, table;
    add.u64 %d2, %d2, %d1;
    add.u64 %d0, %d0, %d1;
    ld.global.u32 %r1, [%d2];
    mad.lo.u32 %r1, %r1, 3, 1;
    st.global.u32 [%d0], %r1;
    ret;
}
"""


def late_kernels(soak: Soak, choice: random.Random) -> int:
    """Kernels and a variable of a library that is loaded and unloaded."""
    library, kernel, function, table, size = c_void_p(), c_void_p(), c_void_p(), c_uint64(), c_size_t()
    must("cuLibraryLoadData", byref(library), LIBRARY, None, None, 0, None, None, 0)
    must("cuLibraryGetKernel", byref(kernel), library, b"rows")
    must("cuKernelGetFunction", byref(function), kernel)
    must("cuLibraryGetGlobal", byref(table), byref(size), library, b"table")
    contents = words(choice, 64)
    with memory(choice, OF_KERNELS, 256) as data, in_stream(soak, choice) as stream:
        must("cuMemcpyHtoDAsync_v2", table, c_void_p(contents.ctypes.data), c_size_t(256), stream)
        to = data.address()
        arguments = (c_void_p * 1)(ctypes.addressof(to))
        must("cuLaunchKernel", choice.choice([kernel, function]), 1, 1, 1, 64, 1, 1, 0, stream, arguments, None)
        right = look(
            f"a late kernel's words in {data.kind}",
            fetch(data, stream).view(np.uint32),
            contents * np.uint32(3) + np.uint32(1),
        )
    must("cuLibraryUnload", library)
    return right


def kept(soak: Soak, choice: random.Random) -> int:
    """Memory that stays for many steps: it is what its last change made it."""
    with soak.kept_by, in_stream(soak, choice) as stream:
        if len(soak.kept) < 2 or (len(soak.kept) < KEPT_MAX and choice.random() < 0.3):
            stack, contents = ExitStack(), words(choice, max(1, size_of(choice, 2 * MIB) // 4))
            data = stack.enter_context(memory(choice, OF_KERNELS, contents.nbytes))
            sent = contents.copy()
            send(data, sent.view(np.uint8), stream)
            must("cuStreamSynchronize", stream)
            soak.kept.append((data, contents, stack))
            return 0
        data, contents, stack = soak.kept[choice.randrange(len(soak.kept))]
        right = look(f"{data.kind} that was kept", fetch(data, stream).view(np.uint32), contents)
        if choice.random() < 0.2:
            soak.kept = [one for one in soak.kept if one[0] is not data]
            stack.close()
            return right
        stride = -(-len(contents) // VISITED_MAX) * choice.randint(1, 3)
        spread(soak.spread, data.data, data.data, -(-len(contents) // stride), stride, stream)
        contents[::stride] = made_of(contents[::stride])
        if data.host and choice.random() < 0.5:
            must("cuStreamSynchronize", stream)
            at = choice.randrange(len(contents))
            data.words()[at:] = contents[at:] = choice.randrange(1 << 32)
        else:
            wait(choice, stream)
        return right


def _mixed(piece: Callable[[random.Random, c_void_p], int]) -> Step:
    def step(soak: Soak, choice: random.Random) -> int:
        return piece(choice, soak.mix)

    return step


def at_once(soak: Soak, choice: random.Random) -> int:
    """Threads, each with some of the other steps."""
    rights: list[int] = []
    failures: list[BaseException] = []

    def run(seed: int) -> None:
        own = random.Random(seed)
        try:
            must("cuCtxSetCurrent", soak.context)
            for _ in range(own.randint(1, 3)):
                rights.append(STEPS[own.choice(BESIDE_OTHERS)](soak, own))
        except (Exception, SystemExit) as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(choice.randrange(1 << 30),)) for _ in range(choice.randint(2, 4))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return sum(rights)


# Steps that may run beside each other. The others wait for the whole context, take all memory, or hold a stream while
# what lets it go on is still to be sent.
_BESIDE: dict[str, Step] = {
    "copies": copies,
    "rectangles": rectangles,
    "sets": sets,
    "in_place": in_place,
    "streams_joined": streams_joined,
    "host_functions": host_functions,
    "graph_new": graph_new,
    "graph_kept": graph_kept,
    "many_launches": many_launches,
    "registered_again": registered_again,
    "virtual_memory": virtual_memory,
    "pools": pools,
    "late_kernels": late_kernels,
    "kept": kept,
    "copies_waited": _mixed(mixed_calls.copies),
    "module": _mixed(mixed_calls.in_a_module),
    "refused": _mixed(mixed_calls.refused),
}
BESIDE_OTHERS = list(_BESIDE)
STEPS: dict[str, Step] = {
    **_BESIDE,
    "forked": forked,
    "late_library": late_library,
    "nvml": nvml,
    "to_the_last_byte": to_the_last_byte,
    "waited_words": waited_words,
    "host_memory": _mixed(mixed_calls.in_host_memory),
    "at_once": at_once,
}

"""Plays random sequences of driver calls, and checks what they read against a model of CUDA's
ordering rules.

`ordering.py SEED PROGRAMS SECONDS` plays that many programs, or as many as the time allows. A program that reads what
no order allows is made as short as it can be and printed, one call a line; `ordering.py --play FILE` plays such lines
again. `ordering.py --answers SEED PROGRAMS` prints what each program was answered, reads whose values the rules settle
and statuses of wrong calls too: the same on every driver. `random_calls.py` compares and shrinks.

The model knows no times. Each piece of work has the set of works that must be done before it; a read may see any write
that no other write must hide from it. Sequences are legal: what the host writes, no work under way reads or writes.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import random
import sys
import time
from ctypes import byref, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

Step = list[Any]
Spot = tuple[str, int]

PARTS = 4
PART_WORDS = [16, 1024, 16 << 10, 64 << 10, 512 << 10]
# D: cuMemAlloc, Q: from a pool, P: pinned, H: pageable, R: registered.
BUFFERS = {"device": ["D0", "D1", "D2", "Q0"], "host": ["P0", "H0", "P1", "H1", "R0"]}
ALL = BUFFERS["device"] + BUFFERS["host"]
STREAMS = ["default", "blocking0", "blocking1", "free0", "free1", "free2"]
EVENTS = 3
FIRST_VALUE = 1
SPIN_STEPS = 100_000
VALUES_MAX = 64
TRIES = 6
SHRINK_S_MAX = float(os.environ.get("ORDERING_SHRINK_S", "20"))
THREADS = 256
NON_BLOCKING, THREAD_LOCAL = 1, 1
HOST_FUNCTION = ctypes.CFUNCTYPE(None, c_void_p)
# The forms of a copy of a buffer's rows.
WAYS = ["plain", "plain", "plain", "2D", "3D"]
WAYS_HERE = [*WAYS, "peer"]
GRAPHS = ["plain", "plain", "clone", "twice", "update", "child"]
HOST, DEVICE = 1, 2

PTX = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry add(.param .u64 to, .param .u64 from, .param .u32 count, .param .u32 more)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [to];
    ld.param.u64 %rd2, [from];
    ld.param.u32 %r1, [count];
    ld.param.u32 %r2, [more];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.u32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r1;
    @%p1 ret;
    mul.wide.u32 %rd3, %r6, 4;
    add.s64 %rd4, %rd2, %rd3;
    add.s64 %rd5, %rd1, %rd3;
    ld.global.u32 %r7, [%rd4];
    add.u32 %r7, %r7, %r2;
    st.global.u32 [%rd5], %r7;
    ret;
}
.visible .entry spin(.param .u32 steps)
{
    .reg .pred %p<2>;
    .reg .b32 %r<3>;
    ld.param.u32 %r1, [steps];
    mov.u32 %r2, 0;
again:
    add.u32 %r2, %r2, 1;
    setp.lt.u32 %p1, %r2, %r1;
    @%p1 bra again;
    ret;
}
"""


class Copy2D(ctypes.Structure):
    """`CUDA_MEMCPY2D`"""

    _fields_: ClassVar = [
        (side + name, kind)
        for side in ("src", "dst")
        for name, kind in [
            ("X", c_size_t),
            ("Y", c_size_t),
            ("Type", c_uint),
            ("Host", c_void_p),
            ("Device", c_uint64),
            ("Array", c_void_p),
            ("Pitch", c_size_t),
        ]
    ] + [("width", c_size_t), ("height", c_size_t)]


class Copy3D(ctypes.Structure):
    """`CUDA_MEMCPY3D`"""

    _fields_: ClassVar = [
        (side + name, kind)
        for side in ("src", "dst")
        for name, kind in [
            ("X", c_size_t),
            ("Y", c_size_t),
            ("Z", c_size_t),
            ("Lod", c_size_t),
            ("Type", c_uint),
            ("Host", c_void_p),
            ("Device", c_uint64),
            ("Array", c_void_p),
            ("Reserved", c_void_p),
            ("Pitch", c_size_t),
            ("Height", c_size_t),
        ]
    ] + [("width", c_size_t), ("height", c_size_t), ("depth", c_size_t)]


@dataclass
class Work:
    """A piece of work that reads and writes, of a stream or of the host."""

    before: int  # a bit for each work that must be done before it
    # Values that it writes, by place: a value, or another place's value plus a number.
    writes: dict[Spot, int | tuple[Spot, int]] = field(default_factory=dict)
    touches: set[Spot] = field(default_factory=set)


class Model:
    """The order that CUDA promises, and the values that reads may see in it."""

    def __init__(self) -> None:
        self.works: list[Work] = []
        self.last: dict[str, int] = {}
        self.events: dict[int, int] = {}
        self.done = 0  # work that the host knows to be done
        self.seen: list[tuple[int, Spot, list[int], int]] = []
        self.values: dict[tuple[int, Spot], set[int] | None] = {}
        self.tape: list[dict[Spot, int | tuple[Spot, int]]] = []
        self.muted = False
        self.host({(name, part): FIRST_VALUE for name in ALL for part in range(PARTS)})

    def add(self, before: int, writes: dict[Spot, int | tuple[Spot, int]], reads: set[Spot] | None = None) -> int:
        sources = {source[0] for source in writes.values() if isinstance(source, tuple)}
        self.works.append(Work(before, writes, set(writes) | sources | (reads or set())))
        return len(self.works) - 1

    def through(self, work: int) -> int:
        return self.works[work].before | 1 << work

    def host(self, writes: dict[Spot, int | tuple[Spot, int]], reads: set[Spot] | None = None) -> int:
        """Adds work of the host, which comes before everything later."""
        work = self.add(self.done, writes, reads)
        self.done |= 1 << work
        return work

    def on(self, stream: str, writes: dict[Spot, int | tuple[Spot, int]], after: int | None = None) -> int:
        """Adds work of a stream. The default stream and blocking ones wait for each other."""
        self.tape.append(writes)
        if self.muted:
            return -1
        waited = [stream]
        if stream == "default":
            waited += [s for s in self.last if s.startswith("blocking")]
        elif stream.startswith("blocking"):
            waited.append("default")
        before = self.done if after is None else self.done | self.through(after)
        for other in waited:
            if other in self.last:
                before |= self.through(self.last[other])
        self.last[stream] = self.add(before, writes)
        return self.last[stream]

    def is_free(self, spots: set[Spot]) -> bool:
        """Whether the host may write these places."""
        return all(self.done >> i & 1 for i, work in enumerate(self.works) if work.touches & spots)

    def may_see(self, reader: int, spot: Spot) -> set[int] | None:
        """Returns the values that a work may read; None if they are too many, or depend on
        themselves."""
        key = (reader, spot)
        if key not in self.values:
            self.values[key] = None
            self.values[key] = self.find(reader, spot)
        return self.values[key]

    def find(self, reader: int, spot: Spot) -> set[int] | None:
        before = self.works[reader].before
        writers = [i for i, work in enumerate(self.works) if spot in work.writes and i != reader]
        writers = [i for i in writers if not self.works[i].before >> reader & 1]
        hides = [i for i in writers if before >> i & 1]
        values: set[int] = set()
        for writer in writers:
            if any(self.works[other].before >> writer & 1 for other in hides):
                continue
            source = self.works[writer].writes[spot]
            if isinstance(source, int):
                values.add(source)
                continue
            place, more = source
            read = self.may_see(writer, place)
            if read is None or len(values) > VALUES_MAX:
                return None
            values |= {value + more for value in read}
        return values

    def settled(self) -> list[tuple[int, str, int, int]]:
        """Returns reads that could see only one value: call, place, part and value seen."""
        found = []
        for reader, (name, part), got, step in self.seen:
            allowed = self.may_see(reader, (name, part))
            if allowed is not None and len(allowed) == 1 and len(got) == 1:
                found.append((step, name, part, got[0]))
        return found

    def wrong(self) -> str | None:
        """Describes the first read that no order allows."""
        for reader, spot, got, step in self.seen:
            allowed = self.may_see(reader, spot)
            if allowed is not None and not set(got) <= allowed:
                return f"{spot[0]} part {spot[1]}, read by call {step}: {sorted(got)}, allowed {sorted(allowed)}"
        return None


def spots(name: str, first: int, parts: int) -> list[Spot]:
    return [(name, part) for part in range(first, first + parts)]


class Player:
    """Plays programs on the driver: memory shared by all programs, and streams and events that each
    creates."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context, module = c_void_p(), c_void_p()
        self.do("cuInit", 0)
        self.do("cuDevicePrimaryCtxRetain", byref(context), 0)
        self.do("cuCtxSetCurrent", context)
        self.do("cuModuleLoadData", byref(module), PTX)
        self.kernels: dict[str, c_void_p] = {}
        for name in ["add", "spin"]:
            self.kernels[name] = c_void_p()
            self.do("cuModuleGetFunction", byref(self.kernels[name]), module, name.encode())
        self.context_handle = context
        words = PARTS * max(PART_WORDS)
        self.device: dict[str, int] = {}
        self.memory: dict[str, Any] = {}
        for name in BUFFERS["device"]:
            address = c_uint64()
            if name.startswith("Q"):
                self.do("cuMemAllocAsync", byref(address), c_size_t(4 * words), c_void_p())
            else:
                self.do("cuMemAlloc_v2", byref(address), c_size_t(4 * words))
            self.device[name] = address.value
        for name in BUFFERS["host"]:
            if name.startswith("P"):
                pinned = c_void_p()
                self.do("cuMemHostAlloc", byref(pinned), c_size_t(4 * words), c_uint(0))
                self.memory[name] = np.ctypeslib.as_array((c_uint32 * words).from_address(pinned.value or 0))
            elif name.startswith("R"):
                self.mapping = mmap.mmap(-1, 4 * words)
                self.memory[name] = np.frombuffer(self.mapping, np.uint32)
                where = c_void_p(self.memory[name].ctypes.data)
                self.do("cuMemHostRegister_v2", where, c_size_t(4 * words), c_uint(0))
            else:
                self.memory[name] = np.zeros(words, np.uint32)

    def do(self, name: str, *arguments: Any) -> None:
        status = getattr(self.cuda, name)(*arguments)
        assert status == 0, f"{name}: {status}"

    def play(self, steps: list[Step]) -> str | None:
        """Plays a program; returns what is wrong with its reads, if anything."""
        self.words = steps[0][1]
        self.streams: dict[str, c_void_p] = {"default": c_void_p()}
        self.events: dict[int, c_void_p] = {}
        self.kept: list[Any] = []
        for name in BUFFERS["device"]:
            self.do("cuMemsetD32_v2", c_uint64(self.device[name]), c_uint(FIRST_VALUE), c_size_t(PARTS * self.words))
        for name in BUFFERS["host"]:
            self.memory[name][: PARTS * self.words] = FIRST_VALUE
        self.do("cuCtxSynchronize")
        self.model = Model()
        self.answers: list[Any] = []
        self.word = 0
        for self.at, step in enumerate(steps[1:], start=1):
            getattr(self, step[0])(*step[1:])
        self.context()
        for name in BUFFERS["host"]:
            self.look(name)
        for name in BUFFERS["device"]:
            self.copy_out("H0", name, 0, PARTS, "plain", None)
            self.look("H0")
        for stream in list(self.streams.values())[1:]:
            self.do("cuStreamDestroy_v2", stream)
        for event in self.events.values():
            self.do("cuEventDestroy_v2", event)
        return self.model.wrong()

    def stream(self, name: str) -> c_void_p:
        if name not in self.streams:
            self.streams[name] = c_void_p()
            flags = 0 if name.startswith("blocking") else NON_BLOCKING
            priority = -1 if name.endswith("1") else 0
            self.do("cuStreamCreateWithPriority", byref(self.streams[name]), c_uint(flags), c_int(priority))
        return self.streams[name]

    def place(self, name: str, first: int) -> c_uint64:
        base = self.device[name] if name in self.device else self.memory[name].ctypes.data
        return c_uint64(base + 4 * first * self.words)

    def event(self, number: int) -> c_void_p:
        if number not in self.events:
            self.events[number] = c_void_p()
            self.do("cuEventCreate", byref(self.events[number]), c_uint(0))
        return self.events[number]

    # The calls of a program.

    def fill(self, name: str, first: int, parts: int, value: int) -> None:
        written = spots(name, first, parts)
        if self.model.is_free(set(written)):
            self.memory[name][first * self.words : (first + parts) * self.words] = value
            self.model.host(dict.fromkeys(written, value))

    def look(self, name: str) -> None:
        reader = self.model.host({}, set(spots(name, 0, PARTS)))
        for spot in spots(name, 0, PARTS):
            part = self.memory[name][spot[1] * self.words : (spot[1] + 1) * self.words]
            self.model.seen.append((reader, spot, [int(value) for value in np.unique(part)], self.at))

    def copy(self, kind: str, to: str, source: str, first: int, parts: int, way: str, stream: str | None) -> None:
        ends = [self.place(to, first), self.place(source, first)]
        call, arguments = f"cuMemcpy{kind}", [*ends, c_size_t(4 * parts * self.words)]
        if way == "peer":
            own = self.context_handle
            call, arguments = "cuMemcpyPeer", [ends[0], own, ends[1], own, arguments[2]]
        elif way != "plain":
            call, arguments = f"cuMemcpy{way}", [byref(self.box(way, to, source, first, parts))]
        if stream is not None:
            call, arguments = f"{call}Async", [*arguments, self.stream(stream)]
        self.do(call if way == "peer" else f"{call}_v2", *arguments)
        moved = {spot: ((source, spot[1]), 0) for spot in spots(to, first, parts)}
        work = self.model.on(stream or "default", moved)
        if stream is None and kind != "DtoD":
            self.model.done |= self.model.through(work)

    def box(self, way: str, to: str, source: str, first: int, parts: int) -> Copy2D | Copy3D:
        """Makes a copy whose rows are the parts of a buffer."""
        row = 4 * self.words
        copy: Any = Copy2D() if way == "2D" else Copy3D()
        for side, name in (("src", source), ("dst", to)):
            is_device = name in self.device
            setattr(copy, side + "Type", DEVICE if is_device else HOST)
            base = self.place(name, first).value
            setattr(copy, side + ("Device" if is_device else "Host"), base)
            setattr(copy, side + "Pitch", row)
            if way == "3D":
                setattr(copy, side + "Height", 1)
        copy.width = row
        copy.height, depth = (parts, 1) if way == "2D" else (1, parts)
        if way == "3D":
            copy.depth = depth
        return copy

    def copy_in(self, to: str, source: str, first: int, parts: int, way: str, stream: str | None) -> None:
        self.copy("HtoD", to, source, first, parts, way, stream)

    def copy_out(self, to: str, source: str, first: int, parts: int, way: str, stream: str | None) -> None:
        self.copy("DtoH", to, source, first, parts, way, stream)

    def copy_here(self, to: str, source: str, first: int, parts: int, way: str, stream: str | None) -> None:
        self.copy("DtoD", to, source, first, parts, way, stream)

    def set(self, name: str, first: int, parts: int, value: int, stream: str | None) -> None:
        arguments = [self.place(name, first), c_uint(value), c_size_t(parts * self.words)]
        if stream is None:
            self.do("cuMemsetD32_v2", *arguments)
        else:
            self.do("cuMemsetD32Async", *arguments, self.stream(stream))
        self.model.on(stream or "default", dict.fromkeys(spots(name, first, parts), value))

    def launch(self, kernel: str, blocks: int, threads: int, arguments: list[Any], stream: c_void_p) -> None:
        pointers = (c_void_p * len(arguments))(*[ctypes.cast(byref(a), c_void_p) for a in arguments])
        shape = [c_uint(n) for n in (blocks, 1, 1, threads, 1, 1, 0)]
        self.do("cuLaunchKernel", self.kernels[kernel], *shape, stream, pointers, None)

    def add(self, to: str, source: str, first: int, parts: int, more: int, stream: str) -> None:
        count = parts * self.words
        arguments = [self.place(to, first), self.place(source, first), c_uint(count), c_uint(more)]
        self.launch("add", -(-count // THREADS), THREADS, arguments, self.stream(stream))
        self.model.on(stream, {spot: ((source, spot[1]), more) for spot in spots(to, first, parts)})

    def busy(self, stream: str) -> None:
        self.launch("spin", 1, 1, [c_uint(SPIN_STEPS)], self.stream(stream))
        self.model.on(stream, {})

    def capture(self, parts: list[Step], stream: str) -> c_void_p:
        """Captures calls into a graph. The calls go to the captured stream, their effects in the
        model to the stream in which the graph is launched."""
        graph = c_void_p()
        captured, launched = self.stream("captured"), self.stream(stream)
        self.do("cuStreamBeginCapture_v2", captured, c_int(THREAD_LOCAL))
        self.streams[stream] = captured
        for part in parts:
            getattr(self, part[0])(*part[1:], stream)
        self.streams[stream] = launched
        self.do("cuStreamEndCapture", captured, byref(graph))
        return graph

    def graph(self, parts: list[Step], way: str, stream: str) -> None:
        """Captures calls and launches them as a graph: unchanged, cloned, updated, inside another,
        or twice."""
        executable, graphs = c_void_p(), []
        if way == "update":
            self.model.muted = True
            graphs.append(self.capture([changed(part) for part in parts], stream))
            self.model.muted = False
            self.do("cuGraphInstantiateWithFlags", byref(executable), graphs[0], c_uint64(0))
        self.model.tape.clear()
        graphs.append(self.capture(parts, stream))
        launched = graphs[-1]
        if way == "clone":
            graphs.append(c_void_p())
            self.do("cuGraphClone", byref(graphs[-1]), launched)
            launched = graphs[-1]
        elif way == "child":
            graphs.append(c_void_p())
            node = c_void_p()
            self.do("cuGraphCreate", byref(graphs[-1]), c_uint(0))
            self.do("cuGraphAddChildGraphNode", byref(node), graphs[-1], None, c_size_t(0), launched)
            launched = graphs[-1]
        if way == "update":
            # A GPU's driver refuses to update copies of a pool's memory.
            if self.cuda.cuGraphExecUpdate_v2(executable, launched, (c_uint64 * 3)()) != 0:
                self.do("cuGraphExecDestroy", executable)
                self.do("cuGraphInstantiateWithFlags", byref(executable), launched, c_uint64(0))
        else:
            self.do("cuGraphInstantiateWithFlags", byref(executable), launched, c_uint64(0))
        self.told(launched)
        self.do("cuGraphLaunch", executable, self.stream(stream))
        if way == "twice":
            self.do("cuGraphLaunch", executable, self.stream(stream))
            for writes in list(self.model.tape):
                self.model.on(stream, writes)
        self.do("cuGraphExecDestroy", executable)
        for graph in graphs:
            self.do("cuGraphDestroy", graph)

    def told(self, graph: c_void_p) -> None:
        """Records the driver's description of a graph."""
        count, edges = c_size_t(), c_size_t()
        self.do("cuGraphGetNodes", graph, None, byref(count))
        self.do("cuGraphGetEdges", graph, None, None, byref(edges))
        nodes = (c_void_p * max(count.value, 1))()
        if count.value > 0:
            self.do("cuGraphGetNodes", graph, nodes, byref(count))
        kinds = []
        for node in nodes[: count.value]:
            kind = c_uint()
            self.do("cuGraphNodeGetType", c_void_p(node), byref(kind))
            kinds.append(kind.value)
        self.answers.append([self.at, sorted(kinds), edges.value])

    def word_between(self, first: str, second: str) -> None:
        """Makes a stream wait for a word that another writes."""
        self.word += 1
        if not hasattr(self, "words_at"):
            self.words_at = c_uint64()
            self.do("cuMemAlloc_v2", byref(self.words_at), c_size_t(4))
        if self.word == 1:
            self.do("cuMemsetD32_v2", self.words_at, c_uint(0), c_size_t(1))
            self.context()
        self.do("cuStreamWriteValue32_v2", self.stream(first), self.words_at, c_uint32(self.word), c_uint(0))
        written = self.model.on(first, {})
        self.do("cuStreamWaitValue32_v2", self.stream(second), self.words_at, c_uint32(self.word), c_uint(0))
        self.model.on(second, {}, written)

    def ask(self, what: str, name: str) -> None:
        """Asks a question or makes a wrong call, which every driver must answer alike."""
        null, wild, out = c_void_p(), c_void_p(16), c_uint64()
        stream = self.stream(name)
        flags = c_uint()
        calls: dict[str, list[Any]] = {
            "cuStreamGetFlags": [stream, byref(flags)],
            "cuStreamGetPriority": [stream, byref(flags)],
            "cuStreamIsCapturing": [stream, byref(flags)],
            "cuStreamEndCapture": [stream, byref(out)],
            "cuStreamBeginCapture_v2": [c_void_p(1), c_int(THREAD_LOCAL)],
            "cuMemAlloc_v2": [byref(out), c_size_t(0)],
            "cuMemFree_v2": [c_uint64(self.device["D0"] + 4)],
            "cuMemFreeHost": [c_void_p(self.memory["H0"].ctypes.data)],
            "cuMemcpyHtoD_v2": [c_uint64(0), null, c_size_t(4)],
            "cuMemcpyDtoDAsync_v2": [c_uint64(self.device["D0"]), c_uint64(16), c_size_t(4), stream],
            "cuMemsetD32Async": [c_uint64(self.device["D0"] + 2), c_uint(1), c_size_t(1), stream],
            "cuMemsetD8Async": [c_uint64(self.device["D0"]), c_uint(1), c_size_t(1 << 40), stream],
            "cuStreamWaitEvent": [stream, null, c_uint(0)],
            "cuEventRecord": [null, stream],
            "cuLaunchHostFunc": [stream, None, None],
            "cuGraphLaunch": [null, stream],
            "cuGraphDestroy": [null],
            "cuGraphCreate": [byref(out), c_uint(1)],
            "cuGraphInstantiateWithFlags": [byref(out), null, c_uint64(0)],
            "cuMemHostGetFlags": [byref(flags), c_void_p(self.memory["P0"].ctypes.data)],
            "cuMemHostRegister_v2": [c_void_p(self.memory["R0"].ctypes.data), c_size_t(4096), c_uint(0)],
            "cuMemFreeAsync": [c_uint64(self.device["D0"] + 4), stream],
            "cuLaunchKernel": [self.kernels["spin"], *[c_uint(0)] * 7, stream, None, None],
            "cuStreamGetCaptureInfo_v2": [stream, byref(flags), None, None, None, None],
            "cuStreamWaitValue32_v2": [stream, c_uint64(self.device["D0"] + 1), c_uint32(0), c_uint(0)],
        }
        del wild
        status = getattr(self.cuda, what)(*calls[what])
        self.answers.append([self.at, what, status, flags.value])

    def host(self, name: str, first: int, parts: int, value: int, stream: str) -> None:
        """Adds a host function of the program to a stream, which writes memory."""
        target = self.memory[name][first * self.words : (first + parts) * self.words]

        def write(_: int) -> None:
            target[:] = value

        self.kept.append(HOST_FUNCTION(write))
        self.do("cuLaunchHostFunc", self.stream(stream), self.kept[-1], None)
        self.model.on(stream, dict.fromkeys(spots(name, first, parts), value))

    def record(self, event: int, stream: str) -> None:
        self.do("cuEventRecord", self.event(event), self.stream(stream))
        self.model.events[event] = self.model.on(stream, {})

    def wait(self, event: int, stream: str) -> None:
        self.do("cuStreamWaitEvent", self.stream(stream), self.event(event), c_uint(0))
        self.model.on(stream, {}, self.model.events.get(event))

    def finish_event(self, event: int) -> None:
        self.do("cuEventSynchronize", self.event(event))
        if event in self.model.events:
            self.model.done |= self.model.through(self.model.events[event])

    def finish_stream(self, stream: str) -> None:
        self.do("cuStreamSynchronize", self.stream(stream))
        if stream in self.model.last:
            self.model.done |= self.model.through(self.model.last[stream])

    def context(self) -> None:
        self.do("cuCtxSynchronize")
        self.model.done = (1 << len(self.model.works)) - 1


QUESTIONS = [
    "cuStreamGetFlags",
    "cuStreamGetPriority",
    "cuStreamIsCapturing",
    "cuStreamEndCapture",
    "cuStreamBeginCapture_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemFreeHost",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD32Async",
    "cuMemsetD8Async",
    "cuStreamWaitEvent",
    "cuEventRecord",
    "cuLaunchHostFunc",
    "cuGraphLaunch",
    "cuGraphDestroy",
    "cuGraphCreate",
    "cuGraphInstantiateWithFlags",
    "cuMemHostGetFlags",
    "cuMemHostRegister_v2",
    "cuMemFreeAsync",
    "cuLaunchKernel",
    "cuStreamGetCaptureInfo_v2",
    "cuStreamWaitValue32_v2",
]


def changed(part: Step) -> Step:
    """Returns a call that writes something else to the same place, for an update of a graph."""
    match part[0]:
        case "set" | "host":
            return [*part[:4], part[4] + 1, *part[5:]]
        case "add":
            return [*part[:5], part[5] + 1]
        case _:
            return part


def program(seed: int) -> list[Step]:
    """Generates a sequence of calls; the first entry is the length of a part of a buffer."""
    r = random.Random(seed)
    value = iter(range(1000, 10**9, 1000))

    def part() -> tuple[int, int]:
        first = r.choice([0, 0, 0, 1, 2])
        return first, r.randint(1, PARTS - first) if r.random() < 0.4 else PARTS - first

    def device() -> str:
        return r.choice(BUFFERS["device"][: r.choice([1, 2, 4])])

    def host() -> str:
        return r.choice(BUFFERS["host"])

    def stream() -> str:
        return r.choice(STREAMS)

    def captured() -> Step:
        call = work(r.choice(["copy_in", "copy_out", "copy_here", "set", "add", "add", "host"]))
        # A copy between peers cannot be captured.
        return [way if way != "peer" else "plain" for way in call]

    def work(kind: str) -> Step:
        first, parts = part()
        match kind:
            case "copy_in":
                return [kind, device(), host(), first, parts, r.choice(WAYS)]
            case "copy_out":
                return [kind, host(), device(), first, parts, r.choice(WAYS)]
            case "copy_here":
                to, source = r.sample(BUFFERS["device"], 2)
                return [kind, to, source, first, parts, r.choice(WAYS_HERE)]
            case "set":
                return [kind, device(), first, parts, next(value)]
            case "host":
                # A GPU's driver reads pageable memory when a copy is submitted, before host functions write it.
                return [kind, host().replace("H", "P"), first, parts, next(value)]
            case _:
                return ["add", device(), device(), first, parts, r.randint(1, 9)]

    def step() -> list[Step]:
        match r.choice("wwwwwwwwSSSSSbbbfflleEcsgggvqq"):
            case "w":
                kind = r.choice(["copy_in", "copy_out", "copy_here", "set", "add", "add", "add", "host"])
                # Without a stream these two are asynchronous, too.
                is_plain = kind in ("copy_here", "set") and r.random() < 0.3
                return [[*work(kind), None if is_plain else stream()]]
            case "S":
                # A synchronous copy, after something slow, and a read of it.
                name, to = host(), device()
                fill = ["fill", name, 0, PARTS, next(value)]
                busy = [["busy", r.choice(STREAMS[:3])]] * r.choice([0, 1, 3])
                copy = ["copy_in", to, name, *part(), r.choice(WAYS), None]
                reads = ["copy_out", host(), to] if r.random() < 0.5 else ["add", device(), to]
                reads += [*part(), 3] if reads[0] == "add" else [*part(), r.choice(WAYS)]
                return [fill, *busy, copy, [*reads, r.choice(STREAMS[3:]) if r.random() < 0.7 else stream()]]
            case "b":
                return [["busy", stream()]]
            case "f":
                return [["fill", host(), *part(), next(value)]]
            case "l":
                return [["copy_out", name := host(), device(), *part(), r.choice(WAYS), None], ["look", name]]
            case "e":
                event = r.randrange(EVENTS)
                return [["record", event, stream()], ["wait", event, stream()]]
            case "E":
                event = r.randrange(EVENTS)
                return [["record", event, stream()], ["finish_event", event], ["look", host()]]
            case "c":
                return [["context"]]
            case "s":
                return [["finish_stream", stream()], ["look", host()]]
            case "v":
                return [["word_between", *r.sample(STREAMS, 2)]]
            case "q":
                return [["ask", r.choice(QUESTIONS), stream()]]
            case _:
                return [["graph", [captured() for _ in range(r.randint(1, 4))], r.choice(GRAPHS), stream()]]

    steps: list[Step] = [["words", r.choice(PART_WORDS)]]
    for _ in range(r.randint(8, 24)):
        steps += step()
    return steps


def shrink(player: Player, steps: list[Step], why: str) -> tuple[list[Step], str]:
    """The shortest sequence found that still fails, and how it fails."""
    deadline = time.monotonic() + SHRINK_S_MAX

    def fails(candidate: list[Step]) -> str | None:
        for _ in range(TRIES):
            if (wrong := player.play(candidate)) or time.monotonic() > deadline:
                return wrong
        return None

    chunk = len(steps) // 2
    while chunk > 0 and time.monotonic() < deadline:
        at = 1
        while at < len(steps):
            candidate = steps[:at] + steps[at + chunk :]
            if wrong := fails(candidate):
                steps, why = candidate, wrong
            else:
                at += chunk
        chunk //= 2
    return steps, why


def say(player: Player, steps: list[Step]) -> None:
    """Plays a program and prints its answers on one line."""
    wrong = player.play(steps)
    print(json.dumps([wrong, player.answers, player.model.settled()]), flush=True)


def say_answers(player: Player, seed: int, programs: int) -> int:
    for number in range(seed, seed + programs):
        say(player, program(number))
    return 0


def main(arguments: list[str]) -> int:
    player = Player()
    if arguments[0] == "--play":
        wrong = player.play([json.loads(line) for line in Path(arguments[1]).read_text().splitlines()])
        print(wrong or "as CUDA orders it")
        return 1 if wrong else 0
    if arguments[0] == "--answers":
        return say_answers(player, int(arguments[1]), int(arguments[2]))
    if arguments[0] == "--answers-of":
        for line in Path(arguments[1]).read_text().splitlines():
            say(player, json.loads(line))
        return 0
    seed, programs, seconds = int(arguments[0]), int(arguments[1]), float(arguments[2])
    deadline = time.monotonic() + seconds
    played = reads = 0
    for number in range(seed, seed + programs):
        if time.monotonic() > deadline:
            break
        steps = program(number)
        wrong = player.play(steps)
        played, reads = played + 1, reads + len(player.model.seen)
        if wrong:
            steps, wrong = shrink(player, steps, wrong)
            print(f"seed {number}: {wrong}", *map(json.dumps, steps), sep="\n")
            return 1
    print(f"{played} programs, {reads} reads, all as CUDA orders them")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Plays random sequences of driver calls, and checks what they read against a model of CUDA's
ordering rules.

`ordering.py SEED PROGRAMS SECONDS` plays that many programs, or as many as the time allows. A program that reads what
no order allows is made as short as it can be and printed, one call a line; `ordering.py --play FILE` plays such lines
again. `ordering.py --answers SEED PROGRAMS` prints what each program was answered, reads whose values the rules settle
and statuses of wrong calls too: the same on every driver. `random_calls.py` compares and shrinks.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import time
from ctypes import byref, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import cuda
from cuda import must
from ordering_programs import PART_WORDS, program
from ordering_rules import BUFFERS, FIRST_VALUE, PARTS, Model, Step, spots

SPIN_STEPS = 100_000
TRIES = 6
SHRINK_S_MAX = float(os.environ.get("ORDERING_SHRINK_S", "20"))
THREADS = 256
NON_BLOCKING, THREAD_LOCAL = 1, 1
HOST_FUNCTION = ctypes.CFUNCTYPE(None, c_void_p)
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


class Player:
    """Plays programs on the driver: memory shared by all programs, and streams and events that each
    creates."""

    def __init__(self) -> None:
        self.context_handle = cuda.primary_context()
        names = ["add", "spin"]
        self.kernels = dict(zip(names, cuda.kernels(PTX, *names), strict=True))
        words = PARTS * max(PART_WORDS)
        self.device: dict[str, int] = {}
        self.memory: dict[str, Any] = {}
        for name in BUFFERS["device"]:
            address = c_uint64()
            if name.startswith("Q"):
                must("cuMemAllocAsync", byref(address), c_size_t(4 * words), c_void_p())
            else:
                must("cuMemAlloc_v2", byref(address), c_size_t(4 * words))
            self.device[name] = address.value
        for name in BUFFERS["host"]:
            if name.startswith("P"):
                pinned = c_void_p()
                must("cuMemHostAlloc", byref(pinned), c_size_t(4 * words), c_uint(0))
                self.memory[name] = np.ctypeslib.as_array((c_uint32 * words).from_address(pinned.value or 0))
            elif name.startswith("R"):
                self.mapping = mmap.mmap(-1, 4 * words)
                self.memory[name] = np.frombuffer(self.mapping, np.uint32)
                where = c_void_p(self.memory[name].ctypes.data)
                must("cuMemHostRegister_v2", where, c_size_t(4 * words), c_uint(0))
            else:
                self.memory[name] = np.zeros(words, np.uint32)

    def play(self, steps: list[Step]) -> str | None:
        """Plays a program; returns what is wrong with its reads, if anything."""
        self.words = steps[0][1]
        self.streams: dict[str, c_void_p] = {"default": c_void_p()}
        self.events: dict[int, c_void_p] = {}
        self.kept: list[Any] = []
        for name in BUFFERS["device"]:
            must("cuMemsetD32_v2", c_uint64(self.device[name]), c_uint(FIRST_VALUE), c_size_t(PARTS * self.words))
        for name in BUFFERS["host"]:
            self.memory[name][: PARTS * self.words] = FIRST_VALUE
        must("cuCtxSynchronize")
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
            must("cuStreamDestroy_v2", stream)
        for event in self.events.values():
            must("cuEventDestroy_v2", event)
        return self.model.wrong()

    def stream(self, name: str) -> c_void_p:
        if name not in self.streams:
            self.streams[name] = c_void_p()
            flags = 0 if name.startswith("blocking") else NON_BLOCKING
            priority = -1 if name.endswith("1") else 0
            must("cuStreamCreateWithPriority", byref(self.streams[name]), c_uint(flags), c_int(priority))
        return self.streams[name]

    def place(self, name: str, first: int) -> c_uint64:
        base = self.device[name] if name in self.device else self.memory[name].ctypes.data
        return c_uint64(base + 4 * first * self.words)

    def event(self, number: int) -> c_void_p:
        if number not in self.events:
            self.events[number] = c_void_p()
            must("cuEventCreate", byref(self.events[number]), c_uint(0))
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
        must(call if way == "peer" or call == "cuMemcpyAsync" else f"{call}_v2", *arguments)
        moved = {spot: ((source, spot[1]), 0) for spot in spots(to, first, parts)}
        work = self.model.on(stream or "default", moved)
        # Between two places of the host a copy is synchronous with a stream, too ("API synchronization behavior").
        if kind == "" or (stream is None and kind != "DtoD"):
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

    def copy_host(self, to: str, source: str, first: int, parts: int, way: str, stream: str) -> None:
        self.copy("", to, source, first, parts, way, stream)

    def set(self, name: str, first: int, parts: int, value: int, stream: str | None) -> None:
        arguments = [self.place(name, first), c_uint(value), c_size_t(parts * self.words)]
        if stream is None:
            must("cuMemsetD32_v2", *arguments)
        else:
            must("cuMemsetD32Async", *arguments, self.stream(stream))
        self.model.on(stream or "default", dict.fromkeys(spots(name, first, parts), value))

    def launch(self, kernel: str, blocks: int, threads: int, arguments: list[Any], stream: c_void_p) -> None:
        pointers = (c_void_p * len(arguments))(*[ctypes.cast(byref(a), c_void_p) for a in arguments])
        shape = [c_uint(n) for n in (blocks, 1, 1, threads, 1, 1, 0)]
        must("cuLaunchKernel", self.kernels[kernel], *shape, stream, pointers, None)

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
        must("cuStreamBeginCapture_v2", captured, c_int(THREAD_LOCAL))
        self.streams[stream] = captured
        for part in parts:
            getattr(self, part[0])(*part[1:], stream)
        self.streams[stream] = launched
        must("cuStreamEndCapture", captured, byref(graph))
        return graph

    def graph(self, parts: list[Step], way: str, stream: str) -> None:
        """Captures calls and launches them as a graph: unchanged, cloned, updated, inside another,
        or twice."""
        executable, graphs = c_void_p(), []
        if way == "update":
            self.model.muted = True
            graphs.append(self.capture([changed(part) for part in parts], stream))
            self.model.muted = False
            must("cuGraphInstantiateWithFlags", byref(executable), graphs[0], c_uint64(0))
        self.model.tape.clear()
        graphs.append(self.capture(parts, stream))
        launched = graphs[-1]
        if way == "clone":
            graphs.append(c_void_p())
            must("cuGraphClone", byref(graphs[-1]), launched)
            launched = graphs[-1]
        elif way == "child":
            graphs.append(c_void_p())
            node = c_void_p()
            must("cuGraphCreate", byref(graphs[-1]), c_uint(0))
            must("cuGraphAddChildGraphNode", byref(node), graphs[-1], None, c_size_t(0), launched)
            launched = graphs[-1]
        if way == "update":
            # A GPU's driver refuses to update copies of a pool's memory.
            if cuda.lib.cuGraphExecUpdate_v2(executable, launched, (c_uint64 * 3)()) != 0:
                must("cuGraphExecDestroy", executable)
                must("cuGraphInstantiateWithFlags", byref(executable), launched, c_uint64(0))
        else:
            must("cuGraphInstantiateWithFlags", byref(executable), launched, c_uint64(0))
        self.told(launched)
        must("cuGraphLaunch", executable, self.stream(stream))
        if way == "twice":
            must("cuGraphLaunch", executable, self.stream(stream))
            for writes in list(self.model.tape):
                self.model.on(stream, writes)
        must("cuGraphExecDestroy", executable)
        for graph in graphs:
            must("cuGraphDestroy", graph)

    def told(self, graph: c_void_p) -> None:
        """Records the driver's description of a graph."""
        count, edges = c_size_t(), c_size_t()
        must("cuGraphGetNodes", graph, None, byref(count))
        must("cuGraphGetEdges", graph, None, None, byref(edges))
        nodes = (c_void_p * max(count.value, 1))()
        if count.value > 0:
            must("cuGraphGetNodes", graph, nodes, byref(count))
        kinds = []
        for node in nodes[: count.value]:
            kind = c_uint()
            must("cuGraphNodeGetType", c_void_p(node), byref(kind))
            kinds.append(kind.value)
        self.answers.append([self.at, sorted(kinds), edges.value])

    def word_between(self, first: str, second: str) -> None:
        """Makes a stream wait for a word that another writes."""
        self.word += 1
        if not hasattr(self, "words_at"):
            self.words_at = c_uint64()
            must("cuMemAlloc_v2", byref(self.words_at), c_size_t(4))
        if self.word == 1:
            must("cuMemsetD32_v2", self.words_at, c_uint(0), c_size_t(1))
            self.context()
        must("cuStreamWriteValue32_v2", self.stream(first), self.words_at, c_uint32(self.word), c_uint(0))
        written = self.model.on(first, {})
        must("cuStreamWaitValue32_v2", self.stream(second), self.words_at, c_uint32(self.word), c_uint(0))
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
        status = getattr(cuda.lib, what)(*calls[what])
        self.answers.append([self.at, what, status, flags.value])

    def host(self, name: str, first: int, parts: int, value: int, stream: str) -> None:
        """Adds a host function of the program to a stream, which writes memory."""
        target = self.memory[name][first * self.words : (first + parts) * self.words]

        def write(_: int) -> None:
            target[:] = value

        self.kept.append(HOST_FUNCTION(write))
        must("cuLaunchHostFunc", self.stream(stream), self.kept[-1], None)
        self.model.on(stream, dict.fromkeys(spots(name, first, parts), value))

    def record(self, event: int, stream: str) -> None:
        must("cuEventRecord", self.event(event), self.stream(stream))
        self.model.events[event] = self.model.on(stream, {})

    def wait(self, event: int, stream: str) -> None:
        must("cuStreamWaitEvent", self.stream(stream), self.event(event), c_uint(0))
        self.model.on(stream, {}, self.model.events.get(event))

    def finish_event(self, event: int) -> None:
        must("cuEventSynchronize", self.event(event))
        if event in self.model.events:
            self.model.done |= self.model.through(self.model.events[event])

    def finish_stream(self, stream: str) -> None:
        must("cuStreamSynchronize", self.stream(stream))
        if stream in self.model.last:
            self.model.done |= self.model.through(self.model.last[stream])

    def context(self) -> None:
        must("cuCtxSynchronize")
        self.model.done = (1 << len(self.model.works)) - 1


def changed(part: Step) -> Step:
    """Returns a call that writes something else to the same place, for an update of a graph."""
    match part[0]:
        case "set" | "host":
            return [*part[:4], part[4] + 1, *part[5:]]
        case "add":
            return [*part[:5], part[5] + 1]
        case _:
            return part


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

"""Questions of `driver_answers.py` about captured work with arrays and managed memory, graphs that are captured into,
events of other processes and variables of unloaded modules."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from ctypes import byref, c_char, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from typing import ClassVar

from driver_asking import PTX, WILD, WILD_DEVICE, CannotGoOn, Question, State, call, got, must, q
from driver_questions_edges import Graph, kind

HOST, DEVICE, ARRAY, UNIFIED = 1, 2, 3, 4
WIDTH, HEIGHT, DEPTH = 32, 4, 3
# Arrays by the number of their dimensions: their size in elements, and in bytes.
SIZES = {1: (WIDTH, 0, 0), 2: (WIDTH, HEIGHT, 0), 3: (WIDTH, HEIGHT, DEPTH)}
BYTES = {1: WIDTH, 2: WIDTH * HEIGHT, 3: WIDTH * HEIGHT * DEPTH}
RELAXED = 2


class Copy3D(ctypes.Structure):
    """CUDA_MEMCPY3D"""

    _fields_: ClassVar = [
        *[(name, c_size_t) for name in ("src_x", "src_y", "src_z", "src_lod")],
        *[("src_type", c_uint32), ("src_host", c_uint64), ("src_device", c_uint64), ("src_array", c_uint64)],
        *[(name, c_size_t) for name in ("reserved0", "src_pitch", "src_height")],
        *[(name, c_size_t) for name in ("dst_x", "dst_y", "dst_z", "dst_lod")],
        *[("dst_type", c_uint32), ("dst_host", c_uint64), ("dst_device", c_uint64), ("dst_array", c_uint64)],
        *[(name, c_size_t) for name in ("reserved1", "dst_pitch", "dst_height", "width", "height", "depth")],
    ]


class Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D"""

    _fields_: ClassVar = [
        *[(name, c_size_t) for name in ("src_x", "src_y")],
        *[("src_type", c_uint32), ("src_host", c_uint64), ("src_device", c_uint64), ("src_array", c_uint64)],
        *[(name, c_size_t) for name in ("src_pitch", "dst_x", "dst_y")],
        *[("dst_type", c_uint32), ("dst_host", c_uint64), ("dst_device", c_uint64), ("dst_array", c_uint64)],
        *[(name, c_size_t) for name in ("dst_pitch", "width", "height")],
    ]


class Place:
    """An end of copies: memory or an array of as many bytes."""

    def __init__(self, where: str, dimensions: int) -> None:
        self.where, self.bytes = where, BYTES[dimensions]
        if where == "array":
            width, height, depth = SIZES[dimensions]
            # CU_AD_FORMAT_UNSIGNED_INT8, one channel.
            layout = (c_uint64 * 5)(width, height, depth, 1 | 1 << 32, 0)
            self.handle = got("cuArray3DCreate_v2", layout)
        elif where == "device":
            self.handle = got("cuMemAlloc_v2", 4096)
        elif where == "managed":
            self.handle = got("cuMemAllocManaged", 4096, 1)
        elif where == "pinned":
            self.handle = got("cuMemHostAlloc", 4096, 0)
        else:
            self.memory = ctypes.create_string_buffer(4096)
            self.handle = c_void_p(ctypes.addressof(self.memory))

    def number(self) -> int:
        return self.handle.value or 0

    def end(self, side: str) -> dict[str, int]:
        """Returns the fields of a copy's description."""
        if self.where == "array":
            return {f"{side}_type": ARRAY, f"{side}_array": self.number()}
        pitch = {f"{side}_pitch": WIDTH, f"{side}_height": HEIGHT}
        if self.where in ("device", "managed"):
            return {f"{side}_type": DEVICE, f"{side}_device": self.number(), **pitch}
        return {f"{side}_type": HOST, f"{side}_host": self.number(), **pitch}

    def copy(self, other: Place, into: bool) -> None:
        """Copies all bytes, at once, from another place or into it."""
        ends = (other.end("dst") | self.end("src")) if into else (self.end("dst") | other.end("src"))
        must("cuMemcpy3D_v2", byref(Copy3D(**ends, **box(self.bytes))))

    def free(self) -> None:
        if self.where == "array":
            must("cuArrayDestroy", self.handle)
        elif self.where in ("device", "managed"):
            must("cuMemFree_v2", self.handle)
        elif self.where == "pinned":
            must("cuMemFreeHost", self.handle)


def box(size: int) -> dict[str, int]:
    """Returns the extent of a copy of that many bytes."""
    return {
        "width": WIDTH,
        "height": HEIGHT if size > WIDTH else 1,
        "depth": DEPTH if size > WIDTH * HEIGHT else 1,
    }


def captured(work: Callable[[c_void_p], str], dst: Place, src: Place) -> tuple[str, ...]:
    """Captures work that copies `src` to `dst`; runs it twice, and says whether the bytes arrived."""
    host = Place("host", 3)
    stream = got("cuStreamCreate", 1)
    must("cuStreamBeginCapture_v2", stream, RELAXED)
    answers = [work(stream)]
    graph = c_void_p()
    answers.append(call("cuStreamEndCapture", stream, byref(graph)))
    if graph:
        answers.append("+".join(sorted(map(kind, Graph(graph).nodes()))) or "empty")
        executable = c_void_p()
        answers.append(call("cuGraphInstantiateWithFlags", byref(executable), graph, 0))
        for first in (3, 50) if executable else ():
            ctypes.memmove(host.number(), bytes((first + at) % 251 for at in range(src.bytes)), src.bytes)
            src.copy(host, into=False)
            answers += [call("cuGraphLaunch", executable, stream), call("cuStreamSynchronize", stream)]
            ctypes.memset(host.number(), 0, src.bytes)
            dst.copy(host, into=True)
            want = bytes((first + at) % 251 for at in range(src.bytes))
            answers.append("right" if ctypes.string_at(host.number(), src.bytes) == want else "wrong")
        if executable:
            must("cuGraphExecDestroy", executable)
        must("cuGraphDestroy", graph)
    must("cuStreamDestroy_v2", stream)
    for place in (dst, src):
        place.free()
    return tuple(answers)


def copied_3d(to: str, source: str, dimensions: int, per_call: str = "cuMemcpy3DAsync_v2") -> Question:
    def ask(_: State) -> tuple[str, ...]:
        dst, src = Place(to, dimensions), Place(source, dimensions)
        copy = Copy3D(**dst.end("dst"), **src.end("src"), **box(src.bytes))
        return captured(lambda stream: call(per_call, byref(copy), stream), dst, src)

    return ask


def copied_2d(to: str, source: str) -> Question:
    def ask(_: State) -> tuple[str, ...]:
        dst, src = Place(to, 2), Place(source, 2)
        ends = {
            name: value for name, value in (dst.end("dst") | src.end("src")).items() if not name.endswith("_height")
        }
        copy = Copy2D(**ends, width=WIDTH, height=HEIGHT)
        return captured(lambda stream: call("cuMemcpy2DAsync_v2", byref(copy), stream), dst, src)

    return ask


def copied_line(to: str, source: str) -> Question:
    """Copies between a one-dimensional array and host memory, and between memory of two kinds."""

    def ask(_: State) -> tuple[str, ...]:
        dst, src = Place(to, 1), Place(source, 1)

        def work(stream: c_void_p) -> str:
            if to == "array":
                return call("cuMemcpyHtoAAsync_v2", dst.handle, 0, src.handle, WIDTH, stream)
            if source == "array":
                return call("cuMemcpyAtoHAsync_v2", dst.handle, src.handle, 0, WIDTH, stream)
            return call("cuMemcpyAsync", dst.handle, src.handle, WIDTH, stream)

        return captured(work, dst, src)

    return ask


def copy_node(to: str, source: str, dimensions: int) -> Question:
    """A node with such a copy, added to a graph; its parameters are read back."""

    def ask(state: State) -> tuple[str, ...]:
        dst, src = Place(to, dimensions), Place(source, dimensions)
        copy = Copy3D(**dst.end("dst"), **src.end("src"), **box(src.bytes))
        back = Copy3D()
        graph, node = got("cuGraphCreate", 0), c_void_p()
        answers = [call("cuGraphAddMemcpyNode", byref(node), graph, None, 0, byref(copy), state.context)]
        if node:
            answers.append(call("cuGraphMemcpyNodeGetParams", node, byref(back)))
            ends = ("src_type", "dst_type", "src_array", "dst_array", "width", "height", "depth")
            answers.append("same" if all(getattr(back, end) == getattr(copy, end) for end in ends) else "differs")
            answers.append(Graph(graph).runs())
        must("cuGraphDestroy", graph)
        for place in (dst, src):
            place.free()
        return tuple(answers)

    return ask


def during_capture(make: str, function: str, *arguments: object) -> Question:
    """A call with managed memory, or an array, on a stream that captures; then the graph runs."""

    def ask(state: State) -> tuple[str, ...]:
        place = Place(make, 1)
        stream = got("cuStreamCreate", 1)
        must("cuStreamBeginCapture_v2", stream, RELAXED)
        given = {"place": place.handle, "stream": stream, **vars(state)}
        real = [given.get(each, each) if isinstance(each, str) else each for each in arguments]
        graph = c_void_p()
        answers = [call(function, *[given["host"] if each == "host" else each for each in real])]
        answers.append(call("cuStreamEndCapture", stream, byref(graph)))
        if graph:
            answers.append("+".join(sorted(map(kind, Graph(graph).nodes()))) or "empty")
            answers.append(Graph(graph).runs())
            must("cuGraphDestroy", graph)
        must("cuStreamDestroy_v2", stream)
        place.free()
        return tuple(answers)

    return ask


def into_child(then: str) -> Question:
    """A capture into the graph inside a child node; then the graph around it is destroyed, or the node, or the
    capture ends first."""

    def ask(state: State) -> tuple[str, ...]:
        inner, outer = got("cuGraphCreate", 0), got("cuGraphCreate", 0)
        must("cuGraphAddEmptyNode", byref(c_void_p()), inner, None, 0)
        node = got("cuGraphAddChildGraphNode", outer, None, 0, inner)
        child = c_void_p()
        must("cuGraphChildGraphNodeGetGraph", node, byref(child))
        stream, status = got("cuStreamCreate", 1), c_int()
        answers = [call("cuStreamBeginCaptureToGraph", stream, child, None, None, 0, RELAXED)]
        answers.append(call("cuLaunchKernel", state.empty, 1, 1, 1, 1, 1, 1, 0, stream, None, None))
        if then == "ends":
            answers.append(call("cuStreamEndCapture", stream, byref(c_void_p())))
        subject = ("cuGraphDestroyNode", node) if then == "node" else ("cuGraphDestroy", outer)
        answers.append(call(*subject))
        answers.append(f"{call('cuStreamIsCapturing', stream, byref(status))} {status.value}")
        if then == "works":
            answers.append(call("cuLaunchKernel", state.empty, 1, 1, 1, 1, 1, 1, 0, stream, None, None))
        # What is left of the capture is not touched again.
        print(f"= {' '.join(answers)}", flush=True)
        os._exit(9)

    return ask


def into_destroyed(state: State) -> tuple[str, ...]:
    """The graph that a capture adds to is destroyed itself."""
    graph, stream, status = got("cuGraphCreate", 0), got("cuStreamCreate", 1), c_int()
    must("cuStreamBeginCaptureToGraph", stream, graph, None, None, 0, RELAXED)
    answers = [call("cuGraphDestroy", graph)]
    answers.append(f"{call('cuStreamIsCapturing', stream, byref(status))} {status.value}")
    print(f"= {' '.join(answers)}", flush=True)
    os._exit(9)


def variable_of_unloaded(function: str, *arguments: object) -> Question:
    """A call with the address of a variable whose module is unloaded."""

    def ask(state: State) -> tuple[str, ...]:
        module, where, size = got("cuModuleLoadData", PTX + b"\0"), c_uint64(), c_size_t()
        must("cuModuleGetGlobal_v2", byref(where), byref(size), module, b"word")
        given = {"variable": where.value, **vars(state)}
        real = [given[each] if isinstance(each, str) else each for each in arguments]
        real = [byref(each()) if isinstance(each, type) else each for each in real]
        before = call(function, *real)
        must("cuModuleUnload", module)
        after = call(function, *real)
        if call("cuCtxSynchronize") != "SUCCESS":
            raise CannotGoOn(f"{before} {after} lost")
        return before, after

    return ask


CAPTURED: dict[str, Question] = {
    "HtoA line": copied_line("array", "pinned"),
    "HtoA line, pageable": copied_line("array", "host"),
    "AtoH line": copied_line("pinned", "array"),
    "AtoH line, pageable": copied_line("host", "array"),
    "managed to device line": copied_line("device", "managed"),
    "device to managed line": copied_line("managed", "device"),
    "pinned to managed line": copied_line("managed", "pinned"),
    "managed to pinned line": copied_line("pinned", "managed"),
    "pageable to managed line": copied_line("managed", "host"),
    "managed to pageable line": copied_line("host", "managed"),
    "pinned to pinned line": copied_line("pinned", "pinned"),
    "pinned to pageable line": copied_line("host", "pinned"),
    "pageable to pinned line": copied_line("pinned", "host"),
    "pageable to pageable line": copied_line("host", "host"),
    "HtoA at once": during_capture("array", "cuMemcpyHtoA_v2", "place", 0, "host", WIDTH),
    "memset of managed": during_capture("managed", "cuMemsetD8Async", "place", 1, 64, "stream"),
    "memset of pinned": during_capture("pinned", "cuMemsetD8Async", "place", 1, 64, "stream"),
    "prefetch": during_capture("managed", "cuMemPrefetchAsync", "place", 4096, 0, "stream"),
    "attach": during_capture("managed", "cuStreamAttachMemAsync", "stream", "place", 4096, 1),
    "advise": during_capture("managed", "cuMemAdvise", "place", 4096, 1, 0),
    "event of no place": q("cuIpcGetEventHandle", None, None),
    "event null": q("cuIpcGetEventHandle", c_char * 64, None),
    "event without place": q("cuIpcGetEventHandle", None, "untimed"),
    "event of one process": q("cuIpcGetEventHandle", c_char * 64, "untimed"),
    "memory of no place": q("cuIpcGetMemHandle", None, 0),
    "memory null": q("cuIpcGetMemHandle", c_char * 64, 0),
    "memory wild": q("cuIpcGetMemHandle", c_char * 64, WILD_DEVICE),
    "graph destroyed while captured into": into_destroyed,
    "unloaded, cuMemcpyDtoH": variable_of_unloaded("cuMemcpyDtoH_v2", "host", "variable", 4),
    "unloaded, cuMemcpyHtoD": variable_of_unloaded("cuMemcpyHtoD_v2", "variable", "host", 4),
    "unloaded, cuMemcpyDtoD": variable_of_unloaded("cuMemcpyDtoD_v2", "memory", "variable", 4),
    "unloaded, cuMemcpy to it": variable_of_unloaded("cuMemcpy", "variable", "memory", 4),
    "unloaded, cuMemcpy from it": variable_of_unloaded("cuMemcpy", "memory", "variable", 4),
    "wild, cuMemcpy to it": q("cuMemcpy", WILD, "memory", 4),
    "wild, cuMemcpy from it": q("cuMemcpy", "memory", WILD, 4),
    "unloaded, cuMemsetD8": variable_of_unloaded("cuMemsetD8_v2", "variable", 0, 4),
    "unloaded, range": variable_of_unloaded("cuMemGetAddressRange_v2", c_uint64, c_size_t, "variable"),
    "unloaded, type": variable_of_unloaded("cuPointerGetAttribute", c_uint, 2, "variable"),
}
for state_after in ("graph", "works", "node", "ends"):
    CAPTURED[f"into a child, {state_after}"] = into_child(state_after)
for name_to, name_from in [
    ("array", "pinned"),
    ("array", "host"),
    ("array", "device"),
    ("array", "managed"),
    ("array", "array"),
    ("pinned", "array"),
    ("host", "array"),
    ("device", "array"),
    ("managed", "array"),
    ("managed", "host"),
    ("host", "managed"),
]:
    CAPTURED[f"2D {name_from} to {name_to}"] = copied_2d(name_to, name_from)
    for dimension in (1, 2, 3):
        CAPTURED[f"3D {name_from} to {name_to} of {dimension}"] = copied_3d(name_to, name_from, dimension)
        CAPTURED[f"node {name_from} to {name_to} of {dimension}"] = copy_node(name_to, name_from, dimension)

"""Child graphs that their parents own (`CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE`), as XLA's command buffers
have them, and copies whose pitch or height is 0. Prints answers and results.

What an H200 was asked, it answered so. It lets a graph become part of itself, and ends the process
at the next use.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_int32, c_size_t, c_ubyte, c_uint32, c_uint64, c_void_p
from typing import ClassVar

from cuda import call, made, must, primary_context

CLONE, MOVE = 0, 1
NODE_TYPE_GRAPH, NODE_TYPE_CONDITIONAL = 4, 13
BYTES = 64


class MemsetParams(ctypes.Structure):
    """`CUDA_MEMSET_NODE_PARAMS`"""

    _fields_: ClassVar = [
        ("dst", c_uint64),
        ("pitch", c_size_t),
        ("value", c_uint32),
        ("element_bytes", c_uint32),
        ("width", c_size_t),
        ("height", c_size_t),
    ]


class NodeParams(ctypes.Structure):
    """`CUgraphNodeParams`, with the fields of a child graph."""

    _fields_: ClassVar = [
        ("kind", c_uint32),
        ("reserved0", c_int32 * 3),
        ("graph", c_void_p),
        ("ownership", c_uint32),
        ("rest", c_uint32),
        ("more", c_uint64 * 27),
        ("reserved2", c_uint64),
    ]


class AllocParams(ctypes.Structure):
    """`CUDA_MEM_ALLOC_NODE_PARAMS`"""

    _fields_: ClassVar = [
        ("allocation_type", c_int),
        ("handle_types", c_int),
        ("location_type", c_int),
        ("location", c_int),
        ("pool", c_uint64 * 9),
        ("access", c_void_p),
        ("access_count", c_size_t),
        ("bytes", c_size_t),
        ("address", c_uint64),
    ]


class Copy2D(ctypes.Structure):
    """`CUDA_MEMCPY2D`"""

    _fields_: ClassVar = [
        (f"{end}_{field}", kind)
        for end in ("src", "dst")
        for field, kind in (
            ("x", c_size_t),
            ("y", c_size_t),
            ("memory", c_int),
            ("host", c_void_p),
            ("device", c_uint64),
            ("array", c_void_p),
            ("pitch", c_size_t),
        )
    ] + [("width", c_size_t), ("height", c_size_t)]


class Moved:
    def __init__(self) -> None:
        self.context = primary_context()
        self.memory = c_uint64()
        must("cuMemAlloc_v2", byref(self.memory), c_size_t(4 * BYTES))

    def graph(self) -> c_void_p:
        return made("cuGraphCreate", 0)

    def memset_params(self, value: int, address: int = 0) -> MemsetParams:
        return MemsetParams(address or self.memory.value, 0, value, 1, BYTES, 1)

    def memset(self, graph: c_void_p, value: int, after: c_void_p | None = None, address: int = 0) -> c_void_p:
        node, params = c_void_p(), self.memset_params(value, address)
        count = c_size_t(0 if after is None else 1)
        first = None if after is None else byref(after)
        must("cuGraphAddMemsetNode", byref(node), graph, first, count, byref(params), self.context)
        return node

    def child(self, graph: c_void_p, child: c_void_p | None, ownership: int) -> tuple[str, c_void_p]:
        params, node = NodeParams(kind=NODE_TYPE_GRAPH, graph=child, ownership=ownership), c_void_p()
        return call("cuGraphAddNode_v2", byref(node), graph, None, None, c_size_t(0), byref(params)), node

    def instantiate(self, graph: c_void_p) -> tuple[str, c_void_p]:
        executable = c_void_p()
        return call("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0)), executable

    def launched(self, executable: c_void_p) -> int:
        """Returns what a launch leaves in the first byte of the memory."""
        must("cuMemsetD8_v2", self.memory, c_ubyte(0), c_size_t(BYTES))
        must("cuGraphLaunch", executable, None)
        first = c_ubyte()
        must("cuMemcpyDtoH_v2", byref(first), self.memory, c_size_t(1))
        return first.value

    def alloc(self, graph: c_void_p) -> tuple[str, c_void_p, int]:
        params, node = AllocParams(allocation_type=1, location_type=1, bytes=4096), c_void_p()
        status = call("cuGraphAddMemAllocNode", byref(node), graph, None, c_size_t(0), byref(params))
        return status, node, params.address


def answers(m: Moved) -> None:
    """Prints which calls a moved graph still takes."""
    parent, child, other = m.graph(), m.graph(), m.graph()
    inner = m.memset(child, 5)
    status, node = m.child(parent, child, MOVE)
    print("move", status)
    inside, kind = c_void_p(), c_int()
    must("cuGraphChildGraphNodeGetGraph", node, byref(inside))
    must("cuGraphNodeGetType", node, byref(kind))
    print("node", kind.value, inside.value == child.value)
    print("instantiate it", m.instantiate(child)[0])
    print("destroy it", call("cuGraphDestroy", child))
    clone = c_void_p()
    print("clone it", call("cuGraphClone", byref(clone), child), m.instantiate(clone)[0])
    print("into another", m.child(other, child, MOVE)[0], m.child(other, child, CLONE)[0])
    print("allocate in it", m.alloc(child)[0])
    print("without a graph", m.child(parent, None, MOVE)[0], m.child(parent, other, 2)[0])
    print("into itself", m.child(other, other, MOVE)[0], m.child(child, parent, MOVE)[0])
    status, executable = m.instantiate(parent)
    print("launch", status, m.launched(executable))
    params = m.memset_params(7)
    must("cuGraphExecMemsetNodeSetParams", executable, inner, byref(params), m.context)
    print("changed in the executable", m.launched(executable))
    params = m.memset_params(8)
    must("cuGraphMemsetNodeSetParams", inner, byref(params))
    print("changed in the graph", m.launched(m.instantiate(parent)[1]))
    m.memset(child, 9, after=inner)
    print("extended", m.launched(m.instantiate(parent)[1]))
    must("cuGraphClone", byref(clone), parent)
    print("clone of the parent", m.launched(m.instantiate(clone)[1]))
    must("cuGraphDestroyNode", node)
    count = c_size_t()
    print("without its node", call("cuGraphGetNodes", child, None, byref(count)), m.launched(m.instantiate(parent)[1]))
    must("cuGraphDestroy", parent)


def nested(m: Moved) -> None:
    """Graphs within graphs, destroyed with the outermost; deeper than the limit is refused."""
    outer, middle, inner = m.graph(), m.graph(), m.graph()
    m.memset(inner, 6)
    statuses = [m.child(middle, inner, MOVE)[0], m.child(outer, middle, MOVE)[0]]
    status, executable = m.instantiate(outer)
    print("nested", *statuses, status, m.launched(executable), m.child(inner, outer, MOVE)[0])
    must("cuGraphDestroy", outer)
    count = c_size_t()
    print("destroyed", *(call("cuGraphGetNodes", graph, None, byref(count)) for graph in (outer, middle, inner)))
    around = m.graph()
    for depth in range(1, 100):
        graph = m.graph()
        if m.child(graph, around, MOVE)[0] != "CUDA_SUCCESS":
            print("refused at last", depth > 20, m.instantiate(around)[0])
            break
        around = graph


def memory(m: Moved) -> None:
    """Memory that a moved graph allocates, which a cloned one may not."""
    parent, child = m.graph(), m.graph()
    status, node, address = m.alloc(child)
    filled = m.memset(child, 3, after=node, address=address)
    print("allocating", status, m.child(parent, child, CLONE)[0], m.child(parent, child, MOVE)[0])
    freed = c_void_p()
    print(
        "free in it", call("cuGraphAddMemFreeNode", byref(freed), child, byref(filled), c_size_t(1), c_uint64(address))
    )
    status, executable = m.instantiate(parent)
    print("launch", status, call("cuGraphLaunch", executable, None), m.instantiate(parent)[0])
    first = c_ubyte()
    must("cuMemcpyDtoH_v2", byref(first), c_uint64(address), c_size_t(1))
    print("left", first.value, call("cuGraphLaunch", executable, None), call("cuMemFree_v2", c_uint64(address)))
    must("cuGraphExecDestroy", executable)
    must("cuGraphDestroy", parent)


def pitches(m: Moved) -> None:
    """Rows without gaps, if the pitch is 0."""
    source = (c_ubyte * BYTES)(*range(BYTES))
    for src_pitch, dst_pitch in ((0, 8), (8, 0), (0, 0), (2, 8)):
        must("cuMemsetD8_v2", m.memory, c_ubyte(255), c_size_t(BYTES))
        copy = Copy2D(src_memory=1, src_pitch=src_pitch, dst_memory=2, dst_pitch=dst_pitch, width=4, height=3)
        copy.src_host, copy.dst_device = ctypes.addressof(source), m.memory.value
        status = call("cuMemcpy2D_v2", byref(copy))
        back = (c_ubyte * 24)()
        must("cuMemcpyDtoH_v2", back, m.memory, c_size_t(24))
        print("pitches", src_pitch, dst_pitch, status, bytes(back).hex())


def parts(m: Moved) -> None:
    """Graphs that are part of nodes: they go with the node, and not by themselves."""
    parent, child, node, inside = m.graph(), m.graph(), c_void_p(), c_void_p()
    must("cuGraphAddChildGraphNode", byref(node), parent, None, c_size_t(0), child)
    must("cuGraphChildGraphNodeGetGraph", node, byref(inside))
    condition, params = c_uint64(), NodeParams(kind=NODE_TYPE_CONDITIONAL, ownership=0, rest=1)
    status = call("cuGraphConditionalHandleCreate", byref(condition), parent, m.context, 1, 1)
    if status == "CUDA_SUCCESS":
        params.graph, params.more[1] = condition.value, m.context.value
        must("cuGraphAddNode_v2", byref(node), parent, None, None, c_size_t(0), byref(params))
        body = c_void_p.from_address(params.more[0])
        print("destroy a body", call("cuGraphDestroy", body), m.instantiate(parent)[0])
    print("destroy a child's", call("cuGraphDestroy", inside), m.instantiate(parent)[0])
    must("cuGraphDestroy", parent)
    count = c_size_t()
    print("with the parent", call("cuGraphGetNodes", inside, None, byref(count)))


def captured(m: Moved) -> None:
    """A graph that something is captured into is not destroyed; one around it is, which ends the capture."""
    stream, count = made("cuStreamCreate", 1), c_size_t()
    for moves in (False, True):
        parent, child, out = m.graph(), m.graph(), c_void_p()
        if moves:
            print("move", m.child(parent, child, MOVE)[0])
        must("cuStreamBeginCaptureToGraph", stream, child, None, None, c_size_t(0), 0)
        outer = parent if moves else child
        print(
            "captured into",
            call("cuGraphDestroy", outer),
            call("cuMemsetD8Async", m.memory, c_ubyte(1), c_size_t(4), stream),
            call("cuStreamEndCapture", stream, byref(out)),
            out.value == child.value,
            call("cuGraphGetNodes", child, None, byref(count)),
            count.value,
            call("cuGraphDestroy", outer),
            call("cuGraphGetNodes", child, None, byref(count)),
        )


def main() -> None:
    moved = Moved()
    answers(moved)
    nested(moved)
    memory(moved)
    pitches(moved)
    parts(moved)
    captured(moved)


main()

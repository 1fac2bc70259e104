"""Makes, launches and destroys graphs that allocate memory: none of it stays, whoever frees it. Prints `right`."""

from __future__ import annotations

from ctypes import Structure, byref, c_int, c_size_t, c_uint64, c_void_p
from typing import ClassVar

from cuda import call, lib, made, must, primary_context

MIB = 1 << 20
BYTES, ROUNDS = 64 * MIB, 200


MEM_ALLOC, MEM_FREE = 10, 11


class AllocParams(Structure):
    """`CUDA_MEM_ALLOC_NODE_PARAMS`."""

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


class NodeParams(Structure):
    """`CUgraphNodeParams`, as long as its type is `MEM_ALLOC` or `MEM_FREE`."""

    _fields_: ClassVar = [
        ("type", c_int),
        ("reserved0", c_int * 3),
        ("alloc", AllocParams),
        ("rest", c_uint64 * (29 - 15)),
        ("reserved2", c_uint64),
    ]


def free_bytes() -> int:
    free, total = c_size_t(), c_size_t()
    must("cuMemGetInfo_v2", byref(free), byref(total))
    return free.value


def with_memory(graph: c_void_p, bytes: int, is_freed: bool) -> int:
    """Adds a node that allocates, and one that frees it; returns the address."""
    params, node = AllocParams(allocation_type=1, location_type=1, bytes=bytes), c_void_p()
    must("cuGraphAddMemAllocNode", byref(node), graph, None, c_size_t(0), byref(params))
    if is_freed:
        after = c_void_p()
        must("cuGraphAddMemFreeNode", byref(after), graph, byref(node), c_size_t(1), c_uint64(params.address))
    return int(params.address)


def run(bytes: int, is_freed: bool) -> None:
    graph = made("cuGraphCreate", 0)
    address = with_memory(graph, bytes, is_freed)
    executable = made("cuGraphInstantiateWithFlags", graph, c_uint64(0))
    must("cuGraphLaunch", executable, None)
    must("cuStreamSynchronize", None)
    if not is_freed:
        must("cuMemFree_v2", c_uint64(address))
    must("cuGraphExecDestroy", executable)
    must("cuGraphDestroy", graph)


def refused() -> None:
    """Memory of nodes that are not added: after a node of another graph."""
    graph, other, node, foreign = made("cuGraphCreate", 0), made("cuGraphCreate", 0), c_void_p(), c_void_p()
    must("cuGraphAddEmptyNode", byref(foreign), other, None, c_size_t(0))
    params = AllocParams(allocation_type=1, location_type=1, bytes=BYTES)
    status = call("cuGraphAddMemAllocNode", byref(node), graph, byref(foreign), c_size_t(1), byref(params))
    if status == "CUDA_SUCCESS":
        raise SystemExit("WRONG: a node after one of another graph")
    must("cuGraphDestroy", graph)
    must("cuGraphDestroy", other)


def refused_free() -> None:
    """A node that frees memory and is not added leaves the memory to another node."""
    graph, other, node, foreign = made("cuGraphCreate", 0), made("cuGraphCreate", 0), c_void_p(), c_void_p()
    must("cuGraphAddEmptyNode", byref(foreign), other, None, c_size_t(0))
    address = c_uint64(with_memory(graph, BYTES, is_freed=False))
    status = call("cuGraphAddMemFreeNode", byref(node), graph, byref(foreign), c_size_t(1), address)
    if status == "CUDA_SUCCESS":
        raise SystemExit("WRONG: a node after one of another graph")
    count, first = c_size_t(1), c_void_p()
    must("cuGraphGetNodes", graph, byref(first), byref(count))
    must("cuGraphAddMemFreeNode", byref(node), graph, byref(first), c_size_t(1), address)
    status = call("cuGraphAddMemFreeNode", byref(node), graph, byref(first), c_size_t(1), address)
    if status != "CUDA_ERROR_INVALID_VALUE":
        raise SystemExit(f"WRONG: a second node that frees the memory: {status}")
    must("cuGraphDestroy", graph)
    must("cuGraphDestroy", other)


def changed() -> None:
    """A node becomes none that allocates or frees."""
    graph, node = made("cuGraphCreate", 0), c_void_p()
    must("cuGraphAddEmptyNode", byref(node), graph, None, c_size_t(0))
    executable = made("cuGraphInstantiateWithFlags", graph, c_uint64(0))
    alloc = AllocParams(allocation_type=1, location_type=1, bytes=BYTES)
    for kind in (MEM_ALLOC, MEM_FREE):
        params = NodeParams(type=kind, alloc=alloc)
        statuses = (
            call("cuGraphNodeSetParams", node, byref(params)),
            call("cuGraphExecNodeSetParams", executable, node, byref(params)),
        )
        if statuses != ("CUDA_ERROR_INVALID_VALUE",) * 2:
            raise SystemExit(f"WRONG: a node of type {kind} instead of an empty one: {statuses}")
    must("cuGraphExecDestroy", executable)
    must("cuGraphDestroy", graph)


def destroyed() -> None:
    """Memory that has the address of a graph's, whose context is gone, is not the graph's."""
    context = made("cuCtxCreate_v2", 0, 0)
    graph = made("cuGraphCreate", 0)
    was_at = with_memory(graph, BYTES, is_freed=True)
    must("cuCtxDestroy_v2", context)
    kept = []
    while was_at not in kept and len(kept) < 64:
        at = c_uint64()
        must("cuMemAlloc_v2", byref(at), c_size_t(BYTES))
        kept.append(at.value)
    must("cuGraphDestroy", graph)
    for at in kept:
        must("cuMemFree_v2", c_uint64(at))


def main() -> None:
    context = primary_context()
    lib.cuGraphDestroy.argtypes = lib.cuGraphExecDestroy.argtypes = [c_void_p]
    at_first = free_bytes()
    for what, part in {
        "of graphs that free it": lambda: run(BYTES, is_freed=True),
        "little": lambda: run(4096, is_freed=True),
        "of graphs whose program frees it": lambda: run(BYTES, is_freed=False),
        "of nodes that are refused": refused,
        "of nodes that are refused and free it": refused_free,
        "of nodes that are changed": changed,
        "of a context": destroyed,
    }.items():
        for _ in range(ROUNDS):
            part()
            must("cuCtxSetCurrent", context)
        must("cuCtxSynchronize")
        if free_bytes() != at_first:
            raise SystemExit(f"WRONG: memory {what}: {at_first - free_bytes()} bytes stay")
    print("right")


main()

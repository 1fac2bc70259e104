"""Captures as cuDNN makes them: with made-up addresses, read as a graph, never run. Prints the
results."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_size_t, c_uint32, c_uint64, c_void_p, cast
from typing import ClassVar

from cuda import call, must
from misuse import kernel, pointer_argument

NOWHERE = 0x2848A0


class KernelNode(ctypes.Structure):
    """`CUDA_KERNEL_NODE_PARAMS_v2`"""

    _fields_: ClassVar = [
        ("func", c_void_p),
        ("grid", c_uint32 * 3),
        ("block", c_uint32 * 3),
        ("shared_bytes", c_uint32),
        ("params", POINTER(c_void_p)),
        ("extra", POINTER(c_void_p)),
        ("kern", c_void_p),
        ("context", c_void_p),
    ]


def capture(stream: c_void_p, function: c_void_p) -> c_void_p:
    """Captures a memset of an address that does not exist, then a kernel that would write there."""
    must("cuStreamBeginCapture_v2", stream, 1)
    print("captured memset", call("cuMemsetD8Async", c_uint64(NOWHERE), 0, c_size_t(64), stream))
    arguments = pointer_argument(NOWHERE)
    must("cuLaunchKernel", function, 2, 3, 1, 32, 1, 1, 48, stream, arguments, None)
    graph = c_void_p()
    must("cuStreamEndCapture", stream, byref(graph))
    return graph


def nodes(graph: c_void_p) -> list[c_void_p]:
    count = c_size_t(8)
    handles = (c_void_p * 8)()
    must("cuGraphGetNodes", graph, handles, byref(count))
    return [c_void_p(handle) for handle in handles[: count.value]]


def say(function: c_void_p, node: c_void_p) -> None:
    """Prints what the graph reports about a node."""
    kind, params, short = c_uint32(), KernelNode(), KernelNode()
    must("cuGraphNodeGetType", node, byref(kind))
    status = call("cuGraphKernelNodeGetParams_v2", node, byref(params))
    if status != "CUDA_SUCCESS":
        print("type", kind.value, status)
        return
    must("cuGraphKernelNodeGetParams", node, byref(short))
    assert short.func == params.func == function.value
    value = cast(params.params[0], POINTER(c_uint64))[0]
    print("kernel", list(params.grid), list(params.block), params.shared_bytes, hex(value))


def main() -> None:
    must("cuInit", 0)
    context, stream, function = c_void_p(), c_void_p(), c_void_p()
    must("cuDevicePrimaryCtxRetain", byref(context), 0)
    must("cuCtxSetCurrent", context)
    must("cuStreamCreate", byref(stream), 1)
    function = kernel()
    print("memset outside a capture", call("cuMemsetD8Async", c_uint64(NOWHERE), 0, c_size_t(64), stream))
    graph = capture(stream, function)
    clone = c_void_p()
    must("cuGraphClone", byref(clone), graph)
    for each in (graph, clone):
        for node in nodes(each):
            say(function, node)
    for each in (graph, clone):
        must("cuGraphDestroy", each)
    # The calls so far left the context usable.
    data = c_uint64()
    must("cuMemAlloc_v2", byref(data), c_size_t(64))
    must("cuMemsetD8Async", data, 5, c_size_t(64), stream)
    must("cuStreamSynchronize", stream)


if __name__ == "__main__":
    main()

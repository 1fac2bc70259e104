"""Launches by the `_ptsz` calls, whose null stream is the thread's own, into a graph captured by
that stream."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

from cuda import kernels, must, primary_context

N = 1000


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        *((f"{part}_{axis}", ctypes.c_uint) for part in ("grid", "block") for axis in "xyz"),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


def main() -> None:
    primary_context()
    [kernel] = kernels(Path(sys.argv[1]).read_bytes() + b"\0", "vector_add")
    length = ctypes.c_size_t(4 * N)
    arrays = [ctypes.c_uint64() for _ in range(3)]
    values = (ctypes.c_float * N)(*range(N))
    for array in arrays:
        must("cuMemAlloc_v2", ctypes.byref(array), length)
        must("cuMemcpyHtoD_v2", array, values, length)
    count = ctypes.c_int(N)
    order = [*arrays, count]
    params = (ctypes.c_void_p * len(order))(*(ctypes.addressof(value) for value in order))
    config = LaunchConfig(-(-N // 128), 1, 1, 128, 1, 1, 0, None, None, 0)
    graph, graph_exec, nodes = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
    must("cuStreamBeginCapture_v2_ptsz", None, 1)
    must("cuLaunchKernelEx_ptsz", ctypes.byref(config), kernel, params, None)
    must("cuLaunchKernel_ptsz", kernel, -(-N // 128), 1, 1, 128, 1, 1, 0, None, params, None)
    must("cuStreamEndCapture_ptsz", None, ctypes.byref(graph))
    must("cuGraphGetNodes", graph, None, ctypes.byref(nodes))
    must("cuGraphInstantiateWithFlags", ctypes.byref(graph_exec), graph, ctypes.c_ulonglong(0))
    must("cuGraphLaunch_ptsz", graph_exec, None)
    must("cuStreamSynchronize_ptsz", None)
    must("cuMemcpyDtoH_v2_ptds", values, arrays[2], length)
    print(nodes.value, sum(value == 2 * at for at, value in enumerate(values)))


main()

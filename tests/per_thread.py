"""Launches by the `_ptsz` calls, whose null stream is the thread's own, into a graph captured by
that stream."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

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


cuda = ctypes.CDLL("libcuda.so.1")


def do(name: str, *arguments: Any) -> None:
    if result := getattr(cuda, name)(*arguments):
        sys.exit(f"{name}: {result}")


def main() -> None:
    context, module, kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    do("cuInit", 0)
    do("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    do("cuCtxSetCurrent", context)
    do("cuModuleLoadData", ctypes.byref(module), Path(sys.argv[1]).read_bytes() + b"\0")
    do("cuModuleGetFunction", ctypes.byref(kernel), module, b"vector_add")
    length = ctypes.c_size_t(4 * N)
    arrays = [ctypes.c_uint64() for _ in range(3)]
    values = (ctypes.c_float * N)(*range(N))
    for array in arrays:
        do("cuMemAlloc_v2", ctypes.byref(array), length)
        do("cuMemcpyHtoD_v2", array, values, length)
    count = ctypes.c_int(N)
    order = [*arrays, count]
    params = (ctypes.c_void_p * len(order))(*(ctypes.addressof(value) for value in order))
    config = LaunchConfig(-(-N // 128), 1, 1, 128, 1, 1, 0, None, None, 0)
    graph, graph_exec, nodes = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
    do("cuStreamBeginCapture_v2_ptsz", None, 1)
    do("cuLaunchKernelEx_ptsz", ctypes.byref(config), kernel, params, None)
    do("cuLaunchKernel_ptsz", kernel, -(-N // 128), 1, 1, 128, 1, 1, 0, None, params, None)
    do("cuStreamEndCapture_ptsz", None, ctypes.byref(graph))
    do("cuGraphGetNodes", graph, None, ctypes.byref(nodes))
    do("cuGraphInstantiateWithFlags", ctypes.byref(graph_exec), graph, ctypes.c_ulonglong(0))
    do("cuGraphLaunch_ptsz", graph_exec, None)
    do("cuStreamSynchronize_ptsz", None)
    do("cuMemcpyDtoH_v2_ptds", values, arrays[2], length)
    print(nodes.value, sum(value == 2 * at for at, value in enumerate(values)))


main()

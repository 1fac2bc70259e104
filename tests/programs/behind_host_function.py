"""Much work in a stream behind a host function that takes its time, and many launches of a graph that has one: the
driver's own streams take about 1,020 and 28. Prints what was done."""

from __future__ import annotations

import time
from ctypes import CFUNCTYPE, byref, c_uint32, c_uint64, c_void_p

from cuda import call, kernels, made, must, primary_context
from misuse import pointer_argument

WORKS = 3_000
LAUNCHES = 300
COPIES = 600
ADD_ONE = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry add_one(.param .u64 at)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [at];
    ld.global.u32 %r1, [%rd1];
    add.u32 %r1, %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}
\0"""
HostFunction = CFUNCTYPE(None, c_void_p)
ran = [0]


@HostFunction
def slow(_: object) -> None:
    time.sleep(0.3)
    ran[0] += 1


@HostFunction
def quick(_: object) -> None:
    ran[0] += 1


primary_context()
(add_one,) = kernels(ADD_ONE, "add_one")
memory = c_uint64()
must("cuMemAlloc_v2", byref(memory), c_uint64(4))
must("cuMemsetD32_v2", memory, 0, c_uint64(1))
arguments = pointer_argument(memory.value)


def launch(stream: c_void_p) -> None:
    must("cuLaunchKernel", add_one, 1, 1, 1, 1, 1, 1, 0, stream, arguments, None)


def total() -> int:
    word = c_uint32()
    must("cuMemcpyDtoH_v2", byref(word), memory, c_uint64(4))
    return word.value


def works_of_each_kind(stream: c_void_p) -> None:
    """Every kind of work counts, and nothing that waits for a stream's work does."""
    host, event = c_void_p(), made("cuEventCreate", 0)
    must("cuMemAllocHost_v2", byref(host), c_uint64(1 << 12))
    other = c_uint64()
    must("cuMemAlloc_v2", byref(other), c_uint64(1 << 12))
    must("cuLaunchHostFunc", stream, slow, None)
    for _ in range(300):
        launch(stream)
        must("cuMemcpyHtoDAsync_v2", other, host, c_uint64(1 << 12), stream)
        must("cuMemcpyDtoHAsync_v2", host, other, c_uint64(1 << 12), stream)
        must("cuMemsetD8Async", other, 1, c_uint64(1 << 12), stream)
        must("cuEventRecord", event, stream)
        must("cuStreamWaitEvent", stream, event, 0)
        call("cuStreamQuery", stream)


stream = made("cuStreamCreate", 1)
must("cuLaunchHostFunc", stream, slow, None)
for _ in range(WORKS):
    launch(stream)
must("cuStreamSynchronize", stream)
print("kernels", total(), "functions", ran[0])

works_of_each_kind(stream)
must("cuStreamSynchronize", stream)
print("mixed", total(), "functions", ran[0])

must("cuStreamBeginCapture_v2", stream, 2)
must("cuLaunchHostFunc", stream, quick, None)
launch(stream)
graph, executable = c_void_p(), c_void_p()
must("cuStreamEndCapture", stream, byref(graph))
must("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
for _ in range(LAUNCHES):
    must("cuGraphLaunch", executable, stream)
must("cuStreamSynchronize", stream)
print("graphs", total(), "functions", ran[0])

# The graph may run its function at any time. A copy of managed memory is four works at an NVIDIA server.
places = [c_uint64(), c_uint64()]
for place in places:
    must("cuMemAllocManaged", byref(place), c_uint64(1 << 12), 1)
for _ in range(COPIES):
    must("cuMemcpyAsync", *places, c_uint64(1 << 12), stream)
must("cuStreamSynchronize", stream)

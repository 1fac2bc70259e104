"""A capture as NCCL makes it, whose streams follow each other inside a graph and between graphs, then its launches.

NCCL's streams live inside a capture only by a node that it adds itself; a stream of a moment finds an event's nodes.
"""

from __future__ import annotations

import ctypes
import time
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

from cuda import made, must, primary_context
from misuse import load

NON_BLOCKING, RELAXED, EXTERNAL, SET = 1, 2, 1, 1
NO_TIMING, MOVE, NO_DESTRUCTOR_SYNC = 2, 1, 1
DESTRUCTOR_S_MAX = 10
DESTRUCTOR = ctypes.CFUNCTYPE(None, c_void_p)
# The effect of NCCL's kernel on memory here: word = 3 * word + 1, which reveals the order.
KERNEL = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry step(.param .u64 where)
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [where];
    ld.global.u32 %r1, [%rd1];
    mad.lo.u32 %r1, %r1, 3, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""


class Info:
    """The state of a stream's capture, and its next node's dependencies."""

    def __init__(self, stream: c_void_p) -> None:
        self.status, self.id, self.graph = c_int(), c_uint64(), c_void_p()
        self.nodes, self.edges, self.count = c_void_p(), c_void_p(), c_size_t()
        found = [byref(each) for each in (self.status, self.id, self.graph, self.nodes, self.edges, self.count)]
        must("cuStreamGetCaptureInfo_v3", stream, *found)


class StrongStream:
    """A stream for work of all graphs and outside of graphs, one after the other
    (`ncclStrongStream`)."""

    def __init__(self) -> None:
        self.live = made("cuStreamCreate", NON_BLOCKING)
        self.serial = made("cuEventCreate", NO_TIMING)
        self.captured = made("cuStreamCreate", NON_BLOCKING)

    def acquire(self, origin: c_void_p) -> c_void_p:
        scratch = made("cuEventCreate", NO_TIMING)
        must("cuEventRecord", scratch, origin)
        must("cuStreamWaitEvent", self.captured, scratch, 0)
        must("cuEventDestroy_v2", scratch)
        must("cuStreamUpdateCaptureDependencies_v2", self.captured, None, None, c_size_t(0), SET)
        must("cuEventRecord", self.serial, self.live)
        must("cuStreamWaitEvent", self.captured, self.serial, EXTERNAL)
        return self.captured

    def advance(self, event: c_void_p) -> None:
        """Makes it follow an event of the capture, instead of its earlier work."""
        moment = made("cuStreamCreate", NON_BLOCKING)
        must("cuStreamWaitEvent", moment, event, 0)
        info = Info(moment)
        must("cuStreamUpdateCaptureDependencies_v2", self.captured, info.nodes, None, info.count, SET)
        must("cuStreamDestroy_v2", moment)

    def release(self) -> None:
        info = Info(self.captured)
        record = made("cuGraphAddEventRecordNode", info.graph, None, c_size_t(0), self.serial)
        info = Info(self.captured)
        before = (c_void_p * info.count.value).from_address(info.nodes.value or 0)
        for node in before:
            must("cuGraphAddDependencies_v2", info.graph, byref(c_void_p(node)), byref(record), None, c_size_t(1))
        must("cuStreamUpdateCaptureDependencies_v2", self.captured, byref(record), None, c_size_t(1), SET)


def capture(user: c_void_p, device: StrongStream, kernel: c_void_p, word: c_uint64, ended: object) -> c_void_p:
    """Captures as many calls as an all-reduce makes."""
    scratch = made("cuEventCreate", NO_TIMING)
    must("cuStreamBeginCapture_v2", user, RELAXED)
    must("cuEventRecord", scratch, device.acquire(user))
    must("cuStreamWaitEvent", user, scratch, 0)
    graph = Info(user).graph
    destructor = made("cuUserObjectCreate", None, ended, 1, NO_DESTRUCTOR_SYNC)
    must("cuGraphRetainUserObject", graph, destructor, 1, MOVE)
    arguments = (c_void_p * 1)(ctypes.addressof(word))
    must("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, user, arguments, None)
    must("cuEventRecord", scratch, user)
    device.advance(scratch)
    device.release()
    must("cuStreamEndCapture", user, byref(graph))
    return graph


def main() -> None:
    primary_context()
    status, module, log = load(KERNEL)
    assert status == "CUDA_SUCCESS", log
    kernel = made("cuModuleGetFunction", module, b"step")
    word = c_uint64()
    must("cuMemAlloc_v2", byref(word), c_size_t(4))
    must("cuMemsetD32_v2", word, 0, c_size_t(1))
    destroyed: list[int] = []
    ended = DESTRUCTOR(lambda _: destroyed.append(1))
    user, device = made("cuStreamCreate", NON_BLOCKING), StrongStream()
    graph = capture(user, device, kernel, word, ended)
    executable = made("cuGraphInstantiateWithFlags", graph, c_uint64(0))
    arguments = (c_void_p * 1)(ctypes.addressof(word))
    for _ in range(3):
        must("cuGraphLaunch", executable, user)
        # Work outside of graphs follows the graph's through the event that it records, and precedes
        # the next through another.
        must("cuStreamWaitEvent", device.live, device.serial, 0)
        must("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, device.live, arguments, None)
        must("cuEventRecord", device.serial, device.live)
    must("cuCtxSynchronize")
    read = (ctypes.c_uint32 * 1)()
    must("cuMemcpyDtoH_v2", read, word, c_size_t(4))
    must("cuGraphExecDestroy", executable)
    must("cuGraphDestroy", graph)
    must("cuCtxSynchronize")
    # A thread of the driver calls the destructor, at a time of its own.
    end = time.monotonic() + DESTRUCTOR_S_MAX
    while not destroyed and time.monotonic() < end:
        time.sleep(0.001)
    print(read[0], len(destroyed))


if __name__ == "__main__":
    main()

"""Waits at equal distances, of which the client foresees the next, and then other work first.

`foreseen.py segments`: prints how many segments with data each step, a launch and its wait, sent and received over tcp.
`foreseen.py misses`: what comes after the early question is waited for, too.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

from cuda import kernels, made, must, primary_context

PTX = b".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry nothing() { ret; }\n"
HABIT, STEPS = 8, 40
LATE_S = 0.03
# Offset of data_segs_in and data_segs_out in struct tcp_info.
SEGMENTS_AT = 152
HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Gpu:
    def __init__(self) -> None:
        self.context = primary_context()
        (self.kernel,) = kernels(PTX, "nothing")
        self.stream, self.other = (made("cuStreamCreate", 1) for _ in range(2))
        self.done = threading.Event()
        self.late = HostFunction(self._be_late)

    def _be_late(self, _: object) -> None:
        time.sleep(LATE_S)
        self.done.set()

    def launch(self, stream: ctypes.c_void_p | None = None) -> None:
        must("cuLaunchKernel", self.kernel, 1, 1, 1, 1, 1, 1, 0, stream or self.stream, None, None)

    def launch_in_default(self) -> None:
        must("cuLaunchKernel", self.kernel, 1, 1, 1, 1, 1, 1, 0, ctypes.c_void_p(), None, None)

    def send_late_work(self, stream: ctypes.c_void_p) -> None:
        self.done.clear()
        must("cuLaunchHostFunc", stream, self.late, None)

    def wait(self) -> None:
        must("cuStreamSynchronize", self.stream)

    def wait_for_all(self) -> None:
        must("cuCtxSynchronize")


def connection() -> socket.socket:
    """The client's connection over tcp that has carried most."""
    found: list[tuple[int, socket.socket]] = []
    for name in os.listdir("/proc/self/fd"):
        try:
            one = socket.socket(fileno=os.dup(int(name)))
            one.getpeername()
        except OSError:
            continue
        if one.family == socket.AF_INET:
            found.append((sum(segments(one)), one))
    return max(found, key=lambda pair: pair[0])[1]


def segments(of: socket.socket) -> tuple[int, int]:
    info = of.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    received, sent = struct.unpack_from("=II", info, SEGMENTS_AT)
    return sent, received


def count_segments(gpu: Gpu) -> None:
    # The last is not asked for early: behind other work it would hold up what comes after it in blocking streams.
    steps = ((gpu.launch, gpu.wait), (gpu.launch_in_default, gpu.wait_for_all), (gpu.launch, gpu.wait_for_all))
    for launch, wait in steps:
        for number in range(HABIT + STEPS):
            if number == HABIT:
                link = connection()
                before = segments(link)
            launch()
            wait()
        after = segments(link)
        print(*(round((new - old) / STEPS, 1) for old, new in zip(before, after, strict=True)))


def expect_waits(gpu: Gpu) -> None:
    def by_habit(wait: Callable[[], None]) -> None:
        for _ in range(HABIT):
            gpu.launch()
            wait()
        gpu.launch()

    # Each is asked for early, and then there is more to wait for.
    for wait, late in ((gpu.wait, gpu.stream), (gpu.wait_for_all, gpu.stream), (gpu.wait_for_all, gpu.other)):
        for _ in range(3):
            by_habit(wait)
            gpu.send_late_work(late)
            wait()
            assert gpu.done.is_set(), "the wait was over before its work"
            wait()
    # Work that was late when the question was asked.
    by_habit(gpu.wait)
    gpu.wait()
    for _ in range(HABIT):
        gpu.send_late_work(gpu.stream)
        gpu.launch()
        gpu.wait()
        assert gpu.done.is_set(), "the early answer came before the work"


def end_capture(stream: ctypes.c_void_p) -> ctypes.c_void_p:
    graph = ctypes.c_void_p()
    must("cuStreamEndCapture", stream, ctypes.byref(graph))
    return graph


def expect_captures(gpu: Gpu) -> None:
    """A question in a capture would be an error."""
    for _ in range(HABIT):
        gpu.launch()
        gpu.wait()
    must("cuStreamBeginCapture_v2", gpu.stream, 1)
    gpu.launch()
    graph = end_capture(gpu.stream)
    for _ in range(HABIT):
        gpu.launch()
        gpu.wait_for_all()
    must("cuStreamBeginCapture_v2", gpu.other, 2)
    gpu.launch()
    gpu.launch(gpu.other)
    for one in (graph, end_capture(gpu.other)):
        runs = made("cuGraphInstantiateWithFlags", one, ctypes.c_uint64())
        for _ in range(HABIT):
            must("cuGraphLaunch", runs, gpu.stream)
            gpu.wait()
    # A stream that has a habit goes.
    must("cuStreamDestroy_v2", gpu.stream)
    gpu.launch(gpu.other)
    gpu.wait_for_all()


if __name__ == "__main__":
    gpu = Gpu()
    if sys.argv[1] == "segments":
        count_segments(gpu)
    else:
        expect_waits(gpu)
        expect_captures(gpu)
        print("right")

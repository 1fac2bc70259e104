"""Long copies to the device from pinned memory that a kernel's argument points into by accident: run as
`mirrored_copies.py WHAT`. Prints `right`.

`loader` first prints the bytes sent to the server, in times of those that the program changed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from ctypes import byref, c_size_t, c_uint32, c_uint64, c_void_p

from cuda import kernels, lib, made, must, primary_context

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry put(.param .u64 at, .param .u64 value, .param .u64 stale)
{
    .reg .b64 %rd<3>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [at];
    ld.param.u64 %rd2, [value];
    cvt.u32.u64 %r1, %rd2;
    st.global.u32 [%rd1], %r1;
    ret;
}
\0"""
MIB = 1 << 20
BYTES = 4 * MIB
WORD_BYTES = 4
NON_BLOCKING, NO_TIMING, AT_LEAST = 1, 2, 0
WARM, STEPS = 3, 12
# More waits than those after which a mirror that no argument names is closed.
UNNAMED_WAITS = 12
# Offset of the bytes sent in the kernel's record of a connection.
SENT_AT = 200
HELD_S = 0.5


def check(is_right: bool, what: str) -> None:
    if not is_right:
        raise SystemExit(f"WRONG: {what}")


def sent() -> int:
    """Bytes that this process has sent over tcp."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            one = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with one:
            if one.family == socket.AF_INET and one.type == socket.SOCK_STREAM:
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                total += struct.unpack_from("=Q", info, SENT_AT)[0]
    return total


class Gpu:
    def __init__(self, block: int = 0) -> None:
        self.context = primary_context()
        [self.put] = kernels(PTX, "put")
        self.word, self.target = self.device(4096), self.device(BYTES)
        self.block = block or self.pinned()
        self.stream, self.other = made("cuStreamCreate", NON_BLOCKING), made("cuStreamCreate", NON_BLOCKING)

    def device(self, bytes: int) -> int:
        at = c_uint64()
        must("cuMemAlloc_v2", byref(at), c_size_t(bytes))
        must("cuMemsetD8_v2", at, 0, c_size_t(bytes))
        # The other streams do not wait for it.
        must("cuCtxSynchronize")
        return at.value

    def pinned(self) -> int:
        at = c_void_p()
        must("cuMemHostAlloc", byref(at), c_size_t(BYTES), 0)
        return at.value or 0

    def launch(self, stream: c_void_p, at: int = 0, value: int = 0) -> None:
        """Stores a word; the last argument is a stale pointer into the block."""
        words = (c_uint64 * 3)(at or self.word + 64, value, self.block + 64)
        pointers = (c_void_p * 3)(*(ctypes.addressof(words) + 8 * index for index in range(3)))
        must("cuLaunchKernel", self.put, 1, 1, 1, 1, 1, 1, 0, stream, pointers, None)

    def wait(self, stream: c_void_p) -> None:
        must("cuStreamSynchronize", stream)

    def copy(self, stream: c_void_p, start: int = 0, bytes: int = BYTES) -> None:
        at = c_uint64(self.target + start), c_void_p(self.block + start), c_size_t(bytes)
        must("cuMemcpyHtoDAsync_v2", *at, stream)

    def found(self, start: int = 0, bytes: int = BYTES) -> ctypes.Array[c_uint32]:
        """The bytes at the device, which are done."""
        words = (c_uint32 * (bytes // WORD_BYTES))()
        must("cuMemcpyDtoH_v2", words, c_uint64(self.target + start), c_size_t(bytes))
        return words

    def expect(self, value: int, what: str, start: int = 0, bytes: int = BYTES) -> None:
        words = self.found(start, bytes)
        check(bytearray(words) == bytearray([value]) * bytes, f"{what}: {words[0]:x}, {words[-1]:x} not {value:x}")

    def fill(self, value: int, start: int = 0, bytes: int = BYTES) -> None:
        ctypes.memset(self.block + start, value, bytes)

    def host(self, word: int) -> c_uint32:
        return c_uint32.from_address(self.block + word * WORD_BYTES)

    def hold(self, stream: c_void_p) -> None:
        """Keeps a stream waiting until `release`."""
        must("cuStreamWaitValue32_v2", stream, c_uint64(self.word), 1, AT_LEAST)

    def release(self) -> None:
        must("cuCtxSetCurrent", self.context)
        must("cuStreamWriteValue32_v2", self.other, c_uint64(self.word), 1, 0)
        self.wait(self.other)


def loader(gpu: Gpu) -> None:
    gpu.launch(gpu.stream)
    before = 0
    for step in range(WARM + STEPS):
        if step == WARM:
            before = sent()
        gpu.fill(step + 1)
        gpu.copy(gpu.stream)
        for _ in range(4):
            gpu.launch(gpu.stream)
        gpu.wait(gpu.stream)
        must("cuMemcpyDtoH_v2", byref(word := c_uint32()), c_uint64(gpu.target + BYTES - 4), c_size_t(4))
        check(word.value == (step + 1) * 0x01010101, f"step {step}: {word.value:x}")
    print(round((sent() - before) / (STEPS * BYTES), 3))
    gpu.expect(WARM + STEPS, "the last step")


def changed(gpu: Gpu) -> None:
    """The program changes the source as soon as CUDA allows it."""
    event = made("cuEventCreate", NO_TIMING)
    target, size = c_uint64(gpu.target), c_size_t(BYTES)

    def by_event() -> None:
        gpu.copy(gpu.stream)
        must("cuEventRecord", event, gpu.stream)
        must("cuEventSynchronize", event)

    def by_query() -> None:
        gpu.copy(gpu.stream)
        while lib.cuStreamQuery(gpu.stream) != 0:
            pass

    ways: list[Callable[[], object]] = [
        lambda: (gpu.copy(gpu.stream), gpu.wait(gpu.stream)),
        lambda: (gpu.copy(gpu.stream), must("cuCtxSynchronize")),
        lambda: must("cuMemcpyHtoD_v2", target, c_void_p(gpu.block), size),
        lambda: must("cuMemcpy", target, c_uint64(gpu.block), size),
        by_event,
        by_query,
    ]
    for number, copy in enumerate(ways):
        for turn in range(3):
            value = 10 * number + turn + 1
            gpu.launch(gpu.stream)
            gpu.fill(value)
            copy()
            gpu.fill(200 + turn)
            gpu.launch(gpu.stream)
            gpu.expect(value, f"way {number}")


def written(gpu: Gpu) -> None:
    """Kernels and the program write words of the same pages before a copy; nobody waits in between."""
    gpu.fill(1)
    for turn in range(20):
        gpu.host(0).value = 100 + turn
        gpu.launch(gpu.stream, gpu.block + 8, 200 + turn)
        gpu.host(4).value = 300 + turn
        gpu.copy(gpu.stream)
        gpu.launch(gpu.stream, gpu.block + 24, 400 + turn)
        gpu.wait(gpu.stream)
        found = [gpu.host(word).value for word in (0, 2, 4, 6)]
        check(found == [100 + turn, 200 + turn, 300 + turn, 400 + turn], f"the program's words {found}")
        words = gpu.found()
        found = [words[word] for word in (0, 2, 4)]
        check(found == [100 + turn, 200 + turn, 300 + turn], f"the device's words {found}")
        # The kernel after the copy wrote it.
        check(words[6] == (399 + turn if turn else 0x01010101), f"a later word {words[6]}")
        check(set(words[8:]) == {0x01010101}, "words that nobody wrote")


def brought(gpu: Gpu) -> None:
    """The source is what an earlier copy brings from the device."""
    source, event = gpu.device(BYTES), made("cuEventCreate", NO_TIMING)
    for turn in range(6):
        gpu.launch(gpu.stream)
        must("cuMemsetD8Async", c_uint64(source), turn + 1, c_size_t(BYTES), gpu.stream)
        must("cuMemcpyDtoHAsync_v2", c_void_p(gpu.block), c_uint64(source), c_size_t(BYTES), gpu.stream)
        copying = gpu.stream
        if turn % 2:
            must("cuEventRecord", event, gpu.stream)
            must("cuStreamWaitEvent", gpu.other, event, 0)
            copying = gpu.other
        gpu.copy(copying)
        gpu.wait(copying)
        gpu.expect(turn + 1, f"turn {turn}")


def kept(gpu: Gpu) -> None:
    """A mirror that nothing names stays while a copy has yet to read it."""
    for turn in range(3):
        must("cuMemsetD32_v2", c_uint64(gpu.word), 0, c_size_t(1))
        must("cuStreamSynchronize", None)
        gpu.launch(gpu.stream)
        gpu.fill(turn + 1)
        gpu.hold(gpu.stream)
        gpu.copy(gpu.stream)
        for _ in range(UNNAMED_WAITS):
            must("cuMemsetD8Async", c_uint64(gpu.word + 128), 0, c_size_t(4), gpu.other)
            gpu.wait(gpu.other)
        gpu.release()
        gpu.wait(gpu.stream)
        gpu.expect(turn + 1, "while it is open")
        for _ in range(UNNAMED_WAITS):
            must("cuMemsetD8Async", c_uint64(gpu.word + 128), 0, c_size_t(4), gpu.other)
            gpu.wait(gpu.other)
            gpu.wait(gpu.stream)
        gpu.fill(turn + 20)
        gpu.copy(gpu.stream)
        gpu.wait(gpu.stream)
        gpu.expect(turn + 20, "when it may be closed")


def freed(gpu: Gpu) -> None:
    """The memory is freed while a stream of this context, and of another, has yet to copy from it."""
    other = made("cuCtxCreate_v2", 0, 0)
    in_other = made("cuStreamCreate", NON_BLOCKING)
    must("cuCtxSetCurrent", gpu.context)
    for turn in range(4):
        must("cuMemsetD32_v2", c_uint64(gpu.word), 0, c_size_t(1))
        must("cuStreamSynchronize", None)
        is_registered = turn >= 2
        if is_registered:
            region = mmap.mmap(-1, BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            gpu.block = ctypes.addressof(ctypes.c_char.from_buffer(region))
            must("cuMemHostRegister_v2", c_void_p(gpu.block), c_size_t(BYTES), 0)
        elif turn > 0:
            gpu.block = gpu.pinned()
        gpu.launch(gpu.stream)
        gpu.fill(turn + 1)
        stream, context = (gpu.stream, gpu.context) if turn % 2 else (in_other, other)
        must("cuCtxSetCurrent", context)
        gpu.hold(stream)
        gpu.copy(stream)
        must("cuCtxSetCurrent", gpu.context)
        release = threading.Timer(HELD_S, gpu.release)
        release.start()
        begin = time.monotonic()
        must("cuMemHostUnregister" if is_registered else "cuMemFreeHost", c_void_p(gpu.block))
        took = time.monotonic() - begin
        if is_registered:
            gpu.fill(99)
        release.join()
        must("cuCtxSetCurrent", context)
        gpu.wait(stream)
        must("cuCtxSetCurrent", gpu.context)
        gpu.expect(turn + 1, f"turn {turn}, freed after {took:.3f} s")


def threads(gpu: Gpu) -> None:
    """Threads copy parts of one block, which share pages at their ends, beside launches."""
    count = 4
    part = BYTES // count // 4096 * 4096 - 1000
    wrong: list[object] = []

    def work(number: int) -> None:
        try:
            must("cuCtxSetCurrent", gpu.context)
            stream = made("cuStreamCreate", NON_BLOCKING)
            for turn in range(12):
                value = 1 + (turn * count + number) % 250
                gpu.fill(value, number * part, part)
                gpu.copy(stream, number * part, part)
                gpu.wait(stream)
                gpu.fill(255, number * part, part)
                gpu.expect(value, f"thread {number}", number * part, part)
        except BaseException as error:
            wrong.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    gpu.launch(gpu.stream)
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        gpu.launch(gpu.stream)
        gpu.wait(gpu.stream)
    check(not wrong, f"{wrong}")


WHAT = {case.__name__: case for case in (loader, changed, written, brought, kept, freed, threads)}

lib.cuMemFreeHost.argtypes = lib.cuMemHostUnregister.argtypes = [c_void_p]
WHAT[sys.argv[1]](Gpu())
print("right")

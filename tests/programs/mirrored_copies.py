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
// Says that it runs, polls a word for 4 s at most, and says that it has seen the value.
.visible .entry polls(.param .u64 word, .param .u64 said, .param .u64 wanted)
{
    .reg .b64 %rd<8>;
    .reg .b32 %r<4>;
    .reg .pred %p<3>;
    ld.param.u64 %rd1, [word];
    ld.param.u64 %rd2, [said];
    ld.param.u64 %rd6, [wanted];
    cvt.u32.u64 %r1, %rd6;
    mov.u32 %r3, 1;
    st.volatile.global.u32 [%rd2], %r3;
    mov.u64 %rd3, %globaltimer;
again:
    ld.volatile.global.u32 %r2, [%rd1];
    setp.eq.u32 %p1, %r2, %r1;
    @%p1 bra found;
    mov.u64 %rd4, %globaltimer;
    sub.u64 %rd5, %rd4, %rd3;
    setp.lt.u64 %p2, %rd5, 4000000000;
    @%p2 bra again;
    ret;
found:
    st.global.u32 [%rd2], %r1;
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
FREE_S_MAX = 10
NOT_READY = 600
RELAXED = 2
DURING_CALL = 2
SIGSEGV = 11
libc = ctypes.CDLL(None)


class Attributes(ctypes.Structure):
    """CUmemcpyAttributes"""

    _fields_ = (("order", c_uint32), ("hints", c_uint32 * 4), ("flags", c_uint32))


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
        self.put, self.polls = kernels(PTX, "put", "polls")
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
        self.run(self.put, stream, at or self.word + 64, value, self.block + 64)

    def run(self, kernel: c_void_p, stream: c_void_p, *arguments: int) -> None:
        words = (c_uint64 * 3)(*arguments)
        pointers = (c_void_p * 3)(*(ctypes.addressof(words) + 8 * index for index in range(3)))
        must("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream, pointers, None)

    def wait(self, stream: c_void_p) -> None:
        must("cuStreamSynchronize", stream)

    def copy(self, stream: c_void_p, start: int = 0, bytes: int = BYTES) -> None:
        at = c_uint64(self.target + start), c_void_p(self.block + start), c_size_t(bytes)
        must("cuMemcpyHtoDAsync_v2", *at, stream)

    def copy_at_call(self, stream: c_void_p) -> None:
        """Copies all of the block, which is read during the call."""
        at = (c_uint64(self.target), c_uint64(self.block), c_size_t(BYTES))
        attributes = Attributes(order=DURING_CALL), c_size_t()
        must("cuMemcpyBatchAsync_v2", *map(byref, at), c_size_t(1), *map(byref, attributes), c_size_t(1), stream)

    def register(self) -> mmap.mmap:
        """Makes registered memory the block."""
        region = mmap.mmap(-1, BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.block = ctypes.addressof(ctypes.c_char.from_buffer(region))
        must("cuMemHostRegister_v2", c_void_p(self.block), c_size_t(BYTES), 0)
        return region

    def device_word(self, at: int) -> int:
        """A word of the device's at this moment, beside all other work."""
        must("cuMemcpyDtoHAsync_v2", byref(word := c_uint32()), c_uint64(at), c_size_t(4), self.other)
        self.wait(self.other)
        return word.value

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

    def reset(self) -> None:
        """Lets streams wait for `release` again."""
        must("cuMemsetD32_v2", c_uint64(self.word), 0, c_size_t(1))
        must("cuStreamSynchronize", None)

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
        while lib.cuStreamQuery(gpu.stream) == NOT_READY:
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
        gpu.reset()
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


def late(gpu: Gpu) -> None:
    """What the program writes after the call, before it lets the copy go, is copied."""
    for turn in range(6):
        gpu.reset()
        gpu.launch(gpu.stream)
        gpu.fill(100)
        gpu.hold(gpu.stream)
        gpu.copy(gpu.stream)
        gpu.fill(turn + 1)
        gpu.release()
        gpu.wait(gpu.stream)
        gpu.expect(turn + 1, f"turn {turn}")


def batched(gpu: Gpu) -> None:
    """The program changes sources that a call reads before it returns."""
    for turn in range(3):
        gpu.reset()
        gpu.launch(gpu.stream)
        gpu.fill(turn + 1)
        gpu.hold(gpu.stream)
        # The call may wait for the stream.
        release = threading.Timer(HELD_S, gpu.release)
        release.start()
        gpu.copy_at_call(gpu.stream)
        gpu.fill(99)
        gpu.launch(made("cuStreamCreate", NON_BLOCKING))
        release.join()
        gpu.wait(gpu.stream)
        gpu.expect(turn + 1, f"turn {turn}")


def polled(gpu: Gpu) -> None:
    """A kernel waits for a word of the memory, and a copy from there for the kernel."""
    said = gpu.device(4096)
    gpu.launch(gpu.stream)
    for turn in range(6):
        value = 1000 + turn
        gpu.run(gpu.polls, gpu.stream, gpu.block, said, value)
        gpu.fill(turn + 1, 4096, BYTES - 4096)
        gpu.copy(gpu.stream)
        gpu.host(0).value = value
        while lib.cuStreamQuery(gpu.stream) == NOT_READY:
            pass
        check(gpu.device_word(said) == value, f"turn {turn}: the kernel has not seen the word")
        gpu.expect(turn + 1, f"turn {turn}", 4096, BYTES - 4096)
        check(gpu.found(0, 4)[0] == value, f"turn {turn}: a word that was written before the copy began")


def freed(gpu: Gpu) -> None:
    """The memory is freed while a stream of this context, and of another, has yet to copy from it."""
    other = made("cuCtxCreate_v2", 0, 0)
    in_other = made("cuStreamCreate", NON_BLOCKING)
    must("cuCtxSetCurrent", gpu.context)
    for turn in range(8):
        gpu.reset()
        is_registered, is_here, is_destroyed = turn & 1 > 0, turn & 2 > 0, turn & 4 > 0
        if is_registered:
            region = gpu.register()
        elif turn > 0:
            gpu.block = gpu.pinned()
        gpu.launch(gpu.stream)
        gpu.fill(turn + 1)
        stream, context = (gpu.stream, gpu.context) if is_here else (in_other, other)
        must("cuCtxSetCurrent", context)
        if is_destroyed:
            stream = made("cuStreamCreate", NON_BLOCKING)
        gpu.hold(stream)
        gpu.copy(stream)
        if is_destroyed:
            must("cuStreamDestroy_v2", stream)
        must("cuCtxSetCurrent", gpu.context)
        # It waits for this context, not for another.
        release = threading.Timer(HELD_S, gpu.release)
        if is_here:
            release.start()
        free(gpu, is_registered)
        if is_registered:
            gpu.fill(99)
            del region
        if is_here:
            release.join()
        else:
            gpu.release()
        must("cuCtxSetCurrent", context)
        must("cuCtxSynchronize")
        must("cuCtxSetCurrent", gpu.context)
        gpu.expect(turn + 1, f"turn {turn}")


def free(gpu: Gpu, is_registered: bool) -> None:
    begin = time.monotonic()
    must("cuMemHostUnregister" if is_registered else "cuMemFreeHost", c_void_p(gpu.block))
    took = time.monotonic() - begin
    check(took < FREE_S_MAX, f"freed after {took:.3f} s")


def captured(gpu: Gpu) -> None:
    """The memory is freed while another stream is captured."""
    recorded = made("cuStreamCreate", NON_BLOCKING)
    for turn in range(3):
        gpu.reset()
        if turn > 0:
            gpu.block = gpu.pinned()
        gpu.launch(gpu.stream)
        gpu.fill(turn + 1)
        gpu.hold(gpu.stream)
        gpu.copy(gpu.stream)
        must("cuStreamBeginCapture_v2", recorded, RELAXED)
        # It may wait for the context, or not.
        release = threading.Timer(HELD_S, gpu.release)
        release.start()
        free(gpu, False)
        release.join()
        # The free may have ended the capture: its status does not matter here.
        lib.cuStreamEndCapture(recorded, byref(c_void_p()))
        gpu.wait(gpu.stream)
        gpu.expect(turn + 1, f"turn {turn}")


def again(gpu: Gpu) -> None:
    """Memory at the same address is registered, named and copied while an earlier copy has yet to read it."""
    other = made("cuCtxCreate_v2", 0, 0)
    in_other = made("cuStreamCreate", NON_BLOCKING)
    must("cuCtxSetCurrent", gpu.context)
    region = gpu.register()
    first, second = gpu.target, gpu.device(BYTES)
    for turn in range(3):
        gpu.reset()
        gpu.launch(gpu.stream)
        gpu.fill(turn + 1)
        must("cuCtxSetCurrent", other)
        gpu.hold(in_other)
        gpu.copy(in_other)
        must("cuCtxSetCurrent", gpu.context)
        free(gpu, True)
        must("cuMemHostRegister_v2", c_void_p(gpu.block), c_size_t(BYTES), 0)
        gpu.fill(turn + 50)
        release = threading.Timer(HELD_S, gpu.release)
        release.start()
        gpu.launch(gpu.stream)
        gpu.target = second
        gpu.copy(gpu.stream)
        gpu.wait(gpu.stream)
        gpu.expect(turn + 50, f"turn {turn}, the later copy")
        release.join()
        must("cuCtxSetCurrent", other)
        gpu.wait(in_other)
        must("cuCtxSetCurrent", gpu.context)
        gpu.target = first
        gpu.expect(turn + 1, f"turn {turn}, the earlier copy")
    must("cuMemHostUnregister", c_void_p(gpu.block))
    del region


def last(gpu: Gpu) -> None:
    """The program writes a word that a kernel of another context polls, and frees the memory."""
    other = made("cuCtxCreate_v2", 0, 0)
    [polls] = kernels(PTX, "polls")
    in_other = made("cuStreamCreate", NON_BLOCKING)
    must("cuCtxSetCurrent", gpu.context)
    said = gpu.device(4096)
    for turn in range(3):
        value = 1000 + turn
        block = gpu.pinned()
        must("cuMemsetD32_v2", c_uint64(said), 0, c_size_t(1))
        must("cuStreamSynchronize", None)
        must("cuCtxSetCurrent", other)
        gpu.run(polls, in_other, block, said, value)
        must("cuCtxSetCurrent", gpu.context)
        while gpu.device_word(said) == 0:
            pass
        c_uint32.from_address(block).value = value
        must("cuMemFreeHost", c_void_p(block))
        must("cuCtxSetCurrent", other)
        gpu.wait(in_other)
        must("cuCtxSetCurrent", gpu.context)
        check(gpu.device_word(said) == value, f"turn {turn}: the kernel has not seen the word")


def hidden(gpu: Gpu) -> None:
    """A page may not be read when others look, nor when a copy begins; a handler of the program then allows it."""
    region = gpu.register()
    both = mmap.PROT_READ | mmap.PROT_WRITE
    page = c_void_p(gpu.block + BYTES // 2), c_size_t(mmap.PAGESIZE)

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def allow(_signal: int) -> None:
        libc.mprotect(*page, both)

    libc.signal(SIGSEGV, allow)
    gpu.launch(gpu.stream)
    for turn in range(4):
        gpu.fill(turn + 1)
        must("cuCtxSynchronize")
        gpu.fill(turn + 20)
        check(libc.mprotect(*page, 0) == 0, "mprotect")
        gpu.launch(gpu.stream)
        gpu.wait(gpu.stream)
        if turn % 2:
            libc.mprotect(*page, both)
        gpu.copy(gpu.stream)
        gpu.wait(gpu.stream)
        gpu.expect(turn + 20, f"turn {turn}")
        libc.mprotect(*page, both)
    gpu.fill(99)
    gpu.copy(gpu.stream)
    gpu.wait(gpu.stream)
    gpu.expect(99, "all may be read")
    must("cuMemHostUnregister", c_void_p(gpu.block))
    del region


def duplex(gpu: Gpu) -> None:
    """Long copies from the device are on their way in another stream."""
    back = gpu.pinned()
    source = gpu.device(BYTES)
    gpu.launch(gpu.stream)
    for turn in range(6):
        must("cuMemsetD8Async", c_uint64(source), turn + 1, c_size_t(BYTES), gpu.other)
        for _ in range(24):
            must("cuMemcpyDtoHAsync_v2", c_void_p(back), c_uint64(source), c_size_t(BYTES), gpu.other)
        gpu.fill(turn + 50)
        gpu.copy(gpu.stream)
        gpu.wait(gpu.stream)
        gpu.expect(turn + 50, f"turn {turn}")
        gpu.wait(gpu.other)
        check(ctypes.string_at(back, BYTES) == bytes([turn + 1]) * BYTES, f"turn {turn}: what came from the device")


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


CASES = (
    loader,
    changed,
    written,
    brought,
    kept,
    late,
    batched,
    polled,
    freed,
    captured,
    again,
    last,
    hidden,
    duplex,
    threads,
)

lib.cuMemFreeHost.argtypes = lib.cuMemHostUnregister.argtypes = [c_void_p]
{case.__name__: case for case in CASES}[sys.argv[1]](Gpu())
print("right")

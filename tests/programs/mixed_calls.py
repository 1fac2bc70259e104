"""Makes calls of many kinds in one session, as a seed says, and looks at the checksums of what they leave in memory:
`mixed_calls.py SECONDS [SEED] [PAUSE_S]`. Frees all that it takes after each piece of work.

Says "under way" once it is, and at the end, or at SIGINT, how many bytes it looked at. The first wrong checksum ends
it.
"""

from __future__ import annotations

import ctypes
import random
import signal
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_float, c_size_t, c_uint32, c_uint64, c_void_p

from cuda import call, kernels, made, must, primary_context

BYTES_MAX = 256 << 10
# More than the pieces that a long copy is cut into.
LONG_BYTES = 5 << 20
WORDS_MAX, BLOCK = 4096, 128
RELAXED = 2
MAPPED = 2
INVALID_VALUE = "CUDA_ERROR_INVALID_VALUE"

# Each word becomes 5 times itself, and 7.
PTX = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry mix(.param .u64 data, .param .u32 count)
{
    .reg .pred %p;
    .reg .u32 %r<5>;
    .reg .u64 %d<3>;
    ld.param.u64 %d0, [data];
    ld.param.u32 %r0, [count];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r1, %r1, %r2, %r3;
    setp.ge.u32 %p, %r1, %r0;
    @%p bra done;
    mul.wide.u32 %d1, %r1, 4;
    add.u64 %d0, %d0, %d1;
    ld.global.u32 %r4, [%d0];
    mad.lo.u32 %r4, %r4, 5, 7;
    st.global.u32 [%d0], %r4;
done:
    ret;
}
"""


class Wrong(SystemExit):
    """Bytes that are not those that were written."""


@contextmanager
def device(size: int) -> Iterator[c_uint64]:
    address = c_uint64()
    must("cuMemAlloc_v2", byref(address), c_size_t(size))
    yield address
    must("cuMemFree_v2", address)


@contextmanager
def new_stream() -> Iterator[c_void_p]:
    stream = made("cuStreamCreate", 1)
    yield stream
    must("cuStreamDestroy_v2", stream)


def look(what: str, found: bytes, wanted: bytes) -> int:
    if zlib.crc32(found) != zlib.crc32(wanted):
        raise Wrong(f"WRONG: {what}, {len(wanted)} bytes")
    return len(wanted)


def mixed(data: bytes, times: int) -> bytes:
    """Returns what the kernel makes of words, launched so many times."""
    words = memoryview(data).cast("I").tolist()
    for _ in range(times):
        words = [(word * 5 + 7) & 0xFFFFFFFF for word in words]
    return b"".join(word.to_bytes(4, "little") for word in words)


def launch(kernel: c_void_p, data: c_uint64, words: int, stream: c_void_p) -> None:
    count = c_uint32(words)
    arguments = (c_void_p * 2)(ctypes.addressof(data), ctypes.addressof(count))
    must("cuLaunchKernel", kernel, -(-words // BLOCK), 1, 1, BLOCK, 1, 1, 0, stream, arguments, None)


def words_of(choice: random.Random) -> bytes:
    return choice.randbytes(4 * choice.randint(1, WORDS_MAX))


def copies(choice: random.Random, _: c_void_p) -> int:
    """There, across, and back, with a part overwritten in between."""
    size = choice.choice([LONG_BYTES, *[choice.randint(1, BYTES_MAX)] * 15])
    sent, length, value = bytearray(choice.randbytes(size)), c_size_t(size), choice.randrange(256)
    begin = choice.randrange(size)
    back = ctypes.create_string_buffer(size)
    with device(size) as one, device(size) as two:
        must("cuMemcpyHtoD_v2", one, bytes(sent), length)
        must("cuMemsetD8_v2", c_uint64(one.value + begin), value, c_size_t(size - begin))
        must("cuMemcpyDtoD_v2", two, one, length)
        must("cuMemcpyDtoH_v2", back, two, length)
    sent[begin:] = bytes([value]) * (size - begin)
    return look("copies", back.raw, bytes(sent))


def in_stream(choice: random.Random, kernel: c_void_p) -> int:
    """Memory of a pool, copies and kernels in the order of a stream, between two events."""
    sent, times = words_of(choice), choice.randint(1, 4)
    back, data, took = ctypes.create_string_buffer(len(sent)), c_uint64(), c_float()
    begin, end = made("cuEventCreate", 0), made("cuEventCreate", 0)
    with new_stream() as stream:
        must("cuMemAllocAsync", byref(data), c_size_t(len(sent)), stream)
        must("cuEventRecord", begin, stream)
        must("cuMemcpyHtoDAsync_v2", data, sent, c_size_t(len(sent)), stream)
        for _ in range(times):
            launch(kernel, data, len(sent) // 4, stream)
        must("cuMemcpyDtoHAsync_v2", back, data, c_size_t(len(sent)), stream)
        must("cuEventRecord", end, stream)
        must("cuMemFreeAsync", data, stream)
        must("cuStreamSynchronize", stream)
        must("cuEventElapsedTime", byref(took), begin, end)
    must("cuEventDestroy_v2", begin)
    must("cuEventDestroy_v2", end)
    return look("in a stream", back.raw, mixed(sent, times))


def in_graph(choice: random.Random, kernel: c_void_p) -> int:
    """A captured kernel, launched several times."""
    sent, times = words_of(choice), choice.randint(1, 4)
    back = ctypes.create_string_buffer(len(sent))
    with device(len(sent)) as data, new_stream() as stream:
        must("cuMemcpyHtoD_v2", data, sent, c_size_t(len(sent)))
        must("cuStreamBeginCapture_v2", stream, RELAXED)
        launch(kernel, data, len(sent) // 4, stream)
        graph, executable = c_void_p(), c_void_p()
        must("cuStreamEndCapture", stream, byref(graph))
        must("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
        for _ in range(times):
            must("cuGraphLaunch", executable, stream)
        must("cuStreamSynchronize", stream)
        must("cuGraphExecDestroy", executable)
        must("cuGraphDestroy", graph)
        must("cuMemcpyDtoH_v2", back, data, c_size_t(len(sent)))
    return look("in a graph", back.raw, mixed(sent, times))


def in_host_memory(choice: random.Random, kernel: c_void_p) -> int:
    """Memory of the program's that a kernel works on."""
    sent, host, data = words_of(choice), c_void_p(), c_uint64()
    must("cuMemHostAlloc", byref(host), c_size_t(len(sent)), MAPPED)
    must("cuMemHostGetDevicePointer_v2", byref(data), host, 0)
    ctypes.memmove(host, sent, len(sent))
    launch(kernel, data, len(sent) // 4, c_void_p())
    must("cuCtxSynchronize")
    found = ctypes.string_at(host, len(sent))
    must("cuMemFreeHost", host)
    return look("in host memory", found, mixed(sent, 1))


def in_a_module(choice: random.Random, _: c_void_p) -> int:
    """A module of its own, gone afterwards."""
    sent, module = words_of(choice), made("cuModuleLoadData", PTX)
    back = ctypes.create_string_buffer(len(sent))
    with device(len(sent)) as data:
        must("cuMemcpyHtoD_v2", data, sent, c_size_t(len(sent)))
        launch(made("cuModuleGetFunction", module, b"mix"), data, len(sent) // 4, c_void_p())
        must("cuMemcpyDtoH_v2", back, data, c_size_t(len(sent)))
    must("cuModuleUnload", module)
    return look("in a module", back.raw, mixed(sent, 1))


def refused(choice: random.Random, _: c_void_p) -> int:
    """Calls that fail, and change nothing."""
    with device(64) as data:
        found = [
            call("cuMemFree_v2", c_uint64(data.value + 1 + choice.randrange(63))),
            call("cuMemAlloc_v2", byref(c_uint64()), c_size_t(0)),
            call("cuStreamCreate", None, 0),
        ]
    if found != [INVALID_VALUE] * len(found):
        raise Wrong(f"WRONG: {found}")
    return 0


WORK = [copies, in_stream, in_graph, in_host_memory, in_a_module, refused]


def main(seconds: float, seed: int, pause_s: float) -> None:
    primary_context()
    [kernel] = kernels(PTX, "mix")
    choice, looked_at, pieces = random.Random(seed), 0, 0
    # No event of threading: a handler that sets it waits for ever if it interrupts a look at it.
    is_over = []
    signal.signal(signal.SIGINT, lambda *_: is_over.append(True))
    print("under way", flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end and not is_over:
        looked_at += choice.choice(WORK)(choice, kernel)
        pieces += 1
        time.sleep(pause_s)
    print(f"{looked_at} bytes right in {pieces} pieces")


if __name__ == "__main__":
    given = sys.argv[1:]
    main(float(given[0]), int((given[1:] or ["1"])[0]), float((given[2:] or ["0"])[0]))

"""Memory of every kind, drawn sizes and kernels for `soak_calls.py`: each piece knows how the program writes and reads
it, and where kernels find it."""

from __future__ import annotations

import ctypes
import mmap
import random
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from ctypes import byref, c_size_t, c_uint32, c_uint64, c_void_p

import numpy as np

from cuda import must
from mixed_calls import BLOCK, Wrong, launch

MAPPED, PORTABLE = 2, 1
ATTACH_GLOBAL = 1
PAGE_BYTES = 4096
COPY_BYTES_MAX = 6 << 20
# Words that a kernel visits at most: an interpreter runs it.
VISITED_MAX = 2048
# After this time words that came after a wait are told from words that did not come.
LATE_S = 0.2

Words = np.ndarray
Address = c_uint64

# Words of `dst`, `stride` apart, become 5 times those of `src`, and 7.
PTX = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry spread(.param .u64 dst, .param .u64 src, .param .u32 count, .param .u32 stride)
{
    .reg .pred %p;
    .reg .u32 %r<6>;
    .reg .u64 %d<4>;
    ld.param.u64 %d0, [dst];
    ld.param.u64 %d1, [src];
    ld.param.u32 %r0, [count];
    ld.param.u32 %r5, [stride];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r1, %r1, %r2, %r3;
    setp.ge.u32 %p, %r1, %r0;
    @%p bra done;
    mul.lo.u32 %r1, %r1, %r5;
    mul.wide.u32 %d2, %r1, 4;
    add.u64 %d0, %d0, %d2;
    add.u64 %d1, %d1, %d2;
    ld.global.u32 %r4, [%d1];
    mad.lo.u32 %r4, %r4, 5, 7;
    st.global.u32 [%d0], %r4;
done:
    ret;
}
"""


def size_of(choice: random.Random, most: int) -> int:
    """A number up to `most`, small ones as often as large ones."""
    return max(1, int(2 ** choice.uniform(0, most.bit_length() - 1)))


def drawn(choice: random.Random, size: int) -> Words:
    return np.frombuffer(choice.randbytes(size), np.uint8).copy()


def words(choice: random.Random, count: int) -> Words:
    return drawn(choice, 4 * count).view(np.uint32)


def made_of(data: Words) -> Words:
    """Returns what a kernel makes of words."""
    return data * np.uint32(5) + np.uint32(7)


def look(what: str, found: Words, wanted: Words) -> int:
    """Compares; returns the number of bytes that were right. Says whether words that are not came later."""
    seen = found.copy()
    if not np.array_equal(seen, wanted):
        wrong = np.nonzero(seen != wanted)[0]
        some = [(int(i), hex(seen[i]), hex(wanted[i])) for i in wrong[:4]]
        time.sleep(LATE_S)
        late = "they came later" if np.array_equal(found, wanted) else "they did not come later"
        raise Wrong(f"WRONG: {what}: {len(wrong)} of {len(wanted)}, last at {wrong[-1]}: {some}; {late}")
    return int(wanted.nbytes)


class Memory:
    """A piece of memory: `host` is where the program reaches it, or 0; `data` is where kernels do, or 0."""

    def __init__(self, kind: str, size: int, host: int, data: int) -> None:
        self.kind, self.size, self.host, self.data = kind, size, host, data

    def bytes(self) -> Words:
        """The program's own view."""
        return np.ctypeslib.as_array((ctypes.c_ubyte * self.size).from_address(self.host))

    def words(self) -> Words:
        return self.bytes()[: self.size // 4 * 4].view(np.uint32)

    def address(self, at: int = 0) -> Address:
        return c_uint64(self.data + at)

    def place(self, at: int = 0) -> c_void_p:
        return c_void_p(self.host + at)


def own_pages(size: int) -> int:
    """Maps pages of this process's own."""
    libc.mmap.restype = c_void_p
    found = libc.mmap(None, c_size_t(size), 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, c_size_t(0))
    assert found not in (None, c_void_p(-1).value), "mmap"
    return int(found)


libc = ctypes.CDLL(None, use_errno=True)


def register(address: int, size: int) -> int:
    """Registers memory; returns where kernels find it."""
    data = c_uint64()
    must("cuMemHostRegister_v2", c_void_p(address), c_size_t(size), MAPPED)
    must("cuMemHostGetDevicePointer_v2", byref(data), c_void_p(address), 0)
    return data.value


@contextmanager
def _device(size: int) -> Iterator[Memory]:
    data = c_uint64()
    must("cuMemAlloc_v2", byref(data), c_size_t(size))
    yield Memory("device", size, 0, data.value)
    must("cuMemFree_v2", data)


@contextmanager
def _pinned(size: int) -> Iterator[Memory]:
    host, data = c_void_p(), c_uint64()
    must("cuMemHostAlloc", byref(host), c_size_t(size), MAPPED | PORTABLE)
    must("cuMemHostGetDevicePointer_v2", byref(data), host, 0)
    yield Memory("pinned", size, host.value or 0, data.value)
    must("cuMemFreeHost", host)


@contextmanager
def _registered(size: int) -> Iterator[Memory]:
    """Neither its beginning nor its end need be that of a page."""
    whole = size + 2 * PAGE_BYTES
    pages = own_pages(whole)
    host = pages + 4 * (size % 777)
    data = register(host, size)
    yield Memory("registered", size, host, data)
    must("cuMemHostUnregister", c_void_p(host))
    libc.munmap(c_void_p(pages), c_size_t(whole))


@contextmanager
def _managed(size: int) -> Iterator[Memory]:
    data = c_uint64()
    must("cuMemAllocManaged", byref(data), c_size_t(size), ATTACH_GLOBAL)
    yield Memory("managed", size, data.value, data.value)
    must("cuMemFree_v2", data)


@contextmanager
def _pageable(size: int) -> Iterator[Memory]:
    whole = ctypes.create_string_buffer(size + 4)
    yield Memory("pageable", size, ctypes.addressof(whole) + size % 4, 0)
    del whole


MADE = {"device": _device, "pinned": _pinned, "registered": _registered, "managed": _managed, "pageable": _pageable}
OF_HOST = ["pinned", "registered", "managed", "pageable"]
OF_KERNELS = ["device", "pinned", "registered", "managed"]


def memory(choice: random.Random, kinds: list[str], size: int) -> AbstractContextManager[Memory]:
    """Memory of one of the kinds, given up at the end of the block."""
    return MADE[choice.choice(kinds)](size)


def spread(kernel: c_void_p, to: int, of: int, count: int, stride: int, stream: c_void_p | None) -> None:
    """Launches the kernel on `count` words that are `stride` words apart."""
    values = (c_uint64(to), c_uint64(of), c_uint32(count), c_uint32(stride))
    arguments = (c_void_p * 4)(*map(ctypes.addressof, values))
    must("cuLaunchKernel", kernel, -(-count // BLOCK), 1, 1, BLOCK, 1, 1, 0, stream, arguments, None)


def mix(kernel: c_void_p, data: int, count: int, stream: c_void_p | None) -> None:
    launch(kernel, c_uint64(data), count, stream)


def set_words(to: int, value: int, count: int, stream: c_void_p | None) -> None:
    must("cuMemsetD32Async", c_uint64(to), c_uint32(value), c_size_t(count), stream)


def fetch(memory: Memory, stream: c_void_p | None) -> Words:
    """The contents when earlier work of the stream is done: the program's view, or a copy of the GPU's memory."""
    if memory.host:
        must("cuStreamSynchronize", stream)
        return memory.bytes().copy()
    out = np.empty(memory.size, np.uint8)
    must("cuMemcpyDtoHAsync_v2", c_void_p(out.ctypes.data), memory.address(), c_size_t(memory.size), stream)
    must("cuStreamSynchronize", stream)
    return out


def send(memory: Memory, data: Words, stream: c_void_p | None) -> None:
    """Gives memory these contents; `data` must stay until the stream's work is done."""
    if memory.host:
        memory.bytes()[:] = data
    else:
        size = c_size_t(memory.size)
        must("cuMemcpyHtoDAsync_v2", memory.address(), c_void_p(data.ctypes.data), size, stream)

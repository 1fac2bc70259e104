"""Registers memory of which the GPU's server has a copy, and memory that it has itself, with CUDA before and after:
prints what is said of each."""

import ctypes
import mmap

from outboard import OutboardError, net

import cuda

BYTES = 1 << 16


def said(memory: object, by: net.Endpoint | None = None) -> str:
    try:
        (by or endpoint).register(memory)
    except OutboardError as error:
        return str(error).partition(": take ")[2] or "not pinned"
    return "taken"


def pin(at: int, size: int = BYTES) -> str:
    return cuda.call("cuMemHostRegister_v2", ctypes.c_void_p(at), ctypes.c_size_t(size), ctypes.c_uint32(0))


def free(at: int) -> str:
    return cuda.call("cuMemFreeHost", ctypes.c_void_p(at))


def unpin(at: int) -> str:
    return cuda.call("cuMemHostUnregister", ctypes.c_void_p(at))


cuda.primary_context()
pages, arena = mmap.mmap(-1, BYTES), mmap.mmap(-1, BYTES)
at, arena_at = (ctypes.addressof(ctypes.c_char.from_buffer(of)) for of in (pages, arena))
print(pin(at + BYTES // 2, BYTES // 4))
pinned, spare = ctypes.c_void_p(), ctypes.c_void_p()
for memory in (pinned, spare):
    cuda.must("cuMemHostAlloc", ctypes.byref(memory), ctypes.c_size_t(BYTES), ctypes.c_uint32(0))
with net.Endpoint() as endpoint:
    print(said((ctypes.c_char * (BYTES // 4)).from_address(at + BYTES // 2)), said(pages))
    print(said((ctypes.c_char * BYTES).from_address(pinned.value)))
    print(said(arena), pin(arena_at + BYTES // 2, BYTES // 4))
    print(unpin(at + BYTES // 2))
    for _ in range(2):
        # One endpoint more has the memory, or would.
        with net.Endpoint() as second:
            said(arena, second)
            said(pages, second)
    print(pin(arena_at, BYTES // 4), unpin(at + BYTES // 2), free(spare.value), free(pinned.value))
print(pin(arena_at, BYTES // 4), unpin(at + BYTES // 2), free(pinned.value))

"""Registers memory of which the GPU's server has a copy, and memory that it has itself: prints what is said of each."""

import ctypes
import mmap

from outboard import OutboardError, net

import cuda

BYTES = 1 << 16


def said(memory: object) -> str:
    try:
        endpoint.register(memory)
    except OutboardError as error:
        return str(error).partition(": take")[2]
    return "taken"


cuda.primary_context()
pages = mmap.mmap(-1, BYTES)
at = ctypes.addressof(ctypes.c_char.from_buffer(pages))
cuda.must("cuMemHostRegister_v2", ctypes.c_void_p(at), ctypes.c_size_t(BYTES), ctypes.c_uint32(0))
pinned = ctypes.c_void_p()
cuda.must("cuMemHostAlloc", ctypes.byref(pinned), ctypes.c_size_t(BYTES), ctypes.c_uint32(0))
with net.Endpoint() as endpoint:
    print(said(pages))
    print(said((ctypes.c_char * BYTES).from_address(pinned.value)))

"""A program that has a GPU's memory: fills it, or looks at what the last one left. The driver's calls alone.

leased_memory.py fill BYTES    fills so many bytes, says `filled N`, and computes until it fails or is ended
leased_memory.py look BYTES    allocates as much, and says how many words have the pattern, and how many are not zero
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

import numpy as np

PATTERN = 0x5EC2E7D1
CHUNK = 1 << 30
cuda = ctypes.CDLL("libcuda.so.1")


def check(status: int, what: str) -> None:
    if status != 0:
        print(f"{what}: error {status}", flush=True)
        os._exit(3)


def open_device() -> None:
    context = ctypes.c_void_p()
    check(cuda.cuInit(0), "cuInit")
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "cuDevicePrimaryCtxRetain")
    check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")


def allocated(wanted: int) -> list[tuple[int, int]]:
    """Returns chunks of memory, as many bytes in all as are wanted, or as there are."""
    chunks = []
    while wanted >= CHUNK // 16:
        size, at = min(wanted, CHUNK), ctypes.c_uint64()
        if cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size)) != 0:
            break
        chunks.append((at.value, size))
        wanted -= size
    return chunks


def fill(wanted: int) -> None:
    chunks = allocated(wanted)
    for at, size in chunks:
        check(cuda.cuMemsetD32_v2(ctypes.c_uint64(at), PATTERN, ctypes.c_size_t(size // 4)), "cuMemsetD32_v2")
    check(cuda.cuCtxSynchronize(), "cuCtxSynchronize")
    print("filled", sum(size for _, size in chunks), flush=True)
    word = ctypes.c_uint32()
    while True:
        check(cuda.cuMemcpyDtoH_v2(ctypes.byref(word), ctypes.c_uint64(chunks[0][0]), 4), "cuMemcpyDtoH_v2")
        if word.value != PATTERN:
            print(f"read {word.value:#x}", flush=True)
            os._exit(4)
        time.sleep(0.01)


def look(wanted: int) -> None:
    host = np.empty(CHUNK // 4, dtype=np.uint32)
    same = other = seen = 0
    for at, size in allocated(wanted):
        to = host.ctypes.data_as(ctypes.c_void_p)
        check(cuda.cuMemcpyDtoH_v2(to, ctypes.c_uint64(at), ctypes.c_size_t(size)), "cuMemcpyDtoH_v2")
        words = host[: size // 4]
        same += int(np.count_nonzero(words == PATTERN))
        other += int(np.count_nonzero(words))
        seen += size
    print("looked", seen, same, other, flush=True)


open_device()
{"fill": fill, "look": look}[sys.argv[1]](int(sys.argv[2]))

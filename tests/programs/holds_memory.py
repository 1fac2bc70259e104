"""Takes memory as it is told on standard input, a line each: the way and MiB, or `free`. Answers each with a status.

Ways: `device` (cuMemAlloc), `small` (cuMemAlloc of 512 KiB at a time), `created` (cuMemCreate), `pool`
(cuMemAllocAsync), `host` (registered memory that kernels would read). `works` checks that the session does."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint64, c_ulonglong, c_void_p
from typing import ClassVar

from cuda import call, must, primary_context

MIB = 1 << 20
PAGE_BYTES = 4096

Free = Callable[[], None]


class Properties(ctypes.Structure):
    """`CUmemAllocationProp`"""

    _fields_: ClassVar = [
        ("type", c_int),
        ("handle_types", c_int),
        ("location_type", c_int),
        ("location", c_int),
        ("windows", c_void_p),
        ("flags", c_ubyte * 8),
    ]


def device(size: int) -> tuple[str, list[Free]]:
    address = c_uint64()
    status = call("cuMemAlloc_v2", byref(address), c_size_t(size))
    return status, [lambda: must("cuMemFree_v2", address)]


def small(size: int) -> tuple[str, list[Free]]:
    taken: list[Free] = []
    for _ in range(2 * size // MIB):
        status, free = device(MIB // 2)
        if status != "CUDA_SUCCESS":
            for one in taken:
                one()
            return status, []
        taken += free
    return "CUDA_SUCCESS", taken


def created(size: int) -> tuple[str, list[Free]]:
    handle, properties = c_ulonglong(), Properties(1, 0, 1, 0)
    status = call("cuMemCreate", byref(handle), c_size_t(size), byref(properties), c_ulonglong(0))
    return status, [lambda: must("cuMemRelease", handle)]


def pool(size: int) -> tuple[str, list[Free]]:
    address = c_uint64()
    status = call("cuMemAllocAsync", byref(address), c_size_t(size), None)

    def free() -> None:
        must("cuMemFreeAsync", address, None)
        must("cuCtxSynchronize")

    return status, [free]


def host(size: int) -> tuple[str, list[Free]]:
    source = ctypes.create_string_buffer(size + PAGE_BYTES)
    start = c_void_p((ctypes.addressof(source) + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES)
    status = call("cuMemHostRegister_v2", start, c_size_t(size), 2)
    if status != "CUDA_SUCCESS":
        return status, []
    status = call("cuMemHostGetDevicePointer_v2", byref(c_uint64()), start, 0)

    def free() -> None:
        must("cuMemHostUnregister", start)
        source[0] = b"\0"

    if status != "CUDA_SUCCESS":
        free()
    return status, [free]


def works() -> str:
    first, address = c_ubyte(), c_uint64()
    must("cuMemAlloc_v2", byref(address), c_size_t(64))
    must("cuMemsetD8_v2", address, c_ubyte(7), c_size_t(64))
    must("cuMemcpyDtoH_v2", byref(first), address, c_size_t(1))
    must("cuMemFree_v2", address)
    must("cuCtxSynchronize")
    return "works" if first.value == 7 else "broken"


def main() -> None:
    primary_context()
    held: list[Free] = []
    print("ready", flush=True)
    for line in sys.stdin:
        way, *size = line.split()
        if way == "free":
            for free in held:
                free()
            held.clear()
            must("cuCtxSynchronize")
            answer = "CUDA_SUCCESS"
        elif way == "works":
            answer = works()
        else:
            answer, free = globals()[way](int(size[0]) * MIB)
            held += free if answer == "CUDA_SUCCESS" else []
        print(answer, flush=True)


main()

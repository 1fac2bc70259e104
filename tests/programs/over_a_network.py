"""Times calls over a network, in seconds, by the driver API alone: run as `over_a_network.py CALLS
BYTES`.

Every copy is timed until it is done, and its bytes are checked afterwards.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable
from ctypes import byref, c_size_t, c_uint, c_uint64, c_void_p

from cuda import kernels, must, primary_context

PTX = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry copy(.param .u64 to, .param .u64 from)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [to];
    ld.param.u64 %rd2, [from];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd1, %rd1, %rd3;
    add.s64 %rd2, %rd2, %rd3;
    ld.global.u32 %r2, [%rd2];
    st.global.u32 [%rd1], %r2;
    ret;
}
"""
THREADS = 64


def timed(work: Callable[[], None]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def finish() -> None:
    must("cuCtxSynchronize")


def main(calls: int, length: int) -> None:
    primary_context()
    [kernel] = kernels(PTX, "copy")
    device, other = c_uint64(), c_uint64()
    must("cuMemAlloc_v2", byref(device), c_size_t(length))
    must("cuMemAlloc_v2", byref(other), c_size_t(length))
    pinned = c_void_p()
    must("cuMemAllocHost_v2", byref(pinned), c_size_t(length))
    pageable = ctypes.create_string_buffer(length)
    first = bytes(range(251)) * (length // 251 + 1)
    second = first[7:]
    size = c_size_t(length)

    def launch(to: int | None, source: int | None) -> None:
        pair = (c_uint64 * 2)(to or 0, source or 0)
        at = ctypes.addressof(pair)
        arguments = (c_void_p * 2)(at, at + 8)
        grid = [c_uint(n) for n in (1, 1, 1, THREADS, 1, 1, 0)]
        must("cuLaunchKernel", kernel, *grid, c_void_p(), arguments, c_void_p())

    def check(memory: object, expected: bytes) -> None:
        assert ctypes.string_at(memory, length) == expected[:length], "the bytes are wrong"  # type: ignore[arg-type]

    # Warms up: some questions are asked only once.
    launch(device.value, other.value)
    finish()
    times = {}

    def launches() -> None:
        for _ in range(calls):
            launch(device.value, other.value)

    times["launches"] = timed(launches)
    finish()

    def waits() -> None:
        for _ in range(calls):
            launch(device.value, other.value)
            finish()

    times["waits"] = timed(waits)

    ctypes.memmove(pageable, first, length)

    def in_pageable() -> None:
        must("cuMemcpyHtoD_v2", device, pageable, size)
        finish()

    times["in, pageable"] = timed(in_pageable)
    times["out, pinned"] = timed(lambda: must("cuMemcpyDtoH_v2", pinned, device, size))
    check(pinned, first)

    ctypes.memmove(pinned, second, length)

    def in_pinned() -> None:
        must("cuMemcpyHtoDAsync_v2", device, pinned, size, c_void_p())
        finish()

    times["in, pinned"] = timed(in_pinned)
    times["out, pageable"] = timed(lambda: must("cuMemcpyDtoH_v2", pageable, device, size))
    check(pageable, second)

    def out_detached() -> None:
        must("cuMemcpyDtoHAsync_v2", pinned, device, size, c_void_p())
        finish()

    ctypes.memset(pinned, 0, length)
    times["out, pinned, not waited for"] = timed(out_detached)
    check(pinned, second)

    # Memory of the program that a kernel reads and writes.
    ctypes.memmove(pinned, first, length)

    def kernel_reads() -> None:
        launch(device.value, pinned.value)
        finish()

    times["in, by a kernel"] = timed(kernel_reads)
    words = ctypes.create_string_buffer(4 * THREADS)
    must("cuMemcpyDtoH_v2", words, device, c_size_t(4 * THREADS))
    assert words.raw == first[: 4 * THREADS], "the kernel read something else"
    print(json.dumps(times))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

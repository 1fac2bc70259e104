"""Copies to the device, each waited for in its stream, before a kernel of another stream: `waited_copies.py ROUNDS`."""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

from cuda import kernels, must, primary_context

PTX = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry add(.param .u64 sum, .param .u64 more)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [sum];
    ld.param.u64 %rd2, [more];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd1, %rd1, %rd3;
    add.s64 %rd2, %rd2, %rd3;
    ld.global.u32 %r2, [%rd1];
    ld.global.u32 %r3, [%rd2];
    add.u32 %r2, %r2, %r3;
    st.global.u32 [%rd1], %r2;
    ret;
}
"""
THREADS = 256
NON_BLOCKING = 1


def main(rounds: int) -> None:
    primary_context()
    [kernel] = kernels(PTX, "add")
    copying, computing, total, more = c_void_p(), c_void_p(), c_uint64(), c_uint64()
    host = (c_int * THREADS)()
    size = c_size_t(ctypes.sizeof(host))
    for stream in (copying, computing):
        must("cuStreamCreate", byref(stream), NON_BLOCKING)
    for memory in (total, more):
        must("cuMemAlloc_v2", byref(memory), size)
    arguments = (c_void_p * 2)(*(ctypes.cast(byref(memory), c_void_p) for memory in (total, more)))
    for number in range(rounds):
        for memory, value in ((total, number), (more, 1000)):
            host[:] = [value] * THREADS
            must("cuMemcpyHtoDAsync_v2", memory, host, size, copying)
            must("cuStreamSynchronize", copying)
            # The copy is over: its memory may change.
            host[:] = [-1] * THREADS
        must("cuLaunchKernel", kernel, 1, 1, 1, THREADS, 1, 1, 0, computing, arguments, c_void_p())
        must("cuMemcpyDtoHAsync_v2", host, total, size, computing)
        must("cuStreamSynchronize", computing)
        assert set(host) == {number + 1000}, f"round {number}: {sorted(set(host))}"
    print("right")


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""Starts a kernel and then makes no call at all, but polls memory that the kernel writes."""

from __future__ import annotations

import ctypes
import time
from ctypes import byref, c_size_t, c_uint32, c_void_p

from cuda import kernels, must, primary_context

PTX = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry tell(.param .u64 where)
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [where];
    mov.u32 %r1, 42;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""
WAIT_S_MAX = 10


def main() -> None:
    pinned = c_void_p()
    primary_context()
    [kernel] = kernels(PTX, "tell")
    must("cuMemHostAlloc", byref(pinned), c_size_t(4096), 2)
    word = c_uint32.from_address(pinned.value or 0)
    arguments = (c_void_p * 1)(ctypes.cast(byref(pinned), c_void_p))
    for _ in range(3):
        word.value = 0
        must("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, c_void_p(), arguments, c_void_p())
        end = time.monotonic() + WAIT_S_MAX
        while word.value != 42:
            assert time.monotonic() < end, "the kernel did not run"
    print("the kernel ran")


if __name__ == "__main__":
    main()

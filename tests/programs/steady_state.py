"""Runs a program's steady state by the driver API alone: `steady_state.py ITERATIONS [LAUNCHES]`."""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p

from cuda import kernels, must, primary_context

PTX = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 data, .param .f32 factor)
{
    .reg .f32 %f<3>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [data];
    ld.param.f32 %f1, [factor];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.f32 %f2, [%rd3];
    mul.f32 %f2, %f2, %f1;
    st.global.f32 [%rd3], %f2;
    ret;
}
"""
THREADS = 64
LAUNCHES = int(sys.argv[2]) if len(sys.argv) > 2 else 4


def main(iterations: int) -> None:
    stream, data = c_void_p(), c_uint64()
    primary_context()
    [kernel] = kernels(PTX, "scale")
    event = c_void_p()
    must("cuEventCreate", byref(event), 0)
    host = (c_float * THREADS)()
    number, free, total = c_int(), c_size_t(), c_size_t()
    # One round of warm-up, since kernel attributes and occupancy are asked once.
    for _iteration in range(iterations + 1):
        must("cuMemAlloc_v2", byref(data), 8 << 20)
        must("cuStreamCreate", byref(stream), 1)
        for index in range(THREADS):
            host[index] = index
        must("cuMemcpyHtoD_v2", data, host, ctypes.sizeof(host))
        must("cuMemsetD8Async", c_uint64(data.value + 4096), c_uint(7), c_size_t(64), c_void_p())
        factor = c_float(2.0)
        arguments = (c_void_p * 2)(ctypes.cast(byref(data), c_void_p), ctypes.cast(byref(factor), c_void_p))
        for _ in range(LAUNCHES):
            must("cuLaunchKernel", kernel, 1, 1, 1, THREADS, 1, 1, 0, c_void_p(), arguments, c_void_p())
        must("cuEventRecord", event, c_void_p())
        must("cuCtxGetCurrent", byref(c_void_p()))
        must("cuCtxGetDevice", byref(number))
        must("cuFuncGetAttribute", byref(number), 0, kernel)
        must("cuDeviceGetAttribute", byref(number), 1, 0)
        must("cuStreamIsCapturing", c_void_p(), byref(number))
        must("cuPointerGetAttribute", byref(c_int()), 2, data)
        must("cuOccupancyMaxActiveBlocksPerMultiprocessor", byref(number), kernel, 64, c_size_t(0))
        must("cuMemGetInfo_v2", byref(free), byref(total))
        must("cuMemcpyDtoH_v2", host, data, ctypes.sizeof(host))
        assert [host[i] for i in range(THREADS)] == [i * 2.0**LAUNCHES for i in range(THREADS)]
        must("cuStreamDestroy_v2", stream)
        must("cuMemFree_v2", data)
        must("cuCtxSynchronize")


if __name__ == "__main__":
    main(int(sys.argv[1]))

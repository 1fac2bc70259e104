"""Starts 100 works of each kind, each kind of another size, and goes on in a second context."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_size_t, c_ubyte, c_uint, c_uint64, c_ushort

from cuda import lib, made, must, primary_context

at = c_uint64()
primary_context()
must("cuMemAlloc_v2", byref(at), c_size_t(1 << 16))
stream = made("cuStreamCreate", 1)
here = ctypes.create_string_buffer(4096)
far = c_uint64(at.value + 4096)
for _ in range(100):
    must("cuMemcpyHtoD_v2", at, here, c_size_t(100))
    must("cuMemcpyDtoH_v2_ptds", here, at, c_size_t(200))
    must("cuMemcpyDtoDAsync_v2", far, at, c_size_t(300), stream)
    must("cuMemcpy", at, c_uint64(ctypes.addressof(here)), c_size_t(400))
    must("cuMemsetD8_v2", at, c_ubyte(1), c_size_t(500))
    must("cuMemsetD16Async", at, c_ushort(1), c_size_t(300), stream)
    must("cuMemsetD2D32_v2", at, c_size_t(64), c_uint(1), c_size_t(7), c_size_t(25))
    must("cuStreamSynchronize", stream)
must("cuCtxSynchronize")
# It fails, and is no work.
assert lib.cuMemcpyHtoD_v2(c_uint64(8), here, c_size_t(100)) != 0
must("cuDevicePrimaryCtxRelease_v2", 0)
must("cuCtxSetCurrent", made("cuDevicePrimaryCtxRetain", 0))
must("cuMemAlloc_v2", byref(at), c_size_t(1 << 16))
must("cuMemsetD8_v2", at, c_ubyte(1), c_size_t(800))
must("cuCtxSynchronize")

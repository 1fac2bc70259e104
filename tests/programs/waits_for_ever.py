"""Waits for a stream that waits for a value that nobody writes, until it is killed."""

from __future__ import annotations

from ctypes import byref, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p

from cuda import must, primary_context

at, stream = c_uint64(), c_void_p()
primary_context()
must("cuStreamCreate", byref(stream), 1)
must("cuMemAlloc_v2", byref(at), c_size_t(4))
must("cuMemsetD8_v2", at, c_ubyte(0), c_size_t(4))
must("cuStreamWaitValue32_v2", stream, at, c_uint(1), c_uint(0))
must("cuStreamSynchronize", stream)

"""Waits for the server 20 times; prints their time after another that is not it."""

from __future__ import annotations

import time
from ctypes import byref, c_size_t, c_uint32, c_uint64

from cuda import must, primary_context

at, word = c_uint64(), c_uint32()
primary_context()
must("cuMemAlloc_v2", byref(at), c_size_t(4))
print("took 999 ms")
start = time.perf_counter()
for _ in range(20):
    must("cuMemcpyDtoH_v2", byref(word), at, c_size_t(4))
print(f"took {(time.perf_counter() - start) * 1e3} ms")

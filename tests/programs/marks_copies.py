"""Marks five iterations, each with one copy to the device."""

from __future__ import annotations

from ctypes import byref, c_size_t, c_uint64

import outboard

from cuda import must, primary_context

memory = c_uint64()
primary_context()
must("cuMemAlloc_v2", byref(memory), c_size_t(4096))
for _ in range(5):
    with outboard.mark("an iteration"):
        must("cuMemcpyHtoD_v2", memory, b"x" * 64, c_size_t(64))

"""Works, and then does nothing until its standard input ends: run as `idles.py`."""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_size_t, c_uint, c_uint64, c_void_p

from cuda import lib, must, primary_context

# A long copy, for which tcp opens further connections if there are enough cores.
BYTES = 4 << 20


def main() -> None:
    stream, event, pinned = c_void_p(), c_void_p(), c_void_p()
    data = c_uint64()
    primary_context()
    must("cuStreamCreate", byref(stream), 1)
    must("cuEventCreate", byref(event), 0)
    must("cuMemAlloc_v2", byref(data), c_size_t(BYTES))
    must("cuMemHostAlloc", byref(pinned), c_size_t(BYTES), 0)
    host = ctypes.create_string_buffer(BYTES)
    for _ in range(20):
        must("cuMemsetD8Async", data, c_uint(7), c_size_t(BYTES), stream)
        must("cuMemcpyDtoHAsync_v2", pinned, data, c_size_t(BYTES), stream)
        must("cuEventRecord", event, stream)
        lib.cuEventQuery(event)
        must("cuStreamSynchronize", stream)
        must("cuMemcpyDtoH_v2", host, data, c_size_t(BYTES))
    must("cuCtxSynchronize")
    print("idle", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()

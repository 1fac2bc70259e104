"""Works, and then does nothing until its standard input ends: run as `idles.py`."""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_size_t, c_uint, c_uint64, c_void_p

# A long copy, for which tcp opens further connections if there are enough cores.
BYTES = 4 << 20

cuda = ctypes.CDLL("libcuda.so.1")


def check(name: str, *args: object) -> None:
    status = getattr(cuda, name)(*args)
    assert status == 0, f"{name}: {status}"


def main() -> None:
    context, stream, event, pinned = c_void_p(), c_void_p(), c_void_p(), c_void_p()
    data = c_uint64()
    check("cuInit", 0)
    check("cuDevicePrimaryCtxRetain", byref(context), 0)
    check("cuCtxSetCurrent", context)
    check("cuStreamCreate", byref(stream), 1)
    check("cuEventCreate", byref(event), 0)
    check("cuMemAlloc_v2", byref(data), c_size_t(BYTES))
    check("cuMemHostAlloc", byref(pinned), c_size_t(BYTES), 0)
    host = ctypes.create_string_buffer(BYTES)
    for _ in range(20):
        check("cuMemsetD8Async", data, c_uint(7), c_size_t(BYTES), stream)
        check("cuMemcpyDtoHAsync_v2", pinned, data, c_size_t(BYTES), stream)
        check("cuEventRecord", event, stream)
        cuda.cuEventQuery(event)
        check("cuStreamSynchronize", stream)
        check("cuMemcpyDtoH_v2", host, data, c_size_t(BYTES))
    check("cuCtxSynchronize")
    print("idle", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()

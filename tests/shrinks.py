"""A hostile program: removes pinned memory that its server has mapped, then copies it. Run with
`shrinks.c` preloaded."""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

BYTES = 1 << 20

cuda, own = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None)


def main() -> None:
    context, pinned, memory, made = c_void_p(), c_void_p(), c_uint64(), c_int()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(byref(memory), c_size_t(BYTES)) == 0
    allocated = cuda.cuMemHostAlloc(byref(pinned), c_size_t(BYTES), 0)
    shrunk = own.take_away(byref(made))
    print(allocated, shrunk, made.value > 0, flush=True)
    if allocated == 0:
        print(cuda.cuMemcpyHtoD_v2(memory, pinned, c_size_t(BYTES)), cuda.cuCtxSynchronize(), flush=True)
    # This process may have lost pages of its own.
    os._exit(0)


if __name__ == "__main__":
    main()

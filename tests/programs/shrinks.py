"""A hostile program: removes pinned memory that its server has mapped, then copies it. Run with
`shrinks.c` preloaded."""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

from cuda import lib, must, primary_context

BYTES = 1 << 20

own = ctypes.CDLL(None)


def main() -> None:
    pinned, memory, made = c_void_p(), c_uint64(), c_int()
    primary_context()
    must("cuMemAlloc_v2", byref(memory), c_size_t(BYTES))
    allocated = lib.cuMemHostAlloc(byref(pinned), c_size_t(BYTES), 0)
    shrunk = own.take_away(byref(made))
    print(allocated, shrunk, made.value > 0, flush=True)
    if allocated == 0:
        print(lib.cuMemcpyHtoD_v2(memory, pinned, c_size_t(BYTES)), lib.cuCtxSynchronize(), flush=True)
    # This process may have lost pages of its own.
    os._exit(0)


if __name__ == "__main__":
    main()

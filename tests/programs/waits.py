"""Waits for the GPU, then queries an event repeatedly: `waits.py ROUNDS QUERIES`."""

from __future__ import annotations

import ctypes
import sys

from cuda import must, primary_context


def main(rounds: int, queries: int) -> None:
    data, event = ctypes.c_uint64(), ctypes.c_void_p()
    primary_context()
    must("cuMemAlloc_v2", ctypes.byref(data), ctypes.c_size_t(64))
    must("cuEventCreate", ctypes.byref(event), 0)
    for number in range(rounds):
        must("cuMemsetD8Async", data, number % 256, ctypes.c_size_t(64), None)
        if queries > 0:
            must("cuEventRecord", event, None)
        must("cuCtxSynchronize")
        for _ in range(queries):
            must("cuEventQuery", event)
    print("right")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

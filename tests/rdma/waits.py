"""Waits for the GPU, then queries an event repeatedly: `waits.py ROUNDS QUERIES`."""

from __future__ import annotations

import ctypes
import sys

cuda = ctypes.CDLL("libcuda.so.1")


def do(name: str, *arguments: object) -> None:
    status = getattr(cuda, name)(*arguments)
    if status != 0:
        raise SystemExit(f"{name}: error {status}")


def main(rounds: int, queries: int) -> None:
    context, data, event = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p()
    do("cuInit", 0)
    do("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    do("cuCtxSetCurrent", context)
    do("cuMemAlloc_v2", ctypes.byref(data), ctypes.c_size_t(64))
    do("cuEventCreate", ctypes.byref(event), 0)
    for number in range(rounds):
        do("cuMemsetD8Async", data, number % 256, ctypes.c_size_t(64), None)
        if queries > 0:
            do("cuEventRecord", event, None)
        do("cuCtxSynchronize")
        for _ in range(queries):
            do("cuEventQuery", event)
    print("right")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

"""Prints the seconds that each kind of work takes, as JSON: `work_takes.py COUNT LENGTH`. COUNT works of a kind are
timed, and one long copy of LENGTH bytes."""

from __future__ import annotations

import ctypes
import json
import sys
import time
from ctypes import byref, c_size_t, c_ubyte, c_uint64

from cuda import must, primary_context

SHORT = c_size_t(16)


def once(count: int, function: str, *arguments: object) -> float:
    start = time.perf_counter()
    for _ in range(count):
        must(function, *arguments)
    must("cuCtxSynchronize")
    return time.perf_counter() - start


def main(count: int, length: int) -> None:
    def together(count: int, function: str, *arguments: object) -> float:
        # The least of several: a busy machine only adds.
        return min(once(count, function, *arguments) for _ in range(3))

    def one(function: str, *arguments: object) -> float:
        return min(once(1, function, *arguments) for _ in range(count))

    primary_context()
    at, here = c_uint64(), ctypes.create_string_buffer(length)
    must("cuMemAlloc_v2", byref(at), c_size_t(length))
    must("cuMemsetD8_v2", at, c_ubyte(1), SHORT)
    must("cuCtxSynchronize")
    times = {
        "memset": together(count, "cuMemsetD8_v2", at, c_ubyte(9), SHORT),
        "to host": one("cuMemcpyDtoH_v2", here, at, SHORT),
        "to device": one("cuMemcpyHtoD_v2", at, here, SHORT),
        "to device, long": together(1, "cuMemcpyHtoD_v2", at, here, c_size_t(length)),
    }
    print(json.dumps(times))
    assert here.raw[:16] == bytes([9]) * 16


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

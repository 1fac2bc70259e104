"""Copies a pattern to the device and back for each line of input, and says whether every byte is right; or, if a call
fails, its status, and ends."""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_size_t, c_uint64

from cuda import lib, must, primary_context

LENGTH = 3 << 20


def main() -> None:
    primary_context()
    at = c_uint64()
    must("cuMemAlloc_v2", byref(at), c_size_t(LENGTH))
    print("ready", flush=True)
    for number, _ in enumerate(sys.stdin):
        pattern = bytes((number + i * 7) & 0xFF for i in range(256)) * (LENGTH // 256)
        there, back = ctypes.create_string_buffer(pattern, LENGTH), ctypes.create_string_buffer(LENGTH)
        status = lib.cuMemcpyHtoD_v2(at, there, c_size_t(LENGTH)) or lib.cuMemcpyDtoH_v2(back, at, c_size_t(LENGTH))
        if status:
            print("failed", status, flush=True)
            return
        print("right" if back.raw == pattern else "wrong", flush=True)


if __name__ == "__main__":
    main()

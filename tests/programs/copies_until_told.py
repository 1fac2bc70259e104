"""Copies 64 MiB there and back until a copy fails, and prints the status of that one."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_size_t, c_uint64

from cuda import lib, must, primary_context

LENGTH = 64 << 20


def main() -> None:
    primary_context()
    at, memory = c_uint64(), ctypes.create_string_buffer(LENGTH)
    must("cuMemAlloc_v2", byref(at), c_size_t(LENGTH))
    print("ready", flush=True)
    status = 0
    while status == 0:
        status = lib.cuMemcpyHtoD_v2(at, memory, c_size_t(LENGTH)) or lib.cuMemcpyDtoH_v2(memory, at, c_size_t(LENGTH))
    print("told", status)


if __name__ == "__main__":
    main()

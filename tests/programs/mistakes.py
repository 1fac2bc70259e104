"""Programs with a mistake that no GPU reports: run as `mistakes.py CASE [correct]`. Prints the
program's results."""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_int, c_uint64, c_void_p
from pathlib import Path

from cuda import call, must

PTX = Path(__file__).resolve().parents[2] / "crates" / "ptx" / "tests" / "all" / "data" / "check.ptx"


def allocate(ints: int, zeroed: bool = True) -> c_uint64:
    pointer = c_uint64()
    must("cuMemAlloc_v2", byref(pointer), 4 * ints)
    if zeroed:
        must("cuMemsetD32_v2", pointer, 0, ints)
    return pointer


class Program:
    def __init__(self) -> None:
        must("cuInit", 0)
        context = c_void_p()
        must("cuDevicePrimaryCtxRetain", byref(context), 0)
        must("cuCtxSetCurrent", context)
        self.module = c_void_p()
        must("cuModuleLoadData", byref(self.module), PTX.read_bytes() + b"\0")

    def run(self, kernel: str, blocks: int, threads: int, *arguments: object) -> str:
        """Launches a kernel and waits; returns the status of both."""
        function = c_void_p()
        must("cuModuleGetFunction", byref(function), self.module, kernel.encode())
        places = (c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        stream = c_void_p()
        must("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, stream, places, None)
        return call("cuCtxSynchronize")


def first(pointer: c_uint64) -> int:
    value = c_int()
    must("cuMemcpyDtoH_v2", byref(value), pointer, 4)
    return value.value


def main(case: str, correct: bool) -> None:
    program, flag = Program(), c_int(correct)
    if case == "lost_update":
        counter = allocate(1)
        print(program.run(case, 16, 1, counter, flag), first(counter))
    elif case == "unwritten":
        source, target = allocate(100, zeroed=correct), allocate(100)
        print(program.run("copy_ints", 1, 128, source, target, c_int(100)))
    elif case == "beyond":
        source, target = allocate(99), allocate(100)
        print(program.run("copy_ints", 1, 128, source, target, c_int(99 if correct else 100)))
    elif case == "after_free":
        source, target = allocate(100), allocate(100)
        if not correct:
            must("cuMemFree_v2", source)
            allocate(100)
        print(program.run("copy_ints", 1, 128, source, target, c_int(100)))
    else:
        print(program.run(case, 1, 64, allocate(64), flag))


if __name__ == "__main__":
    main(sys.argv[1], "correct" in sys.argv[2:])

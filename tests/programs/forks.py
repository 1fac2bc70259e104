"""Forks while calls are buffered; the child ends by exit(). Run as `forks.py STATS`: prints the
results."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import time
from ctypes import byref, c_int, c_uint64, c_void_p
from pathlib import Path

from cuda import kernels, must, primary_context

CHILD_S_MAX = 20
ADDED = 5

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 where)
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [where];
    atom.global.add.u32 %r1, [%rd1], 1;
    ret;
}
"""


def child_ends(folder: Path) -> str:
    """Forks a child that opens files, which reuse the numbers of descriptors closed in it, and
    calls exit()."""
    child = os.fork()
    if child == 0:
        for number in range(64):
            os.open(folder / str(number), os.O_CREAT | os.O_RDWR)
        ctypes.CDLL(None).exit(0)
    deadline = time.monotonic() + CHILD_S_MAX
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return f"exit {os.waitstatus_to_exitcode(status)}"
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return "hangs"


def main(stats: Path) -> None:
    counter, value = c_uint64(), c_int()
    primary_context()
    [function] = kernels(PTX + b"\0", "add")
    must("cuMemAlloc_v2", byref(counter), 4)
    must("cuMemsetD32_v2", counter, 0, ctypes.c_size_t(1))
    must("cuCtxSynchronize")
    arguments = (c_void_p * 1)(ctypes.addressof(counter))

    def add() -> None:
        for _ in range(ADDED):
            must("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for _ in range(20):
            add()
            print(child_ends(folder), sum(file.stat().st_size for file in folder.iterdir()), stats.exists())
    add()
    must("cuMemcpyDtoH_v2", byref(value), counter, ctypes.c_size_t(4))
    print(value.value)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Frees pinned memory into which a copy is on its way that no wait for the current context covers. Prints `right`.

frees_under_copies.py context|none|function
"""

from __future__ import annotations

import sys
import threading
import time
from ctypes import CFUNCTYPE, byref, c_size_t, c_ubyte, c_uint64, c_void_p

from cuda import lib, made, must, primary_context

BYTES = 1 << 20
NON_BLOCKING = 1
HostFunction = CFUNCTYPE(None, c_void_p)


@HostFunction
def slow(_: object) -> None:
    time.sleep(0.3)


@HostFunction
def frees(_: object) -> None:
    # Not before the copy is asked for: that would be the program's own fault.
    asked.wait()
    must("cuMemFreeHost", memory)
    freed.append(True)


asked = threading.Event()
freed: list[bool] = []
part = sys.argv[1]
lib.cuMemFreeHost.argtypes = [c_void_p]
first = primary_context()
must("cuCtxSynchronize")
second = made("cuCtxCreate_v2", 0, 0)
stream, source, memory = made("cuStreamCreate", NON_BLOCKING), c_uint64(), c_void_p()
must("cuMemAlloc_v2", byref(source), c_size_t(BYTES))
must("cuMemsetD8_v2", source, c_ubyte(7), c_size_t(BYTES))
must("cuMemAllocHost_v2", byref(memory), c_size_t(BYTES))
must("cuCtxSynchronize")
must("cuLaunchHostFunc", stream, frees if part == "function" else slow, None)
must("cuMemcpyDtoHAsync_v2", memory, source, c_size_t(BYTES), stream)
asked.set()
if part != "function":
    must("cuCtxSetCurrent", first if part == "context" else None)
    must("cuMemFreeHost", memory)
    must("cuCtxSetCurrent", second)
must("cuStreamSynchronize", stream)
if part == "function" and not freed:
    raise SystemExit("WRONG: the host function did not run")
print("right")

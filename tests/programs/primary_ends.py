"""The end of a primary context and its next holder: run as `primary_ends.py WHAT`.

`lost`: the context is first retained while another one is lost, and works before and after the end of that one.
`stored`: a runtime's function, called at the context's end, waits for a thread that retains the context.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import uuid
from ctypes import byref, c_size_t, c_uint64, c_void_p

from cuda import lib, made, must
from faults import ILLEGAL_ADDRESS, faults

BYTES = 256
# Tools and runtimes ask for this table.
CONTEXT_STORAGE = uuid.UUID("c693336e-1121-df11-a8c3-68f355d89593").bytes


def hold() -> int:
    context = c_void_p()
    return lib.cuDevicePrimaryCtxRetain(byref(context), 0) or lib.cuCtxSetCurrent(context)


def use(value: int) -> int:
    """Fills memory and copies it back; returns the first error."""
    memory, back = c_uint64(), (ctypes.c_ubyte * BYTES)()
    status = (
        lib.cuMemAlloc_v2(byref(memory), c_size_t(BYTES))
        or lib.cuMemsetD8Async(memory, value, c_size_t(BYTES), c_void_p())
        or lib.cuCtxSynchronize()
        or lib.cuMemcpyDtoH_v2(back, memory, c_size_t(BYTES))
        or lib.cuMemFree_v2(memory)
    )
    if not status and bytes(back) != bytes([value]) * BYTES:
        return -1
    return int(status)


def retains_while_another_is_lost() -> None:
    other = made("cuCtxCreate_v2", 0, 0)
    faults(0)
    assert lib.cuCtxSynchronize() == ILLEGAL_ADDRESS
    assert hold() == 0 and use(1) == 0
    must("cuCtxDestroy_v2", other)
    assert use(2) == 0
    must("cuDevicePrimaryCtxRelease_v2", 0)


def ends_by_a_function_that_waits() -> None:
    end = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_void_p)
    results: list[int] = []

    def retains() -> None:
        results.append(hold())

    def at_end(*_: object) -> None:
        thread = threading.Thread(target=retains)
        thread.start()
        thread.join()

    table = c_void_p()
    must("cuGetExportTable", byref(table), CONTEXT_STORAGE)
    put_type = ctypes.CFUNCTYPE(ctypes.c_int, c_void_p, c_void_p, c_void_p, end)
    put = put_type(ctypes.cast(table, ctypes.POINTER(c_void_p))[0] or 0)
    function = end(at_end)
    assert hold() == 0
    assert put(None, c_void_p(1), c_void_p(2), function) == 0
    must("cuDevicePrimaryCtxRelease_v2", 0)
    assert results == [0]
    must("cuDevicePrimaryCtxRelease_v2", 0)


def main() -> None:
    must("cuInit", 0)
    {"lost": retains_while_another_is_lost, "stored": ends_by_a_function_that_waits}[sys.argv[1]]()
    # The context is made again, and works.
    for value in (1, 2):
        assert (hold(), use(value), lib.cuDevicePrimaryCtxRelease_v2(0)) == (0, 0, 0)
    print("right")


if __name__ == "__main__":
    main()

"""Copies to or from memory that is not mapped, or not all of it, which ends the program; with
`mended` a handler of the program maps it, and the copy goes on."""

from __future__ import annotations

import ctypes
import mmap
import sys
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

from cuda import must, primary_context

BYTES = 8 << 20
NOWHERE = 0x10000
HOLE = 5 << 20
SIGSEGV = 11

libc = ctypes.CDLL(None)
libc.mprotect.argtypes = [c_void_p, c_size_t, c_int]


def holed() -> int:
    """Returns the address of memory of which one page may not be touched."""
    memory = mmap.mmap(-1, BYTES)
    memory[:] = b"\x07" * BYTES
    kept.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert libc.mprotect(start + HOLE, mmap.PAGESIZE, 0) == 0
    return start


def mend_at_fault(start: int) -> None:
    """Makes the page accessible when it is touched, as garbage collectors and trackers of writes do."""
    both = mmap.PROT_READ | mmap.PROT_WRITE

    @ctypes.CFUNCTYPE(None, c_int)
    def mend(_signal: int) -> None:
        libc.mprotect(start + HOLE, mmap.PAGESIZE, both)

    kept.append(mend)
    libc.signal.argtypes = [c_int, ctypes.CFUNCTYPE(None, c_int)]
    libc.signal(SIGSEGV, mend)


kept: list[object] = []
direction, how = sys.argv[1:]
primary_context()
memory = c_uint64()
must("cuMemAlloc_v2", byref(memory), c_size_t(BYTES))
host = NOWHERE if how == "nowhere" else holed()
if how == "mended":
    mend_at_fault(host)
if direction == "to":
    must("cuMemcpyHtoD_v2", memory, c_void_p(host), c_size_t(BYTES))
else:
    must("cuMemsetD8_v2", memory, 9, c_size_t(BYTES))
    must("cuMemcpyDtoH_v2", c_void_p(host), memory, c_size_t(BYTES))
back = ctypes.create_string_buffer(BYTES)
must("cuMemcpyDtoH_v2", back, memory, c_size_t(BYTES))
assert back.raw == (b"\x07" if direction == "to" else b"\x09") * BYTES
assert direction == "to" or ctypes.string_at(host, BYTES) == back.raw
print("went on")

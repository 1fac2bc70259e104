"""Sets host memory through the driver, and looks at it when the call has returned: a memset of pinned, registered or
managed memory is synchronous (CUDA's "API synchronization behavior"). Prints what was wrong."""

from __future__ import annotations

import ctypes
import mmap
import sys
from ctypes import byref, c_size_t, c_uint64, c_void_p

from cuda import lib, must, primary_context

BYTES = 1 << 16
SLOW_BYTES = 64 << 20
SUFFIXES = ("", "_ptds")


def pinned() -> int:
    memory = c_void_p()
    must("cuMemHostAlloc", byref(memory), c_size_t(BYTES), 2)
    assert memory.value
    return memory.value


def registered() -> int:
    page = mmap.mmap(-1, BYTES)
    KEPT.append(page)
    where = ctypes.addressof(ctypes.c_char.from_buffer(page))
    must("cuMemHostRegister_v2", c_void_p(where), c_size_t(BYTES), 2)
    return where


def managed() -> int:
    memory = c_uint64()
    must("cuMemAllocManaged", byref(memory), c_size_t(BYTES), 1)
    return memory.value


KEPT: list[object] = []
MEMORY = {"pinned": pinned, "registered": registered, "managed": managed}
FORMS = {
    "cuMemsetD8_v2": (1, lambda at: (at, 0xA7, c_size_t(BYTES)), b"\xa7"),
    "cuMemsetD16_v2": (2, lambda at: (at, 0xA7B1, c_size_t(BYTES // 2)), b"\xb1\xa7"),
    "cuMemsetD32_v2": (4, lambda at: (at, 0x12345678, c_size_t(BYTES // 4)), b"\x78\x56\x34\x12"),
    "cuMemsetD2D8_v2": (1, lambda at: (at, c_size_t(256), 0x3C, c_size_t(256), c_size_t(BYTES // 256)), b"\x3c"),
}


def main() -> None:
    primary_context()
    slow = c_uint64()
    must("cuMemAlloc_v2", byref(slow), c_size_t(SLOW_BYTES))
    wrong = 0
    for kind, make in MEMORY.items():
        for form, (size, arguments, pattern) in FORMS.items():
            for suffix in SUFFIXES:
                # Work before the memset, which it must wait for too.
                must("cuMemsetD8_v2" + suffix, slow, 1, c_size_t(SLOW_BYTES))
                at = make()
                getattr(lib, form + suffix)(*(c_uint64(a) if a == at else a for a in arguments(at)))
                if ctypes.string_at(at, BYTES) != pattern * (BYTES // size):
                    print(f"{form}{suffix} of {kind} memory had not ended")
                    wrong += 1
    sys.exit(wrong != 0)


main()

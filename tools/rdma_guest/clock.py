"""How fast the processor's time stamp counter counts, which is a guest's, too."""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
import time
from collections.abc import Callable

# rdtsc; shl rdx, 32; or rax, rdx; ret
READ_COUNTER = bytes.fromhex("0f31 48c1e220 4809d0 c3")
READS = 20
APART_S = 0.1


@functools.cache
def counter_khz() -> int | None:
    """None on processors other than x86, where an emulated one's counter has a rate of its own."""
    if platform.machine() != "x86_64":
        return None
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
        page.write(READ_COUNTER)
        place = ctypes.c_char.from_buffer(page)
        read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(place))
        first_ns, first = reading(read)
        time.sleep(APART_S)
        last_ns, last = reading(read)
        # With it the page would stay in use.
        del place
    return round((last - first) * 1_000_000 / (last_ns - first_ns))


def reading(read: Callable[[], int]) -> tuple[float, int]:
    """A time and the count at it, of those that were read the nearest to each other."""
    tries = []
    for _ in range(READS):
        before, count, after = time.monotonic_ns(), read(), time.monotonic_ns()
        tries.append((after - before, (before + after) / 2, count))
    _, at_ns, count = min(tries)
    return at_ns, count

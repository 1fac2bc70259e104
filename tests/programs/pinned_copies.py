"""Copies pinned memory to the device and back, and looks at each byte: `pinned_copies.py ROUNDS BYTES`.

Each round once without waiting and once waited for, from memory of cuMemHostAlloc, then from some of the program's own
that it registers, and at last from pageable memory. Says "right" at the end.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable

from cuda import must, primary_context

DRAWN_BYTES = 4099

Buffer = ctypes.Array[ctypes.c_char]


def at(address: int, length: int) -> Buffer:
    return (ctypes.c_char * length).from_address(address)


class Pinned:
    def __init__(self, length: int) -> None:
        address = ctypes.c_void_p()
        must("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(length), 0)
        self.buffer = at(address.value or 0, length)

    def close(self) -> None:
        must("cuMemFreeHost", self.buffer)


class Registered:
    """Neither its beginning nor its end is that of a page."""

    def __init__(self, length: int) -> None:
        self._whole = ctypes.create_string_buffer(length + 100)
        self.buffer = at(ctypes.addressof(self._whole) + 50, length)
        must("cuMemHostRegister_v2", self.buffer, ctypes.c_size_t(length), 0)

    def close(self) -> None:
        must("cuMemHostUnregister", self.buffer)


class Pageable:
    def __init__(self, length: int) -> None:
        self.buffer = ctypes.create_string_buffer(length)

    def close(self) -> None:
        pass


def there_and_back(buffer: Buffer, data: int, choice: random.Random, wait: bool) -> None:
    length = len(buffer)
    # Few of them are drawn, in a row whose length is that of nothing else.
    drawn = choice.randbytes(DRAWN_BYTES)
    sent = (drawn * (length // DRAWN_BYTES + 1))[:length]
    device, size = ctypes.c_uint64(data), ctypes.c_size_t(length)
    ctypes.memmove(buffer, sent, length)
    if wait:
        must("cuMemcpyHtoD_v2", device, buffer, size)
        # It has been read.
        ctypes.memset(buffer, 0, length)
        must("cuMemcpyDtoH_v2", buffer, device, size)
    else:
        must("cuMemcpyHtoDAsync_v2", device, buffer, size, None)
        must("cuCtxSynchronize")
        ctypes.memset(buffer, 0, length)
        must("cuMemcpyDtoHAsync_v2", buffer, device, size, None)
        must("cuCtxSynchronize")
    if buffer.raw != sent:
        raise SystemExit(f"WRONG: {length} bytes, wait {wait}")


def main(rounds: int, length: int) -> None:
    data = ctypes.c_uint64()
    primary_context()
    must("cuMemAlloc_v2", ctypes.byref(data), ctypes.c_size_t(length))
    choice = random.Random(1)
    kinds: list[Callable[[int], Pinned | Registered | Pageable]] = [Pinned, Registered, Pageable]
    for kind in kinds:
        # The second memory may lie where the first one was.
        for _ in range(2):
            memory = kind(length)
            for _ in range(rounds):
                there_and_back(memory.buffer, data.value, choice, wait=False)
                there_and_back(memory.buffer, data.value, choice, wait=True)
            memory.close()
    print("right")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

"""Copies bytes that nobody can guess to the device and back, and looks at each of them: `soak.py SECONDS [BYTES_MAX]`.

Says "under way" once it is, and at the end how many bytes it looked at. A refused call ends it, and is named. The same
bytes go every time.
"""

from __future__ import annotations

import ctypes
import random
import sys
import time

from cuda import must, primary_context

SEED = 1
ROOM_BYTES = 1 << 20
BESIDE_BYTES = 64


def main(seconds: float, bytes_max: int) -> None:
    data = ctypes.c_uint64()
    primary_context()
    must("cuMemAlloc_v2", ctypes.byref(data), ctypes.c_size_t(ROOM_BYTES + BESIDE_BYTES))
    beside = ctypes.c_uint64(data.value + ROOM_BYTES)
    choice = random.Random(SEED)
    back = ctypes.create_string_buffer(bytes_max)
    looked_at = 0
    print("under way", flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        length = choice.randint(1, bytes_max)
        at = ctypes.c_uint64(data.value + choice.randint(0, ROOM_BYTES - length))
        sent = choice.randbytes(length)
        must("cuMemcpyHtoD_v2", at, sent, ctypes.c_size_t(length))
        # Messages without a reply, among those with one.
        must("cuMemsetD8Async", beside, choice.randrange(256), ctypes.c_size_t(BESIDE_BYTES), ctypes.c_void_p())
        must("cuMemcpyDtoH_v2", back, at, ctypes.c_size_t(length))
        if back.raw[:length] != sent:
            wrong = next(index for index in range(length) if back.raw[index] != sent[index])
            raise SystemExit(f"WRONG: byte {wrong} of {length}, after {looked_at} right ones")
        looked_at += length
    print(f"{looked_at} bytes right")


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else ROOM_BYTES)

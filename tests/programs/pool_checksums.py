"""Prints the UUIDs of its GPUs, then computes checksums on each until it is told to end by its standard input."""

from __future__ import annotations

import ctypes
import select
import sys
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint64

from cuda import lib, made, must

LENGTH = 1 << 16


def uuid_of(device: int) -> str:
    uuid = (ctypes.c_ubyte * 16)()
    must("cuDeviceGetUuid_v2", uuid, device)
    digits = bytes(uuid).hex()
    return "GPU-" + "-".join(digits[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))


def main() -> None:
    must("cuInit", 0)
    count = c_int()
    must("cuDeviceGetCount", byref(count))
    places = []
    for device in range(count.value):
        context, at = made("cuDevicePrimaryCtxRetain", device), c_uint64()
        must("cuCtxSetCurrent", context)
        must("cuMemAlloc_v2", byref(at), c_size_t(LENGTH))
        places.append((context, at))
    print(",".join(uuid_of(device) for device in range(count.value)), flush=True)
    here = (ctypes.c_ubyte * LENGTH)()
    rounds = 0
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        for number, (context, at) in enumerate(places):
            value = (rounds + number) % 256
            must("cuCtxSetCurrent", context)
            status = lib.cuMemsetD8_v2(at, c_ubyte(value), c_size_t(LENGTH))
            status = status or lib.cuMemcpyDtoH_v2(here, at, c_size_t(LENGTH))
            if status:
                print(f"lost {status}", flush=True)
                sys.exit(3)
            assert sum(here) == value * LENGTH, "a wrong checksum"
        rounds += 1
    print(f"right {rounds}", flush=True)


if __name__ == "__main__":
    main()

"""Copies between the devices of two servers, both ways, each byte checked. Prints "copying" once the first is done,
"right" at the end, and the name of an error that ends it.

    peer_copies.py BYTES ROUNDS
"""

from __future__ import annotations

import ctypes
import random
import sys
from ctypes import byref, c_char, c_size_t, c_uint64, c_void_p

import cuda


def memory(context: c_void_p, size: int) -> c_uint64:
    cuda.must("cuCtxSetCurrent", context)
    address = c_uint64()
    cuda.must("cuMemAlloc_v2", byref(address), c_size_t(size))
    return address


def main() -> int:
    size, rounds = (int(text) for text in sys.argv[1:])
    length = c_size_t(size)
    cuda.must("cuInit", 0)
    contexts = [cuda.made("cuDevicePrimaryCtxRetain", device) for device in (0, 1)]
    places = [memory(context, size) for context in contexts]
    room = (c_char * size)()
    for number in range(rounds):
        data = random.Random(number).randbytes(size)
        steps = (
            ("cuMemcpyHtoD_v2", places[0], data, length),
            ("cuMemcpyPeer", places[1], contexts[1], places[0], contexts[0], length),
            ("cuMemsetD8_v2", places[0], 0, length),
            ("cuMemcpyDtoD_v2", places[0], places[1], length),
            ("cuMemcpyDtoH_v2", room, places[0], length),
        )
        for step in steps:
            status = cuda.call(*step)
            if status != "CUDA_SUCCESS":
                print(status, flush=True)
                return 3
        assert ctypes.string_at(room, size) == data, number
        if number == 0:
            print("copying", flush=True)
    print("right", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

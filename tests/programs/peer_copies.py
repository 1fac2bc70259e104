"""Copies between the devices of two servers, both ways, each byte checked. Prints "copying" once the first is done,
"right" at the end, and the name of an error that ends it.

    peer_copies.py BYTES ROUNDS [rows]     rows: there as rows that get gaps, in place of a line
"""

from __future__ import annotations

import ctypes
import random
import sys
from ctypes import byref, c_char, c_size_t, c_uint64, c_void_p

import cuda
from several_servers import DEVICE, Box

ROW_BYTES, PITCH_BYTES = 4096, 4200


def memory(context: c_void_p, size: int) -> c_uint64:
    cuda.must("cuCtxSetCurrent", context)
    address = c_uint64()
    cuda.must("cuMemAlloc_v2", byref(address), c_size_t(size))
    return address


def rows(places: list[c_uint64], size: int) -> Box:
    """Returns the copy of the first place's bytes to rows with gaps in the second."""
    box = Box(width=ROW_BYTES, height=size // ROW_BYTES, depth=1, src_type=DEVICE, dst_type=DEVICE)
    (box.src_device, box.src_pitch) = (places[0].value, ROW_BYTES)
    (box.dst_device, box.dst_pitch) = (places[1].value, PITCH_BYTES)
    return box


def main() -> int:
    size, rounds = (int(text) for text in sys.argv[1:3])
    is_rows = len(sys.argv) > 3
    length = c_size_t(size)
    cuda.must("cuInit", 0)
    contexts = [cuda.made("cuDevicePrimaryCtxRetain", device) for device in (0, 1)]
    places = [memory(context, size * PITCH_BYTES // ROW_BYTES) for context in contexts]
    there = rows(places, size)
    back = rows(places, size)
    for name in ("device", "pitch"):
        setattr(back, f"src_{name}", getattr(there, f"dst_{name}"))
        setattr(back, f"dst_{name}", getattr(there, f"src_{name}"))
    lines = (
        ("cuMemcpyPeer", places[1], contexts[1], places[0], contexts[0], length),
        ("cuMemcpyDtoD_v2", places[0], places[1], length),
    )
    copies = (("cuMemcpy3DPeer", byref(there)), ("cuMemcpy3DPeer", byref(back))) if is_rows else lines
    room = (c_char * size)()
    for number in range(rounds):
        data = random.Random(number).randbytes(size)
        steps = (
            ("cuMemcpyHtoD_v2", places[0], data, length),
            copies[0],
            ("cuMemsetD8_v2", places[0], 0, length),
            copies[1],
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

"""Changes the emulated network while it runs: `changes_network.py NETWORK...`. Prints, for each, the status of the
change and the seconds that ten copies take."""

from __future__ import annotations

import sys
import time
from ctypes import byref, c_size_t, c_uint32, c_uint64

from cuda import lib, must, primary_context


def main(networks: list[str]) -> None:
    at, word = c_uint64(), c_uint32()
    change = lib.outboard_emulate
    print("before cuInit", change(b"rtt=1ms"))
    primary_context()
    must("cuMemAlloc_v2", byref(at), c_size_t(4))
    for network in networks:
        result = change(network.encode())
        start = time.perf_counter()
        for _ in range(10):
            must("cuMemcpyDtoH_v2", byref(word), at, c_size_t(4))
        print(network, result, time.perf_counter() - start)
    print("null", change(None))


if __name__ == "__main__":
    main(sys.argv[1:])

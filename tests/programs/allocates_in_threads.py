"""Allocates small pieces of device memory in eight threads of one context, and uses each at once: pieces of different
threads are parts of one chunk, which the server maps for the first of them."""

from __future__ import annotations

import sys
import threading
from ctypes import byref, c_int, c_uint64, c_void_p

from cuda import must, primary_context

THREADS = 8
PIECES = 40
PIECE_BYTES = 512 << 10


def allocate_and_use(current: c_void_p, number: int, wrong: list[str]) -> None:
    must("cuCtxSetCurrent", current)
    pieces = []
    for index in range(PIECES):
        piece, value = c_uint64(), c_int(number * PIECES + index + 1)
        must("cuMemAlloc_v2", byref(piece), PIECE_BYTES)
        must("cuMemcpyHtoD_v2", piece, byref(value), 4)
        pieces.append((piece, value.value))
    for piece, wanted in pieces:
        found = c_int()
        must("cuMemcpyDtoH_v2", byref(found), piece, 4)
        if found.value != wanted:
            wrong.append(f"thread {number}: {found.value}, not {wanted}")
        must("cuMemFree_v2", piece)


def main(rounds: int) -> int:
    current = primary_context()
    wrong: list[str] = []
    for _ in range(rounds):
        threads = [
            threading.Thread(target=allocate_and_use, args=(current, number, wrong)) for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print("\n".join(wrong[:5]) or "each piece has its own bytes")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

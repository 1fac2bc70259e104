"""A program whose descriptors are not what a library expects: `descriptors.py none|taken FOLDER`.

`none`: it was started without standard output, and prints there between its copies. `taken`: after its first copy it
closes every descriptor, as closefrom(3) does, and opens files of its own under their numbers. Says "right" on standard
error.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from pathlib import Path

from cuda import call, must, primary_context

BYTES = 100_000
NUMBERS_MAX = 100


def copy_there_and_back(device: ctypes.c_uint64) -> bool:
    sent, got = os.urandom(BYTES), ctypes.create_string_buffer(BYTES)
    size = ctypes.c_size_t(BYTES)
    statuses = [call("cuMemcpyHtoD_v2", device, sent, size), call("cuMemcpyDtoH_v2", got, device, size)]
    return statuses == ["CUDA_SUCCESS"] * 2 and got.raw == sent


def prints_between_copies(device: ctypes.c_uint64) -> None:
    for _ in range(20):
        with contextlib.suppress(OSError):
            os.write(1, b"a word of the program's\n")
        if not copy_there_and_back(device):
            raise SystemExit("WRONG: a copy")


def takes_numbers(device: ctypes.c_uint64, folder: Path) -> None:
    os.closerange(3, NUMBERS_MAX)
    files = [os.open(folder / str(n), os.O_RDWR | os.O_CREAT) for n in range(3, NUMBERS_MAX)]
    copy_there_and_back(device)
    if any(os.fstat(file).st_size for file in files):
        raise SystemExit("WRONG: bytes in a file of the program's")


def main(how: str, folder: Path) -> None:
    primary_context()
    device = ctypes.c_uint64()
    must("cuMemAlloc_v2", ctypes.byref(device), ctypes.c_size_t(BYTES))
    if not copy_there_and_back(device):
        raise SystemExit("WRONG: the first copy")
    if how == "none":
        prints_between_copies(device)
    else:
        takes_numbers(device, folder)
    print("right", file=sys.stderr, flush=True)
    # The log of a session that has lost its socket is not checked.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

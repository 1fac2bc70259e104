"""Closes a library and uses it again, as programs that look for a GPU do: `closes.py LIBRARY
CALL[:ARGUMENT]...`."""

from __future__ import annotations

import _ctypes
import ctypes
import sys
from pathlib import Path


def main(name: str, calls: list[str]) -> None:
    for _ in range(3):
        library = ctypes.CDLL(name)
        statuses = []
        for call in calls:
            function, _, argument = call.partition(":")
            given = int(argument) if argument else ctypes.byref(ctypes.c_int())
            statuses.append(getattr(library, function)(given))
        print(*statuses)
        _ctypes.dlclose(library._handle)
    print(Path(name).name in Path("/proc/self/maps").read_text() or "still mapped by another name")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

"""Ends while a function of its own runs on a thread of the driver's: `ends_in_callbacks.py host|object|fails`.

CPython ends each thread that wants to go on in it by then.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from ctypes import byref, c_void_p

from cuda import must, primary_context

FUNCTION = ctypes.CFUNCTYPE(None, c_void_p)
NO_DESTRUCTOR_SYNC, MOVE = 1, 1
INSIDE_S, ENDING_S = 0.3, 1.0
entered = threading.Event()


class Slow:
    """Goes when the interpreter ends, and keeps it ending for longer than the function takes."""

    def __del__(self, sleep: Callable[[float], None] = time.sleep, seconds: float = ENDING_S) -> None:
        sleep(seconds)


@FUNCTION
def lingers(_: object) -> None:
    entered.set()
    time.sleep(INSIDE_S)
    print("nobody comes here")


def main(how: str) -> None:
    primary_context()
    stream = c_void_p()
    if how == "object":
        made = c_void_p()
        must("cuUserObjectCreate", byref(made), None, lingers, 1, NO_DESTRUCTOR_SYNC)
        must("cuUserObjectRelease", made, 1)
    else:
        must("cuStreamCreate", byref(stream), 1)
        for _ in range(3):
            must("cuLaunchHostFunc", stream, lingers, None)
    sys.slow = Slow()  # type: ignore[attr-defined]
    assert entered.wait(20)
    assert how != "fails", "as it is to"


if __name__ == "__main__":
    main(sys.argv[1])

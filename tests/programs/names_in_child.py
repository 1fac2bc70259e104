"""Asks for names and texts of errors in a child that was forked after CUDA was used; prints the child's answers."""

from __future__ import annotations

import os
import sys
from ctypes import byref, c_char_p, c_int

import cuda

UNKNOWN = 54321


def text(status: int) -> str:
    """Returns what the function answers, and the text."""
    said = c_char_p()
    return f"{cuda.lib.cuGetErrorString(status, byref(said))} {(said.value or b'').decode()}"


def main() -> None:
    cuda.primary_context()
    child = os.fork()
    if child == 0:
        print(cuda.call("cuDeviceGetCount", byref(c_int())), cuda.name(2), text(700), cuda.name(UNKNOWN), text(UNKNOWN))
        sys.stdout.flush()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), cuda.call("cuCtxSynchronize"))


if __name__ == "__main__":
    main()

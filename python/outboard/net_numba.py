"""Calls of net.cuh for kernels that numba-cuda compiles.

    nvcc -std=c++17 -O2 -rdc=true -arch=compute_80 -ptx -Iinclude include/outboard/net_calls.cu -o net_calls.ptx

    calls = net_numba.calls("net_calls.ptx")
    queues = net_numba.to_device(queue)                    # the queue as kernels take it: its address

    @cuda.jit
    def kernel(queue, to, to_key, at, key, size):
        ticket = calls.put_warp(queue, to, to_key, at, key, size, 1_000_000)
        if ticket >> uint64(63) == 0: ...                  # else FAILED, and below it what failed

The PTX says which calls there are and what they take; include/outboard/net_calls.cu explains them.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Any

from numba import cuda

from ._net_calls import FAILED, PREFIX, declared
from .net import Queue

__all__ = ["FAILED", "calls", "to_device"]


def calls(ptx: str | os.PathLike[str]) -> ModuleType:
    """Declares the calls of a PTX file, each by its name without `outboard_net_`; a kernel that uses one is linked with
    the file. All take and return unsigned numbers: `numpy.uint64`, and `numpy.uint32` for keys."""
    path = Path(ptx)
    # Of a module's names numba knows that they stay.
    module = ModuleType("outboard.net_calls")
    for name, bits in declared(path).items():
        kinds = ", ".join(f"uint{width}" for width in bits)
        call = cuda.declare_device(f"{PREFIX}{name}", f"uint64({kinds})", link=str(path), abi="c")
        setattr(module, name, call)
    return module


def to_device(queue: Queue) -> Any:
    """Copies a queue's structure to the GPU: what a kernel is given is the array's address."""
    import numpy

    return cuda.to_device(numpy.frombuffer(bytes(queue.exported), numpy.uint8))

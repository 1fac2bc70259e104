"""Asks for limits of its context between launches, as cuDNN does: run as `asks_limits.py ROUNDS`."""

from __future__ import annotations

import sys
from ctypes import byref, c_size_t

import misuse
from cuda import made, must, primary_context

STACK_SIZE, MALLOC_HEAP_SIZE = 0, 2


def limit(which: int) -> int:
    value = c_size_t()
    must("cuCtxGetLimit", byref(value), which)
    return value.value


def main() -> None:
    primary_context()
    kernel, memory = misuse.kernel(), made("cuMemAlloc_v2", c_size_t(4))
    before = limit(MALLOC_HEAP_SIZE)
    for _ in range(int(sys.argv[1])):
        assert misuse.launch(kernel, misuse.pointer_argument(memory.value)) == "CUDA_SUCCESS"
        assert limit(STACK_SIZE) == limit(STACK_SIZE)
        assert limit(MALLOC_HEAP_SIZE) == before
    must("cuCtxSetLimit", STACK_SIZE, c_size_t(4096))
    print(limit(STACK_SIZE), limit(MALLOC_HEAP_SIZE) == before)


if __name__ == "__main__":
    main()

"""Four threads write words of managed memory that kernels increment: run as `touched_by_threads.py
SECONDS`.

Each thread has every fourth of the words, so that all threads and their kernels work on the same pages at once.
"""

from __future__ import annotations

import ctypes
import random
import sys
import threading
import time
from ctypes import byref, c_size_t, c_uint32, c_uint64, c_void_p

from cuda import kernels, lib, must, primary_context

PTX = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry increment(.param .u64 where)
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [where];
    ld.global.u32 %r1, [%rd1];
    add.u32 %r1, %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""
THREADS = 4
WORDS = 1 << 18
# Launches before a thread waits and checks.
BURST = 7


def work(thread: int, context: c_void_p, kernel: c_void_p, base: int, seconds: float, wrong: list[str]) -> None:
    must("cuCtxSetCurrent", context)
    stream, chance = c_void_p(), random.Random(thread)
    must("cuStreamCreate", byref(stream), 1)
    expected: dict[int, int] = {}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for index in chance.sample(range(thread, WORDS, THREADS), BURST):
            address, value = c_uint64(base + 4 * index), chance.randrange(1 << 30)
            c_uint32.from_address(address.value).value = value
            arguments = (c_void_p * 1)(ctypes.addressof(address))
            must("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, c_void_p())
            expected[index] = value + 1
        must("cuStreamSynchronize", stream)
        for index, value in expected.items():
            found = c_uint32.from_address(base + 4 * index).value
            if found != value:
                wrong.append(f"thread {thread}, word {index}: {found} where {value} belongs")
                return


def main(seconds: float) -> None:
    memory = c_uint64()
    context = primary_context()
    [kernel] = kernels(PTX, "increment")
    must("cuMemAllocManaged", byref(memory), c_size_t(4 * WORDS), 1)
    wrong: list[str] = []
    threads = [
        threading.Thread(target=work, args=(i, context, kernel, memory.value, seconds, wrong)) for i in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:3]
    must("cuMemFree_v2", memory)
    # Freed, invalid, and too long.
    assert lib.cuMemFree_v2(memory) == 1 and lib.cuMemsetD8_v2(memory, 1, c_size_t(16)) == 1
    assert lib.cuMemPrefetchAsync(c_uint64(0x1234), c_size_t(16), 0, c_void_p()) == 1
    assert lib.cuMemAllocManaged(byref(memory), c_size_t(1 << 45), 1) == 2
    print("right")


if __name__ == "__main__":
    main(float(sys.argv[1]))

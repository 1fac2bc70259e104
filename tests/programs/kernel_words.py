"""A kernel writes words of registered memory, a number of bytes apart; then the program compares all bytes. Prints
`right`.

    kernel_words.py BYTES_APART [ROUNDS]
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import c_size_t, c_uint32, c_uint64, c_void_p

from cuda import kernels, must, primary_context

PAGE_BYTES = 4096
MEMORY_BYTES = 64 * PAGE_BYTES
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spread(.param .u64 at, .param .u64 apart, .param .u64 end, .param .u64 value)
{
    .reg .b64 %rd<5>;
    .reg .b32 %r<2>;
    .reg .pred %p;
    ld.param.u64 %rd1, [at];
    ld.param.u64 %rd2, [apart];
    ld.param.u64 %rd3, [end];
    ld.param.u64 %rd4, [value];
    cvt.u32.u64 %r1, %rd4;
LOOP:
    st.global.u32 [%rd1], %r1;
    add.u64 %rd1, %rd1, %rd2;
    setp.lt.u64 %p, %rd1, %rd3;
    @%p bra LOOP;
    ret;
}
\0"""


def main() -> None:
    primary_context()
    apart, rounds = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    [spread] = kernels(PTX, "spread")
    room = ctypes.create_string_buffer(MEMORY_BYTES + PAGE_BYTES)
    start = (ctypes.addressof(room) + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES
    memory = (c_uint32 * (MEMORY_BYTES // 4)).from_address(start)
    must("cuMemHostRegister_v2", c_void_p(start), c_size_t(MEMORY_BYTES), 0)
    expected = [0] * len(memory)
    for round in range(1, rounds + 1):
        words = [c_uint64(word) for word in (start, apart, start + MEMORY_BYTES, round)]
        pointers = (c_void_p * len(words))(*(ctypes.addressof(word) for word in words))
        must("cuLaunchKernel", spread, 1, 1, 1, 1, 1, 1, 0, None, pointers, None)
        must("cuCtxSynchronize")
        for at in range(0, len(memory), apart // 4):
            expected[at] = round
        if list(memory) != expected:
            raise SystemExit(f"WRONG: round {round}")
    print("right")


main()

"""Launches that follow each other closely beside large memory that both sides touch: run as `held_launches.py WHAT`.

`read`: kernels read words that the program wrote just before. `polled`: the program makes no call after its launches.
`reset`: an older name of a call, which runtimes still ask for, ends the context right after launches.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import sys
import threading
import time
from ctypes import byref, c_size_t, c_uint32, c_uint64, c_void_p

from cuda import kernels, must, primary_context

PTX = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry take(.param .u64 where, .param .u64 from)
{
    .reg .b64 %rd<3>;
    .reg .b32 %r<3>;
    ld.param.u64 %rd1, [where];
    ld.param.u64 %rd2, [from];
    ld.global.u32 %r1, [%rd1];
    ld.global.u32 %r2, [%rd2];
    add.u32 %r1, %r1, %r2;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""
# A look at so much takes some 17 us where the kernel reports written pages.
BYTES = 64 << 20
WORD_BYTES = 4
LAUNCHES = 400
POLLED = 40
POLL_S = 20


def registered(region: mmap.mmap) -> int:
    memory = ctypes.addressof(ctypes.c_char.from_buffer(region))
    # Mapped: it is open until the end.
    must("cuMemHostRegister_v2", c_void_p(memory), c_size_t(BYTES), 2)
    at = c_uint64()
    must("cuMemHostGetDevicePointer_v2", byref(at), c_void_p(memory), 0)
    assert at.value == memory
    return memory


class Program:
    def __init__(self) -> None:
        self.context = primary_context()
        [self.kernel] = kernels(PTX, "take")
        self.region = mmap.mmap(-1, BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.memory = registered(self.region)
        self.sums, self.event = c_uint64(), c_void_p()
        must("cuMemAlloc_v2", byref(self.sums), c_size_t(4096))
        must("cuMemsetD8_v2", self.sums, 0, c_size_t(4096))
        must("cuEventCreate", byref(self.event), 2)
        self.streams = [c_void_p(), c_void_p()]
        for stream in self.streams:
            must("cuStreamCreate", byref(stream), 1)

    def take(self, where: int, word: int, stream: c_void_p) -> None:
        words = (c_uint64 * 2)(where, word)
        arguments = (c_void_p * 2)(ctypes.addressof(words), ctypes.addressof(words) + 8)
        must("cuLaunchKernel", self.kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, c_void_p())

    def sum_of(self, number: int) -> int:
        value = c_uint32()
        must("cuMemcpyDtoH_v2", byref(value), c_uint64(self.sums.value + number * WORD_BYTES), c_size_t(WORD_BYTES))
        return value.value


def read(program: Program, thread: int) -> None:
    """Each launch takes a word that was written just before it, with other calls in between at times."""
    chance, stream = random.Random(thread), program.streams[thread]
    other = program.streams[1 - thread]
    where, spare = program.sums.value + thread * WORD_BYTES, c_uint64(program.sums.value + 1024)
    wanted = 0
    for launch in range(LAUNCHES):
        # A word of its own for each launch, anywhere.
        at = (thread * LAUNCHES + launch) * (BYTES // (2 * LAUNCHES)) // WORD_BYTES * WORD_BYTES
        value = chance.randrange(1 << 16)
        c_uint32.from_address(program.memory + at).value = value
        program.take(where, program.memory + at, stream)
        wanted += value
        match chance.randrange(40):
            case 0:
                must("cuMemsetD8Async", spare, 0, c_size_t(64), stream)
            case 1:
                must("cuEventRecord", program.event, stream)
                must("cuStreamWaitEvent", other, program.event, 0)
            case 2:
                must("cuStreamSynchronize", stream)
                assert program.sum_of(thread) == wanted, "words were missed"
            case _:
                pass
    must("cuStreamSynchronize", stream)
    assert program.sum_of(thread) == wanted, f"{program.sum_of(thread)} where {wanted} belongs"


def read_by_two(program: Program) -> None:
    failed: list[BaseException] = []

    def one(thread: int) -> None:
        try:
            must("cuCtxSetCurrent", program.context)
            read(program, thread)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def polled(program: Program) -> None:
    """Kernels count in memory that program and GPU share; the program reads it, and makes no call."""
    shared = c_void_p()
    must("cuMemHostAlloc", byref(shared), c_size_t(4096), 2)
    assert shared.value
    c_uint32.from_address(program.memory).value = 1
    for _ in range(POLLED):
        program.take(shared.value, program.memory, program.streams[0])
    end = time.monotonic() + POLL_S
    count = c_uint32.from_address(shared.value)
    while count.value < POLLED:
        assert time.monotonic() < end, f"{count.value} of {POLLED} launches"


def reset(program: Program) -> None:
    for _ in range(LAUNCHES):
        program.take(program.sums.value, program.memory, program.streams[0])
    must("cuDevicePrimaryCtxReset", 0)
    must("cuCtxSetCurrent", primary_context())
    # A launch that is sent only now would be an error of the context that follows.
    must("cuCtxSynchronize")


def main() -> None:
    program = Program()
    match sys.argv[1]:
        case "read":
            read(program, 0)
        case "read_by_two":
            read_by_two(program)
        case "polled":
            polled(program)
        case "reset":
            reset(program)
    print("right")


if __name__ == "__main__":
    main()

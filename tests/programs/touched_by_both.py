"""Launches after a history of memory that both sides touch: run as `touched_by_both.py HISTORY LAUNCHES`.

The kernel adds one to a word of the GPU's memory. What the launches then cost is in OUTBOARD_STATS.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import sys
import time
from ctypes import byref, c_size_t, c_uint32, c_uint64, c_void_p

from cuda import call, kernels, must, primary_context

PTX = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry add(.param .u64 where, .param .u64 stale)
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
BYTES = 1 << 20
MAPPED = 2
# More than the launches after which memory that no argument names is no longer compared.
UNNAMED = 1100
# More waits than that.
UNNAMED_WAITS = 10
# Histories of memory that the program mapped itself.
REGISTERED = [
    "registered",
    "registered_written",
    "forked",
    "unmapped",
    "mapped_over",
    "given_up",
    "moved",
    "protected",
    "hidden",
    "little_lockable",
]
libc = ctypes.CDLL(None)


class Program:
    def __init__(self) -> None:
        self.device, self.other, self.event = c_uint64(), c_void_p(), c_void_p()
        primary_context()
        [self.kernel] = kernels(PTX, "add")
        must("cuMemAlloc_v2", byref(self.device), c_size_t(4096))
        must("cuMemsetD8_v2", self.device, 0, c_size_t(4096))
        self.launched = 0

    def launch(self, where: int = 0, stale: int = 0) -> None:
        words = (c_uint64 * 2)(where or self.device.value, stale)
        arguments = (c_void_p * 2)(ctypes.addressof(words), ctypes.addressof(words) + 8)
        must("cuLaunchKernel", self.kernel, 1, 1, 1, 1, 1, 1, 0, c_void_p(), arguments, c_void_p())
        self.launched += not where

    def wait(self, how: str = "") -> None:
        """Waits for all work, or for the default stream alone, after an event of another stream."""
        if how == "joined":
            must("cuMemsetD8Async", c_uint64(self.device.value + 64), 0, c_size_t(4), self.other)
            must("cuEventRecord", self.event, self.other)
            must("cuStreamWaitEvent", c_void_p(), self.event, 0)
        must("cuStreamSynchronize", c_void_p()) if how else must("cuCtxSynchronize")

    def pinned(self, flags: int = 0) -> int:
        memory = c_void_p()
        must("cuMemHostAlloc", byref(memory), c_size_t(BYTES), flags)
        assert memory.value
        return memory.value

    def managed(self) -> int:
        memory = c_uint64()
        must("cuMemAllocManaged", byref(memory), c_size_t(BYTES), 1)
        return memory.value

    def registered(self, flags: int) -> int:
        self.region = mmap.mmap(-1, BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory = ctypes.addressof(ctypes.c_char.from_buffer(self.region))
        must("cuMemHostRegister_v2", c_void_p(memory), c_size_t(BYTES), flags)
        return memory

    def fill(self, memory: int) -> None:
        ctypes.memset(memory, 1, BYTES)

    def write_in_order(self, address: int, value: int) -> None:
        """Writes a word when all earlier work is done, before all later work."""

        def write(_: object) -> None:
            # The launch after it was sent long ago.
            time.sleep(0.05)
            c_uint32.from_address(address).value = value

        self.function = ctypes.CFUNCTYPE(None, c_void_p)(write)
        must("cuLaunchHostFunc", c_void_p(), self.function, c_void_p())

    def expect(self, address: int, value: int) -> None:
        self.wait()
        found = c_uint32.from_address(address).value
        assert found == value, f"{found} where {value} belongs"


def gone(program: Program, memory: int, how: str) -> None:
    """Takes the pages away from the address where a kernel then writes: its word cannot arrive."""
    if how == "moved":
        libc.mremap.restype = c_void_p
        there = mmap.mmap(-1, BYTES)
        target = ctypes.addressof(ctypes.c_char.from_buffer(there))
        moved = libc.mremap(c_void_p(memory), c_size_t(BYTES), c_size_t(BYTES), 3, c_void_p(target))
        assert moved == target
    else:
        assert libc.mprotect(c_void_p(memory), c_size_t(BYTES), mmap.PROT_READ) == 0
    program.launch(memory)
    status = call("cuCtxSynchronize")
    assert status == "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", status
    must("cuMemHostUnregister", c_void_p(memory))


def hidden(program: Program, memory: int) -> None:
    """What the program wrote before it forbade all access is sent once the pages may be read again."""
    pages = (0, 1, BYTES // mmap.PAGESIZE // 2, BYTES // mmap.PAGESIZE - 1)
    at = [memory + page * mmap.PAGESIZE for page in pages]
    for turn in range(3):
        for number, address in enumerate(at):
            c_uint32.from_address(address).value = 100 * (turn + 1) + number
        # All of the memory, from its second page on, and its last page alone.
        first = (0, 1, pages[-1])[turn]
        parts = c_void_p(memory + first * mmap.PAGESIZE), c_size_t(BYTES - first * mmap.PAGESIZE)
        assert libc.mprotect(*parts, 0) == 0
        for _ in range(3):
            program.launch()
            program.wait()
        assert libc.mprotect(*parts, mmap.PROT_READ | mmap.PROT_WRITE) == 0
        for number, address in enumerate(at):
            program.launch(address)
            program.expect(address, 100 * (turn + 1) + number + 1)


def history(program: Program, name: str) -> int:
    """Makes the history; returns the address of the words that program and launches change in turn,
    or 0."""
    if name == "none":
        return 0
    if name in (
        "registered",
        "registered_written",
        "forked",
        "unmapped",
        "mapped_over",
        "given_up",
        "moved",
        "protected",
        "hidden",
    ):
        memory = program.registered(MAPPED)
        if name == "little_lockable":
            for _ in range(4):
                program.fill(program.pinned(MAPPED))
    elif name in ("managed", "managed_written", "host_function"):
        memory = program.managed()
    elif name in ("mapped", "mapped_written"):
        memory = program.pinned(MAPPED)
    else:
        memory = program.pinned()
    program.fill(memory)
    if name == "pinned":
        return 0
    if name == "stale_word":
        program.launch(stale=memory + 64)
        for _ in range(UNNAMED):
            program.launch()
        program.wait()
        return 0
    if name.startswith("stale_words"):
        # As in a framework whose arguments contain leftovers of the stack.
        how = name.removeprefix("stale_words").removeprefix("_")
        if how == "joined":
            must("cuStreamCreate", byref(program.other), 1)
            must("cuEventCreate", byref(program.event), 2)
        for _ in range(6):
            program.launch(stale=memory + 64)
            for _ in range(UNNAMED_WAITS):
                program.launch()
                program.wait(how)
        # The answer to a question comes with a later wait.
        program.launch()
        program.wait(how)
        return 0
    # The kernel really uses it: both sides see what the other wrote.
    program.launch(memory)
    program.expect(memory, 0x01010102)
    c_uint32.from_address(memory).value = 5
    program.launch(memory)
    program.expect(memory, 6)
    if name == "freed":
        must("cuMemFreeHost", c_void_p(memory))
        return 0
    if name == "forked":
        child = os.fork()
        if child == 0:
            ctypes.memset(memory, 9, BYTES)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    program.launch(memory)
    program.expect(memory, 7)
    if name == "host_function":
        program.write_in_order(memory, 70)
        program.launch(memory)
        program.expect(memory, 71)
    if name == "unmapped":
        assert libc.munmap(c_void_p(memory + BYTES // 4), c_size_t(BYTES // 4)) == 0
    if name == "mapped_over":
        libc.mmap.restype = c_void_p
        private_fixed = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10
        over = libc.mmap(c_void_p(memory), c_size_t(BYTES // 4), 3, private_fixed, -1, 0)
        assert over == memory
        c_uint32.from_address(memory).value = 50
        program.launch(memory)
        program.expect(memory, 51)
    if name == "given_up":
        # The pages are zeros from now on, for both sides.
        assert libc.madvise(c_void_p(memory), c_size_t(BYTES // 4), mmap.MADV_DONTNEED) == 0
        program.launch(memory)
        program.expect(memory, 1)
        c_uint32.from_address(memory).value = 60
        program.launch(memory)
        program.expect(memory, 61)
    if name in ("moved", "protected"):
        gone(program, memory, name)
    if name == "hidden":
        hidden(program, memory)
    return memory + BYTES // 2 if name.endswith("written") else 0


def main(name: str, launches: int) -> None:
    if name == "little_lockable":
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (BYTES, BYTES))
    program = Program()
    written = history(program, name)
    program.wait("stream" if name.startswith("stale_words_") else "")
    for number in range(launches):
        if written:
            # A separate word for each launch, because earlier kernels may still run.
            c_uint32.from_address(written + 4 * number).value = number
        program.launch(written + 4 * number if written else 0)
    program.wait()
    for number in range(launches if written else 0):
        program.expect(written + 4 * number, number + 1)
    out = c_uint32()
    must("cuMemcpyDtoH_v2", byref(out), program.device, c_size_t(4))
    assert out.value == program.launched, (out.value, program.launched)
    print("right")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

"""Kernels poll a word of mapped memory, which the program writes after their launch.

The program makes one call after the write, of each kind that has to let the kernel see the word. It names those that
do not, or says "right".
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from ctypes import byref, c_size_t, c_uint32, c_uint64, c_void_p

from cuda import kernels, lib, must, primary_context

# Polls for 4 s at most.
PTX = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry polls(.param .u64 word, .param .u64 seen, .param .u32 wanted)
{
    .reg .b64 %rd<6>;
    .reg .b32 %r<3>;
    .reg .pred %p<3>;
    ld.param.u64 %rd1, [word];
    ld.param.u64 %rd2, [seen];
    ld.param.u32 %r1, [wanted];
    mov.u64 %rd3, %globaltimer;
again:
    ld.volatile.global.u32 %r2, [%rd1];
    setp.eq.u32 %p1, %r2, %r1;
    @%p1 bra found;
    mov.u64 %rd4, %globaltimer;
    sub.u64 %rd5, %rd4, %rd3;
    setp.lt.u64 %p2, %rd5, 4000000000;
    @%p2 bra again;
    ret;
found:
    st.global.u32 [%rd2], %r1;
    ret;
}
"""
NOT_READY = 600
COPY_S_MAX = 6


class Program:
    def __init__(self) -> None:
        primary_context()
        [self.kernel] = kernels(PTX, "polls")
        self.word, self.pinned = c_void_p(), c_void_p()
        must("cuMemHostAlloc", byref(self.word), c_size_t(4096), 2)
        must("cuMemHostAlloc", byref(self.pinned), c_size_t(4096), 0)
        self.seen, self.other, self.array = c_uint64(), c_uint64(), (c_uint32 * 4)()
        for memory in (self.seen, self.other):
            must("cuMemAlloc_v2", byref(memory), c_size_t(4096))
        self.stream, self.event = c_void_p(), c_void_p()
        must("cuStreamCreate", byref(self.stream), 0)
        must("cuEventCreate", byref(self.event), 0)

    def is_seen(self, wanted: int, call: Callable[[Program], None]) -> bool:
        must("cuMemsetD32_v2", self.seen, 0, c_size_t(1))
        must("cuCtxSynchronize")
        arguments = [c_void_p(self.word.value), self.seen, c_uint32(wanted)]
        addresses = (c_void_p * 3)(*[ctypes.addressof(argument) for argument in arguments])
        must("cuLaunchKernel", self.kernel, 1, 1, 1, 1, 1, 1, 0, self.stream, addresses, c_void_p())
        assert self.word.value
        c_uint32.from_address(self.word.value).value = wanted
        call(self)
        must("cuStreamSynchronize", self.stream)
        value = c_uint32()
        must("cuMemcpyDtoH_v2", byref(value), self.seen, c_size_t(4))
        return value.value == wanted

    def query(self) -> None:
        while lib.cuStreamQuery(self.stream) == NOT_READY:
            pass

    def event_query(self) -> None:
        must("cuEventRecord", self.event, self.stream)
        while lib.cuEventQuery(self.event) == NOT_READY:
            pass

    def rows_to_host(self) -> None:
        host, device = 1, 2
        source, target = [0, 0, device, 0, self.other.value, 0, 4], [0, 0, host, ctypes.addressof(self.array), 0, 0, 4]
        must("cuMemcpy2D_v2", (c_uint64 * 16)(*source, *target, 4, 1))

    def polls_copy(self) -> None:
        """Looks at the target of a copy without a further call."""
        assert self.word.value
        assert self.pinned.value
        target = c_uint32.from_address(self.pinned.value)
        wanted = c_uint32.from_address(self.word.value).value
        must("cuMemcpyDtoHAsync_v2", self.pinned, self.seen, c_size_t(4), self.stream)
        end = time.monotonic() + COPY_S_MAX
        while target.value != wanted and time.monotonic() < end:
            pass


CALLS: dict[str, Callable[[Program], None]] = {
    "stream": lambda p: must("cuStreamSynchronize", p.stream),
    "context": lambda _: must("cuCtxSynchronize"),
    "query": Program.query,
    "event_query": Program.event_query,
    "to_device": lambda p: must("cuMemcpyHtoD_v2", p.other, p.array, c_size_t(4)),
    "to_host": lambda p: must("cuMemcpyDtoH_v2", p.array, p.other, c_size_t(4)),
    "to_host_long": lambda p: must("cuMemcpyDtoH_v2", (ctypes.c_char * 4096)(), p.other, c_size_t(4096)),
    "to_pinned": lambda p: must("cuMemcpyDtoH_v2", p.pinned, p.other, c_size_t(4)),
    "to_host_on_stream": lambda p: must("cuMemcpyDtoHAsync_v2", p.array, p.other, c_size_t(4), p.stream),
    "rows_to_host": Program.rows_to_host,
    "polls_copy": Program.polls_copy,
    "host_to_host": lambda p: must("cuMemcpyAsync", p.array, p.pinned, c_size_t(4), p.stream),
    "free": lambda p: must("cuMemFree_v2", p.other),
}


def main() -> None:
    program = Program()
    blind = []
    for number, (name, call) in enumerate(CALLS.items(), 1):
        if not program.is_seen(number, call):
            blind.append(name)
    print(*blind or ["right"])


if __name__ == "__main__":
    main()

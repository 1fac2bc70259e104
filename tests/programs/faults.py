"""A kernel that faults with many launches behind it, and what comes after its context: run as `faults.py WHAT`.

`told`: the program has learned of the fault before it resets the device. `untold`: it has not. `other`: it destroys the
context, and goes on in another. `foreign`: while the fault is to come, it asks for the stream with another context
current, and destroys the stream's. `event`: it uses an event that is made after the fault.
"""

from __future__ import annotations

import ctypes
import sys
import time
from ctypes import byref, c_size_t, c_uint64, c_void_p

from cuda import kernels, lib, must, primary_context

PTX = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry put(.param .u64 where, .param .u64 after_ns)
{
    .reg .b64 %rd<6>;
    .reg .b32 %r<2>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [where];
    ld.param.u64 %rd2, [after_ns];
    mov.u64 %rd3, %globaltimer;
again:
    mov.u64 %rd4, %globaltimer;
    sub.u64 %rd5, %rd4, %rd3;
    setp.lt.u64 %p1, %rd5, %rd2;
    @%p1 bra again;
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""
WILD = 16
BEHIND = 1000
ROUNDS = 3
LATER_S = 0.02
# Errors above the limit are told within a second.
HELD_BACK_S = 1.2
NOT_READY, ILLEGAL_ADDRESS = 600, 700


def allocated() -> c_uint64:
    memory = c_uint64()
    must("cuMemAlloc_v2", byref(memory), c_size_t(4))
    return memory


def faults(behind: int = BEHIND, stream: c_void_p | None = None, after_s: float = 0) -> None:
    """Faults, with more launches than errors are told one by one."""
    [kernel] = kernels(PTX, "put")
    memory = allocated()
    for address in [c_uint64(WILD)] + [memory] * behind:
        after_ns = c_uint64(int(after_s * 1e9) if address.value == WILD else 0)
        arguments = (c_void_p * 2)(ctypes.addressof(address), ctypes.addressof(after_ns))
        lib.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream or c_void_p(), arguments, c_void_p())


def works() -> None:
    must("cuMemsetD8_v2", allocated(), 1, c_size_t(4))
    must("cuCtxSynchronize")


def resets(is_told: bool) -> None:
    primary_context()
    for _ in range(ROUNDS):
        faults()
        if is_told:
            assert lib.cuCtxSynchronize() == ILLEGAL_ADDRESS
            time.sleep(LATER_S)
        must("cuDevicePrimaryCtxReset_v2", 0)
        must("cuCtxSetCurrent", primary_context())
        works()
    time.sleep(HELD_BACK_S)
    works()


def goes_on_in_another() -> None:
    must("cuInit", 0)
    for _ in range(ROUNDS):
        other, faulty = c_void_p(), c_void_p()
        must("cuCtxCreate_v2", byref(other), 0, 0)
        must("cuCtxCreate_v2", byref(faulty), 0, 0)
        faults()
        time.sleep(LATER_S)
        must("cuCtxDestroy_v2", faulty)
        must("cuCtxSetCurrent", other)
        works()
        must("cuCtxDestroy_v2", other)


def asks_from_another() -> None:
    must("cuInit", 0)
    for _ in range(ROUNDS):
        other, faulty, stream = c_void_p(), c_void_p(), c_void_p()
        must("cuCtxCreate_v2", byref(other), 0, 0)
        must("cuCtxCreate_v2", byref(faulty), 0, 0)
        must("cuStreamCreate", byref(stream), 1)
        faults(behind=0, stream=stream, after_s=LATER_S)
        must("cuCtxSetCurrent", other)
        lib.cuStreamQuery(stream)
        must("cuCtxDestroy_v2", faulty)
        works()
        time.sleep(2 * LATER_S)
        works()
        must("cuCtxDestroy_v2", other)


def uses_an_event() -> None:
    primary_context()
    faults(behind=0)
    event, status = c_void_p(), NOT_READY
    lib.cuEventCreate(byref(event), 0)
    lib.cuEventRecord(event, c_void_p())
    while status == NOT_READY:
        status = lib.cuEventQuery(event)
    assert status == ILLEGAL_ADDRESS, status


def main() -> None:
    match sys.argv[1]:
        case "told":
            resets(True)
        case "untold":
            resets(False)
        case "other":
            goes_on_in_another()
        case "foreign":
            asks_from_another()
        case "event":
            uses_an_event()
    print("right")


if __name__ == "__main__":
    main()

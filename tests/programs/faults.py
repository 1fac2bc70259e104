"""A kernel that faults with many launches behind it, and what comes after its context: run as `faults.py WHAT`.

`told`: the program has learned of the fault before it resets the device. `untold`: it has not. `other`: it destroys the
context, and goes on in another. `foreign`: while the fault is to come, it asks for the stream with another context
current, and destroys the stream's; `nowhere`: with none current. `event`: it uses an event that is made after
the fault. While a context is lost, others go on: `apart`: each tells its own errors, `frees`: what they free is free,
`function`: their host functions end, `held`: their launches that are held back run. `keeps`: a lost context is lost
until its own end. `many`: of many contexts that have failed and ended, no error is another's.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from ctypes import byref, c_size_t, c_uint32, c_uint64, c_void_p

from cuda import kernels, lib, made, must, primary_context

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
.visible .entry add(.param .u64 where, .param .u64 what)
{
    .reg .b64 %rd<3>;
    .reg .b32 %r<4>;
    ld.param.u64 %rd1, [where];
    ld.param.u64 %rd2, [what];
    ld.global.u32 %r1, [%rd1];
    ld.global.u32 %r2, [%rd2];
    add.u32 %r3, %r1, %r2;
    st.global.u32 [%rd1], %r3;
    ret;
}
"""
WILD = 16
BEHIND = 1000
ROUNDS = 3
LATER_S = 0.02
# Errors above the limit are told within a second.
HELD_BACK_S = 1.2
SUCCESS, INVALID_VALUE, NOT_READY, ILLEGAL_ADDRESS = 0, 1, 600, 700
# Pieces of their own, which a free gives back to the server.
LARGE_BYTES = 64 << 20
# So large that a look at it takes long, and launches are held back.
MAPPED_BYTES, MAPPED = 64 << 20, 2
NON_BLOCKING, UNKNOWN_ATTRIBUTE, ATTACH_GLOBAL = 1, 9999, 1
CONTEXTS = 300


def allocated() -> c_uint64:
    memory = c_uint64()
    must("cuMemAlloc_v2", byref(memory), c_size_t(4))
    return memory


def registered(word: ctypes.Array[c_uint32] | None = None) -> ctypes.Array[c_uint32]:
    """Registers a word, which a kernel has used."""
    word = word or (c_uint32 * 1)(0)
    must("cuMemHostRegister_v2", word, c_size_t(4), 0)
    writes_to(word)
    return word


def writes_to(word: ctypes.Array[c_uint32]) -> None:
    """Has a kernel write to registered memory."""
    word[0] = 0
    [kernel] = kernels(PTX, "put")
    where, after_ns = c_uint64(ctypes.addressof(word)), c_uint64(0)
    arguments = (c_void_p * 2)(ctypes.addressof(where), ctypes.addressof(after_ns))
    must("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, c_void_p(), arguments, c_void_p())
    must("cuCtxSynchronize")
    assert word[0] == 1, word[0]


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


def context() -> c_void_p:
    must("cuInit", 0)
    return made("cuCtxCreate_v2", 0, 0)


def lost() -> c_void_p:
    """Returns a context that is lost, and is current."""
    faulty = context()
    faults(behind=0)
    assert lib.cuCtxSynchronize() == ILLEGAL_ADDRESS
    return faulty


def fails() -> None:
    """Makes a call whose error comes later."""
    lib.cuStreamSetAttribute(c_void_p(), UNKNOWN_ATTRIBUTE, (ctypes.c_ubyte * 64)())


def waits_in(where: c_void_p) -> int:
    must("cuCtxSetCurrent", where)
    return int(lib.cuCtxSynchronize())


def asks_from_nowhere() -> None:
    for _ in range(ROUNDS):
        other, faulty = context(), context()
        stream = made("cuStreamCreate", NON_BLOCKING)
        faults(behind=0, stream=stream, after_s=LATER_S)
        while lib.cuCtxPopCurrent_v2(byref(c_void_p())) == SUCCESS:
            pass
        lib.cuStreamQuery(stream)
        time.sleep(2 * LATER_S)
        must("cuCtxDestroy_v2", faulty)
        must("cuCtxSetCurrent", other)
        works()
        must("cuCtxDestroy_v2", other)


def tells_each_its_own() -> None:
    first, second, sound = context(), context(), context()
    for where in (first, second):
        must("cuCtxSetCurrent", where)
        fails()
    told = [waits_in(where) for where in (sound, first, second, first, second, sound)]
    assert told == [SUCCESS, INVALID_VALUE, INVALID_VALUE, SUCCESS, SUCCESS, SUCCESS], told
    lost()
    must("cuCtxSetCurrent", first)
    fails()
    told = [waits_in(where) for where in (second, first, first)]
    assert told == [SUCCESS, INVALID_VALUE, SUCCESS], told


def frees_meanwhile() -> None:
    sound = context()
    for _ in range(ROUNDS):
        must("cuCtxSetCurrent", sound)
        memory = made("cuMemAlloc_v2", c_size_t(LARGE_BYTES))
        stream, event = made("cuStreamCreate", NON_BLOCKING), made("cuEventCreate", 0)
        word = registered()
        faulty = lost()
        assert lib.cuStreamCreate(byref(c_void_p()), 0) == ILLEGAL_ADDRESS
        # Handles have their own context, whichever is current.
        must("cuEventDestroy_v2", event)
        must("cuStreamDestroy_v2", stream)
        # It says that the current context is lost; the memory is no longer registered.
        lib.cuMemHostUnregister(word)
        must("cuCtxSetCurrent", sound)
        must("cuMemFree_v2", memory)
        must("cuCtxDestroy_v2", faulty)
        must("cuCtxSetCurrent", sound)
        for _ in range(ROUNDS):
            memory = made("cuMemAlloc_v2", c_size_t(LARGE_BYTES))
            must("cuMemsetD8_v2", memory, 1, c_size_t(LARGE_BYTES))
            must("cuCtxSynchronize")
            must("cuMemFree_v2", memory)
        registered(word)
        must("cuMemHostUnregister", word)


def ends_functions_meanwhile() -> None:
    sound = context()
    stream = made("cuStreamCreate", NON_BLOCKING)
    ends, returned = threading.Event(), threading.Event()

    def function(_: int) -> None:
        ends.wait()
        returned.set()

    called = ctypes.CFUNCTYPE(None, c_void_p)(function)
    must("cuLaunchHostFunc", stream, called, c_void_p())
    lib.cuStreamQuery(stream)
    faulty = lost()
    ends.set()
    returned.wait()
    # The library learns a little later that it has returned.
    time.sleep(LATER_S)
    must("cuCtxDestroy_v2", faulty)
    must("cuCtxSetCurrent", sound)
    must("cuStreamSynchronize", stream)
    works()


def runs_what_is_held() -> None:
    """Launches without a pause, while contexts of another thread fault and end."""
    context()
    _, add = kernels(PTX, "put", "add")
    word, total = c_void_p(), allocated()
    must("cuMemHostAlloc", byref(word), c_size_t(MAPPED_BYTES), MAPPED)
    c_uint32.from_address(word.value or 0).value = 1
    must("cuMemsetD8_v2", total, 0, c_size_t(4))
    is_right = threading.Event()

    def fault_often() -> None:
        for _ in range(3 * ROUNDS):
            faulty = context()
            faults(behind=0, after_s=LATER_S)
            assert lib.cuCtxSynchronize() == ILLEGAL_ADDRESS
            time.sleep(LATER_S)
            must("cuCtxDestroy_v2", faulty)
        is_right.set()

    thread = threading.Thread(target=fault_often)
    thread.start()
    launches, value = 0, c_uint32()
    arguments = (c_void_p * 2)(ctypes.addressof(total), ctypes.addressof(word))
    while thread.is_alive():
        must("cuLaunchKernel", add, 1, 1, 1, 1, 1, 1, 0, c_void_p(), arguments, c_void_p())
        launches += 1
        if launches % 100 == 0:
            must("cuCtxSynchronize")
    must("cuMemcpyDtoH_v2", byref(value), total, c_size_t(4))
    assert value.value == launches and is_right.is_set(), (value.value, launches)


def stays_lost() -> None:
    other = context()
    must("cuCtxSetCurrent", context())
    memory, stream, event = allocated(), made("cuStreamCreate", NON_BLOCKING), made("cuEventCreate", 0)
    managed = c_uint64()
    must("cuMemAllocManaged", byref(managed), c_size_t(4), ATTACH_GLOBAL)
    faults(behind=0)
    assert lib.cuCtxSynchronize() == ILLEGAL_ADDRESS
    must("cuCtxDestroy_v2", other)
    told = {
        lib.cuMemAlloc_v2(byref(c_uint64()), c_size_t(4)),
        lib.cuStreamCreate(byref(c_void_p()), 0),
        lib.cuMemsetD8_v2(memory, 1, c_size_t(4)),
        lib.cuEventRecord(event, stream),
        lib.cuEventSynchronize(event),
        lib.cuStreamQuery(stream),
        lib.cuStreamSynchronize(stream),
        lib.cuMemPrefetchAsync(managed, c_size_t(4), 0, stream),
        lib.cuStreamAttachMemAsync(stream, managed, c_size_t(0), ATTACH_GLOBAL),
        lib.cuMemFree_v2(memory),
        lib.cuCtxSynchronize(),
    }
    assert told == {ILLEGAL_ADDRESS}, told


def ends_many() -> None:
    sound = context()
    for faulty in [context() for _ in range(CONTEXTS)]:
        must("cuCtxSetCurrent", faulty)
        fails()
        must("cuCtxDestroy_v2", faulty)
    must("cuCtxSetCurrent", sound)
    works()
    time.sleep(HELD_BACK_S)
    works()


CASES = {
    "told": lambda: resets(True),
    "untold": lambda: resets(False),
    "other": goes_on_in_another,
    "foreign": asks_from_another,
    "nowhere": asks_from_nowhere,
    "event": uses_an_event,
    "apart": tells_each_its_own,
    "frees": frees_meanwhile,
    "function": ends_functions_meanwhile,
    "held": runs_what_is_held,
    "keeps": stays_lost,
    "many": ends_many,
}


def main() -> None:
    CASES[sys.argv[1]]()
    print("right")


if __name__ == "__main__":
    main()

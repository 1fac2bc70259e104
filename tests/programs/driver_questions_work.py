"""Questions of `driver_answers.py` about memory, streams, events, launches, graphs and captures."""

from __future__ import annotations

import ctypes
import mmap
import threading
import time
from ctypes import byref, c_char, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p

from cuda import wide
from driver_asking import NOTHING, PTX, WILD, WILD_DEVICE, ZEROS, Question, State, call, got, must, q

# Attributes of pointers that do not depend on the machine.
POINTER_ATTRIBUTES = {
    "CONTEXT": 1,
    "MEMORY_TYPE": 2,
    "DEVICE_POINTER": 3,
    "HOST_POINTER": 4,
    "P2P_TOKENS": 5,
    "SYNC_MEMOPS": 6,
    "BUFFER_ID": 7,
    "IS_MANAGED": 8,
    "DEVICE_ORDINAL": 9,
    "RANGE_START_ADDR": 11,
    "RANGE_SIZE": 12,
    "MAPPED": 13,
    "none": 99,
}


def sync_memops(state: State) -> tuple[object, ...]:
    """Sets the attribute and reads it back: from the allocation's start, from its middle, and after
    unsetting it."""
    one, value = c_uint(1), c_uint(7)
    answers: list[object] = [call("cuPointerSetAttribute", byref(one), 6, state.memory)]
    answers += [call("cuPointerGetAttribute", byref(value), 6, state.memory), value.value]
    answers += [call("cuPointerGetAttribute", byref(value), 6, state.memory.value + 64), value.value]
    answers += [call("cuPointerSetAttribute", byref(c_uint(0)), 6, state.memory.value + 64)]
    answers += [call("cuPointerGetAttribute", byref(value), 6, state.memory), value.value]
    return tuple(answers)


def sync_memops_by_list(state: State) -> tuple[object, ...]:
    value = c_uint(7)
    must("cuPointerSetAttribute", byref(c_uint(5)), 6, state.memory)
    keys, places = (c_int * 1)(6), (c_void_p * 1)(ctypes.addressof(value))
    answer = call("cuPointerGetAttributes", 1, keys, places, state.memory)
    must("cuPointerSetAttribute", byref(c_uint(0)), 6, state.memory)
    return answer, value.value


def attribute_list(pointer: str) -> Question:
    def ask(state: State) -> tuple[object, ...]:
        values = [c_uint64(77) for _ in range(3)]
        keys = (c_int * 3)(1, 2, 8)
        places = (c_void_p * 3)(*map(ctypes.addressof, values))
        where = getattr(state, pointer) if pointer != "nothing" else c_void_p(ctypes.addressof(state.host))
        answer = call("cuPointerGetAttributes", 3, keys, places, where)
        return answer, bool(values[0].value), values[1].value & 0xFFFF_FFFF, values[2].value & 0xFF

    return ask


def registered_twice(state: State) -> tuple[str, ...]:
    page = mmap.mmap(-1, 8192)
    where = ctypes.addressof(c_char.from_buffer(page))
    calls = [("cuMemHostRegister_v2", where, 8192, 0)] * 2 + [("cuMemHostUnregister", where)] * 2
    return tuple(call(*each) for each in calls)


def registered_part(state: State) -> tuple[str, ...]:
    page = mmap.mmap(-1, 8192)
    where = ctypes.addressof(c_char.from_buffer(page))
    return (
        call("cuMemHostRegister_v2", where, 4096, 0),
        call("cuMemHostRegister_v2", where + 2048, 4096, 0),
        call("cuMemHostUnregister", where + 64),
        call("cuMemHostUnregister", where),
    )


def freed_twice(allocate: str, free: str, *rest: object) -> Question:
    def ask(_: State) -> tuple[str, ...]:
        made = got(allocate, *rest)
        return tuple(call(free, made) for _ in range(2))

    return ask


def freed_async_twice(state: State) -> tuple[str, ...]:
    made = got("cuMemAllocAsync", 4096, state.stream)
    return (
        call("cuMemFreeAsync", made, state.stream),
        call("cuMemFreeAsync", made, state.stream),
        call("cuMemFree_v2", made),
    )


def copied_2d(**fields: int) -> Question:
    """A pitched copy of 8 rows of 16 bytes from the host to the device, with some fields changed."""
    end = ["x", "y", "kind", "host", "device", "array", "pitch"]
    names = [*(field + "1" for field in end), *(field + "2" for field in end), "width", "height"]

    def ask(state: State) -> str:
        values = dict.fromkeys(names, 0)
        values |= {"kind1": 1, "host1": ctypes.addressof(state.host), "pitch1": 16, "kind2": 2, "pitch2": 16}
        values |= {"device2": state.memory.value or 0, "width": 16, "height": 8} | fields
        return call("cuMemcpy2D_v2", (c_uint64 * 16)(*(values[name] for name in names)))

    return ask


MEMORY: dict[str, Question] = {
    "cuMemAlloc null": q("cuMemAlloc_v2", None, 64),
    "cuMemAlloc of 0": q("cuMemAlloc_v2", c_uint64, 0),
    "cuMemAlloc of 2^62": q("cuMemAlloc_v2", c_uint64, 1 << 62),
    "cuMemAlloc of all": q("cuMemAlloc_v2", c_uint64, (1 << 64) - 1),
    "cuMemAllocPitch of 0": q("cuMemAllocPitch_v2", c_uint64, c_size_t, 0, 8, 4),
    "cuMemAllocPitch element of 3": q("cuMemAllocPitch_v2", c_uint64, c_size_t, 64, 8, 3),
    "cuMemAllocPitch null": q("cuMemAllocPitch_v2", None, None, 64, 8, 4),
    "cuMemFree wild": q("cuMemFree_v2", WILD_DEVICE),
    "cuMemFree of the middle": lambda s: call("cuMemFree_v2", s.memory.value + 256),
    "cuMemFree of freed": q("cuMemFree_v2", "freed_memory"),
    "cuMemFree of pinned": q("cuMemFree_v2", "pinned"),
    "cuMemFree twice": freed_twice("cuMemAlloc_v2", "cuMemFree_v2", 4096),
    "cuMemFreeHost wild": q("cuMemFreeHost", ZEROS),
    "cuMemFreeHost null": q("cuMemFreeHost", None),
    "cuMemFreeHost of device": q("cuMemFreeHost", "memory"),
    "cuMemFreeHost of the middle": lambda s: call("cuMemFreeHost", s.pinned.value + 64),
    "cuMemFreeHost twice": freed_twice("cuMemHostAlloc", "cuMemFreeHost", 4096, 0),
    "cuMemFreeAsync twice": freed_async_twice,
    "cuMemFreeAsync wild": q("cuMemFreeAsync", WILD_DEVICE, None),
    "cuMemFreeAsync of 0": q("cuMemFreeAsync", 0, None),
    "cuMemAllocAsync null": q("cuMemAllocAsync", None, 64, None),
    "cuMemAllocAsync of 0": q("cuMemAllocAsync", c_uint64, 0, None),
    "cuMemAllocAsync of 2^62": q("cuMemAllocAsync", c_uint64, 1 << 62, None),
    "cuMemAllocFromPoolAsync null pool": q("cuMemAllocFromPoolAsync", c_uint64, 64, None, None),
    "cuMemHostAlloc null": q("cuMemHostAlloc", None, 64, 0),
    "cuMemHostAlloc of 0": q("cuMemHostAlloc", c_void_p, 0, 0),
    "cuMemHostAlloc flags": q("cuMemHostAlloc", c_void_p, 64, 0x1000),
    "cuMemAllocHost of 0": q("cuMemAllocHost_v2", c_void_p, 0),
    "cuMemHostRegister null": q("cuMemHostRegister_v2", None, 64, 0),
    "cuMemHostRegister of 0": q("cuMemHostRegister_v2", ZEROS, 0, 0),
    "cuMemHostRegister flags": q("cuMemHostRegister_v2", ZEROS, 64, 0x1000),
    "cuMemHostRegister of pinned": q("cuMemHostRegister_v2", "pinned", 4096, 0),
    "cuMemHostRegister wild": q("cuMemHostRegister_v2", WILD, 4096, 0),
    "cuMemHostRegister twice": registered_twice,
    "cuMemHostRegister of a part": registered_part,
    "cuMemHostUnregister wild": q("cuMemHostUnregister", ZEROS),
    "cuMemHostUnregister of pinned": q("cuMemHostUnregister", "pinned"),
    "cuMemHostUnregister null": q("cuMemHostUnregister", None),
    "cuMemHostGetDevicePointer flags": q("cuMemHostGetDevicePointer_v2", c_uint64, "pinned", 7),
    "cuMemHostGetDevicePointer null": q("cuMemHostGetDevicePointer_v2", None, "pinned", 0),
    "cuMemHostGetDevicePointer wild": q("cuMemHostGetDevicePointer_v2", c_uint64, WILD, 0),
    "cuMemHostGetFlags wild": q("cuMemHostGetFlags", c_uint, ZEROS),
    "cuMemHostGetFlags null": q("cuMemHostGetFlags", None, "pinned"),
    "cuMemGetInfo null": q("cuMemGetInfo_v2", None, None),
    "cuMemGetAddressRange wild": q("cuMemGetAddressRange_v2", c_uint64, c_size_t, WILD_DEVICE),
    "cuMemGetAddressRange null": q("cuMemGetAddressRange_v2", None, None, "memory"),
    "cuMemGetAddressRange freed": q("cuMemGetAddressRange_v2", c_uint64, c_size_t, "freed_memory"),
    "cuMemGetAddressRange pinned": q("cuMemGetAddressRange_v2", c_uint64, c_size_t, "pinned"),
    "cuMemcpyHtoD null source": q("cuMemcpyHtoD_v2", "memory", None, 4),
    "cuMemcpyHtoD null target": q("cuMemcpyHtoD_v2", 0, ZEROS, 4),
    "cuMemcpyHtoD of 0": q("cuMemcpyHtoD_v2", 0, None, 0),
    "cuMemcpyHtoD freed": q("cuMemcpyHtoD_v2", "freed_memory", ZEROS, 4),
    "cuMemcpyHtoD too long": q("cuMemcpyHtoD_v2", "memory", "host", 8192),
    "cuMemcpyHtoD to host": q("cuMemcpyHtoD_v2", ZEROS, ZEROS, 4),
    "cuMemcpyHtoD to pinned": q("cuMemcpyHtoD_v2", "pinned", ZEROS, 4),
    "cuMemcpyHtoD from device": q("cuMemcpyHtoD_v2", "memory", "memory", 4),
    "cuMemcpyDtoH null target": q("cuMemcpyDtoH_v2", None, "memory", 4),
    "cuMemcpyDtoH null source": q("cuMemcpyDtoH_v2", ZEROS, 0, 4),
    "cuMemcpyDtoH too long": q("cuMemcpyDtoH_v2", "host", "memory", 8192),
    "cuMemcpyDtoH from host": q("cuMemcpyDtoH_v2", ZEROS, "host", 4),
    "cuMemcpyDtoD freed": q("cuMemcpyDtoD_v2", "memory", "freed_memory", 4),
    "cuMemcpyDtoD null": q("cuMemcpyDtoD_v2", "memory", 0, 4),
    "cuMemcpy host to host": q("cuMemcpy", "host", ZEROS, 4),
    "cuMemcpy null": q("cuMemcpy", 0, "memory", 4),
    "cuMemcpyHtoDAsync wild stream": q("cuMemcpyHtoDAsync_v2", "memory", ZEROS, 4, NOTHING),
    "cuMemcpyHtoDAsync freed": q("cuMemcpyHtoDAsync_v2", "freed_memory", ZEROS, 4, "stream"),
    "cuMemcpyHtoDAsync null": q("cuMemcpyHtoDAsync_v2", "memory", None, 4, "stream"),
    "cuMemcpy2D null": q("cuMemcpy2D_v2", None),
    "cuMemcpy2D": copied_2d(),
    "cuMemcpy2D pitch": copied_2d(pitch1=8),
    "cuMemcpy2D pitch of 0": copied_2d(pitch1=0, pitch2=0),
    "cuMemcpy2D width of 0": copied_2d(width=0),
    "cuMemcpy2D height of 0": copied_2d(height=0),
    "cuMemcpy2D kind": copied_2d(kind1=9),
    "cuMemcpy2D null source": copied_2d(host1=0),
    "cuMemcpy2D null target": copied_2d(device2=0),
    "cuMemcpy2D too high": copied_2d(height=300, pitch1=0, pitch2=16),
    "cuMemcpy2D pitch of 2^32": copied_2d(pitch1=1 << 32),
    "cuMemsetD8 null": q("cuMemsetD8_v2", 0, 0, 4),
    "cuMemsetD8 of 0": q("cuMemsetD8_v2", "memory", 0, 0),
    "cuMemsetD8 null of 0": q("cuMemsetD8_v2", 0, 0, 0),
    "cuMemsetD8 freed": q("cuMemsetD8_v2", "freed_memory", 0, 4),
    "cuMemsetD8 too long": q("cuMemsetD8_v2", "memory", 0, 8192),
    "cuMemsetD32 unaligned": lambda s: call("cuMemsetD32_v2", s.memory.value + 2, 0, 4),
    "cuMemsetD16 unaligned": lambda s: call("cuMemsetD16_v2", s.memory.value + 1, 0, 4),
    "cuMemsetD8 of host": q("cuMemsetD8_v2", ZEROS, 0, 4),
    "cuMemsetD8 of pinned": q("cuMemsetD8_v2", "pinned", 0, 4),
    "cuMemsetD2D8 pitch": q("cuMemsetD2D8_v2", "memory", 4, 0, 16, 8),
    "cuMemsetD2D32 unaligned pitch": q("cuMemsetD2D32_v2", "memory", 66, 0, 4, 8),
    "cuPointerGetAttribute null": q("cuPointerGetAttribute", None, 2, "memory"),
    "cuPointerSetAttribute null": q("cuPointerSetAttribute", None, 6, "memory"),
    "cuPointerSetAttribute of none": q("cuPointerSetAttribute", c_uint, 99, "memory"),
    "cuPointerSetAttribute of MEMORY_TYPE": q("cuPointerSetAttribute", c_uint, 2, "memory"),
    "cuPointerSetAttribute wild": q("cuPointerSetAttribute", c_uint, 6, WILD_DEVICE),
    "cuPointerSetAttribute freed": q("cuPointerSetAttribute", c_uint, 6, "freed_memory"),
    "cuPointerSetAttribute pinned": q("cuPointerSetAttribute", c_uint, 6, "pinned"),
    "cuPointerSetAttribute host": q("cuPointerSetAttribute", c_uint, 6, "host"),
    "SYNC_MEMOPS": sync_memops,
    "SYNC_MEMOPS by list": sync_memops_by_list,
    "cuPointerGetAttributes null": q("cuPointerGetAttributes", 1, None, None, "memory"),
    "cuPointerGetAttributes of 0": q("cuPointerGetAttributes", 0, None, None, "memory"),
    "cuPointerGetAttributes memory": attribute_list("memory"),
    "cuPointerGetAttributes freed": attribute_list("freed_memory"),
    "cuPointerGetAttributes pinned": attribute_list("pinned"),
    "cuPointerGetAttributes host": attribute_list("nothing"),
    "cuMemAddressReserve of 1": q("cuMemAddressReserve", c_uint64, 1, 0, 0, 0),
    "cuMemAddressReserve null": q("cuMemAddressReserve", None, 2 << 20, 0, 0, 0),
    "cuMemAddressReserve flags": q("cuMemAddressReserve", c_uint64, 2 << 20, 0, 0, 7),
    "cuMemAddressFree wild": q("cuMemAddressFree", WILD_DEVICE, 2 << 20),
    "cuMemCreate null": q("cuMemCreate", c_uint64, 2 << 20, None, 0),
    "cuMemRelease of none": q("cuMemRelease", 0),
    "cuMemUnmap wild": q("cuMemUnmap", 2 << 20, 2 << 20),
    "cuMemPoolCreate null": q("cuMemPoolCreate", c_void_p, None),
    "cuMemPoolDestroy null": q("cuMemPoolDestroy", None),
    "cuMemPoolTrimTo null": q("cuMemPoolTrimTo", None, 0),
    "cuMemPoolGetAttribute null": q("cuMemPoolGetAttribute", None, 4, c_uint64),
    "cuDeviceGetDefaultMemPool device": q("cuDeviceGetDefaultMemPool", c_void_p, 99),
    "cuArrayCreate null": q("cuArrayCreate_v2", c_void_p, None),
    "cuArrayCreate of zeros": q("cuArrayCreate_v2", c_void_p, NOTHING),
    "cuArrayDestroy null": q("cuArrayDestroy", None),
    "cuTexObjectCreate null": q("cuTexObjectCreate", c_uint64, None, None, None),
    "cuTexObjectDestroy of 0": q("cuTexObjectDestroy", 0),
    "cuIpcGetMemHandle null": q("cuIpcGetMemHandle", None, "memory"),
}
for kind in ["memory", "freed_memory", "pinned", "host"]:
    for name, number in POINTER_ATTRIBUTES.items():
        MEMORY[f"cuPointerGetAttribute {name} {kind}"] = q("cuPointerGetAttribute", ZEROS, number, kind)


def elapsed(first: str, second: str, record: str = "") -> Question:
    def ask(state: State) -> str:
        for event in record.split():
            must("cuEventRecord", getattr(state, event), None)
        must("cuCtxSynchronize")
        return call("cuEventElapsedTime", byref(c_float()), getattr(state, first), getattr(state, second))

    return ask


def destroyed_then(make: str, flags: int, destroy: str, use: str, *rest: object) -> Question:
    def ask(_: State) -> str:
        made = got(make, flags)
        must(destroy, made)
        return call(use, made, *map(wide, rest))

    return ask


class CopyAttributes(ctypes.Structure):
    """`CUmemcpyAttributes`, with the kind and number of each place"""

    _fields_ = (("order", c_uint), ("places", c_int * 4), ("flags", c_uint))


def batch(
    *orders: int,
    copies: int = 3,
    firsts: tuple[int, ...] = (),
    stream: object = "stream",
    flags: int = 0,
    null: int = -1,
) -> Question:
    """A batch of copies of 8 bytes from pinned memory, with attributes of these orders, and what it says of a copy; the
    array of number `null` is missing, the copy of number `null` - 10 has no source."""

    def ask(state: State) -> tuple[object, ...]:
        to = [state.memory.value + 8 * index for index in range(copies)]
        sources = [0 if index == null - 10 else state.pinned.value for index in range(copies)]
        arrays: list[object] = [(c_uint64 * copies)(*each) for each in (to, sources, [8] * copies)]
        arrays.append((CopyAttributes * len(orders))(*(CopyAttributes(order, (0,) * 4, flags) for order in orders)))
        arrays.append((c_size_t * len(orders))(*(firsts or range(len(orders)))))
        if 0 <= null < len(arrays):
            arrays[null] = None
        where = getattr(state, stream) if isinstance(stream, str) else stream
        numbers, failed = (copies, len(orders)), c_size_t(77)
        answer = call("cuMemcpyBatchAsync", *arrays[:3], numbers[0], *arrays[3:], numbers[1], byref(failed), where)
        status = call("cuMemcpyBatchAsync_v2", *arrays[:3], numbers[0], *arrays[3:], numbers[1], where)
        must("cuStreamSynchronize", state.stream)
        return answer, failed.value, status

    return ask


def batch_of_a_held_stream(device: bool) -> Question:
    """Whether a batch returns before its stream goes on, if its source, which is to be read during the call, is memory
    of the device or pinned."""

    def ask(state: State) -> tuple[object, ...]:
        stream, went_on = got("cuStreamCreate", 1), threading.Event()

        @ctypes.CFUNCTYPE(None, c_void_p)
        def hold(_: object) -> None:
            time.sleep(1)
            went_on.set()

        must("cuLaunchHostFunc", stream, hold, None)
        source = state.memory.value + 2048 if device else state.pinned.value
        one = [(c_uint64 * 1)(value) for value in (state.memory.value, source, 8)]
        attributes = (byref(CopyAttributes(2)), byref(c_size_t(0)), 1)
        answer = call("cuMemcpyBatchAsync_v2", *one, 1, *attributes, stream)
        when = "later" if went_on.is_set() else "before"
        must("cuStreamSynchronize", stream)
        must("cuStreamDestroy_v2", stream)
        return answer, when

    return ask


STREAMS: dict[str, Question] = {
    "batch": batch(1),
    "batch during the call": batch(2),
    "batch at any time": batch(3),
    "batch of three orders": batch(1, 2, 3),
    "batch of order 0": batch(0),
    "batch of order 4": batch(1, 4),
    "batch of flags 1": batch(1, flags=1),
    "batch of flags 2": batch(1, flags=2),
    "batch without attributes": batch(),
    "batch of no copies": batch(1, copies=0),
    "batch of no copies, no attributes": batch(copies=0),
    "batch of more attributes than copies": batch(1, 1, copies=1),
    "batch, a first of 1": batch(1, firsts=(1,)),
    "batch, firsts that do not ascend": batch(1, 3, firsts=(0, 0)),
    "batch, a first beyond all": batch(1, 3, firsts=(0, 3)),
    "batch, null stream": batch(1, stream=None),
    "batch, legacy stream": batch(1, stream=1),
    "batch, per-thread stream": batch(1, stream=2),
    "batch, freed stream": batch(1, stream="freed_stream"),
    "batch, no source": batch(1, null=12),
    "batch, no destinations": batch(1, null=0),
    "batch, no sizes": batch(1, null=2),
    "batch, null attributes": batch(1, null=3),
    "batch, null indices": batch(1, null=4),
    "batch of a held stream, pinned": batch_of_a_held_stream(device=False),
    "batch of a held stream, device": batch_of_a_held_stream(device=True),
    "cuStreamCreate null": q("cuStreamCreate", None, 0),
    "cuStreamCreate flags": q("cuStreamCreate", c_void_p, 99),
    "cuStreamCreateWithPriority flags": q("cuStreamCreateWithPriority", c_void_p, 99, 0),
    "cuStreamCreateWithPriority 1000": q("cuStreamCreateWithPriority", c_void_p, 1, 1000),
    "cuStreamSynchronize freed": q("cuStreamSynchronize", "freed_stream"),
    "cuStreamQuery freed": q("cuStreamQuery", "freed_stream"),
    "cuStreamDestroy freed": q("cuStreamDestroy_v2", "freed_stream"),
    "cuStreamDestroy null": q("cuStreamDestroy_v2", None),
    "cuStreamDestroy legacy": q("cuStreamDestroy_v2", 1),
    "cuStreamDestroy per thread": q("cuStreamDestroy_v2", 2),
    "cuStreamSynchronize zeros": q("cuStreamSynchronize", NOTHING),
    "cuStreamSynchronize event": q("cuStreamSynchronize", "event"),
    "cuStreamGetFlags null": q("cuStreamGetFlags", "stream", None),
    "cuStreamGetFlags of null": q("cuStreamGetFlags", None, c_uint),
    "cuStreamGetPriority null": q("cuStreamGetPriority", "stream", None),
    "cuStreamGetCtx null": q("cuStreamGetCtx", "stream", None),
    "cuStreamGetCtx of null": q("cuStreamGetCtx", None, c_void_p),
    "cuStreamGetId null": q("cuStreamGetId", "stream", None),
    "cuStreamGetId of null": q("cuStreamGetId", None, c_uint64),
    "cuStreamWaitEvent null": q("cuStreamWaitEvent", "stream", None, 0),
    "cuStreamWaitEvent flags": q("cuStreamWaitEvent", "stream", "event", 99),
    "cuStreamWaitEvent unrecorded": q("cuStreamWaitEvent", "stream", "untimed", 0),
    "cuStreamWaitEvent freed": q("cuStreamWaitEvent", "stream", "freed_event", 0),
    "cuStreamAddCallback null": q("cuStreamAddCallback", "stream", None, None, 0),
    "cuStreamAddCallback flags": q("cuStreamAddCallback", "stream", NOTHING, None, 7),
    "cuLaunchHostFunc null": q("cuLaunchHostFunc", "stream", None, None),
    "cuStreamAttachMemAsync wild": q("cuStreamAttachMemAsync", "stream", WILD_DEVICE, 0, 4),
    "cuStreamWaitValue32 null": q("cuStreamWaitValue32_v2", "stream", 0, 1, 0),
    "cuStreamWaitValue32 unaligned": lambda s: call("cuStreamWaitValue32_v2", s.stream, s.memory.value + 2, 0, 0),
    "cuStreamWriteValue32 null": q("cuStreamWriteValue32_v2", "stream", 0, 1, 0),
    "cuStreamWriteValue32 freed": q("cuStreamWriteValue32_v2", "stream", "freed_memory", 1, 0),
    "cuStreamWriteValue32 flags": q("cuStreamWriteValue32_v2", "stream", "memory", 1, 99),
    "cuStreamCopyAttributes null": q("cuStreamCopyAttributes", None, None),
    "cuStreamGetAttribute of none": q("cuStreamGetAttribute", "stream", 99, ZEROS),
    "cuStreamGetAttribute null": q("cuStreamGetAttribute", "stream", 3, None),
    "cuStreamSetAttribute null": q("cuStreamSetAttribute", "stream", 3, None),
    "cuEventCreate null": q("cuEventCreate", None, 0),
    "cuEventCreate flags": q("cuEventCreate", c_void_p, 0x80),
    "cuEventCreate interprocess timed": q("cuEventCreate", c_void_p, 4),
    "cuEventQuery unrecorded": q("cuEventQuery", "untimed"),
    "cuEventSynchronize unrecorded": q("cuEventSynchronize", "untimed"),
    "cuEventQuery freed": q("cuEventQuery", "freed_event"),
    "cuEventRecord freed": q("cuEventRecord", "freed_event", None),
    "cuEventDestroy freed": q("cuEventDestroy_v2", "freed_event"),
    "cuEventQuery zeros": q("cuEventQuery", NOTHING),
    "cuEventQuery stream": q("cuEventQuery", "stream"),
    "cuEventRecord on freed stream": q("cuEventRecord", "event", "freed_stream"),
    "cuEventRecordWithFlags flags": q("cuEventRecordWithFlags", "event", "stream", 99),
    "cuEventElapsedTime unrecorded": elapsed("event", "event"),
    "cuEventElapsedTime untimed": elapsed("event", "untimed", "event untimed"),
    "cuEventElapsedTime same": elapsed("event", "event", "event"),
    "cuEventElapsedTime null": q("cuEventElapsedTime", None, "event", "event"),
    "cuEventElapsedTime null event": q("cuEventElapsedTime", c_float, None, "event"),
    "destroyed stream": destroyed_then("cuStreamCreate", 1, "cuStreamDestroy_v2", "cuStreamSynchronize"),
    "destroyed event": destroyed_then("cuEventCreate", 0, "cuEventDestroy_v2", "cuEventSynchronize"),
}


class LaunchConfig(ctypes.Structure):
    _fields_ = (
        ("dims", c_uint * 7),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("count", c_uint),
    )


def launched(
    grid: tuple[int, int, int] = (1, 1, 1), block: tuple[int, int, int] = (1, 1, 1), shared: int = 0
) -> Question:
    return q("cuLaunchKernel", "empty", *grid, *block, shared, "stream", None, None)


def attributed(kind: int, *words: int, grid: int = 4, count: int = 1, null: bool = False) -> Question:
    """A launch with one attribute, whose value begins with `words`."""

    def ask(state: State) -> tuple[str, str]:
        attribute = (c_uint * 18)(kind, 0, *words)
        places = None if null else ctypes.addressof(attribute)
        config = LaunchConfig((grid, 1, 1, 1, 1, 1, 0), state.stream, places, count)
        answers = call("cuLaunchKernelEx", byref(config), state.empty, None, None), call("cuCtxSynchronize")
        return answers

    return ask


def packed(size: int, *more: int) -> Question:
    def ask(state: State) -> tuple[str, str]:
        buffer, length = c_uint64(state.memory.value or 0), c_size_t(size)
        extra = (c_void_p * 8)(1, ctypes.addressof(buffer), 2, ctypes.addressof(length), *more)
        arguments = [state.function, 1, 1, 1, 1, 1, 1, 0, state.stream, None, extra]
        return call("cuLaunchKernel", *arguments), call("cuCtxSynchronize")

    return ask


def unloaded(state: State) -> tuple[str, ...]:
    module = got("cuModuleLoadData", PTX + b"\0")
    function = got("cuModuleGetFunction", module, b"nothing")
    answers = [call("cuModuleUnload", module), call("cuModuleUnload", module)]
    answers.append(call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, None, None))
    return tuple(answers)


LAUNCHES: dict[str, Question] = {
    "plain": launched(),
    "null function": q("cuLaunchKernel", None, 1, 1, 1, 1, 1, 1, 0, None, None, None),
    "zeros as function": q("cuLaunchKernel", NOTHING, 1, 1, 1, 1, 1, 1, 0, None, None, None),
    "module as function": q("cuLaunchKernel", "module", 1, 1, 1, 1, 1, 1, 0, None, None, None),
    "freed stream": q("cuLaunchKernel", "empty", 1, 1, 1, 1, 1, 1, 0, "freed_stream", None, None),
    "no arguments": q("cuLaunchKernel", "function", 1, 1, 1, 1, 1, 1, 0, None, None, None),
    "grid of 0": launched(grid=(0, 1, 1)),
    "grid y of 65536": launched(grid=(1, 65536, 1)),
    "grid z of 65536": launched(grid=(1, 1, 65536)),
    "block of 0": launched(block=(1, 0, 1)),
    "block of 1025": launched(block=(1025, 1, 1)),
    "block z of 65": launched(block=(1, 1, 65)),
    "block of 64x64": launched(block=(64, 64, 1)),
    "shared memory of 48 KiB": launched(shared=49152),
    "shared memory of 49 KiB": launched(shared=49153),
    "shared memory of 1 GiB": launched(shared=1 << 30),
    "packed": packed(8),
    "packed short": packed(4),
    "packed long": packed(64),
    "packed unknown key": packed(8, 9),
    "Ex null": q("cuLaunchKernelEx", None, "empty", None, None),
    "Ex null attributes": attributed(0, null=True),
    "Ex attribute of none": attributed(99),
    "Ex ignored": attributed(0),
    "Ex cluster of 1": attributed(4, 1, 1, 1),
    "Ex cluster of 0 0 0": attributed(4, 0, 0, 0),
    "Ex cluster of 0 1 1": attributed(4, 0, 1, 1),
    "Ex cluster of 2 1 0": attributed(4, 2, 1, 0),
    "Ex cluster of 3 in a grid of 4": attributed(4, 3, 1, 1),
    "Ex cluster of 1024": attributed(4, 1024, 1, 1, grid=1024),
    "Ex cooperative": attributed(2, 1),
    "Ex priority 1000": attributed(8, 1000),
    "Ex 65 attributes": attributed(0, count=65, null=True),
    "cooperative null": q("cuLaunchCooperativeKernel", None, 1, 1, 1, 1, 1, 1, 0, None, None),
    "cooperative too large": q("cuLaunchCooperativeKernel", "empty", 1 << 20, 1, 1, 1024, 1, 1, 0, "stream", None),
    "unloaded": unloaded,
    "cuModuleLoadData null": q("cuModuleLoadData", c_void_p, None),
    "cuModuleLoadData nonsense": q("cuModuleLoadData", c_void_p, b"nonsense\0"),
    "cuModuleLoadData empty": q("cuModuleLoadData", c_void_p, b"\0\0\0\0\0\0\0\0"),
    "cuModuleLoadData null output": q("cuModuleLoadData", None, PTX),
    "cuModuleLoad missing file": q("cuModuleLoad", c_void_p, b"/no/such/file"),
    "cuModuleLoad null": q("cuModuleLoad", c_void_p, None),
    "cuModuleGetFunction missing": q("cuModuleGetFunction", c_void_p, "module", b"missing"),
    "cuModuleGetFunction empty": q("cuModuleGetFunction", c_void_p, "module", b""),
    "cuModuleGetFunction null name": q("cuModuleGetFunction", c_void_p, "module", None),
    "cuModuleGetFunction null": q("cuModuleGetFunction", None, "module", b"store"),
    "cuModuleGetFunction of a variable": q("cuModuleGetFunction", c_void_p, "module", b"word"),
    "cuModuleGetGlobal missing": q("cuModuleGetGlobal_v2", c_uint64, c_size_t, "module", b"missing"),
    "cuModuleGetGlobal of a kernel": q("cuModuleGetGlobal_v2", c_uint64, c_size_t, "module", b"store"),
    "cuModuleGetGlobal null": q("cuModuleGetGlobal_v2", None, None, "module", b"word"),
    "cuModuleGetGlobal null name": q("cuModuleGetGlobal_v2", c_uint64, c_size_t, "module", None),
    "cuModuleUnload null": q("cuModuleUnload", None),
    "cuModuleGetLoadingMode null": q("cuModuleGetLoadingMode", None),
    "cuModuleGetFunctionCount null": q("cuModuleGetFunctionCount", None, "module"),
    "cuFuncGetAttribute of none": q("cuFuncGetAttribute", c_int, 99, "function"),
    "cuFuncGetAttribute null": q("cuFuncGetAttribute", None, 0, "function"),
    "cuFuncGetAttribute null function": q("cuFuncGetAttribute", c_int, 0, None),
    "cuFuncSetAttribute read only": q("cuFuncSetAttribute", "function", 0, 1),
    "cuFuncSetAttribute of none": q("cuFuncSetAttribute", "function", 99, 1),
    "cuFuncSetAttribute shared of 1 GiB": q("cuFuncSetAttribute", "function", 8, 1 << 30),
    "cuFuncSetAttribute shared of -1": q("cuFuncSetAttribute", "function", 8, -1),
    "cuFuncSetAttribute carveout of 101": q("cuFuncSetAttribute", "function", 9, 101),
    "cuFuncSetCacheConfig of none": q("cuFuncSetCacheConfig", "function", 17),
    "cuFuncGetModule null": q("cuFuncGetModule", None, "function"),
    "cuFuncGetName null": q("cuFuncGetName", None, "function"),
    "cuFuncGetParamInfo past": q("cuFuncGetParamInfo", "function", 1, c_size_t, c_size_t),
    "cuFuncGetParamInfo null": q("cuFuncGetParamInfo", "function", 0, None, None),
    "occupancy null": q("cuOccupancyMaxActiveBlocksPerMultiprocessor", None, "function", 32, 0),
    "occupancy null function": q("cuOccupancyMaxActiveBlocksPerMultiprocessor", c_int, None, 32, 0),
    "occupancy block of 0": q("cuOccupancyMaxActiveBlocksPerMultiprocessor", c_int, "function", 0, 0),
    "occupancy block of -1": q("cuOccupancyMaxActiveBlocksPerMultiprocessor", c_int, "function", -1, 0),
    "occupancy block of 2048": q("cuOccupancyMaxActiveBlocksPerMultiprocessor", c_int, "function", 2048, 0),
    "occupancy flags": q("cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", c_int, "function", 32, 0, 99),
    "cuLinkCreate null": q("cuLinkCreate_v2", 0, None, None, None),
    "cuLinkComplete null": q("cuLinkComplete", None, c_void_p, c_size_t),
    "cuLinkDestroy null": q("cuLinkDestroy", None),
    "cuLibraryLoadData null": q("cuLibraryLoadData", c_void_p, None, None, None, 0, None, None, 0),
    "cuLibraryGetKernel null": q("cuLibraryGetKernel", c_void_p, None, b"store"),
    "cuLibraryUnload null": q("cuLibraryUnload", None),
    "cuKernelGetFunction null": q("cuKernelGetFunction", c_void_p, None),
}


def listed(function: str, subject: str, arrays: int, room: int | None) -> Question:
    """Asks for a graph's list with room for `room` entries in each array, or without arrays;
    returns the status, the count and the first entry."""

    def ask(state: State) -> tuple[object, ...]:
        places = [(c_uint64 * 16)(*[99] * 16) for _ in range(arrays)]
        count = c_size_t(room if room is not None else 5)
        given = places if room is not None else [None] * arrays
        answer = call(function, getattr(state, subject), *given, byref(count))
        firsts = ["kept" if place[0] == 99 else "null" if place[0] == 0 else "node" for place in places[:1]]
        return answer, count.value, *firsts

    return ask


GRAPHS: dict[str, Question] = {
    "cuGraphCreate null": q("cuGraphCreate", None, 0),
    "cuGraphCreate flags": q("cuGraphCreate", c_void_p, 7),
    "cuGraphDestroy null": q("cuGraphDestroy", None),
    "cuGraphDestroy freed": q("cuGraphDestroy", "freed_graph"),
    "cuGraphAddEmptyNode null": q("cuGraphAddEmptyNode", None, "graph", None, 0),
    "cuGraphAddEmptyNode null graph": q("cuGraphAddEmptyNode", c_void_p, None, None, 0),
    "cuGraphAddEmptyNode null dependencies": q("cuGraphAddEmptyNode", c_void_p, "graph", None, 1),
    "cuGraphAddEmptyNode zero dependency": q("cuGraphAddEmptyNode", c_void_p, "graph", ZEROS, 1),
    "cuGraphAddKernelNode null": q("cuGraphAddKernelNode_v2", c_void_p, "graph", None, 0, None),
    "cuGraphAddMemsetNode null": q("cuGraphAddMemsetNode", c_void_p, "graph", None, 0, None, "context"),
    "cuGraphAddMemcpyNode null": q("cuGraphAddMemcpyNode", c_void_p, "graph", None, 0, None, "context"),
    "cuGraphAddHostNode null": q("cuGraphAddHostNode", c_void_p, "graph", None, 0, None),
    "cuGraphAddChildGraphNode null": q("cuGraphAddChildGraphNode", c_void_p, "graph", None, 0, None),
    "cuGraphAddEventRecordNode null": q("cuGraphAddEventRecordNode", c_void_p, "graph", None, 0, None),
    "cuGraphInstantiate null": q("cuGraphInstantiateWithFlags", None, "graph", 0),
    "cuGraphInstantiate null graph": q("cuGraphInstantiateWithFlags", c_void_p, None, 0),
    "cuGraphInstantiate flags": q("cuGraphInstantiateWithFlags", c_void_p, "graph", 0x1000),
    "cuGraphLaunch null": q("cuGraphLaunch", None, None),
    "cuGraphLaunch zeros": q("cuGraphLaunch", NOTHING, None),
    "cuGraphUpload null": q("cuGraphUpload", None, None),
    "cuGraphExecDestroy null": q("cuGraphExecDestroy", None),
    "cuGraphClone null": q("cuGraphClone", None, "graph"),
    "cuGraphClone null graph": q("cuGraphClone", c_void_p, None),
    "cuGraphNodeGetType null": q("cuGraphNodeGetType", "first", None),
    "cuGraphNodeGetType null node": q("cuGraphNodeGetType", None, c_int),
    "cuGraphNodeFindInClone foreign": q("cuGraphNodeFindInClone", c_void_p, "first", "graph"),
    "cuGraphKernelNodeGetParams of empty": q("cuGraphKernelNodeGetParams_v2", "first", ZEROS),
    "cuGraphDestroyNode null": q("cuGraphDestroyNode", None),
    "cuGraphAddDependencies null": q("cuGraphAddDependencies", "graph", None, None, 1),
    "cuGraphAddDependencies of 0": q("cuGraphAddDependencies", "graph", None, None, 0),
    "cuGraphAddDependencies again": lambda s: call(
        "cuGraphAddDependencies", s.graph, byref(s.first), byref(s.second), 1
    ),
    "cuGraphAddDependencies itself": lambda s: call(
        "cuGraphAddDependencies", s.graph, byref(s.first), byref(s.first), 1
    ),
    "cuGraphRemoveDependencies none": lambda s: call(
        "cuGraphRemoveDependencies", s.graph, byref(s.second), byref(s.first), 1
    ),
    "cuGraphGetNodes null count": q("cuGraphGetNodes", "graph", ZEROS, None),
    "cuGraphGetNodes null graph": q("cuGraphGetNodes", None, ZEROS, c_size_t),
    "cuGraphGetEdges one array": q("cuGraphGetEdges", "graph", ZEROS, None, c_size_t),
    "cuGraphDebugDotPrint null": q("cuGraphDebugDotPrint", "graph", None, 0),
    "cuUserObjectCreate null": q("cuUserObjectCreate", c_void_p, None, None, 1, 1),
    "cuUserObjectRelease null": q("cuUserObjectRelease", None, 1),
}
for function, subject, arrays in [
    ("cuGraphGetNodes", "graph", 1),
    ("cuGraphGetRootNodes", "graph", 1),
    ("cuGraphGetEdges", "graph", 2),
    ("cuGraphGetEdges_v2", "graph", 3),
    ("cuGraphNodeGetDependencies", "second", 1),
    ("cuGraphNodeGetDependencies_v2", "second", 2),
    ("cuGraphNodeGetDependentNodes", "first", 1),
    ("cuGraphNodeGetDependentNodes_v2", "first", 2),
    ("cuGraphNodeGetDependencies", "first", 1),
]:
    for room in [None, 0, 1, 3]:
        GRAPHS[f"{function} {subject} room {room}"] = listed(function, subject, arrays, room)


def capturing(function: str, *arguments: object, mode: int = 0, end: bool = True) -> Question:
    """A call while the stream captures, and the status of the capture's end."""

    def ask(state: State) -> tuple[object, ...]:
        stream = got("cuStreamCreate", 1)
        must("cuStreamBeginCapture_v2", stream, mode)
        given = {"captured": stream, **vars(state)}
        real = [given[each] if isinstance(each, str) else each for each in arguments]
        real = [byref(each()) if isinstance(each, type) else each for each in real]
        answers = [call(function, *real)]
        if end:
            graph = c_void_p()
            answers += [call("cuStreamEndCapture", stream, byref(graph)), "graph" if graph else "none"]
        status = c_int()
        answers += [call("cuStreamIsCapturing", stream, byref(status)), str(status.value)]
        call("cuStreamDestroy_v2", stream)
        return tuple(answers)

    return ask


def query_captured(mode: int) -> Question:
    """A query of an event that was recorded in a capture."""

    def ask(state: State) -> str:
        stream, event, graph = got("cuStreamCreate", 1), got("cuEventCreate", 0), c_void_p()
        must("cuStreamBeginCapture_v2", stream, mode)
        must("cuEventRecord", event, stream)
        answer = call("cuEventQuery", event)
        call("cuStreamEndCapture", stream, byref(graph))
        must("cuStreamDestroy_v2", stream)
        must("cuEventDestroy_v2", event)
        return answer

    return ask


def into_graph(state: State) -> tuple[str, ...]:
    """A capture into a graph of the program's, ended without a place for the graph."""
    stream, graph, count = got("cuStreamCreate", 1), got("cuGraphCreate", 0), c_size_t()
    answers = [call("cuStreamBeginCaptureToGraph", stream, graph, None, None, 0, 0)]
    answers.append(call("cuLaunchKernel", state.empty, 1, 1, 1, 1, 1, 1, 0, stream, None, None))
    answers.append(call("cuStreamEndCapture", stream, None))
    answers.append(call("cuGraphGetNodes", graph, None, byref(count)))
    must("cuStreamDestroy_v2", stream)
    return *answers, str(count.value)


def unjoined(state: State) -> tuple[str, ...]:
    """Another stream joins a capture and is never joined back."""
    first, second = got("cuStreamCreate", 1), got("cuStreamCreate", 1)
    must("cuStreamBeginCapture_v2", first, 0)
    must("cuEventRecord", state.event, first)
    must("cuStreamWaitEvent", second, state.event, 0)
    must("cuLaunchKernel", state.empty, 1, 1, 1, 1, 1, 1, 0, second, None, None)
    graph = c_void_p()
    answers = (call("cuStreamEndCapture", second, byref(graph)), call("cuStreamEndCapture", first, byref(graph)))
    must("cuStreamDestroy_v2", first)
    must("cuStreamDestroy_v2", second)
    return answers


def side_stream(works: bool, then: str) -> Question:
    """A stream that joined a capture, with work of its own or without, is destroyed or used
    elsewhere."""

    def ask(state: State) -> tuple[str, ...]:
        first, second = got("cuStreamCreate", 1), got("cuStreamCreate", 1)
        must("cuStreamBeginCapture_v2", first, 1)
        must("cuLaunchKernel", state.empty, 1, 1, 1, 1, 1, 1, 0, first, None, None)
        must("cuEventRecord", state.event, first)
        must("cuStreamWaitEvent", second, state.event, 0)
        if works:
            must("cuLaunchKernel", state.empty, 1, 1, 1, 1, 1, 1, 0, second, None, None)
        status, number, graph, nodes, count = c_int(), c_uint64(), c_void_p(), c_void_p(), c_size_t()
        asked = [byref(status), byref(number), byref(graph), byref(nodes), byref(count)]
        must("cuStreamGetCaptureInfo_v2", second, *asked)
        if then == "destroyed":
            answers = [call("cuStreamDestroy_v2", second)]
        elif then == "nowhere":
            answers = [call("cuStreamUpdateCaptureDependencies", second, None, 0, 1)]
        else:
            node = got("cuGraphAddEmptyNode", graph, nodes, count if then == "added" else 0)
            answers = [call("cuStreamUpdateCaptureDependencies", second, byref(node), 1, 1)]
            if then == "added, then work":
                answers += [call("cuLaunchKernel", state.empty, 1, 1, 1, 1, 1, 1, 0, second, None, None)]
        answers += [call("cuStreamEndCapture", first, byref(graph)), "graph" if graph else "none"]
        must("cuStreamDestroy_v2", first)
        if then != "destroyed":
            must("cuStreamDestroy_v2", second)
        return tuple(answers)

    return ask


def batch_captured(state: State) -> tuple[object, ...]:
    one = [(c_uint64 * 1)(value) for value in (state.memory.value, state.pinned.value, 8)]
    attributes = (byref(CopyAttributes(1)), byref(c_size_t(0)), 1)
    return capturing("cuMemcpyBatchAsync_v2", *one, 1, *attributes, "captured")(state)


CAPTURES: dict[str, Question] = {
    "into a graph, end null": into_graph,
    "begin null stream": q("cuStreamBeginCapture_v2", None, 0),
    "begin legacy stream": q("cuStreamBeginCapture_v2", 1, 0),
    "begin mode of none": q("cuStreamBeginCapture_v2", "stream", 9),
    "begin freed stream": q("cuStreamBeginCapture_v2", "freed_stream", 0),
    "end without begin": q("cuStreamEndCapture", "stream", c_void_p),
    "end null": q("cuStreamEndCapture", "stream", None),
    "is capturing null": q("cuStreamIsCapturing", "stream", None),
    "info null": q("cuStreamGetCaptureInfo_v2", "stream", None, None, None, None, None),
    "exchange mode of none": lambda _: call("cuThreadExchangeStreamCaptureMode", byref(c_int(9))),
    "begin twice": capturing("cuStreamBeginCapture_v2", "captured", 0),
    "end null output": capturing("cuStreamEndCapture", "captured", None, end=False),
    "synchronize the stream": capturing("cuStreamSynchronize", "captured"),
    "query the stream": capturing("cuStreamQuery", "captured"),
    "synchronize the context": capturing("cuCtxSynchronize"),
    "allocate": capturing("cuMemAlloc_v2", c_uint64, 64),
    "allocate relaxed": capturing("cuMemAlloc_v2", c_uint64, 64, mode=2),
    "allocate async": capturing("cuMemAllocAsync", c_uint64, 64, "captured"),
    "copy": capturing("cuMemcpyHtoD_v2", "memory", ZEROS, 4),
    "copy relaxed": capturing("cuMemcpyHtoD_v2", "memory", ZEROS, 4, mode=2),
    "work on the legacy stream": capturing("cuMemsetD8Async", "memory", 0, 4, None),
    "work on another stream": capturing("cuMemsetD8Async", "memory", 0, 4, "stream"),
    "launch with a null function": capturing("cuLaunchKernel", None, 1, 1, 1, 1, 1, 1, 0, "captured", None, None),
    "launch with a grid of 0": capturing("cuLaunchKernel", "empty", 0, 1, 1, 1, 1, 1, 0, "captured", None, None),
    "query an event": capturing("cuEventQuery", "event"),
    "query a captured event": query_captured(0),
    "query a captured event, thread's": query_captured(1),
    "query a captured event, relaxed": query_captured(2),
    "wait for an event from outside": capturing("cuStreamWaitEvent", "captured", "event", 0),
    "record an event": capturing("cuEventRecord", "untimed", "captured"),
    "create a stream": capturing("cuStreamCreate", c_void_p, 1),
    "create an event": capturing("cuEventCreate", c_void_p, 0),
    "destroy the stream": capturing("cuStreamDestroy_v2", "captured", end=False),
    "load a module": capturing("cuModuleLoadData", c_void_p, PTX + b"\0"),
    "get a function": capturing("cuModuleGetFunction", c_void_p, "module", b"store"),
    "memory info": capturing("cuMemGetInfo_v2", c_size_t, c_size_t),
    "set a limit": capturing("cuCtxSetLimit", 0, 2048),
    "register host memory": capturing("cuMemHostRegister_v2", "host", 64, 0),
    "allocate pinned": capturing("cuMemHostAlloc", c_void_p, 64, 0),
    "free": capturing("cuMemFree_v2", 0),
    "unjoined": unjoined,
    "create a context": capturing("cuDevicePrimaryCtxRetain", c_void_p, 0),
    "batch of copies": batch_captured,
    "wait for a wild event": capturing("cuStreamWaitEvent", "captured", None, 0),
}
for has_work in (False, True):
    for ending in ("destroyed", "nowhere", "added", "added apart", "added, then work"):
        question = side_stream(has_work, ending)
        CAPTURES[f"side stream {'with' if has_work else 'without'} work, {ending}"] = question

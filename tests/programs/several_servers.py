"""Devices of several servers in one program: lists, libraries, copies, events, threads. Prints "right" if all is
right."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from ctypes import byref, c_char, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p

import cuda

MIB = 1 << 20
NON_BLOCKING = 1
DISABLE_TIMING = 2
MAJOR, MINOR, PCI_DOMAIN = 75, 76, 50
# CU_POINTER_ATTRIBUTE_*
CONTEXT, MEMORY_TYPE, DEVICE_ORDINAL = 1, 2, 9
HOST, DEVICE = 1, 2
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 base;
.visible .entry fill(.param .u64 where, .param .u32 value)
{
    .reg .b64 %rd<4>;
    .reg .b32 %r<6>;
    ld.param.u64 %rd1, [where];
    ld.param.u32 %r1, [value];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r2, %r2, %r3, %r4;
    mul.wide.u32 %rd2, %r2, 4;
    add.u64 %rd1, %rd1, %rd2;
    ld.global.u32 %r5, [base];
    add.u32 %r1, %r1, %r5;
    add.u32 %r1, %r1, %r2;
    st.global.u32 [%rd1], %r1;
    ret;
}
.visible .entry spin(.param .u64 where, .param .u32 value)
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<3>;
    .reg .pred %p;
    ld.param.u64 %rd1, [where];
    ld.param.u32 %r1, [value];
    mov.u32 %r2, 0;
again:
    add.u32 %r2, %r2, 1;
    setp.lt.u32 %p, %r2, 300000;
    @%p bra again;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""


END = (
    ("x", c_size_t),
    ("y", c_size_t),
    ("z", c_size_t),
    ("lod", c_size_t),
    ("type", c_uint),
    ("host", c_void_p),
    ("device", c_uint64),
    ("array", c_void_p),
    ("context", c_void_p),
    ("pitch", c_size_t),
    ("height", c_size_t),
)


class Box(ctypes.Structure):
    """CUDA_MEMCPY3D, and CUDA_MEMCPY3D_PEER with its contexts."""

    _fields_ = (
        *((f"{end}_{name}", kind) for end in ("src", "dst") for name, kind in END),
        *((name, c_size_t) for name in ("width", "height", "depth")),
    )


class Gpu:
    """One device: its primary context and what a case allocates there."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.context = cuda.made("cuDevicePrimaryCtxRetain", number)

    def use(self) -> None:
        cuda.must("cuCtxSetCurrent", self.context)

    def memory(self, size: int) -> c_uint64:
        self.use()
        address = c_uint64()
        cuda.must("cuMemAlloc_v2", byref(address), c_size_t(size))
        return address

    def attribute(self, attribute: int) -> int:
        value = c_int()
        cuda.must("cuDeviceGetAttribute", byref(value), attribute, self.number)
        return value.value


def gpus() -> list[Gpu]:
    cuda.must("cuInit", 0)
    count = c_int()
    cuda.must("cuDeviceGetCount", byref(count))
    return [Gpu(number) for number in range(count.value)]


def launch(kernel: c_void_p, where: c_uint64, value: int, stream: c_void_p | None = None, threads: int = 1) -> str:
    arguments = (c_uint64(where.value), c_uint(value))
    pointers = (c_void_p * 2)(*[ctypes.cast(byref(a), c_void_p) for a in arguments])
    block = min(threads, 256)
    return cuda.call("cuLaunchKernel", kernel, threads // block, 1, 1, block, 1, 1, 0, stream, pointers, None)


def words(where: c_uint64, count: int) -> list[int]:
    """Returns words of memory of any device, whichever context is current."""
    room = (c_uint * count)()
    cuda.must("cuMemcpyDtoH_v2", room, where, c_size_t(4 * count))
    return list(room)


def put(where: c_uint64, data: bytes) -> None:
    cuda.must("cuMemcpyHtoD_v2", where, data, c_size_t(len(data)))


def got(where: c_uint64, size: int) -> bytes:
    room = (c_ubyte * size)()
    cuda.must("cuMemcpyDtoH_v2", room, where, c_size_t(size))
    return bytes(room)


def pattern(size: int, seed: int) -> bytes:
    return bytes((i * 7 + i // 251 + seed) & 255 for i in range(size))


def library() -> c_void_p:
    handle = c_void_p()
    cuda.must("cuLibraryLoadData", byref(handle), PTX, None, None, 0, None, None, 0)
    return handle


def case_list() -> None:
    """Prints one line a device: what tells it from others."""
    cuda.must("cuInit", 0)
    count = c_int()
    cuda.must("cuDeviceGetCount", byref(count))
    seen: list[set[object]] = [set(), set()]
    for number in range(count.value):
        device, total, back = c_int(), c_size_t(), c_int()
        cuda.must("cuDeviceGet", byref(device), number)
        cuda.must("cuDeviceTotalMem_v2", byref(total), device)
        values = []
        for attribute in (MAJOR, MINOR, PCI_DOMAIN):
            value = c_int()
            cuda.must("cuDeviceGetAttribute", byref(value), attribute, device)
            values.append(value.value)
        uuid = (c_ubyte * 16)()
        bus = (c_char * 32)()
        cuda.must("cuDeviceGetUuid_v2", uuid, device)
        cuda.must("cuDeviceGetPCIBusId", bus, 32, device)
        assert int(bus.value[:4], 16) == values[2], (bus.value, values)
        cuda.must("cuDeviceGetByPCIBusId", byref(back), bus.value)
        assert back.value == number, (back.value, bus.value)
        seen[0].add(bytes(uuid))
        seen[1].add(bus.value)
        print(number, f"{values[0]}.{values[1]}", total.value // MIB)
    assert [len(s) for s in seen] == [count.value] * 2, seen
    assert cuda.call("cuDeviceGet", byref(device), count.value) == "CUDA_ERROR_INVALID_DEVICE"
    assert cuda.call("cuDeviceGet", byref(device), -1) == "CUDA_ERROR_INVALID_DEVICE"


def case_kernels() -> None:
    """One library's kernel runs on each device, with each device's own variable."""
    all_gpus = gpus()
    handle = library()
    kernel, function = c_void_p(), c_void_p()
    cuda.must("cuLibraryGetKernel", byref(kernel), handle, b"fill")
    cuda.must("cuLibraryGetKernel", byref(function), handle, b"spin")
    assert kernel.value != function.value
    places = []
    for gpu in all_gpus:
        places.append(gpu.memory(4096))
        base, size = c_uint64(), c_size_t()
        cuda.must("cuLibraryGetGlobal", byref(base), byref(size), handle, b"base")
        put(base, (100 * (gpu.number + 1)).to_bytes(4, "little"))
        cuda.must("cuKernelGetFunction", byref(function), kernel)
        assert launch(function, places[-1], 7, threads=1024) == "CUDA_SUCCESS"
        # Devices of one server in software have the library's variables together.
        cuda.must("cuCtxSynchronize")
        value = c_int()
        cuda.must("cuKernelGetAttribute", byref(value), 0, kernel, gpu.number)
        assert value.value >= 256, value.value
        cuda.must("cuKernelSetAttribute", 8, 1024, kernel, gpu.number)
    for gpu, place in zip(all_gpus, places, strict=True):
        # The last device is current: the address says where the memory is.
        first = 100 * (gpu.number + 1) + 7
        assert words(place, 1024) == list(range(first, first + 1024)), gpu.number
    # A module belongs to one context: its function runs there, and nowhere else.
    all_gpus[0].use()
    (own,) = cuda.kernels(PTX, "fill")
    all_gpus[1].use()
    assert launch(own, places[1], 1) == "CUDA_ERROR_INVALID_HANDLE"
    stream = cuda.made("cuStreamCreate", NON_BLOCKING)
    assert launch(own, places[1], 1, stream) == "CUDA_ERROR_INVALID_HANDLE"
    all_gpus[0].use()
    assert launch(own, places[0], 3) == "CUDA_SUCCESS"
    assert words(places[0], 1) == [3]
    # The stream says where a library's kernel runs, whichever context is current.
    assert launch(kernel, places[1], 5, stream) == "CUDA_SUCCESS"
    cuda.must("cuStreamSynchronize", stream)
    assert words(places[1], 1) == [205]
    cuda.must("cuLibraryUnload", handle)
    assert launch(kernel, places[0], 3) == "CUDA_ERROR_INVALID_HANDLE"


def case_copies() -> None:
    """Copies between servers, by all calls that make them, and with pinned memory of either."""
    a, b = gpus()[:2]
    # More than one piece, and no multiple of anything.
    size = 40 * MIB + 123
    data = pattern(MIB, 3) * 41
    data = data[:size]
    first, second = a.memory(size), b.memory(size)
    streams = []
    for gpu in (a, b):
        gpu.use()
        streams.append(cuda.made("cuStreamCreate", NON_BLOCKING))
    a.use()
    put(first, data)
    length = c_size_t(size)
    for current in (a, b):
        for stream in (*streams, None):
            for copy in (
                ("cuMemcpyPeerAsync", second, b.context, first, a.context, length, stream),
                ("cuMemcpyDtoDAsync_v2", second, first, length, stream),
                ("cuMemcpyAsync", second, first, length, stream),
            ):
                current.use()
                cuda.must("cuMemsetD8_v2", second, 0, c_size_t(4096))
                cuda.must(*copy)
                cuda.must("cuStreamSynchronize", stream)
                assert got(second, 4096) == data[:4096], (current.number, copy[0])
    assert got(second, size) == data
    for name, arguments in (
        ("cuMemcpyPeer", (first, a.context, second, b.context)),
        ("cuMemcpyDtoD_v2", (first, second)),
        ("cuMemcpy", (first, second)),
    ):
        put(second, data[1:] + b"x")
        cuda.must(name, *arguments, length)
        assert got(first, size) == data[1:] + b"x", name
        put(first, data)
    # Each server's pinned memory, with each server's device and stream.
    for owner in (a, b):
        owner.use()
        pinned = c_void_p()
        cuda.must("cuMemHostAlloc", byref(pinned), c_size_t(4 * MIB), 1)
        room = (c_ubyte * (4 * MIB)).from_address(pinned.value or 0)
        for user, place, stream in ((a, first, streams[0]), (b, second, streams[1])):
            user.use()
            room[:] = (seed := pattern(MIB, owner.number * 2 + user.number)) * 4
            cuda.must("cuMemcpyHtoDAsync_v2", place, pinned, c_size_t(4 * MIB), stream)
            cuda.must("cuMemsetD8Async", c_uint64(place.value + 5), 9, c_size_t(1), stream)
            cuda.must("cuStreamSynchronize", stream)
            ctypes.memset(pinned, 0, 4 * MIB)
            cuda.must("cuMemcpyDtoHAsync_v2", pinned, place, c_size_t(4 * MIB), stream)
            cuda.must("cuStreamSynchronize", stream)
            expected = seed[:5] + b"\x09" + seed[6:] + seed * 3
            assert bytes(room) == expected, (owner.number, user.number)
        kind = c_uint()
        cuda.must("cuPointerGetAttribute", byref(kind), MEMORY_TYPE, pinned)
        assert kind.value == HOST
        cuda.must("cuMemFreeHost", pinned)
    # Pinned memory of both at one time: neither is in the other's way.
    kept = []
    for owner, size in ((a, 16 * MIB), (b, 4096), (a, 4096), (b, 16 * MIB)):
        owner.use()
        kept.append(c_void_p())
        cuda.must("cuMemHostAlloc", byref(kept[-1]), c_size_t(size), 1)
    for pinned in kept:
        cuda.must("cuMemFreeHost", pinned)
    # Beyond the end, and half in the air.
    for bad in (
        ("cuMemcpyDtoD_v2", c_uint64(second.value + 1), first, length),
        ("cuMemcpyDtoDAsync_v2", second, c_uint64(first.value + 1), length, streams[0]),
        ("cuMemcpyDtoD_v2", second, c_uint64(first.value + 512 * MIB), length),
    ):
        assert cuda.call(*bad) == "CUDA_ERROR_INVALID_VALUE", bad[0]
    # What was sent before the copy comes before it, and what is sent later after it.
    (spin, fill) = (cuda.made("cuLibraryGetKernel", handle := library(), n) for n in (b"spin", b"fill"))
    del handle
    a.use()
    for _ in range(3):
        assert launch(spin, first, 77, streams[0]) == "CUDA_SUCCESS"
        cuda.must("cuMemcpyDtoDAsync_v2", second, first, c_size_t(4), streams[0])
        assert launch(fill, first, 11, streams[0]) == "CUDA_SUCCESS"
        assert words(second, 1) == [77]
        cuda.must("cuStreamSynchronize", streams[0])


def case_boxes() -> None:
    """A box of one device's memory becomes another box of the other's."""
    a, b = gpus()[:2]
    # Of the source, as pitch and rows of a slice; then of the destination.
    (pitch, rows), (pitch2, rows2), depth = (1000, 40), (700, 33), 3
    first, second = a.memory(pitch * rows * 4), b.memory(pitch2 * rows2 * 4)
    a.use()
    data = pattern(pitch * rows * 4, 5)
    put(first, data)
    box = Box(width=300, height=20, depth=depth)
    box.src_type = box.dst_type = 2
    box.src_device, box.src_pitch, box.src_height = first.value, pitch, rows
    box.dst_device, box.dst_pitch, box.dst_height = second.value, pitch2, rows2
    (box.src_x, box.src_y, box.src_z) = (17, 5, 1)
    (box.dst_x, box.dst_y, box.dst_z) = (3, 9, 0)
    expected = bytearray(pitch2 * rows2 * 4)
    for z in range(depth):
        for y in range(20):
            start = ((z + 1) * rows + y + 5) * pitch + 17
            to = (z * rows2 + y + 9) * pitch2 + 3
            expected[to : to + 300] = data[start : start + 300]
    for current in (a, b):
        current.use()
        for name in ("cuMemcpy3D_v2", "cuMemcpy3DPeer"):
            cuda.must("cuMemsetD8_v2", second, 0, c_size_t(len(expected)))
            box.src_context = box.dst_context = None
            cuda.must(name, byref(box))
            assert got(second, len(expected)) == expected, (current.number, name)
    # An array on one server, lines on the other.
    b.use()

    class ArrayOf(ctypes.Structure):
        _fields_ = (("width", c_size_t), ("height", c_size_t), ("format", c_uint), ("channels", c_uint))

    array = cuda.made("cuArrayCreate_v2", byref(ArrayOf(300, 20, 1, 1)))
    into = Box(width=300, height=20, depth=1)
    into.src_type, into.src_device, into.src_pitch, into.src_height = 2, first.value, pitch, rows
    into.dst_type, into.dst_array = 3, array.value
    a.use()
    cuda.must("cuMemcpy3D_v2", byref(into))
    room = (c_ubyte * 6000)()
    back = Box(width=300, height=20, depth=1, src_type=3, src_array=array.value, dst_type=1)
    back.dst_host, back.dst_pitch, back.dst_height = ctypes.addressof(room), 300, 20
    b.use()
    cuda.must("cuMemcpy3D_v2", byref(back))
    assert bytes(room) == b"".join(data[y * pitch : y * pitch + 300] for y in range(20))


def case_events() -> None:
    """A stream waits for the other server's event, and errors are CUDA's."""
    a, b = gpus()[:2]
    spin = cuda.made("cuLibraryGetKernel", library(), b"spin")
    first, second = a.memory(4096), b.memory(4096)
    objects = []
    for gpu in (a, b):
        gpu.use()
        objects.append((cuda.made("cuStreamCreate", NON_BLOCKING), cuda.made("cuEventCreate", DISABLE_TIMING)))
    (stream_a, event_a), (stream_b, event_b) = objects
    for value in range(1, 6):
        a.use()
        assert launch(spin, first, value, stream_a) == "CUDA_SUCCESS"
        cuda.must("cuEventRecord", event_a, stream_a)
        # As PyTorch copies between devices: with events of both, in the source's stream.
        cuda.must("cuStreamWaitEvent", stream_b, event_a, 0)
        cuda.must("cuMemcpyDtoDAsync_v2", second, first, c_size_t(4), stream_b)
        b.use()
        cuda.must("cuEventRecord", event_b, stream_b)
        cuda.must("cuStreamWaitEvent", stream_a, event_b, 0)
        cuda.must("cuEventSynchronize", event_b)
        assert cuda.call("cuEventQuery", event_a) == "CUDA_SUCCESS"
        assert words(second, 1) == [value]
    # An event that was never recorded is no reason to wait.
    fresh = cuda.made("cuEventCreate", DISABLE_TIMING)
    cuda.must("cuStreamWaitEvent", stream_a, fresh, 0)
    for bad in (
        ("cuEventRecord", event_a, stream_b),
        ("cuEventRecord", event_b, stream_a),
        ("cuStreamWaitEvent", stream_a, c_void_p(event_b.value + 999), 0),
        ("cuMemFreeAsync", first, stream_b),
    ):
        assert cuda.call(*bad) in ("CUDA_ERROR_INVALID_HANDLE", "CUDA_ERROR_INVALID_VALUE"), bad
    # A graph has work of one server.
    cuda.must("cuEventRecord", event_b, stream_b)
    cuda.must("cuStreamBeginCapture_v2", stream_a, 2)
    assert cuda.call("cuStreamWaitEvent", stream_a, event_b, 0) == "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"
    copy = ("cuMemcpyDtoDAsync_v2", second, first, c_size_t(4), stream_a)
    assert cuda.call(*copy) == "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
    graph = c_void_p()
    cuda.call("cuStreamEndCapture", stream_a, byref(graph))
    a.use()
    done = threading.Event()
    function = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: done.set())
    for stream in (stream_a, stream_b):
        done.clear()
        cuda.must("cuLaunchHostFunc", stream, function, None)
        cuda.must("cuStreamSynchronize", stream)
        assert done.is_set()


def case_order() -> None:
    """Copies between two devices come after work that their stream waits for, a copy in the default stream after both
    devices' default streams, and a copy without a stream after all work of both devices."""
    a, b = gpus()[:2]
    ctx, size = (a.context, b.context), c_size_t(4096)
    function = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: time.sleep(0.2))
    source, target = a.memory(size.value), b.memory(size.value)
    streams, unordered = [], []
    for gpu in (a, b):
        gpu.use()
        streams.append(cuda.made("cuStreamCreate", 0))
        unordered.append(cuda.made("cuStreamCreate", NON_BLOCKING))

    def busy(gpu: Gpu, stream: c_void_p | str | None, where: c_uint64, value: int) -> None:
        gpu.use()
        if stream == "without":
            cuda.must("cuLaunchHostFunc", None, function, None)
            cuda.must("cuMemsetD8_v2", where, value, size)
            return
        cuda.must("cuLaunchHostFunc", stream, function, None)
        cuda.must("cuMemsetD8Async", where, value, size, stream)

    peer = (target, ctx[1], source, ctx[0], size)
    rows = Box(width=64, height=64, depth=1)
    rows.src_type, rows.src_device, rows.src_pitch = 2, source.value, 64
    rows.dst_type, rows.dst_device, rows.dst_pitch = 2, target.value, 64
    # The busy device, its stream, what it sets, the device and stream of the copy, and the value that is right.
    steps = (
        (b, None, target, b, ("cuMemcpyPeerAsync", *peer, streams[1]), 7),
        (a, None, source, a, ("cuMemcpyPeerAsync", *peer, streams[0]), 9),
        (b, None, target, b, ("cuMemcpyDtoDAsync_v2", target, source, size, streams[1]), 7),
        (a, streams[0], source, b, ("cuMemcpyPeer", *peer), 9),
        (b, streams[1], target, a, ("cuMemcpyPeer", *peer), 7),
        (a, unordered[0], source, b, ("cuMemcpyPeer", *peer), 9),
        (b, unordered[1], target, a, ("cuMemcpyPeer", *peer), 7),
        (b, "without", target, b, ("cuMemcpyPeerAsync", *peer, streams[1]), 7),
        (a, None, source, b, ("cuMemcpyPeerAsync", *peer, None), 9),
        (b, None, target, a, ("cuMemcpyPeerAsync", *peer, None), 7),
        (a, None, source, b, ("cuMemcpyDtoDAsync_v2", target, source, size, None), 9),
        (b, None, target, a, ("cuMemcpyDtoDAsync_v2", target, source, size, None), 7),
        (a, None, source, b, ("cuMemcpy3DAsync_v2", byref(rows), None), 9),
        (b, None, target, a, ("cuMemcpy3D_v2", byref(rows)), 7),
    )
    for number, (gpu, stream, where, current, copy, right) in enumerate(steps):
        for place, value in ((source, 7), (target, 0)):
            cuda.must("cuMemsetD8_v2", place, value, size)
        for one in (a, b):
            one.use()
            cuda.must("cuCtxSynchronize")
        busy(gpu, stream, where, 9)
        current.use()
        cuda.must(*copy)
        for one in (a, b):
            one.use()
            cuda.must("cuCtxSynchronize")
        assert got(target, size.value) == bytes([right]) * size.value, (number, got(target, 4))


def case_peers() -> None:
    """No device reaches one of another server, and everything says so."""
    a, b = gpus()[:2]
    place = b.memory(4096)
    for one, other in ((a, b), (b, a)):
        value = c_int(7)
        cuda.must("cuDeviceCanAccessPeer", byref(value), one.number, other.number)
        assert value.value == 0
        for attribute in range(1, 5):
            value = c_int(7)
            cuda.must("cuDeviceGetP2PAttribute", byref(value), attribute, one.number, other.number)
            assert value.value == 0, attribute
        one.use()
        assert cuda.call("cuCtxEnablePeerAccess", other.context, 0) == "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"
        assert cuda.call("cuCtxDisablePeerAccess", other.context) == "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED"
    for pair in ((0, 99), (99, 0)):
        assert cuda.call("cuDeviceCanAccessPeer", byref(value), *pair) == "CUDA_ERROR_INVALID_DEVICE"
    a.use()
    context, device = c_void_p(), c_int()
    cuda.must("cuPointerGetAttribute", byref(context), CONTEXT, place)
    cuda.must("cuPointerGetAttribute", byref(device), DEVICE_ORDINAL, place)
    assert (context.value, device.value) == (b.context.value, b.number)
    cuda.must("cuCtxGetDevice", byref(device))
    assert device.value == a.number
    cuda.must("cuCtxGetDevice_v2", byref(device), b.context)
    assert device.value == b.number
    # The other device's memory, stream and context can be given back from here.
    b.use()
    stream = cuda.made("cuStreamCreate", NON_BLOCKING)
    own = c_void_p()
    cuda.must("cuCtxCreate_v2", byref(own), 0, b.number)
    cuda.must("cuCtxSetCurrent", a.context)
    cuda.must("cuStreamGetDevice", stream, byref(device))
    assert device.value == b.number
    cuda.must("cuStreamDestroy_v2", stream)
    cuda.must("cuMemFree_v2", place)
    cuda.must("cuCtxDestroy_v2", own)
    assert cuda.call("cuCtxSetCurrent", own) == "CUDA_ERROR_INVALID_CONTEXT"
    now = c_void_p()
    cuda.must("cuCtxGetCurrent", byref(now))
    assert now.value == a.context.value
    assert cuda.call("cuMemFree_v2", place) == "CUDA_ERROR_INVALID_VALUE"


def case_nvml() -> None:
    """The management library has the same list, and nothing between servers."""
    ml = ctypes.CDLL("libnvidia-ml.so.1")
    all_gpus = gpus()
    assert ml.nvmlInit_v2() == 0
    count = c_uint()
    assert ml.nvmlDeviceGetCount_v2(byref(count)) == 0
    assert count.value == len(all_gpus)
    handles = []
    for gpu in all_gpus:
        handle = c_void_p()
        assert ml.nvmlDeviceGetHandleByIndex_v2(gpu.number, byref(handle)) == 0
        handles.append(handle)
        text, uuid = (c_char * 96)(), (c_ubyte * 16)()
        assert ml.nvmlDeviceGetUUID(handle, text, 96) == 0
        cuda.must("cuDeviceGetUuid_v2", uuid, gpu.number)
        assert text.value.decode().removeprefix("GPU-").replace("-", "") == bytes(uuid).hex()
        found, bus = c_void_p(), (c_char * 32)()
        cuda.must("cuDeviceGetPCIBusId", bus, 32, gpu.number)
        assert ml.nvmlDeviceGetHandleByPciBusId_v2(bus, byref(found)) == 0
        assert found.value == handle.value
    for index, answer in ((0, 0), (4, 0), (5, 2)):
        status = c_uint(9)
        assert ml.nvmlDeviceGetP2PStatus(handles[0], handles[-1], index, byref(status)) == answer, index
        assert answer or status.value == 5
    assert ml.nvmlShutdown() == 0


def case_threads() -> None:
    """Threads with different current devices, each with work and memory of its own."""
    all_gpus = gpus()
    kernel = cuda.made("cuLibraryGetKernel", library(), b"fill")
    wrong: list[str] = []

    def work(gpu: Gpu, seed: int) -> None:
        try:
            place = gpu.memory(4096)
            stream = cuda.made("cuStreamCreate", NON_BLOCKING)
            for value in range(seed, seed + 40):
                assert launch(kernel, place, value, stream, threads=256) == "CUDA_SUCCESS"
                cuda.must("cuStreamSynchronize", stream)
                assert words(place, 256) == list(range(value, value + 256)), (gpu.number, value)
            cuda.must("cuMemFree_v2", place)
        except AssertionError as error:
            wrong.append(str(error))

    threads = [threading.Thread(target=work, args=(all_gpus[i % len(all_gpus)], 1000 * i)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong


def case_races() -> None:
    """Streams that come, go and are captured in one thread, while another copies between the devices."""
    a, b = gpus()[:2]
    size, relaxed = c_size_t(4096), 2
    source, target = a.memory(size.value), b.memory(size.value)
    wrong: list[str] = []
    ended = threading.Event()

    def captured(stream: c_void_p, place: c_uint64) -> None:
        graph, instance, count = c_void_p(), c_void_p(), c_size_t()
        cuda.must("cuStreamBeginCapture_v2", stream, relaxed)
        cuda.must("cuMemsetD8Async", place, 3, size, stream)
        cuda.must("cuStreamEndCapture", stream, byref(graph))
        cuda.must("cuGraphGetNodes", graph, None, byref(count))
        assert count.value == 1, count.value
        cuda.must("cuGraphInstantiateWithFlags", byref(instance), graph, c_uint64(0))
        cuda.must("cuGraphLaunch", instance, stream)
        cuda.must("cuStreamSynchronize", stream)
        cuda.must("cuGraphExecDestroy", instance)
        cuda.must("cuGraphDestroy", graph)

    def work() -> None:
        try:
            place = b.memory(size.value)
            kept = cuda.made("cuStreamCreate", NON_BLOCKING)
            for _ in range(60):
                captured(kept, place)
                short_lived = cuda.made("cuStreamCreate", NON_BLOCKING)
                cuda.must("cuMemsetD8Async", place, 5, size, short_lived)
                cuda.must("cuStreamSynchronize", short_lived)
                cuda.must("cuMemsetD8Async", place, 6, size, short_lived)
                cuda.must("cuStreamDestroy_v2", short_lived)
            cuda.must("cuCtxSynchronize")
        except Exception as error:
            wrong.append(str(error))
        finally:
            ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    a.use()
    while not ended.is_set():
        for _ in range(4):
            cuda.must("cuMemcpyPeer", target, b.context, source, a.context, size)
        # Else the other thread waits for all copies that a ring holds.
        cuda.must("cuCtxSynchronize")
    thread.join()
    assert not wrong, wrong


def case_death() -> None:
    """The second server's worker ends: its device gives errors, the first one goes on."""
    a, b = gpus()[:2]
    kernel = cuda.made("cuLibraryGetKernel", library(), b"fill")
    first, second = a.memory(4096), b.memory(4096)
    print("ready", flush=True)
    sys.stdin.readline()
    b.use()
    gone = "CUDA_ERROR_DEVICE_UNAVAILABLE"
    assert cuda.call("cuCtxSynchronize") == gone
    assert launch(kernel, second, 1) == gone
    a.use()
    assert launch(kernel, first, 42, threads=512) == "CUDA_SUCCESS"
    assert words(first, 512) == list(range(42, 554))
    assert cuda.call("cuMemcpyDtoD_v2", second, first, c_size_t(4096)) == gone
    assert cuda.call("cuMemcpyDtoD_v2", first, second, c_size_t(4096)) == gone
    # A new library is loaded where it can be.
    again = cuda.made("cuLibraryGetKernel", library(), b"fill")
    assert launch(again, first, 43, threads=512) == "CUDA_SUCCESS"
    assert words(first, 512) == list(range(43, 555))
    b.use()
    assert launch(again, second, 1) == gone
    a.use()
    cuda.must("cuCtxSynchronize")


def case_forks() -> None:
    """A forked child has no session; the parent goes on with all."""
    all_gpus = gpus()
    places = [gpu.memory(4096) for gpu in all_gpus]
    child = os.fork()
    if child == 0:
        os._exit(0 if cuda.lib.cuCtxSynchronize() == 3 else 1)
    assert os.waitpid(child, 0)[1] == 0
    for place in places:
        put(place, b"abcd")
        assert got(place, 4) == b"abcd"


def case_refused() -> None:
    """Prints what cuInit answers."""
    print(cuda.call("cuInit", 0))


def main() -> None:
    signal.alarm(100)
    cases: dict[str, Callable[[], None]] = {
        name.removeprefix("case_"): case for name, case in globals().items() if name.startswith("case_")
    }
    cases[sys.argv[1]]()
    print("right")


if __name__ == "__main__":
    main()

"""Two devices of one server and two processes: peer access, shared memory and events. Prints
"right" if all is right."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

import cuda

MIB = 1 << 20
FD = 1
# CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES
POOL_HANDLE_TYPES = 119
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry fill(.param .u64 where, .param .u32 value)
{
    .reg .b64 %rd<3>;
    .reg .b32 %r<5>;
    ld.param.u64 %rd1, [where];
    ld.param.u32 %r1, [value];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r2, %r2, %r3, %r4;
    mul.wide.u32 %rd2, %r2, 4;
    add.u64 %rd1, %rd1, %rd2;
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


class Location(ctypes.Structure):
    _fields_ = (("kind", c_int), ("id", c_int))


class Properties(ctypes.Structure):
    """`CUmemAllocationProp`."""

    _fields_ = (
        ("kind", c_int),
        ("handles", c_int),
        ("location", Location),
        ("windows", c_void_p),
        ("flags", c_uint64),
    )


class Access(ctypes.Structure):
    """`CUmemAccessDesc`."""

    _fields_ = (("location", Location), ("flags", c_int))


class IpcHandle(ctypes.Structure):
    """`CUipcMemHandle` and `CUipcEventHandle`, which are passed by value."""

    _fields_ = (("reserved", ctypes.c_ubyte * 64),)


def call(function: str, *arguments: object) -> str:
    return cuda.short(cuda.call(function, *map(cuda.wide, arguments)))


def must(function: str, *arguments: object) -> None:
    expect("SUCCESS", function, *arguments)


def expect(answer: str, function: str, *arguments: object) -> None:
    got = call(function, *arguments)
    if got != answer:
        raise SystemExit(f"{function} answered {got}, not {answer}")


def check(holds: bool, what: str) -> None:
    if not holds:
        raise SystemExit(f"wrong: {what}")


def contexts(count: int = 1) -> list[c_void_p]:
    must("cuInit", 0)
    made = [c_void_p() for _ in range(count)]
    for device, context in enumerate(made):
        must("cuDevicePrimaryCtxRetain", byref(context), device)
    must("cuCtxSetCurrent", made[0])
    return made


def kernel(name: bytes) -> c_void_p:
    module, function = c_void_p(), c_void_p()
    must("cuModuleLoadData", byref(module), PTX)
    must("cuModuleGetFunction", byref(function), module, name)
    return function


def launch(function: c_void_p, where: int, value: int, blocks: int, stream: c_void_p | None = None) -> None:
    arguments = (c_uint64(where), c_int(value))
    pointers = (c_void_p * 2)(*(ctypes.addressof(a) for a in arguments))
    must("cuLaunchKernel", function, blocks, 1, 1, 256, 1, 1, 0, stream, pointers, None)


def words(where: int, count: int) -> list[int]:
    out = (ctypes.c_uint32 * count)()
    must("cuMemcpyDtoH_v2", byref(out), where, 4 * count)
    return list(out)


def mapped(handle: c_uint64, bytes_: int, *devices: int) -> int:
    """Maps memory for these devices; returns its address."""
    where = c_uint64()
    must("cuMemAddressReserve", byref(where), bytes_, 0, 0, 0)
    must("cuMemMap", where, bytes_, 0, handle, 0)
    access = (Access * len(devices))(*(Access(Location(1, device), 3) for device in devices))
    must("cuMemSetAccess", where, bytes_, access, len(devices))
    return where.value


def created(bytes_: int, device: int = 0, handles: int = FD) -> c_uint64:
    handle, wanted = c_uint64(), Properties(kind=1, handles=handles, location=Location(1, device))
    must("cuMemCreate", byref(handle), bytes_, byref(wanted), 0)
    return handle


def exported(handle: c_uint64) -> int:
    descriptor = c_int(-1)
    must("cuMemExportToShareableHandle", byref(descriptor), handle, FD, 0)
    return descriptor.value


def imported(descriptor: int) -> c_uint64:
    handle = c_uint64()
    must("cuMemImportFromShareableHandle", byref(handle), descriptor, FD)
    return handle


class Channel:
    """Bytes and descriptors between two processes of the program."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        end.settimeout(60)

    def send(self, data: bytes, *descriptors: int) -> None:
        socket.send_fds(self.end, [data], list(descriptors))

    def receive(self) -> tuple[bytes, list[int]]:
        data, descriptors, _, _ = socket.recv_fds(self.end, 4096, 4)
        check(data != b"", "the other process ended")
        return data, list(descriptors)


def two(first: Callable[[Channel], None], second: Callable[[Channel], None]) -> None:
    """Runs both, each in a process that has not used the driver before."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        ends[0].close()
        status = 1
        try:
            second(Channel(ends[1]))
            status = 0
        except SystemExit as error:
            print("the second process:", error, file=sys.stderr, flush=True)
        except BaseException as error:
            print("the second process:", type(error).__name__, error, file=sys.stderr, flush=True)
        os._exit(status)
    ends[1].close()
    first(Channel(ends[0]))
    _, status = os.waitpid(child, 0)
    check(status == 0, f"the second process ended with {status:#x}")


def access() -> None:
    """Kernels and copies of one device use memory of the other."""
    first, second = contexts(2)
    for pair, answer in (((0, 1), 1), ((1, 0), 1), ((0, 0), 0)):
        can = c_int(-1)
        must("cuDeviceCanAccessPeer", byref(can), *pair)
        check(can.value == answer, f"cuDeviceCanAccessPeer of {pair}")
    value = c_int(-1)
    must("cuDeviceGetP2PAttribute", byref(value), 2, 0, 1)
    check(value.value == 1, "access is supported")
    for pair in ((0, 2), (2, 0), (-1, 0), (0, -1), (7, 7)):
        expect("INVALID_DEVICE", "cuDeviceGetP2PAttribute", byref(value), 2, *pair)
        expect("INVALID_DEVICE", "cuDeviceCanAccessPeer", byref(value), *pair)
    expect("PEER_ACCESS_NOT_ENABLED", "cuCtxDisablePeerAccess", second)
    must("cuCtxEnablePeerAccess", second, 0)
    expect("PEER_ACCESS_ALREADY_ENABLED", "cuCtxEnablePeerAccess", second, 0)
    expect("PEER_ACCESS_UNSUPPORTED", "cuCtxEnablePeerAccess", first, 0)
    near, far = c_uint64(), c_uint64()
    must("cuMemAlloc_v2", byref(near), MIB)
    must("cuCtxSetCurrent", second)
    must("cuMemAlloc_v2", byref(far), MIB)
    must("cuCtxSetCurrent", first)
    launch(kernel(b"fill"), far.value, 11, MIB // 1024)
    must("cuMemcpyPeer", near, first, far, second, MIB)
    check(words(near.value, MIB // 4) == [11] * (MIB // 4), "a kernel wrote to another device")
    # A stream of the second device waits for an event of the first.
    event, stream = c_void_p(), c_void_p()
    must("cuEventCreate", byref(event), 2)
    launch(kernel(b"spin"), near.value, 12, 1)
    must("cuEventRecord", event, None)
    must("cuCtxSetCurrent", second)
    must("cuStreamCreate", byref(stream), 1)
    must("cuStreamWaitEvent", stream, event, 0)
    must("cuMemcpyAsync", far, near, 4, stream)
    must("cuStreamSynchronize", stream)
    check(words(far.value, 2) == [12, 11], "the copy waited for the other device")
    must("cuCtxSetCurrent", first)
    must("cuCtxDisablePeerAccess", second)
    handle = created(2 * MIB, device=1)
    where = mapped(handle, 2 * MIB, 0, 1)
    flags = c_uint64()
    for device in (0, 1):
        must("cuMemGetAccess", byref(flags), byref(Location(1, device)), where)
        check(flags.value == 3, f"device {device} may use a mapping")
    must("cuMemSetAccess", where, 2 * MIB, byref(Access(Location(1, 1), 0)), 1)
    must("cuMemGetAccess", byref(flags), byref(Location(1, 1)), where)
    check(flags.value == 0, "device 1 may not any more")
    launch(kernel(b"fill"), where, 13, 4)
    check(words(where, 1024) == [13] * 1024, "device 0 still may")


def descriptors() -> None:
    """Memory of `cuMemCreate`, passed as a descriptor."""
    bytes_ = 4 * MIB

    def owner(channel: Channel) -> None:
        contexts()
        handle = created(bytes_)
        where = mapped(handle, bytes_, 0)
        launch(kernel(b"fill"), where, 21, bytes_ // 1024)
        must("cuCtxSynchronize")
        descriptor = exported(handle)
        other = imported(descriptor)
        check(words(mapped(other, bytes_, 0), 4) == [21] * 4, "a descriptor of one's own")
        channel.send(b"take", descriptor)
        check(channel.receive()[0] == b"written", "the other process answers")
        check(words(where, bytes_ // 4) == [22] * (bytes_ // 4), "what the other process wrote")
        # The descriptor alone keeps this memory alive.
        free, total = c_size_t(), c_size_t()
        must("cuMemGetInfo_v2", byref(free), byref(total))
        before = free.value
        lonely = created(bytes_)
        place = mapped(lonely, bytes_, 0)
        must("cuMemsetD32_v2", place, 23, 1024)
        must("cuCtxSynchronize")
        last = exported(lonely)
        must("cuMemUnmap", place, bytes_)
        must("cuMemAddressFree", place, bytes_)
        must("cuMemRelease", lonely)
        channel.send(b"lonely", last)
        os.close(last)
        check(channel.receive()[0] == b"seen", "the other process answers")
        # Its last copy is closed, which the next allocation notices.
        must("cuMemRelease", created(bytes_))
        must("cuMemGetInfo_v2", byref(free), byref(total))
        check(free.value == before, f"{before - free.value} bytes are missing")

    def user(channel: Channel) -> None:
        contexts()
        _, (descriptor,) = channel.receive()
        handle = imported(descriptor)
        got = Properties()
        must("cuMemGetAllocationPropertiesFromHandle", byref(got), handle)
        check((got.kind, got.handles, got.location.kind, got.location.id) == (1, 0, 1, 0), "properties of an import")
        where = mapped(handle, bytes_, 0)
        check(words(where, bytes_ // 4) == [21] * (bytes_ // 4), "what the owner wrote")
        launch(kernel(b"fill"), where, 22, bytes_ // 1024)
        must("cuCtxSynchronize")
        channel.send(b"written")
        _, (last,) = channel.receive()
        handle = imported(last)
        os.close(last)
        check(words(mapped(handle, bytes_, 0), 4) == [23] * 4, "memory that only a descriptor kept")
        channel.send(b"seen")

    two(owner, user)


def handles() -> None:
    """Memory of `cuMemAlloc` and an event, through the old handles."""

    def owner(channel: Channel) -> None:
        contexts()
        where, event, done = c_uint64(), c_void_p(), c_void_p()
        must("cuMemAlloc_v2", byref(where), MIB)
        must("cuEventCreate", byref(event), 2 | 4)
        must("cuMemsetD32_v2", where, 31, MIB // 4)
        must("cuCtxSynchronize")
        memory, moment = IpcHandle(), IpcHandle()
        must("cuIpcGetMemHandle", byref(memory), where)
        must("cuIpcGetEventHandle", byref(moment), event)
        opened = c_uint64()
        expect("INVALID_CONTEXT", "cuIpcOpenMemHandle_v2", byref(opened), memory, 1)
        launch(kernel(b"spin"), where.value, 32, 1)
        must("cuEventRecord", event, None)
        channel.send(bytes(memory) + bytes(moment))
        data, _ = channel.receive()
        must("cuIpcOpenEventHandle", byref(done), IpcHandle.from_buffer_copy(data))
        must("cuStreamWaitEvent", None, done, 0)
        check(words(where.value, 2) == [33, 31], "the other process wrote, and its event was waited for")

    def user(channel: Channel) -> None:
        contexts()
        data, _ = channel.receive()
        where, again, event, mine = c_uint64(), c_uint64(), c_void_p(), c_void_p()
        memory, moment = IpcHandle.from_buffer_copy(data[:64]), IpcHandle.from_buffer_copy(data[64:])
        must("cuIpcOpenMemHandle_v2", byref(where), memory, 1)
        must("cuIpcOpenMemHandle_v2", byref(again), memory, 1)
        check(again.value == where.value, "one place for one handle")
        must("cuIpcOpenEventHandle", byref(event), moment)
        must("cuStreamWaitEvent", None, event, 0)
        check(words(where.value, 2) == [32, 31], "the event was waited for")
        must("cuEventSynchronize", event)
        must("cuEventQuery", event)
        must("cuEventCreate", byref(mine), 2 | 4)
        must("cuIpcGetEventHandle", byref(moment), mine)
        launch(kernel(b"spin"), where.value, 33, 1)
        must("cuEventRecord", mine, None)
        channel.send(bytes(moment))
        must("cuCtxSynchronize")
        must("cuIpcCloseMemHandle", where)
        must("cuIpcCloseMemHandle", where)
        expect("INVALID_VALUE", "cuIpcCloseMemHandle", where)

    two(owner, user)


def copied() -> None:
    """A synchronous copy to shared memory is over for the other process, too, once it has returned."""

    def owner(channel: Channel) -> None:
        contexts()
        old, handle = c_uint64(), created(2 * MIB)
        must("cuMemAlloc_v2", byref(old), 2 * MIB)
        memory = IpcHandle()
        must("cuIpcGetMemHandle", byref(memory), old)
        channel.send(bytes(memory), exported(handle))
        spin, data = kernel(b"spin"), (ctypes.c_uint32 * (MIB // 4))()
        for number, where in enumerate((old.value, mapped(handle, 2 * MIB, 0)), start=1):
            launch(spin, where + 2 * MIB - 4, 1, 1)
            data[-1] = number
            must("cuMemcpyHtoD_v2", where, byref(data), MIB)
            channel.send(b"copied")
            check(channel.receive()[0] == b"seen", "the other process answers")

    def user(channel: Channel) -> None:
        contexts()
        data, (descriptor,) = channel.receive()
        where = c_uint64()
        must("cuIpcOpenMemHandle_v2", byref(where), IpcHandle.from_buffer_copy(data), 1)
        places = (where.value, mapped(imported(descriptor), 2 * MIB, 0))
        for number, place in enumerate(places, start=1):
            channel.receive()
            check(words(place + MIB - 4, 1) == [number], f"copy {number} is over")
            channel.send(b"seen")

    two(owner, user)


def released() -> None:
    """A copy in the default stream returns before another device's work is done, which may wait for this thread."""
    bytes_, (here, there) = 4096, contexts(2)
    source, target = c_uint64(), c_uint64()
    must("cuMemAlloc_v2", byref(source), bytes_)
    must("cuCtxSetCurrent", there)
    must("cuMemAlloc_v2", byref(target), bytes_)
    must("cuCtxSetCurrent", here)
    go, went = threading.Event(), []
    function = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: went.append(go.wait(20)))
    must("cuLaunchHostFunc", None, function, None)
    must("cuMemsetD8Async", source, 9, bytes_, None)
    must("cuCtxSetCurrent", there)
    must("cuMemcpyPeerAsync", target, there, source, here, bytes_, None)
    go.set()
    check(words(target.value, bytes_ // 4) == [0x09090909] * (bytes_ // 4), "the copy follows the memset")
    check(went == [True], "the copy returns before the other device's work is done")


def forged() -> None:
    """Invalid descriptors and handles, and those of a process that died."""
    bytes_ = 2 * MIB

    def owner(channel: Channel) -> None:
        contexts()
        where, event = c_uint64(), c_void_p()
        must("cuMemAlloc_v2", byref(where), MIB)
        must("cuEventCreate", byref(event), 2 | 4)
        memory, moment = IpcHandle(), IpcHandle()
        must("cuIpcGetMemHandle", byref(memory), where)
        must("cuIpcGetEventHandle", byref(moment), event)
        launch(kernel(b"spin"), where.value, 1, 1)
        must("cuEventRecord", event, None)
        handle = created(bytes_)
        channel.send(bytes(memory) + bytes(moment), exported(handle))
        time.sleep(60)

    def user(channel: Channel, child: int) -> None:
        data, (descriptor,) = channel.receive()
        contexts()
        handle, event, where = c_uint64(), c_void_p(), c_uint64()
        forged_memory = IpcHandle.from_buffer_copy(data[:8] + bytes([data[8] ^ 1]) + data[9:64])
        forged_event = IpcHandle.from_buffer_copy(data[64:72] + bytes([data[72] ^ 1]) + data[73:])
        null, pair = os.open("/dev/null", os.O_RDWR), socket.socketpair()
        pair[1].send(b"OB-FD-M1" + bytes(24))
        for number in (-1, 99_999, null, pair[1].fileno()):
            expect("UNKNOWN", "cuMemImportFromShareableHandle", byref(handle), number, FD)
        expect("INVALID_VALUE", "cuMemImportFromShareableHandle", byref(handle), pair[0].fileno(), FD)
        expect("INVALID_VALUE", "cuIpcOpenMemHandle_v2", byref(where), forged_memory, 1)
        expect("INVALID_VALUE", "cuIpcOpenEventHandle", byref(event), forged_event)
        expect("INVALID_VALUE", "cuIpcOpenMemHandle_v2", byref(where), IpcHandle(), 1)
        good = imported(descriptor)
        place = mapped(good, bytes_, 0)
        must("cuIpcOpenEventHandle", byref(event), IpcHandle.from_buffer_copy(data[64:]))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        # Opened memory stays usable; memory not opened is gone, and the call says so at once.
        must("cuMemsetD32_v2", place, 7, 4)
        check(words(place, 4) == [7] * 4, "memory of a process that died")
        must("cuStreamWaitEvent", None, event, 0)
        must("cuCtxSynchronize")
        start = time.monotonic()
        answers = set()
        while time.monotonic() - start < 10:
            opened = call("cuIpcOpenMemHandle_v2", byref(where), IpcHandle.from_buffer_copy(data[:64]), 1)
            if opened == "SUCCESS":
                # Memory that is open can be opened again after its owner's death.
                must("cuIpcCloseMemHandle", where)
            answers = {
                opened,
                call("cuMemImportFromShareableHandle", byref(handle), descriptor, FD),
                call("cuIpcOpenEventHandle", byref(event), IpcHandle.from_buffer_copy(data[64:])),
            }
            if answers == {"INVALID_VALUE"}:
                break
            time.sleep(0.05)
        check(answers == {"INVALID_VALUE"}, f"handles of a process that died: {answers}")

    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        owner(Channel(ends[1]))
    ends[1].close()
    user(Channel(ends[0]), child)


class PoolProperties(ctypes.Structure):
    """`CUmemPoolProps`."""

    _fields_ = (
        ("kind", c_int),
        ("handles", c_int),
        ("location", Location),
        ("windows", c_void_p),
        ("bytes_max", c_size_t),
        ("reserved", ctypes.c_ubyte * 56),
    )


def shared_pool() -> c_void_p:
    pool, wanted = c_void_p(), PoolProperties(kind=1, handles=FD, location=Location(1, 0))
    must("cuMemPoolCreate", byref(pool), byref(wanted))
    return pool


def imported_pool(descriptor: int) -> c_void_p:
    pool = c_void_p()
    must("cuMemPoolImportFromShareableHandle", byref(pool), descriptor, FD, 0)
    return pool


def pools() -> None:
    """A pool and its blocks in another process, and in the one that created it."""

    def owner(channel: Channel) -> None:
        contexts()
        types = c_int()
        must("cuDeviceGetAttribute", byref(types), POOL_HANDLE_TYPES, 0)
        assert types.value & FD, "programs that ask first would not try"
        pool, descriptor, records = shared_pool(), c_int(-1), []
        must("cuMemPoolExportToShareableHandle", byref(descriptor), pool, FD, 0)
        blocks = [c_uint64(), c_uint64()]
        for block, value in zip(blocks, (41, 42), strict=True):
            must("cuMemAllocFromPoolAsync", byref(block), 4096, pool, None)
            must("cuMemsetD32Async", block, value, 1024, None)
            record = (ctypes.c_ubyte * 64)()
            must("cuMemPoolExportPointer", byref(record), block)
            expect("INVALID_VALUE", "cuMemPoolExportPointer", byref(record), block.value + 512)
            records.append(bytes(record))
        must("cuCtxSynchronize")
        mine, place = imported_pool(descriptor.value), c_uint64()
        must("cuMemPoolImportPointer", byref(place), mine, (ctypes.c_ubyte * 64).from_buffer_copy(records[0]))
        check(place.value != blocks[0].value and words(place.value, 4) == [41] * 4, "a pool of one's own")
        must("cuMemFreeAsync", place, None)
        channel.send(b"".join(records), descriptor.value)
        check(channel.receive()[0] == b"written", "the other process answers")
        check(words(blocks[1].value, 1024) == [43] * 1024, "what the other process wrote")
        check(words(blocks[0].value, 1024) == [41] * 1024, "what it did not write")

    def user(channel: Channel) -> None:
        contexts()
        data, (descriptor,) = channel.receive()
        pool = imported_pool(descriptor)
        other, place, block = shared_pool(), c_uint64(), c_uint64()
        expect("INVALID_VALUE", "cuMemAllocFromPoolAsync", byref(block), 64, pool, None)
        records = [(ctypes.c_ubyte * 64).from_buffer_copy(data[at : at + 64]) for at in (0, 64)]
        expect("INVALID_VALUE", "cuMemPoolImportPointer", byref(place), other, records[0])
        expect("INVALID_VALUE", "cuMemPoolImportPointer", byref(place), pool, (ctypes.c_ubyte * 64)())
        # A forged ticket in an otherwise valid record.
        forged = (ctypes.c_ubyte * 64).from_buffer_copy(data[:20] + bytes([data[20] ^ 1]) + data[21:64])
        expect("INVALID_VALUE", "cuMemPoolImportPointer", byref(place), pool, forged)
        for record, value in zip(records, (41, 42), strict=True):
            must("cuMemPoolImportPointer", byref(place), pool, record)
            check(words(place.value, 1024) == [value] * 1024, "what the owner wrote")
        must("cuMemsetD32_v2", place, 43, 1024)
        must("cuMemFreeAsync", place, None)
        must("cuCtxSynchronize")
        expect("INVALID_VALUE", "cuMemFreeAsync", place, None)
        must("cuMemPoolDestroy", pool)
        channel.send(b"written")

    two(owner, user)


def visible() -> None:
    """The last characters of the devices' UUIDs."""
    status, count = call("cuInit", 0), c_int(-1)
    names = []
    if call("cuDeviceGetCount", byref(count)) == "SUCCESS":
        for device in range(count.value):
            uuid = (ctypes.c_ubyte * 16)()
            must("cuDeviceGetUuid_v2", byref(uuid), device)
            names.append(chr(uuid[15]))
    print(status, "".join(names))


def hidden() -> None:
    """Each process sees one device, and uses memory of the other device."""

    def show(device: int) -> None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(device)
        # The C library's own environment, which the driver reads.
        ctypes.CDLL(None).setenv(b"CUDA_VISIBLE_DEVICES", str(device).encode(), 1)
        contexts()
        count = c_int()
        must("cuDeviceGetCount", byref(count))
        check(count.value == 1, "one device is visible")

    def owner(channel: Channel) -> None:
        show(1)
        handle = created(2 * MIB)
        where = mapped(handle, 2 * MIB, 0)
        must("cuMemsetD32_v2", where, 51, 1024)
        must("cuCtxSynchronize")
        channel.send(b"take", exported(handle))
        check(channel.receive()[0] == b"written", "the other process answers")
        check(words(where, 1024) == [52] * 1024, "what the other process wrote")

    def user(channel: Channel) -> None:
        show(0)
        _, (descriptor,) = channel.receive()
        where = mapped(imported(descriptor), 2 * MIB, 0)
        check(words(where, 1024) == [51] * 1024, "memory of a hidden device")
        launch(kernel(b"fill"), where, 52, 4)
        must("cuCtxSynchronize")
        channel.send(b"written")

    two(owner, user)


CASES = {
    "access": access,
    "descriptors": descriptors,
    "handles": handles,
    "copied": copied,
    "released": released,
    "forged": forged,
    "pools": pools,
    "visible": visible,
    "hidden": hidden,
}

if __name__ == "__main__":
    CASES[sys.argv[1]]()
    print("right", flush=True)

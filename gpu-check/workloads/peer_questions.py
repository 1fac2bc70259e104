"""Asks a driver about two devices of one machine: peer access, memory that other processes share, pools.

`python peer_questions.py [GROUP ...]` prints a line of JSON for each question, with its answer, as soon as the driver
gives it.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import socket
import sys
from collections.abc import Callable
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_ulonglong, c_void_p
from typing import Any


class Answers(dict[str, object]):
    """Prints each answer as it is stored."""

    def __setitem__(self, question: str, answer: object) -> None:
        super().__setitem__(question, answer)
        print(json.dumps([question, answer]), flush=True)


ANSWERS = Answers()
cuda = ctypes.CDLL("libcuda.so.1")
MIB = 1 << 20
FD, NONE, FABRIC = 1, 0, 8


class Location(ctypes.Structure):
    _fields_ = (("kind", c_int), ("id", c_int))


class Properties(ctypes.Structure):
    """`CUmemAllocationProp`."""

    _fields_ = (
        ("kind", c_int),
        ("handles", c_int),
        ("location", Location),
        ("windows", c_void_p),
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class PoolProperties(ctypes.Structure):
    """`CUmemPoolProps`."""

    _fields_ = (
        ("kind", c_int),
        ("handles", c_int),
        ("location", Location),
        ("windows", c_void_p),
        ("bytes_max", c_size_t),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    )


class Access(ctypes.Structure):
    """`CUmemAccessDesc`."""

    _fields_ = (("location", Location), ("flags", c_int))


def name(status: int) -> str:
    text = c_char_p()
    cuda.cuGetErrorName(status, byref(text))
    return (text.value or str(status).encode()).decode().removeprefix("CUDA_ERROR_").removeprefix("CUDA_")


def call(function: str, *arguments: object) -> str:
    plain = [c_uint64(a & (1 << 64) - 1) if isinstance(a, int) else a for a in arguments]
    return name(getattr(cuda, function)(*plain))


def must(function: str, *arguments: object) -> None:
    answer = call(function, *arguments)
    if answer != "SUCCESS":
        raise SystemExit(f"{function} answered {answer}")


def note(question: str, function: str, *arguments: object, value: Any = None) -> str:
    """Keeps what a call answers, with its output where it has one."""
    answer = call(function, *arguments)
    if value is not None and answer == "SUCCESS":
        ANSWERS[question] = [answer, value() if callable(value) else value.value]
    else:
        ANSWERS[question] = answer
    return answer


def device_location(device: int) -> Location:
    return Location(1, device)


def properties(device: int, handles: int = FD, kind: int = 1) -> Properties:
    return Properties(kind=1, handles=handles, location=Location(kind, device))


def ask_devices() -> None:
    for a, b in ((0, 1), (1, 0), (0, 0), (0, 7), (7, 0), (-1, 0)):
        can = c_int(-1)
        note(f"can access {a} {b}", "cuDeviceCanAccessPeer", byref(can), a, b, value=can)
        for attribute in range(8):
            got = c_int(-1)
            note(
                f"attribute {attribute} of {a} {b}",
                "cuDeviceGetP2PAttribute",
                byref(got),
                attribute,
                a,
                b,
                value=got,
            )
    note("can access, nowhere to say so", "cuDeviceCanAccessPeer", None, 0, 1)
    for operation in range(18):
        bits, which = c_uint(0), c_int(operation)
        note(
            f"atomic {operation}",
            "cuDeviceGetP2PAtomicCapabilities",
            byref(bits),
            byref(which),
            1,
            0,
            1,
            value=bits,
        )
    bits, which = c_uint(0), c_int(0)
    note("atomics of one device", "cuDeviceGetP2PAtomicCapabilities", byref(bits), byref(which), 1, 0, 0)
    note("atomics, count 0", "cuDeviceGetP2PAtomicCapabilities", byref(bits), byref(which), 0, 0, 1)
    note("atomics, no output", "cuDeviceGetP2PAtomicCapabilities", None, byref(which), 1, 0, 1)
    note("atomics, wrong device", "cuDeviceGetP2PAtomicCapabilities", byref(bits), byref(which), 1, 0, 7)


def ask_contexts(first: c_void_p, second: c_void_p) -> None:
    wild = 0x1234_5678_9A00
    must("cuCtxSetCurrent", None)
    note("enable, no context", "cuCtxEnablePeerAccess", second, 0)
    note("disable, no context", "cuCtxDisablePeerAccess", second)
    must("cuCtxSetCurrent", first)
    note("enable NULL", "cuCtxEnablePeerAccess", None, 0)
    note("disable NULL", "cuCtxDisablePeerAccess", None)
    note("enable itself", "cuCtxEnablePeerAccess", first, 0)
    note("disable itself", "cuCtxDisablePeerAccess", first)
    note("enable, flags", "cuCtxEnablePeerAccess", second, 1)
    note("enable itself, flags", "cuCtxEnablePeerAccess", first, 1)
    note("disable before", "cuCtxDisablePeerAccess", second)
    note("enable", "cuCtxEnablePeerAccess", second, 0)
    note("enable again", "cuCtxEnablePeerAccess", second, 0)
    note("enable again, flags", "cuCtxEnablePeerAccess", second, 1)
    note("disable", "cuCtxDisablePeerAccess", second)
    note("disable again", "cuCtxDisablePeerAccess", second)
    other = c_void_p()
    must("cuCtxCreate_v2", byref(other), 0, 0)
    note("enable, same device", "cuCtxEnablePeerAccess", first, 0)
    note("disable, same device", "cuCtxDisablePeerAccess", first)
    note("enable, from a second context", "cuCtxEnablePeerAccess", second, 0)
    must("cuCtxSetCurrent", second)
    note("enable, to a second context", "cuCtxEnablePeerAccess", other, 0)
    must("cuCtxDestroy_v2", other)
    must("cuCtxSetCurrent", first)
    note("enable, destroyed", "cuCtxEnablePeerAccess", other, 0)
    del wild


def ask_memory(first: c_void_p, second: c_void_p) -> None:
    must("cuCtxSetCurrent", first)
    near, far = c_uint64(), c_uint64()
    must("cuMemAlloc_v2", byref(near), 4 * MIB)
    must("cuCtxSetCurrent", second)
    must("cuMemAlloc_v2", byref(far), 4 * MIB)
    must("cuCtxSetCurrent", first)
    may = c_ulonglong(77)
    for device in (0, 1):
        at = device_location(device)
        note(f"access of {device} to cuMemAlloc", "cuMemGetAccess", byref(may), byref(at), near, value=may)
    for which in (13, 14, 16, 17, 9, 10, 11, 12):
        got = c_ulonglong(0)
        note(f"pointer attribute {which} of cuMemAlloc", "cuPointerGetAttribute", byref(got), which, near)
        if which in (13, 14, 16, 17, 9, 11):
            ANSWERS[f"pointer attribute {which} of cuMemAlloc, value"] = got.value
    must("cuMemsetD8_v2", near, 7, 4096)
    for question, arguments in {
        "peer copy": (far, second, near, first, 4096),
        "peer copy, contexts swapped": (far, first, near, second, 4096),
        "peer copy, no destination context": (far, None, near, first, 4096),
        "peer copy, no source context": (far, second, near, None, 4096),
        "peer copy of nothing": (far, second, near, first, 0),
        "peer copy, one context": (near, first, near, first, 16),
        "peer copy, wild": (0x1234, second, near, first, 16),
    }.items():
        note(question, "cuMemcpyPeer", *arguments)
        note(question + ", async", "cuMemcpyPeerAsync", *arguments, None)
    must("cuCtxSynchronize")
    note("copy by addresses", "cuMemcpy", far, near, 4096)
    note("copy DtoD", "cuMemcpyDtoD_v2", far, near, 4096)
    note("copy DtoD async", "cuMemcpyDtoDAsync_v2", near, far, 4096, None)
    out = (ctypes.c_ubyte * 16)()
    note("read far", "cuMemcpyDtoH_v2", byref(out), far, 16, value=lambda: list(out)[:4])
    note("memset far", "cuMemsetD8_v2", far, 9, 4096)
    note("read far memset", "cuMemcpyDtoH_v2", byref(out), far, 16, value=lambda: list(out)[:4])
    # An event of one device, a stream of another.
    event, stream = c_void_p(), c_void_p()
    must("cuEventCreate", byref(event), 0)
    must("cuCtxSetCurrent", second)
    must("cuStreamCreate", byref(stream), 1)
    note("record another device's event", "cuEventRecord", event, stream)
    must("cuCtxSetCurrent", first)
    note("record", "cuEventRecord", event, None)
    must("cuCtxSetCurrent", second)
    note("wait for another device's event", "cuStreamWaitEvent", stream, event, 0)
    note("synchronize with it", "cuEventSynchronize", event)
    note("query it", "cuEventQuery", event)
    must("cuCtxSetCurrent", first)
    note("use another device's stream", "cuStreamSynchronize", stream)
    note("memset in another device's stream", "cuMemsetD8Async", near, 3, 64, stream)
    note("copy in another device's stream", "cuMemcpyAsync", near, far, 64, stream)
    must("cuCtxSynchronize")


def ask_virtual(first: c_void_p, second: c_void_p) -> None:
    must("cuCtxSetCurrent", first)
    size, where = c_size_t(), c_uint64()
    for kind, text in ((2, "host"), (3, "host NUMA"), (4, "host NUMA current")):
        wanted = properties(0, FD, kind)
        note(
            f"granularity, {text}",
            "cuMemGetAllocationGranularity",
            byref(size),
            byref(wanted),
            0,
            value=size,
        )
        made = c_uint64()
        if note(f"create, {text}", "cuMemCreate", byref(made), 2 * MIB, byref(wanted), 0) == "SUCCESS":
            must("cuMemRelease", made)
    unshared, shared = c_uint64(), c_uint64()
    wanted = properties(0, NONE)
    must("cuMemCreate", byref(unshared), 4 * MIB, byref(wanted), 0)
    wanted = properties(0, FD)
    must("cuMemCreate", byref(shared), 4 * MIB, byref(wanted), 0)
    for handles in (2, 4, 8, 9, 16):
        wanted = properties(0, handles)
        made = c_uint64()
        if note(f"create, handle types {handles}", "cuMemCreate", byref(made), 2 * MIB, byref(wanted), 0) == "SUCCESS":
            must("cuMemRelease", made)
    descriptor = c_int(-1)
    export = "cuMemExportToShareableHandle"
    note("export unshared", export, byref(descriptor), unshared, FD, 0)
    for kind in (0, 2, 4, 8):
        note(f"export as {kind}", export, byref((ctypes.c_ubyte * 64)()), shared, kind, 0)
    note("export, flags", export, byref(descriptor), shared, FD, 1)
    note("export nowhere", export, None, shared, FD, 0)
    note("export", export, byref(descriptor), shared, FD, 0)
    ANSWERS["export, close on exec"] = fcntl.fcntl(descriptor.value, fcntl.F_GETFD)
    again = c_int(-1)
    must(export, byref(again), shared, FD, 0)
    ANSWERS["export twice, two descriptors"] = again.value != descriptor.value
    os.close(again.value)
    import_ = "cuMemImportFromShareableHandle"
    handle = c_uint64()
    null = os.open("/dev/null", os.O_RDWR)
    pair = socket.socketpair()
    for text, number in (("99999", 99_999), ("/dev/null", null), ("a socket", pair[0].fileno())):
        note(f"import {text}", import_, byref(handle), number, FD)
    for kind in (0, 2):
        note(f"import as {kind}", import_, byref(handle), descriptor.value, kind)
    note("import nowhere", import_, None, descriptor.value, FD)
    note("import", import_, byref(handle), descriptor.value, FD)
    ANSWERS["import, the same handle"] = handle.value == shared.value
    got = Properties()
    note(
        "properties of an import",
        "cuMemGetAllocationPropertiesFromHandle",
        byref(got),
        handle,
        value=lambda: [got.kind, got.handles, got.location.kind, got.location.id, got.rdma, got.compression],
    )
    note("export an import", export, byref(again), handle, FD, 0)
    must("cuMemAddressReserve", byref(where), 8 * MIB, 0, 0, 0)
    must("cuMemMap", where, 4 * MIB, 0, handle, 0)
    may = c_ulonglong(77)
    for device in (0, 1, 7):
        at = device_location(device)
        note(f"access of {device}, mapped", "cuMemGetAccess", byref(may), byref(at), where, value=may)
    for kind in (0, 2, 3):
        at = Location(kind, 0)
        note(f"access of location {kind}", "cuMemGetAccess", byref(may), byref(at), where, value=may)
    for text, desc in {
        "device 1": Access(device_location(1), 3),
        "device 7": Access(device_location(7), 3),
        "the host": Access(Location(2, 0), 3),
        "host NUMA": Access(Location(3, 0), 3),
        "flags 2": Access(device_location(0), 2),
        "flags 8": Access(device_location(0), 8),
        "device 0, read": Access(device_location(0), 1),
        "device 0": Access(device_location(0), 3),
    }.items():
        note(f"give access to {text}", "cuMemSetAccess", where, 4 * MIB, byref(desc), 1)
    for device in (0, 1):
        at = device_location(device)
        note(f"access of {device}, given", "cuMemGetAccess", byref(may), byref(at), where, value=may)
    for which in (13, 14, 16, 17, 9, 10, 11):
        value = c_ulonglong(0)
        note(f"pointer attribute {which} of a mapping", "cuPointerGetAttribute", byref(value), which, where)
        if which in (13, 14, 16, 17, 9, 11):
            ANSWERS[f"pointer attribute {which} of a mapping, value"] = value.value
    base, length = c_uint64(), c_size_t()
    note("range of a mapping", "cuMemGetAddressRange_v2", byref(base), byref(length), where, value=length)
    note("old handle of a mapping", "cuIpcGetMemHandle", byref((ctypes.c_ubyte * 64)()), where)
    must("cuMemRelease", handle)
    must("cuMemRelease", shared)
    must("cuMemUnmap", where, 4 * MIB)
    note("import after all are released", import_, byref(handle), descriptor.value, FD)
    os.close(descriptor.value)
    note("import a closed one", import_, byref(handle), descriptor.value, FD)
    # Access of one device alone: what copies between the two make of it.
    at0, at1 = c_uint64(), c_uint64()
    for at, device in ((at0, 0), (at1, 1)):
        wanted, made = properties(device, NONE), c_uint64()
        must("cuMemCreate", byref(made), 2 * MIB, byref(wanted), 0)
        must("cuMemAddressReserve", byref(at), 2 * MIB, 0, 0, 0)
        must("cuMemMap", at, 2 * MIB, 0, made, 0)
        desc = Access(device_location(device), 3)
        must("cuMemSetAccess", at, 2 * MIB, byref(desc), 1)
    must("cuMemsetD8_v2", at0, 5, 4096)
    note("peer copy of mappings", "cuMemcpyPeer", at1, second, at0, first, 4096)
    note("and then", "cuCtxSynchronize")
    out = (ctypes.c_ubyte * 16)()
    must("cuCtxSetCurrent", second)
    note("read it", "cuMemcpyDtoH_v2", byref(out), at1, 16, value=lambda: list(out)[:2])
    must("cuCtxSetCurrent", first)
    note("peer copy of mappings, async", "cuMemcpyPeerAsync", at1, second, at0, first, 4096, None)
    note("after it", "cuCtxSynchronize")


def ask_pools(first: c_void_p) -> None:
    must("cuCtxSetCurrent", first)
    default = c_void_p()
    must("cuDeviceGetDefaultMemPool", byref(default), 0)
    flags = c_int(-1)

    def access(question: str, pool: c_void_p, device: int) -> None:
        at = device_location(device)
        note(question, "cuMemPoolGetAccess", byref(flags), pool, byref(at), value=flags)

    access("pool access of its device", default, 0)
    access("pool access of another", default, 1)
    access("pool access of none", default, 7)
    for text, desc in {
        "another": Access(device_location(1), 3),
        "another, read": Access(device_location(1), 1),
        "another again": Access(device_location(1), 3),
        "its own": Access(device_location(0), 3),
        "its own, none": Access(device_location(0), 0),
        "device 7": Access(device_location(7), 3),
        "the host": Access(Location(2, 0), 3),
    }.items():
        note(f"pool access for {text}", "cuMemPoolSetAccess", default, byref(desc), 1)
        access(f"pool access for {text}, then", default, 1)
    handle = c_int(-1)
    export = "cuMemPoolExportToShareableHandle"
    note("export the default pool", export, byref(handle), default, FD, 0)
    plain, shared = c_void_p(), c_void_p()
    wanted = PoolProperties(kind=1, handles=NONE, location=device_location(0))
    must("cuMemPoolCreate", byref(plain), byref(wanted))
    for handles in (2, 4, 8):
        wanted = PoolProperties(kind=1, handles=handles, location=device_location(0))
        made = c_void_p()
        if note(f"create pool, handle types {handles}", "cuMemPoolCreate", byref(made), byref(wanted)) == "SUCCESS":
            must("cuMemPoolDestroy", made)
    wanted = PoolProperties(kind=1, handles=FD, location=device_location(0))
    note("create a shared pool", "cuMemPoolCreate", byref(shared), byref(wanted))
    note("export a plain pool", export, byref(handle), plain, FD, 0)
    note("export a pool as 8", export, byref((ctypes.c_ubyte * 64)()), shared, 8, 0)
    note("export a pool, flags", export, byref(handle), shared, FD, 1)
    note("export a pool nowhere", export, None, shared, FD, 0)
    if note("export a pool", export, byref(handle), shared, FD, 0) != "SUCCESS":
        return
    one, other = c_uint64(), c_uint64()
    must("cuMemAllocFromPoolAsync", byref(one), 4 * MIB, shared, None)
    must("cuMemAllocFromPoolAsync", byref(other), 4096, plain, None)
    must("cuMemsetD8_v2", one, 4, 4096)
    must("cuCtxSynchronize")
    data = (ctypes.c_ubyte * 64)()
    note("export a pointer", "cuMemPoolExportPointer", byref(data), one)
    note("export a pointer inside", "cuMemPoolExportPointer", byref((ctypes.c_ubyte * 64)()), one.value + 512)
    note("export a plain pool's pointer", "cuMemPoolExportPointer", byref((ctypes.c_ubyte * 64)()), other)
    note("export a pointer nowhere", "cuMemPoolExportPointer", None, one)
    for which in (13, 14, 16, 17):
        value = c_ulonglong(0)
        note(f"pointer attribute {which} of a pool", "cuPointerGetAttribute", byref(value), which, one)
        if which != 17:
            ANSWERS[f"pointer attribute {which} of a pool, value"] = value.value
    imported = c_void_p()
    import_ = "cuMemPoolImportFromShareableHandle"
    note("import a pool from -1", import_, byref(imported), -1, FD, 0)
    note("import a pool, flags", import_, byref(imported), handle.value, FD, 1)
    if note("import a pool", import_, byref(imported), handle.value, FD, 0) != "SUCCESS":
        return
    at = c_uint64()
    note("import a pointer into another pool", "cuMemPoolImportPointer", byref(at), shared, byref(data))
    note("import nonsense", "cuMemPoolImportPointer", byref(at), imported, byref((ctypes.c_ubyte * 64)()))
    note("allocate from an import", "cuMemAllocFromPoolAsync", byref(other), 4096, imported, None)
    access("pool access of an import", imported, 0)
    desc = Access(device_location(1), 3)
    note("pool access for another, import", "cuMemPoolSetAccess", imported, byref(desc), 1)
    note("export an imported pool", export, byref(c_int()), imported, FD, 0)
    value = c_uint64(0)
    note("threshold of an import", "cuMemPoolGetAttribute", imported, 4, byref(value))
    note("set threshold of an import", "cuMemPoolSetAttribute", imported, 4, byref(value))
    note("trim an import", "cuMemPoolTrimTo", imported, 0)
    if note("import a pointer", "cuMemPoolImportPointer", byref(at), imported, byref(data)) == "SUCCESS":
        out = (ctypes.c_ubyte * 16)()
        note("read it there", "cuMemcpyDtoH_v2", byref(out), at, 16, value=lambda: list(out)[:2])
        ANSWERS["the same address"] = at.value == one.value
        note("import it again", "cuMemPoolImportPointer", byref(other), imported, byref(data))
        note("free an import", "cuMemFreeAsync", at, None)
    note("destroy an imported pool", "cuMemPoolDestroy", imported)


def ask_attributes() -> None:
    for which in (
        16,
        98,
        99,
        100,
        101,
        102,
        103,
        114,
        115,
        116,
        117,
        118,
        119,
        124,
        125,
        128,
        129,
        130,
        132,
        134,
        135,
        136,
    ):
        got = c_int(-1)
        note(f"device attribute {which}", "cuDeviceGetAttribute", byref(got), which, 0, value=got)


def main() -> None:
    must("cuInit", 0)
    count = c_int()
    must("cuDeviceGetCount", byref(count))
    if count.value < 2:
        raise SystemExit("two devices are wanted")
    first, second = c_void_p(), c_void_p()
    must("cuDevicePrimaryCtxRetain", byref(first), 0)
    must("cuDevicePrimaryCtxRetain", byref(second), 1)
    groups: dict[str, Callable[[], None]] = {
        "devices": ask_devices,
        "attributes": ask_attributes,
        "contexts": lambda: ask_contexts(first, second),
        "memory": lambda: ask_memory(first, second),
        "virtual": lambda: ask_virtual(first, second),
        "pools": lambda: ask_pools(first),
    }
    for group in sys.argv[1:] or groups:
        groups[group]()


if __name__ == "__main__":
    main()

"""Makes and maps physical memory without a context, and uses it in one. Prints what came of each way."""

from __future__ import annotations

from ctypes import Structure, byref, c_char, c_int, c_size_t, c_uint32, c_uint64, c_ushort, c_void_p
from typing import ClassVar

from cuda import must, primary_context, wide

WORD = 0x1234_5678


class Properties(Structure):
    """`CUmemAllocationProp` of pinned memory of a device, to be exported as a file descriptor."""

    _fields_: ClassVar = [
        ("type", c_int),
        ("handle_types", c_int),
        ("location_type", c_int),
        ("location_id", c_int),
        ("win32", c_void_p),
        ("compression", c_char),
        ("rdma", c_char),
        ("usage", c_ushort),
        ("reserved", c_char * 4),
    ]


class Access(Structure):
    """`CUmemAccessDesc` of a device that reads and writes."""

    _fields_: ClassVar = [("location_type", c_int), ("location_id", c_int), ("flags", c_int)]


def mapped() -> tuple[c_uint64, c_uint64, int]:
    """Returns mapped memory: its address, handle and length in bytes."""
    properties, bytes = Properties(1, 1, 1, 0), c_size_t()
    must("cuMemGetAllocationGranularity", byref(bytes), byref(properties), 0)
    handle, address, file = c_uint64(), c_uint64(), c_int(-1)
    must("cuMemCreate", byref(handle), bytes, byref(properties), wide(0))
    must("cuMemExportToShareableHandle", byref(file), handle, 1, wide(0))
    must("cuMemAddressReserve", byref(address), bytes, wide(0), wide(0), wide(0))
    must("cuMemMap", address, bytes, wide(0), handle, wide(0))
    must("cuMemSetAccess", address, bytes, byref(Access(1, 0, 3)), wide(1))
    return address, handle, bytes.value


def unmap(address: c_uint64, handle: c_uint64, bytes: int) -> None:
    must("cuMemUnmap", address, wide(bytes))
    must("cuMemAddressFree", address, wide(bytes))
    must("cuMemRelease", handle)


def check(way: str, address: c_uint64) -> None:
    word = c_uint32()
    must("cuMemsetD32_v2", address, WORD, wide(1))
    must("cuMemcpyDtoH_v2", byref(word), address, wide(4))
    print(f"{way}: {'right' if word.value == WORD else hex(word.value)}")


must("cuInit", 0)
memory = mapped()
context = primary_context()
check("without a context", memory[0])
must("cuCtxSetCurrent", None)
unmap(*memory)
destroyed = c_void_p()
must("cuCtxCreate_v2", byref(destroyed), 0, 0)
must("cuCtxSetCurrent", destroyed)
must("cuCtxDestroy_v2", destroyed)
memory = mapped()
must("cuCtxSetCurrent", context)
check("after its context was destroyed", memory[0])
unmap(*memory)

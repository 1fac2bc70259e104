"""A program whose server comes back with fewer devices: `gone_devices.py stays`, or `gone_devices.py HANDLE`."""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_char, c_int, c_size_t, c_uint64, c_void_p

from cuda import call

Handle = c_char * 64


class ByValue(ctypes.Structure):
    """`CUipcMemHandle`."""

    _fields_ = (("bytes", Handle),)


def answer(name: str, *arguments: object) -> str:
    return call(name, *arguments).removeprefix("CUDA_ERROR_")


def open_device(number: int) -> str:
    device, context = c_int(), c_void_p()
    opened = answer("cuDeviceGet", byref(device), c_int(number))
    if opened != "CUDA_SUCCESS":
        return opened
    assert answer("cuDevicePrimaryCtxRetain", byref(context), device) == "CUDA_SUCCESS"
    return answer("cuCtxSetCurrent", context)


def stay() -> None:
    """Uses the second device before and after its server is gone."""
    address, handle = c_uint64(), ByValue()
    print(open_device(1), answer("cuMemAlloc_v2", byref(address), c_size_t(4096)))
    assert answer("cuIpcGetMemHandle", byref(handle), address) == "CUDA_SUCCESS"
    print(ctypes.string_at(byref(handle), 64).hex(), flush=True)
    sys.stdin.readline()
    word = c_uint64()
    print(answer("cuMemcpyDtoH_v2", byref(word), address, c_size_t(8)), answer("cuCtxSynchronize"))


def come_later(handle: bytes) -> None:
    """Asks the new server for the second device, and for memory on it that another process had."""
    count = c_int()
    assert answer("cuDeviceGetCount", byref(count)) == "CUDA_SUCCESS"
    print(count.value, open_device(0), open_device(1))
    address, given = c_uint64(), ByValue.from_buffer_copy(handle)
    print(answer("cuIpcOpenMemHandle_v2", byref(address), given, c_int(1)))


if __name__ == "__main__":
    began = answer("cuInit", c_int(0))
    if began != "CUDA_SUCCESS":
        print(began)
    elif sys.argv[1] == "stays":
        stay()
    else:
        come_later(bytes.fromhex(sys.argv[1]))

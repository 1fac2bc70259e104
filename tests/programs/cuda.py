"""The driver, for test programs that call it through ctypes.

Importing this module loads the `libcuda.so.1` that the loader finds. Integers are passed as ctypes
passes them, in 32 bits; `wide` passes all 64.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int64, c_uint64, c_void_p

lib = ctypes.CDLL("libcuda.so.1")


def name(status: int) -> str:
    """Returns CUDA's name of a status, or its number if CUDA has no name for it."""
    text = c_char_p()
    lib.cuGetErrorName(status, byref(text))
    return (text.value or str(status).encode()).decode()


def call(function: str, *arguments: object) -> str:
    """Calls a function; returns the name of its status."""
    return name(getattr(lib, function)(*arguments))


def must(function: str, *arguments: object) -> None:
    """Calls a function, which must succeed; makes no other call if it does."""
    status = getattr(lib, function)(*arguments)
    if status != 0:
        raise AssertionError(f"{function}: {name(status)}")


def made(function: str, *arguments: object) -> c_void_p:
    """Returns a new object, which the function writes to its first parameter."""
    handle = c_void_p()
    must(function, byref(handle), *arguments)
    return handle


def primary_context(device: int = 0) -> c_void_p:
    """Initialises the driver and makes a device's primary context current."""
    must("cuInit", 0)
    context = made("cuDevicePrimaryCtxRetain", device)
    must("cuCtxSetCurrent", context)
    return context


def kernels(ptx: bytes, *names: str) -> list[c_void_p]:
    """Loads PTX; returns its kernels of these names."""
    module = made("cuModuleLoadData", ptx)
    return [made("cuModuleGetFunction", module, name.encode()) for name in names]


def wide(value: object) -> object:
    """Passes an integer as 64 bits, which fill a register or stack slot whatever the parameter's
    width."""
    if isinstance(value, int):
        return c_uint64(value) if value >= 0 else c_int64(value)
    if value is None:
        return c_void_p()
    return value


def short(name: str) -> str:
    """Returns the name of a status without CUDA's prefixes."""
    return name.removeprefix("CUDA_ERROR_").removeprefix("CUDA_")

"""Calls the driver's private table by which cuFFT finds the kernel of a module, as cuFFT does.
Prints the results."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_uint64, c_void_p

from cuda import call, must
from misuse import STORE, load

MODULE_ITERATOR = bytes.fromhex("6e163fbeb958444d835ce182aff1991e")
FUNCTIONS_SLOT = 7
# NVRTC asks for the first and works without; nobody asks for the second.
NVRTC = bytes.fromhex("da9151d33ae6cc41a5c04f26d533e328")
UNKNOWN = bytes(range(16))

Each = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_char_p)
SECOND = STORE.split(b".address_size 64")[1].replace(b"store", b"other")


def functions(module: c_void_p) -> tuple[int, list[tuple[int | None, bytes]]]:
    """Returns the count from the table, and the arguments of its callbacks."""
    table = POINTER(c_void_p)()
    assert call("cuGetExportTable", byref(table), MODULE_ITERATOR) == "CUDA_SUCCESS"
    assert (table[0] or 0) > 8 * FUNCTIONS_SLOT, "cuFFT wants this many slots"
    seen: list[tuple[int | None, bytes]] = []

    def each(opaque: int | None, function: int | None, name: bytes) -> None:
        assert opaque == 77
        seen.append((function, name))

    signature = ctypes.CFUNCTYPE(c_uint64, c_void_p, c_void_p, Each, c_void_p)
    return signature(table[FUNCTIONS_SLOT])(None, module, Each(each), 77), seen


def main() -> None:
    must("cuInit", 0)
    context = c_void_p()
    must("cuDevicePrimaryCtxRetain", byref(context), 0)
    must("cuCtxSetCurrent", context)
    for image in (STORE, STORE.replace(b"\0", b"") + SECOND):
        status, module, log = load(image)
        assert status == "CUDA_SUCCESS", log
        count, seen = functions(module)
        for function, name in seen:
            found = c_void_p()
            must("cuModuleGetFunction", byref(found), module, name)
            assert found.value == function, f"{name.decode()} is another function"
        print(count, sorted(name.decode() for _, name in seen))
    print(*functions(c_void_p(1234)))
    for table in (NVRTC, UNKNOWN, UNKNOWN):
        assert call("cuGetExportTable", byref(c_void_p()), table) == "CUDA_ERROR_INVALID_VALUE"


if __name__ == "__main__":
    main()

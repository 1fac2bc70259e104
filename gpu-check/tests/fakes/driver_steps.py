"""Steps that make driver calls by ctypes: for the real outboard program, on the software device."""

import ctypes
import os
from pathlib import Path

BYTES = 4096

# What each process counts is kept, not only what the last one counts.
if folder := os.environ.get("FAKE_STATS"):
    level = os.environ["OUTBOARD_OPTIMISE"]
    os.environ["OUTBOARD_STATS"] = str(Path(folder) / f"{level}-{os.getpid()}.json")


class Driver:
    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(BYTES))

    def call(self, name, *arguments):
        result = getattr(self.library, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name}: {result}")

    def fill_and_read(self, value):
        here = ctypes.create_string_buffer(BYTES)
        self.call("cuMemsetD8_v2", self.address, ctypes.c_ubyte(value), ctypes.c_size_t(BYTES))
        self.call("cuMemcpyDtoH_v2", here, self.address, ctypes.c_size_t(BYTES))
        if here.raw != bytes([value]) * BYTES:
            raise RuntimeError("other bytes came back")


def first_result():
    Driver().fill_and_read(7)


def fill_and_read(_):
    driver = Driver()
    return lambda: driver.fill_and_read(9)


def ask(_):
    driver, device = Driver(), ctypes.c_int()
    return lambda: driver.call("cuCtxGetDevice", ctypes.byref(device))


STEPS = {"fill_and_read": fill_and_read, "ask": ask}

"""Calls and state for the questions of `driver_answers.py`."""

from __future__ import annotations

import ctypes
import datetime
import platform
from collections.abc import Callable
from ctypes import byref, c_int, c_void_p
from typing import Any

import cuda
from cuda import lib, short, wide

Question = Callable[[Any], object]

# An address that no process maps, and one in the driver's reserved range.
WILD = 0xDEAD_BEEF_0000
WILD_DEVICE = 0x1234
ZEROS = ctypes.create_string_buffer(8192)
# A structure of zeros inside another: not a handle, but a readable address.
NOTHING = ctypes.addressof(ZEROS) + 1024
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 word;
.visible .entry store(.param .u64 where)
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [where];
    mov.u32 %r1, 7;
    st.global.u32 [%rd1], %r1;
    ret;
}
.visible .entry nothing()
{
    ret;
}
"""


class CannotGoOn(Exception):
    """Raised after an answer that leaves this process without a context."""


def about() -> dict[str, object]:
    """Describes the device, the driver's version and the day."""
    name, version = ctypes.create_string_buffer(100), c_int()
    lib.cuInit(0)
    lib.cuDeviceGetName(name, 100, 0)
    lib.cuDriverGetVersion(byref(version))
    try:
        with open("/proc/driver/nvidia/version") as file:
            kernel = next(word for word in file.readline().split() if word[0].isdigit() and "." in word)
    except (OSError, StopIteration):
        kernel = "none"
    return {
        "device": name.value.decode(),
        "driver": kernel,
        "cuda": version.value,
        "machine": platform.machine(),
        "date": str(datetime.date.today()),
    }


def call(function: str, *arguments: object) -> str:
    return short(cuda.call(function, *map(wide, arguments)))


def must(function: str, *arguments: object) -> None:
    answer = call(function, *arguments)
    if answer != "SUCCESS":
        raise CannotGoOn(f"{function} answered {answer}")


def got(function: str, *arguments: object) -> c_void_p:
    """Returns a new object, which `function` writes to its first parameter."""
    made = c_void_p()
    must(function, byref(made), *arguments)
    return made


def q(function: str, *arguments: object) -> Question:
    """Makes a question of one call, with outputs given as types and the state's objects by name."""

    def ask(state: Any) -> str:
        real = []
        for argument in arguments:
            if isinstance(argument, type):
                argument = byref(argument())
            elif isinstance(argument, str):
                argument = getattr(state, argument)
            real.append(argument)
        return call(function, *real)

    return ask


class State:
    """A current context, and one object of each kind."""

    def __init__(self) -> None:
        must("cuInit", 0)
        self.context = got("cuDevicePrimaryCtxRetain", 0)
        must("cuCtxSetCurrent", self.context)
        self.stream = got("cuStreamCreate", 1)
        self.event = got("cuEventCreate", 0)
        self.untimed = got("cuEventCreate", 2)
        self.module = got("cuModuleLoadData", PTX + b"\0")
        self.function = got("cuModuleGetFunction", self.module, b"store")
        self.empty = got("cuModuleGetFunction", self.module, b"nothing")
        self.memory = got("cuMemAlloc_v2", 4096)
        self.pinned = got("cuMemHostAlloc", 4096, 0)
        self.host = ctypes.create_string_buffer(8192)
        self.graph = got("cuGraphCreate", 0)
        self.first = got("cuGraphAddEmptyNode", self.graph, None, 0)
        self.second = got("cuGraphAddEmptyNode", self.graph, byref(self.first), 1)
        self.freed_stream = got("cuStreamCreate", 1)
        must("cuStreamDestroy_v2", self.freed_stream)
        self.freed_event = got("cuEventCreate", 0)
        must("cuEventDestroy_v2", self.freed_event)
        self.freed_memory = got("cuMemAlloc_v2", 4 << 20)
        must("cuMemFree_v2", self.freed_memory)
        self.freed_graph = got("cuGraphCreate", 0)
        must("cuGraphDestroy", self.freed_graph)


class NoContext:
    def __init__(self) -> None:
        must("cuInit", 0)

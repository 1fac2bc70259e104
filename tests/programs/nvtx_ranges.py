"""Does what NVTX's header does in a program: loads the library that it is told, and calls the
functions in its tables."""

from __future__ import annotations

import ctypes
import os
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import ClassVar

from cuda import must

ETID_CALLBACKS, CORE, CORE2 = 1, 1, 5
SIZES = {CORE: 16, CORE2: 16}
slots = {module: (c_void_p * size)() for module, size in SIZES.items()}
tables = {
    module: (c_void_p * size)(0, *(ctypes.addressof(slots[module]) + 8 * index for index in range(1, size)))
    for module, size in SIZES.items()
}


@CFUNCTYPE(c_int, c_int, POINTER(c_void_p), POINTER(c_uint))
def module_function_table(module: int, table: object, size: object) -> int:
    if module not in tables:
        return 0
    table[0] = ctypes.addressof(tables[module])  # type: ignore[index]
    size[0] = SIZES[module]  # type: ignore[index]
    return 1


class Callbacks(Structure):
    _fields_: ClassVar = [("struct_size", c_size_t), ("function", c_void_p)]


class Attributes(Structure):
    _fields_: ClassVar = [
        ("version", ctypes.c_uint16),
        ("size", ctypes.c_uint16),
        ("category", c_uint),
        ("color_type", c_int),
        ("color", c_uint),
        ("payload_type", c_int),
        ("reserved", c_int),
        ("payload", c_uint64),
        ("message_type", c_int),
        ("message", c_void_p),
    ]


callbacks = Callbacks(ctypes.sizeof(Callbacks), ctypes.cast(module_function_table, c_void_p).value)


@CFUNCTYPE(c_void_p, c_uint)
def export_table(number: int) -> int | None:
    return ctypes.addressof(callbacks) if number == ETID_CALLBACKS else None


def function(module: int, number: int, result: object, *arguments: object) -> object:
    return CFUNCTYPE(result, *arguments)(slots[module][number])  # type: ignore[arg-type]


library = ctypes.CDLL(os.environ["NVTX_INJECTION64_PATH"])
assert library.InitializeInjectionNvtx2(export_table) == 1
push, pop = function(CORE, 9, c_int, c_char_p), function(CORE, 11, c_int)
start, end = function(CORE, 5, c_uint64, c_char_p), function(CORE, 7, None, c_uint64)
domain = function(CORE2, 12, c_void_p, c_char_p)(b"a domain")
registered = function(CORE2, 10, c_void_p, c_void_p, c_char_p)(domain, b"registered")
push_ex = function(CORE2, 4, c_int, c_void_p, POINTER(Attributes))
pop_domain = function(CORE2, 5, c_int, c_void_p)
attributes = Attributes(2, ctypes.sizeof(Attributes), message_type=3, message=registered)

for step in range(3):
    assert push(b"iteration %d" % step) == 0
    assert push(b"inner") == 1
    must("cuInit", 0)
    assert push_ex(domain, byref(attributes)) == 0
    assert pop() == 1
    # Of the other domain: ranges of two domains do not nest.
    assert pop() == 0
    assert pop_domain(domain) == 0
first, second = start(b"a"), start(b"b")
end(first)
end(second)
end(12345)
assert pop() == -1

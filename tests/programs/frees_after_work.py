"""Frees memory while a stream still works: as with a GPU's driver, what the stream copied is there when the call
returns. Prints how often."""

from __future__ import annotations

import time
from collections.abc import Callable
from ctypes import CFUNCTYPE, addressof, byref, c_size_t, c_uint32, c_uint64, c_void_p, create_string_buffer

from cuda import lib, made, must, primary_context

PAGE_BYTES = 1 << 12
HostFunction = CFUNCTYPE(None, c_void_p)


@HostFunction
def slow(_: object) -> None:
    time.sleep(0.1)


def device_memory() -> c_uint64:
    at = c_uint64()
    must("cuMemAlloc_v2", byref(at), c_size_t(PAGE_BYTES))
    return at


def managed_memory() -> c_uint64:
    at = c_uint64()
    must("cuMemAllocManaged", byref(at), c_size_t(PAGE_BYTES), 1)
    return at


def of_a_pool() -> c_uint64:
    at = c_uint64()
    must("cuMemAllocAsync", byref(at), c_size_t(PAGE_BYTES), stream)
    must("cuStreamSynchronize", stream)
    return at


def pinned_memory() -> c_void_p:
    at = c_void_p()
    must("cuMemAllocHost_v2", byref(at), c_size_t(PAGE_BYTES))
    return at


pages = create_string_buffer(2 * PAGE_BYTES)


def registered_memory() -> c_void_p:
    at = c_void_p(-(-addressof(pages) // PAGE_BYTES) * PAGE_BYTES)
    must("cuMemHostRegister_v2", at, c_size_t(PAGE_BYTES), 0)
    return at


WAYS: dict[str, tuple[Callable[[], object], str]] = {
    "device memory": (device_memory, "cuMemFree_v2"),
    "managed memory": (managed_memory, "cuMemFree_v2"),
    "memory of a pool": (of_a_pool, "cuMemFree_v2"),
    "pinned memory": (pinned_memory, "cuMemFreeHost"),
    "registered memory": (registered_memory, "cuMemHostUnregister"),
}

primary_context()
lib.cuMemFreeHost.argtypes = lib.cuMemHostUnregister.argtypes = [c_void_p]
stream = made("cuStreamCreate", 1)
source, target = device_memory(), pinned_memory()
word = c_uint32.from_address(target.value or 0)
for number, (kind, (get, free)) in enumerate(WAYS.items(), 1):
    memory = get()
    must("cuMemsetD32_v2", source, number, c_size_t(1))
    must("cuLaunchHostFunc", stream, slow, None)
    must("cuMemcpyDtoHAsync_v2", target, source, c_size_t(4), stream)
    must(free, memory)
    if word.value != number:
        raise SystemExit(f"WRONG: {kind}: {word.value} instead of {number} after {free}")
# Nothing is under way: no more is asked of the server than to free.
for memory in [device_memory() for _ in range(10)]:
    must("cuMemFree_v2", memory)
print(f"{len(WAYS)} kinds of memory are freed after the work before")

"""Memory that is written by two ways, one after the other: the later bytes are there, whichever way is faster. Prints
`right`.

    later_bytes.py notes|kernel|hidden|rows|capture|words|held|adapter|staged|opening|managed
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from ctypes import byref, c_size_t, c_ubyte, c_uint32, c_uint64, c_void_p
from typing import ClassVar

from cuda import kernels, lib, made, must, primary_context

KIB, MIB = 1 << 10, 1 << 20
NON_BLOCKING, RELAXED, MAPPED = 1, 2, 2
ROUNDS = 8
# Stores a word where `at` points, and where `at` says that it points.
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry put(.param .u64 at, .param .u64 value)
{
    .reg .b64 %rd<3>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [at];
    ld.param.u64 %rd2, [value];
    cvt.u32.u64 %r1, %rd2;
    st.global.u32 [%rd1], %r1;
    ret;
}
.visible .entry load(.param .u64 at, .param .u64 out)
{
    .reg .b64 %rd<3>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [at];
    ld.param.u64 %rd2, [out];
    ld.global.u32 %r1, [%rd1];
    st.global.u32 [%rd2], %r1;
    ret;
}
.visible .entry load_by_pointer(.param .u64 at, .param .u64 out)
{
    .reg .b64 %rd<4>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [at];
    ld.param.u64 %rd2, [out];
    ld.global.u64 %rd3, [%rd1];
    ld.global.u32 %r1, [%rd3];
    st.global.u32 [%rd2], %r1;
    ret;
}
\0"""


def check(is_right: bool, what: str) -> None:
    if not is_right:
        raise SystemExit(f"WRONG: {what}")


def device(bytes: int) -> int:
    at = c_uint64()
    must("cuMemAlloc_v2", byref(at), c_size_t(bytes))
    return at.value


def pinned(bytes: int, flags: int = 0) -> ctypes.Array[ctypes.c_char]:
    at = c_void_p()
    must("cuMemHostAlloc", byref(at), c_size_t(bytes), flags)
    return (ctypes.c_char * bytes).from_address(at.value or 0)


def fill(at: int, byte: int, bytes: int) -> None:
    must("cuMemsetD8Async", c_uint64(at), c_ubyte(byte), c_size_t(bytes), None)


def bring(to: object, at: int, bytes: int, stream: c_void_p | None = None) -> None:
    must("cuMemcpyDtoHAsync_v2", to, c_uint64(at), c_size_t(bytes), stream)


def bring_now(to: object, at: int, bytes: int) -> None:
    must("cuMemcpyDtoH_v2", to, c_uint64(at), c_size_t(bytes))


def launch(kernel: object, *arguments: int) -> None:
    launch_in(None, kernel, *arguments)


def launch_in(stream: c_void_p | None, kernel: object, *arguments: int) -> None:
    words = [c_uint64(argument) for argument in arguments]
    pointers = (c_void_p * len(words))(*(ctypes.addressof(word) for word in words))
    must("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream, pointers, None)


def word(at: int) -> int:
    out = ctypes.create_string_buffer(4)
    bring_now(out, at, 4)
    return int.from_bytes(out.raw, "little")


def notes() -> None:
    """What kernels wrote to mapped memory is there after a copy of other memory that was waited for."""
    bytes, long = 32 * MIB, 2 * MIB
    shared, source, back = pinned(bytes, MAPPED), device(long), ctypes.create_string_buffer(long)
    for round in range(ROUNDS):
        fill(ctypes.addressof(shared), round + 1, bytes)
        bring_now(back, source, long)
        check(shared[bytes - 1] == c_ubyte(round + 1).value.to_bytes(), f"round {round}: mapped memory after a copy")


def kernel() -> None:
    """A copy into memory that a kernel wrote before."""
    [put] = kernels(PTX, "put")
    for bytes in (64 * KIB, 4 * MIB):
        memory, source = pinned(bytes), device(bytes)
        fill(source, 0x55, bytes)
        for round in range(ROUNDS):
            launch(put, ctypes.addressof(memory), round)
            bring(memory, source, bytes)
            # The program computes, and nobody waits.
            time.sleep(0.01)
            must("cuCtxSynchronize")
            check(memory[:4] == b"UUUU", f"{bytes} bytes, round {round}: a kernel's word over a later copy")


def hidden() -> None:
    """A kernel reads by a pointer in the GPU's memory what a copy brought to memory that an earlier one named."""
    load, load_by_pointer = kernels(PTX, "load", "load_by_pointer")
    bytes = 64 * KIB
    memory, source, pointer, out = pinned(bytes), device(bytes), device(8), device(4)
    address = ctypes.addressof(memory)
    must("cuMemcpyHtoD_v2", c_uint64(pointer), (c_uint64 * 1)(address), c_size_t(8))
    for round in range(ROUNDS):
        launch(load, address, out)
        fill(source, round + 1, bytes)
        bring(memory, source, bytes)
        launch(load_by_pointer, pointer, out)
        check(word(out) == (round + 1) * 0x01010101, f"round {round}: a kernel after a copy to what it reads")


class Copy2D(ctypes.Structure):
    """`CUDA_MEMCPY2D`."""

    _fields_: ClassVar = [
        (f"{end}_{name}", kind)
        for end in ("src", "dst")
        for name, kind in (
            ("x", c_size_t),
            ("y", c_size_t),
            ("type", c_uint32),
            ("host", c_void_p),
            ("device", c_uint64),
            ("array", c_void_p),
            ("pitch", c_size_t),
        )
    ] + [("width", c_size_t), ("height", c_size_t)]


def rows() -> None:
    """A kernel reads the last of many rows, which a copy brings while the program launches."""
    [load] = kernels(PTX, "load")
    height, width, pitch = 1024, 1024, 2048
    memory, source, out = pinned(height * pitch), device(height * width), device(4)
    address = ctypes.addressof(memory)
    sides = {"src_type": 2, "src_device": source, "src_pitch": width, "dst_type": 1, "dst_host": address}
    copy = Copy2D(**sides, dst_pitch=pitch, width=width, height=height)
    for round in range(10 * ROUNDS):
        launch(load, address, out)
        must("cuCtxSynchronize")
        fill(source, round + 1, height * width)
        must("cuMemcpy2DAsync_v2", byref(copy), None)
        launch(load, address + (height - 1) * pitch, out)
        check(word(out) == (round + 1) * 0x01010101, f"round {round}: a kernel after rows came to what it reads")


def capture() -> None:
    """A copy waits in a stream that begins a capture, while others take the memory that it came by."""
    bytes, flag = 64 * KIB, device(4)
    held, other = made("cuStreamCreate", NON_BLOCKING), made("cuStreamCreate", NON_BLOCKING)
    target, scratch, back = device(bytes), device(bytes), ctypes.create_string_buffer(bytes)
    first, rest = (ctypes.create_string_buffer(letter * bytes, bytes) for letter in (b"P", b"Q"))
    fill(flag, 0, 4)
    must("cuCtxSynchronize")
    must("cuStreamWaitValue32_v2", held, c_uint64(flag), c_uint32(1), 0)
    must("cuMemcpyHtoDAsync_v2", c_uint64(target), first, c_size_t(bytes), held)
    must("cuStreamBeginCapture_v2", held, RELAXED)
    for _ in range(300):
        must("cuMemcpyHtoDAsync_v2", c_uint64(scratch), rest, c_size_t(bytes), other)
        # Pageable memory: it waits.
        bring(ctypes.create_string_buffer(4), scratch, 4, other)
    must("cuStreamEndCapture", held, byref(c_void_p()))
    must("cuStreamWriteValue32_v2", other, c_uint64(flag), c_uint32(1), 0)
    must("cuStreamSynchronize", held)
    bring_now(back, target, bytes)
    check(back.raw == first.raw, "a copy that waited while its stream captured")


class MemOp(ctypes.Structure):
    """`CUstreamBatchMemOpParams`."""

    _fields_: ClassVar = [
        ("operation", c_uint32),
        ("address", c_uint64),
        ("value", c_uint64),
        ("flags", c_uint32),
        ("alias", c_uint64),
        ("pad", c_uint64),
    ]


@ctypes.CFUNCTYPE(None, c_void_p)
def slow(_: object) -> None:
    time.sleep(0.1)


def words() -> None:
    """A kernel comes after a copy to what it reads by a pointer, since its stream waits for a word, or a graph does."""
    load, load_by_pointer = kernels(PTX, "load", "load_by_pointer")
    bytes, event = 64 * KIB, made("cuEventCreate", 0)
    memory, source, pointer, out, flag = pinned(bytes), device(bytes), device(8), device(4), device(8)
    address = ctypes.addressof(memory)
    must("cuMemcpyHtoD_v2", c_uint64(pointer), (c_uint64 * 1)(address), c_size_t(8))
    fill(flag, 0, 8)
    copies = made("cuStreamCreate", NON_BLOCKING)
    graph, node = made("cuGraphCreate", 0), c_void_p()

    def by_graph(stream: c_void_p, _: int) -> None:
        if not node:
            must("cuGraphAddEventWaitNode", byref(node), graph, None, c_size_t(0), event)
        must("cuGraphLaunch", made("cuGraphInstantiateWithFlags", graph, c_uint64(0)), stream)

    def by_capture(stream: c_void_p, value: int) -> None:
        captured = c_void_p()
        must("cuStreamBeginCapture_v2", stream, RELAXED)
        must("cuStreamWaitValue32_v2", stream, c_uint64(flag), c_uint32(value), 0)
        must("cuStreamEndCapture", stream, byref(captured))
        other = made("cuStreamCreate", NON_BLOCKING)
        must("cuGraphLaunch", made("cuGraphInstantiateWithFlags", captured, c_uint64(0)), other)
        must("cuGraphLaunch", made("cuGraphInstantiateWithFlags", captured, c_uint64(0)), stream)

    def by_batch(stream: c_void_p, value: int) -> None:
        must("cuStreamBatchMemOp_v2", stream, 1, byref(MemOp(1, flag, value)), 0)

    ways: dict[str, Callable[[c_void_p, int], None]] = {
        "32 bits": lambda s, value: must("cuStreamWaitValue32_v2", s, c_uint64(flag), c_uint32(value), 0),
        "64 bits": lambda s, value: must("cuStreamWaitValue64_v2", s, c_uint64(flag), c_uint64(value), 0),
        "a batch": by_batch,
        "a graph": by_graph,
        "a capture": by_capture,
    }
    for round, (way, wait) in enumerate(ways.items(), 1):
        launch(load, address, out)
        fill(source, round, bytes)
        must("cuCtxSynchronize")
        must("cuLaunchHostFunc", copies, slow, None)
        bring(memory, source, bytes, copies)
        must("cuStreamWriteValue32_v2", copies, c_uint64(flag), c_uint32(round), 0)
        must("cuEventRecord", event, copies)
        stream = made("cuStreamCreate", NON_BLOCKING)
        wait(stream, round)
        launch_in(stream, load_by_pointer, pointer, out)
        must("cuStreamSynchronize", stream)
        check(word(out) == round * 0x01010101, f"a kernel after a copy that its stream waits for by {way}")


def held() -> None:
    """Launches beside copies to mirrored memory that wait for what the program, or the launch itself, does later."""
    put, load = kernels(PTX, "put", "load")
    bytes, flag, out = 64 * KIB, device(4), device(4)
    memory, source = pinned(bytes), device(bytes)
    of_copies, of_kernels, free = (made("cuStreamCreate", flags) for flags in (0, 0, NON_BLOCKING))

    def copy_held_until(value: int) -> None:
        launch_in(of_copies, load, ctypes.addressof(memory), out)
        must("cuMemsetD8Async", c_uint64(source), c_ubyte(value), c_size_t(bytes), of_copies)
        must("cuStreamWaitValue32_v2", of_copies, c_uint64(flag), c_uint32(value), 0)
        bring(memory, source, bytes, of_copies)

    fill(flag, 0, 4)
    must("cuCtxSynchronize")
    copy_held_until(1)
    for _ in range(30):
        launch_in(of_kernels, put, out, 0)
    must("cuStreamWriteValue32_v2", free, c_uint64(flag), c_uint32(1), 0)
    must("cuStreamSynchronize", of_copies)
    check(memory[:1] == b"\1", "a copy that was held by the program")
    for round in range(2, 12):
        copy_held_until(round)
        launch_in(of_kernels, put, flag, round)
        must("cuStreamSynchronize", of_copies)
        check(memory[:1] == c_ubyte(round).value.to_bytes(), f"round {round}: a copy that was held by a kernel")


def adapter() -> None:
    """A long copy after a short one into the same memory, which an adapter may write at once."""
    bytes, few = 64 * KIB, 4 * KIB
    memory, long, short = pinned(bytes), device(bytes), device(few)
    fill(long, 0x22, bytes)
    fill(short, 0x11, few)
    for round in range(5 * ROUNDS):
        bring(memory, short, few)
        bring(memory, long, bytes)
        time.sleep(0.005)
        must("cuCtxSynchronize")
        check(memory.raw == b"\x22" * bytes, f"round {round}: a long copy after a short one")


def staged() -> None:
    """A long copy to the device after short ones, which an adapter may overtake."""
    bytes, few, stream = 64 * KIB, 8 * KIB, made("cuStreamCreate", NON_BLOCKING)
    target, back = device(bytes), ctypes.create_string_buffer(bytes)
    large = ctypes.create_string_buffer(b"\x22" * bytes, bytes)
    small = ctypes.create_string_buffer(b"\x11" * few, few)
    # Until the adapter has a key of the memory.
    for _ in range(4):
        must("cuCtxSynchronize")
        must("cuMemcpyHtoD_v2", c_uint64(target), large, c_size_t(bytes))
        bring_now(back, target, bytes)
    for round in range(2 * ROUNDS):
        must("cuCtxSynchronize")
        for _ in range(50):
            must("cuMemcpyHtoDAsync_v2", c_uint64(target), small, c_size_t(few), stream)
        must("cuStreamSynchronize", stream)
        must("cuMemcpyHtoDAsync_v2", c_uint64(target), large, c_size_t(bytes), stream)
        must("cuCtxSynchronize")
        bring_now(back, target, bytes)
        check(back.raw == large.raw, f"round {round}: an earlier copy over a later one")


def opening() -> None:
    """Threads copy into memory whose mirror another's launch opens: all go on, and host and kernels agree."""
    [load] = kernels(PTX, "load")
    bytes, source, out = 64 * KIB, device(64 * KIB), device(4)
    fill(source, 0x55, bytes)
    must("cuCtxSynchronize")
    context = made("cuCtxGetCurrent")
    opened: list[ctypes.Array[ctypes.c_char]] = [pinned(bytes)]
    is_over = threading.Event()

    def copy() -> None:
        must("cuCtxSetCurrent", context)
        stream = made("cuStreamCreate", NON_BLOCKING)
        while not is_over.is_set():
            bring(opened[-1], source, bytes, stream)
            bring_now(opened[-1], source, bytes)
            must("cuStreamSynchronize", stream)

    threads = [threading.Thread(target=copy) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(5 * ROUNDS):
        opened.append(pinned(bytes))
        launch(load, ctypes.addressof(opened[-1]), out)
        must("cuCtxSynchronize")
    is_over.set()
    for thread in threads:
        thread.join()
    bring(opened[-1], source, bytes)
    launch(load, ctypes.addressof(opened[-1]), out)
    check(word(out) == 0x55555555, "a kernel after threads that copied while mirrors were opened")
    check(opened[-1].raw == b"U" * bytes, "the bytes of copies while mirrors were opened")


def managed() -> None:
    """Copies between pinned and managed memory do not wait for what the program does next, and have the later bytes."""
    bytes, at, flag = 64 * KIB, c_uint64(), device(4)
    must("cuMemAllocManaged", byref(at), c_size_t(bytes), 1)
    memory = (ctypes.c_char * bytes).from_address(at.value)
    given, got, source = pinned(bytes, MAPPED), pinned(bytes, MAPPED), device(bytes)
    copies, free = (made("cuStreamCreate", NON_BLOCKING) for _ in range(2))
    fill(flag, 0, 4)
    must("cuCtxSynchronize")
    ctypes.memset(given, 1, bytes)
    for round in range(1, ROUNDS):
        must("cuMemsetD8Async", c_uint64(source), c_ubyte(round), c_size_t(bytes), copies)
        must("cuStreamWaitValue32_v2", copies, c_uint64(flag), c_uint32(round), 0)
        if round > 1:
            bring(given, source, bytes, copies)
        for to, from_ in ((memory, given), (got, memory)):
            must("cuMemcpyAsync", to, from_, c_size_t(bytes), copies)
        check(got[:1] == c_ubyte(round - 1).value.to_bytes(), f"round {round}: bytes before their time")
        must("cuStreamWriteValue32_v2", free, c_uint64(flag), c_uint32(round), 0)
        must("cuStreamSynchronize", copies)
        for name, place in {"given": given, "managed": memory, "got": got}.items():
            check(place.raw == c_ubyte(round).value.to_bytes() * bytes, f"round {round}: {name}")


def main() -> None:
    primary_context()
    lib.cuMemFreeHost.argtypes = [c_void_p]
    all_parts = (notes, kernel, hidden, rows, capture, words, held, adapter, staged, opening, managed)
    parts: dict[str, Callable[[], None]] = {part.__name__: part for part in all_parts}
    for name in sys.argv[1:] or parts:
        parts[name]()
    print("right")


main()

"""Copies of many lengths around the one from which they go over several connections: every way, several streams and
threads at once, in the order of their streams. Prints how much it copied, in bytes to the device and from it.

    long_copies.py [plain|detached|threads|order|all]
"""

from __future__ import annotations

import ctypes
import random
import sys
import threading

from cuda import lib, must, primary_context

MIB = 1 << 20
LENGTHS = [
    1,
    MIB - 1,
    MIB + 1,
    2 * MIB - 1,
    2 * MIB,
    2 * MIB + 1,
    3 * MIB - 16_384,
    5 * MIB + 3,
    8 * MIB,
    17 * MIB + 16_383,
]
copied = {"in": 0, "out": 0}
counting = threading.Lock()


def check(is_right: bool, what: str) -> None:
    if not is_right:
        raise SystemExit(f"WRONG: {what}")


def pattern(length: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(length)


class Device:
    """Memory of the device."""

    def __init__(self, length: int) -> None:
        self.at = ctypes.c_uint64()
        must("cuMemAlloc_v2", ctypes.byref(self.at), ctypes.c_size_t(length))

    def take(self, source: object, length: int, stream: ctypes.c_void_p | None = None, at: int = 0) -> None:
        to = ctypes.c_uint64(self.at.value + at)
        if stream is None:
            must("cuMemcpyHtoD_v2", to, source, ctypes.c_size_t(length))
        else:
            must("cuMemcpyHtoDAsync_v2", to, source, ctypes.c_size_t(length), stream)
        with counting:
            copied["in"] += length

    def give(self, to: object, length: int, stream: ctypes.c_void_p | None = None, at: int = 0) -> None:
        source = ctypes.c_uint64(self.at.value + at)
        if stream is None:
            must("cuMemcpyDtoH_v2", to, source, ctypes.c_size_t(length))
        else:
            must("cuMemcpyDtoHAsync_v2", to, source, ctypes.c_size_t(length), stream)
        with counting:
            copied["out"] += length

    def fill(self, byte: int, at: int, length: int, stream: ctypes.c_void_p) -> None:
        must(
            "cuMemsetD8Async",
            ctypes.c_uint64(self.at.value + at),
            ctypes.c_ubyte(byte),
            ctypes.c_size_t(length),
            stream,
        )

    def free(self) -> None:
        must("cuMemFree_v2", self.at)


def pinned(length: int) -> ctypes.Array[ctypes.c_char]:
    at = ctypes.c_void_p()
    must("cuMemHostAlloc", ctypes.byref(at), ctypes.c_size_t(length), 0)
    return (ctypes.c_char * length).from_address(at.value or 0)


def new_stream() -> ctypes.c_void_p:
    stream = ctypes.c_void_p()
    must("cuStreamCreate", ctypes.byref(stream), 1)
    return stream


def plain() -> None:
    """Pageable memory, with waiting copies."""
    for seed, length in enumerate(LENGTHS):
        data = pattern(length, seed)
        device, back = Device(length), ctypes.create_string_buffer(length)
        source = ctypes.create_string_buffer(data, length)
        device.take(source, length)
        # The call has returned, so the bytes were taken.
        ctypes.memset(source, 0, length)
        device.give(back, length)
        check(back.raw == data, f"{length} bytes there and back")
        device.free()


def detached() -> None:
    """Pinned memory on streams; waits by stream, by event and by query."""
    streams = [new_stream() for _ in range(3)]
    event = ctypes.c_void_p()
    must("cuEventCreate", ctypes.byref(event), 2)
    for seed, length in enumerate(LENGTHS[3:]):
        data = [pattern(length, 100 + 10 * seed + s) for s in range(3)]
        devices = [Device(length) for _ in streams]
        memory = [pinned(length) for _ in streams]
        for one, device, stream, text in zip(memory, devices, streams, data, strict=True):
            one.raw = text
            device.take(one, length, stream)
        must("cuCtxSynchronize")
        for one in memory:
            ctypes.memset(one, 0, length)
        for one, device, stream in zip(memory, devices, streams, strict=True):
            device.give(one, length, stream)
        must("cuEventRecord", event, streams[1])
        must("cuStreamSynchronize", streams[0])
        check(memory[0].raw == data[0], f"{length} bytes after a wait for the stream")
        while lib.cuEventQuery(event) == 600:
            pass
        check(memory[1].raw == data[1], f"{length} bytes after an event")
        while lib.cuStreamQuery(streams[2]) == 600:
            pass
        check(memory[2].raw == data[2], f"{length} bytes after asking the stream")
        for device, one in zip(devices, memory, strict=True):
            device.free()
            must("cuMemFreeHost", one)


# Of a copy whose bytes are not received where they belong at once.
SHORT = 4096


def order() -> None:
    """Work after a copy in its stream sees the copy; work before it does not."""
    length = 6 * MIB + 5
    stream, device, back = new_stream(), Device(length), pinned(length)
    for round in range(6):
        first, second = pattern(length, 200 + round), pattern(length, 300 + round)
        device.take(ctypes.create_string_buffer(first, length), length, stream)
        device.fill(round, MIB - 7, 2 * MIB, stream)
        device.give(back, length, stream)
        # Sent after the copy out, which must not see it.
        device.take(ctypes.create_string_buffer(second, length), length, stream)
        must("cuStreamSynchronize", stream)
        expected = bytearray(first)
        expected[MIB - 7 : 3 * MIB - 7] = bytes([round]) * (2 * MIB)
        check(back.raw == bytes(expected), f"round {round}: the order of the stream")
        device.give(back, length, stream)
        must("cuStreamSynchronize", stream)
        check(back.raw == second, f"round {round}: the last copy")


def same_memory() -> None:
    """Copies into the same memory, short and long, which may come in one go, or by several connections."""
    length = 2 * MIB + 3
    stream, short, long, back = new_stream(), Device(SHORT), Device(length), pinned(length)
    for round in range(6):
        data = pattern(length, 400 + round)
        long.take(data, length, stream)
        short.fill(round + 100, 0, SHORT, stream)
        short.give(back, SHORT, stream)
        long.give(back, length, stream)
        must("cuStreamSynchronize", stream)
        check(back.raw == data, f"round {round}: a long copy after a short one")
        other = pattern(length, 500 + round)
        long.give(back, length, stream)
        long.take(ctypes.create_string_buffer(other, length), length, stream)
        long.give(back, length, stream)
        short.give(back, SHORT, stream)
        must("cuStreamSynchronize", stream)
        expected = bytes([round + 100]) * SHORT + other[SHORT:]
        check(back.raw == expected, f"round {round}: two long copies and a short one")


def threads() -> None:
    """Several threads at once, of which only one uses the data connections at a time."""
    context = ctypes.c_void_p()
    must("cuCtxGetCurrent", ctypes.byref(context))
    wrong: list[str] = []

    def run(number: int) -> None:
        try:
            must("cuCtxSetCurrent", context)
            stream = new_stream()
            for round in range(4):
                length = (2 + number + round) * MIB + number
                data = pattern(length, 1000 + 10 * number + round)
                device, back = Device(length), ctypes.create_string_buffer(length)
                device.take(data, length, stream)
                device.give(back, length, stream)
                must("cuStreamSynchronize", stream)
                check(back.raw == data, f"thread {number}, {length} bytes")
                device.free()
        except SystemExit as why:
            wrong.append(str(why))

    all_of_them = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in all_of_them:
        thread.start()
    for thread in all_of_them:
        thread.join()
    check(not wrong, "; ".join(wrong))


def main() -> None:
    lib.cuMemFreeHost.argtypes = [ctypes.c_void_p]
    primary_context()
    parts = {"plain": plain, "detached": detached, "order": order, "same_memory": same_memory, "threads": threads}
    wanted = sys.argv[1] if len(sys.argv) > 1 else "all"
    for name, part in parts.items():
        if wanted in (name, "all"):
            part()
    print(f"every byte is right: {copied['in']} in, {copied['out']} out")


main()

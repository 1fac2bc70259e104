"""Copies that adapters may do by themselves, and looks at each byte: `gpu_copies.py CASE...`. Says "right" at the end.

What is between the copies is what they must keep their place among: memsets and copies of the GPU's own, waited for or
not, in streams of every kind, and memory that is given up and comes back.
"""

from __future__ import annotations

import ctypes
import random
import sys
import threading
import time

from cuda import must, primary_context
from pinned_copies import DRAWN_BYTES, Pageable, Pinned, Registered

# A piece is of one message; and none of these is a round number.
LENGTHS = [16 << 10, 50_001, (1 << 20) + 1]
CU_STREAM_DEFAULT, CU_STREAM_NON_BLOCKING = 0, 1
SMALL = 200_003


def size(length: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(length)


def at(address: int) -> ctypes.c_uint64:
    return ctypes.c_uint64(address)


def allocated(length: int) -> int:
    data = ctypes.c_uint64()
    must("cuMemAlloc_v2", ctypes.byref(data), size(length))
    return data.value


def free(data: int) -> None:
    must("cuMemFree_v2", at(data))


def stream(flags: int) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    must("cuStreamCreate", ctypes.byref(made), flags)
    return made


def drawn(choice: random.Random, length: int) -> bytes:
    row = choice.randbytes(DRAWN_BYTES)
    return (row * (length // DRAWN_BYTES + 1))[:length]


def expect(what: str, got: bytes, wanted: bytes) -> None:
    if got != wanted:
        first = next(i for i, (a, b) in enumerate(zip(got, wanted, strict=True)) if a != b)
        raise SystemExit(f"WRONG: {what}, from byte {first} of {len(wanted)}")


def fetched(data: int, length: int) -> bytes:
    out = ctypes.create_string_buffer(length)
    must("cuMemcpyDtoH_v2", out, at(data), size(length))
    return out.raw


def send(data: int, sent: bytes) -> None:
    must("cuMemcpyHtoD_v2", at(data), sent, size(len(sent)))


def lengths(choice: random.Random) -> None:
    """From and to memory of each kind, at odd places of an allocation whose other bytes stay as they are."""
    for length in LENGTHS:
        data = allocated(length + 200)
        must("cuMemsetD8_v2", at(data), ctypes.c_ubyte(0xEE), size(length + 200))
        must("cuCtxSynchronize")
        for kind in (Pinned, Registered, Pageable):
            memory = kind(length)
            for offset in (0, 1):
                sent = drawn(choice, length)
                ctypes.memmove(memory.buffer, sent, length)
                must("cuMemcpyHtoD_v2", at(data + 50 + offset), memory.buffer, size(length))
                # It has been read.
                ctypes.memset(memory.buffer, 0, length)
                must("cuMemcpyDtoH_v2", memory.buffer, at(data + 50 + offset), size(length))
                expect(f"{kind.__name__} at {offset}", memory.buffer.raw, sent)
                expect("in front", fetched(data, 50), b"\xee" * 50)
                expect("behind", fetched(data + 150 + length, 50), b"\xee" * 50)
            memory.close()
        free(data)


def order(choice: random.Random) -> None:
    """A copy comes after earlier work and before later work, in every kind of stream."""
    length = 300_077
    data, other = allocated(length), allocated(length)
    pinned, results = Pinned(length), Pinned(length)
    streams = [None, stream(CU_STREAM_DEFAULT), stream(CU_STREAM_NON_BLOCKING)]
    for number in range(48):
        where = streams[number % 3]
        sent = drawn(choice, length)
        ctypes.memmove(pinned.buffer, sent, length)
        is_idle, is_late, overwrites = (choice.random() < 0.5 for _ in range(3))
        if is_idle:
            must("cuCtxSynchronize")
        else:
            # The copy is to win over it.
            for _ in range(3):
                must("cuMemsetD8Async", at(data), ctypes.c_ubyte(number), size(length), where)
        must("cuMemcpyHtoDAsync_v2", at(data), pinned.buffer, size(length), where)
        # Later work sees it.
        must("cuMemcpyDtoDAsync_v2", at(other), at(data), size(length), where)
        if is_late:
            must("cuStreamSynchronize", where)
        must("cuMemcpyDtoHAsync_v2", results.buffer, at(data), size(length), where)
        if overwrites:
            # Work after the copy out does not reach it.
            must("cuMemsetD8Async", at(data), ctypes.c_ubyte(0x77), size(length), where)
        must("cuStreamSynchronize", where)
        expect(f"round {number}: back", results.buffer.raw, sent)
        if overwrites:
            expect(f"round {number}: overwritten", fetched(data, length), b"\x77" * length)
        expect(f"round {number}: copied on", fetched(other, length), sent)


def held(choice: random.Random) -> None:
    """Streams that wait for a word: no copy in them happens before it comes, nor sees work sent
    after it."""
    length = SMALL
    data, flag = allocated(length), allocated(64)
    results, sent_from, seen = Pinned(length), Pinned(length), Pinned(length)
    free_stream = stream(CU_STREAM_NON_BLOCKING)
    before = drawn(choice, length)
    # Long enough known to have a key.
    for _ in range(4):
        send(data, before)
        expect("to begin with", fetched(data, length), before)

    def looked_at() -> bytes:
        """Returns the current contents, bypassing the stream that is held."""
        must("cuMemcpyDtoHAsync_v2", seen.buffer, at(data), size(length), free_stream)
        must("cuStreamSynchronize", free_stream)
        got: bytes = seen.buffer.raw
        return got

    for number, kind in enumerate([CU_STREAM_NON_BLOCKING, CU_STREAM_DEFAULT, CU_STREAM_DEFAULT]):
        holding = stream(kind)
        # In the third round the copies are in the default stream, which waits for that one.
        where = None if number == 2 else holding
        sent = drawn(choice, length)
        ctypes.memmove(sent_from.buffer, sent, length)
        must("cuStreamWaitValue32_v2", holding, at(flag), ctypes.c_uint32(number + 1), 0)
        must("cuMemcpyHtoDAsync_v2", at(data), sent_from.buffer, size(length), where)
        must("cuMemcpyDtoHAsync_v2", results.buffer, at(data), size(length), where)
        must("cuMemsetD8Async", at(data), ctypes.c_ubyte(number), size(length), where)
        expect(f"round {number}: held", looked_at(), before)
        must("cuStreamWriteValue32_v2", free_stream, at(flag), ctypes.c_uint32(number + 1), 0)
        must("cuCtxSynchronize")
        expect(f"round {number}: between", results.buffer.raw, sent)
        before = bytes([number]) * length
        expect(f"round {number}: behind", looked_at(), before)


def speed(_: random.Random) -> None:
    """Measures the speed of long copies of pinned memory, each waited for."""
    length, rounds = 256 << 20, 8
    data, memory = allocated(length), Pinned(length)
    for name, call in [
        ("to", lambda: must("cuMemcpyHtoD_v2", at(data), memory.buffer, size(length))),
        ("from", lambda: must("cuMemcpyDtoH_v2", memory.buffer, at(data), size(length))),
    ]:
        times = []
        for _ in range(rounds):
            must("cuCtxSynchronize")
            start = time.perf_counter()
            call()
            must("cuCtxSynchronize")
            times.append(time.perf_counter() - start)
        print(f"{name} {length / sorted(times)[rounds // 2] / 1e9:.3f} GB/s")


def reuse(choice: random.Random) -> None:
    """Memory that is given up, and what comes to lie where it was; neighbours in one piece of the GPU's memory."""
    for number in range(12):
        length = choice.choice([SMALL, (2 << 20) + 7])
        memories = [(allocated(length), drawn(choice, length)) for _ in range(3)]
        for _ in range(3):
            for data, sent in memories:
                must("cuCtxSynchronize")
                send(data, sent)
        kept = memories.pop(number % 3)
        for data, _ in memories:
            free(data)
        expect(f"round {number}", fetched(*kept[:1], length), kept[1])
        again = allocated(length)
        must("cuMemsetD8_v2", at(again), ctypes.c_ubyte(3), size(length))
        expect(f"round {number}: its neighbour", fetched(kept[0], length), kept[1])
        expect(f"round {number}: new", fetched(again, length), b"\x03" * length)
        free(again)
        free(kept[0])


def threads(choice: random.Random) -> None:
    """Threads with memory and streams of their own, some of which is freed meanwhile."""
    context = ctypes.c_void_p()
    must("cuCtxGetCurrent", ctypes.byref(context))
    wrong: list[str] = []

    def work(seed: int) -> None:
        try:
            must("cuCtxSetCurrent", context)
            own = random.Random(seed)
            where = stream(CU_STREAM_NON_BLOCKING)
            for _ in range(4):
                length = own.choice([SMALL, (1 << 20) + seed])
                data, memory = allocated(length), Pinned(length)
                for _ in range(4):
                    sent = drawn(own, length)
                    ctypes.memmove(memory.buffer, sent, length)
                    must("cuMemcpyHtoDAsync_v2", at(data), memory.buffer, size(length), where)
                    must("cuStreamSynchronize", where)
                    ctypes.memset(memory.buffer, 0, length)
                    must("cuMemcpyDtoHAsync_v2", memory.buffer, at(data), size(length), where)
                    must("cuStreamSynchronize", where)
                    expect(f"thread {seed}", memory.buffer.raw, sent)
                free(data)
                memory.close()
        except (AssertionError, SystemExit) as error:
            wrong.append(str(error))

    started = [threading.Thread(target=work, args=(choice.randrange(1000),)) for _ in range(3)]
    for one in started:
        one.start()
    for one in started:
        one.join()
    if wrong:
        raise SystemExit(wrong[0])


CASES = {case.__name__: case for case in (lengths, order, held, reuse, threads, speed)}


def main(names: list[str]) -> None:
    primary_context()
    for name in names:
        CASES[name](random.Random(name))
    print("right")


if __name__ == "__main__":
    main(sys.argv[1:])

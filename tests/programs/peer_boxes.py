"""Copies of two and three dimensions between the devices of two servers. Each byte of the destination is checked, those
beside the box too. Prints how many bytes were copied, and "right".

    peer_boxes.py random SEED COUNT | both | many | order | wrong
"""

from __future__ import annotations

import ctypes
import random
import sys
import threading
from collections.abc import Callable
from ctypes import byref, c_char, c_size_t, c_uint, c_uint64, c_void_p
from dataclasses import dataclass

import cuda
from several_servers import DEVICE, END, MIB, NON_BLOCKING, Box, Gpu, gpus, launch, library

UNIFIED = 4
INVALID = "CUDA_ERROR_INVALID_VALUE"


class Flat(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = (
        *(
            (f"{end}_{name}", kind)
            for end in ("src", "dst")
            for name, kind in END
            if name in ("x", "y", "type", "host", "device", "array", "pitch")
        ),
        ("width", c_size_t),
        ("height", c_size_t),
    )


@dataclass
class Side:
    """Memory of a device, and where a box lies in it."""

    at: tuple[int, int, int]
    pitch: int
    rows: int
    address: c_uint64

    def start(self, y: int, z: int) -> int:
        return ((self.at[2] + z) * self.rows + self.at[1] + y) * self.pitch + self.at[0]

    def size(self, depth: int) -> int:
        return (self.at[2] + depth) * self.rows * self.pitch


@dataclass
class Copy:
    """A box of `extent` bytes, rows and slices from one side to the other."""

    dst: Side
    src: Side
    extent: tuple[int, int, int]

    def bytes(self) -> int:
        width, height, depth = self.extent
        return width * height * depth

    def expected(self, before: bytes, data: bytes) -> bytes:
        out = bytearray(before)
        width, height, depth = self.extent
        for z in range(depth):
            for y in range(height):
                to, start = self.dst.start(y, z), self.src.start(y, z)
                out[to : to + width] = data[start : start + width]
        return bytes(out)

    def record(self, kind: int) -> Box:
        box = Box(**dict(zip(("width", "height", "depth"), self.extent, strict=True)))
        for end, side in (("src", self.src), ("dst", self.dst)):
            values = (*side.at, kind, side.address.value, side.pitch, side.rows)
            for name, value in zip(("x", "y", "z", "type", "device", "pitch", "height"), values, strict=True):
                setattr(box, f"{end}_{name}", value)
        return box

    def flat(self, kind: int) -> Flat:
        record, flat = self.record(kind), Flat()
        for name, *_ in Flat._fields_:
            setattr(flat, name, getattr(record, name))
        return flat


def side(rng: random.Random, extent: tuple[int, int, int]) -> Side:
    width, height, depth = extent
    at = (rng.choice((0, rng.randrange(200))), rng.choice((0, rng.randrange(5))), rng.randrange(2) if depth > 1 else 0)
    pitch = at[0] + width + rng.choice((0, rng.randrange(300)))
    return Side(at, pitch, at[1] + height + rng.choice((0, rng.randrange(4))), c_uint64())


def shape(rng: random.Random) -> tuple[int, int, int]:
    """Returns an extent: long rows, many short ones, or many slices."""
    return rng.choice(
        (
            (rng.randrange(MIB, 3 * MIB), rng.randrange(1, 3), 1),
            (rng.randrange(500, 5000), rng.randrange(100, 1000), rng.randrange(1, 3)),
            (rng.randrange(1, 2000), rng.randrange(1, 40), rng.randrange(1, 40)),
        )
    )


def calls(copy: Copy, kind: int, stream: c_void_p) -> list[Callable[[], str]]:
    """Returns the calls that make this copy."""
    record = copy.record(kind)
    three: list[tuple[object, ...]] = [
        ("cuMemcpy3D_v2", byref(record)),
        ("cuMemcpy3DPeer", byref(record)),
        ("cuMemcpy3DAsync_v2", byref(record), stream),
        ("cuMemcpy3DPeerAsync", byref(record), stream),
    ]
    if copy.extent[2] == 1:
        flat = copy.flat(kind)
        three += [
            ("cuMemcpy2D_v2", byref(flat)),
            ("cuMemcpy2DUnaligned_v2", byref(flat)),
            ("cuMemcpy2DAsync_v2", byref(flat), stream),
        ]
    return [lambda call=call: cuda.call(*call) for call in three]


class Place:
    """Memory of one device that cases use again and again."""

    def __init__(self, gpu: Gpu, size: int) -> None:
        self.gpu, self.size, self.address = gpu, size, gpu.memory(size)
        self.stream = cuda.made("cuStreamCreate", NON_BLOCKING)

    def put(self, data: bytes) -> None:
        cuda.must("cuMemcpyHtoD_v2", self.address, data, c_size_t(len(data)))

    def get(self, size: int) -> bytes:
        room = (c_char * size)()
        cuda.must("cuMemcpyDtoH_v2", room, self.address, c_size_t(size))
        return ctypes.string_at(room, size)


def make(rng: random.Random, copy: Copy, to: Place, source: Place) -> None:
    """Makes one copy, by a call that the seed chooses, and checks all of the destination."""
    copy.dst.address, copy.src.address = to.address, source.address
    sizes = [each.size(copy.extent[2]) for each in (copy.dst, copy.src)]
    before, data = (rng.randbytes(size) for size in sizes)
    to.put(before)
    source.put(data)
    rng.choice((to, source)).gpu.use()
    stream = rng.choice((to, source)).stream
    call = rng.choice(calls(copy, rng.choice((DEVICE, UNIFIED)), stream))
    assert call() == "CUDA_SUCCESS"
    cuda.must("cuStreamSynchronize", stream)
    assert to.get(sizes[0]) == copy.expected(before, data), copy


def case_random(seed: str, count: str) -> int:
    a, b = (Place(gpu, 32 * MIB) for gpu in gpus()[:2])
    done = 0
    for number in range(int(count)):
        rng = random.Random(f"{seed} {number}")
        extent = shape(rng)
        copy = Copy(side(rng, extent), side(rng, extent), extent)
        to, source = rng.choice(((a, b), (b, a)))
        make(rng, copy, to, source)
        done += copy.bytes()
    return done


def block(to: Place, source: Place, extent: tuple[int, int, int], offset: int = 0) -> Copy:
    """Returns a copy of packed slices into rows with gaps."""
    width, height, _ = extent
    dst = Side((0, 0, 0), width + 32, height + 1, c_uint64(to.address.value + offset))
    return Copy(dst, Side((0, 0, 0), width, height, source.address), extent)


def case_both() -> int:
    """Copies in both directions at once, of threads that know nothing of each other."""
    rounds, extent = 4, (1000, 300, 3)
    wrong: list[str] = []
    pairs = [[Place(gpu, 4 * MIB) for gpu in gpus()[:2]] for _ in range(4)]

    def work(number: int) -> None:
        try:
            to, source = pairs[number // 2][:: 1 if number % 2 else -1]
            copy = block(to, source, extent)
            copy.dst.address.value += 2 * MIB
            for turn in range(rounds):
                data = random.Random(f"{number} {turn}").randbytes(copy.bytes())
                to.gpu.use()
                source.put(data)
                cuda.must("cuMemcpy3DPeerAsync", byref(copy.record(DEVICE)), source.stream)
                there = Place.get(to, 4 * MIB)[2 * MIB :]
                nothing = bytes(copy.dst.size(3))
                box = [there[copy.dst.start(y, z) :][:1000] for z in range(3) for y in range(300)]
                assert copy.expected(nothing, data) and b"".join(box) == data, (number, turn)
        except AssertionError as error:
            wrong.append(str(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    return 8 * rounds * extent[0] * extent[1] * extent[2]


def case_many() -> int:
    """1,000 copies at once, from ten threads, each to a place of its own."""
    count, extent = 1000, (512, 520, 1)
    a, b = gpus()[:2]
    source, to = Place(a, MIB), Place(b, count * MIB // 3)
    data = random.Random(1).randbytes(extent[0] * extent[1])
    source.put(data)
    cuda.must("cuMemsetD8_v2", to.address, 0, c_size_t(to.size))
    cuda.must("cuCtxSynchronize")
    step = to.size // count
    wrong: list[str] = []

    def work(first: int) -> None:
        try:
            a.use()
            for number in range(first, count, 10):
                copy = block(to, source, extent, number * step)
                cuda.must("cuMemcpy2DAsync_v2", byref(copy.flat(DEVICE)), source.stream)
        except AssertionError as error:
            wrong.append(str(error))

    threads = [threading.Thread(target=work, args=(first,)) for first in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    copy = block(to, source, extent)
    expected = copy.expected(bytes(step), data)
    there = to.get(count * step)
    assert all(there[n * step : (n + 1) * step] == expected for n in range(count))
    return count * copy.bytes()


def case_order() -> int:
    """A box follows what its stream was given before it, and an event that the stream waits for; what comes later
    follows the box."""
    a, b = gpus()[:2]
    spin, fill = (cuda.made("cuLibraryGetKernel", library(), name) for name in (b"spin", b"fill"))
    source, to, extent = Place(a, MIB), Place(b, 2 * MIB), (1024, 512, 1)
    a.use()
    event = cuda.made("cuEventCreate", 2)
    copy = block(to, source, extent)
    for value in (7, 8):
        for stream in (source.stream, to.stream):
            a.use()
            assert launch(spin, source.address, value, source.stream) == "CUDA_SUCCESS"
            cuda.must("cuEventRecord", event, source.stream)
            cuda.must("cuStreamWaitEvent", stream, event, 0)
            cuda.must("cuMemcpy3DPeerAsync", byref(copy.record(DEVICE)), stream)
            assert launch(fill, source.address, 99, source.stream) == "CUDA_SUCCESS"
            # The destination's own work goes after it, whichever stream had the copy.
            first = (c_uint * 1)()
            cuda.must("cuMemcpyDtoHAsync_v2", first, to.address, c_size_t(4), to.stream)
            cuda.must("cuStreamSynchronize", to.stream)
            assert list(first) == [value]
    return 4 * copy.bytes()


def case_wrong() -> int:
    """Boxes that leave their memory, freed memory and wrong layouts are refused, and change nothing."""
    a, b = gpus()[:2]
    source, to, extent = Place(a, MIB), Place(b, MIB), (1000, 300, 2)
    source.put(b"\x01" * MIB)
    cuda.must("cuMemsetD8_v2", to.address, 5, c_size_t(MIB))
    good = block(to, source, extent)
    gone = a.memory(MIB)
    cuda.must("cuMemFree_v2", gone)
    changes: list[dict[str, int]] = [
        {"dst_z": 2},
        {"src_z": 1, "src_y": 200},
        {"depth": 4},
        {"width": 1001},
        {"dst_pitch": 999},
        {"src_height": 299},
        {"src_device": gone.value},
        {"src_device": source.address.value + MIB},
        {"dst_device": to.address.value + MIB - 5},
        {"dst_device": 0},
        {"src_lod": 1},
        {"dst_x": 2**63},
        {"src_z": 2**62},
        {"height": 2**60},
    ]
    for change in changes:
        record = good.record(DEVICE)
        for name, value in change.items():
            setattr(record, name, value)
        for gpu, stream in ((a, source.stream), (b, to.stream)):
            gpu.use()
            assert cuda.call("cuMemcpy3DPeerAsync", byref(record), stream) == INVALID, change
            assert cuda.call("cuMemcpy3D_v2", byref(record)) == INVALID, change
    for name in ("width", "height", "depth"):
        record = good.record(DEVICE)
        setattr(record, name, 0)
        cuda.must("cuMemcpy3D_v2", byref(record))
    assert to.get(MIB) == b"\x05" * MIB
    # Neither in a capture, nor as a node of a graph: a graph has the work of one server.
    a.use()
    cuda.must("cuStreamBeginCapture_v2", source.stream, 2)
    record = good.record(DEVICE)
    status = cuda.call("cuMemcpy3DAsync_v2", byref(record), source.stream)
    assert status == "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", status
    graph, node = c_void_p(), c_void_p()
    cuda.call("cuStreamEndCapture", source.stream, byref(graph))
    graph = cuda.made("cuGraphCreate", 0)
    status = cuda.call("cuGraphAddMemcpyNode", byref(node), graph, None, c_size_t(0), byref(record), a.context)
    assert status == INVALID, status
    # Rows and slices without gaps, by a pitch and a height of 0, in more than one piece through here.
    wide = [Place(gpu, 36 * MIB + 6) for gpu in (a, b)]
    data = random.Random(3).randbytes(36 * MIB + 6)
    wide[0].put(data)
    record = Copy(*(Side((0, 0, 0), 0, 0, place.address) for place in wide[::-1]), (9 * MIB + 1, 2, 2)).record(DEVICE)
    record.depth, record.width = 2, 9 * MIB + 1
    cuda.must("cuMemcpy3D_v2", byref(record))
    assert wide[1].get(36 * MIB + 4) == data[:-2]
    return 36 * MIB + 4


def main() -> None:
    case: Callable[..., int] = globals()[f"case_{sys.argv[1]}"]
    print(case(*sys.argv[2:]))
    print("right")


if __name__ == "__main__":
    main()

"""Collectives of NCCL between two GPUs that do not reach each other; each sum is checked. Prints "right", or what NCCL
says of the first call that fails.

    nccl_ranks.py LIBNCCL all              both ranks in this process, one a GPU
    nccl_ranks.py LIBNCCL RANK FILE        this rank, with the first GPU; the communicator's number is in the file

`few` after these: fewer numbers, for a software GPU.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from ctypes import byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import NamedTuple

import cuda

UINT32, SUM = 3, 0
RANKS = 2
# Below and above what NCCL puts into one piece.
COUNTS = (1, 1000) if sys.argv[-1] == "few" else (1, 1000, 300_000)
NUMBER_S = 60


class UniqueId(ctypes.Structure):
    _fields_ = (("bytes", c_char * 128),)


nccl = ctypes.CDLL(sys.argv[1])
nccl.ncclGetErrorString.restype = nccl.ncclGetLastError.restype = c_char_p
nccl.ncclCommInitRank.argtypes = (c_void_p, c_int, UniqueId, c_int)
nccl.ncclAllReduce.argtypes = (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p)
nccl.ncclBroadcast.argtypes = (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p)
nccl.ncclReduceScatter.argtypes = (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p)
nccl.ncclAllGather.argtypes = (c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p)
nccl.ncclSend.argtypes = nccl.ncclRecv.argtypes = (c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p)
nccl.ncclCommDestroy.argtypes = (c_void_p,)


def check(function: str, status: int) -> None:
    if status != 0:
        print(f"{function}: {nccl.ncclGetErrorString(status).decode()}: {nccl.ncclGetLastError(None).decode()}")
        sys.exit(1)


class Rank:
    """A rank: its GPU's context, memory and stream."""

    def __init__(self, number: int, device: int) -> None:
        self.number = number
        self.context = cuda.made("cuDevicePrimaryCtxRetain", device)
        self.comm = c_void_p()
        cuda.must("cuCtxSetCurrent", self.context)
        self.source, self.result = c_uint64(), c_uint64()
        for memory in (self.source, self.result):
            cuda.must("cuMemAlloc_v2", byref(memory), c_size_t(4 * RANKS * max(COUNTS)))
        self.stream = cuda.made("cuStreamCreate", 1)

    def put(self, count: int) -> None:
        cuda.must("cuCtxSetCurrent", self.context)
        data = (c_uint * count)(*values(self.number, count))
        cuda.must("cuMemcpyHtoD_v2", self.source, data, c_size_t(4 * count))
        cuda.must("cuMemsetD32_v2", self.result, 0xDEAD, c_size_t(count))

    def get(self, count: int) -> list[int]:
        cuda.must("cuCtxSetCurrent", self.context)
        cuda.must("cuStreamSynchronize", self.stream)
        room = (c_uint * count)()
        cuda.must("cuMemcpyDtoH_v2", room, self.result, c_size_t(4 * count))
        return list(room)

    def run(self, function: str, count: int, *options: int) -> None:
        cuda.must("cuCtxSetCurrent", self.context)
        buffers = [self.source.value, self.result.value]
        if function in ("ncclSend", "ncclRecv"):
            buffers = buffers[:1] if function == "ncclSend" else buffers[1:]
        check(function, getattr(nccl, function)(*buffers, count, UINT32, *options, self.comm, self.stream))


def values(rank: int, count: int) -> list[int]:
    return [(i * 7 + rank * 13) % 1009 for i in range(count)]


def number(rank: int, place: Path) -> UniqueId:
    """Makes the communicator's number, or waits for the other rank's."""
    made = UniqueId()
    if rank == 0:
        check("ncclGetUniqueId", nccl.ncclGetUniqueId(byref(made)))
        part = place.with_suffix(".part")
        part.write_bytes(bytes(made))
        part.rename(place)
    until = time.monotonic() + NUMBER_S
    while not place.exists() and time.monotonic() < until:
        time.sleep(0.01)
    return UniqueId.from_buffer_copy(place.read_bytes())


def begin() -> list[Rank]:
    cuda.must("cuInit", 0)
    if sys.argv[2] == "all":
        ranks = [Rank(number, number) for number in range(RANKS)]
        comms = (c_void_p * RANKS)()
        check("ncclCommInitAll", nccl.ncclCommInitAll(comms, RANKS, None))
        for rank, comm in zip(ranks, comms, strict=True):
            rank.comm = c_void_p(comm)
        return ranks
    rank = Rank(int(sys.argv[2]), 0)
    identity = number(rank.number, Path(sys.argv[3]))
    check("ncclCommInitRank", nccl.ncclCommInitRank(byref(rank.comm), RANKS, identity, rank.number))
    return [rank]


class Collective(NamedTuple):
    """A function, its options, how many numbers a rank has before and after it, and what they are then."""

    function: str
    options: tuple[int, ...]
    before: int
    after: int
    result: Callable[[list[list[int]], int], list[int]]


def added(sources: list[list[int]]) -> list[int]:
    return [sum(of_all) for of_all in zip(*sources, strict=True)]


def part(of: list[int], rank: int) -> list[int]:
    count = len(of) // RANKS
    return of[rank * count : (rank + 1) * count]


COLLECTIVES = (
    Collective("ncclAllReduce", (SUM,), 1, 1, lambda sources, _: added(sources)),
    Collective("ncclBroadcast", (1,), 1, 1, lambda sources, _: sources[1]),
    Collective("ncclAllGather", (), 1, RANKS, lambda sources, _: [*sources[0], *sources[1]]),
    Collective("ncclReduceScatter", (SUM,), RANKS, 1, lambda sources, rank: part(added(sources), rank)),
    Collective("ncclSend", (), 1, 1, lambda sources, rank: sources[1 - rank]),
)


def together(ranks: list[Rank], collective: Collective, count: int) -> None:
    for rank in ranks:
        rank.put(count * RANKS)
    check("ncclGroupStart", nccl.ncclGroupStart())
    for rank in ranks:
        if collective.function == "ncclSend":
            rank.run("ncclSend", count, 1 - rank.number)
            rank.run("ncclRecv", count, 1 - rank.number)
        else:
            rank.run(collective.function, count, *collective.options)
    check("ncclGroupEnd", nccl.ncclGroupEnd())


def main() -> None:
    ranks = begin()
    for count in COUNTS:
        for collective in COLLECTIVES:
            together(ranks, collective, count)
            sources = [values(rank, collective.before * count) for rank in range(RANKS)]
            for rank in ranks:
                got, right = rank.get(collective.after * count), collective.result(sources, rank.number)
                assert got == right, (collective.function, rank.number, count, got[:8], right[:8])
    for rank in ranks:
        check("ncclCommDestroy", nccl.ncclCommDestroy(rank.comm))
    print("right")


if __name__ == "__main__":
    main()

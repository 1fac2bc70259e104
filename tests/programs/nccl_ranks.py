"""Collectives of NCCL between two GPUs that do not reach each other; each sum is checked. Prints "right", or what NCCL
says of the first call that fails.

    nccl_ranks.py LIBNCCL all              both ranks in this process, one a GPU
    nccl_ranks.py LIBNCCL RANK FILE        this rank, with the first GPU; the communicator's number is in the file
"""

from __future__ import annotations

import ctypes
import sys
import time
from ctypes import byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path

import cuda

UINT32, SUM = 3, 0
RANKS = 2
# Below and above what NCCL puts into one piece.
COUNTS = (1, 1000, 300_000)
NUMBER_S = 60


class UniqueId(ctypes.Structure):
    _fields_ = (("bytes", c_char * 128),)


nccl = ctypes.CDLL(sys.argv[1])
nccl.ncclGetErrorString.restype = nccl.ncclGetLastError.restype = c_char_p
nccl.ncclCommInitRank.argtypes = (c_void_p, c_int, UniqueId, c_int)
nccl.ncclAllReduce.argtypes = (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p)
nccl.ncclBroadcast.argtypes = (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p)
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
        self.memory = c_uint64()
        cuda.must("cuMemAlloc_v2", byref(self.memory), c_size_t(4 * max(COUNTS)))
        self.stream = cuda.made("cuStreamCreate", 1)

    def values(self, count: int) -> list[int]:
        return [(i * 7 + self.number * 13) % 1009 for i in range(count)]

    def put(self, count: int) -> None:
        cuda.must("cuCtxSetCurrent", self.context)
        data = (c_uint * count)(*self.values(count))
        cuda.must("cuMemcpyHtoD_v2", self.memory, data, c_size_t(4 * count))

    def get(self, count: int) -> list[int]:
        cuda.must("cuCtxSetCurrent", self.context)
        cuda.must("cuStreamSynchronize", self.stream)
        room = (c_uint * count)()
        cuda.must("cuMemcpyDtoH_v2", room, self.memory, c_size_t(4 * count))
        return list(room)

    def run(self, function: str, count: int, root_or_sum: int) -> None:
        cuda.must("cuCtxSetCurrent", self.context)
        at = self.memory.value
        check(function, getattr(nccl, function)(at, at, count, UINT32, root_or_sum, self.comm, self.stream))


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


def together(ranks: list[Rank], function: str, count: int, root_or_sum: int) -> None:
    check("ncclGroupStart", nccl.ncclGroupStart())
    for rank in ranks:
        rank.put(count)
        rank.run(function, count, root_or_sum)
    check("ncclGroupEnd", nccl.ncclGroupEnd())


def main() -> None:
    ranks = begin()
    for count in COUNTS:
        both = [[(i * 7 + rank * 13) % 1009 for i in range(count)] for rank in range(RANKS)]
        together(ranks, "ncclAllReduce", count, SUM)
        for rank in ranks:
            assert rank.get(count) == [a + b for a, b in zip(*both, strict=True)], (rank.number, count)
        together(ranks, "ncclBroadcast", count, 1)
        for rank in ranks:
            assert rank.get(count) == both[1], (rank.number, count)
    for rank in ranks:
        check("ncclCommDestroy", nccl.ncclCommDestroy(rank.comm))
    print("right")


if __name__ == "__main__":
    main()

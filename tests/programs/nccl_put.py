"""NCCL's one-sided calls between two ranks, which need no kernel: each puts into the other's window and signals, and
looks at what arrived. Prints "right", or what NCCL says of the first call that fails.

    nccl_put.py LIBNCCL RANK FILE
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

import cuda
import nccl_ranks
from nccl_ranks import RANKS, UINT32, check, nccl

SYMMETRIC = 1
WINDOW_BYTES = 8 << 20
# The place in the window of the bytes that are put.
SOURCE = 4 << 20
# Words of each put, and where they go, in bytes.
PUTS = ((1, 0), (1000, 4096), (300_000, 1 << 20))


class Awaited(ctypes.Structure):
    """ncclWaitSignalDesc_t."""

    _fields_ = (("count", c_int), ("peer", c_int), ("signal", c_int), ("context", c_int))


def main() -> None:
    [rank] = nccl_ranks.begin()
    peer = RANKS - 1 - rank.number
    memory, window = c_void_p(), c_void_p()
    check("ncclMemAlloc", nccl.ncclMemAlloc(byref(memory), c_size_t(WINDOW_BYTES)))
    registered = nccl.ncclCommWindowRegister(rank.comm, memory, c_size_t(WINDOW_BYTES), byref(window), SYMMETRIC)
    check("ncclCommWindowRegister", registered)
    assert memory.value is not None
    for count, offset in PUTS:
        data = (c_uint * count)(*nccl_ranks.values(rank.number, count))
        cuda.must("cuMemcpyHtoD_v2", c_uint64(memory.value + SOURCE), data, c_size_t(4 * count))
        source = c_void_p(memory.value + SOURCE)
        argv = (source, c_size_t(count), UINT32, peer, window, c_size_t(offset), 0, 0, c_uint(0))
        check("ncclPutSignal", nccl.ncclPutSignal(*argv, rank.comm, rank.stream))
        awaited = Awaited(1, peer, 0, 0)
        check("ncclWaitSignal", nccl.ncclWaitSignal(1, byref(awaited), rank.comm, rank.stream))
        cuda.must("cuStreamSynchronize", rank.stream)
        room = (c_uint * count)()
        cuda.must("cuMemcpyDtoH_v2", room, c_uint64(memory.value + offset), c_size_t(4 * count))
        assert list(room) == nccl_ranks.values(peer, count), (rank.number, count)
    check("ncclCommWindowDeregister", nccl.ncclCommWindowDeregister(rank.comm, window))
    check("ncclMemFree", nccl.ncclMemFree(memory))
    check("ncclCommDestroy", nccl.ncclCommDestroy(rank.comm))
    print("right")


if __name__ == "__main__":
    main()

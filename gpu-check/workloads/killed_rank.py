"""One rank of two, by NCCL's own calls: `killed_rank.py RANK FOLDER GPU ERROR_S`.

NCCL takes two processes on one GPU for two machines if each has a NCCL_HOSTID of its own; they then talk over sockets.
Rank 1 adds up for ever, and is killed. Rank 0 waits ERROR_S seconds to be told so by NCCL, aborts its communicator and
goes on with its GPU; it prints a line of JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_void_p
from pathlib import Path

import torch

ID_BYTES = 128
# ncclDataType_t, ncclRedOp_t.
INT64, SUM = 4, 0
ELEMENTS = 1 << 16
# The longest waits: for a first all-reduce, for the abort.
FIRST_S, ABORT_S = 25.0, 20.0
LOOPS_MAX = 1_000_000


class UniqueId(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * ID_BYTES),)


def library() -> ctypes.CDLL:
    """Returns the NCCL that PyTorch has loaded, or the one beside it."""
    try:
        nccl = ctypes.CDLL("libnccl.so.2")
    except OSError:
        beside = Path(torch.__file__).parent.parent / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
        nccl = ctypes.CDLL(str(beside))
    nccl.ncclCommInitRank.argtypes = (c_void_p, c_int, UniqueId, c_int)
    nccl.ncclAllReduce.argtypes = (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p)
    nccl.ncclCommGetAsyncError.argtypes = (c_void_p, c_void_p)
    nccl.ncclCommAbort.argtypes = (c_void_p,)
    nccl.ncclGetErrorString.restype = ctypes.c_char_p
    return nccl


def say(rank: int, *words: object) -> None:
    print(f"rank {rank}:", *words, file=sys.stderr, flush=True)


def until(seconds: float, done: Callable[[], bool]) -> bool:
    """Waits until something is done, or that long."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


class Rank:
    def __init__(self, rank: int, folder: Path, gpu: int, error_s: float) -> None:
        self.rank, self.folder, self.error_s, self.nccl = rank, folder, error_s, library()
        torch.cuda.set_device(gpu)
        self.stream = torch.cuda.Stream()
        self.comm = c_void_p()
        number = self._number()
        self.check("ncclCommInitRank", self.nccl.ncclCommInitRank(byref(self.comm), 2, number, rank))

    def _number(self) -> UniqueId:
        """Makes the communicator's number, or waits for the other rank's."""
        number, place = UniqueId(), self.folder / "number"
        if self.rank == 0:
            self.check("ncclGetUniqueId", self.nccl.ncclGetUniqueId(byref(number)))
            partial = place.with_suffix(".part")
            partial.write_bytes(bytes(number))
            partial.rename(place)
        elif not until(FIRST_S, place.exists):
            raise RuntimeError("the other rank made no number")
        return UniqueId.from_buffer_copy(place.read_bytes())

    def check(self, function: str, status: int) -> None:
        if status != 0:
            raise RuntimeError(f"{function}: {self.nccl.ncclGetErrorString(status).decode()}")

    def all_reduce(self, x: torch.Tensor) -> int:
        pointer, stream = x.data_ptr(), self.stream.cuda_stream
        return int(self.nccl.ncclAllReduce(pointer, pointer, x.numel(), INT64, SUM, self.comm, stream))

    def failed(self) -> int:
        """Returns NCCL's own error of earlier work, 0 for none."""
        status = c_int()
        self.check("ncclCommGetAsyncError", self.nccl.ncclCommGetAsyncError(self.comm, byref(status)))
        return status.value

    def first(self) -> bool:
        """Adds both ranks' numbers once; returns whether it was done in time, and must be right."""
        x = torch.arange(ELEMENTS, device="cuda") % 997 + self.rank
        expected = (2 * (torch.arange(ELEMENTS) % 997) + 1).sum().item()
        torch.cuda.synchronize()
        self.check("ncclAllReduce", self.all_reduce(x))
        done = torch.cuda.Event()
        done.record(self.stream)
        if not until(FIRST_S, lambda: done.query() or self.failed() != 0):
            return False
        self.check("the first all-reduce", self.failed())
        found = x.sum().item()
        if found != expected:
            raise RuntimeError(f"the sum of both ranks is {found}, not {expected}")
        return True

    def loop(self) -> int:
        """Adds until there is an error; returns its number, or 0 if none came in time."""
        x = torch.ones(ELEMENTS, dtype=torch.int64, device="cuda")
        torch.cuda.synchronize()
        (self.folder / f"ready-{self.rank}").touch()
        for count in range(LOOPS_MAX):
            status = self.all_reduce(x)
            if status != 0:
                say(self.rank, f"ncclAllReduce {count}: {status}")
                return status
            done = torch.cuda.Event()
            done.record(self.stream)
            if not until(self.error_s, lambda done=done: done.query() or self.failed() != 0):
                say(self.rank, f"all-reduce {count} is not done, and there is no error")
                return 0
            if status := self.failed():
                say(self.rank, f"error {status} at all-reduce {count}")
                return status
        return 0

    def abort(self) -> bool:
        """Aborts the communicator; returns whether the call and the GPU's work ended in time."""
        statuses: list[int] = []
        thread = threading.Thread(target=lambda: statuses.append(self.nccl.ncclCommAbort(self.comm)), daemon=True)
        begun = time.monotonic()
        thread.start()
        thread.join(ABORT_S)
        say(self.rank, f"ncclCommAbort: {statuses or 'not done'} after {time.monotonic() - begun:.1f} s")
        return statuses == [0] and until(ABORT_S, self.stream.query)


def main() -> None:
    rank = Rank(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
    say(rank.rank, "has a communicator")
    answer: dict[str, object] = {"first": rank.first()}
    say(rank.rank, "first all-reduce:", answer["first"])
    begun = time.monotonic()
    if answer["first"]:
        answer["told"] = rank.loop() != 0
    say(rank.rank, f"the loop ended after {time.monotonic() - begun:.1f} s")
    answer["aborted"] = rank.abort()
    if answer["aborted"]:
        answer["computed"] = int(torch.arange(1000, device="cuda").sum().item())
    print(json.dumps(answer), flush=True)
    # Whatever NCCL has left is not waited for.
    os._exit(0)


if __name__ == "__main__":
    main()

"""Computes checksums on each GPU of its lease for some seconds, and leaves marks by which others can judge that it had
them alone: pool_marks.py FOLDER SECONDS, with its own name in POOL_MARKS.

- FOLDER/uses/NAME-UUID: when the first operation had ended, and when the last one began that came out right. A session
  does not come back, so it was alive in all of that time: no other program's may lie in it.
- FOLDER/marks/UUID: locked by the program that has the GPU, for as long as it lives. A lock that another one still has
  when a program begins is noted: that one was stopped or cut off, and must have lost the GPU.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import sys
import time
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint64
from pathlib import Path

from cuda import lib, made, must
from pool_checksums import uuid_of

LENGTH = 1 << 14
PAUSE_S = 0.05
LOST, WRONG = 3, 8


class Gpu:
    """A GPU of the lease, with the marks of its use."""

    def __init__(self, device: int, folder: Path, name: str) -> None:
        self.name, self.uuid = name, uuid_of(device)
        self.context, self.at = made("cuDevicePrimaryCtxRetain", device), c_uint64()
        must("cuCtxSetCurrent", self.context)
        must("cuMemAlloc_v2", byref(self.at), c_size_t(LENGTH))
        self.here = (ctypes.c_ubyte * LENGTH)()
        self.use = os.open(folder / "uses" / f"{name}-{self.uuid}", os.O_CREAT | os.O_WRONLY)
        self.met = lock(folder / "marks" / self.uuid, name)
        self.first: tuple[float, float] | None = None
        self.operations = 0

    def work(self, seed: int) -> None:
        """Fills memory and reads it back. What has come out right is noted."""
        begun = (time.monotonic(), time.time())
        value = (seed + self.operations) % 256
        must("cuCtxSetCurrent", self.context)
        status = lib.cuMemsetD8_v2(self.at, c_ubyte(value), c_size_t(LENGTH))
        status = status or lib.cuMemcpyDtoH_v2(self.here, self.at, c_size_t(LENGTH))
        if status:
            ended(f"lost {status}", LOST)
        if bytes(self.here) != bytes([value]) * LENGTH:
            ended(f"a wrong checksum on {self.uuid}", WRONG)
        self.operations += 1
        if self.first is None:
            self.first = (time.monotonic(), time.time())
        lease = int(os.environ.get("OUTBOARD_LEASE", "0"))
        record = {"uuid": self.uuid, "lease": lease, "operations": self.operations, "from": self.first, "to": begun}
        record |= {"name": self.name, "met": self.met}
        # A whole record at a time, of one length: whoever is killed leaves none that is cut.
        os.pwrite(self.use, json.dumps(record).ljust(400).encode(), 0)


def lock(file: Path, name: str) -> str | None:
    """Locks a file for this process, and returns who has it if another one does."""
    mark = os.open(file, os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(mark, 64, 0).decode().strip()
    os.pwrite(mark, name.ljust(64).encode(), 0)
    return None


def ended(word: str, code: int) -> None:
    print(word, flush=True)
    sys.exit(code)


def main() -> None:
    folder, name = Path(sys.argv[1]), os.environ["POOL_MARKS"]
    until = time.monotonic() + float(sys.argv[2])
    must("cuInit", 0)
    count = c_int()
    must("cuDeviceGetCount", byref(count))
    gpus = [Gpu(device, folder, name) for device in range(count.value)]
    seed = sum(name.encode())
    while time.monotonic() < until:
        for gpu in gpus:
            gpu.work(seed)
        time.sleep(PAUSE_S)
    print(f"right {sum(gpu.operations for gpu in gpus)}", flush=True)


if __name__ == "__main__":
    main()

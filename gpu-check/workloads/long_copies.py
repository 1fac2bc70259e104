"""Copies between pinned memory and the GPU over emulated networks, and prints a line of JSON for each network.

`outboard run --emulate NETWORK -- python long_copies.py MIB ROUNDS NETWORK...`; the last networks are gone through in
this one session. Needs nothing but the driver.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from ctypes import byref, c_size_t, c_uint, c_uint64, c_void_p

cuda = ctypes.CDLL("libcuda.so.1")
# Data connections are opened while the first copies take the session's own.
OPENING_S = 0.5
IN_A_ROW = 3


def must(function: str, *arguments: object) -> None:
    status = getattr(cuda, function)(*arguments)
    if status != 0:
        raise SystemExit(f"{function}: status {status}")


def timed(work: Callable[[], None]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


class Copies:
    def __init__(self, length: int) -> None:
        self.length = length
        self.context = c_void_p()
        must("cuInit", 0)
        must("cuDevicePrimaryCtxRetain", byref(self.context), 0)
        must("cuCtxSetCurrent", self.context)
        self.streams = [self._made("cuStreamCreate", c_uint(1)) for _ in range(2)]
        self.device = [self._memory("cuMemAlloc_v2", c_uint64()) for _ in range(2)]
        self.host = [self._memory("cuMemHostAlloc", c_void_p(), c_uint(0)) for _ in range(2)]
        for host, byte in zip(self.host, b"ab", strict=True):
            ctypes.memset(host, byte, length)

    def _made(self, function: str, *arguments: object) -> c_void_p:
        made = c_void_p()
        must(function, byref(made), *arguments)
        return made

    def _memory(self, function: str, at: c_uint64 | c_void_p, *flags: object) -> c_uint64 | c_void_p:
        must(function, byref(at), c_size_t(self.length), *flags)
        return at

    def copy_in(self, times: int) -> None:
        for _ in range(times):
            must("cuMemcpyHtoDAsync_v2", self.device[0], self.host[0], c_size_t(self.length), self.streams[0])
        must("cuStreamSynchronize", self.streams[0])

    def copy_out(self, times: int) -> None:
        for _ in range(times):
            must("cuMemcpyDtoHAsync_v2", self.host[1], self.device[1], c_size_t(self.length), self.streams[1])
        must("cuStreamSynchronize", self.streams[1])

    def both(self) -> list[float]:
        """Copies one buffer each way at once; returns the seconds of each."""
        begin = threading.Barrier(2)
        seconds = [0.0, 0.0]

        def one(index: int, work: Callable[[int], None]) -> None:
            must("cuCtxSetCurrent", self.context)
            begin.wait()
            seconds[index] = timed(lambda: work(1))

        threads = [threading.Thread(target=one, args=pair) for pair in enumerate([self.copy_in, self.copy_out])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return seconds

    def check(self) -> None:
        """What was copied in comes out."""
        must("cuMemcpyDtoH_v2", self.host[1], self.device[0], c_size_t(self.length))
        if ctypes.string_at(self.host[1].value or 0, self.length) != b"a" * self.length:
            raise SystemExit("the bytes are wrong")


def main(mib: int, rounds: int, networks: list[str]) -> None:
    copies = Copies(mib << 20)
    copies.copy_in(1)
    copies.copy_out(1)
    time.sleep(OPENING_S)
    copies.check()

    def gbps(seconds: float, times: int = 1) -> float | None:
        # The difference of two times can be none on a busy machine.
        return round(times * copies.length * 8e-9 / seconds, 1) if seconds > 0 else None

    for network in networks:
        must("outboard_emulate", network.encode())
        figures: dict[str, object] = {"network": network}
        for way, copy in (("up", copies.copy_in), ("down", copies.copy_out)):
            pairs = [[timed(lambda: copy(times)) for times in (1, IN_A_ROW)] for _ in range(rounds + 1)][1:]  # noqa: B023
            one, several = (statistics.median(pair[index] for pair in pairs) for index in range(2))
            figures[way] = [gbps(one), gbps(several - one, IN_A_ROW - 1)]
        both = [copies.both() for _ in range(rounds)]
        figures["both"] = [gbps(statistics.median(pair[index] for pair in both)) for index in range(2)]
        print(json.dumps(figures), flush=True)
    copies.check()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])

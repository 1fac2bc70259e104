"""Makes 50 calls in each of 40 threads at once, more than have a ring each, then in 40 threads one
after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from ctypes import byref, c_int

from cuda import must

THREADS = 40


def run(wait: Callable[[], object]) -> None:
    count = c_int()
    for number in range(50):
        must("cuDeviceGetCount", byref(count))
        if number == 10:
            wait()


def main() -> None:
    must("cuInit", 0)
    together = threading.Barrier(THREADS)
    at_once = [threading.Thread(target=run, args=(together.wait,)) for _ in range(THREADS)]
    for thread in at_once:
        thread.start()
    for thread in at_once:
        thread.join()
    for _ in range(THREADS):
        thread = threading.Thread(target=run, args=(int,))
        thread.start()
        thread.join()


if __name__ == "__main__":
    main()

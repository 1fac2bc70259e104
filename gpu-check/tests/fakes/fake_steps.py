"""Steps without a GPU, and every way to fail in the middle of a measurement."""

import os
import signal
import sys
import time
from pathlib import Path

REMOTE = os.environ.get("FAKE_REMOTE")
LEVEL = os.environ.get("OUTBOARD_OPTIMISE", "")
JOURNAL = os.environ.get("FAKE_JOURNAL")


class Clock:
    """The time that measurements in this process see: steps take what they say, however busy the machine is."""

    def __init__(self):
        self.now_s = time.perf_counter()
        time.perf_counter = lambda: self.now_s

    def passes(self, seconds):
        self.now_s += seconds


CLOCK = Clock()


def first_result():
    if os.environ.get("FAKE_NO_DEVICE") and REMOTE:
        raise RuntimeError("no CUDA-capable device is detected")
    CLOCK.passes(2 if REMOTE else 0)


def sleeps(_):
    def step():
        if JOURNAL:
            with Path(JOURNAL).open("a") as journal:
                journal.write(f"{REMOTE or 'local'}\n")
        CLOCK.passes(0.006 if REMOTE else 0.002)

    return step


def level(_):
    return lambda: CLOCK.passes(0.008 if LEVEL == "batch=4" else 0.004)


def third_time(fault):
    """A step that goes wrong remotely, once it has been prepared."""

    def make(_):
        count = 0

        def step():
            nonlocal count
            count += 1
            if REMOTE and count > 4:
                fault()
            CLOCK.passes(0.001)

        return step

    return make


def crash():
    print("about to crash", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def complain():
    raise ValueError("two and two are five")


def cannot_be_made(_):
    raise ValueError("no such model")


STEPS = {
    "sleeps": sleeps,
    "level": level,
    "hangs": third_time(lambda: time.sleep(600)),
    "crashes": third_time(crash),
    "raises": third_time(complain),
    "cannot_be_made": cannot_be_made,
}

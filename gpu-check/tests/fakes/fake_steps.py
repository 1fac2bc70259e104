"""Steps without a GPU, and every way to fail in the middle of a measurement."""

import os
import signal
import sys
import time
from pathlib import Path

REMOTE = os.environ.get("FAKE_REMOTE")
LEVEL = os.environ.get("OUTBOARD_OPTIMISE", "")
JOURNAL = os.environ.get("FAKE_JOURNAL")


def first_result():
    if os.environ.get("FAKE_NO_DEVICE") and REMOTE:
        raise RuntimeError("no CUDA-capable device is detected")
    time.sleep(0.05 if REMOTE else 0)


def sleeps(_):
    def step():
        if JOURNAL:
            with Path(JOURNAL).open("a") as journal:
                journal.write(f"{REMOTE or 'local'}\n")
        time.sleep(0.006 if REMOTE else 0.002)

    return step


def level(_):
    return lambda: time.sleep(0.008 if LEVEL == "batch=4" else 0.004)


def third_time(fault):
    """A step that goes wrong remotely, once it has been prepared."""

    def make(_):
        count = 0

        def step():
            nonlocal count
            count += 1
            if REMOTE and count > 4:
                fault()
            time.sleep(0.001)

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

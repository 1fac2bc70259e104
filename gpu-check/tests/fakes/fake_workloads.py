"""Workloads without a GPU: right ones, and every way to be wrong through Outboard only."""

import os
import signal
import sys
import time

from harness import CheckFailed, Result, SkipWorkload, digest_bytes, emit

REMOTE = os.environ.get("FAKE_REMOTE")


def first_result():
    if os.environ.get("FAKE_NO_DEVICE") and REMOTE:
        raise RuntimeError("no CUDA-capable device is detected")
    if os.environ.get("FAKE_HANG_AT_START") and REMOTE:
        time.sleep(600)


def healthy():
    return "lost" not in STATE


STATE: set[str] = set()


def right(settings):
    return Result(
        digest=digest_bytes(b"same"),
        numbers={"mean": 1.5},
        losses=[0.5, 0.25],
        timings_ms={"step": 4.0 if REMOTE else 2.0},
    )


def wrong_digest(settings):
    return Result(digest=digest_bytes(b"other" if REMOTE else b"same"))


def wrong_loss(settings):
    return Result(losses=[0.5, 0.25 + (2e-4 if REMOTE else 0)])


def not_reproducible(settings):
    return Result(digest=digest_bytes(os.urandom(8)), numbers={"mean": 2.0}, reproducible=False)


def raises(settings):
    if REMOTE:
        raise CheckFailed("two and two are five")
    return Result()


def loses_context(settings):
    if REMOTE:
        STATE.add("lost")
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    return Result()


def hangs(settings):
    if REMOTE == "tcp":
        time.sleep(600)
    return Result()


def crashes(settings):
    if REMOTE:
        print("about to crash", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    return Result()


def leaves_after_result(settings):
    emit("result", name="leaves_after_result", status="pass")
    os._exit(3)


def skips(settings):
    raise SkipWorkload("no such thing here")


def skips_remotely(settings):
    if REMOTE:
        raise SkipWorkload("lost on the way")
    return Result()


def soaks(settings):
    time.sleep(float(os.environ["OUTBOARD_SOAK_S"]))
    return Result(facts={"seed": os.environ["OUTBOARD_SOAK_SEED"]})


def hangs_at_exit(settings):
    if REMOTE:
        import atexit

        atexit.register(time.sleep, 600)
    return Result(digest=digest_bytes(b"same"))


WORKLOADS = {name: value for name, value in list(globals().items()) if callable(value) and name[0].islower()}
STEPS = {"right": lambda settings: lambda: None}

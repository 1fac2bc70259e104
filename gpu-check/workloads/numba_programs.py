"""Kernels that Numba compiles from Python, against numpy."""

from __future__ import annotations

import numpy as np

# numba 0.6x still asks numpy for a name that numpy 2.5 has taken away.
if not hasattr(np, "row_stack"):
    np.row_stack = np.vstack  # type: ignore[attr-defined]

import numba
from numba import cuda

from harness import Result, Settings, digest_bytes, require

__all__ = ["WORKLOADS", "first_result", "healthy"]

SIZE = 1_000_003
THREADS = 256


@cuda.jit
def _saxpy(a, x, y, out):  # noqa: ANN001, ANN202 (types are inferred where it is launched)
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


@cuda.jit
def _block_sums(x, out):  # noqa: ANN001, ANN202
    """Sums of blocks of integers, through shared memory and barriers, added up atomically."""
    shared = cuda.shared.array(THREADS, numba.int64)
    lane = cuda.threadIdx.x
    i = cuda.grid(1)
    shared[lane] = x[i] if i < x.size else 0
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if lane < half:
            shared[lane] += shared[lane + half]
        cuda.syncthreads()
        half //= 2
    if lane == 0:
        cuda.atomic.add(out, 0, shared[0])


def first_result() -> None:
    require(healthy(), "what was copied to the device did not come back")


def healthy() -> bool:
    return bool((cuda.to_device(np.arange(4)).copy_to_host() == np.arange(4)).all())


def numba_saxpy(settings: Settings) -> Result:
    generator = np.random.default_rng(0)
    x, y = (generator.standard_normal(SIZE, dtype=np.float32) for _ in range(2))
    out = cuda.device_array(SIZE, dtype=np.float32)
    _saxpy[(SIZE + THREADS - 1) // THREADS, THREADS](np.float32(2.5), cuda.to_device(x), cuda.to_device(y), out)
    host = out.copy_to_host()
    error = float(np.abs(host - (2.5 * x.astype(np.float64) + y)).max())
    require(error < 1e-5, f"off by {error}")
    return Result(digest=digest_bytes(host.tobytes()))


def numba_shared_sum(settings: Settings) -> Result:
    x = np.arange(SIZE, dtype=np.int64)
    total = cuda.to_device(np.zeros(1, dtype=np.int64))
    _block_sums[(SIZE + THREADS - 1) // THREADS, THREADS](cuda.to_device(x), total)
    actual = int(total.copy_to_host()[0])
    require(actual == int(x.sum()), f"the sum is {actual}, not {int(x.sum())}")
    return Result(facts={"sum": actual})


WORKLOADS = {"numba_saxpy": numba_saxpy, "numba_shared_sum": numba_shared_sum}

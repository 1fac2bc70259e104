"""CuPy: kernels it generates, CUB, cuBLAS, and one in CUDA C++ through NVRTC."""

from __future__ import annotations

import cupy as cp
import numpy as np

from harness import Result, Settings, digest_bytes, median_ms, require

__all__ = ["WORKLOADS", "first_result", "healthy"]

SIZE = 1 << 20

SAXPY = cp.RawKernel(
    r"""
extern "C" __global__ void saxpy(const float a, const float* x, const float* y, float* out, const int n) {
    const int i = blockDim.x * blockIdx.x + threadIdx.x;
    if (i < n) out[i] = fmaf(a, x[i], y[i]);
}
""",
    "saxpy",
)


def first_result() -> None:
    require(healthy(), "1 + 1 is not 2")


def healthy() -> bool:
    return float(cp.ones(2).sum()) == 2.0


def _random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def _result(output: cp.ndarray) -> Result:
    host = cp.asnumpy(output)
    norm = float(np.linalg.norm(host.astype(np.float64)))
    return Result(digest=digest_bytes(np.ascontiguousarray(host).tobytes()), numbers={"norm": norm})


def _require_close(actual: cp.ndarray, expected: np.ndarray, tolerance: float) -> None:
    error = np.abs(cp.asnumpy(actual).astype(np.float64) - expected).max() / np.abs(expected).max()
    require(error <= tolerance, f"off by {error:.3g} of the largest value, {tolerance:g} is allowed")


def cupy_elementwise(settings: Settings) -> Result:
    x = _random(0, SIZE)
    output = cp.exp(cp.sin(cp.asarray(x))) + 1
    _require_close(output, np.exp(np.sin(x.astype(np.float64))) + 1, 1e-6)
    return _result(output)


def cupy_reduction(settings: Settings) -> Result:
    x = _random(1, 1024, 1024)
    output = cp.asarray(x).sum(axis=1)
    _require_close(output, x.astype(np.float64).sum(axis=1), 1e-5)
    total = int(cp.arange(SIZE, dtype=cp.int64).sum())
    require(total == SIZE * (SIZE - 1) // 2, f"the sum of the first {SIZE} integers came out as {total}")
    return _result(output)


def cupy_rawkernel(settings: Settings) -> Result:
    x, y = _random(2, SIZE), _random(3, SIZE)
    device_x, device_y = cp.asarray(x), cp.asarray(y)
    output = cp.empty_like(device_x)
    SAXPY(((SIZE + 255) // 256,), (256,), (np.float32(2.5), device_x, device_y, output, np.int32(SIZE)))
    _require_close(output, 2.5 * x.astype(np.float64) + y, 1e-6)
    return _result(output)


def cupy_matmul(settings: Settings) -> Result:
    a, b = _random(4, 1024, 1024), _random(5, 1024, 1024)
    x, y = cp.asarray(a), cp.asarray(b)
    output = x @ y
    _require_close(output, a.astype(np.float64) @ b, 1e-4)

    def step() -> None:
        _ = x @ y
        cp.cuda.get_current_stream().synchronize()

    result = _result(output)
    result.timings_ms = {"product": median_ms(step, settings.iterations(full=50, quick=10))}
    return result


def cupy_sort(settings: Settings) -> Result:
    x = _random(6, SIZE)
    output = cp.sort(cp.asarray(x))
    require(np.array_equal(cp.asnumpy(output), np.sort(x)), "the array is not sorted as numpy sorts it")
    return _result(output)


WORKLOADS = {
    "cupy_elementwise": cupy_elementwise,
    "cupy_reduction": cupy_reduction,
    "cupy_rawkernel": cupy_rawkernel,
    "cupy_matmul": cupy_matmul,
    "cupy_sort": cupy_sort,
}

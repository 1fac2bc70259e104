"""Kernels that CuPy compiles at run time, against numpy."""

import cupy as cp
import numpy as np

RNG = np.random.default_rng(5)


def elementwise():
    x = RNG.standard_normal((40, 25)).astype(np.float32)
    y = cp.sin(cp.asarray(x)) * 2 + cp.sqrt(cp.abs(cp.asarray(x))) ** 3
    np.testing.assert_allclose(y.get(), np.sin(x) * 2 + np.sqrt(np.abs(x)) ** 3, rtol=1e-4, atol=1e-5)
    half = cp.asarray(x).astype(cp.float16) * cp.float16(0.5)
    np.testing.assert_array_equal(half.get(), x.astype(np.float16) * np.float16(0.5))
    integers = cp.arange(-50, 50, dtype=cp.int64)
    host = np.arange(-50, 50)
    np.testing.assert_array_equal((integers // 7 * 3 % 11).get(), host // 7 * 3 % 11)


def indexing():
    x = RNG.standard_normal((12, 9))
    gpu = cp.asarray(x)
    np.testing.assert_array_equal(gpu[::2, 1:-1].T.copy().get(), x[::2, 1:-1].T)
    np.testing.assert_array_equal(cp.where(gpu > 0, gpu, -gpu).get(), np.abs(x))
    np.testing.assert_array_equal(cp.concatenate([gpu, gpu * 2]).get(), np.concatenate([x, x * 2]))
    np.testing.assert_array_equal(gpu[cp.asarray([3, 1, 4])].get(), x[[3, 1, 4]])


def reductions():
    x = RNG.standard_normal((64, 48))
    gpu = cp.asarray(x)
    for name in ("sum", "mean", "max", "min", "argmax", "std", "prod"):
        for axis in (None, 0, 1):
            got = cp.asnumpy(getattr(gpu, name)(axis=axis))
            np.testing.assert_allclose(got, getattr(x, name)(axis=axis), rtol=1e-10, err_msg=f"{name} {axis}")
    assert bool(cp.allclose(gpu, gpu)) and int(cp.count_nonzero(gpu > 0)) == np.count_nonzero(x > 0)


def scans():
    x = RNG.integers(0, 9, 700)
    np.testing.assert_array_equal(cp.cumsum(cp.asarray(x)).get(), np.cumsum(x))
    np.testing.assert_array_equal(cp.nonzero(cp.asarray(x) > 6)[0].get(), np.nonzero(x > 6)[0])


def raw_kernels():
    squares = cp.RawKernel(
        r"""
        extern "C" __global__ void squares(float *x, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) x[i] *= x[i];
        }""",
        "squares",
    )
    x = cp.arange(1000, dtype=cp.float32)
    squares((8,), (128,), (x, np.int32(1000)))
    np.testing.assert_array_equal(x.get(), np.arange(1000, dtype=np.float32) ** 2)
    module = cp.RawModule(
        code=r"""
        template <typename T> __global__ void add(T *x, T y) { x[threadIdx.x] += y; }
        """,
        options=("-std=c++17",),
        name_expressions=["add<double>"],
    )
    y = cp.zeros(32)
    module.get_function("add<double>")((1,), (32,), (y, np.float64(1.5)))
    np.testing.assert_array_equal(y.get(), np.full(32, 1.5))


def own_kernels():
    fused = cp.ElementwiseKernel("T x, T y", "T z", "z = x * x + y", "fused")
    x = RNG.standard_normal(500)
    np.testing.assert_allclose(fused(cp.asarray(x), cp.asarray(x)).get(), x * x + x, rtol=1e-14)
    length = cp.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "length")
    np.testing.assert_allclose(float(length(cp.asarray(x))), np.linalg.norm(x), rtol=1e-12)


def streams():
    with cp.cuda.Stream(non_blocking=True) as stream:
        start = stream.record()
        x = cp.arange(100) * 2
        end = stream.record()
        stream.synchronize()
    assert cp.cuda.get_elapsed_time(start, end) >= 0
    np.testing.assert_array_equal(x.get(), np.arange(100) * 2)


if __name__ == "__main__":
    for check in (elementwise, indexing, reductions, scans, raw_kernels, own_kernels, streams):
        check()
        print(check.__name__, flush=True)

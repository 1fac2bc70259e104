"""Runs the kernels compiled into CuPy's wheel: sorting, by CUB, and random numbers, by cuRAND's device functions.

The wheel's PTX is for compute capability 12.0; the rest of its code is machine code.
"""

import cupy as cp
import numpy as np

RNG = np.random.default_rng(11)


def sort():
    for dtype in ("f2", "f4", "f8", "i1", "i4", "u8"):
        x = RNG.standard_normal(3000) * 50
        x = np.abs(x).astype(dtype) if dtype == "u8" else x.astype(dtype)
        np.testing.assert_array_equal(cp.sort(cp.asarray(x)).get(), np.sort(x), err_msg=dtype)
    x = RNG.random((30, 41))
    for axis in (0, 1):
        np.testing.assert_array_equal(cp.sort(cp.asarray(x), axis=axis).get(), np.sort(x, axis=axis))


def argsort():
    x = RNG.permutation(5000).astype(np.float32)
    np.testing.assert_array_equal(cp.argsort(cp.asarray(x)).get(), np.argsort(x))
    keys = RNG.integers(0, 5, (2, 400))
    np.testing.assert_array_equal(cp.lexsort(cp.asarray(keys)).get(), np.lexsort(keys))


def partition():
    x = RNG.random(2000)
    parted = cp.partition(cp.asarray(x), 70).get()
    assert parted[70] == np.sort(x)[70] and parted[:70].max() <= parted[70] <= parted[71:].min()


def unique():
    x = RNG.integers(0, 40, 1000)
    values, counts = cp.unique(cp.asarray(x), return_counts=True)
    expected = np.unique(x, return_counts=True)
    np.testing.assert_array_equal(values.get(), expected[0])
    np.testing.assert_array_equal(counts.get(), expected[1])


def generators():
    for bits in (cp.random.XORWOW, cp.random.MRG32k3a, cp.random.Philox4x3210):
        generator = cp.random.Generator(bits(7))
        x = generator.random(20_000).get()
        # Five standard errors of mean and variance.
        assert x.min() >= 0 and x.max() <= 1 and abs(x.mean() - 0.5) < 0.0103 and abs(x.var() - 1 / 12) < 0.0027, bits
        assert len(np.unique(x)) > 19_990, bits
        np.testing.assert_array_equal(x, cp.random.Generator(bits(7)).random(20_000).get())
        assert (x != cp.random.Generator(bits(8)).random(20_000).get()).mean() > 0.999
        normal = generator.standard_normal(20_000).get()
        assert abs(normal.mean()) < 0.036 and abs(normal.std() - 1) < 0.026, bits
        whole = generator.integers(0, 10, 20_000).get()
        assert set(whole) == set(range(10)) and np.bincount(whole).min() > 1_780, bits


if __name__ == "__main__":
    for check in (sort, argsort, partition, unique, generators):
        check()
        print(check.__name__, flush=True)

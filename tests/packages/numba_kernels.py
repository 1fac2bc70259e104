"""Kernels that numba-cuda compiles, against numpy."""

import math
import warnings

import numpy as np
from numba import cuda
from numba.core.errors import NumbaWarning
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32

warnings.simplefilter("ignore", NumbaWarning)
warnings.filterwarnings("ignore", message=".*(under-utilization|copy overhead).*")
RNG = np.random.default_rng(5)


@cuda.jit
def axpy_sin(a, x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = a * x[i] + math.sin(y[i])


def elementwise():
    x = RNG.standard_normal(1000).astype(np.float32)
    y = RNG.standard_normal(1000).astype(np.float32)
    expected = np.float32(2) * x + np.sin(y)
    axpy_sin[8, 128](np.float32(2), x, y)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


TILE = 8


@cuda.jit
def matmul(a, b, c):
    left = cuda.shared.array((TILE, TILE), np.float32)
    right = cuda.shared.array((TILE, TILE), np.float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = np.float32(0)
    for tile in range(a.shape[1] // TILE):
        left[tx, ty] = a[x, tile * TILE + ty]
        right[tx, ty] = b[tile * TILE + tx, y]
        cuda.syncthreads()
        for k in range(TILE):
            total += left[tx, k] * right[k, ty]
        cuda.syncthreads()
    c[x, y] = total


def shared_memory():
    a = RNG.standard_normal((32, 24)).astype(np.float32)
    b = RNG.standard_normal((24, 40)).astype(np.float32)
    c = np.zeros((32, 40), np.float32)
    matmul[(4, 5), (TILE, TILE)](a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-5)


@cuda.jit
def histogram(values, counts):
    i = cuda.grid(1)
    if i < values.size:
        cuda.atomic.add(counts, values[i], 1)


def atomics():
    values = RNG.integers(0, 10, 3000)
    counts = np.zeros(10, np.int64)
    histogram[24, 128](values, counts)
    np.testing.assert_array_equal(counts, np.bincount(values, minlength=10))


@cuda.jit
def warp_sums(values, sums):
    i = cuda.grid(1)
    value = values[i]
    offset = 16
    while offset > 0:
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, offset)
        offset //= 2
    if cuda.laneid == 0:
        sums[i // 32] = value


def shuffles():
    values = RNG.integers(0, 1000, 256).astype(np.int32)
    sums = np.zeros(8, np.int32)
    warp_sums[2, 128](values, sums)
    np.testing.assert_array_equal(sums, values.reshape(8, 32).sum(axis=1))


@cuda.jit(device=True)
def escape_time(x, y):
    c, z = complex(x, y), 0j
    for i in range(50):
        z = z * z + c
        if z.real * z.real + z.imag * z.imag >= 4:
            return i
    return 50


@cuda.jit
def mandelbrot(image):
    x, y = cuda.grid(2)
    if x < image.shape[0] and y < image.shape[1]:
        image[x, y] = escape_time(-2 + x * 0.05, -1 + y * 0.05)


def device_functions():
    image = np.zeros((60, 40), np.int32)
    mandelbrot[(8, 5), (8, 8)](image)
    expected = [[escape_time.py_func(-2 + x * 0.05, -1 + y * 0.05) for y in range(40)] for x in range(60)]
    assert np.mean(image == np.array(expected)) > 0.99


def reduce():
    total = cuda.reduce(lambda a, b: a + b)
    assert total(np.arange(5000, dtype=np.int64)) == 4999 * 5000 // 2


@cuda.jit
def uniform(states, values):
    i = cuda.grid(1)
    values[i] = xoroshiro128p_uniform_float32(states, i)


def random():
    states = create_xoroshiro128p_states(1024, seed=1)
    values = cuda.device_array(1024, np.float32)
    uniform[8, 128](states, values)
    host = values.copy_to_host()
    assert (host >= 0).all() and (host < 1).all() and abs(host.mean() - 0.5) < 0.05 and np.unique(host).size > 1000


def streams():
    stream = cuda.stream()
    x = cuda.to_device(np.arange(256, dtype=np.float32), stream)
    y = cuda.device_array(256, np.float32, stream=stream)
    y.copy_to_device(np.zeros(256, np.float32), stream)
    start, end = cuda.event(), cuda.event()
    start.record(stream)
    axpy_sin[2, 128, stream](np.float32(3), x, y)
    end.record(stream)
    end.synchronize()
    assert cuda.event_elapsed_time(start, end) >= 0
    np.testing.assert_allclose(y.copy_to_host(), np.arange(256, dtype=np.float32) * 3)


@cuda.jit
def waves(heights, rounds):
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    for step in range(rounds):
        heights[(step + 1) % 2, i] = heights[step % 2, (i + 1) % heights.shape[1]] + 1
        grid.sync()


def grid_sync():
    heights = np.zeros((2, 512), np.int32)
    heights[0] = np.arange(512)
    waves[8, 64](heights, 5)
    np.testing.assert_array_equal(heights[1], (np.arange(512) + 5) % 512 + 5)


if __name__ == "__main__":
    for check in (
        elementwise,
        shared_memory,
        atomics,
        shuffles,
        device_functions,
        reduce,
        random,
        streams,
        grid_sync,
    ):
        check()
        print(check.__name__, flush=True)

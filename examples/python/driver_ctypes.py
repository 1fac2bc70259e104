#!/usr/bin/env python3
"""The CUDA driver API from Python by ctypes alone, each kernel's result held against numpy.

    driver_ctypes.py [PTX]      PTX: the compiled kernels.cu, by default build/examples/kernels.ptx

Lines that start with "# " may differ from run to run; all others are the same wherever the GPU is.
"""

import ctypes
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

DEFAULT_PTX = pathlib.Path(__file__).resolve().parents[2] / "build/examples/kernels.ptx"


class CudaError(Exception):
    pass


class Driver:
    """libcuda.so.1 with exceptions instead of error codes: `driver.cuInit(0)`."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def __getattr__(self, name: str) -> Callable[..., None]:
        function = getattr(self._library, name)

        def call(*arguments: Any) -> None:
            result = function(*arguments)
            if result != 0:
                text = ctypes.c_char_p()
                self._library.cuGetErrorName(result, ctypes.byref(text))
                raise CudaError(f"{name}: {text.value.decode() if text.value else result}")

        return call


class Gpu:
    """The primary context of device 0, a module, and arrays that go up and down."""

    def __init__(self, ptx: bytes) -> None:
        self.driver = Driver()
        self.driver.cuInit(0)
        self.device = ctypes.c_int()
        self.driver.cuDeviceGet(ctypes.byref(self.device), 0)
        context = ctypes.c_void_p()
        self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), self.device)
        self.driver.cuCtxSetCurrent(context)
        self.module = ctypes.c_void_p()
        self.driver.cuModuleLoadData(ctypes.byref(self.module), ptx)
        self.allocations: list[ctypes.c_uint64] = []

    def close(self) -> None:
        for allocation in self.allocations:
            self.driver.cuMemFree_v2(allocation)
        self.driver.cuModuleUnload(self.module)
        self.driver.cuDevicePrimaryCtxRelease_v2(self.device)

    def name(self) -> str:
        buffer = ctypes.create_string_buffer(128)
        self.driver.cuDeviceGetName(buffer, len(buffer), self.device)
        return buffer.value.decode()

    def upload(self, array: np.ndarray) -> ctypes.c_uint64:
        array = np.ascontiguousarray(array)
        address = ctypes.c_uint64()
        self.driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(array.nbytes))
        self.allocations.append(address)
        self.driver.cuMemcpyHtoD_v2(address, array.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(array.nbytes))
        return address

    def download(self, address: ctypes.c_uint64, like: np.ndarray) -> np.ndarray:
        array = np.empty_like(like)
        self.driver.cuMemcpyDtoH_v2(array.ctypes.data_as(ctypes.c_void_p), address, ctypes.c_size_t(array.nbytes))
        return array

    def launch(self, kernel: str, grid: tuple, block: tuple, *arguments: Any, shared_bytes: int = 0) -> None:
        """Python integers become 32-bit integers; addresses and other ctypes values go as they are."""
        function = ctypes.c_void_p()
        self.driver.cuModuleGetFunction(ctypes.byref(function), self.module, kernel.encode())
        values = [ctypes.c_int(a) if isinstance(a, int) else a for a in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        dimensions = [ctypes.c_uint(n) for shape in (grid, block) for n in (*shape, 1, 1)[:3]]
        self.driver.cuLaunchKernel(function, *dimensions, ctypes.c_uint(shared_bytes), None, pointers, None)


def vector_add(gpu: Gpu, random: np.random.Generator) -> bool:
    a, b = random.random((2, 100_003), dtype=np.float32)
    c = gpu.upload(np.zeros_like(a))
    gpu.launch("vector_add", (-(-a.size // 256),), (256,), gpu.upload(a), gpu.upload(b), c, a.size)
    return agree("vector_add", gpu.download(c, a), a + b, tolerance=0)


def matmul(gpu: Gpu, random: np.random.Generator) -> bool:
    m, n, k = 75, 130, 96
    a, b = random.random((m, k), dtype=np.float32), random.random((k, n), dtype=np.float32)
    c = gpu.upload(np.zeros((m, n), np.float32))
    gpu.launch("matmul", (-(-n // 16), -(-m // 16)), (16, 16), gpu.upload(a), gpu.upload(b), c, m, n, k)
    want = a.astype(np.float64) @ b.astype(np.float64)
    # k positive products summed in fp32: at most k roundings, each 2^-24 of the sum.
    return agree("matmul", gpu.download(c, np.empty((m, n), np.float32)), want, tolerance=k * 2.0**-24)


def reduce(gpu: Gpu, random: np.random.Generator) -> bool:
    values = random.random(77_777)
    total = gpu.upload(np.zeros(1))
    gpu.launch("reduce", (20,), (128,), gpu.upload(values), total, values.size, shared_bytes=128 * 8)
    return agree("reduce", gpu.download(total, np.empty(1)), np.array([values.sum()]), tolerance=1e-13)


def histogram(gpu: Gpu, random: np.random.Generator) -> bool:
    data = (random.random(60_001) ** 2 * 256).astype(np.uint8)
    bins = gpu.upload(np.zeros(256, np.uint32))
    gpu.launch("histogram", (12,), (256,), gpu.upload(data), bins, data.size)
    want = np.bincount(data, minlength=256).astype(np.uint32)
    return agree("histogram", gpu.download(bins, want), want, tolerance=0)


def softmax(gpu: Gpu, random: np.random.Generator) -> bool:
    rows, columns = 40, 333
    logits = random.normal(0, 4, (rows, columns)).astype(np.float32)
    out = gpu.upload(np.zeros_like(logits))
    gpu.launch("softmax_rows", (rows,), (128,), gpu.upload(logits), out, columns)
    wide = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    # expf is within 2 ulp, but the rounding of the difference (up to 30) grows with it.
    return agree("softmax", gpu.download(out, logits), wide / wide.sum(axis=1, keepdims=True), tolerance=1e-5)


def agree(what: str, got: np.ndarray, want: np.ndarray, tolerance: float) -> bool:
    """Whether every value is within the relative tolerance; 0 asks for the very same values."""
    error = np.abs(got.astype(np.float64) - want.astype(np.float64)) / np.maximum(
        np.abs(want.astype(np.float64)), 1e-30
    )
    right = bool((error <= tolerance).all())
    print(f"# {what}: largest relative error {error.max():.3g}")
    print(f"  {'ok' if right else 'WRONG'}: {what}: {want.size} values within a relative {tolerance:.3g} of numpy's")
    return right


def main() -> int:
    path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_PTX
    print("driver_ctypes: kernels through the driver API, results against numpy")
    try:
        gpu = Gpu(path.read_bytes() + b"\0")
    except FileNotFoundError:
        print(f"{path} is missing: make -C examples builds it", file=sys.stderr)
        return 2
    except (OSError, CudaError) as error:
        print(f"no GPU: {error}", file=sys.stderr)
        return 1
    print(f"# {gpu.name()}")
    random = np.random.default_rng(20)
    results = [check(gpu, random) for check in (vector_add, matmul, reduce, histogram, softmax)]
    gpu.close()
    wrong = results.count(False)
    print(f"driver_ctypes: {'every result is right' if wrong == 0 else f'{wrong} results are WRONG'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

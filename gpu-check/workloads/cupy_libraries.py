"""cuFFT, cuRAND, cuSOLVER, cuSPARSE, NVRTC and nvJitLink, as CuPy calls them."""

from __future__ import annotations

import ctypes
import site
from pathlib import Path
from typing import ClassVar

import cupy as cp
import cupyx.scipy.fft
import cupyx.scipy.sparse as sparse
import numpy as np

from cupy_programs import first_result, healthy
from harness import Result, Settings, SkipWorkload, digest_bytes, require

__all__ = ["WORKLOADS", "first_result", "healthy"]


def _random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def _close(actual: cp.ndarray, expected: np.ndarray, tolerance: float, what: str) -> None:
    error = np.abs(cp.asnumpy(actual) - expected).max() / np.abs(expected).max()
    require(error <= tolerance, f"{what}: off by {error:.3g} of the largest value, {tolerance:g} is allowed")


def _digest(*outputs: cp.ndarray) -> str:
    return digest_bytes(*(np.ascontiguousarray(cp.asnumpy(o)).tobytes() for o in outputs))


def cupy_fft(settings: Settings) -> Result:
    x = _random(0, 12, 30, 64)
    device = cp.asarray(x)
    cases = {
        "fftn": (cp.fft.fftn(device), np.fft.fftn(x)),
        "rfft": (cp.fft.rfft(device), np.fft.rfft(x)),
        "irfft2": (cp.fft.irfft2(cp.fft.rfft2(device)), x),
        "fft of the middle axis": (cp.fft.fft(device, axis=1), np.fft.fft(x, axis=1)),
        "dct": (cupyx.scipy.fft.dct(device), None),
    }
    for name, (actual, expected) in cases.items():
        if expected is not None:
            _close(actual, expected, 1e-12, name)
    wide = device.astype(cp.complex128)
    with cupyx.scipy.fft.get_fft_plan(wide, axes=(1, 2)):
        _close(cp.fft.fftn(wide, axes=(1, 2)), np.fft.fftn(x, axes=(1, 2)), 1e-12, "a plan made by hand")
    return Result(digest=_digest(*(actual for actual, _ in cases.values())))


LOAD_TIMES_THREE = r"""
#include <cufftXt.h>
__device__ cufftComplex times_three(void *data, unsigned long long offset, void *info, void *shared) {
    cufftComplex value = ((cufftComplex *)data)[offset];
    value.x *= 3; value.y *= 3;
    return value;
}
__device__ cufftJITCallbackLoadC d_loadCallbackPtr = times_three;
"""


def cupy_fft_callback(settings: Settings) -> Result:
    """A function of the program's own in cuFFT's kernel, by nvJitLink."""
    x = (_random(1, 8, 256) + 1j * _random(2, 8, 256)).astype(np.complex64)
    try:
        with cp.fft.config.set_cufft_callbacks(cb_load=LOAD_TIMES_THREE, cb_ver="jit"):
            output = cp.fft.fft(cp.asarray(x))
    except cp.cuda.compiler.CompileException as error:
        if "cufftXt.h" in str(error):
            raise SkipWorkload("cuFFT's headers are not installed") from error
        raise
    _close(output, 3 * np.fft.fft(x), 1e-5, "three times the transform")
    return Result(digest=_digest(output))


def curand(settings: Settings) -> Result:
    """Every generator of the library, from a seed: the same numbers anywhere."""
    generators = cp.cuda.curand
    figures, outputs = {}, []
    for name in ("XORWOW", "MRG32K3A", "MTGP32", "MT19937", "PHILOX4_32_10"):
        state = cp.random.RandomState(seed=7, method=getattr(generators, f"CURAND_RNG_PSEUDO_{name}"))
        uniform, normal = state.random_sample(100_000), state.normal(size=100_000)
        figures[name] = [float(uniform.mean()), float(normal.std())]
        require(abs(figures[name][0] - 0.5) < 0.01, f"{name}: uniform numbers of mean {figures[name][0]}")
        require(abs(figures[name][1] - 1) < 0.02, f"{name}: normal numbers of deviation {figures[name][1]}")
        outputs += [uniform, normal]
    generator = cp.random.default_rng(3)
    outputs += [generator.random(1000), generator.integers(0, 100, 1000), generator.standard_normal(1000)]
    return Result(digest=_digest(*outputs))


def cupy_cusolver(settings: Settings) -> Result:
    matrix = _random(3, 120, 120)
    symmetric = matrix @ matrix.T + 120 * np.eye(120)
    device = cp.asarray(matrix)
    u, values, v = cp.linalg.svd(device)
    _close(u @ cp.diag(values) @ v, matrix, 1e-11, "SVD")
    q, r = cp.linalg.qr(device)
    _close(q @ r, matrix, 1e-11, "QR")
    factor = cp.linalg.cholesky(cp.asarray(symmetric))
    _close(factor @ factor.T, symmetric, 1e-11, "Cholesky")
    values, vectors = cp.linalg.eigh(cp.asarray(symmetric))
    _close(vectors @ cp.diag(values) @ vectors.T, symmetric, 1e-11, "symmetric eigenvalues")
    _close(device @ cp.linalg.solve(device, cp.asarray(symmetric)), symmetric, 1e-9, "solve")
    return Result(numbers={"largest": float(values.max()), "determinant": float(cp.linalg.slogdet(device)[1])})


def cupy_cusparse(settings: Settings) -> Result:
    dense = _random(4, 200, 150)
    dense[np.abs(dense) < 1] = 0
    right = _random(5, 150, 20)
    matrix = sparse.csr_matrix(cp.asarray(dense))
    _close(matrix @ cp.asarray(right), dense @ right, 1e-12, "CSR times dense")
    _close((matrix @ matrix.T.tocsr()).toarray(), dense @ dense.T, 1e-12, "CSR times CSR")
    _close(matrix.tocsc().tocoo().tocsr().toarray(), dense, 0, "conversions")
    _close((matrix + 2 * matrix).toarray(), 3 * dense, 1e-15, "a sum")
    return Result(numbers={"entries": float(matrix.nnz), "sum": float(matrix.sum())})


TEMPLATE = r"""
template <typename T, int N> __global__ void scale(const T* x, T* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] * T(N);
}
__constant__ float factor;
extern "C" __global__ void by_factor(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] * factor;
}
"""


def nvrtc(settings: Settings) -> Result:
    """Templates by their C++ names, and a variable of the module."""
    x, n = cp.arange(1000, dtype=cp.float32), np.int32(1000)
    expected = np.arange(1000, dtype=np.float32)
    module = cp.RawModule(code=TEMPLATE, options=("-std=c++17",), name_expressions=["scale<float, 7>"])
    scaled = cp.empty_like(x)
    module.get_function("scale<float, 7>")((8,), (128,), (x, scaled, n))
    _close(scaled, 7 * expected, 0, "scale")
    module = cp.RawModule(code=TEMPLATE)
    factor = cp.ndarray((1,), cp.float32, memptr=module.get_global("factor"))
    factor[...] = 2.5
    out = cp.empty_like(x)
    module.get_function("by_factor")((8,), (128,), (x, out, n))
    _close(out, 2.5 * expected, 0, "a constant of the module")
    return Result(digest=_digest(scaled, out))


# `NVJITLINK_INPUT_LTOIR`
INPUT_LTOIR = 3
CALLER = 'extern "C" __device__ int twice(int); extern "C" __global__ void ask(int* out) { *out = twice(21); }'
CALLEE = 'extern "C" __device__ int twice(int x) { return 2 * x; }'


def nvjitlink(settings: Settings) -> Result:
    """Two units of LTO code, linked by nvJitLink and loaded."""
    library = _library("libnvJitLink.so.13", "libnvJitLink.so.12")
    capability = cp.cuda.Device().compute_capability
    handle = ctypes.c_void_p()
    options = (ctypes.c_char_p * 2)(f"-arch=sm_{capability}".encode(), b"-lto")

    def must(what: str, status: int) -> None:
        require(status == 0, f"{what}: nvJitLink's status {status}")

    must("create", library.nvJitLinkCreate(ctypes.byref(handle), 2, options))
    nvrtc = cp.cuda.nvrtc
    for code in (CALLER, CALLEE):
        program = nvrtc.createProgram(code, "unit.cu", (), ())
        nvrtc.compileProgram(program, (f"-arch=sm_{capability}", "-dlto", "-rdc=true"))
        lto = nvrtc.getLTOIR(program)
        must("add", library.nvJitLinkAddData(handle, INPUT_LTOIR, lto, ctypes.c_size_t(len(lto)), b"unit"))
    must("complete", library.nvJitLinkComplete(handle))
    size = ctypes.c_size_t()
    must("size", library.nvJitLinkGetLinkedCubinSize(handle, ctypes.byref(size)))
    cubin = ctypes.create_string_buffer(size.value)
    must("cubin", library.nvJitLinkGetLinkedCubin(handle, cubin))
    module = cp.cuda.function.Module()
    module.load(cubin.raw)
    out = cp.zeros(1, dtype=cp.int32)
    module.get_function("ask")((1,), (1,), (out,))
    require(int(out[0]) == 42, f"twice 21 is {int(out[0])}")
    return Result(facts={"answer": int(out[0])})


class _NppSize(ctypes.Structure):
    _fields_: ClassVar = [("width", ctypes.c_int), ("height", ctypes.c_int)]


class _NppStream(ctypes.Structure):
    """`NppStreamContext`"""

    _fields_: ClassVar = [
        ("stream", ctypes.c_void_p),
        ("device", ctypes.c_int),
        ("multiprocessors", ctypes.c_int),
        ("threads_per_multiprocessor", ctypes.c_int),
        ("threads_per_block", ctypes.c_int),
        ("shared_bytes_per_block", ctypes.c_size_t),
        ("capability_major", ctypes.c_int),
        ("capability_minor", ctypes.c_int),
        ("stream_flags", ctypes.c_uint),
        ("reserved", ctypes.c_int),
    ]


def _npp_stream() -> _NppStream:
    device = cp.cuda.runtime.getDeviceProperties(0)
    return _NppStream(
        None,
        0,
        device["multiProcessorCount"],
        device["maxThreadsPerMultiProcessor"],
        device["maxThreadsPerBlock"],
        device["sharedMemPerBlock"],
        device["major"],
        device["minor"],
        0,
        0,
    )


def npp(settings: Settings) -> Result:
    """A sum of two pictures by NPP's arithmetic."""
    library = _library("libnppial.so.13", "libnppial.so.12")
    a, b = (cp.asarray(np.random.default_rng(s).integers(0, 200, (64, 256), dtype=np.uint8)) for s in (8, 9))
    out = cp.empty_like(a)
    rows = [item for picture in (a, b, out) for item in (ctypes.c_void_p(picture.data.ptr), 256)]
    status = library.nppiAdd_8u_C1RSfs_Ctx(*rows, _NppSize(256, 64), 0, _npp_stream())
    require(status == 0, f"NPP's status {status}")
    expected = np.minimum(cp.asnumpy(a).astype(int) + cp.asnumpy(b), 255)
    require(np.array_equal(cp.asnumpy(out), expected), "the sum is wrong")
    return Result(digest=_digest(out))


def cutensor(settings: Settings) -> Result:
    """A contraction of two tensors, and a sum over one of a tensor's axes."""
    try:
        from cupyx import cutensor as tensors

        tensors.get_handle()
    except (ImportError, AttributeError, RuntimeError) as error:
        raise SkipWorkload(f"cuTENSOR is not installed: {error}") from error
    a, b = (np.random.default_rng(s).random((24, 16, 32), dtype=np.float32) for s in (10, 11))
    out = cp.zeros((24, 24), dtype=cp.float32)
    tensors.contraction(1.0, cp.asarray(a), "ikl", cp.asarray(b), "jkl", 0.0, out, "ij")
    require(np.allclose(cp.asnumpy(out), np.einsum("ikl,jkl->ij", a, b), rtol=1e-3), "the contraction is wrong")
    summed = cp.zeros((24, 32), dtype=cp.float32)
    tensors.reduction(1.0, cp.asarray(a), "ikl", 0.0, summed, "il")
    require(np.allclose(cp.asnumpy(summed), a.sum(axis=1), rtol=1e-3), "the sum is wrong")
    return Result(digest=_digest(out, summed))


def rmm(settings: Settings) -> Result:
    """CuPy's arrays in RMM's pools: its own, the driver's, and its arena, over and over."""
    try:
        import rmm as manager
        from rmm.allocators.cupy import rmm_cupy_allocator
    except ImportError as error:
        raise SkipWorkload(f"RMM is not installed: {error}") from error
    resources = manager.mr
    upstream = resources.CudaMemoryResource()
    kinds = [
        resources.PoolMemoryResource(upstream, initial_pool_size=1 << 24, maximum_pool_size=1 << 28),
        resources.CudaAsyncMemoryResource(),
        resources.ArenaMemoryResource(upstream, 1 << 26),
    ]
    before = cp.cuda.get_allocator()
    totals = []
    try:
        for resource in kinds:
            manager.mr.set_current_device_resource(resource)
            cp.cuda.set_allocator(rmm_cupy_allocator)
            for size in (1, 1000, 1 << 20):
                values = cp.arange(size, dtype=cp.int64)
                totals.append(int((values * 3).sum()))
                require(totals[-1] == 3 * size * (size - 1) // 2, f"the sum of {size} numbers is wrong")
            data = manager.DeviceBuffer.to_device(np.arange(256, dtype=np.uint8))
            require(data.copy_to_host().tobytes() == bytes(range(256)), "the bytes of a buffer are wrong")
            del values, data
    finally:
        cp.cuda.set_allocator(before)
        manager.mr.set_current_device_resource(upstream)
    return Result(facts={"totals": totals})


def _library(*names: str) -> ctypes.CDLL:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    # Where NVIDIA's wheels are, which the loader does not know.
    for folder in site.getsitepackages():
        for name in names:
            for found in Path(folder).glob(f"nvidia/**/{name}"):
                return ctypes.CDLL(str(found))
    raise SkipWorkload(f"{names[0]} is not installed")


WORKLOADS = {
    "cupy_fft": cupy_fft,
    "cupy_fft_callback": cupy_fft_callback,
    "curand": curand,
    "cupy_cusolver": cupy_cusolver,
    "cupy_cusparse": cupy_cusparse,
    "nvrtc": nvrtc,
    "nvjitlink": nvjitlink,
    "npp": npp,
    "cutensor": cutensor,
    "rmm": rmm,
}

"""Single operations of a GPU, large enough to take some hundred microseconds: products, Fourier transforms, streams.

They are those of NVIDIA's samples that a paper on pools of GPUs measures (DxPU, table 8). A step only queues its work.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable

import torch

from harness import Settings, SkipWorkload, require
from torch_tools import DEVICE, first_result, healthy

__all__ = ["STEPS", "first_result", "healthy"]

PRODUCT_SIZE = 4096
# Points of all transforms together, and of one.
POINTS, TRANSFORM_POINTS = 1 << 26, 1 << 12
STREAM_NUMBERS = 1 << 27
WRITTEN_BYTES = 32 << 20
# CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, and CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE.
DMA_BUF_FD, BY_PCIE = 1, 1

Step = Callable[[], object]


def product(dtype: torch.dtype) -> Step:
    factors = [torch.randn(PRODUCT_SIZE, PRODUCT_SIZE, device=DEVICE).to(dtype) for _ in range(2)]
    result = torch.empty_like(factors[0])
    return lambda: torch.mm(*factors, out=result)


def transform(dtype: torch.dtype) -> Step:
    real = torch.randn(POINTS, 2, device=DEVICE).to(dtype)
    points = torch.view_as_complex(real).view(-1, TRANSFORM_POINTS)
    return lambda: torch.fft.fft(points)


def stream(name: str) -> Step:
    a, b, c = (torch.ones(STREAM_NUMBERS, device=DEVICE) for _ in range(3))
    total = torch.zeros((), device=DEVICE)
    steps: dict[str, Step] = {
        # PyTorch copies by the driver, which starts no kernel: the absolute values take as long.
        "copy": lambda: torch.abs(a, out=b),
        "scale": lambda: torch.mul(a, 3.0, out=b),
        "add": lambda: torch.add(a, b, out=c),
        "triad": lambda: torch.add(a, b, alpha=3.0, out=c),
        "read": lambda: torch.sum(a, dim=0, out=total),
        "write": lambda: b.fill_(1.0),
    }
    return steps[name]


def written_by_processor() -> Step:
    """Moves bytes into the GPU's memory by the processor's own writes, if the driver maps that memory for it."""
    cuda = ctypes.CDLL("libcuda.so.1")
    memory = torch.zeros(WRITTEN_BYTES + (2 << 20), dtype=torch.uint8, device=DEVICE)
    # Whole large pages only.
    offset = -memory.data_ptr() % (2 << 20)
    address = memory.data_ptr() + offset
    why = []
    for flags in (BY_PCIE, 0):
        fd = ctypes.c_int(-1)
        status = cuda.cuMemGetHandleForAddressRange(
            ctypes.byref(fd),
            ctypes.c_uint64(address),
            ctypes.c_size_t(WRITTEN_BYTES),
            ctypes.c_int(DMA_BUF_FD),
            ctypes.c_ulonglong(flags),
        )
        if status:
            why.append(f"cuMemGetHandleForAddressRange({flags}): CUDA error {status}")
            continue
        try:
            place = mmap.mmap(fd.value, WRITTEN_BYTES)
        except OSError as error:
            why.append(f"mapping its descriptor ({flags}): {error.strerror}")
            continue
        finally:
            os.close(fd.value)
        data = bytes(range(256)) * (WRITTEN_BYTES // 256)

        def step(place: mmap.mmap = place, data: bytes = data) -> None:
            place[:] = data

        step()
        torch.cuda.synchronize()
        arrived = memory[offset : offset + WRITTEN_BYTES].cpu().numpy().tobytes()
        require(arrived == data, "the GPU's memory holds other bytes than were written")
        return step
    raise SkipWorkload("the processor cannot write the GPU's memory: " + "; ".join(why))


STEPS: dict[str, Callable[[Settings], Step]] = {
    "gemm_fp16": lambda _: product(torch.float16),
    "gemm_fp32": lambda _: product(torch.float32),
    "gemm_fp64": lambda _: product(torch.float64),
    "fft_fp16": lambda _: transform(torch.float16),
    "fft_fp32": lambda _: transform(torch.float32),
    "fft_fp64": lambda _: transform(torch.float64),
    "stream_copy": lambda _: stream("copy"),
    "stream_scale": lambda _: stream("scale"),
    "stream_add": lambda _: stream("add"),
    "stream_triad": lambda _: stream("triad"),
    "stream_read": lambda _: stream("read"),
    "stream_write": lambda _: stream("write"),
    "written_by_processor": lambda _: written_by_processor(),
}

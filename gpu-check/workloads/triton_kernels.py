"""Triton kernels written by hand, against PyTorch."""

import torch
import triton
import triton.language as tl

from harness import Result, Settings, require
from torch_tools import DEVICE, digest, first_result, healthy, numbers, random, require_close

__all__ = ["WORKLOADS", "first_result", "healthy"]

BLOCK = 1024


@triton.jit
def _add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):  # noqa: ANN001, ANN202, N803 (Triton's own conventions)
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, total, mask=mask)


@triton.jit
def _softmax(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):  # noqa: ANN001, ANN202, N803
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=-float("inf"))
    shifted = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * columns + offsets, shifted / tl.sum(shifted, axis=0), mask=mask)


def triton_vector_add(settings: Settings) -> Result:
    n = 1_000_003
    x, y = random(n).to(DEVICE), random(n, seed=1).to(DEVICE)
    out = torch.empty_like(x)
    _add[(triton.cdiv(n, BLOCK),)](x, y, out, n, BLOCK=BLOCK)
    require(torch.equal(out, x + y), "the sum differs from PyTorch's")
    return Result(digest=digest(out))


def triton_softmax(settings: Settings) -> Result:
    rows, columns = 1000, 781
    x = random(rows, columns).to(DEVICE)
    out = torch.empty_like(x)
    _softmax[(rows,)](x, out, columns, BLOCK=triton.next_power_of_2(columns))
    require_close(out.cpu(), torch.softmax(x, dim=-1).cpu(), 1e-5, "softmax")
    return Result(digest=digest(out), numbers=numbers(out))


WORKLOADS = {"triton_vector_add": triton_vector_add, "triton_softmax": triton_softmax}

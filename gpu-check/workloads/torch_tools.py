"""Helpers of the PyTorch workloads."""

from __future__ import annotations

import os

import torch

from harness import digest_bytes, require

# The processor instead of the GPU, to try a workload where there is none.
DEVICE = os.environ.get("GPU_CHECK_DEVICE", "cuda")


def first_result() -> None:
    require(torch.ones(2, device=DEVICE).sum().item() == 2.0, "1 + 1 is not 2")


def healthy() -> bool:
    synchronize()
    return torch.ones(2, device=DEVICE).sum().item() == 2.0


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def digest(*tensors: torch.Tensor) -> str:
    """SHA-256 over the raw bytes, whatever the type."""
    parts = (t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy() for t in tensors)
    return digest_bytes(*(memoryview(part) for part in parts))


def numbers(tensor: torch.Tensor) -> dict[str, float]:
    """A few numbers that tell outputs apart at a glance."""
    values = tensor.detach().cpu().double()
    require(bool(torch.isfinite(values).all()), "the output is not finite, and equal nonsense proves nothing")
    return {"mean": values.mean().item(), "abs_max": values.abs().max().item(), "norm": values.norm().item()}


def require_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float, what: str) -> None:
    """Within `tolerance` of the largest magnitude expected."""
    scale = expected.abs().max().item() or 1.0
    error = (actual.double() - expected.double()).abs().max().item() / scale
    require(error <= tolerance, f"{what}: off by {error:.3g} of the largest value, {tolerance:g} is allowed")


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal random numbers on the host, the same in every process."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


def integers(bound: int, *shape: int, seed: int = 0) -> torch.Tensor:
    """Integers from 0 to bound - 1 on the host, the same in every process."""
    return torch.randint(bound, shape, generator=torch.Generator().manual_seed(seed))

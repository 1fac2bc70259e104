"""Hashes and sums of what PyTorch computes."""

from __future__ import annotations

import hashlib
import math
import os
import random
from typing import Any

import numpy as np
import torch

from outside.cases import PASS, Outcome

NUMBERS_MAX = 64
# Another device than the GPU, to try the suites where there is none.
DEVICE = os.environ.get("GPU_SUITES_DEVICE", "cuda")


class Sum:
    """Collects everything one case computes."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.numbers: list[float] = []

    def add(self, value: Any) -> None:
        """Adds tensors, and containers of them in their order; what is neither by its text."""
        if isinstance(value, torch.Tensor):
            self._tensor(value)
        elif isinstance(value, dict):
            for key in value:
                self.add(value[key])
        elif isinstance(value, list | tuple):
            self._hash.update(f"[{len(value)}]".encode())
            for one in value:
                self.add(one)
        elif isinstance(value, int | float | complex | bool | str | torch.Size | torch.dtype) or value is None:
            self._hash.update(repr(value).encode())
        else:
            self._hash.update(type(value).__name__.encode())

    def outcome(self) -> Outcome:
        return Outcome(PASS, digest=self._hash.hexdigest(), numbers=self.numbers[:NUMBERS_MAX])

    def _tensor(self, tensor: torch.Tensor) -> None:
        tensor = tensor.detach()
        self._hash.update(f"{tuple(tensor.shape) if not tensor.is_nested else 'nested'}{tensor.dtype}".encode())
        if tensor.is_nested:
            self.add(list(tensor.unbind()))
        elif tensor.layout == torch.sparse_coo:
            tensor = tensor.coalesce()
            self.add([tensor.indices(), tensor.values()])
        elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
            self.add([tensor.crow_indices(), tensor.col_indices(), tensor.values()])
        elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
            self.add([tensor.ccol_indices(), tensor.row_indices(), tensor.values()])
        elif tensor.is_quantized:
            self.add(tensor.int_repr())
        else:
            # A clone: one element is contiguous with any stride, and bytes want the stride to be 1.
            plain = tensor.resolve_conj().resolve_neg().cpu()
            self._plain(plain.clone(memory_format=torch.contiguous_format))

    def _plain(self, tensor: torch.Tensor) -> None:
        self._hash.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
        if len(self.numbers) < NUMBERS_MAX:
            self.numbers.append(_sum(tensor))


def _sum(tensor: torch.Tensor) -> float:
    """Sum of the absolute values that are numbers; NaN for a type that cannot be summed."""
    try:
        wide = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
        total = float(torch.nan_to_num(wide.abs(), nan=0.0, posinf=0.0, neginf=0.0).sum())
    except RuntimeError:
        return math.nan
    return total if math.isfinite(total) else math.nan


def seed_everything() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def be_deterministic() -> None:
    """Chooses kernels that give the same bits in every run, where there are any."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_num_threads(1)


def healthy() -> bool:
    """Tells whether the GPU still answers: after a device assertion it does not."""
    try:
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        return bool(torch.ones(1, device=DEVICE).item() == 1.0)
    except RuntimeError:
        return False

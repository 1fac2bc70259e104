"""PyTorch's optimisers with its own settings: the parameters after a few steps, one by one, for each and fused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_optimizers import optim_db

from outside import tensors
from outside.cases import Outcome
from outside.child import Suite

STEPS = 5
DEVICE = tensors.DEVICE


class OptimDb(Suite):
    """Cases `optimiser setting implementation type`."""

    def __init__(self) -> None:
        tensors.be_deterministic()
        warnings.simplefilter("ignore")
        self._infos = {info.name: info for info in optim_db}

    def cases(self) -> list[str]:
        names = []
        for name, info in self._infos.items():
            implementations = ["forloop", *info.supported_impls]
            if "foreach" in implementations:
                implementations.append("capturable")
            for index in range(len(info.optim_inputs_func(device=DEVICE))):
                names += [
                    f"{name} {index} {one} {dtype}" for one in implementations for dtype in ("float32", "bfloat16")
                ]
        return names

    def run(self, name: str) -> Outcome:
        optimiser, index, implementation, dtype = name.split(" ")
        info = self._infos[optimiser]
        settings = info.optim_inputs_func(device=DEVICE)[int(index)]
        flags = {"foreach": {"foreach": True}, "fused": {"fused": True}}.get(implementation, {"foreach": False})
        if implementation == "capturable":
            flags = {"foreach": True, "capturable": True}
        if "foreach" not in info.supported_impls:
            flags.pop("foreach", None)
        tensors.seed_everything()
        sparse = bool(getattr(info, "only_supports_sparse_grads", False))
        parameters = _parameters(getattr(torch, dtype))
        stepper = info.optim_cls(parameters, **{**settings.kwargs, **flags})
        for _ in range(STEPS):
            _step(stepper, parameters, sparse)
        collected = tensors.Sum()
        collected.add(parameters)
        collected.add([state for one in stepper.state.values() for state in one.values()])
        return collected.outcome()

    def healthy(self) -> bool:
        return tensors.healthy()


def _parameters(dtype: torch.dtype) -> list[torch.nn.Parameter]:
    shapes = ((20, 10), (10, 30), (3, 5))
    return [torch.nn.Parameter(torch.rand(shape, device=DEVICE, dtype=dtype)) for shape in shapes]


def _step(stepper: Any, parameters: list[torch.nn.Parameter], sparse: bool) -> None:
    def closure() -> torch.Tensor:
        stepper.zero_grad()
        loss = torch.stack([(p.float() ** 2).sum() + p.float().sin().sum() for p in parameters]).sum()
        loss.backward()
        for parameter in parameters:
            if sparse and parameter.grad is not None:
                parameter.grad = parameter.grad.to_sparse()
        return loss

    stepper.step(closure)


def open_suite(sources: Path) -> OptimDb:
    return OptimDb()

"""PyTorch's modules with its own inputs: forward and backward, in training and in evaluation."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_modules import module_db

from outside import tensors
from outside.cases import SKIP, Outcome
from outside.child import Suite

INPUTS_MAX = 6
DEVICE = tensors.DEVICE


class ModuleDb(Suite):
    """Cases `module type train` and `module type eval`."""

    def __init__(self) -> None:
        tensors.be_deterministic()
        warnings.simplefilter("ignore")
        self._modules = {info.name: info for info in module_db}

    def cases(self) -> list[str]:
        return [
            f"{name} {str(dtype).removeprefix('torch.')} {state}"
            for name, info in self._modules.items()
            for dtype in info.supported_dtypes(DEVICE)
            for state in ("train", "eval")
        ]

    def run(self, name: str) -> Outcome:
        module, dtype_name, state = name.split(" ")
        info, dtype = self._modules[module], getattr(torch, dtype_name)
        training, gradients = state == "train", dtype.is_floating_point or dtype.is_complex
        tensors.seed_everything()
        inputs = info.module_inputs_func(info, device=DEVICE, dtype=dtype, requires_grad=gradients, training=training)
        collected = tensors.Sum()
        count = 0
        for one in itertools.islice(inputs, INPUTS_MAX):
            if one.forward_input is not None:
                _run(info, one, dtype, training, collected)
                count += 1
        return collected.outcome() if count else Outcome(SKIP, detail="no inputs")

    def healthy(self) -> bool:
        return tensors.healthy()


def _run(info: Any, one: Any, dtype: torch.dtype, training: bool, collected: tensors.Sum) -> None:
    tensors.seed_everything()
    module = info.module_cls(*one.constructor_input.args, **one.constructor_input.kwargs)
    module = module.to(DEVICE, dtype).train(training)
    output = module(*one.forward_input.args, **one.forward_input.kwargs)
    collected.add(output)
    loss = _loss(output)
    if loss is not None:
        loss.backward()
        collected.add([parameter.grad for parameter in module.parameters()])
    collected.add(list(module.state_dict().values()))


def _loss(output: Any) -> torch.Tensor | None:
    """Sum of all outputs that have a gradient; None if there are none."""
    if isinstance(output, torch.Tensor):
        return output.abs().sum() if output.requires_grad else None
    if isinstance(output, list | tuple):
        losses = [loss for one in output if (loss := _loss(one)) is not None]
        return sum(losses[1:], losses[0]) if losses else None
    return None


def open_suite(sources: Path) -> ModuleDb:
    return ModuleDb()

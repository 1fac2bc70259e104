"""PyTorch's operators with its own sample inputs: each operator and type, forward and backward."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db

from outside import tensors
from outside.cases import SKIP, Outcome
from outside.child import Suite

SAMPLES_MAX = 6
DEVICE = tensors.DEVICE


class OpDb(Suite):
    """Cases `operator type forward` and `operator type backward`."""

    def __init__(self) -> None:
        tensors.be_deterministic()
        warnings.simplefilter("ignore")
        self._operators: dict[str, Any] = {}
        for op in op_db:
            self._operators.setdefault(op.full_name, op)

    def cases(self) -> list[str]:
        names = []
        for name, op in self._operators.items():
            types = op.supported_dtypes(DEVICE)
            names += [f"{name} {_short(dtype)} forward" for dtype in types]
            if op.supports_autograd:
                backward = op.supported_backward_dtypes(DEVICE)
                names += [f"{name} {_short(dtype)} backward" for dtype in types & backward]
        return names

    def run(self, name: str) -> Outcome:
        try:
            return self._run(name)
        except (IndexError, RuntimeError):
            # Some operators take tensors without a dimension only while they need not be deterministic.
            torch.use_deterministic_algorithms(False)
            try:
                return self._run(name)
            finally:
                tensors.be_deterministic()

    def _run(self, name: str) -> Outcome:
        operator, dtype, direction = name.split(" ")
        op, backward = self._operators[operator], direction == "backward"
        tensors.seed_everything()
        samples = op.sample_inputs(DEVICE, getattr(torch, dtype), requires_grad=backward)
        collected = tensors.Sum()
        count = 0
        for sample in itertools.islice(samples, SAMPLES_MAX):
            tensors.seed_everything()
            output = op(sample.input, *sample.args, **sample.kwargs)
            if backward:
                output = sample.output_process_fn_grad(output)
                _backward(output, sample, collected)
            collected.add(output)
            count += 1
        return collected.outcome() if count else Outcome(SKIP, detail="no samples")

    def healthy(self) -> bool:
        return tensors.healthy()


def _backward(output: Any, sample: Any, collected: tensors.Sum) -> None:
    """Adds the gradients of everything in the sample that wants one."""
    outputs = [t for t in _leaves(output) if t.requires_grad]
    inputs = [t for t in _leaves([sample.input, sample.args, sample.kwargs]) if t.requires_grad]
    if outputs and inputs:
        ones = [torch.ones_like(t) for t in outputs]
        collected.add(list(torch.autograd.grad(outputs, inputs, ones, allow_unused=True)))


def _leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [leaf for one in value for leaf in _leaves(one)]
    return []


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def open_suite(sources: Path) -> OpDb:
    return OpDb()

"""fp16 and bf16: autocast, and models in half precision.

On Hopper these matrix products go through tensor maps, clusters and launch attributes, which fp32 does not.
"""

from __future__ import annotations

from functools import partial

import torch
import transformers

from harness import Result, Settings
from torch_tools import DEVICE, digest, first_result, healthy, integers, numbers, random, require_close

__all__ = ["WORKLOADS", "first_result", "healthy"]

# Relative to the largest value of the fp32 output.
TOLERANCE = {torch.float16: 0.02, torch.bfloat16: 0.1}


def _mlp() -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        torch.nn.Linear(1024, 4096),
        torch.nn.GELU(),
        torch.nn.Linear(4096, 4096),
        torch.nn.ReLU(),
        torch.nn.Linear(4096, 256),
    )
    return layers.eval(), random(512, 1024)


def _convolutions() -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 7, stride=2, padding=3),
        torch.nn.ReLU(),
        torch.nn.Conv2d(64, 128, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(128, 128, 1),
        torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(),
    )
    return layers.eval(), random(16, 3, 128, 128)


class _Bert(torch.nn.Module):
    """The pooled output of a BERT of base width and four layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = transformers.BertModel(transformers.BertConfig(num_hidden_layers=4))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.inner(input_ids=tokens).pooler_output


def _bert() -> tuple[torch.nn.Module, torch.Tensor]:
    model = _Bert().eval()
    return model, integers(model.inner.config.vocab_size, 8, 128)


@torch.inference_mode()
def run(dtype: torch.dtype, autocast: bool, settings: Settings) -> Result:
    """Every model in `dtype`, checked against itself in fp32."""
    outputs, statistics = [], {}
    for name, build in (("mlp", _mlp), ("convolutions", _convolutions), ("bert", _bert)):
        model, host_input = build()
        model, model_input = model.to(DEVICE), host_input.to(DEVICE)
        expected = model(model_input)
        if autocast:
            with torch.autocast(DEVICE, dtype=dtype):
                actual = model(model_input)
        else:
            if model_input.is_floating_point():
                model_input = model_input.to(dtype)
            actual = model.to(dtype)(model_input)
        require_close(actual.cpu(), expected.cpu(), TOLERANCE[dtype], name)
        outputs.append(actual)
        statistics.update((f"{name}.{key}", value) for key, value in numbers(actual).items())
    # A large product by itself, in the layouts that backward passes use.
    a, b = random(2048, 1024, dtype=dtype).to(DEVICE), random(1024, 2048, seed=1, dtype=dtype).to(DEVICE)
    for name, product in (
        ("nn", a @ b),
        ("tn", a.T @ b.T),
        ("batched", torch.bmm(a.view(8, 256, 1024), b.view(8, 1024, 256))),
    ):
        outputs.append(product)
        statistics[f"product_{name}.norm"] = numbers(product)["norm"]
    return Result(digest=digest(*outputs), numbers=statistics)


WORKLOADS = {
    "autocast_float16": partial(run, torch.float16, True),
    "autocast_bfloat16": partial(run, torch.bfloat16, True),
    "model_float16": partial(run, torch.float16, False),
    "model_bfloat16": partial(run, torch.bfloat16, False),
}

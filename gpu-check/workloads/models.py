"""Models at the batch sizes that the literature on remote GPUs reports, beyond those that the check compares.

Steps only: they are timed, locally and remotely in turns, and the check holds the same code to equal results.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers

import torch_inference
import torch_training
from harness import Settings
from torch_tools import DEVICE, first_result, healthy, integers

__all__ = ["STEPS", "first_result", "healthy"]

GPT2_BATCH = 8
GPT2_TOKENS = 128

Step = Callable[[], object]


def gpt2_train_step(batch: int) -> Step:
    torch.manual_seed(0)
    config = transformers.GPT2Config()
    model = transformers.GPT2LMHeadModel(config).train().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    tokens = integers(config.vocab_size, batch, GPT2_TOKENS)

    def step() -> float:
        here = tokens.to(DEVICE)
        optimizer.zero_grad(set_to_none=True)
        loss = model(input_ids=here, labels=here).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


STEPS: dict[str, Callable[[Settings], Step]] = {
    "resnet50_infer_b64": lambda _: torch_inference.vision_step("resnet50", 64),
    "gpt2_gen32_b512": lambda _: torch_inference.gpt2_step(512),
    "resnet18_train_b1": lambda _: torch_training.resnet_step("resnet18", 1),
    "resnet50_train_b1": lambda _: torch_training.resnet_step("resnet50", 1),
    "resnet50_train_b64": lambda _: torch_training.resnet_step("resnet50", 64),
    "bert_train_b1": lambda _: torch_training.bert_step(1),
    "bert_train_b64": lambda _: torch_training.bert_step(64),
    "gpt2_train_b1": lambda _: gpt2_train_step(1),
    "gpt2_train_b8": lambda _: gpt2_train_step(GPT2_BATCH),
}

"""Inference of stock models with random weights: the input is copied in and the output copied out each time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torchvision
import transformers

from harness import Result, Settings, median_ms
from torch_tools import DEVICE, digest, first_result, healthy, integers, numbers, random

__all__ = ["STEPS", "WORKLOADS", "first_result", "healthy"]

IMAGE = (3, 224, 224)
TOKENS = 128
PROMPT_TOKENS = 16
NEW_TOKENS = 32

Step = Callable[[], torch.Tensor]


def vision_step(name: str, batch: int) -> Step:
    torch.manual_seed(0)
    model = torchvision.models.get_model(name, weights=None).eval().to(DEVICE)
    images = random(batch, *IMAGE)

    @torch.inference_mode()
    def step() -> torch.Tensor:
        return model(images.to(DEVICE)).cpu()

    return step


def bert_step(batch: int) -> Step:
    """Copies out the pooled output: that of all tokens would be a measurement of the copy at batch 64."""
    torch.manual_seed(0)
    config = transformers.BertConfig()
    model = transformers.BertModel(config).eval().to(DEVICE)
    tokens = integers(config.vocab_size, batch, TOKENS)

    @torch.inference_mode()
    def step() -> torch.Tensor:
        return model(input_ids=tokens.to(DEVICE)).pooler_output.cpu()

    return step


def gpt2_step(batch: int = 1) -> Step:
    """Greedy generation, a token at a time, as `generate` does it."""
    torch.manual_seed(0)
    config = transformers.GPT2Config()
    model = transformers.GPT2LMHeadModel(config).eval().to(DEVICE)
    # Random weights may well choose the end token; the length is fixed.
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    prompt = integers(config.vocab_size, batch, PROMPT_TOKENS)

    @torch.inference_mode()
    def step() -> torch.Tensor:
        tokens = prompt.to(DEVICE)
        mask = torch.ones_like(tokens)
        return model.generate(tokens, attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=False).cpu()

    return step


STEPS: dict[str, Callable[[Settings], Step]] = {
    "resnet18_infer_b1": lambda _: vision_step("resnet18", 1),
    "resnet18_infer_b64": lambda _: vision_step("resnet18", 64),
    "resnet50_infer_b1": lambda _: vision_step("resnet50", 1),
    "bert_infer_b1": lambda _: bert_step(1),
    "bert_infer_b64": lambda _: bert_step(64),
    "gpt2_gen32": lambda _: gpt2_step(),
}


def infer(name: str, settings: Settings) -> Result:
    step = STEPS[name](settings)
    first, second = step(), step()
    iterations = settings.iterations(full=50, quick=10) if name != "gpt2_gen32" else settings.iterations(20, 4)
    return Result(
        digest=digest(first),
        numbers=numbers(first),
        reproducible=bool(torch.equal(first, second)),
        timings_ms={"iteration": median_ms(step, iterations)},
    )


WORKLOADS = {name: partial(infer, name) for name in STEPS}

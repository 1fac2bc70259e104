"""Training of stock models with random weights: 20 steps whose losses are compared, then the time of a step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torchvision
import transformers

from harness import Result, Settings, median_ms, require
from torch_tools import DEVICE, first_result, healthy, integers, random

__all__ = ["STEPS", "WORKLOADS", "first_result", "healthy"]

LOSS_STEPS = 20
BATCHES = 2
RESNET_BATCH = 64
RESNET_CLASSES = 1000
BERT_BATCH = 16
BERT_TOKENS = 128

Step = Callable[[], float]


def resnet_step(name: str = "resnet18", batch: int = RESNET_BATCH) -> Step:
    torch.manual_seed(0)
    model = torchvision.models.get_model(name, weights=None).train().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batches = [(random(batch, 3, 224, 224, seed=i), integers(RESNET_CLASSES, batch, seed=i)) for i in range(BATCHES)]
    count = 0

    def step() -> float:
        nonlocal count
        images, labels = batches[count % BATCHES]
        count += 1
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(images.to(DEVICE)), labels.to(DEVICE))
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def bert_step(batch: int = BERT_BATCH) -> Step:
    torch.manual_seed(0)
    config = transformers.BertConfig(num_labels=2)
    model = transformers.BertForSequenceClassification(config).train().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    batches = [
        (integers(config.vocab_size, batch, BERT_TOKENS, seed=i), integers(2, batch, seed=i)) for i in range(BATCHES)
    ]
    count = 0

    def step() -> float:
        nonlocal count
        tokens, labels = batches[count % BATCHES]
        count += 1
        optimizer.zero_grad(set_to_none=True)
        loss = model(input_ids=tokens.to(DEVICE), labels=labels.to(DEVICE)).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


STEPS: dict[str, Callable[[Settings], Step]] = {
    "resnet18_train_b64": lambda _: resnet_step(),
    "bert_train_b16": lambda _: bert_step(),
}


def train(name: str, settings: Settings) -> Result:
    losses, again = _losses(name, settings), _losses(name, settings)
    require(all(loss == loss and abs(loss) < 1e6 for loss in losses), f"the training diverged: {losses}")
    require(len(set(losses)) > LOSS_STEPS // 2, f"the losses do not change: {losses}")
    return Result(
        losses=losses,
        reproducible=losses == again,
        timings_ms={"step": median_ms(STEPS[name](settings), settings.iterations(full=40, quick=8), warm_up=5)},
    )


def _losses(name: str, settings: Settings) -> list[float]:
    """Trains a fresh model with fresh seeds. Deterministic algorithms only, because otherwise sums
    differ from run to run."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        step = STEPS[name](settings)
        return [step() for _ in range(LOSS_STEPS)]
    finally:
        torch.use_deterministic_algorithms(False)


WORKLOADS = {name: partial(train, name) for name in STEPS}

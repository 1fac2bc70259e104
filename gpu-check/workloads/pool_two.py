"""Two GPUs of one program: copies between them over NVLink and by way of the host, and training with summed gradients.

One process has both, so that it takes turns as any other does.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers
from torch import Tensor
from torch.cuda import nccl

from harness import Settings, SkipWorkload
from torch_tools import first_result, healthy, integers

__all__ = ["STEPS", "first_result", "healthy"]

COPIED_BYTES = 256 << 20
# A copy by way of the host moves in pieces, so that both of its halves run at the same time.
PIECE_BYTES = 4 << 20
BATCH, TOKENS = 64, 128

Step = Callable[[], object]


def _devices(count: int) -> list[torch.device]:
    if torch.cuda.device_count() < count:
        raise SkipWorkload("one GPU only")
    return [torch.device("cuda", number) for number in range(count)]


def _wait(devices: list[torch.device]) -> None:
    for device in devices:
        torch.cuda.synchronize(device)


def peer_copy() -> Step:
    devices = _devices(2)
    source, target = (torch.zeros(COPIED_BYTES, dtype=torch.uint8, device=device) for device in devices)

    def step() -> None:
        target.copy_(source, non_blocking=True)
        _wait(devices)

    return step


def host_copy() -> Step:
    devices = _devices(2)
    source, target = (torch.zeros(COPIED_BYTES, dtype=torch.uint8, device=device) for device in devices)
    host = torch.zeros(COPIED_BYTES, dtype=torch.uint8).pin_memory()
    pieces = list(zip(*(whole.split(PIECE_BYTES) for whole in (source, host, target)), strict=True))
    out, into = (torch.cuda.Stream(device) for device in devices)
    events = [torch.cuda.Event() for _ in pieces]

    def step() -> None:
        for (here, between, there), event in zip(pieces, events, strict=True):
            with torch.cuda.stream(out):
                between.copy_(here, non_blocking=True)
                event.record(out)
            with torch.cuda.stream(into):
                into.wait_event(event)
                there.copy_(between, non_blocking=True)
        _wait(devices)

    return step


def bert(gpus: int) -> Step:
    devices = _devices(gpus)
    config = transformers.BertConfig(num_labels=2)
    replicas = []
    for device in devices:
        torch.manual_seed(0)
        model = transformers.BertForSequenceClassification(config).train().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
        tokens = integers(config.vocab_size, BATCH, TOKENS, seed=device.index)
        replicas.append((device, model, optimizer, tokens, integers(2, BATCH, seed=device.index)))

    def step() -> float:
        losses = []
        for device, model, optimizer, tokens, labels in replicas:
            with torch.cuda.device(device):
                optimizer.zero_grad(set_to_none=True)
                loss = model(input_ids=tokens.to(device), labels=labels.to(device)).loss
                loss.backward()
                losses.append(loss.detach())
        if gpus > 1:
            _sum([_gradients(model) for _, model, *_ in replicas])
        for device, _, optimizer, *_ in replicas:
            with torch.cuda.device(device):
                optimizer.step()
        return sum(loss.item() for loss in losses)

    return step


def _gradients(model: torch.nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def _sum(gradients: list[list[Tensor]]) -> None:
    """Sums in one piece, as trainings do that gather their gradients."""
    flat = [torch.cat([gradient.flatten() for gradient in of_one]) for of_one in gradients]
    nccl.all_reduce(flat)
    for of_one, total in zip(gradients, flat, strict=True):
        parts = total.split([gradient.numel() for gradient in of_one])
        for gradient, part in zip(of_one, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


STEPS: dict[str, Callable[[Settings], Step]] = {
    "peer_copy": lambda _: peer_copy(),
    "host_copy": lambda _: host_copy(),
    "bert_one": lambda _: bert(1),
    "bert_two": lambda _: bert(2),
}

"""Models of a paper on pools of GPUs (DxPU, tables 9 to 11): ResNet-50, a detector and a recommender.

Random weights. Images lie on the GPU already (the paper's synthetic ones), or come from the host one step ahead;
parameters lie on the GPU, or on the host and are copied in each step; torch.compile stands for XLA.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cache
from itertools import pairwise

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional

from harness import Settings
from pool_kinds import CELLS, DETECTOR_BATCHES, RECOMMENDER_BATCHES, Kind
from torch_tools import DEVICE, first_result, healthy, integers, random

__all__ = ["STEPS", "first_result", "healthy"]

IMAGE = (3, 224, 224)
CLASSES = 1000
# The detector: SSD320 is a ResNet-50 with a feature pyramid, as this one; objects in each image.
DETECTOR_IMAGE, DETECTOR_CLASSES, OBJECTS = 320, 81, 7
# The recommender: MovieLens 20M, and the sizes of NVIDIA's NCF.
USERS, ITEMS, FACTORS, LAYERS = 138_493, 26_744, 64, (256, 256, 128, 64)

Step = Callable[[], object]
Network = Callable[[Tensor], Tensor]


class Images:
    """Images and labels on the GPU; those from the host are copied one step ahead, beside the step's work."""

    def __init__(self, kind: Kind) -> None:
        batches = 2 if kind.from_host else 1
        self.host = [
            (random(kind.batch, *IMAGE, seed=n), integers(CLASSES, kind.batch, seed=n)) for n in range(batches)
        ]
        if kind.from_host and DEVICE == "cuda":
            self.host = [(images.pin_memory(), labels.pin_memory()) for images, labels in self.host]
        self.here = [(images.to(DEVICE), labels.to(DEVICE)) for images, labels in self.host]
        self.stream = torch.cuda.Stream() if kind.from_host and DEVICE == "cuda" else None
        self.count = 0

    def next(self) -> tuple[Tensor, Tensor]:
        current = self.here[self.count % len(self.here)]
        self.count += 1
        if len(self.here) > 1:
            self._copy_ahead(self.count % len(self.here))
        return current

    def _copy_ahead(self, number: int) -> None:
        if self.stream is not None:
            # The copy for this step has ended, and nobody reads the other buffer any more.
            torch.cuda.current_stream().wait_stream(self.stream)
            self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream) if self.stream is not None else contextlib.nullcontext():
            for target, source in zip(self.here[number], self.host[number], strict=True):
                target.copy_(source, non_blocking=True)


class Parameters:
    """Parameters that lie on the host: each step brings them in, and gradients out."""

    def __init__(self, model: nn.Module) -> None:
        self.there = list(model.parameters())
        self.here = [self._pinned(parameter) for parameter in self.there]
        self.gradients = [self._pinned(parameter) for parameter in self.there]
        for parameter, gradient in zip(self.here, self.gradients, strict=True):
            parameter.grad = gradient
        self.optimizer = torch.optim.SGD(self.here, lr=0.01, momentum=0.9, foreach=True)

    @torch.no_grad()
    def bring_in(self) -> None:
        for target, source in zip(self.there, self.here, strict=True):
            target.copy_(source, non_blocking=True)

    @torch.no_grad()
    def update(self) -> None:
        for target, source in zip(self.gradients, self.there, strict=True):
            assert source.grad is not None
            target.copy_(source.grad, non_blocking=True)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        self.optimizer.step()

    @staticmethod
    def _pinned(parameter: Tensor) -> Tensor:
        copy = parameter.detach().to("cpu", copy=True)
        return copy.pin_memory() if DEVICE == "cuda" else copy


def _network(is_training: bool) -> nn.Module:
    torch.manual_seed(0)
    return torchvision.models.resnet50(weights=None).train(is_training).to(DEVICE)


@cache
def _compiled(is_training: bool) -> tuple[nn.Module, Network]:
    """Compiled once for all batch sizes, and kept by the process."""
    model = _network(is_training)
    compiled = torch.compile(model)

    def run(images: Tensor) -> Tensor:
        torch._dynamo.maybe_mark_dynamic(images, 0)
        return compiled(images)

    return model, run


def resnet50(kind: Kind) -> Step:
    if kind.is_compiled:
        model, network = _compiled(kind.is_training)
    else:
        model = network = _network(kind.is_training)
    torch.backends.cudnn.allow_tf32 = not kind.is_exact
    images = Images(kind)
    on_host = Parameters(model) if kind.parameters_on_host else None
    if not kind.is_training:
        return _inference(network, images, on_host)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> float:
        if on_host is not None:
            on_host.bring_in()
        optimizer.zero_grad(set_to_none=True)
        data, labels = images.next()
        loss = functional.cross_entropy(network(data), labels)
        loss.backward()
        if on_host is not None:
            on_host.update()
        else:
            optimizer.step()
        return loss.item()

    return step


def _inference(network: Network, images: Images, on_host: Parameters | None) -> Step:
    @torch.no_grad()
    def step() -> Tensor:
        if on_host is not None:
            on_host.bring_in()
        return network(images.next()[0]).argmax(-1).cpu()

    return step


def detector(batch: int) -> Step:
    torch.manual_seed(0)
    model = torchvision.models.detection.retinanet_resnet50_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=DETECTOR_CLASSES,
        min_size=DETECTOR_IMAGE,
        max_size=DETECTOR_IMAGE,
    )
    model = model.train().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    images = [random(3, DETECTOR_IMAGE, DETECTOR_IMAGE, seed=n).to(DEVICE) for n in range(batch)]
    targets = []
    for number in range(batch):
        corners = integers(DETECTOR_IMAGE // 2, OBJECTS, 2, seed=number).float()
        sizes = 8 + integers(DETECTOR_IMAGE // 2 - 8, OBJECTS, 2, seed=number + batch).float()
        boxes = torch.cat([corners, corners + sizes], 1).to(DEVICE)
        labels = 1 + integers(DETECTOR_CLASSES - 1, OBJECTS, seed=number)
        targets.append({"boxes": boxes, "labels": labels.to(DEVICE)})

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = sum(model(images, targets).values())
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


class Recommender(nn.Module):
    """Neural collaborative filtering: a product of factors beside a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.factors = nn.ModuleList(nn.Embedding(rows, FACTORS) for rows in (USERS, ITEMS))
        self.features = nn.ModuleList(nn.Embedding(rows, LAYERS[0] // 2) for rows in (USERS, ITEMS))
        layers: list[nn.Module] = []
        for width, next_width in pairwise(LAYERS):
            layers += [nn.Linear(width, next_width), nn.ReLU()]
        self.perceptron = nn.Sequential(*layers)
        self.head = nn.Linear(FACTORS + LAYERS[-1], 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        product = self.factors[0](users) * self.factors[1](items)
        features = self.perceptron(torch.cat([self.features[0](users), self.features[1](items)], 1))
        return self.head(torch.cat([product, features], 1)).squeeze(1)


def recommender(batch: int) -> Step:
    """Trains on pairs that are on the GPU already, as NVIDIA's does."""
    torch.manual_seed(0)
    model = Recommender().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    users, items = integers(USERS, batch).to(DEVICE), integers(ITEMS, batch, seed=1).to(DEVICE)
    labels = integers(2, batch, seed=2).float().to(DEVICE)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = functional.binary_cross_entropy_with_logits(model(users, items), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


STEPS: dict[str, Callable[[Settings], Step]] = {
    **{name: (lambda _, kind=kind: resnet50(kind)) for name, kind in CELLS.items()},
    **{f"ssd_b{batch}": (lambda _, batch=batch: detector(batch)) for batch in DETECTOR_BATCHES},
    **{f"ncf_b{batch}": (lambda _, batch=batch: recommender(batch)) for batch in RECOMMENDER_BATCHES},
}

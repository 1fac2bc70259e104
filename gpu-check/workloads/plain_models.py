"""Programs that the network model is held against, written with PyTorch alone. Random weights and inputs.

They differ in how they wait: once a step, several times, for copies of many sizes, with a GPU that is busy or idle.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness import Settings
from torch_tools import DEVICE, first_result, healthy, integers, random

__all__ = ["STEPS", "first_result", "healthy"]

IMAGE = (3, 224, 224)
CLASSES = 1000

Step = Callable[[], object]


class Block(nn.Module):
    """Two convolutions and a shortcut, as in ResNet-18 and ResNet-34."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.second_norm(self.second(inner)) + self.shortcut(x))


def resnet(*depths: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = 64
    for stage, depth in enumerate(depths):
        outputs = 64 << stage
        for number in range(depth):
            layers.append(Block(inputs, outputs, 2 if stage > 0 and number == 0 else 1))
            inputs = outputs
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES)]
    return nn.Sequential(*layers)


class VisionTransformer(nn.Module):
    """ViT-B/16."""

    def __init__(self, width: int = 768, depth: int = 12, heads: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 197, width))
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


class EncoderLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class LlamaLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ParameterList(nn.Parameter(torch.ones(width)) for _ in range(2))
        self.projections = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate = nn.Linear(width, 4 * width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        batch, length, width = x.shape
        normed = _rms(x, self.norms[0])
        parts = [p(normed).view(batch, length, self.heads, -1).transpose(1, 2) for p in self.projections[:3]]
        query, key = (_rotated(part, cosine, sine) for part in parts[:2])
        attended = functional.scaled_dot_product_attention(query, key, parts[2], is_causal=True)
        x = x + self.projections[3](attended.transpose(1, 2).reshape(batch, length, width))
        normed = _rms(x, self.norms[1])
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


def _rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], -1)


def images_in(model: nn.Module, batch: int) -> Step:
    """Copies images in from pageable memory, and the result out."""
    model = model.eval().to(DEVICE)
    images = random(batch, *IMAGE)

    @torch.inference_mode()
    def step() -> Tensor:
        return model(images.to(DEVICE)).cpu()

    return step


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, data: Tensor, labels: Tensor) -> Step:
    """A step of training on a batch that is copied in from pageable memory; its loss is read back."""

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(model(data.to(DEVICE)), labels.to(DEVICE))
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def image_training(model: nn.Module, batch: int) -> Step:
    model = model.train().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = random(batch, *IMAGE), integers(CLASSES, batch)
    return trained(model, optimizer, images, labels)


def linear_items(layers: int, every: int) -> Step:
    """Small layers, with a number read back after every few."""
    model = nn.ModuleList(nn.Linear(512, 512) for _ in range(layers)).to(DEVICE)
    data = random(64, 512).to(DEVICE)

    @torch.inference_mode()
    def step() -> float:
        x, total = data, 0.0
        for number, layer in enumerate(model, 1):
            x = functional.relu(layer(x))
            if number % every == 0:
                total += x.mean().item()
        return total

    return step


def llama_forward(batch: int, length: int, depth: int = 8, width: int = 1024, heads: int = 16) -> Step:
    layers = nn.ModuleList(LlamaLayer(width, heads) for _ in range(depth)).eval().to(DEVICE).bfloat16()
    words = nn.Embedding(32_000, width).to(DEVICE).bfloat16()
    tokens = integers(32_000, batch, length)
    angles = torch.outer(torch.arange(length), 10_000 ** -torch.linspace(0, 1, width // heads // 2))
    cosine, sine = (f(angles).to(DEVICE).bfloat16() for f in (torch.cos, torch.sin))

    @torch.inference_mode()
    def step() -> Tensor:
        x = words(tokens.to(DEVICE))
        for layer in layers:
            x = layer(x, cosine, sine)
        return (x[:, -1] @ words.weight.T).argmax(-1).cpu()

    return step


def sequence_training(model: nn.Module, batch: int, length: int, width: int) -> Step:
    """A recurrent network, clipped by the gradients' norm, which is read back."""
    model = model.train().to(DEVICE)
    head = nn.Linear(width, 32).to(DEVICE)
    weights = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=1e-3)
    data, labels = random(batch, length, width), integers(32, batch)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        hidden = model(data.to(DEVICE))[0][:, -1]
        loss = functional.cross_entropy(head(hidden), labels.to(DEVICE))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(weights, 1.0).item()
        optimizer.step()
        return loss.item() + norm

    return step


def perceptron_training(batch: int, width: int, depth: int) -> Step:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(width, 10)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data, labels = random(batch, width), integers(10, batch)
    return trained(model, optimizer, data, labels)


def decoding(tokens: int, depth: int, width: int, heads: int) -> Step:
    """Encodes a growing prompt again for every token, and reads each token back."""
    layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(depth)).eval().to(DEVICE)
    words = nn.Embedding(8_000, width).to(DEVICE)
    prompt = integers(8_000, 1, 16).tolist()[0]

    @torch.inference_mode()
    def step() -> list[int]:
        said = list(prompt)
        for _ in range(tokens):
            x = words(torch.tensor([said]).to(DEVICE))
            for layer in layers:
                x = layer(x)
            said.append(int((x[0, -1] @ words.weight.T).argmax().item()))
        return said

    return step


def autoencoder_training(batch: int, size: int) -> Step:
    """Convolutions down and up again over pinned images, copied while nothing waits for them."""
    down = [nn.Conv2d(3, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 4, 2, 1), nn.ReLU()]
    up = [nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(32, 3, 4, 2, 1)]
    model = nn.Sequential(*down, *up).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    images = random(batch, 3, size, size).pin_memory()

    def step() -> float:
        here = images.to(DEVICE, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        loss = functional.mse_loss(model(here), here)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def matrices(count: int, size: int) -> Step:
    """A GPU that is always busy: large products, and one number read back."""
    factors = [random(size, size, seed=n).to(DEVICE) for n in range(2)]

    @torch.inference_mode()
    def step() -> float:
        x = factors[0]
        for _ in range(count):
            x = (x @ factors[1]) / size**0.5
        return x.sum().item()

    return step


def power_iteration(steps: int, size: int) -> Step:
    """Small products; every step is judged by a number on the host."""
    matrix, start = random(size, size).to(DEVICE), torch.ones(size, 1, device=DEVICE)

    @torch.inference_mode()
    def step() -> float:
        x, last = start, 0.0
        for _ in range(steps):
            x = matrix @ x
            norm = x.norm().item()
            x, last = x / norm, norm
        return last

    return step


def table_lookup(batch: int, tables: int, rows: int, width: int) -> Step:
    """A recommender: indices come in for many tables, scores go out."""
    bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables)).to(DEVICE)
    top = nn.Sequential(nn.Linear(tables * width, 256), nn.ReLU(), nn.Linear(256, 1)).to(DEVICE)
    indices = [integers(rows, batch, 8, seed=n) for n in range(tables)]

    @torch.inference_mode()
    def step() -> Tensor:
        found = [bag(index.to(DEVICE)) for bag, index in zip(bags, indices, strict=True)]
        return torch.sigmoid(top(torch.cat(found, 1))).cpu()

    return step


def _seeded(make: Callable[[], Step]) -> Callable[[Settings], Step]:
    def build(_: Settings) -> Step:
        torch.manual_seed(0)
        return make()

    return build


STEPS: dict[str, Callable[[Settings], Step]] = {
    "vit_b1": _seeded(lambda: images_in(VisionTransformer(), 1)),
    "linear_items": _seeded(lambda: linear_items(20, 5)),
    "resnet34_train_b32": _seeded(lambda: image_training(resnet(3, 4, 6, 3), 32)),
    "llama_forward": _seeded(lambda: llama_forward(4, 256)),
    "resnet18_b64": _seeded(lambda: images_in(resnet(2, 2, 2, 2), 64)),
    "perceptron_train": _seeded(lambda: perceptron_training(256, 1024, 6)),
    "decode_16": _seeded(lambda: decoding(16, 4, 512, 8)),
    "lstm_train": _seeded(lambda: sequence_training(nn.LSTM(128, 128, 2, batch_first=True), 32, 64, 128)),
    "gru_train": _seeded(lambda: sequence_training(nn.GRU(256, 256, 1, batch_first=True), 16, 32, 256)),
    "autoencoder_train": _seeded(lambda: autoencoder_training(32, 128)),
    "matrices": _seeded(lambda: matrices(20, 4096)),
    "power_iteration": _seeded(lambda: power_iteration(10, 1024)),
    "table_lookup": _seeded(lambda: table_lookup(256, 26, 10_000, 64)),
    "vit_b16": _seeded(lambda: images_in(VisionTransformer(), 16)),
    "resnet34_b1": _seeded(lambda: images_in(resnet(3, 4, 6, 3), 1)),
    "resnet18_train_b8": _seeded(lambda: image_training(resnet(2, 2, 2, 2), 8)),
    "llama_one": _seeded(lambda: llama_forward(1, 64)),
}

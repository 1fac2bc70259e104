"""Ten programs of other people's models, chosen and written down before any of them was recorded: the network model is
held against them after it was done. Random weights and inputs."""

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


def vision(name: str) -> nn.Module:
    import torchvision

    return torchvision.models.get_model(name, weights=None)


def seen(model: nn.Module, batch: int) -> Step:
    """Images come in from pageable memory, the answer goes out."""
    model = model.eval().to(DEVICE)
    images = random(batch, *IMAGE)

    @torch.inference_mode()
    def step() -> Tensor:
        return model(images.to(DEVICE)).cpu()

    return step


def trained(model: nn.Module, batch: int) -> Step:
    model = model.train().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = random(batch, *IMAGE), integers(CLASSES, batch)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(model(images.to(DEVICE)), labels.to(DEVICE))
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def segmented(batch: int) -> Step:
    import torchvision

    model = torchvision.models.segmentation.fcn_resnet50(weights=None, weights_backbone=None).eval().to(DEVICE)
    images = random(batch, *IMAGE)

    @torch.inference_mode()
    def step() -> Tensor:
        return model(images.to(DEVICE))["out"].argmax(1).to(torch.uint8).cpu()

    return step


def distilbert_training(batch: int, length: int) -> Step:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    model = DistilBertForSequenceClassification(DistilBertConfig()).train().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    tokens, labels = integers(30_000, batch, length), integers(2, batch)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = model(input_ids=tokens.to(DEVICE), labels=labels.to(DEVICE)).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def t5(batch: int, length: int) -> Step:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(decoder_start_token_id=0, pad_token_id=0)
    model = T5ForConditionalGeneration(config).eval().to(DEVICE)
    tokens, labels = integers(32_000, batch, length), integers(32_000, batch, 32)

    @torch.inference_mode()
    def step() -> float:
        return model(input_ids=tokens.to(DEVICE), labels=labels.to(DEVICE)).loss.item()

    return step


def whisper(words: int) -> Step:
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig()
    model = WhisperModel(config).eval().to(DEVICE)
    sound, tokens = random(1, config.num_mel_bins, 3000), integers(50_000, 1, words)

    @torch.inference_mode()
    def step() -> Tensor:
        found = model(input_features=sound.to(DEVICE), decoder_input_ids=tokens.to(DEVICE))
        return found.last_hidden_state[:, -1].cpu()

    return step


def clip(batch: int) -> Step:
    from transformers import CLIPConfig, CLIPModel

    model = CLIPModel(CLIPConfig()).eval().to(DEVICE)
    images, tokens = random(batch, *IMAGE), integers(49_000, batch, 77)

    @torch.inference_mode()
    def step() -> Tensor:
        found = model(input_ids=tokens.to(DEVICE), pixel_values=images.to(DEVICE))
        return found.logits_per_image.cpu()

    return step


def graph_network(nodes: int, edges: int, width: int) -> Step:
    from torch_geometric.nn import GCNConv

    layers = nn.ModuleList(GCNConv(width, width) for _ in range(3)).to(DEVICE)
    optimizer = torch.optim.Adam(layers.parameters(), lr=1e-3)
    data, labels = random(nodes, width).to(DEVICE), integers(width, nodes).to(DEVICE)
    pairs = integers(nodes, 2, edges).to(DEVICE)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        x = data
        for layer in layers:
            x = functional.relu(layer(x, pairs))
        loss = functional.cross_entropy(x, labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def convnext() -> nn.Module:
    import timm

    return timm.create_model("convnext_tiny", pretrained=False)


def _seeded(make: Callable[[], Step]) -> Callable[[Settings], Step]:
    def build(_: Settings) -> Step:
        torch.manual_seed(0)
        return make()

    return build


STEPS: dict[str, Callable[[Settings], Step]] = {
    "mobilenet_b1": _seeded(lambda: seen(vision("mobilenet_v3_large"), 1)),
    "densenet_b16": _seeded(lambda: seen(vision("densenet121"), 16)),
    "efficientnet_train_b16": _seeded(lambda: trained(vision("efficientnet_b0"), 16)),
    "segmentation_b2": _seeded(lambda: segmented(2)),
    "distilbert_train_b8": _seeded(lambda: distilbert_training(8, 128)),
    "t5_b8": _seeded(lambda: t5(8, 128)),
    "whisper_b1": _seeded(lambda: whisper(32)),
    "clip_b4": _seeded(lambda: clip(4)),
    "graph_train": _seeded(lambda: graph_network(10_000, 200_000, 128)),
    "convnext_b8": _seeded(lambda: seen(convnext(), 8)),
}

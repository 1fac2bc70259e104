"""The programs whose network `outboard require` predicts: those of the paper, and others written with PyTorch alone."""

from __future__ import annotations

import paper_cases
from turns import Case


def _cases(group: str, **titles: str) -> tuple[Case, ...]:
    return tuple(Case(name, title, "plain_models", name, group=group) for name, title in titles.items())


CASES: tuple[Case, ...] = (
    *paper_cases.CASES,
    # The model was worked on with these.
    *_cases(
        "known",
        vit_b1="ViT-B, batch 1",
        linear_items="20 linear layers, four numbers read back",
        resnet34_train_b32="ResNet-34 training, batch 32",
        llama_forward="8 layers of Llama, 4 x 256 tokens",
        resnet18_b64="ResNet-18, batch 64",
        perceptron_train="Perceptron training, batch 256",
        decode_16="16 tokens, each read back",
    ),
    # These were kept apart until the model was done.
    *_cases(
        "held out",
        lstm_train="LSTM training, two numbers read back",
        gru_train="GRU training, two numbers read back",
        autoencoder_train="Autoencoder training, pinned images",
        matrices="20 large products",
        power_iteration="Power iteration, ten numbers read back",
        table_lookup="Embeddings of 26 tables",
        vit_b16="ViT-B, batch 16",
        resnet34_b1="ResNet-34, batch 1",
        resnet18_train_b8="ResNet-18 training, batch 8",
        llama_one="8 layers of Llama, 64 tokens",
    ),
)

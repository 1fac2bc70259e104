"""The programs whose network `outboard require` predicts: those of the paper, and others written with PyTorch alone."""

from __future__ import annotations

import paper_cases
from turns import Case


def _cases(group: str, module: str = "plain_models", **titles: str) -> tuple[Case, ...]:
    return tuple(Case(name, title, module, name, group=group) for name, title in titles.items())


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
    # Chosen when the model was done, from packages that no other case uses.
    *_cases(
        "chosen",
        "chosen_models",
        mobilenet_b1="MobileNetV3, batch 1",
        densenet_b16="DenseNet-121, batch 16",
        efficientnet_train_b16="EfficientNet-B0 training, batch 16",
        segmentation_b2="FCN on ResNet-50, batch 2",
        distilbert_train_b8="DistilBERT training, batch 8",
        t5_b8="T5-small, 8 x 128 tokens",
        whisper_b1="Whisper-tiny, 32 tokens",
        clip_b4="CLIP, 4 images and texts",
        graph_train="Graph convolutions training, 10,000 nodes",
        convnext_b8="ConvNeXt-T, batch 8",
    ),
    # Chosen after the model's shares were, by somebody other than its builder.
    *_cases(
        "second choice",
        "second_choice",
        gpt2_generate_16="GPT-2 of 6 layers, 16 tokens by generate()",
        swin_b4="Swin-T, batch 4",
        faster_rcnn_b1="Faster R-CNN on MobileNetV3, batch 1",
        raft_b1="RAFT, optical flow of two images",
        wav2vec2_b2="Wav2Vec2, two seconds of sound",
        gaussian_process_train="Gaussian process training, 512 points",
        neural_ode="Neural ODE by adaptive steps, batch 256",
        graph_attention_train="Graph attention training, 5,000 nodes",
        dcgan_train_b64="DCGAN training, batch 64",
        sentences_b32="Sentence vectors, 32 x 64 tokens",
    ),
)

"""Cases measured as in "Characterizing Network Requirements for GPU API Remoting in AI Applications" (Wang et al.).

The same models as there, with random weights, at batch 1 and at a batch that fills the GPU.
"""

from __future__ import annotations

from turns import Case


def _cases(group: str, module: str, **titles: str) -> tuple[Case, ...]:
    return tuple(Case(name, title, module, name, group=group) for name, title in titles.items())


# Table 5.
CASES: tuple[Case, ...] = (
    *_cases(
        "inference",
        "torch_inference",
        resnet18_infer_b1="ResNet-18, batch 1",
        resnet18_infer_b64="ResNet-18, batch 64",
        resnet50_infer_b1="ResNet-50, batch 1",
    ),
    *_cases("inference", "models", resnet50_infer_b64="ResNet-50, batch 64"),
    *_cases(
        "inference",
        "diffusion",
        sd_unet_b1="Stable Diffusion's UNet, one image",
        sd_sample_b1="Stable Diffusion, 20 sampling steps",
    ),
    *_cases(
        "inference",
        "torch_inference",
        bert_infer_b1="BERT, batch 1",
        bert_infer_b64="BERT, batch 64",
        gpt2_gen32="GPT-2, 32 tokens, batch 1",
    ),
    *_cases("inference", "models", gpt2_gen32_b512="GPT-2, 32 tokens, batch 512"),
    *_cases("training", "models", resnet18_train_b1="ResNet-18, batch 1"),
    *_cases("training", "torch_training", resnet18_train_b64="ResNet-18, batch 64"),
    *_cases(
        "training",
        "models",
        resnet50_train_b1="ResNet-50, batch 1",
        resnet50_train_b64="ResNet-50, batch 64",
    ),
    *_cases("training", "diffusion", sd_train_b1="Stable Diffusion's UNet, batch 1"),
    *_cases(
        "training",
        "models",
        bert_train_b1="BERT, batch 1",
        bert_train_b64="BERT, batch 64",
        gpt2_train_b1="GPT-2, batch 1",
        gpt2_train_b8="GPT-2, batch 8",
    ),
)
# Figures 6 and 7 and Table 2 take one model of each kind. Every mode holds its own, so training
# Stable Diffusion, 20 GB in each of nine processes, is only in Table 5.
# in each of nine processes, is left to Table 5.
FACTORS = ("resnet18_infer_b1", "sd_unet_b1", "bert_infer_b1", "gpt2_gen32")
FACTORS_TRAINING = ("resnet18_train_b64", "bert_train_b64")

"""The cases of `speed.py`, and the targets of their ratios to local."""

from __future__ import annotations

from turns import Case

SMALL = {"shm": 0.90, "tcp": 1.10}
LARGE = {"shm": 1.00, "tcp": 1.05}
GRAPH = {"shm": 1.00, "tcp": 1.20}


def _model(group: str, module: str, targets: dict[str, float], **titles: str) -> tuple[Case, ...]:
    return tuple(Case(name, title, module, name, group=group, targets=targets) for name, title in titles.items())


def _call(name: str, title: str, targets: dict[str, float], *, module: str = "micro", **how: int) -> Case:
    return Case(name, title, module, name, group="calls" if module == "micro" else "compiled", targets=targets, **how)


CASES: tuple[Case, ...] = (
    *_model(
        "inference_small",
        "torch_inference",
        SMALL,
        resnet18_infer_b1="ResNet-18 inference, batch 1",
        resnet50_infer_b1="ResNet-50 inference, batch 1",
        bert_infer_b1="BERT inference, 1x128",
        gpt2_gen32="GPT-2, 32 tokens",
    ),
    *_model(
        "inference_large",
        "torch_inference",
        LARGE,
        resnet18_infer_b64="ResNet-18 inference, batch 64",
        bert_infer_b64="BERT inference, 64x128",
    ),
    *_model("inference_large", "models", LARGE, resnet50_infer_b64="ResNet-50 inference, batch 64"),
    *_model(
        "training",
        "torch_training",
        LARGE,
        resnet18_train_b64="ResNet-18 training step, batch 64",
        bert_train_b16="BERT training step, 16x128",
    ),
    Case(
        "graph_replay",
        "CUDA graph replay, 100 queued",
        "micro",
        "graph_replay",
        calls=100,
        wait=True,
        group="graphs",
        targets=GRAPH,
    ),
    Case(
        "graph_replay_synchronize",
        "CUDA graph replay + synchronize",
        "micro",
        "graph_replay_synchronize",
        calls=10,
        group="graphs",
        targets=GRAPH,
    ),
    Case(
        "compiled_softmax",
        "torch.compile softmax 512x512, 200 queued",
        "torch_compiled",
        "compiled_softmax",
        calls=200,
        wait=True,
        group="graphs",
        targets=GRAPH,
    ),
    Case(
        "launch",
        "launch, 1,000 queued small kernels",
        "micro",
        "launch",
        calls=1000,
        wait=True,
        group="calls",
        targets={"shm": 0.6, "tcp": 0.7},
    ),
    Case(
        "synchronize",
        "synchronize, nothing pending",
        "micro",
        "synchronize",
        calls=1000,
        group="calls",
        targets={"shm": 0.5, "tcp": 0.5},
    ),
    Case(
        "launch_synchronize",
        "kernel + synchronize",
        "micro",
        "launch_synchronize",
        calls=50,
        group="calls",
        targets={"shm": 1.05},
    ),
    Case("item", "tensor.item()", "micro", "item", calls=50, group="calls", targets={"shm": 1.1}),
    *(
        Case(name, title, "torch_more", name, group="more", targets={"shm": 1.05})
        for name, title in (
            ("cholesky_svdvals", "cholesky + svdvals of 256"),
            ("sdpa", "attention, 2x8x512x64, waited for"),
            ("two_streams", "two streams joined by events, waited for"),
            ("embedding_bag", "EmbeddingBag of 4,096 words, with its copies"),
            ("sparse_product", "sparse product of 4096, with item()"),
            ("graph_convolution", "a layer of a graph network, with item()"),
        )
    ),
    # 0.97 of local's bandwidth.
    *(
        Case(name, title, "micro", name, group="copies", targets={"shm": 1.03})
        for name, title in (
            ("h2d_pinned", "64 MB pinned to device"),
            ("d2h_pinned", "64 MB pinned to host"),
        )
    ),
    *(
        Case(name, title, "micro", name, group="copies", targets={"shm": 1.0})
        for name, title in (
            ("h2d_pageable", "64 MB pageable to device"),
            ("d2h_pageable", "64 MB pageable to host"),
        )
    ),
)
# Typical use of pinned memory before a program's main work; `--mixed` begins with it.
HISTORY = Case(
    "pinned_history", "pinned memory of 4 KiB to 64 MiB, up and down", "torch_more", "pinned_history", group="history"
)
GROUPS = tuple(dict.fromkeys(case.group for case in CASES))
# A separate process each time, so it is no case like the others; but --only can name it.
STARTUP = "startup"
# Import PyTorch, and bring a first result to the host.
STARTUP_MODULE = "torch_tools"
# Targets, in seconds more than local.
STARTUP_TARGETS_S = {"shm": 0.3, "tcp": 0.5}


def select(cases: tuple[Case, ...], only: list[str], more: tuple[str, ...] = ()) -> tuple[Case, ...]:
    """Returns the cases that names of cases or groups select; all without a name. ValueError for an
    unknown name."""
    known = {case.name for case in cases} | {case.group for case in cases} | set(more)
    unknown = sorted(set(only) - known)
    if unknown:
        raise ValueError(f"no case or group is called {', '.join(unknown)} (--dry-run lists them)")
    return tuple(case for case in cases if not only or case.name in only or case.group in only)

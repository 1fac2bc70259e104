"""Ten programs chosen by somebody other than the builder of the network model, after it was done and before any of them
was recorded: models whose host waits for numbers halfway, and libraries that no other case uses. Random weights and
inputs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness import Settings
from torch_tools import DEVICE, first_result, healthy, integers, random

__all__ = ["STEPS", "first_result", "healthy"]

Step = Callable[[], object]


def written_text(words: int) -> Step:
    """Greedy generation by transformers, which looks at each token on the host."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=6, n_head=8, n_embd=512, bos_token_id=0, eos_token_id=None, pad_token_id=0)
    model = GPT2LMHeadModel(config).eval().to(DEVICE)
    prompt = integers(50_000, 4, 32)

    @torch.inference_mode()
    def step() -> Tensor:
        tokens = prompt.to(DEVICE)
        return model.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=words, do_sample=False
        ).cpu()

    return step


def seen(model: nn.Module, *shape: int) -> Step:
    model = model.eval().to(DEVICE)
    images = random(*shape)

    @torch.inference_mode()
    def step() -> Tensor:
        return model(images.to(DEVICE)).cpu()

    return step


def swin() -> nn.Module:
    import torchvision

    return torchvision.models.swin_t(weights=None)


def detected(side: int) -> Step:
    """The number of boxes is known on the device alone, so the host waits in the model's middle."""
    import torchvision

    detection = torchvision.models.detection
    model = detection.fasterrcnn_mobilenet_v3_large_fpn(weights=None, weights_backbone=None, box_score_thresh=0.0)
    model = model.eval().to(DEVICE)
    image = random(3, side, side)

    @torch.inference_mode()
    def step() -> Tensor:
        return model([image.to(DEVICE)])[0]["scores"].cpu()

    return step


def optical_flow(height: int, width: int) -> Step:
    import torchvision

    model = torchvision.models.optical_flow.raft_small(weights=None).eval().to(DEVICE)
    pair = random(1, 3, height, width), random(1, 3, height, width, seed=1)

    @torch.inference_mode()
    def step() -> Tensor:
        return model(*(image.to(DEVICE) for image in pair), num_flow_updates=6)[-1].cpu()

    return step


def heard(samples: int) -> Step:
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    model = Wav2Vec2Model(Wav2Vec2Config()).eval().to(DEVICE)
    sound = random(2, samples)

    @torch.inference_mode()
    def step() -> Tensor:
        return model(sound.to(DEVICE)).last_hidden_state.cpu()

    return step


def gaussian_process(points: int) -> Step:
    """Training of hyperparameters by GPyTorch, which asks whether its factorisation succeeded."""
    import gpytorch

    inputs = random(points, 4).to(DEVICE)
    targets = inputs.sin().sum(1)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(DEVICE)

    class Regression(gpytorch.models.ExactGP):
        def __init__(self) -> None:
            super().__init__(inputs, targets, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.covariance = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: Tensor) -> object:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.covariance(x))

    model = Regression().to(DEVICE).train()
    likelihood.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    likelihood_of = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = -likelihood_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def differential_equation(batch: int) -> Step:
    """The solver of torchdiffeq chooses each step by an error that it reads back."""
    from torchdiffeq import odeint

    field = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64)).to(DEVICE)
    start, times = random(batch, 64), torch.linspace(0.0, 1.0, 5)

    @torch.inference_mode()
    def step() -> Tensor:
        return odeint(lambda _, y: field(y), start.to(DEVICE), times.to(DEVICE), rtol=1e-4, atol=1e-5)[-1].cpu()

    return step


def graph_attention(nodes: int, edges: int, width: int) -> Step:
    from torch_geometric.nn import GATConv

    layers = nn.ModuleList(GATConv(width, width, heads=1) for _ in range(2)).to(DEVICE)
    optimizer = torch.optim.Adam(layers.parameters(), lr=1e-3)
    data, labels, pairs = random(nodes, width), integers(width, nodes), integers(nodes, 2, edges)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        x, along = data.to(DEVICE), pairs.to(DEVICE)
        for layer in layers:
            x = functional.elu(layer(x, along))
        loss = functional.cross_entropy(x, labels.to(DEVICE))
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def adversaries(batch: int) -> Step:
    """A generator and a discriminator of DCGAN, trained in turns."""
    generator = nn.Sequential(
        *_up(100, 256, stride=1, padding=0),
        *_up(256, 128),
        *_up(128, 64),
        nn.ConvTranspose2d(64, 3, 4, 2, 1),
        nn.Tanh(),
    ).to(DEVICE)
    judge = nn.Sequential(*_down(3, 64), *_down(64, 128), *_down(128, 256), nn.Conv2d(256, 1, 4), nn.Flatten(0)).to(
        DEVICE
    )
    optimizers = [torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.999)) for model in (judge, generator)]
    real, noise = random(batch, 3, 32, 32), random(batch, 100, 1, 1)

    def step() -> float:
        made = generator(noise.to(DEVICE))
        ones = torch.ones(batch, device=DEVICE)
        optimizers[0].zero_grad(set_to_none=True)
        loss = functional.binary_cross_entropy_with_logits(judge(real.to(DEVICE)), ones)
        loss = loss + functional.binary_cross_entropy_with_logits(judge(made.detach()), torch.zeros_like(ones))
        loss.backward()
        optimizers[0].step()
        optimizers[1].zero_grad(set_to_none=True)
        fooled = functional.binary_cross_entropy_with_logits(judge(made), ones)
        fooled.backward()
        optimizers[1].step()
        return loss.item() + fooled.item()

    return step


def _up(inputs: int, outputs: int, *, stride: int = 2, padding: int = 1) -> list[nn.Module]:
    layer = nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False)
    return [layer, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]


def _down(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 4, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2)]


def sentences(batch: int, length: int) -> Step:
    """Pooled and normalised vectors of MiniLM's shape, by the layers of sentence-transformers."""
    from sentence_transformers.sentence_transformer import modules
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
    model = BertModel(config).eval().to(DEVICE)
    pooled = modules.Pooling(384, pooling_mode="mean")
    tokens, mask = integers(30_000, batch, length), torch.ones(batch, length, dtype=torch.long)

    @torch.inference_mode()
    def step() -> Tensor:
        kept = mask.to(DEVICE)
        words = model(input_ids=tokens.to(DEVICE), attention_mask=kept).last_hidden_state
        return functional.normalize(
            pooled({"token_embeddings": words, "attention_mask": kept})["sentence_embedding"]
        ).cpu()

    return step


def _seeded(make: Callable[[], Step]) -> Callable[[Settings], Step]:
    def build(_: Settings) -> Step:
        torch.manual_seed(0)
        return make()

    return build


STEPS: dict[str, Callable[[Settings], Step]] = {
    "gpt2_generate_16": _seeded(lambda: written_text(16)),
    "swin_b4": _seeded(lambda: seen(swin(), 4, 3, 224, 224)),
    "faster_rcnn_b1": _seeded(lambda: detected(320)),
    "raft_b1": _seeded(lambda: optical_flow(128, 192)),
    "wav2vec2_b2": _seeded(lambda: heard(16_000)),
    "gaussian_process_train": _seeded(lambda: gaussian_process(512)),
    "neural_ode": _seeded(lambda: differential_equation(256)),
    "graph_attention_train": _seeded(lambda: graph_attention(5_000, 60_000, 64)),
    "dcgan_train_b64": _seeded(lambda: adversaries(64)),
    "sentences_b32": _seeded(lambda: sentences(32, 64)),
}

"""Stable Diffusion 1.5's UNet with random weights, by the diffusers library: a pass, a sampling loop, a training step.

The text encoder and the image decoder are left out: the loop is where the time goes.
"""

from __future__ import annotations

from collections.abc import Callable

import diffusers
import torch

from harness import Settings
from torch_tools import DEVICE, first_result, healthy, random

__all__ = ["STEPS", "first_result", "healthy"]

# runwayml/stable-diffusion-v1-5, unet/config.json.
UNET = {
    "sample_size": 64,
    "in_channels": 4,
    "out_channels": 4,
    "layers_per_block": 2,
    "block_out_channels": (320, 640, 1280, 1280),
    "down_block_types": ("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",),
    "up_block_types": ("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3,
    "cross_attention_dim": 768,
    "attention_head_dim": 8,
}
LATENTS = (4, 64, 64)
TEXT = (77, 768)
SAMPLING_STEPS = 20
GUIDANCE = 7.5
NOISE_STEPS = 1000

Step = Callable[[], object]


def _unet() -> torch.nn.Module:
    torch.manual_seed(0)
    return diffusers.UNet2DConditionModel(**UNET)


def pass_step() -> Step:
    """One image: the UNet sees it twice, with and without the text, as guidance needs it."""
    unet = _unet().eval().to(DEVICE)
    latents, text = random(2, *LATENTS), random(2, *TEXT)

    @torch.inference_mode()
    def step() -> torch.Tensor:
        return unet(latents.to(DEVICE), 500, encoder_hidden_states=text.to(DEVICE)).sample.cpu()

    return step


def sample_step() -> Step:
    """An image's latents from noise, in `SAMPLING_STEPS` steps of DDIM."""
    unet = _unet().eval().to(DEVICE)
    scheduler = diffusers.DDIMScheduler(num_train_timesteps=NOISE_STEPS)
    scheduler.set_timesteps(SAMPLING_STEPS)
    noise, text = random(1, *LATENTS), random(2, *TEXT)

    @torch.inference_mode()
    def step() -> torch.Tensor:
        latents, here = noise.to(DEVICE), text.to(DEVICE)
        for moment in scheduler.timesteps:
            without, with_text = unet(torch.cat([latents] * 2), moment, encoder_hidden_states=here).sample.chunk(2)
            guided = without + GUIDANCE * (with_text - without)
            latents = scheduler.step(guided, moment, latents).prev_sample
        return latents.cpu()

    return step


def train_step() -> Step:
    unet = _unet().train().to(DEVICE)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-5)
    scheduler = diffusers.DDPMScheduler(num_train_timesteps=NOISE_STEPS)
    latents, noise, text = random(1, *LATENTS), random(1, *LATENTS, seed=1), random(1, *TEXT)
    moments = torch.tensor([500])

    def step() -> float:
        target = noise.to(DEVICE)
        noisy = scheduler.add_noise(latents.to(DEVICE), target, moments.to(DEVICE))
        optimizer.zero_grad(set_to_none=True)
        predicted = unet(noisy, moments.to(DEVICE), encoder_hidden_states=text.to(DEVICE)).sample
        loss = torch.nn.functional.mse_loss(predicted, target)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


STEPS: dict[str, Callable[[Settings], Step]] = {
    "sd_unet_b1": lambda _: pass_step(),
    "sd_sample_b1": lambda _: sample_step(),
    "sd_train_b1": lambda _: train_step(),
}

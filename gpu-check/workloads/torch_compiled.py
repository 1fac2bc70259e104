"""torch.compile: kernels that Inductor and Triton generate here, compared with eager execution.

Inductor picks among kernels by timing them, so bits may differ from run to run; values are compared instead.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from harness import Result, Settings, per_call_ms
from torch_tools import DEVICE, first_result, healthy, numbers, random, require_close, synchronize

__all__ = ["STEPS", "WORKLOADS", "first_result", "healthy"]

SIZE = 512
CALLS = 200


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.softmax(x * 2 + 1, dim=-1)


def compiled_softmax_step(_: Settings) -> Callable[[], torch.Tensor]:
    compiled = torch.compile(_softmax)
    x = random(SIZE, SIZE).to(DEVICE)
    return lambda: compiled(x)


def compiled_softmax(settings: Settings) -> Result:
    step = compiled_softmax_step(settings)
    output = step()
    require_close(output.cpu(), _softmax(random(SIZE, SIZE)), 1e-5, "softmax")
    return Result(numbers=numbers(output), timings_ms={"call": per_call_ms(step, synchronize, CALLS)})


def compiled_mlp(settings: Settings) -> Result:
    """Forward and backward passes of a small network, against the same in eager mode."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.LayerNorm(512), torch.nn.Linear(512, 64)
    ).to(DEVICE)
    x, target = random(128, 256).to(DEVICE), random(128, 64, seed=1).to(DEVICE)

    def loss_and_gradients(forward: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        model.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(forward(x), target)
        loss.backward()
        return loss.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]

    expected_loss, expected = loss_and_gradients(model)
    loss, gradients = loss_and_gradients(torch.compile(model))
    require_close(loss.cpu(), expected_loss.cpu(), 1e-4, "loss")
    for index, (actual, wanted) in enumerate(zip(gradients, expected, strict=True)):
        require_close(actual.cpu(), wanted.cpu(), 1e-3, f"gradient {index}")
    return Result(losses=[loss.item()], numbers={"gradient_norm": sum(g.norm().item() for g in gradients)})


STEPS = {"compiled_softmax": compiled_softmax_step}
WORKLOADS = {"compiled_softmax": compiled_softmax, "compiled_mlp": compiled_mlp}

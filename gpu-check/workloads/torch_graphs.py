"""CUDA graphs: capture and replay, and whole training steps through `make_graphed_callables`."""

from __future__ import annotations

import torch

from harness import Result, Settings, require
from torch_tools import DEVICE, digest, first_result, healthy, numbers, random, require_close

__all__ = ["WORKLOADS", "first_result", "healthy"]

REPLAYS = 20


def _mlp() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64)
    ).to(DEVICE)


def cuda_graph(settings: Settings) -> Result:
    """A captured graph gives the results of single operations for new inputs; so does one over two
    streams."""
    model = _mlp().eval()
    static_input = torch.zeros(64, 256, device=DEVICE)
    side, inner = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.inference_mode():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                model(static_input)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            static_output = model(static_input)
            # A fork and a join inside the capture.
            current = torch.cuda.current_stream()
            inner.wait_stream(current)
            with torch.cuda.stream(inner):
                static_sum = static_input.sum(dim=1)
            current.wait_stream(inner)
            static_total = static_output.sum(dim=1) + static_sum
        outputs = []
        for i in range(REPLAYS):
            new_input = random(64, 256, seed=i).to(DEVICE)
            static_input.copy_(new_input)
            graph.replay()
            outputs.append(static_total.clone())
            if i % 5 == 0:
                eager = model(new_input)
                require_close(static_output.cpu(), eager.cpu(), 1e-4, f"replay {i}")
                require_close(static_total.cpu(), (eager.sum(dim=1) + new_input.sum(dim=1)).cpu(), 1e-4, f"sums {i}")
        torch.cuda.synchronize()
        all_outputs = torch.stack(outputs)
    require(len({digest(o) for o in outputs}) == REPLAYS, "replays with different inputs gave the same output")
    return Result(digest=digest(all_outputs), numbers=numbers(all_outputs))


def graphed_callables(settings: Settings) -> Result:
    """Ten training steps with the model's forward and backward passes as graphs."""
    model = _mlp().train()
    sample = torch.zeros(64, 256, device=DEVICE)
    graphed = torch.cuda.make_graphed_callables(model, (sample,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for i in range(10):
        optimizer.zero_grad(set_to_none=True)
        target = random(64, 64, seed=100 + i % 2).to(DEVICE)
        loss = torch.nn.functional.mse_loss(graphed(random(64, 256, seed=i % 2).to(DEVICE)), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    # Two batches take turns: the loss of the first one, four steps on.
    require(losses[8] < losses[0], f"the training did not reduce the loss: {losses}")
    return Result(losses=losses)


WORKLOADS = {"cuda_graph": cuda_graph, "graphed_callables": graphed_callables}

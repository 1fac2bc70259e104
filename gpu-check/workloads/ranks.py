"""One rank of two: `ranks.py CASE RANK PORT`. Prints a line of JSON with what it computed, losses first of all.

`serve` is for `bandwidth.py`: it measures all-reduces of the sizes that it reads, a line each.
"""

from __future__ import annotations

import datetime
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as distributed
from torch import nn

STEPS = 5
TIMEOUT_S = 60


def start(rank: int, port: str) -> torch.device:
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    distributed.init_process_group(
        "nccl",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=2,
        device_id=device,
        timeout=datetime.timedelta(seconds=TIMEOUT_S),
    )
    return device


def model(width: int = 256) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))


def train(network: nn.Module, parameters: Any, device: torch.device, seed: int) -> list[float]:
    optimiser = torch.optim.AdamW(parameters, lr=1e-3)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(64, 256, generator=generator).to(device)
    target = torch.randn(64, 256, generator=generator).to(device)
    losses = []
    for _ in range(STEPS):
        loss = nn.functional.mse_loss(network(x), target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def collectives(rank: int, device: torch.device) -> dict[str, Any]:
    """Sums of integers, which are exact, by every collective."""
    sums: dict[str, Any] = {}
    for size in (1, 1000, 1 << 20):
        x = (torch.arange(size, device=device) % 997 + rank).to(torch.int64)
        both = [torch.zeros_like(x) for _ in range(2)]
        distributed.all_gather(both, x)
        total = x.clone()
        distributed.all_reduce(total)
        scattered = torch.zeros(size, dtype=torch.int64, device=device)
        distributed.reduce_scatter_tensor(scattered, torch.cat([x, x + 1]))
        swapped = torch.zeros(2 * size, dtype=torch.int64, device=device)
        distributed.all_to_all_single(swapped, torch.cat([x, x + 2]))
        sent = x.clone()
        distributed.broadcast(sent, 1)
        if rank == 0:
            distributed.send(x, 1)
            distributed.recv(total, 1)
        else:
            passed = torch.zeros_like(x)
            distributed.recv(passed, 0)
            distributed.send(passed + total, 0)
        parts = (total, scattered, swapped, sent, *both)
        sums[str(size)] = [int((part * (torch.arange(part.numel(), device=device) % 89)).sum()) for part in parts]
    distributed.barrier()
    return {"sums": sums}


def ddp(rank: int, device: torch.device) -> dict[str, Any]:
    network = nn.parallel.DistributedDataParallel(model().to(device), device_ids=[rank])
    return {"losses": train(network, network.parameters(), device, seed=1 + rank)}


def fsdp(rank: int, device: torch.device) -> dict[str, Any]:
    from torch.distributed.fsdp import fully_shard

    network = model().to(device)
    for layer in network:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(network)
    return {"losses": train(network, network.parameters(), device, seed=1 + rank)}


def tensor_parallel(rank: int, device: torch.device) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cuda", (2,))
    network = parallelize_module(model().to(device), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return {"losses": train(network, network.parameters(), device, seed=1)}


def graphs(rank: int, device: torch.device) -> dict[str, Any]:
    """An all-reduce in a CUDA graph, played more than once."""
    x = torch.full((1 << 16,), float(rank + 1), device=device)
    distributed.all_reduce(x.clone())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        distributed.all_reduce(y)
    sums = []
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        sums.append(y.sum().item())
        x += 1
    return {"sums": sums}


def serve(rank: int, device: torch.device) -> dict[str, Any]:
    """Measures the sizes and counts that it is given, one line each."""
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        size, often = map(int, line.split())
        x = torch.ones(max(1, size // 4), device=device)
        distributed.all_reduce(x)
        torch.cuda.synchronize()
        right = bool((x == 2).all())
        for _ in range(5):
            distributed.all_reduce(x)
        distributed.barrier()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(often):
            distributed.all_reduce(x)
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - begun) / often
        del x
        print(json.dumps({"size": size, "seconds": seconds, "right": right}), flush=True)
    return {}


CASES: dict[str, Callable[[int, torch.device], dict[str, Any]]] = {
    "collectives": collectives,
    "ddp": ddp,
    "fsdp": fsdp,
    "tensor_parallel": tensor_parallel,
    "graphs": graphs,
    "serve": serve,
}


def main() -> None:
    case, rank, port = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    device = start(rank, port)
    computed = CASES[case](rank, device)
    print(json.dumps(computed), flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

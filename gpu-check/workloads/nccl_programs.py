"""NCCL on one GPU: one rank, through torch.distributed, and two ranks of which one is killed."""

from __future__ import annotations

import os
import socket

import torch
import torch.distributed as distributed

import killed_ranks
from harness import Result, Settings, SkipWorkload, require
from torch_tools import DEVICE, digest, first_result, healthy, random, synchronize

__all__ = ["WORKLOADS", "first_result", "healthy"]


def _start() -> None:
    if not distributed.is_nccl_available():
        raise SkipWorkload("this PyTorch has no NCCL")
    if distributed.is_initialized():
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    distributed.init_process_group(
        "nccl", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1, device_id=torch.device(DEVICE, 0)
    )


def nccl_collectives(settings: Settings) -> Result:
    """Every collective of one rank returns its input."""
    _start()
    expected = random(1000, seed=0)
    x = expected.to(DEVICE)
    distributed.all_reduce(x)
    gathered = [torch.zeros_like(x)]
    distributed.all_gather(gathered, x)
    scattered = torch.zeros_like(x)
    distributed.reduce_scatter_tensor(scattered, x)
    exchanged = torch.zeros_like(x)
    distributed.all_to_all_single(exchanged, x)
    distributed.broadcast(x, 0)
    distributed.reduce(x, 0)
    distributed.barrier()
    synchronize()
    for name, tensor in {
        "all_reduce": x,
        "all_gather": gathered[0],
        "reduce_scatter": scattered,
        "all_to_all": exchanged,
    }.items():
        require(torch.equal(tensor.cpu(), expected), f"{name} changed the values of its only rank")
    return Result(digest=digest(x, *gathered, scattered, exchanged))


def nccl_data_parallel(settings: Settings) -> Result:
    """Training steps of DistributedDataParallel with one rank, beside the same without it."""
    _start()
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8)).to(DEVICE)
    torch.manual_seed(0)
    inner = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8)).to(DEVICE)
    parallel = torch.nn.parallel.DistributedDataParallel(inner, device_ids=[0])
    x, target = random(32, 64, seed=1).to(DEVICE), random(32, 8, seed=2).to(DEVICE)
    losses: list[list[float]] = []
    for model in (plain, parallel):
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        losses.append([])
        for _ in range(5):
            loss = torch.nn.functional.mse_loss(model(x), target)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses[-1].append(loss.item())
    require(losses[0] == losses[1], f"losses differ from those without: {losses}")
    result = Result()
    result.losses = losses[1]
    return result


def nccl_close(settings: Settings) -> Result:
    """The group ends, so that the process can."""
    _start()
    distributed.destroy_process_group()
    return Result(facts={"initialised": distributed.is_initialized()})


def nccl_rank_killed(settings: Settings) -> Result:
    """Two ranks on this GPU add up; one is killed. The other is told so, aborts, and goes on with the GPU."""
    if not distributed.is_nccl_available():
        raise SkipWorkload("this PyTorch has no NCCL")
    answer = killed_ranks.survivor(gpus=1)
    wanted = {"first": True, "told": True, "aborted": True, "computed": 499500}
    require(answer == wanted, f"the rank that is left: {answer}")
    return Result(facts=answer)


WORKLOADS = {
    "nccl_collectives": nccl_collectives,
    "nccl_data_parallel": nccl_data_parallel,
    "nccl_close": nccl_close,
    "nccl_rank_killed": nccl_rank_killed,
}

"""Two GPUs of one server: one process with both, and two processes with one each. Skipped where there is one GPU."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

import killed_ranks
from harness import CheckFailed, Result, Settings, SkipWorkload, require
from torch_tools import digest, first_result, healthy, random

__all__ = ["WORKLOADS", "first_result", "healthy"]

RANKS = Path(__file__).with_name("ranks.py")
QUESTIONS = Path(__file__).with_name("peer_questions.py")
RANKS_S_MAX = 90
# Questions whose answers are another machine's, or differ for a reason.
UNLIKE = {
    "create, host NUMA": "host memory of cuMemCreate is not served",
    "create, handle types 8": "fabric handles are not served",
    "create, handle types 9": "fabric handles are not served",
    "create, handle types 16": "an undocumented kind",
    "create pool, handle types 8": "fabric handles are not served",
    "memset far": "memory of all devices can be used without cuCtxEnablePeerAccess",
    "read far memset": "as the memset before it",
    "record another device's event": "refused by the server, and so by a later call",
    "synchronize with it": "as the record before it",
    "memset in another device's stream": "memory of all devices can be used without cuCtxEnablePeerAccess",
    "import a pool from -1": "a number that is no descriptor is INVALID_VALUE everywhere",
    "pointer attribute 11 of cuMemAlloc, value": "an address",
    "pointer attribute 11 of a mapping, value": "an address",
}


def _need_two() -> None:
    if torch.cuda.device_count() < 2:
        raise SkipWorkload("one GPU only")


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _environment() -> dict[str, str]:
    # NVLink's multicast is not what is asked here, and addresses are this machine's.
    return {**os.environ, "NCCL_NVLS_ENABLE": "0", "NCCL_SOCKET_IFNAME": "lo"}


def _start_ranks(case: str) -> list[subprocess.Popen[str]]:
    port = _free_port()
    return [
        subprocess.Popen(
            [sys.executable, str(RANKS), case, str(rank), port],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=_environment(),
        )
        for rank in range(2)
    ]


def _ranks(case: str) -> list[dict[str, Any]]:
    """Returns the output of both ranks."""
    _need_two()
    processes = _start_ranks(case)
    computed = []
    try:
        until = time.monotonic() + RANKS_S_MAX
        for rank, process in enumerate(processes):
            try:
                out, errors = process.communicate(timeout=max(1, until - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                raise CheckFailed(f"rank {rank} of {case} did not end") from error
            require(process.returncode == 0, f"rank {rank} of {case} ended with {process.returncode}: {errors[-2000:]}")
            computed.append(json.loads(out.strip().splitlines()[-1]))
    finally:
        for process in processes:
            process.kill()
    return computed


def _losses(case: str) -> Result:
    result = Result()
    for rank in _ranks(case):
        result.losses += rank["losses"]
    return result


def ranks_collectives(settings: Settings) -> Result:
    """Every collective of NCCL with two ranks, over integers of three sizes; send and receive."""
    both = _ranks("collectives")
    return Result(facts={"0": both[0]["sums"], "1": both[1]["sums"]})


def ranks_graphs(settings: Settings) -> Result:
    """An all-reduce inside a CUDA graph."""
    both = _ranks("graphs")
    require(both[0] == both[1], f"the ranks differ: {both}")
    return Result(facts=both[0])


def ranks_ddp(settings: Settings) -> Result:
    """DistributedDataParallel, a process each."""
    return _losses("ddp")


def ranks_fsdp(settings: Settings) -> Result:
    """`fully_shard`, a process each."""
    return _losses("fsdp")


def ranks_tensor_parallel(settings: Settings) -> Result:
    """Columns and rows of two layers on two GPUs, a process each."""
    return _losses("tensor_parallel")


def ranks_killed(settings: Settings) -> Result:
    """Two ranks add up, and one is killed. The other finds out as it does locally, aborts, and goes on with its GPU."""
    _need_two()
    answer = killed_ranks.survivor(gpus=2)
    require(answer["first"] and answer["aborted"] and answer["computed"] == 499500, f"the rank that is left: {answer}")
    return Result(facts=answer)


def both_gpus(settings: Settings) -> Result:
    """Copies between the GPUs of one process, events and streams of both, DataParallel."""
    _need_two()
    require(torch.cuda.can_device_access_peer(0, 1), "the GPUs of this machine do not reach each other")
    first, second = torch.device("cuda", 0), torch.device("cuda", 1)
    expected = random(1 << 22, seed=0)
    x = expected.to(first)
    y = x.to(second)
    require(torch.equal(y.cpu(), expected), "a tensor changed between the GPUs")
    y.mul_(2)
    x.copy_(y)
    require(torch.equal(x.cpu(), 2 * expected), "a tensor changed on its way back")
    # A stream of the second GPU waits for an event of the first.
    event, side = torch.cuda.Event(), torch.cuda.Stream(second)
    a, b = random(2048, 2048, seed=1).to(first), torch.zeros(2048, 2048, device=second)
    torch.cuda.synchronize(second)
    for _ in range(20):
        a = torch.tanh(a @ a)
    event.record()
    with torch.cuda.stream(side):
        side.wait_event(event)
        b.copy_(a, non_blocking=True)
        c = b.sum()
    side.synchronize()
    require(torch.equal(b.cpu(), a.cpu()), "the copy did not wait for the other GPU's event")
    torch.manual_seed(0)
    inner = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8)).to(first)
    parallel = torch.nn.DataParallel(inner, device_ids=[0, 1])
    inputs, target = random(32, 64, seed=2).to(first), random(32, 8, seed=3).to(first)
    optimiser = torch.optim.SGD(inner.parameters(), lr=0.1)
    result = Result(digest=digest(x, y.to(first), c.to(first)))
    for _ in range(5):
        loss = torch.nn.functional.mse_loss(parallel(inputs), target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        result.losses.append(loss.item())
    return result


def pipeline(settings: Settings) -> Result:
    """A model whose halves lie on two GPUs, trained by one process."""
    _need_two()
    torch.manual_seed(0)
    front = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU()).to("cuda:0")
    back = torch.nn.Linear(256, 8).to("cuda:1")
    optimiser = torch.optim.AdamW([*front.parameters(), *back.parameters()], lr=1e-2)
    x, target = random(32, 64, seed=1).to("cuda:0"), random(32, 8, seed=2).to("cuda:1")
    result = Result()
    for _ in range(5):
        loss = torch.nn.functional.mse_loss(back(front(x).to("cuda:1")), target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        result.losses.append(loss.item())
    return result


def peer_answers(settings: Settings) -> Result:
    """Returns the driver's answers about two devices, question by question."""
    _need_two()
    answers: dict[str, Any] = {}
    for group in ("devices", "contexts", "memory", "virtual", "pools"):
        done = subprocess.run(
            [sys.executable, str(QUESTIONS), group], capture_output=True, text=True, timeout=60, check=False
        )
        require(done.returncode == 0, f"{group} ended with {done.returncode}: {done.stderr[-1000:]}")
        for line in done.stdout.splitlines():
            question, answer = json.loads(line)
            if question not in UNLIKE:
                answers[question] = answer
    return Result(facts=answers)


WORKLOADS = {
    function.__name__: function
    for function in (
        both_gpus,
        pipeline,
        peer_answers,
        ranks_collectives,
        ranks_graphs,
        ranks_ddp,
        ranks_fsdp,
        ranks_tensor_parallel,
        ranks_killed,
    )
}

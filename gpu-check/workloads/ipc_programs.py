"""CUDA IPC: memory and events of one process in another, by PyTorch's multiprocessing."""

from __future__ import annotations

import queue
from typing import Any

import torch
import torch.multiprocessing as multiprocessing

from harness import CheckFailed, Result, Settings, require
from torch_tools import DEVICE, digest, first_result, healthy, random, synchronize

__all__ = ["WORKLOADS", "first_result", "healthy"]

ANSWER_S_MAX = 40


def _double(requests: Any, answers: Any) -> None:
    """The other process: doubles in place what it is sent."""
    try:
        while True:
            tensor = requests.get(timeout=ANSWER_S_MAX)
            if tensor is None:
                return
            total = tensor.double().sum().item()
            tensor.mul_(2)
            torch.cuda.synchronize()
            del tensor
            answers.put(total)
    except Exception as error:
        answers.put(f"{type(error).__name__}: {error}")


def ipc_tensors(settings: Settings) -> Result:
    """Tensors that another process reads and changes, small ones that share a block and a large one."""
    context = multiprocessing.get_context("spawn")
    requests, answers = context.Queue(), context.Queue()
    other = context.Process(target=_double, args=(requests, answers), daemon=True)
    other.start()
    outputs = []
    try:
        for seed, size in enumerate((10, 1000, 1 << 22)):
            tensor = random(size, seed=seed).to(DEVICE)
            expected = tensor.cpu()
            synchronize()
            requests.put(tensor)
            try:
                total = answers.get(timeout=ANSWER_S_MAX)
            except queue.Empty as error:
                raise CheckFailed("the other process did not answer") from error
            require(not isinstance(total, str), f"the other process: {total}")
            require(abs(total - expected.double().sum().item()) < 1e-2, f"the other process saw the sum {total}")
            require(torch.equal(tensor.cpu(), 2 * expected), "what the other process wrote is not there")
            outputs.append(tensor)
        requests.put(None)
        other.join(timeout=ANSWER_S_MAX)
    finally:
        other.kill()
    return Result(digest=digest(*outputs))


WORKLOADS = {"ipc_tensors": ipc_tensors}

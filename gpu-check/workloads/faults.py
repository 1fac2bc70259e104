"""Programs that end badly, on purpose: an assertion on the device, and a process that leaves without a word.

Each needs a process of its own.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import torch

from harness import CheckFailed, Result, Settings, emit, require
from torch_tools import DEVICE, first_result, healthy, random

__all__ = ["WORKLOADS", "first_result", "healthy"]

OS_EXIT_CODE = 7


def device_assert(settings: Settings) -> Result:
    """An index out of bounds is reported by the next wait, and by everything after; the process ends as usual."""
    values = torch.zeros(4, device=DEVICE)
    indices = torch.tensor([1, 9], device=DEVICE)
    torch.cuda.synchronize()
    # The launch itself succeeds.
    picked = values[indices]
    messages = [_error_of(torch.cuda.synchronize), _error_of(lambda: torch.ones(2, device=DEVICE).sum().item())]
    for message in messages:
        require("device-side assert" in message, f"the error is not that of an assertion: {message}")
    del picked
    return Result(facts={"errors": [message.splitlines()[0] for message in messages]})


def _error_of(action: Callable[[], object]) -> str:
    try:
        action()
    except RuntimeError as error:
        return str(error)
    raise CheckFailed("no error after an index out of bounds")


def os_exit(settings: Settings) -> Result:
    """Leaves by os._exit while another thread launches kernels and the GPU is busy: no destructor runs."""
    matrix = random(2048, 2048).to(DEVICE)

    def launch_for_ever() -> None:
        while True:
            torch.mm(matrix, matrix)

    threading.Thread(target=launch_for_ever, daemon=True).start()
    time.sleep(0.5)
    torch.cuda._sleep(1_000_000_000)
    emit("result", name="os_exit", status="pass")
    os._exit(OS_EXIT_CODE)


WORKLOADS = {"device_assert": device_assert, "os_exit": os_exit}

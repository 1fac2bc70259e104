"""Kernels and threads of the CPU that post to devices (`mlx5`, `proxy`): stand-ins of `outboard nic run`."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest

from harness import OUTBOARD, Server
from posting import free_address, is_right, run


def test_threads_of_the_cpu_post_to_adapters_by_commands_and_by_verbs(
    soak_on_cpu: Path, messages_on_cpu: Path, tmp_path: Path
) -> None:
    """The stand-ins of `outboard nic run` have the commands, rings and doorbells of a real one, and its verbs."""
    cases = [(soak_on_cpu, "1 200 5 0 1"), (soak_on_cpu, "16 20 6 0 3 host 1")]
    cases += [(messages_on_cpu, "thread 8 4 50 6 5 16 1 0 1"), (messages_on_cpu, "thread 6 6 30 6 3 33 0 0 2")]
    for program, case in cases:
        for provider in ("mlx5", "proxy"):
            is_right(run(program, case, provider, OUTBOARD, "nic", "run", "--fabric", tmp_path, "--"))
    # The same adapter without commands: queues of its verbs.
    under = [OUTBOARD, "nic", "run", "--fabric", tmp_path, "--", "env", "OUTBOARD_NIC_COMMANDS=0"]
    for program, case in cases[1:3]:
        is_right(run(program, case, "mlx5", *under))


CASES = ["soak 32 10 6 0 3", "soak 1 20 5 0 1 gpu 4", "messages warp 2 2 12 6 3 33 0 0 3"]


@pytest.mark.parametrize(
    ("provider", "case"), [*product(("mlx5", "proxy"), CASES), ("mlx5 by verbs", CASES[0]), ("mlx5 by verbs", CASES[2])]
)
def test_kernels_post_to_adapters_themselves_and_by_a_thread(
    server: Server, soak_on_gpu: Path, messages_on_gpu: Path, tmp_path: Path, provider: str, case: str
) -> None:
    """To a device of `outboard nic run`, whose doorbells kernels reach, or whose verbs a thread calls for them."""
    name, *arguments = case.split()
    provider, *by_verbs = provider.split(maxsplit=1)
    environment = ["env", "OUTBOARD_NIC_COMMANDS=0"] if by_verbs else []
    program = {"soak": soak_on_gpu, "messages": messages_on_gpu}[name]
    remote = [OUTBOARD, "run", "--gpu", server.urls["shm"], "--"]
    under = [OUTBOARD, "nic", "run", "--fabric", tmp_path, "--", *environment, *remote]
    is_right(run(program, " ".join(arguments), provider, *under))


@pytest.mark.parametrize(("provider", "memory"), [("mlx5", "gpu"), ("mlx5", "host"), ("nic", "host")])
def test_kernels_of_two_processes_put_and_signal_in_turns(
    server: Server, turns: Path, tmp_path: Path, provider: str, memory: str
) -> None:
    """What gpu-check/nic_peers.py times: by adapters that kernels ring, from and to a GPU's memory, too."""
    under = [OUTBOARD, "nic", "run", "--fabric", tmp_path, "--", OUTBOARD, "run", "--gpu", server.urls["shm"], "--"]
    address = free_address()
    with ThreadPoolExecutor(2) as both:
        ends = [both.submit(run, turns, f"{rank} {address} 1000 10 {memory}", provider, *under) for rank in (0, 1)]
        for done in (end.result() for end in ends):
            assert done.returncode == 0, done.stdout + done.stderr
            said = json.loads(done.stdout)
            assert said["right"] and said["one_way_ns"] > 0 and said["rounds"] == 10, said

"""Threads that load and store themselves (`nvlink`), where a peer's memory can be reached."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness import Server
from posting import build_on_gpu, by, is_right, run


# The programs above, whose threads load and store themselves: nothing is lost then.
@pytest.mark.parametrize("case", ["1 20 5 0 1", "64 10 5 0 1", "64 10 5 0 1 gpu"])
def test_threads_of_a_kernel_reach_a_peer_by_loads_and_stores(server: Server, soak_on_gpu: Path, case: str) -> None:
    is_right(server.run("shm", soak_on_gpu, *case.split(), env=by("nvlink")))


@pytest.mark.parametrize(
    "case", ["thread 32 32 20 6 4 16 1 0 4", "warp 2 2 12 6 3 33 0 0 3", "block 2 2 20 6 2 1 1 0 3"]
)
def test_messages_by_loads_and_stores_arrive_once(server: Server, messages_on_gpu: Path, case: str) -> None:
    is_right(server.run("shm", messages_on_gpu, *case.split(), env=by("nvlink")))


def test_blocks_of_one_gpu_put_and_signal_to_each_other(server: Server, tmp_path: Path) -> None:
    """The program that gpu-check/net_peers.py times on two GPUs; bytes at odd distances, of whole and of half units."""
    program = build_on_gpu(tmp_path, "peers.cu")
    apart = ["latency thread 8 20", "latency warp 1000 5"]
    together = ["latency warp 40 5 together", "latency block 8200 3 together"]
    for case in (*apart, *together, "bandwidth 1001 3 1", "bandwidth 1000 3 2", "rate 64 5"):
        done = server.run("shm", program, *case.split())
        assert done.returncode == 0 and json.loads(done.stdout)["right"], (case, done.stdout + done.stderr)


def test_threads_of_the_cpu_load_and_store_themselves(soak_on_cpu: Path, messages_on_cpu: Path) -> None:
    is_right(run(soak_on_cpu, "16 100 5 0 1", "nvlink"))
    is_right(run(messages_on_cpu, "thread 8 4 50 6 5 16 1 0 1", "nvlink"))

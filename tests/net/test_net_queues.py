"""Kernels on the software device, and threads of the CPU, that post RDMA operations to the adapter in software."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness import OUTBOARD, Server
from posting import free_address, is_right, run


# Threads, rounds of seven operations, logarithm of the ring's entries, losses of each million, seed. 9,400 rounds pass
# the 16 bits of an index; 64 threads fill a ring of 32 entries.
@pytest.mark.parametrize("case", ["1 1500 5 0 1", "64 150 5 0 1", "16 20 6 20000 3", "1 9400 5 0 1 host 4"])
def test_threads_of_the_cpu_share_a_queue(soak_on_cpu: Path, case: str) -> None:
    is_right(run(soak_on_cpu, case))


def test_a_ring_that_has_no_room_for_a_warp_is_refused(soak_on_cpu: Path, messages_on_cpu: Path) -> None:
    done = run(soak_on_cpu, "1 1 4 0 1")
    assert done.returncode == 1
    assert "a queue has 2^5 to 2^15 entries, not 2^4" in done.stdout
    done = run(messages_on_cpu, "thread 1 1 1 6 1 34 0 0 1")
    assert done.returncode == 1
    assert "one of 33 entries is signalled at least, so that a warp finds room; not one of 34" in done.stdout


# With gpu the queue's counters are in the device's memory; 4 is a queue for one thread at a time.
@pytest.mark.parametrize(
    "case", ["1 20 5 0 1", "64 10 5 0 1", "32 5 6 20000 3", "64 10 5 0 1 gpu", "32 5 6 20000 3 gpu", "1 20 5 0 1 gpu 4"]
)
def test_threads_of_a_kernel_share_a_queue(server: Server, soak_on_gpu: Path, case: str) -> None:
    """The adapter runs in the program's process: over shm its memory is the kernel's, too."""
    is_right(server.run("shm", soak_on_gpu, *case.split()))


# Scope, senders, receivers, rounds, logarithms of the ring's entries and of the receives, one of how many entries
# completes, 1 if completions lie in a ring, losses of each million, seed.
@pytest.mark.parametrize("case", ["thread 8 4 50 6 5 16 1 0 1", "thread 6 6 30 6 3 33 0 20000 2"])
def test_messages_of_threads_of_the_cpu_arrive_once(messages_on_cpu: Path, case: str) -> None:
    is_right(run(messages_on_cpu, case))


@pytest.mark.parametrize(
    "case", ["thread 32 32 20 6 4 16 1 20000 4", "warp 2 2 12 6 3 33 0 20000 3", "block 2 2 20 6 2 1 1 0 3"]
)
def test_messages_of_a_kernel_arrive_once(server: Server, messages_on_gpu: Path, case: str) -> None:
    """Groups of one, 32 and 64 threads; then a warp takes 70 flags."""
    is_right(server.run("shm", messages_on_gpu, *case.split()))


def test_kernels_of_two_processes_exchange_data(server: Server, two_kernels: Path, tmp_path: Path) -> None:
    """Each process has an adapter of its own; the example of docs/net.md. By verbs a device of nic run, too."""
    remote = [OUTBOARD, "run", "--gpu", server.urls["shm"], "--"]
    by_verbs = [OUTBOARD, "nic", "run", "--fabric", tmp_path, "--", "env", "OUTBOARD_NET_WAY=verbs", *remote]
    for under in (["env", "OUTBOARD_NET_WAY=shm", *remote], ["env", "OUTBOARD_NET_WAY=tcp", *remote], by_verbs):
        address = free_address()
        with ThreadPoolExecutor(2) as both:
            roles = ("listen", "connect")
            ends = [both.submit(run, two_kernels, f"{role} {address} 20", "nic", *under) for role in roles]
            for done in (end.result() for end in ends):
                assert done.returncode == 0, done.stdout + done.stderr
                assert done.stdout == "20 of 20 rounds are right\n"

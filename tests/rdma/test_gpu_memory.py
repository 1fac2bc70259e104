"""The GPU's memory as what adapters write and read: the software device's is memory that they reach by its address."""

from __future__ import annotations

import json
import shlex
import sys

import pytest
from cable import ports_of
from serving import OUTBOARD, PROGRAM_S_MAX, Serving, serving

from harness import TEST_PROGRAMS
from rdma_guest.guest import Guest

COPIES = TEST_PROGRAMS / "gpu_copies.py"
CASES = ("lengths", "order", "held", "reuse", "threads")
BY_ADDRESS = "adapters use the GPU's memory where it lies, by its address"
THROUGH_PINNED = "copies pass through pinned memory"
# Enough for a session's rings, and not for memory of the GPU's beside them.
LOCKED_KIB_MAX = 10 << 10


def copied(gpu: Serving, *cases: str, url: str | None = None) -> dict[str, int]:
    """Runs the program; returns its counters. Every byte was checked."""
    stats = gpu.client.guest.shared / "gpu.json"
    run = [OUTBOARD, "run", "--gpu", url or gpu.url, "--", "env", f"OUTBOARD_STATS={stats}", sys.executable, COPIES]
    done = gpu.client.guest.run(shlex.join(map(str, [*run, *cases])), timeout_s=PROGRAM_S_MAX)
    assert done.status == 0 and done.output.endswith("right\n"), done.output
    counts: dict[str, int] = json.loads(stats.read_text())["rdma"]
    return counts


def test_copies_keep_their_order_and_their_bytes(guest: Guest) -> None:
    with serving(*ports_of(guest)) as gpu:
        for number, case in enumerate(CASES, 1):
            counts = copied(gpu, case)
            # Most of the copies, except those of the stream that is held.
            assert counts["to_gpu_bytes"] > 100_000, (case, counts)
            assert counts["from_gpu_bytes"] > 1 << 20, (case, counts)
            # Said once a session.
            assert gpu.command.output().count(BY_ADDRESS) == number, gpu.command.output()


@pytest.mark.parametrize(
    ("options", "why"),
    [("&gpu_memory=off", ""), ("&gpu_memory=dmabuf", "the software GPU's memory is no dma-buf")],
)
def test_a_server_that_does_not_let_them(guest: Guest, options: str, why: str) -> None:
    with serving(*ports_of(guest), options) as gpu:
        counts = copied(gpu, "order")
        said = gpu.command.output()
        assert (f"{THROUGH_PINNED}, adapters do not use the GPU's: {why}" in said) == bool(why), said
    assert counts["to_gpu_bytes"] == counts["from_gpu_bytes"] == 0
    assert counts["direct_bytes"] > 1 << 20


def test_a_program_that_does_not_want_them(guest: Guest) -> None:
    with serving(*ports_of(guest)) as gpu:
        counts = copied(gpu, "order", url=f"{gpu.url}&gpu_memory=off")
    assert counts["to_gpu_bytes"] == 0


def test_memory_of_the_gpu_s_that_cannot_be_registered(guest: Guest) -> None:
    # With this capability a process may lock any amount of memory.
    limited = f'setpriv --bounding-set=-ipc_lock bash -c \'ulimit -l {LOCKED_KIB_MAX}; exec "$0" "$@"\''
    with serving(*ports_of(guest), around=limited) as gpu:
        counts = copied(gpu, "order")
        assert f"{THROUGH_PINNED}, adapters do not get at the GPU's" in gpu.command.output(), gpu.command.output()
    assert counts["to_gpu_bytes"] == counts["from_gpu_bytes"] == 0

"""Copies over RDMA: what is copied by whom, and what happens where memory cannot be registered."""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import AbstractContextManager

from cable import ports_of
from serving import OUTBOARD, PROGRAM_S_MAX, Serving, serving

from harness import TEST_PROGRAMS
from rdma_guest.guest import Guest

PINNED = TEST_PROGRAMS / "pinned_copies.py"
ROUNDS = 2
# Two memories of each kind, a copy that is waited for and one that is not, each there and back.
COPIES = 2 * 2 * ROUNDS
# More than one message's data, and the rest too short to be written by itself.
LENGTH = (2 << 20) + 5_000
REST = 5_000
# The server's memory; test_gpu_memory.py tests the other direction.
STAGED = "&gpu_memory=off"
# Enough for a session's rings, and not for memory of the program's beside them.
LOCKED_KIB_MAX = 10 << 10


def copied(gpu: Serving, name: str, around: str = "") -> dict[str, int]:
    """Runs the program; returns its counters. `around` runs the command that it is given."""
    stats = gpu.client.guest.shared / name
    run = [OUTBOARD, "run", "--gpu", gpu.url, "--", "env", f"OUTBOARD_STATS={stats}", sys.executable, PINNED]
    command = shlex.join(map(str, [*run, ROUNDS, LENGTH]))
    done = gpu.client.guest.run(f"{around} {shlex.quote(command)}" if around else command, timeout_s=PROGRAM_S_MAX)
    assert done.status == 0 and done.output.endswith("right\n"), done.output
    counts: dict[str, int] = json.loads(stats.read_text())["rdma"]
    return counts


def test_pinned_memory_is_used_where_it_lies(guest: Guest) -> None:
    with serving(*ports_of(guest), STAGED) as gpu:
        counts = copied(gpu, "pinned.json")
    pinned = 2 * COPIES
    # Written by our adapter from there, and by the server's to there; what is left over is a message of a few kB.
    assert counts["direct_bytes"] == pinned * (LENGTH - REST)
    assert counts["written_bytes"] == pinned * (LENGTH - REST)
    # Pageable memory is copied once, into memory that is registered.
    assert counts["copied_bytes"] == COPIES * (LENGTH - REST)
    # Each of the four for either way; all of it was given up.
    assert counts["registrations"] == 8
    assert counts["registered_bytes"] == 0
    # The data of the first messages comes before there is memory for it, and some a little later.
    sent = counts["direct_bytes"] + counts["copied_bytes"]
    assert sent / 2 < counts["placed_bytes"] <= sent


def test_memory_that_cannot_be_registered_goes_through_the_ring(guest: Guest) -> None:
    # With this capability a process may lock any amount of memory.
    limited = f"setpriv --bounding-set=-ipc_lock bash -c 'ulimit -l {LOCKED_KIB_MAX}; eval \"$0\"'"
    with serving(*ports_of(guest), STAGED) as gpu:
        counts = copied(gpu, "limited.json", limited)
    assert counts["registrations"] == counts["direct_bytes"] == counts["written_bytes"] == 0
    assert counts["copied_bytes"] == 3 * COPIES * (LENGTH - REST)


def test_copies_between_servers_go_straight_by_the_ports_of_their_set_up(guest: Guest) -> None:
    size = 256 << 10

    def started(network: str) -> AbstractContextManager[Serving]:
        return serving(*ports_of(guest), more=("--spare", "0", "--peer-copies", network))

    def copied_between(*gpus: Serving) -> str:
        run = [OUTBOARD, "run", "--stats", "--gpu", ",".join(gpu.url for gpu in gpus), "--"]
        command = [*run, sys.executable, TEST_PROGRAMS / "peer_copies.py", size, 1]
        done = guest.run(shlex.join(map(str, command)), timeout_s=PROGRAM_S_MAX)
        assert done.status == 0 and "right\n" in done.output, done.output
        return done.output

    with started("10.213.78.0/24") as first, started("10.213.78.0/24") as second, started("192.0.2.0/24") as third:
        said = copied_between(first, second)
        assert f"between servers: 2 straight ({2 * size} bytes), through here: none" in said, said
        # One that knows servers of another network only refuses the first, and the program copies.
        said = copied_between(first, third)
        assert "between servers: 0 straight (0 bytes), through here: 2 not_reached" in said, said


def test_later_bytes_stay(guest: Guest) -> None:
    """What an adapter writes and what is still read from the ring go into the same memory, in their order."""
    with serving(*ports_of(guest)) as gpu:
        run = [OUTBOARD, "run", "--gpu", gpu.url, "--", sys.executable, TEST_PROGRAMS / "later_bytes.py"]
        run += ["adapter", "staged", "hidden", "kernel"]
        done = gpu.client.guest.run(shlex.join(map(str, run)), timeout_s=PROGRAM_S_MAX)
    assert done.status == 0 and done.output.endswith("right\n"), done.output


def test_batches_read_their_sources_in_time(guest: Guest) -> None:
    with serving(*ports_of(guest)) as gpu:
        run = [OUTBOARD, "run", "--gpu", gpu.url, "--", sys.executable, TEST_PROGRAMS / "batched_copies.py"]
        run += ["synchronous", 100, 3_000_000]
        done = gpu.client.guest.run(shlex.join(map(str, run)), timeout_s=PROGRAM_S_MAX)
    assert done.status == 0 and done.output.endswith("right\n"), done.output

"""Batches of copies read each source when their attributes say: during the call, or in the stream's order."""

from __future__ import annotations

import sys

from harness import TEST_PROGRAMS, Server

# In the message, in staging memory that copies share, in a segment, and beyond one.
LENGTHS = ["100", "5000", "100000", "3000000"]


def test_sources_are_read_in_time(server: Server, link: str) -> None:
    ways = {"shm": "asynchronous", "tcp": "synchronous"}
    done = server.run(link, sys.executable, TEST_PROGRAMS / "batched_copies.py", ways[link], *LENGTHS)
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stdout + done.stderr

"""Memory that two ways write, one after the other, has the later bytes on every link."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from harness import TEST_PROGRAMS, Server, start_server

PARTS = ["notes", "kernel", "hidden", "rows", "capture", "words", "adapter", "staged", "opening", "managed"]


@pytest.fixture(scope="module")
def with_data_connections(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that opens data connections even on a machine with few cores."""
    os.environ["OUTBOARD_DATA_CONNECTIONS"] = "4"
    try:
        server = start_server(tmp_path_factory.mktemp("connections"))
    finally:
        del os.environ["OUTBOARD_DATA_CONNECTIONS"]
    yield server
    assert server.stop() == 0


@pytest.mark.parametrize("connections", [0, 4])
@pytest.mark.parametrize("part", PARTS)
def test_over_tcp(with_data_connections: Server, part: str, connections: int) -> None:
    env = {"OUTBOARD_DATA_CONNECTIONS": str(connections)}
    done = with_data_connections.run("tcp", sys.executable, TEST_PROGRAMS / "later_bytes.py", part, env=env)
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stderr


def test_a_launch_waits_seldom_for_a_copy_that_is_held(server: Server) -> None:
    """Forty launches beside eleven copies into a mirror: three waits of 2 s end in vain, and four lines tell of it."""
    done = server.run("tcp", sys.executable, TEST_PROGRAMS / "later_bytes.py", "held", timeout=150)
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stderr
    assert done.stderr.count("may miss a copy into it") == 4, done.stderr


@pytest.mark.parametrize("part", PARTS)
def test_over_shm(server: Server, part: str) -> None:
    done = server.run("shm", sys.executable, TEST_PROGRAMS / "later_bytes.py", part)
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stderr


@pytest.mark.parametrize("link", ["shm", "tcp"])
@pytest.mark.parametrize("part", PARTS)
def test_over_an_emulated_network(server: Server, link: str, part: str) -> None:
    env = {"OUTBOARD_EMULATE": "rtt=1ms,bandwidth=10Gbps"}
    done = server.run(link, sys.executable, TEST_PROGRAMS / "later_bytes.py", part, env=env)
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stderr

"""Long copies over tcp use several connections, and arrive whole and in order, with them and
without."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import EXAMPLES, OUTBOARD, TEST_PROGRAMS, Server, start_server
from test_idle import SHARE_MAX, idle_shares

PROGRAM = TEST_PROGRAMS / "long_copies.py"
DATA_CONNECTIONS_MAX = 4


@pytest.fixture(scope="module")
def server_with_data_connections(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that opens data connections even on a machine with few cores."""
    os.environ["OUTBOARD_DATA_CONNECTIONS"] = str(DATA_CONNECTIONS_MAX)
    try:
        server = start_server(tmp_path_factory.mktemp("connections"))
    finally:
        del os.environ["OUTBOARD_DATA_CONNECTIONS"]
    yield server
    assert server.process.poll() is None, server.log.read_text()
    assert server.stop() == 0


def run(
    server: Server, folder: Path, connections: int, part: str, link: str = "tcp"
) -> tuple[dict[str, int], int, int]:
    """Runs the program; returns the counts of its data connections, and the bytes that it copied in
    and out."""
    stats = folder / "stats.json"
    env = {"OUTBOARD_DATA_CONNECTIONS": str(connections), "OUTBOARD_STATS": str(stats)}
    done = server.run(link, sys.executable, PROGRAM, part, env=env)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{server.log.read_text()[-4000:]}"
    copied = re.search(r"every byte is right: (\d+) in, (\d+) out", done.stdout)
    assert copied, done.stdout
    carried: dict[str, int] = json.loads(stats.read_text()).get(
        "data_connections", {"count": 0, "sent_bytes": 0, "received_bytes": 0}
    )
    return carried, int(copied[1]), int(copied[2])


@pytest.mark.parametrize("part", ["plain", "detached", "order", "same_memory", "threads"])
@pytest.mark.parametrize("connections", [1, 2, 4])
def test_with_data_connections(
    server_with_data_connections: Server, tmp_path: Path, connections: int, part: str
) -> None:
    carried, to_device, from_device = run(server_with_data_connections, tmp_path, connections, part)
    assert carried["count"] == connections
    # Shorter copies use the session's own connection, as do copies of a thread while another is
    # sending.
    assert to_device / 4 < carried["sent_bytes"] <= to_device
    # A copy into memory that an earlier one has not reached yet comes after it, by the session's own connection.
    share = 1 / 4 if part == "same_memory" else 3 / 4
    assert from_device * share < carried["received_bytes"] <= from_device
    if part == "order":
        assert (carried["sent_bytes"], carried["received_bytes"]) == (to_device, from_device)


@pytest.mark.parametrize("link", ["tcp", "shm"])
def test_without(server_with_data_connections: Server, tmp_path: Path, link: str) -> None:
    """The client opens no data connections, or the link has no use for them."""
    connections = {"tcp": 0, "shm": DATA_CONNECTIONS_MAX}[link]
    carried, _, _ = run(server_with_data_connections, tmp_path, connections, "all", link)
    assert carried["count"] == 0


def test_a_server_that_has_none(server: Server, tmp_path: Path) -> None:
    """The client asks for data connections, and the server is configured to have none."""
    folder = tmp_path / "none"
    folder.mkdir()
    os.environ["OUTBOARD_DATA_CONNECTIONS"] = "0"
    try:
        none = start_server(folder)
    finally:
        del os.environ["OUTBOARD_DATA_CONNECTIONS"]
    try:
        carried, _, _ = run(none, tmp_path, DATA_CONNECTIONS_MAX, "all")
        assert carried["count"] == 0
    finally:
        assert none.stop() == 0


@pytest.mark.parametrize(
    "program", ["fork_child", "illegal_address", "streams_events", "host_callbacks", "two_threads", "pinned_mapped"]
)
def test_programs_with_data_connections(server_with_data_connections: Server, program: str) -> None:
    done = server_with_data_connections.run(
        "tcp", EXAMPLES / program, env={"OUTBOARD_DATA_CONNECTIONS": str(DATA_CONNECTIONS_MAX)}
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert f"{program}: every result is right" in done.stdout


def test_idle_data_connections_cost_nothing(
    server_with_data_connections: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTBOARD_DATA_CONNECTIONS", str(DATA_CONNECTIONS_MAX))
    opened = server_with_data_connections.log.read_text().count("data connections are open")
    shares = idle_shares(server_with_data_connections, "tcp")
    assert server_with_data_connections.log.read_text().count("data connections are open") == opened + 1
    assert max(shares.values()) <= SHARE_MAX, shares


def test_a_server_that_ends_is_noticed(tmp_path: Path) -> None:
    """If a worker is killed during a copy, the program gets an error at once."""
    os.environ["OUTBOARD_DATA_CONNECTIONS"] = str(DATA_CONNECTIONS_MAX)
    try:
        server = start_server(tmp_path)
    finally:
        del os.environ["OUTBOARD_DATA_CONNECTIONS"]
    command = [sys.executable, TEST_PROGRAMS / "copies_until_told.py"]
    argv = [str(OUTBOARD), "run", "--gpu", server.urls["tcp"], "--", *command]
    program = subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OUTBOARD_DATA_CONNECTIONS": str(DATA_CONNECTIONS_MAX)},
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    with contextlib.suppress(subprocess.TimeoutExpired):
        program.wait(1)
    server.process.kill()
    out, _ = program.communicate(timeout=20)
    # CUDA_ERROR_DEVICE_UNAVAILABLE
    assert out == "told 46\n"

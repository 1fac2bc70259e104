"""Peers that hold a place and say nothing do not keep the others out."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from harness import OUTBOARD, TEST_PROGRAMS, Server, start_server

PEERS, PLACES = 64, 56
GREET_WITHIN_S, QUERY_IDLE_S = 6.0, 4.0
OTHER = {"tcp": "shm", "shm": "tcp"}
# Programs wait this long for the greeting of a server.
ANSWER_S_MAX = 60


def connected(server: Server, link: str) -> socket.socket:
    if link == "shm":
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(server.urls["shm"].removeprefix("shm://"))
        return peer
    host, _, port = server.urls["tcp"].removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)))


def asks(url: str) -> subprocess.CompletedProcess[str]:
    argv = [OUTBOARD, "top", url, "--json"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=ANSWER_S_MAX)


def works(server: Server, link: str) -> float:
    """Runs a program; returns how long it took."""
    start = time.monotonic()
    done = server.run(link, sys.executable, TEST_PROGRAMS / "calls.py", "cuInit:0")
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr + server.log.read_text()
    return time.monotonic() - start


def until_closed(peers: list[socket.socket]) -> None:
    for peer in peers:
        peer.settimeout(ANSWER_S_MAX)
        try:
            # It may be told why, but no more.
            while peer.recv(4096):
                pass
        except ConnectionResetError:
            pass


@contextmanager
def idle(server: Server, link: str, hello: bytes = b"") -> Iterator[list[socket.socket]]:
    """64 peers, which say their hello and nothing else."""
    with ExitStack() as stack:
        peers = [stack.enter_context(closing(connected(server, link))) for _ in range(PEERS)]
        for peer in peers:
            peer.sendall(hello)
        yield peers


def hello_of_a_query() -> bytes:
    """The opening of `outboard top`, as it comes at its server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        nowhere = subprocess.DEVNULL
        program = subprocess.Popen([OUTBOARD, "top", url, "--json"], stdout=nowhere, stderr=nowhere)
        opened, _ = listener.accept()
        with opened:
            hello = opened.recv(1 << 16)
        program.wait(ANSWER_S_MAX)
    return hello


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ["--greet-within", f"{GREET_WITHIN_S:.0f}s", "--query-idle", f"{QUERY_IDLE_S:.0f}s"]
    server = start_server(tmp_path_factory.mktemp("places"), *options)
    yield server
    assert server.stop() == 0
    assert "panicked" not in server.log.read_text()


def test_silent_peers_keep_nobody_out_who_comes_over_another_link(patient: Server) -> None:
    for link in ("tcp", "shm"):
        start = time.monotonic()
        with idle(patient, link) as peers:
            assert works(patient, OTHER[link]) < GREET_WITHIN_S, "it waited for the silent ones"
            if link == "tcp":
                continue
            # Of their own link's places they have all.
            assert time.monotonic() - start < GREET_WITHIN_S
            works(patient, link)
            assert time.monotonic() - start >= GREET_WITHIN_S
            until_closed(peers[:PLACES])
    works(patient, "tcp")


def test_idle_queries_keep_nobody_out_who_asks_over_another_link(patient: Server) -> None:
    hello = hello_of_a_query()
    for link in ("tcp", "shm"):
        with idle(patient, link, hello) as peers:
            refused = asks(patient.urls[link])
            assert f"all of its {PLACES} queries" in refused.stderr, refused
            done = asks(patient.urls[OTHER[link]])
            assert done.returncode == 0, done.stderr
            works(patient, link)
            until_closed(peers)
            done = asks(patient.urls[link])
            assert done.returncode == 0, done.stderr


def test_wrong_times_are_refused() -> None:
    for option, value in (("--greet-within", "1ms"), ("--query-idle", "25h"), ("--query-idle", "5")):
        argv = [OUTBOARD, "serve", "--no-config", "--check-config", "--device", "soft", option, value]
        done = subprocess.run(argv, capture_output=True, text=True)
        assert done.returncode == 2 and "it is a time from" in done.stderr, done

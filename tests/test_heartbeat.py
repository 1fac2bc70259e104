"""A worker that is stopped, and a network that takes bytes and passes none on, end in an error; a GPU that computes
for long does not."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import OUTBOARD, TEST_PROGRAMS, Server, start_server
from test_bad_input import wait_until, worker_pids

# Seconds between two questions: every end comes within seconds, and a busy machine has time for an answer.
PERIOD = "0.3"
# Most seconds until a session ends, on a busy machine.
END_S_MAX = 60
# Most seconds until a copy fails whose connection has ended, without a heartbeat that is missed.
HALF_CLOSED_S_MAX = 30


class Relay:
    """Passes bytes between clients and a server. From a time on, some connections take bytes and pass none on, and
    some end towards the server only: what the client sends then is not read. Those that there are can be forgotten:
    they end towards the server, and take what the client sends."""

    def __init__(self, server: str) -> None:
        host, port = server.removeprefix("tcp://").split(":")
        self.server = (host, int(port))
        self.of: Server | None = None
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        # Numbers of the connections, in the order in which they came, that swallow.
        self.swallowing: set[int] = set()
        # Those that swallow what the server sends.
        self.swallowing_down: set[int] = set()
        # Those that end towards the server only.
        self.half_closing: set[int] = set()
        # Connections below this number are forgotten.
        self.forgotten = 0
        self.is_over = threading.Event()
        self.connections = 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            number, self.connections = self.connections, self.connections + 1
            threading.Thread(target=self.pass_on, args=(number, client), daemon=True).start()

    def pass_on(self, number: int, client: socket.socket) -> None:
        with client, socket.create_connection(self.server) as server:
            other = {client: server, server: client}
            try:
                while True:
                    for ready in select.select(list(other), [], [])[0]:
                        if ready is client and number in self.half_closing:
                            self.half_close(client, server)
                            return
                        data = ready.recv(1 << 18)
                        if number < self.forgotten:
                            server.close()
                            self.swallow(client)
                            return
                        if not data:
                            return
                        if number not in self.swallowing | (self.swallowing_down if ready is server else set()):
                            other[ready].sendall(data)
            except OSError:
                if number < self.forgotten:
                    self.swallow(client)

    def swallow(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while client.recv(1 << 18):
                pass
            self.is_over.wait()

    def half_close(self, client: socket.socket, server: socket.socket) -> None:
        """Ends the connection to the server, passes on what that still says and its end, and reads no more of what
        the client sends."""
        server.shutdown(socket.SHUT_WR)
        while data := server.recv(1 << 18):
            client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        self.is_over.wait()


@pytest.fixture
def relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relay]:
    # The server has data connections even on a machine with few cores.
    monkeypatch.setenv("OUTBOARD_DATA_CONNECTIONS", "2")
    server = start_server(tmp_path)
    relay = Relay(server.urls["tcp"])
    relay.of = server
    yield relay
    relay.is_over.set()
    relay.listener.close()
    assert server.stop() == 0


def start(url: str, case: str, first_line: str, **env: str) -> subprocess.Popen[str]:
    program = [sys.executable, str(TEST_PROGRAMS / "misuse.py"), case]
    environment = {**os.environ, "OUTBOARD_HEARTBEAT": PERIOD, **env}
    argv = [str(OUTBOARD), "run", "--gpu", url, "--", *program]
    client = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert client.stdout is not None
    assert client.stdout.readline().strip() == first_line
    return client


def new_worker(server: Server, before: set[int]) -> int:
    """The one worker that was not there before. That of an earlier client, or of a greeting, may still be ending."""
    found: set[int] = set()

    def is_alone() -> bool:
        found.clear()
        found.update(set(worker_pids(server)) - before)
        return len(found) == 1

    wait_until(is_alone)
    return found.pop()


def ends_with(client: subprocess.Popen[str], reason: str) -> None:
    out, err = client.communicate(timeout=END_S_MAX)
    assert "DEVICE_UNAVAILABLE" in out + err, out + err
    assert reason in err, err


@pytest.mark.parametrize("case", ["copy_for_ever", "loop_for_ever"])
def test_a_stopped_worker(server: Server, link: str, case: str) -> None:
    before = set(worker_pids(server))
    client = start(server.urls[link], case, "copying" if case == "copy_for_ever" else "looping")
    worker = new_worker(server, before)
    # Long enough for heartbeats to have been answered, if anything waited for so long.
    time.sleep(1)
    assert client.poll() is None, client.communicate()
    os.kill(worker, signal.SIGSTOP)
    ends_with(client, "the server does not answer")
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: worker not in worker_pids(server))


def test_a_worker_that_is_stopped_briefly_goes_on(server: Server, link: str) -> None:
    before = set(worker_pids(server))
    client = start(server.urls[link], "copy_for_ever", "copying", OUTBOARD_HEARTBEAT="1")
    worker = new_worker(server, before)
    os.kill(worker, signal.SIGSTOP)
    time.sleep(2)
    os.kill(worker, signal.SIGCONT)
    time.sleep(1.5)
    assert client.poll() is None, client.communicate()
    client.kill()
    client.communicate()


def test_a_long_kernel_is_waited_for(server: Server, link: str) -> None:
    client = start(server.urls[link], "loop_for_ever", "looping")
    time.sleep(3)
    assert client.poll() is None, client.communicate()
    client.kill()
    client.communicate()


def test_a_debugger_may_stop_a_worker(server: Server, link: str) -> None:
    before = set(worker_pids(server))
    client = start(server.urls[link], "loop_for_ever", "looping", OUTBOARD_HEARTBEAT="off")
    worker = new_worker(server, before)
    os.kill(worker, signal.SIGSTOP)
    time.sleep(2)
    assert client.poll() is None, client.communicate()
    os.kill(worker, signal.SIGKILL)
    client.communicate(timeout=END_S_MAX)


# The greeting of `outboard run` is connection 0, the session 1, data connections 2 and 3; heartbeats have the next.
@pytest.mark.parametrize(
    ("swallowing", "reason"),
    [
        ({1}, "passes none on"),
        ({2}, "passes none on"),
        ({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, "the server does not answer"),
    ],
    ids=["own", "data", "all"],
)
def test_a_network_that_swallows(relay: Relay, swallowing: set[int], reason: str) -> None:
    client = start(relay.url, "copy_for_ever", "copying")
    wait_until(lambda: relay.connections >= 4, END_S_MAX)
    time.sleep(0.5)
    assert client.poll() is None, client.communicate()
    relay.swallowing |= swallowing
    ends_with(client, reason)


@pytest.mark.parametrize("swallowing", [1, 2, 3])
def test_a_network_that_swallows_one_way(relay: Relay, swallowing: int) -> None:
    """The session's own connection is not read while a frame there waits for data of another."""
    client = start(relay.url, "copy_down_for_ever", "copying")
    wait_until(lambda: relay.connections >= 4, END_S_MAX)
    time.sleep(0.5)
    assert client.poll() is None, client.communicate()
    relay.swallowing_down |= {swallowing}
    ends_with(client, "passes none on")


# Connections as above. Without data connections the program's thread is stuck in sending on the session's own.
@pytest.mark.parametrize(("half_closing", "data_connections"), [(1, 0), (1, 2), (2, 2)], ids=["own", "both", "data"])
def test_a_connection_that_ends_in_one_direction(relay: Relay, half_closing: int, data_connections: int) -> None:
    client = start(relay.url, "copy_for_ever", "copying", OUTBOARD_DATA_CONNECTIONS=str(data_connections))
    wait_until(lambda: relay.connections >= 2 + data_connections, END_S_MAX)
    time.sleep(0.5)
    assert client.poll() is None, client.communicate()
    relay.half_closing.add(half_closing)
    try:
        out, err = client.communicate(timeout=HALF_CLOSED_S_MAX)
    finally:
        client.kill()
    assert "DEVICE_UNAVAILABLE" in out + err and "the session with the GPU server is lost" in err, out + err


def forgets(relay: Relay, server: Server, before: set[int]) -> None:
    """Ends the worker of the only session, without a sign of it on connections that there are."""
    worker = new_worker(server, before)
    relay.forgotten = relay.connections
    os.kill(worker, signal.SIGKILL)


@pytest.mark.parametrize(
    ("case", "first_line"),
    [
        ("copy_for_ever", "copying"),
        ("loop_for_ever", "looping"),
        ("launch_for_ever", "launching"),
    ],
)
def test_a_session_that_the_server_no_longer_knows(relay: Relay, case: str, first_line: str) -> None:
    """A proxy, or an address translation, keeps the client's connections open after the worker's end."""
    assert relay.of is not None
    before = set(worker_pids(relay.of))
    client = start(relay.url, case, first_line)
    time.sleep(1)
    assert client.poll() is None, client.communicate()
    forgets(relay, relay.of, before)
    try:
        out, err = client.communicate(timeout=END_S_MAX)
    finally:
        client.kill()
    assert "the server knows no such session any more" in err, out + err
    assert "DEVICE_UNAVAILABLE" in out + err, out + err


def test_a_period_that_is_none_is_an_error(server: Server) -> None:
    program = [sys.executable, TEST_PROGRAMS / "waits.py", "1", "0"]
    for wrong in ("never", "x", "0", "-1", "nan", "1e9"):
        done = server.run("shm", *program, env={"OUTBOARD_HEARTBEAT": wrong})
        assert done.returncode != 0
        assert f"OUTBOARD_HEARTBEAT={wrong} is neither" in done.stderr, done.stderr
    # An empty one is none.
    done = server.run("shm", *program, env={"OUTBOARD_HEARTBEAT": ""})
    assert done.returncode == 0 and "HEARTBEAT" not in done.stderr


def test_a_program_whose_output_is_not_read_goes_on(server: Server, link: str) -> None:
    """The thread that reads for all writes what kernels print, and waits as long as nobody takes it."""
    environment = {**os.environ, "OUTBOARD_HEARTBEAT": "0.1"}
    program = [sys.executable, str(TEST_PROGRAMS / "prints_much.py")]
    argv = [str(OUTBOARD), "run", "--gpu", server.urls[link], "--", *program]
    client = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    time.sleep(3)
    out, err = client.communicate(timeout=END_S_MAX)
    assert client.returncode == 0, err
    assert len(out) > 1 << 16, "a pipe holds it all"

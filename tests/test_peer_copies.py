"""Copies between devices of two servers that go straight from one server to the other, and what happens if they
cannot."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import OUTBOARD, TEST_PROGRAMS, Server, start_server
from test_trust import keys, made

PROGRAM = TEST_PROGRAMS / "peer_copies.py"
SEVERAL = TEST_PROGRAMS / "several_servers.py"
BOXES = TEST_PROGRAMS / "peer_boxes.py"
MIB = 1 << 20
HERE = ("--peer-copies", "127.0.0.0/8")
# The kind of a hello of another server (`handshake::Purpose::Peer`), and where it is in it.
PEER = 7
PREAMBLE_BYTES = 24
# What a way may say nothing, and what else a copy takes on a busy machine.
PATIENCE_S = 60


@contextmanager
def servers(folder: Path, *options: tuple[str, ...]) -> Iterator[list[Server]]:
    started = []
    for number, each in enumerate(options):
        (folder / str(number)).mkdir()
        started.append(start_server(folder / str(number), *each))
    yield started
    for server in started:
        if server.process.poll() is None:
            assert server.stop() == 0
        assert "panicked" not in server.log.read_text(), server.log.read_text()


def start(urls: list[str], *program: str | Path, stats: Path) -> subprocess.Popen[str]:
    argv = [OUTBOARD, "run", "--gpu", ",".join(urls), "--", sys.executable, *map(str, program)]
    environment = {**os.environ, "OUTBOARD_STATS": str(stats)}
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def copies(urls: list[str], folder: Path, size: int = 3 * MIB + 5, rounds: int = 2, *shape: str) -> dict[str, object]:
    """Runs the program, which must be right; returns how its copies went."""
    stats = folder / "stats.json"
    process = start(urls, PROGRAM, str(size), str(rounds), *shape, stats=stats)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, "copying\nright\n"), out + err
    counts: dict[str, object] = json.loads(stats.read_text())["between_servers"]
    return counts


def straight(count: int, size: int) -> dict[str, object]:
    return {"straight": count, "straight_bytes": count * size, "through_here": {}}


def through_here(**reasons: int) -> dict[str, object]:
    return {"straight": 0, "straight_bytes": 0, "through_here": reasons}


def test_the_bytes_go_straight(tmp_path: Path) -> None:
    with servers(tmp_path, HERE, HERE) as both:
        urls = [server.urls["tcp"] for server in both]
        for size in (256 << 10, MIB, 20 * MIB + 1):
            assert copies(urls, tmp_path, size) == straight(4, size)
        for server in both:
            assert "another server brings data of copies" in server.log.read_text()
        # A source of any link, as long as the destination has a port.
        counts = copies([both[0].urls["shm"], urls[1]], tmp_path, MIB)
        assert counts == {"straight": 2, "straight_bytes": 2 * MIB, "through_here": {"address": 2}}
        # Every call that copies, in the order of streams.
        process = start(urls, SEVERAL, "copies", stats=tmp_path / "stats.json")
        out, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out) == (0, "right\n"), out + err
        assert json.loads((tmp_path / "stats.json").read_text())["between_servers"]["straight"] > 10
        process = start(urls, SEVERAL, "threads", stats=tmp_path / "stats.json")
        out, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out) == (0, "right\n"), out + err


def test_encrypted_servers_that_ask_for_keys_and_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers have neither a key nor a token of each other's, and need none."""
    token, tokens = tmp_path / "token", tmp_path / "tokens"
    token.write_text(made("token", "create", "tests", "--tokens", tokens))
    token.chmod(0o600)
    monkeypatch.setenv("OUTBOARD_TOKEN_FILE", str(token))
    guarded = (*keys(tmp_path, monkeypatch), "--tokens", str(tokens), *HERE)
    with servers(tmp_path, guarded, guarded) as both:
        urls = [server.urls["tcps"] for server in both]
        assert copies(urls, tmp_path) == straight(4, 3 * MIB + 5)


def boxes(urls: list[str], folder: Path, *case: str) -> tuple[int, dict[str, object]]:
    """Runs a case, which must be right; returns the bytes that it copied, and how."""
    process = start(urls, BOXES, *case, stats=folder / "stats.json")
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0 and out.endswith("right\n"), out + err
    return int(out.split()[0]), json.loads((folder / "stats.json").read_text())["between_servers"]


@pytest.mark.parametrize("case", ["random 1 40", "both", "many", "order"])
def test_boxes_go_straight(tmp_path: Path, case: str) -> None:
    with servers(tmp_path, HERE, HERE) as both:
        size, counts = boxes([server.urls["tcp"] for server in both], tmp_path, *case.split())
        if case.startswith("random"):
            # Boxes below 256 KiB, of which there are some.
            assert isinstance(counts["straight"], int) and counts["straight"] > 20
            assert counts["through_here"] == {"short": 40 - counts["straight"]}
            assert 0 < size - int(str(counts["straight_bytes"])) < 20 * (256 << 10)
        else:
            assert (counts["straight_bytes"], counts["through_here"]) == (size, {})


def test_boxes_are_the_same_through_the_program(tmp_path: Path) -> None:
    with servers(tmp_path, (), ()) as both:
        urls = [server.urls["tcp"] for server in both]
        _, counts = boxes(urls, tmp_path, "random", "1", "40")
        assert counts["straight"] == 0, counts
        _, counts = boxes(urls, tmp_path, "wrong")
        assert counts["straight"] == 0, counts


def test_wrong_boxes_leave_the_way_as_it_was(tmp_path: Path) -> None:
    with servers(tmp_path, HERE, HERE) as both:
        size, counts = boxes([server.urls["tcp"] for server in both], tmp_path, "wrong")
        assert counts == straight(1, size)


@pytest.mark.parametrize(
    ("source", "destination", "expected"),
    [
        ((), HERE, through_here(not_awaited=2, not_reached=2)),
        (("--peer-copies", "192.0.2.0/24"), HERE, through_here(not_reached=4)),
        (("--peer-copies", "127.0.0.1"), ("--peer-copies", "127.0.0.0/24"), straight(4, MIB)),
    ],
    ids=["off", "another network", "one address"],
)
def test_a_server_copies_only_to_the_networks_that_it_is_told(
    tmp_path: Path, source: tuple[str, ...], destination: tuple[str, ...], expected: dict[str, object]
) -> None:
    with servers(tmp_path, source, destination) as both:
        assert copies([server.urls["tcp"] for server in both], tmp_path, MIB) == expected


def test_what_does_not_go_straight_is_counted_by_its_reason(tmp_path: Path) -> None:
    with servers(tmp_path, HERE, HERE) as both:
        urls = [server.urls["tcp"] for server in both]
        assert copies([server.urls["shm"] for server in both], tmp_path, MIB) == through_here(address=4)
        assert copies(urls, tmp_path, 1000) == through_here(short=4)
        lowered = [OUTBOARD, "run", "--stats", "--optimise", "sync", "--gpu", ",".join(urls), "--"]
        done = subprocess.run(
            [*lowered, sys.executable, PROGRAM, str(MIB), "1"], capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0, done.stderr
        assert "copies between servers: 0 straight (0 bytes), through here: 2 asked" in done.stderr, done.stderr


class Between:
    """Passes on what programs say to a server. What another server says to it is passed on as far as `passes` says, and
    then kept: the connection stays open, or ends if `cuts`."""

    def __init__(self, url: str, passes: int, cuts: bool) -> None:
        found = re.fullmatch(r"tcp://127\.0\.0\.1:(\d+)", url)
        assert found
        self._port, self._passes, self._cuts = int(found[1]), passes, cuts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.peers = 0
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            there = socket.create_connection(("127.0.0.1", self._port))
            self._sockets += [here, there]
            threading.Thread(target=self._pass_on, args=(here, there), daemon=True).start()
            threading.Thread(target=self._pump, args=(there, here, None), daemon=True).start()

    def _pass_on(self, here: socket.socket, there: socket.socket) -> None:
        hello = here.recv(PREAMBLE_BYTES, socket.MSG_WAITALL)
        document = here.recv(int.from_bytes(hello[12:16], "little"), socket.MSG_WAITALL)
        is_peer = document[1 + document[0]] == PEER
        self.peers += is_peer
        if is_peer and self._passes == 0:
            if self._cuts:
                here.shutdown(socket.SHUT_RDWR)
            return
        there.sendall(hello + document)
        self._pump(here, there, self._passes if is_peer else None)

    def _pump(self, source: socket.socket, to: socket.socket, limit: int | None) -> None:
        passed = 0
        try:
            while data := source.recv(1 << 16):
                to.sendall(data)
                passed += len(data)
                if limit is not None and passed >= limit:
                    if self._cuts:
                        source.shutdown(socket.SHUT_RDWR)
                    return
            to.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self) -> None:
        self._listener.close()
        for one in self._sockets:
            one.close()


@pytest.mark.parametrize(
    ("passes", "cuts", "reason", "shape"),
    [
        (0, True, "not_reached", []),
        (0, False, "not_reached", ["rows"]),
        (5 * MIB, True, "broken", ["rows"]),
        (5 * MIB, False, "broken", []),
    ],
    ids=["hangs up", "says nothing", "ends in the middle", "is slow in the middle"],
)
def test_another_server_that_fails(tmp_path: Path, passes: int, cuts: bool, reason: str, shape: list[str]) -> None:
    """Whatever it does, the copy is right, and is made by the program."""
    with servers(tmp_path, HERE, HERE) as both:
        between = Between(both[1].urls["tcp"], passes, cuts)
        urls = [both[0].urls["tcp"], between.url]
        counts = copies(urls, tmp_path, 9 * MIB, 1, *shape)
        # The way back is another, and has nobody in between.
        assert counts == {"straight": 1, "straight_bytes": 9 * MIB, "through_here": {reason: 1}}
        assert between.peers == 1
        between.close()
        # And both serve on.
        assert copies([server.urls["tcp"] for server in both], tmp_path, MIB) == straight(4, MIB)


@pytest.mark.parametrize(("killed", "shape"), [(0, ["rows"]), (1, [])])
def test_a_server_that_is_killed_in_the_middle(tmp_path: Path, killed: int, shape: list[str]) -> None:
    with servers(tmp_path, HERE, HERE) as both:
        stats = tmp_path / "stats.json"
        process = start([server.urls["tcp"] for server in both], PROGRAM, str(16 * MIB), "1000", *shape, stats=stats)
        assert process.stdout is not None
        assert process.stdout.readline() == "copying\n"
        time.sleep(0.5)
        of_server = subprocess.run(
            ["pgrep", "-P", str(both[killed].process.pid)], capture_output=True, text=True, check=True
        )
        for pid in [*map(int, of_server.stdout.split()), both[killed].process.pid]:
            os.kill(pid, signal.SIGKILL)
        both[killed].process.wait()
        out, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out) == (3, "CUDA_ERROR_DEVICE_UNAVAILABLE\n"), out + err
        other = both[1 - killed]
        done = other.run("tcp", sys.executable, TEST_PROGRAMS / "calls.py", "cuInit:0")
        assert (done.returncode, done.stdout) == (0, "0\n"), done.stdout + done.stderr

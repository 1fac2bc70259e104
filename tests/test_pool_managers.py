"""Several managers of one pool: three members of Debian's etcd, three managers, and programs that notice nothing."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import OUTBOARD, START_S_MAX
from test_pool import Pool, until

# Another manager serves within this time; the rest is room for a loaded machine.
TAKE_OVER_S_MAX = 5 + 5


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Etcd:
    """Three members of a cluster."""

    def __init__(self, folder: Path) -> None:
        self.clients = [free_port() for _ in range(3)]
        peers = [free_port() for _ in range(3)]
        cluster = ",".join(f"m{at}=http://127.0.0.1:{port}" for at, port in enumerate(peers))
        self.members: list[subprocess.Popen[bytes]] = []
        self.argv = []
        for at, (client, peer) in enumerate(zip(self.clients, peers, strict=True)):
            own, theirs = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
            argv = ["etcd", "--name", f"m{at}", "--data-dir", str(folder / f"etcd{at}")]
            argv += ["--listen-client-urls", own, "--advertise-client-urls", own, "--listen-peer-urls", theirs]
            argv += ["--initial-advertise-peer-urls", theirs, "--initial-cluster", cluster]
            self.argv.append(argv)
            self.members.append(self.start(at))
        until(self.is_healthy)

    def start(self, at: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.argv[at], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.clients[0]}/health", timeout=2) as answer:
                return b"true" in answer.read()
        except OSError:
            return False

    @property
    def url(self) -> str:
        return "etcd://" + ",".join(f"127.0.0.1:{port}" for port in self.clients) + "/test"

    def stop(self) -> None:
        for member in self.members:
            member.kill()
            member.wait()


class Managers(Pool):
    """A pool with three managers."""

    def __init__(self, folder: Path, etcd: Etcd) -> None:
        self.etcd = etcd
        self.ports = [free_port() for _ in range(3)]
        self.managers: list[subprocess.Popen[str]] = []
        super().__init__(folder)

    def start_manager(self, address: str) -> subprocess.Popen[str]:
        self.managers = [self.start_one(at) for at in range(3)]
        self.url = ",".join(f"http://127.0.0.1:{port}" for port in self.ports)
        return self.managers[0]

    def start_one(self, at: int) -> subprocess.Popen[str]:
        argv = [OUTBOARD, "pool", "serve", "--store", self.etcd.url, "--grant-key", self.folder / "grants.key"]
        argv += ["--listen", f"127.0.0.1:{self.ports[at]}"]
        log = (self.folder / f"manager{at}.log").open("a")
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=log, text=True)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("manager at "), (self.folder / f"manager{at}.log").read_text()
        return process

    def leader(self) -> int:
        """Returns the number of the manager that serves; -1 if none does."""
        for at, port in enumerate(self.ports):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/pool", timeout=1) as answer:
                    if answer.status == 200:
                        return at
            except OSError:
                pass
        return -1

    def stop(self) -> None:
        self.manager = self.managers[0]
        for other in self.managers[1:]:
            other.send_signal(signal.SIGTERM)
            assert other.wait(20) == 0
        super().stop()


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Managers]:
    folder = tmp_path_factory.mktemp("managers")
    etcd = Etcd(folder)
    pool = Managers(folder, etcd)
    pool.start_box("a")
    yield pool
    pool.stop()
    etcd.stop()


def test_another_manager_serves_when_the_leader_is_killed(pool: Managers) -> None:
    until(lambda: pool.free() == 2)
    # Renewed every second: none is missed for a whole term.
    program = pool.run("--gpus", "1", "--term", "10s")
    program.gpus()
    first = pool.leader()
    pool.managers[first].kill()
    pool.managers[first].wait()
    until(lambda: pool.leader() not in (-1, first), TAKE_OVER_S_MAX)
    # A new claim finds the new leader by itself, and boxes do too.
    until(lambda: pool.free() == 1)
    second = pool.run("--gpus", "1")
    second.gpus()
    time.sleep(10)
    assert program.process.poll() is None
    assert second.finish().startswith("right")
    said = program.finish()
    assert said.startswith("right"), said
    pool.managers[first] = pool.start_one(first)
    until(lambda: pool.free() == 2)


def test_a_leader_that_was_stopped_writes_nothing_when_it_goes_on(pool: Managers) -> None:
    until(lambda: pool.free() == 2)
    first = pool.leader()
    pool.managers[first].send_signal(signal.SIGSTOP)
    until(lambda: pool.leader() not in (-1, first), TAKE_OVER_S_MAX + 3)
    until(lambda: pool.free() == 2)
    program = pool.run("--gpus", "2")
    program.gpus()
    # Asked while it is stopped: what it knew before is not an answer.
    early = http.client.HTTPConnection("127.0.0.1", pool.ports[first], timeout=20)
    early.request("GET", "/v1/pool")
    pool.managers[first].send_signal(signal.SIGCONT)
    assert early.getresponse().status in (421, 503)
    early.close()
    log = pool.folder / f"manager{first}.log"
    until(lambda: "leads no longer" in log.read_text() or "another manager has written" in log.read_text())
    assert pool.leader() != first
    assert program.finish().startswith("right")


def test_without_a_quorum_nothing_is_given_and_programs_go_on(pool: Managers) -> None:
    until(lambda: pool.free() == 2)
    program = pool.run("--gpus", "1", "--term", "2m")
    program.gpus()
    for at in (1, 2):
        pool.etcd.members[at].kill()
        pool.etcd.members[at].wait()
    argv = [OUTBOARD, "pool", "claim", "--pool", pool.url, "--no-wait", "--uid", "no-quorum"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=90, env={**os.environ})
    assert done.returncode == 1, done.stdout
    assert "store fails" in done.stderr or "does not answer" in done.stderr or "leads" in done.stderr, done.stderr
    assert program.process.poll() is None
    for at in (1, 2):
        pool.etcd.members[at] = pool.etcd.start(at)
    until(lambda: pool.leader() != -1, 2 * START_S_MAX)
    assert program.finish().startswith("right")
    until(lambda: pool.free() == 2)


def test_managers_need_one_key(pool: Managers, tmp_path: Path) -> None:
    argv = [OUTBOARD, "pool", "serve", "--listen", "127.0.0.1:0", "--store", pool.etcd.url]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and "--grant-key" in done.stderr, done.stderr
    argv[-1] = "etcd://nowhere"
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and "no address of an etcd cluster" in done.stderr, done.stderr
    nobody = f"etcd://127.0.0.1:{free_port()}/x"
    argv[-1:] = [nobody, "--grant-key", str(tmp_path / "key")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "asking who leads" in done.stderr, done.stderr

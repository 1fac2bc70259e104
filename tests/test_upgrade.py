"""A new server takes the place of a running one: programs go on, and new ones are served."""

from __future__ import annotations

import array
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from harness import OUTBOARD, TEST_PROGRAMS, run_through

# Each wait ends with an event; past this time something hangs.
HANGS_S = 60
CONNECTIONS = 2
LONG_BYTES = 4 << 20
ENVIRONMENT = {**os.environ, "OUTBOARD_DATA_CONNECTIONS": str(CONNECTIONS)}


class Serving:
    """A server at the addresses of one folder. The first chooses its port, later ones have the same."""

    def __init__(self, folder: Path, name: str, *options: str, tcp: str = "tcp://127.0.0.1:0") -> None:
        self.log = folder / f"{name}.log"
        self.file = folder / "hand-over"
        argv = [OUTBOARD, "serve", "--no-config", "--device", "soft", "--no-cache", "--hand-over", self.file]
        argv += ["--listen", f"shm://{folder}/gpu.sock", "--listen", tcp, *options]
        with self.log.open("w") as log:
            piped = subprocess.PIPE
            self.process = subprocess.Popen(argv, stdout=piped, stderr=log, text=True, env=ENVIRONMENT)
        assert self.process.stdout is not None
        lines = [self.process.stdout.readline() for _ in range(2)]
        self.urls = {line.split()[-1].partition(":")[0]: line.split()[-1] for line in lines if line}

    def said(self) -> str:
        return self.log.read_text()

    def ends(self) -> int:
        return self.process.wait(HANGS_S)

    def sessions(self) -> set[int]:
        """Numbers of processes that it serves."""
        argv = [OUTBOARD, "top", self.urls["tcp"], "--json"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=HANGS_S)
        return {session["pid"] for session in json.loads(done.stdout)["sessions"]}


class Program:
    """A program that computes until it is told to end."""

    def __init__(self, url: str, stats: Path) -> None:
        argv = [OUTBOARD, "run", "--gpu", url, "--", sys.executable, TEST_PROGRAMS / "goes_on.py"]
        piped = subprocess.PIPE
        environment = {**ENVIRONMENT, "OUTBOARD_STATS": str(stats)}
        self.process = subprocess.Popen(argv, stdin=piped, stdout=piped, stderr=piped, text=True, env=environment)
        self.stats = stats

    def asked(self, what: str) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def connections(self) -> int:
        return json.loads(self.stats.read_text()).get("data_connections", {"count": 0})["count"]


@contextmanager
def killed_at_the_end() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def runs(url: str) -> bool:
    done = run_through(url, sys.executable, TEST_PROGRAMS / "waits.py", "3", "1")
    return done.returncode == 0 and "right" in done.stdout


def test_programs_compute_across_an_upgrade(tmp_path: Path) -> None:
    with killed_at_the_end() as processes:
        old = Serving(tmp_path, "old")
        processes.append(old.process)
        programs = {link: Program(url, tmp_path / link) for link, url in old.urls.items()}
        processes += [program.process for program in programs.values()]
        before = {link: int(program.asked("rounds")) for link, program in programs.items()}

        new = Serving(tmp_path, "new", tcp=old.urls["tcp"])
        processes.append(new.process)
        assert new.urls == old.urls, new.said()
        assert all(runs(url) for url in new.urls.values()), new.said()
        # The old server's sessions go on, and what is new to them reaches it: connections for long copies.
        deadline = time.monotonic() + HANGS_S
        while new.sessions() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert new.sessions() == set() and old.process.poll() is None
        for link, program in programs.items():
            assert program.asked(f"copy {LONG_BYTES}") == "same", old.said() + new.said()
            assert int(program.asked("rounds")) > before[link]
        assert programs["shm"].asked("end") and programs["shm"].process.wait(HANGS_S) == 0
        assert programs["tcp"].asked("rounds") and old.process.poll() is None
        assert programs["tcp"].asked("end") and programs["tcp"].process.wait(HANGS_S) == 0
        assert programs["tcp"].connections() == CONNECTIONS, old.said() + new.said()

        assert old.ends() == 0
        assert "sessions go on here until they end, for 86400 s at most sessions=2" in old.said()
        assert "the last session has ended" in old.said()
        assert "has taken over from a server that goes on with its sessions" in new.said()
        # The old server has left the new one's files alone; the next take-over works, too.
        newest = Serving(tmp_path, "newest", tcp=old.urls["tcp"])
        processes.append(newest.process)
        assert new.ends() == 0
        assert all(runs(url) for url in newest.urls.values()), newest.said()
        newest.process.terminate()
        assert newest.ends() == 0
        assert not (tmp_path / "gpu.sock").exists() and not newest.file.exists()


def received(taker: socket.socket) -> tuple[bytes, list[int]]:
    fds = array.array("i")
    data, control, _, _ = taker.recvmsg(1 << 16, socket.CMSG_SPACE(8))
    for _, _, raw in control:
        fds.frombytes(raw)
    return data, list(fds)


def test_a_server_of_any_release_can_take_over_and_sessions_have_their_time(tmp_path: Path) -> None:
    """The form of the hand-over, as a later release will speak it. A session that outlasts --drain-within is ended."""
    with killed_at_the_end() as processes, ExitStack() as stack:
        old = Serving(tmp_path, "old", "--drain-within", "1s", "--audit", str(tmp_path / "audit"))
        processes.append(old.process)
        program = Program(old.urls["shm"], tmp_path / "stats")
        processes.append(program.process)
        assert program.asked("rounds")

        # One that goes without a word changes nothing; nor does one that says something else.
        for word in [b"", b"no"]:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as taker:
                taker.connect(str(old.file))
                assert received(taker)[0]
                if word:
                    taker.send(word)
        taker = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        taker.connect(str(old.file))
        offer = json.loads(received(taker)[0])
        assert (offer["form"], offer["sockets"], offer["sessions"]) == (1, 2, 1), offer
        sockets = [received(taker) for _ in range(2)]
        offered = [json.loads(data) for data, _ in sockets]
        assert [one["address"]["Programs"] for one in offered] == [old.urls["shm"], old.urls["tcp"]]
        assert [one["removes_file"] for one in offered] == [True, False]
        assert runs(old.urls["tcp"]), "it serves until the other one goes ahead"
        taker.send(b"go")
        assert received(taker)[0] == b"drains"

        # From now on connections are the other's.
        for (_, [fd]), (family, address) in zip(
            sockets,
            [
                (socket.AF_UNIX, str(tmp_path / "gpu.sock")),
                (socket.AF_INET, ("127.0.0.1", int(old.urls["tcp"].rpartition(":")[2]))),
            ],
            strict=True,
        ):
            listener = stack.enter_context(socket.socket(fileno=fd))
            listener.settimeout(HANGS_S)
            with socket.socket(family) as client:
                client.connect(address)
                listener.accept()[0].close()
        assert old.ends() == 0
        assert "sessions are ended: the time of --drain-within is over sessions=1" in old.said()
        assert program.process.wait(HANGS_S) != 0
        ended = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
        assert [line["reason"] for line in ended][-1] == "stopped"


def test_a_server_that_cannot_take_over_leaves_the_running_one_alone(tmp_path: Path) -> None:
    with killed_at_the_end() as processes, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        old = Serving(tmp_path, "old")
        processes.append(old.process)
        in_use = Serving(tmp_path, "in-use", "--metrics", str(taken.getsockname()[1]), tcp=old.urls["tcp"])
        assert in_use.ends() == 1 and "cannot answer requests for metrics" in in_use.said()
        assert all(runs(url) for url in old.urls.values()), old.said()
        # A server of a later form is told apart, and a file that is no socket.
        later = tmp_path / "later"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
            other.bind(str(later))
            other.listen()
            argv = [OUTBOARD, "serve", "--no-config", "--device", "soft", "--no-cache", "--hand-over", later]
            argv += ["--listen", f"shm://{tmp_path}/b.sock"]
            process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
            processes.append(process)
            with other.accept()[0] as asking:
                asking.send(json.dumps({"form": 2, "release": "9", "build": 1, "sockets": 1, "sessions": 0}).encode())
                _, told = process.communicate(timeout=HANGS_S)
            assert process.returncode == 1 and "hands over in form 2, not 1" in told
        later.unlink()
        later.write_text("something")
        done = subprocess.run(argv, capture_output=True, text=True, timeout=HANGS_S)
        assert done.returncode == 2 and "is no socket" in done.stderr and later.read_text() == "something"
        old.process.terminate()
        assert old.ends() == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--hand-over", "a", "--listen", "shm:a"], "--hand-over and --listen shm:///"),
        (["--hand-over", "none/a"], "--hand-over: shm:none/a: the folder of the socket"),
        (["--hand-over", "a", "--pool", "http://127.0.0.1:1"], "outboard pool drain"),
        (["--drain-within", "0s"], "from 1s to 168h"),
    ],
)
def test_settings_of_a_hand_over(tmp_path: Path, options: list[str], said: str) -> None:
    argv = [OUTBOARD, "serve", "--no-config", "--device", "soft", "--check-config", *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=HANGS_S, cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr, done.stderr

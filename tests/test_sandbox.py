"""Workers are confined, and what they do for programs is not."""

from __future__ import annotations

import errno
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import OUTBOARD, TEST_PROGRAMS, Server, start_server

# Numbers of x86-64.
READ, OPEN, SOCKET, GETPID, EXECVE, FORK, KILL, CHMOD = 0, 2, 41, 39, 59, 57, 62, 90
AF_UNIX, AF_INET, STREAM = 1, 2, 1
REFUSED = {-errno.EPERM, -errno.EACCES}

can_inject = pytest.mark.skipif(
    os.geteuid() != 0 or platform.machine() != "x86_64", reason="NOT RUN: only root traces workers, here on x86-64"
)


def status(process: int) -> dict[str, str]:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def children(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


@contextmanager
def session(server: Server, link: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A program with a session, and the process of its worker."""
    argv = [OUTBOARD, "run", "--gpu", server.urls[link], "--", sys.executable, TEST_PROGRAMS / "holds_memory.py"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n", server.log.read_text()
        seen = json.loads(subprocess.check_output([OUTBOARD, "top", server.urls["shm"], "--json"]))
        [worker] = [s["worker_pid"] for s in seen["sessions"] if s["pid"] == program.pid]
        yield program, worker


def works(program: subprocess.Popen[str]) -> bool:
    assert program.stdin is not None and program.stdout is not None
    program.stdin.write("works\n")
    program.stdin.flush()
    return program.stdout.readline() == "works\n"


def inject(process: int, calls: list[str]) -> list[int]:
    argv = [sys.executable, TEST_PROGRAMS / "injects.py", str(process)]
    done = subprocess.run(argv, input="".join(f"{c}\n" for c in calls), capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


@can_inject
@pytest.mark.parametrize("spare", ["0", "1"])
def test_a_workers_own_calls_are_refused(tmp_path: Path, spare: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    server = start_server(tmp_path, "--spare", spare)
    parent = server.process.pid
    with session(server, "shm") as (program, worker):
        bad = {
            "exec": f"{EXECVE} /bin/true 0 0",
            "fork": f"{FORK}",
            "open": f"{OPEN} {secret} 0",
            "passwords": f"{OPEN} /etc/passwd 0",
            "environment": f"{OPEN} /proc/{parent}/environ 0",
            "write": f"{OPEN} {tmp_path}/new 0o101 0o600",
            "chmod": f"{CHMOD} {secret} 0o777",
            "network": f"{SOCKET} {AF_INET} {STREAM} 0",
            "signal": f"{KILL} {parent} 0",
        }
        answers = dict(zip(bad, inject(worker, list(bad.values())), strict=True))
        assert {name for name, answer in answers.items() if answer not in REFUSED} == set(), answers
        good = [
            f"{GETPID}",
            f"{SOCKET} {AF_UNIX} {STREAM} 0",
            f"{OPEN} /proc/self/status 0",
            f"{OPEN} {tmp_path}/cache 0",
        ]
        own, *opened = inject(worker, good)
        assert own == worker and all(fd > 0 for fd in opened), opened
        assert works(program), "the session goes on"
    assert not (tmp_path / "new").exists()
    assert server.stop() == 0


@can_inject
def test_without_a_sandbox_the_same_calls_succeed(tmp_path: Path) -> None:
    server = start_server(tmp_path, "--sandbox", "off", "--spare", "0")
    with session(server, "shm") as (program, worker):
        [passwords, network] = inject(worker, [f"{OPEN} /etc/passwd 0", f"{SOCKET} {AF_INET} {STREAM} 0"])
        assert passwords > 0 and network > 0
        assert works(program)
        assert status(worker)["NoNewPrivs"] == status(os.getpid())["NoNewPrivs"]
    assert server.stop() == 0


def test_each_process_of_the_server_but_its_first_is_confined(tmp_path: Path) -> None:
    server = start_server(tmp_path, "--metrics", "0", "--spare", "1")
    with session(server, "tcp") as (program, worker):
        assert works(program)
        # The worker, the next spare and the process that answers for metrics.
        deadline = time.monotonic() + 20
        while len(children(server.process.pid)) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for process in children(server.process.pid):
            its = status(process)
            while its["Seccomp"] != "2":
                assert time.monotonic() < deadline, its
                its = status(process)
            assert its["NoNewPrivs"] == "1"
        core = [line for line in Path(f"/proc/{worker}/limits").read_text().splitlines() if "core file" in line]
        assert core[0].split()[4:6] == ["0", "0"], core
        assert Path(f"/proc/{worker}/coredump_filter").read_text().strip() == "00000000"
    assert status(server.process.pid)["Seccomp"] == status(os.getpid())["Seccomp"]
    assert server.stop() == 0


def test_doctor_says_what_the_kernel_has(tmp_path: Path) -> None:
    server = start_server(tmp_path)
    said = subprocess.run([OUTBOARD, "doctor", "--gpu", server.urls["shm"], "--json"], capture_output=True, text=True)
    [finding] = [one for one in json.loads(said.stdout) if one["what"] == "sandbox of workers"]
    assert (finding["verdict"], finding["found"]) == ("ok", "seccomp and Landlock")
    assert server.stop() == 0

"""The attacks of `make hostile`, small."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import attacks
from attacks import Counts
from harness import TEST_PROGRAMS, Server, run_through, start_server
from test_bad_input import wait_until
from test_sandbox import session, works

# Of the server's resident memory, after many sessions.
GROWTH_MAX = 0.02
# Timer of a socket that is kept alive, in /proc/net/tcp, and the most seconds until its next question.
ESTABLISHED, KEPT_ALIVE, KEPT_ALIVE_S_MAX = "01", "02", 60
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def test_killed_workers(tmp_path: Path) -> None:
    server = start_server(tmp_path)
    attacks.killed_workers(server, 12)
    assert server.stop() == 0


def test_mutated_messages(server: Server) -> None:
    attacks.mutated_messages(server, 150)


def test_mutated_ptx(server: Server) -> None:
    attacks.mutated_ptx(server, 60)


def test_faults_beside_programs_that_compute(server: Server) -> None:
    attacks.faults_beside(server, 4)


def test_sessions_in_a_row(tmp_path: Path) -> None:
    server = start_server(tmp_path)
    seen = attacks.sessions_in_a_row(server, 30, warm=10)
    assert server.stop() == 0
    assert seen["growth"] <= GROWTH_MAX, seen  # type: ignore[operator]
    assert seen["first"]["descriptors"] == seen["last"]["descriptors"], seen  # type: ignore[index]


def test_sessions_at_once(server: Server) -> None:
    attacks.sessions_at_once(server, 16)


def test_mixed_work(tmp_path: Path) -> None:
    seen = attacks.mixed_work(tmp_path, 2, warm=6, pause_s=0.05)
    assert seen["checked_bytes"], seen


def test_allocations_that_fail(tmp_path: Path) -> None:
    seen: Counts = attacks.failing_allocations(tmp_path, 97)
    assert seen["told"], seen


def test_clocks_that_jump(tmp_path: Path) -> None:
    attacks.jumping_clocks(tmp_path, 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root makes a small disk")
def test_a_cache_without_room(tmp_path: Path) -> None:
    attacks.full_cache(tmp_path)


def test_connections_are_kept_alive(tmp_path: Path) -> None:
    """A NAT forgets idle connections after minutes: each end asks in less than one."""
    server = start_server(tmp_path, "--spare", "0")
    port = int(server.urls["tcp"].rpartition(":")[2])
    with session(server, "tcp") as (program, _):

        def are_kept_alive() -> bool:
            rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
            ends = [row for row in rows if port in {int(row[at].split(":")[1], 16) for at in (1, 2)}]
            timers = [row[5].split(":") for row in ends if row[3] == ESTABLISHED]
            kept = [kind == KEPT_ALIVE and int(ticks, 16) <= KEPT_ALIVE_S_MAX * TICKS_PER_S for kind, ticks in timers]
            return len(kept) >= 2 and all(kept)

        # Bytes that are under way have another timer, until they are acknowledged.
        wait_until(are_kept_alive)
        assert works(program)
    assert server.stop() == 0


REFUSING = """
import ctypes, os, platform, struct, sys
assert platform.machine() == "x86_64"
MEMFD_CREATE, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER, EPERM = 319, 38, 22, 2, 1
# The number of the call is at the start of the data; one is refused, all others pass.
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, MEMFD_CREATE), (0x06, 0, 0, 0x50000 | EPERM), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(steps), ctypes.addressof(code)))
prctl = ctypes.CDLL(None).prctl
assert prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 and prctl(PR_SET_SECCOMP, FILTER, program) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_shared_memory_that_is_refused_is_named(server: Server) -> None:
    """A sandbox without memfd_create around a program: over tcp it works, over shm it is told why or works."""
    program = [sys.executable, "-c", REFUSING, sys.executable, TEST_PROGRAMS / "calls.py", "cuInit:0"]
    done = server.run("tcp", *program)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    done = server.run("shm", *program)
    assert done.stdout == "0\n" or "memfd_create" in done.stderr, done.stderr


def test_a_server_without_shared_memory_says_so(tmp_path: Path) -> None:
    before = [sys.executable, "-c", REFUSING]
    server = start_server(tmp_path, before=before)
    done = run_through(server.urls["shm"], sys.executable, TEST_PROGRAMS / "calls.py", "cuInit:0", timeout=60)
    said = done.stderr + server.log.read_text()
    assert done.stdout == "0\n" or "memfd_create" in said, said
    assert "out of memory" not in said.lower()
    over_tcp = run_through(server.urls["tcp"], sys.executable, TEST_PROGRAMS / "soak.py", "0.1")
    assert over_tcp.returncode == 0, over_tcp.stderr + server.log.read_text()
    assert server.stop() == 0


ASKS_FOR_MUCH = """
import sys
sys.path.insert(0, sys.argv[1])
from ctypes import byref, c_size_t, c_uint64
from cuda import call, must, primary_context
primary_context()
at, free, total = c_uint64(), c_size_t(), c_size_t()
must("cuMemGetInfo_v2", byref(free), byref(total))
print(free.value)
must("cuMemAlloc_v2", byref(at), c_size_t(free.value // 2))
print(call("cuMemAlloc_v2", byref(at), c_size_t(free.value)))
"""


def limited(kib: int) -> list[str]:
    return ["sh", "-c", f'ulimit -v {kib}; exec "$@"', "sh"]


def test_a_limit_of_addresses(server: Server) -> None:
    """`ulimit -v` below the window of device memory: less of it, and the limit's name if that is too little."""
    for link in ("shm", "tcp"):
        done = server.run(link, *limited(1_000_000), sys.executable, TEST_PROGRAMS / "soak.py", "0.1")
        assert done.returncode == 0 and "ulimit" not in done.stderr, done.stdout + done.stderr
    asks = [sys.executable, "-c", ASKS_FOR_MUCH, TEST_PROGRAMS]
    done = server.run("shm", *limited(1_000_000), *asks)
    assert done.returncode == 0, done.stdout + done.stderr
    free, refused = done.stdout.split()
    assert int(free) <= 1_000_000 << 8 and refused == "CUDA_ERROR_OUT_OF_MEMORY"
    assert done.stderr.count("(ulimit -v)") == 1, done.stderr
    done = server.run("shm", *limited(100_000), *asks)
    assert done.returncode != 0 and "ulimit -v" in done.stderr, done.stdout + done.stderr


def test_a_limit_of_addresses_of_the_server(tmp_path: Path) -> None:
    server = start_server(tmp_path, before=limited(8_000_000))
    done = server.run("shm", sys.executable, TEST_PROGRAMS / "soak.py", "0.1")
    assert done.returncode == 0, done.stderr + server.log.read_text()
    done = server.run("tcp", sys.executable, "-c", ASKS_FOR_MUCH, TEST_PROGRAMS)
    assert done.returncode == 0 and int(done.stdout.split()[0]) <= 8_000_000 << 8, done.stdout + done.stderr
    assert "(ulimit -v)" in server.log.read_text()
    assert server.stop() == 0

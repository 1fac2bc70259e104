"""An idle server, worker and client use no processor time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import OUTBOARD, TEST_PROGRAMS, Server
from test_bad_input import worker_pids

PROGRAM = TEST_PROGRAMS / "idles.py"
# Time for activity after the last call to end: backoff grows, buffers are kept for a while.
SETTLE_S = 1.0
IDLE_S = 3.0
# Share of one core, for each process.
SHARE_MAX = 0.01
# A stream that waits: time until its polls are seldom, and the share of one core of a debug build.
WAITS, WAIT_SETTLE_S, WAIT_SHARE_MAX = TEST_PROGRAMS / "waits_for_ever.py", 3.0, 0.03


def cpu_s(pid: int) -> float:
    """Returns the processor time of a process, see proc_pid_stat(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle_shares(server: Server, link: str, level: str = "or+sr+local") -> dict[str, float]:
    """Returns each process's share of a core while a program that has worked is idle."""
    before = set(worker_pids(server))
    argv = [str(OUTBOARD), "run", "--gpu", server.urls[link], "--optimise", level, "--", sys.executable, str(PROGRAM)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None and client.stdin is not None
        assert client.stdout.readline().strip() == "idle"
        pids = {"client": client.pid, "server": server.process.pid}
        pids |= {f"worker {pid}": pid for pid in set(worker_pids(server)) - before}
        assert len(pids) > 2, "no worker serves the client"
        time.sleep(SETTLE_S)
        start, spent = time.monotonic(), {who: cpu_s(pid) for who, pid in pids.items()}
        time.sleep(IDLE_S)
        passed = time.monotonic() - start
        shares = {who: (cpu_s(pid) - spent[who]) / passed for who, pid in pids.items()}
        client.stdin.close()
        assert client.wait(30) == 0
    return shares


def test_a_waiting_stream_costs_nothing(server: Server, link: str) -> None:
    """A program waits for a value that nobody writes: its worker looks for it ever more seldom."""
    before = set(worker_pids(server))
    argv = [str(OUTBOARD), "run", "--gpu", server.urls[link], "--", sys.executable, str(WAITS)]
    with subprocess.Popen(argv) as client:
        time.sleep(WAIT_SETTLE_S)
        pids = [client.pid, server.process.pid, *(set(worker_pids(server)) - before)]
        assert len(pids) > 2, "no worker serves the client"
        start, spent = time.monotonic(), [cpu_s(pid) for pid in pids]
        time.sleep(IDLE_S)
        passed = time.monotonic() - start
        shares = [(cpu_s(pid) - cpu) / passed for pid, cpu in zip(pids, spent, strict=True)]
        assert client.poll() is None
        client.kill()
    assert max(shares) <= WAIT_SHARE_MAX, shares


@pytest.mark.parametrize("level", ["or+sr+local", "batch=8"])
def test_an_idle_program_costs_nothing(server: Server, link: str, level: str) -> None:
    shares = idle_shares(server, link, level)
    assert max(shares.values()) <= SHARE_MAX, shares

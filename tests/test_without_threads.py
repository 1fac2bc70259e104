"""A machine that gives no threads: errors at the call, never a wait without end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness import EXAMPLES, OUTBOARD, TEST_PROGRAMS, Server, start_server

REFUSED = [sys.executable, str(TEST_PROGRAMS / "without_threads.py")]


def test_a_server_without_threads_says_so(tmp_path: Path) -> None:
    server = start_server(tmp_path, "--spare", "0", before=REFUSED)
    done = server.run("shm", EXAMPLES / "vector_add", timeout=30)
    assert done.returncode != 0
    assert "no thread for the software GPU" in done.stdout + done.stderr + server.log.read_text()
    assert server.stop() == 0


def test_a_program_without_threads(server: Server, link: str) -> None:
    def run(program: str) -> subprocess.CompletedProcess[str]:
        argv = [*REFUSED, str(OUTBOARD), "run", "--gpu", server.urls[link], "--", str(EXAMPLES / program)]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60)

    done = run("vector_add")
    assert done.returncode == 0 and "every result is right" in done.stdout, done.stdout + done.stderr
    done = run("host_callbacks")
    assert done.returncode != 0 and "OS call failed" in done.stdout + done.stderr, done.stdout + done.stderr

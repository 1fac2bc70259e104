"""A thread that is cancelled (`pthread_cancel`) within a call ends after it, and leaves no lock behind."""

from __future__ import annotations

import subprocess
from pathlib import Path

from harness import OUTBOARD, TEST_PROGRAMS, Server


def test_other_threads_go_on(server: Server, link: str, tmp_path: Path) -> None:
    program, library = tmp_path / "cancels", OUTBOARD.parent / "liboutboard_client.so"
    (tmp_path / "libcuda.so.1").symlink_to(library)
    compiled = ["cc", "-O1", "-Wall", "-Werror", "-o", program, TEST_PROGRAMS / "cancels.c", "-pthread"]
    subprocess.run([*compiled, f"-L{tmp_path}", "-l:libcuda.so.1"], check=True)
    done = server.run(link, program)
    assert (done.stdout, done.returncode) == ("50 cancelled, the rest goes on\n", 0), done.stderr

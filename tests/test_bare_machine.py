"""Machines and containers without /proc or /dev: who cannot work there says so at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import OUTBOARD, TEST_PROGRAMS, Server, without_run

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root mounts anything")


def without(folder: str) -> list[str]:
    """A command in front of another one, for which this folder is empty."""
    return ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {folder} && exec "$@"', "sh"]


def test_the_folder_is_empty() -> None:
    for folder, file in (("/proc", "/proc/self"), ("/dev", "/dev/null")):
        assert subprocess.run([*without(folder), "test", "-e", file]).returncode == 1


@pytest.mark.parametrize(("folder", "said"), [("/proc", "/proc/self/exe"), ("/dev", "/dev/null")])
def test_a_server_listens_only_where_it_can_serve(tmp_path: Path, folder: str, said: str) -> None:
    serve = [OUTBOARD, "serve", "--no-config", "--device", "soft", "--no-cache", "--listen", f"shm://{tmp_path}/s"]
    done = subprocess.run([*without(folder), *serve], capture_output=True, text=True, timeout=20)
    assert done.returncode == 1 and done.stdout == "", done
    assert f"nobody can be served here: {said}: No such file" in done.stderr, done.stderr
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("folder", ["/proc", "/dev"])
def test_a_program_works_there(server: Server, link: str, tmp_path: Path, folder: str) -> None:
    env = {**without_run(tmp_path), "OUTBOARD_GPU": server.urls[link]}
    program = [*without(folder), sys.executable, TEST_PROGRAMS / "soak.py", "0.1"]
    done = subprocess.run(program, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_command_says_what_it_misses(server: Server) -> None:
    run = [OUTBOARD, "run", "--gpu", server.urls["tcp"], "--", "true"]
    done = subprocess.run([*without("/proc"), *run], capture_output=True, text=True, timeout=20)
    assert done.returncode != 0 and "/proc" in done.stderr, done


def test_a_full_disk_gets_no_half_of_a_key(tmp_path: Path) -> None:
    """Where there is no room for a key no file is left, so that the next try makes one."""
    key = tmp_path / "key"
    script = f"""mount -t tmpfs -o size=16k none {tmp_path}
        cat /dev/zero >{tmp_path}/fill 2>/dev/null
        {OUTBOARD} keygen {key} && exit 9
        test -e {key} && exit 8
        rm {tmp_path}/fill && {OUTBOARD} keygen {key} && {OUTBOARD} keygen --show {key}"""
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "No space left on device" in done.stderr, done
    assert "there is a key already" not in done.stderr
    made, shown = done.stdout.splitlines()
    assert made == shown

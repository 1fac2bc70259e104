"""Descriptors of the library's are neither taken for the program's nor the other way round."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness import EXAMPLES, TEST_PROGRAMS, Server, without_run

PROGRAM = TEST_PROGRAMS / "descriptors.py"


def test_a_program_without_standard_output(server: Server, link: str, tmp_path: Path) -> None:
    environment = {**without_run(tmp_path), "OUTBOARD_GPU": server.urls[link]}
    shell = ["sh", "-c", 'exec "$@" 1>&-', "sh", sys.executable, PROGRAM, "none", tmp_path]
    done = subprocess.run(shell, env=environment, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == "right\n", done.stderr


def test_files_under_the_numbers_of_closed_descriptors_stay_empty(server: Server, link: str, tmp_path: Path) -> None:
    done = server.run(link, sys.executable, PROGRAM, "taken", tmp_path)
    assert done.returncode == 0 and done.stderr.endswith("right\n"), done.stderr


def test_a_file_that_exists_is_not_recorded_to(server: Server, link: str, tmp_path: Path) -> None:
    file = tmp_path / "a.trace"
    file.write_text("of the program")
    done = server.run(link, EXAMPLES / "vector_add", env={"OUTBOARD_RECORD": str(file)})
    assert done.returncode == 0, done.stderr
    assert file.read_text() == "of the program"
    [beside] = tmp_path.glob("a.trace.*")
    assert f"{file} exists and is left as it is; the recording goes to {beside}" in done.stderr

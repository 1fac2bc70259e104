"""Programs built by stock nvcc, not relinked, computing the same answer over every link."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness import EXAMPLES, ROOT, Server

pytestmark = pytest.mark.smoke

PROGRAMS = sorted(p.stem for p in (ROOT / "examples" / "cuda").iterdir() if p.suffix in {".cu", ".cpp"})
EXPECTED = ROOT / "examples" / "expected"
SCRIPTS = sorted((ROOT / "examples" / "python").glob("*.py"))


@pytest.mark.parametrize("program", PROGRAMS)
def test_example(server: Server, link: str, program: str) -> None:
    done = server.run(link, EXAMPLES / program)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{server.log.read_text()[-4000:]}"
    assert f"{program}: every result is right" in done.stdout
    assert "WRONG" not in done.stdout
    printed = [line for line in done.stdout.splitlines() if not line.startswith("# ")]
    # On an H200 or H100; `make -C examples expected` writes it, on a machine with a GPU.
    assert printed == (EXPECTED / f"{program}.txt").read_text().splitlines()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
def test_python_example(server: Server, link: str, script: Path) -> None:
    done = server.run(link, sys.executable, script)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_a_failed_assertion_is_told_on_standard_error(server: Server, link: str) -> None:
    """The message appears once, on standard error as in CUDA; the program's own output does not
    contain it."""
    done = server.run(link, EXAMPLES / "device_assert")
    assert "Assertion" not in done.stdout
    told = [line for line in done.stderr.splitlines() if "Assertion `values[i] > 0` failed." in line]
    assert told and "device_assert.cu:" in told[0] and "block: [" in told[0] and "thread: [" in told[0], done.stderr

"""Programs built by stock nvcc, not relinked, computing the same answer over every link."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from conftest import EXAMPLES, ROOT, Server

PROGRAMS = sorted(p.stem for p in (ROOT / "examples" / "cuda").iterdir() if p.suffix in {".cu", ".cpp"})
SCRIPTS = sorted((ROOT / "examples" / "python").glob("*.py"))


@pytest.mark.parametrize("program", PROGRAMS)
def test_example(server: Server, link: str, program: str) -> None:
    done = server.run(link, EXAMPLES / program)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{server.log.read_text()[-4000:]}"
    assert f"{program}: every result is right" in done.stdout
    assert "WRONG" not in done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
def test_python_example(server: Server, link: str, script: Path) -> None:
    done = server.run(link, sys.executable, script)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("program", ["vector_add", "matmul_tiled", "reduce_shuffle", "graph_capture"])
def test_both_links_print_the_same(server: Server, program: str) -> None:
    def printed(link: str) -> list[str]:
        out = server.run(link, EXAMPLES / program).stdout
        return [line for line in out.splitlines() if not line.startswith("# ")]

    assert printed("shm") == printed("tcp")

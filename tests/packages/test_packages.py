"""numba-cuda and CuPy as they come from the index, on the software device: what they compile themselves runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import ROOT, Server, start_server

HERE = Path(__file__).parent
ENVIRONMENTS = ROOT / ".toolchain" / "packages"
# Packages that could not be installed here, one per line; `make test` prints them at its end.
SKIPPED = ROOT / "build" / "packages-skipped"
PROGRAM_S_MAX = 600
PROGRAMS = ["numba_kernels", "cupy_arrays", "cupy_libraries"]
# Those whose PTX is for a later device than the software device is by default.
NEWER = {"cupy_libraries": "12.0"}


def skip_without(environment: str) -> None:
    """Skips a test whose environment could not be installed; if that is not known, the test fails by itself."""
    missing = dict(line.split(": ", 1) for line in SKIPPED.read_text().splitlines()) if SKIPPED.exists() else {}
    if why := missing.get(environment):
        pytest.skip(why)


def run_program(server: Server, link: str, program: str, environment: str, caches: dict[str, str]) -> None:
    """Runs a program of this folder; all of its checks must pass."""
    skip_without(environment)
    source = HERE / f"{program}.py"
    python = ENVIRONMENTS / environment / "bin" / "python"
    done = server.run(link, python, source, env=caches, timeout=PROGRAM_S_MAX)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{server.log.read_text()[-4000:]}"
    # Each check prints its name when it is through; none was left out.
    [checks] = re.findall(r"for check in \(([^)]*)\):", source.read_text())
    assert done.stdout.split() == re.findall(r"\w+", checks)


@pytest.fixture(scope="session")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """A server for each capability of NEWER."""
    servers = {
        capability: start_server(tmp_path_factory.mktemp(f"capability{capability}"), "--capability", capability)
        for capability in set(NEWER.values())
    }
    yield servers
    assert all(server.stop() == 0 for server in servers.values())


@pytest.mark.parametrize("program", PROGRAMS)
def test_package(server: Server, newer: dict[str, Server], link: str, program: str, caches: dict[str, str]) -> None:
    run_program(newer.get(NEWER.get(program, ""), server), link, program, "numba_cupy", caches)

"""Python packages as they come from the index, on the software device: what they compile themselves runs."""

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
# By program: the environment that it runs in, of tools/packages.
PROGRAMS = {
    "numba_kernels": "numba_cupy",
    "cupy_arrays": "numba_cupy",
    "cupy_libraries": "numba_cupy",
    "triton_tutorials": "torch",
    "torch_stock": "torch",
    "torch_profiler": "torch",
}
# Those whose PTX is for a later device than the software device is by default.
NEWER = {"cupy_libraries": "12.0"}


def skip_without(environment: str) -> None:
    """Skips a test whose environment could not be installed; if that is not known, the test fails by itself."""
    missing = dict(line.split(": ", 1) for line in SKIPPED.read_text().splitlines()) if SKIPPED.exists() else {}
    if why := missing.get(environment):
        pytest.skip(why)


@pytest.fixture(scope="session")
def caches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Compiled once, for both links; nothing that somebody else compiled is used."""
    folder = tmp_path_factory.mktemp("caches")
    variables = ("CUPY_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "NUMBA_CACHE_DIR")
    return {variable: str(folder / variable.lower()) for variable in variables}


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
    server = newer.get(NEWER.get(program, ""), server)
    skip_without(PROGRAMS[program])
    source = HERE / f"{program}.py"
    python = ENVIRONMENTS / PROGRAMS[program] / "bin" / "python"
    done = server.run(link, python, source, env=caches, timeout=PROGRAM_S_MAX)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{server.log.read_text()[-4000:]}"
    # Each check prints its name when it is through; none was left out.
    [checks] = re.findall(r"for check in \(([^)]*)\):", source.read_text())
    assert done.stdout.split() == re.findall(r"\w+", checks)

"""Fixtures: one server with both links, shared by the tests of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from harness import TEST_PROGRAMS, Server, start_server

# Some tests use their programs as modules, too.
sys.path.append(str(TEST_PROGRAMS))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "smoke: what `make check` takes of `make programs`: seconds, and finds most")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start_server(tmp_path_factory.mktemp("server"))
    yield server
    assert server.process.poll() is None, f"the server died:\n{server.log.read_text()}"
    assert server.stop() == 0


@pytest.fixture(params=["shm", "tcp"])
def link(request: pytest.FixtureRequest) -> str:
    return str(request.param)

"""Fixtures: programs that are built once for the tests of a run, and a server that lends a device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import Server
from posting import build_on_cpu, build_on_gpu, lends


@pytest.fixture(scope="session")
def soak_on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_on_cpu(tmp_path_factory.mktemp("soak"), "soak.cu")


@pytest.fixture(scope="session")
def soak_on_gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_on_gpu(tmp_path_factory.mktemp("soak"), "soak.cu")


@pytest.fixture(scope="session")
def messages_on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_on_cpu(tmp_path_factory.mktemp("messages"), "messages.cu")


@pytest.fixture(scope="session")
def messages_on_gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_on_gpu(tmp_path_factory.mktemp("messages"), "messages.cu")


@pytest.fixture(scope="session")
def host_on_gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_on_gpu(tmp_path_factory.mktemp("host"), "host.cu")


@pytest.fixture(scope="session")
def two_kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_on_gpu(tmp_path_factory.mktemp("two_kernels"), "two_kernels.cu")


@pytest.fixture(scope="module")
def turns(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_on_gpu(tmp_path_factory.mktemp("turns"), "turns.cu")


@pytest.fixture(scope="session")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_on_gpu(tmp_path_factory.mktemp("ends"), "ends.cu")


@pytest.fixture(scope="session")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fabric")


@pytest.fixture(scope="session")
def lending(tmp_path_factory: pytest.TempPathFactory, fabric: Path) -> Iterator[Server]:
    with lends(tmp_path_factory.mktemp("lending"), fabric) as server:
        yield server

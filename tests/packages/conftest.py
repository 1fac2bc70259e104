"""Folders in which the packages keep what they compile."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def caches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Compiled once, for both links; nothing that somebody else compiled is used."""
    folder = tmp_path_factory.mktemp("caches")
    variables = ("CUPY_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "NUMBA_CACHE_DIR")
    return {variable: str(folder / variable.lower()) for variable in variables}

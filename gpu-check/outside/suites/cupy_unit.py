"""CuPy's own tests, from a checkout at the installed version."""

from __future__ import annotations

from pathlib import Path

from outside.pytests import Pytests

FOLDERS = ("core", "cuda", "fft", "linalg", "math", "random", "sorting", "statistics", "creation", "manipulation")


def open_suite(sources: Path) -> Pytests:
    return Pytests(sources / "cupy", [f"tests/cupy_tests/{name}_tests" for name in FOLDERS])

"""Triton's unit tests of its language, from a checkout at the installed version."""

from __future__ import annotations

from pathlib import Path

from outside.pytests import Pytests

FOLDER = "python/test/unit/language"


def open_suite(sources: Path) -> Pytests:
    return Pytests(sources / "triton", [FOLDER], "--device=cuda")

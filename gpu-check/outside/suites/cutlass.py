"""CUTLASS's examples, compiled by `outside/build.py`."""

from __future__ import annotations

from pathlib import Path

from outside.programs import Programs


def open_suite(sources: Path) -> Programs:
    return Programs(sources, "cutlass")

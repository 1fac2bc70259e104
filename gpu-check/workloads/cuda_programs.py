"""The project's own CUDA programs, built beforehand: what they print and how they end is compared.

Lines beginning with `# ` are left out: programs print there what may differ, such as times.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial

from harness import Result, Settings, SkipWorkload, digest_bytes, require

__all__ = ["WORKLOADS", "first_result", "healthy"]

PROGRAM_S_MAX = 40
# The loader's words for a library that this machine does not have.
MISSING_LIBRARY = re.compile(r"error while loading shared libraries: (?!libcuda)(\S+):")


def first_result() -> None:
    """The programs compute by themselves."""


def healthy() -> bool:
    return True


def run(program: str, settings: Settings) -> Result:
    command = [sys.executable, program] if program.endswith(".py") else [program]
    done = subprocess.run(command, capture_output=True, timeout=PROGRAM_S_MAX, check=False)
    said = done.stderr.decode(errors="replace")
    missing = MISSING_LIBRARY.search(said)
    if missing:
        raise SkipWorkload(f"not installed: {missing[1]}")
    lines = [line for line in done.stdout.splitlines() if not line.startswith(b"# ")]
    last = said.strip() or b"\n".join(lines).decode(errors="replace")
    require(done.returncode == 0, f"ended with {done.returncode}: {last[-300:]}")
    return Result(digest=digest_bytes(b"\n".join(lines)), facts={"lines": len(lines)})


class _Programs(dict[str, Callable[[Settings], Result]]):
    """Any program by its path."""

    def __missing__(self, path: str) -> Callable[[Settings], Result]:
        return partial(run, path)


WORKLOADS = _Programs()

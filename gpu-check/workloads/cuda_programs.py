"""The project's own CUDA programs, built beforehand: what they print and how they end is compared.

Lines beginning with `# ` are left out: programs print there what may differ, such as times.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

from harness import Result, Settings, digest_bytes, require

__all__ = ["WORKLOADS", "first_result", "healthy"]

FOLDER = Path(os.environ.get("GPU_CHECK_EXAMPLES", Path(__file__).resolve().parents[2] / "build" / "examples"))
PROGRAM_S_MAX = 40


def first_result() -> None:
    """The programs compute by themselves."""


def healthy() -> bool:
    return True


def run(program: Path, settings: Settings) -> Result:
    done = subprocess.run([program], capture_output=True, timeout=PROGRAM_S_MAX, check=False)
    lines = [line for line in done.stdout.splitlines() if not line.startswith(b"# ")]
    last = done.stderr.decode(errors="replace").strip()[-300:]
    require(done.returncode == 0, f"ended with {done.returncode}: {last}")
    return Result(digest=digest_bytes(b"\n".join(lines)), facts={"lines": len(lines)})


def _programs() -> dict[str, Callable[[Settings], Result]]:
    if not FOLDER.is_dir():
        return {}
    return {path.name: partial(run, path) for path in FOLDER.iterdir() if os.access(path, os.X_OK)}


WORKLOADS = _programs()

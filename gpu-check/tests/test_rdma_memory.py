"""The check of adapters and a GPU's memory says where it cannot be made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent / "rdma_memory.py"


def test_where_something_is_missing_it_says_not_run() -> None:
    command = [sys.executable, SCRIPT, "--server-device", "none0", "--client-device", "none1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 77
    assert done.stderr.startswith("NOT RUN: copies between RDMA adapters and an NVIDIA GPU's memory: there is no ")

"""Two ranks of NCCL, of which one is killed, on one GPU or with a GPU each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import CheckFailed, require

RANK = Path(__file__).with_name("killed_rank.py")
# Until both ranks add up, and from the kill to the survivor's end.
READY_S_MAX = 50
SURVIVES_S_MAX = 50
# Ranks with a GPU each write into each other's memory, and NCCL does not notice that one is gone.
ERROR_S = {1: 25, 2: 5}


def survivor(gpus: int) -> dict[str, Any]:
    """Starts both ranks, kills the second while they add up, and returns what the first says of itself."""
    with tempfile.TemporaryDirectory(prefix="gpu-check-nccl-") as name:
        folder = Path(name)
        ranks = [_start_rank(rank, folder, gpus) for rank in range(2)]
        try:
            _wait_until_both_add_up(ranks, folder)
            ranks[1].kill()
            try:
                out, _ = ranks[0].communicate(timeout=SURVIVES_S_MAX)
            except subprocess.TimeoutExpired as late:
                raise CheckFailed(f"the rank that is left hangs: {_said(folder)}") from late
            print(_said(folder), file=sys.stderr, flush=True)
            status = ranks[0].returncode
            require(status == 0, f"the rank that is left ended with {status}: {_said(folder)}")
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    answer: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return answer


def _start_rank(rank: int, folder: Path, gpus: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_DEBUG": "WARN"}
    if gpus == 1:
        # NCCL takes them for two machines.
        environment["NCCL_HOSTID"] = "ab"[rank]
    else:
        environment["NCCL_NVLS_ENABLE"] = "0"
    command = [sys.executable, str(RANK), str(rank), str(folder), str(rank % gpus), str(ERROR_S[gpus])]
    errors = (folder / f"errors-{rank}").open("w")
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)


def _wait_until_both_add_up(ranks: list[subprocess.Popen[str]], folder: Path) -> None:
    end = time.monotonic() + READY_S_MAX
    while not all((folder / f"ready-{rank}").exists() for rank in range(2)):
        if any(rank.poll() is not None for rank in ranks) or time.monotonic() > end:
            raise CheckFailed(f"the ranks did not begin: {_said(folder)}")
        time.sleep(0.05)
    time.sleep(0.5)


def _said(folder: Path) -> str:
    return " | ".join((folder / f"errors-{rank}").read_text()[-1000:] for rank in range(2))

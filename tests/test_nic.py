"""Programs for RDMA adapters, on the adapter in software."""

from __future__ import annotations

import subprocess

from harness import OUTBOARD


def run(*program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([OUTBOARD, "nic", "run", "--", *program], capture_output=True, text=True, timeout=60)


def test_a_program_finds_the_adapter() -> None:
    """The exit code and the arguments are the program's own."""
    done = run("sh", "-c", "ibv_devinfo -d mlx5_0 && exit 5")
    assert done.returncode == 5, done.stderr
    assert "hca_id:\tmlx5_0" in done.stdout and "PORT_ACTIVE" in done.stdout
    done = run("ibv_devinfo", "-d", "mlx5_1")
    assert done.returncode != 0 and "mlx5_1" in done.stderr


def test_a_program_that_is_not_there_is_said() -> None:
    done = run("/nowhere/at-all")
    assert done.returncode == 127
    assert "/nowhere/at-all" in done.stderr

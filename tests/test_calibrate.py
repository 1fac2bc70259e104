"""`outboard calibrate`, and the use that `outboard require` makes of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from harness import OUTBOARD

CALIBRATE_S_MAX = 180
FIELDS = ["start_ns", "start_ns_per_byte", "time_local_ns", "receive_ns", "server_ns"]
FIELDS += ["copy_ns_per_byte", "device_ns_per_byte", "processor_more", "handoff_more"]


def calibrate(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [str(OUTBOARD), "calibrate", "--quick", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=CALIBRATE_S_MAX)


@pytest.mark.parametrize("link", ["shm", "tcp"])
def test_constants_are_costs(link: str, tmp_path: Path) -> None:
    path = tmp_path / "constants.json"
    done = calibrate("--link", link, "--json", str(path))
    assert done.returncode == 0, done.stderr
    constants = json.loads(path.read_text())
    assert sorted(constants) == sorted([*FIELDS, "source", "waits", "waits_for_copies"])
    waits = constants["waits"]
    assert [wait["gpu_ns"] for wait in waits] == [0, 100_000, 1_000_000, 3_000_000]
    assert all(0 <= wait["more_ns"] < 1e9 for wait in waits), waits
    assert "a wait of 3ms" in done.stdout
    assert constants["waits_for_copies"] is False
    assert all(0 <= constants[field] < 1e9 for field in FIELDS), constants
    # Both are measured calls; one sends a message, the other only reads.
    assert 0 < constants["time_local_ns"] < constants["start_ns"], constants
    assert link in constants["source"]
    assert "sending a call" in done.stdout
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_no_server_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "constants.json"
    done = calibrate("--gpu", f"shm://{tmp_path}/nobody.sock", "--json", str(path))
    assert done.returncode == 1
    assert "nobody.sock" in done.stderr
    assert not path.exists()


def test_a_server_and_a_link_are_not_asked_for_together() -> None:
    assert calibrate("--gpu", "tcp://127.0.0.1:1", "--link", "shm").returncode == 2

"""`outboard probe --recording`: whether the measured network would do for a recorded program."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from harness import EXAMPLES, OUTBOARD, Server


def probe(server: Server, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    argv = [str(OUTBOARD), "probe", server.urls["shm"], "--seconds", "1", *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def recording(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "a.trace"
    argv = [str(OUTBOARD), "run", "--gpu", server.urls["shm"], "--record", str(path), "--"]
    subprocess.run([*argv, str(EXAMPLES / "vector_add")], check=True, capture_output=True, timeout=60)
    return path


def test_a_program_is_judged(server: Server, recording: Path) -> None:
    done = probe(server, "--recording", recording, "--budget", "1000%", "--json")
    assert done.returncode in (0, 3), done.stderr
    [judged] = json.loads(done.stdout)["recordings"]
    assert judged["recording"] == str(recording) and set(judged["overhead"]) == {"simulated", "closed_form"}
    # The exit code and the text agree.
    assert judged["fits"] is (judged["overhead"]["simulated"] <= 10) is (done.returncode == 0)
    done = probe(server, "--recording", recording, "--recording", recording)
    assert done.stdout.count("% an iteration") == 2 and "the budget" in done.stdout


def test_what_cannot_be_used_is_found_out_first(server: Server, recording: Path, tmp_path: Path) -> None:
    junk = tmp_path / "junk"
    junk.write_bytes(b"not a recording")
    for arguments, text in [
        (["--recording", tmp_path / "missing"], "missing"),
        (["--recording", recording, "--recording", junk], "junk"),
        (["--recording", recording, "--constants", junk], "junk"),
    ]:
        done = probe(server, *arguments)
        assert (done.returncode, done.stdout) == (1, "") and text in done.stderr, done.stderr
    assert probe(server, "--recording", recording, "--budget", "-1%").returncode == 2

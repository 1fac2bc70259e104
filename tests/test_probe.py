"""`outboard probe --recording`: whether the measured network would do for a recorded program; and what `probe` and
`doctor` say when a signal ends them."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
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


SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def ended(argv: list[str], number: signal.Signals, when: float | socket.socket) -> tuple[str, str]:
    """What a command prints that is ended after some time, or when it has connected."""
    process = subprocess.Popen([str(OUTBOARD), *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        if isinstance(when, socket.socket):
            when.settimeout(60)
            # It waits for an answer.
            kept = when.accept()
        else:
            kept = time.sleep(when)
        process.send_signal(number)
        said = process.communicate(timeout=20)
    finally:
        process.kill()
    del kept
    assert process.returncode == 128 + number, said
    assert f"outboard: interrupted by {number.name} while " in said[1], said
    return said


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_the_doctor_with_what_it_has_found(number: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        out, err = ended(["doctor", "--gpu", url], number, silent)
        assert "shared memory" in out and "asking the server; what was found until then is said" in err, err
        out, _ = ended(["doctor", "--gpu", url, "--json"], number, silent)
        assert {"release", "shared memory"} < {finding["what"] for finding in json.loads(out)}


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_the_probe_with_what_it_has_measured(server: Server, number: signal.Signals) -> None:
    # Longer, until the host is quick enough for one part in that time.
    for phase_s in (1, 3, 9):
        argv = ["probe", server.urls["shm"], "--seconds", str(5 * phase_s), "--json"]
        out, err = ended(argv, number, 1.5 * phase_s)
        if out:
            break
    found = json.loads(out)
    assert found["idle"]["samples"] >= 1 and "loaded_back" not in found, found
    assert "what was found until then is said" in err


def test_a_probe_that_has_measured_nothing_keeps_the_file(tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    path.write_text("what was there before")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        out, err = ended(["probe", url, f"--json={path}"], signal.SIGTERM, silent)
    assert out == "" and "connecting to the server" in err and "is said" not in err, (out, err)
    assert path.read_text() == "what was there before"

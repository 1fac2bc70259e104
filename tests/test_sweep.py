"""`outboard sweep`: every network has its turns, more delay takes longer, and finished runs are not
repeated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness import EXAMPLES, OUTBOARD, TEST_PROGRAMS, Server
from test_bad_input import wait_until

SWEEP_S_MAX = 120
# 20 waits for the server; prints their time twice.
WAITS = TEST_PROGRAMS / "waits_for_server.py"


def command(server: Server, out: Path, *arguments: str) -> list[str]:
    return [str(OUTBOARD), "sweep", "--gpu", server.urls["shm"], "--out", str(out), *arguments]


def sweep(server: Server, out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = command(server, out, *arguments)
    return subprocess.run(argv, capture_output=True, text=True, timeout=SWEEP_S_MAX)


def results(out: Path) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = json.loads(out.read_text())["runs"]
    return runs


def test_more_delay_takes_longer(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "sweep.json"
    arguments = ["--rtt", "2ms,0.02s", "--rounds", "2", "--metric", r"took ([0-9.]+) ms", "--"]
    done = sweep(server, out, *arguments, sys.executable, str(WAITS))
    assert done.returncode == 0, done.stderr
    assert "2ms" in done.stdout and "20ms" in done.stdout and "unbounded" in done.stdout
    runs = results(out)
    assert [(run["round"], run["network"]) for run in runs] == [
        (number, network) for number in range(2) for network in (None, "rtt=2ms", "rtt=20ms")
    ]
    # 20 round trips of the network each, whatever else the machine does.
    for run in runs:
        least = {None: 0, "rtt=2ms": 40, "rtt=20ms": 400}[run["network"]]
        assert run["value"] >= least and run["value"] < 999, run
    # The same command again has nothing left to run, and prints the same.
    again = sweep(server, out, *arguments, sys.executable, str(WAITS))
    assert (again.returncode, again.stdout, results(out)) == (0, done.stdout, runs)
    # Another sweep does not touch the file.
    other = sweep(server, out, "--rtt", "2ms", "--", str(EXAMPLES / "vector_add"))
    assert other.returncode == 1 and "is of another sweep" in other.stderr
    assert results(out) == runs


def test_bandwidths_and_the_time_of_the_whole_run(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "sweep.json"
    arguments = ["--rtt", "10us", "--bandwidth", "1Gbps,12.5GB/s", "--rounds", "1", "--", str(EXAMPLES / "vector_add")]
    done = sweep(server, out, *arguments)
    assert done.returncode == 0, done.stderr
    assert [run["network"] for run in results(out)] == [
        None,
        "rtt=10us,bandwidth=1Gbps",
        "rtt=10us,bandwidth=100Gbps",
    ]
    assert all(run["value"] == run["seconds"] > 0 for run in results(out))


def test_interrupted_it_goes_on_and_leaves_nothing_running(server: Server, tmp_path: Path) -> None:
    out, started = tmp_path / "sweep.json", tmp_path / "started"
    program = f"import pathlib, time; pathlib.Path({str(started)!r}).write_text(str(__import__('os').getpid()))\n"
    program += f"if not pathlib.Path({str(tmp_path / 'quick')!r}).exists(): time.sleep(600)\nprint('took 1 ms')"
    argv = command(server, out, "--rtt", "1ms", "--rounds", "1", "--metric", r"took (\S+)", "--")
    argv += [sys.executable, "-c", program]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + SWEEP_S_MAX
    while not (started.exists() and started.read_text()):
        assert time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=SWEEP_S_MAX)
    assert process.returncode == 130 and "goes on from" in said
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
    assert results(out) == []
    (tmp_path / "quick").touch()
    done = subprocess.run(argv, capture_output=True, text=True, timeout=SWEEP_S_MAX)
    assert done.returncode == 0, done.stderr
    assert len(results(out)) == 2


def test_what_fails_is_said_and_tried_again(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "sweep.json"
    arguments = ["--rtt", "1us,2us", "--rounds", "1", "--metric", "x([0-9]+)"]
    failing = ["--", sys.executable, "-c", "import sys; sys.exit('what a pity')"]
    done = sweep(server, out, *arguments, *failing)
    assert done.returncode == 1 and "what a pity" in done.stderr and "--keep-going" in done.stderr
    assert len(results(out)) == 1
    done = sweep(server, out, *arguments, "--keep-going", *failing)
    assert done.returncode == 1 and done.stdout.count("failed") == 2
    assert len(results(out)) == 3
    silent = sweep(server, tmp_path / "other.json", *arguments, "--", "true")
    assert silent.returncode == 1 and "nothing that matches x([0-9]+)" in silent.stderr
    slow = sweep(server, tmp_path / "slow.json", "--rtt", "1us", "--timeout-s", "1", "--", "sleep", "600")
    assert slow.returncode == 1 and "longer than 1 s" in slow.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--rtt", "10"], "10us"),
        (["--rtt", "-1us"], "-1us"),
        (["--rtt", "1us", "--bandwidth", "0Gbps"], "0Gbps"),
        (["--rtt", "1us", "--metric", "("], "no regular expression"),
        (["--rtt", "1us", "--rounds", "0"], "from 1 to 1000"),
        ([], "--rtt"),
    ],
)
def test_wrong_flags(server: Server, tmp_path: Path, arguments: list[str], text: str) -> None:
    out = tmp_path / "sweep.json"
    done = sweep(server, out, *arguments, "--", "true")
    assert done.returncode == 2 and text in done.stderr, done.stderr
    assert not out.exists()


def test_files_that_are_no_sweeps(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "notes.txt"
    out.write_text("my notes")
    done = sweep(server, out, "--rtt", "1us", "--", "true")
    assert done.returncode == 1 and "no file of a sweep" in done.stderr
    assert out.read_text() == "my notes"
    done = sweep(server, Path("/nonexistent/x.json"), "--rtt", "1us", "--", "true")
    assert done.returncode == 1 and "writing /nonexistent/x.json" in done.stderr


def test_a_sweep_that_is_killed_leaves_no_program(server: Server, tmp_path: Path) -> None:
    said = tmp_path / "pid"
    program = f"import os, time; open({str(said)!r}, 'w').write(f'{{os.getpid()}}\\n'); time.sleep(600)"
    argv = command(server, tmp_path / "out.json", "--rtt", "1us", "--", sys.executable, "-c", program)
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: said.exists() and said.read_text().endswith("\n"))
    pid = int(said.read_text())
    process.kill()
    process.wait()
    wait_until(lambda: not Path(f"/proc/{pid}").exists())

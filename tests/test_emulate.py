"""`outboard run --emulate`: equal results, and nothing faster than the network, over any link."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import EXAMPLES, OUTBOARD, TEST_PROGRAMS, Server, without_run
from test_bad_input import CASES, MISUSE, start, still_serves, wait_until, worker_pids
from test_calls import counts
from test_levels import OVER_TCP
from test_long_copies import run as long_copies
from test_long_copies import server_with_data_connections  # noqa: F401
from test_programs import PROGRAMS

TIMES = TEST_PROGRAMS / "over_a_network.py"
# Every kind of delay, each short.
NETWORK = "rtt=200us,bandwidth=10Gbps,jitter=20us,tail=1ms@1%"

CALLS = 20
RTT_S = 0.02
LENGTH = 4 << 20
BYTES_PER_S = 50e6


def emulated(server: Server, link: str, network: str, *command: str | Path) -> subprocess.CompletedProcess[str]:
    argv = [str(OUTBOARD), "run", "--gpu", server.urls[link], "--emulate", network, "--", *map(str, command)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120)


def times(server: Server, link: str, network: str) -> dict[str, float]:
    done = emulated(server, link, network, sys.executable, TIMES, str(CALLS), str(LENGTH))
    assert done.returncode == 0, done.stderr
    taken: dict[str, float] = json.loads(done.stdout)
    return taken


@pytest.mark.parametrize("program", PROGRAMS)
def test_example_over_shm(server: Server, program: str) -> None:
    done = emulated(server, "shm", NETWORK, EXAMPLES / program)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{server.log.read_text()[-4000:]}"
    assert f"{program}: every result is right" in done.stdout


@pytest.mark.parametrize("program", OVER_TCP)
def test_example_over_tcp(server: Server, program: str) -> None:
    done = emulated(server, "tcp", NETWORK, EXAMPLES / program)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{server.log.read_text()[-4000:]}"
    assert f"{program}: every result is right" in done.stdout


@pytest.mark.parametrize("case", CASES)
def test_errors_are_the_same(server: Server, link: str, case: str) -> None:
    bare = server.run("tcp", sys.executable, MISUSE, case)
    over = emulated(server, link, NETWORK, sys.executable, MISUSE, case)
    assert (over.returncode, over.stdout) == (bare.returncode, bare.stdout), over.stderr


def test_calls_that_wait_take_a_round_trip_each_and_others_none(server: Server, link: str) -> None:
    taken = times(server, link, f"rtt={RTT_S}s")
    assert taken["waits"] >= CALLS * RTT_S
    # A further round trip per call would double the time.
    assert taken["waits"] < 1.9 * CALLS * RTT_S + 0.1
    assert taken["launches"] < CALLS * RTT_S / 2
    # The bandwidth is the link's own: these take a few round trips, in however many pieces.
    for way in ["in, pageable", "in, pinned", "out, pageable"]:
        assert RTT_S <= taken[way] < 0.5, way


def test_no_byte_goes_around_the_network(server: Server, link: str) -> None:
    taken = times(server, link, f"bandwidth={BYTES_PER_S / 1e6}MB/s")
    copies = [way for way in taken if way.startswith(("in", "out"))]
    assert len(copies) == 6
    for way in copies:
        assert taken[way] >= LENGTH / BYTES_PER_S, f"{way}: {taken[way]} s"
        assert taken[way] < 3 * LENGTH / BYTES_PER_S + 0.1, f"{way}: {taken[way]} s"


def test_data_connections_share_the_network(server_with_data_connections: Server, tmp_path: Path) -> None:  # noqa: F811
    stats = tmp_path / "stats.json"
    network = f"rtt=2ms,bandwidth={BYTES_PER_S / 1e6}MB/s"
    env = {"OUTBOARD_DATA_CONNECTIONS": "4", "OUTBOARD_STATS": str(stats), "OUTBOARD_EMULATE": network}
    done = server_with_data_connections.run("tcp", sys.executable, TIMES, "1", str(LENGTH), env=env)
    assert done.returncode == 0, done.stderr
    carried = json.loads(stats.read_text())["data_connections"]
    assert min(carried["sent_bytes"], carried["received_bytes"]) >= LENGTH, carried
    for way, taken in json.loads(done.stdout).items():
        if way.startswith(("in", "out")):
            assert taken >= LENGTH / BYTES_PER_S, f"{way}: {taken} s"


@pytest.mark.parametrize("part", ["plain", "detached", "order", "same_memory", "threads"])
@pytest.mark.parametrize(("link", "connections"), [("tcp", 3), ("tcp", 0), ("shm", 0)])
def test_long_copies(
    server_with_data_connections: Server,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    link: str,
    connections: int,
    part: str,
) -> None:
    # Many frames are under way at once, and are received before their time.
    monkeypatch.setenv("OUTBOARD_EMULATE", "rtt=20ms,bandwidth=20Gbps,jitter=100us")
    carried, _, _ = long_copies(server_with_data_connections, tmp_path, connections, part, link)
    assert carried["count"] == connections


def test_calls_do_what_they_do_over_tcp(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = counts(server, "tcp", tmp_path, 10)
    monkeypatch.setenv("OUTBOARD_EMULATE", NETWORK)
    for link in ["shm", "tcp"]:
        over = counts(server, link, tmp_path, 10)
        waited = {call: done["synchronous"] for call, done in over.items()}
        assert waited == {call: done["synchronous"] for call, done in bare.items()}


def test_statistics_are_printed(server: Server) -> None:
    argv = [str(OUTBOARD), "run", "--gpu", server.urls["shm"], "--emulate", "rtt=1ms", "--stats", "--"]
    done = subprocess.run([*argv, str(EXAMPLES / "vector_add")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "outboard: calls:" in done.stderr


def test_worker_killed(server: Server, link: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOARD_EMULATE", "rtt=100ms")
    before = set(worker_pids(server))
    client = start(server, link, "wait_for_the_end", "working")
    for pid in set(worker_pids(server)) - before:
        os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    out, err = client.communicate(timeout=20)
    assert out.split() == ["CUDA_ERROR_DEVICE_UNAVAILABLE"] * 3, out + err
    assert err.count("the session with the GPU server is lost") == 1, err
    assert time.monotonic() - killed < 10
    still_serves(server, link)


def test_client_killed(server: Server, link: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOARD_EMULATE", "rtt=100ms,bandwidth=1Gbps")
    before = set(worker_pids(server))
    client = start(server, link, "copy_for_ever", "copying")
    time.sleep(0.3)
    assert set(worker_pids(server)) - before
    client.kill()
    client.wait()
    wait_until(lambda: not set(worker_pids(server)) - before)
    still_serves(server, link)


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        ("10us", "does not say what it is, as rtt=10us"),
        ("rtt=10", "no unit, as 10us has"),
        ("rtt=10us,rtt=20us", "rtt is given twice"),
        ("delay=10us", 'no "delay"'),
        ("nowhere", "known as"),
        ("bandwidth=-1Gbps", "is negative"),
    ],
)
def test_a_network_that_means_nothing_is_refused(server: Server, tmp_path: Path, network: str, reason: str) -> None:
    refused = emulated(server, "shm", network, "true")
    assert refused.returncode == 2
    assert reason in refused.stderr
    assert "rack-rdma" in refused.stderr, "what would be accepted"
    # A program not started by `outboard run`.
    program = [sys.executable, TEST_PROGRAMS / "calls.py", "cuInit:0"]
    env = {**without_run(tmp_path), "OUTBOARD_GPU": server.urls["shm"], "OUTBOARD_EMULATE": network}
    done = subprocess.run(program, env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "46", "CUDA_ERROR_DEVICE_UNAVAILABLE"
    assert "OUTBOARD_EMULATE" in done.stderr and reason in done.stderr, done.stderr


def test_a_known_network_is_taken(server: Server) -> None:
    done = emulated(server, "shm", "rack-rdma,jitter=1us", EXAMPLES / "vector_add")
    assert done.returncode == 0, done.stderr


CHANGES = TEST_PROGRAMS / "changes_network.py"


def test_a_program_changes_the_network_while_it_runs(server: Server, link: str) -> None:
    networks = ["rtt=20ms", "", "rtt=40ms", "rtt=10", "rtt=1us"]
    done = emulated(server, link, "rtt=1us", sys.executable, CHANGES, *networks)
    assert done.returncode == 0, done.stderr
    first, *lines, last = done.stdout.splitlines()
    assert (first, last) == ("before cuInit 3", "null 1")
    said = [line.rsplit(" ", 2) for line in lines]
    assert [(network, int(result)) for network, result, _ in said] == [
        (network, 1 if network == "rtt=10" else 0) for network in networks
    ]
    slow, none, slower, unchanged, fast = (float(seconds) for *_, seconds in said)
    assert slow >= 0.2 and slower >= 0.4 and unchanged >= 0.4
    assert none < 0.2 and fast < 0.2
    # The invalid network is explained.
    assert "rtt=10us" in done.stderr
    # Without an emulated network there is none to change.
    done = server.run(link, sys.executable, CHANGES, "rtt=1ms")
    assert done.returncode == 0 and done.stdout.splitlines()[1].startswith("rtt=1ms 801 ")

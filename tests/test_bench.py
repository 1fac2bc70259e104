"""`outboard bench` on the software device: the form of its results, and its failures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import OUTBOARD, Server, start_server

BENCH_S_MAX = 120
# Time within which an end is noticed and all started processes have ended.
END_S_MAX = 20
GROUPS = {"calls", "waits", "launches", "graphs", "item", "copies", "memset", "socket"}


def bench(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    argv = [str(OUTBOARD), "bench", *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=BENCH_S_MAX)


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    server = start_server(tmp_path)
    yield server
    server.process.kill()
    server.process.wait()


def test_results(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    done = bench("--no-local", "--quick", "--json", out)
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_text())
    assert results["format"] == 1 and results["rounds"] == 3 and results["machine"]["cores"] >= 1
    assert [side["name"] for side in results["sides"]] == ["shm", "tcp"]
    for side in results["sides"]:
        assert "software" in side["device"] and side["driver_version"] == 13000
        assert 0 < side["connect_ms"] <= side["first_result_ms"]
    assert {case["group"] for case in results["cases"]} == GROUPS
    for case in results["cases"]:
        assert case["title"] in done.stdout
        if case["group"] == "socket":
            assert case["sides"] == [] and case["raw"]["median_ns"] > 0
            continue
        assert [cell["side"] for cell in case["sides"]] == ["shm", "tcp"]
        for cell in case["sides"]:
            plausible(case, cell)
    named = {case["name"]: case for case in results["cases"]}
    # A round trip takes longer than a call without one, on any machine.
    for at in (0, 1):
        assert median(named["context_device"], at) < median(named["launch_synchronize"], at)
        assert median(named["to_device_pageable_4"], at) < median(named["to_device_pageable_16777216"], at)
    assert "over_raw_ns" in named["item_pinned"]["sides"][1] and "over_raw_ns" not in named["item_pinned"]["sides"][0]
    assert named["to_host_pinned_16777216"]["sides"][1]["share_of_raw"] > 0


def plausible(case: dict[str, Any], cell: dict[str, Any]) -> None:
    assert 0 < cell["p10_ns"] <= cell["p90_ns"] < 60e9
    assert len(cell["rounds_ns"]) == 3 <= cell["samples"]
    assert min(cell["rounds_ns"]) <= cell["median_ns"] <= max(cell["rounds_ns"])
    assert "ratio_to_local" not in cell
    if "bytes" in case:
        assert cell["gigabytes_per_s"] == pytest.approx(case["bytes"] / cell["median_ns"])


def median(case: dict[str, Any], at: int) -> float:
    return float(case["sides"][at]["median_ns"])


def test_a_against_b(own_server: Server, tmp_path: Path) -> None:
    out = tmp_path / "ab.json"
    urls = [argument for url in own_server.urls.values() for argument in ("--gpu", url)]
    done = bench(*urls, *urls, "--no-local", "--only", "waits,socket", "--rounds", "2", "--json", out)
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_text())
    assert [side["name"] for side in results["sides"]] == [*own_server.urls.values()] * 2
    assert {case["group"] for case in results["cases"]} == {"waits", "socket"}
    assert all(len(cell["rounds_ns"]) == 2 for case in results["cases"] for cell in case["sides"])


def test_levels_are_sides(own_server: Server, tmp_path: Path) -> None:
    out = tmp_path / "levels.json"
    arguments = ["--gpu", own_server.urls["shm"], "--no-local", "--optimise", "sync,or+sr+local", "--only", "calls"]
    done = bench(*arguments, "--quick", "--json", out)
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_text())
    assert [side["name"] for side in results["sides"]] == ["shm sync", "shm or+sr+local"]
    for case in results["cases"]:
        # Each of these waits for the server at the lowest level, and none at the highest.
        assert median(case, 0) > median(case, 1), case["name"]


def test_sessions(tmp_path: Path) -> None:
    out = tmp_path / "sessions.json"
    done = bench("sessions", "--no-local", "--quick", "--sessions", "3,1", "--busy", "2", "--json", out)
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_text())
    assert [(idle["side"], idle["sessions"]) for idle in results["idle"]] == [
        (side, count) for side in ("shm", "tcp") for count in (1, 3)
    ]
    for idle in results["idle"]:
        assert 0 < idle["connect_ms"] <= idle["connect_ms_max"]
        assert idle["clients"]["processes"] == idle["sessions"]
        # The supervisor and a worker for each session; a worker whose session has just ended may
        # still exist.
        assert idle["server"]["processes"] in range(idle["sessions"] + 1, idle["sessions"] + 3)
        assert idle["server"]["pss_bytes"] > 1 << 20
        assert 0 <= idle["server_cpu_percent"] < 200 and 0 <= idle["clients_cpu_percent"] < 200
        assert idle["gpu_bytes"] is None
        assert 0 < idle["latency_ns"] <= idle["latency_p90_ns"]
    assert [busy["side"] for busy in results["busy"]] == ["shm", "tcp"]
    assert all(busy["steps_per_s"] > 1 and busy["ratio_to_local"] is None for busy in results["busy"])


def test_no_server() -> None:
    started = time.monotonic()
    done = bench("--gpu", "tcp://127.0.0.1:1")
    assert done.returncode == 1 and "no server at tcp://127.0.0.1:1" in done.stderr
    assert done.stdout == "" and time.monotonic() - started < END_S_MAX


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--only", "nonsense"], "possible values: calls, waits"),
        (["--rounds", "0"], "it is a whole number from 1 to "),
        (["--gpu", "gopher://x"], "bad server address"),
        (["--optimise", "fast"], "is no level of optimisation"),
        (["sessions", "--sessions", "many"], "invalid value 'many'"),
        (["--quick", "sessions"], "cannot be used with"),
    ],
)
def test_wrong_flags(arguments: list[str], text: str) -> None:
    done = bench(*arguments)
    assert done.returncode == 2 and text in done.stderr and done.stdout == ""


def test_file_that_cannot_be_written_is_found_out_before_measuring(tmp_path: Path) -> None:
    for path in (tmp_path / "missing" / "out.json", tmp_path, Path("/dev/full")):
        for command in ([], ["sessions"]):
            done = bench(*command, "--json", path)
            assert done.returncode == 1 and str(path) in done.stderr and done.stdout == ""


class Running:
    """A bench in the middle of its work."""

    def __init__(self, *arguments: str | Path) -> None:
        argv = [str(OUTBOARD), "bench", "--no-local", "--only", "launches", "--rounds", "1000", *map(str, arguments)]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        # The head of the table, printed when every side is up.
        for line in self.process.stdout:
            if line.split()[:1] in (["shm"], ["tcp"]) or line.strip().startswith(("shm ", "tcp ")):
                break
        self.family = family(self.process.pid)

    def end(self) -> tuple[int, str]:
        """Returns its exit status and standard error."""
        started = time.monotonic()
        _, stderr = self.process.communicate(timeout=END_S_MAX)
        assert time.monotonic() - started < END_S_MAX
        while any(is_alive(pid) for pid in self.family):
            assert time.monotonic() - started < END_S_MAX, "something that it started is still there"
            time.sleep(0.02)
        return self.process.returncode, stderr


def family(pid: int) -> dict[int, str]:
    """The process and all that descend from it, with their command lines."""
    try:
        found = {pid: Path(f"/proc/{pid}/cmdline").read_text()}
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        # It has ended since its parent named it.
        return {}
    for child in children:
        found |= family(int(child))
    return found


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return not stat.rpartition(")")[2].startswith(" Z")


def test_server_that_dies_in_the_middle(own_server: Server, tmp_path: Path) -> None:
    out = tmp_path / "kept.json"
    out.write_text("what was there before")
    running = Running("--gpu", own_server.urls["shm"], "--json", out)
    own_server.process.kill()
    status, said = running.end()
    assert status == 1 and "shm: launch" in said
    assert out.read_text() == "what was there before"


def test_own_server_that_dies_in_the_middle() -> None:
    running = Running()
    [serve] = [pid for pid, command in running.family.items() if "\0serve\0" in command]
    os.kill(serve, signal.SIGKILL)
    status, said = running.end()
    assert status == 1 and "the server ended (signal: 9" in said


def test_worker_that_dies_in_the_middle() -> None:
    running = Running()
    worker = next(pid for pid, command in running.family.items() if "\0bench-worker\0" in command)
    os.kill(worker, signal.SIGKILL)
    status, said = running.end()
    assert status == 1 and "the worker ended (signal: 9" in said


@pytest.fixture
def ends_by_signals() -> Iterator[None]:
    """Who started the tests may ignore a signal (nohup), and so would what they start."""
    numbers = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = [signal.signal(number, signal.SIG_DFL) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("ends_by_signals")
@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGKILL],
)
def test_nothing_outlives_it(number: signal.Signals, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    running = Running()
    assert len(running.family) >= 4
    running.process.send_signal(number)
    status, said = running.end()
    assert status == (-9 if number == signal.SIGKILL else 130)
    if number != signal.SIGKILL:
        assert "interrupted" in said
        assert not list(tmp_path.glob("outboard-bench-*"))


@pytest.mark.usefixtures("ends_by_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_interrupted_it_keeps_what_it_measured(own_server: Server, tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "kept.json"
    arguments = ["--gpu", own_server.urls["shm"], "--no-local", "--json", str(out)]
    for more, last in ((["sessions", "--busy", "1", "--sessions", "1,2"], "2 idle"), (["--only", "calls"], "calls")):
        out.write_text("what was there before")
        argv = [str(OUTBOARD), "bench", *more, *arguments]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        while last not in (line := process.stdout.readline()):
            assert line
        if last == "calls":
            assert process.stdout.readline()
        process.send_signal(number)
        _, said = process.communicate(timeout=END_S_MAX)
        assert process.returncode == 130 and "interrupted" in said
        results = json.loads(out.read_text())
        if last == "calls":
            assert results["complete"] is False and len(results["cases"]) >= 1
        else:
            assert (
                len(results["errors"]) == 1
                and "interrupted" in results["errors"][0]
                and len(results["idle"]) == 2
                and results["device"]
            )


def test_results_that_cannot_be_kept_at_the_end_are_printed(own_server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    out = folder / "lost.json"
    urls = [argument for url in own_server.urls.values() for argument in ("--gpu", url)]
    argv = [OUTBOARD, "bench", "--no-local", "--only", "memset", "--quick", "--json", out, *urls]
    process = subprocess.Popen(list(map(str, argv)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    first = process.stdout.readline()
    folder.rmdir()
    stdout, stderr = process.communicate(timeout=BENCH_S_MAX)
    assert process.returncode == 1 and str(out) in stderr, stderr
    text = first + stdout
    results = json.loads(text[text.index("{\n") :])
    assert results["complete"] and results["cases"]


def test_a_case_that_fails_is_lost_alone(tmp_path: Path) -> None:
    server = start_server(tmp_path, "--memory", "16MiB")
    try:
        out = tmp_path / "bench.json"
        arguments = ["--gpu", server.urls["shm"], "--no-local", "--quick", "--only", "waits,copies", "--json", out]
        done = bench(*arguments)
    finally:
        server.stop()
    # There are fewer than 64 MiB for copies.
    assert done.returncode == 1 and "shm: 4 B pinned to device: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY" in done.stderr
    named = {case["name"]: case["sides"][0] for case in json.loads(out.read_text())["cases"]}
    assert "OUT_OF_MEMORY" in named["to_host_pinned_4"]["error"] and "median_ns" not in named["to_host_pinned_4"]
    assert named["launch_synchronize"]["median_ns"] > 0 and "error" not in named["launch_synchronize"]


def test_emulated_networks(tmp_path: Path) -> None:
    out = tmp_path / "emulate.json"
    arguments = ["--quick", "--carrier", "shm,tcp", "--rtt", "4ms,1ms", "--bandwidth", "100Mbps", "--json", out]
    done = bench("emulate", *arguments)
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_text())
    assert results["format"] == 1 and results["complete"] is True and results["machine"]["cores"] >= 1
    assert [cost["carrier"] for cost in results["costs"]] == ["shm", "tcp"]
    for cost in results["costs"]:
        assert cost["bare"]["median_ns"] > 0 and cost["send_emulated_ns"] > 0 and cost["send_bare_ns"] > 0
    asked = [(rtt["carrier"], rtt["rtt_ns"]) for rtt in results["rtts"]]
    assert asked == [(carrier, ns) for carrier in ("shm", "tcp") for ns in (4_000_000, 1_000_000)]
    for rtt in results["rtts"]:
        # The upper bound is of the least: a busy machine adds to the others.
        assert rtt["rtt_ns"] <= rtt["min_ns"] < 2 * rtt["rtt_ns"]
        assert rtt["min_ns"] <= rtt["figures"]["median_ns"]
        assert rtt["within"] == (rtt["off_percent"] <= 2)
    for rate in results["bandwidths"]:
        assert rate["bandwidth_bps"] == 100_000_000 and len(rate["rounds_bps"]) == 3
        assert 0.5 < rate["median_bps"] / rate["bandwidth_bps"] < 1.5
    assert "Round trips of 64 bytes" in done.stdout
    # Refused before anything is measured.
    refused = bench("emulate", "--rtt", "0us")
    assert refused.returncode == 2 and "is nothing" in refused.stderr


def test_more_sessions_than_there_is_room_for(tmp_path: Path) -> None:
    server = start_server(tmp_path, "--sessions-max", "3")
    try:
        out = tmp_path / "sessions.json"
        arguments = ["--gpu", server.urls["tcp"], "--no-local", "--quick", "--sessions", "1,5", "--busy", "1"]
        done = bench("sessions", *arguments, "--json", out)
    finally:
        server.stop()
    assert done.returncode == 1 and "tcp, 5 sessions:" in done.stderr and "--sessions-max" in done.stderr
    results = json.loads(out.read_text())
    assert [idle["sessions"] for idle in results["idle"]] == [1] and len(results["errors"]) == 1
    # Processes of a server that someone else started are not counted.
    assert results["idle"][0]["server"] is None and results["idle"][0]["server_cpu_percent"] is None
    assert [busy["sessions"] for busy in results["busy"]] == [1]


def test_json_alone_is_standard_output() -> None:
    """The results are standard output, whole, and the text is standard error."""
    argv = [OUTBOARD, "bench", "link", "--only", "shm", "--quick", "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) and "shm" in done.stderr

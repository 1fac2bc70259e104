"""Outboard's own rdma link on software RoCE: the crate's tests between two devices, what is said of bad addresses,
and the bench."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

from cable import mtu, ports_of
from serving import EXAMPLES, OUTBOARD, Serving, serving

from harness import TEST_PROGRAMS
from rdma_guest.guest import Guest

# The server's device and the client's; between them the cable. Their link-local GIDs know the way.
SERVER, CLIENT = "device=rxe0&gid=0", "device=rxe1&gid=0"
CASES_S_MAX = 600
# The bench of the link's frames and of raw writes, on emulated processors with slow system calls.
BENCH_S_MAX = 300
NOBODY = 65534
# Iterations of the steady state, including the one of warm-up.
ROUNDS = 5


def run_cases(
    guest: Guest, executable: Path, cases: str, *, devices: tuple[str, str], count: int, before: str = ""
) -> str:
    """Runs the tests whose names begin with `cases`: all must pass, none be left out, and at least
    `count` run."""
    server, client = devices
    environment = f"OUTBOARD_RDMA='{server}' OUTBOARD_RDMA_CLIENT='{client}' OUTBOARD_RDMA_REQUIRED=1"
    command = f"{before}{environment} OUTBOARD_FEW_ROUNDS=1 {executable} {cases} --test-threads 1 --nocapture"
    done = guest.run(command, timeout_s=CASES_S_MAX)
    assert done.status == 0, done.output
    passed = re.search(r"test result: ok\. (\d+) passed", done.output)
    assert passed and int(passed[1]) >= count, done.output
    return done.output


def test_verbs(guest: Guest, executables: dict[str, Path]) -> None:
    said = run_cases(guest, executables["verbs/adapter"], "", devices=(SERVER, CLIENT), count=4)
    assert "NOT RUN" not in said


def test_links_of_the_crate(guest: Guest, executables: dict[str, Path]) -> None:
    said = run_cases(guest, executables["link/outboard_link"], "rdma::", devices=(SERVER, CLIENT), count=20)
    # But for the one below.
    assert set(re.findall(r"NOT RUN: (\w+)", said)) == {"a_limit_on_locked_memory_is_named"}


def test_a_limit_on_locked_memory_is_named(guest: Guest, executables: dict[str, Path]) -> None:
    case = "rdma::link_tests::a_limit_on_locked_memory_is_named"
    one = f"OUTBOARD_RDMA='{SERVER}' OUTBOARD_RDMA_MEMLOCK=1 {executables['link/outboard_link']} {case}"
    limited = f"ulimit -l 1024; {one} --nocapture"
    guest.check("chmod a+rw /dev/infiniband/uverbs*")
    nobody = f"setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups bash -c {shlex.quote(limited)}"
    done = guest.run(nobody)
    assert done.status == 0 and "1 passed" in done.output and "NOT RUN" not in done.output, done.output


def test_the_suite_between_two_devices(guest: Guest, executables: dict[str, Path]) -> None:
    said = run_cases(guest, executables["link/conformance"], "rdma::", devices=(SERVER, CLIENT), count=36)
    assert "NOT RUN" not in said


def test_a_bad_cable(guest: Guest, executables: dict[str, Path]) -> None:
    said = run_cases(
        guest,
        executables["link/rdma"],
        "",
        devices=(SERVER, CLIENT),
        count=3,
        before="OUTBOARD_RDMA_CABLE=veth0,veth1 ",
    )
    assert "NOT RUN" not in said


def test_what_is_missing_is_said(guest: Guest) -> None:
    server, client = ports_of(guest)
    with serving(server, client, "&gid=1") as gpu:
        for url, why in [
            (f"{gpu.address}?device=mlx5_9", 'no RDMA device "mlx5_9" here; there is rxe0, rxe1'),
            (f"{gpu.address}?device=rxe1&gid=77", "has no GID 77"),
            (f"{gpu.address}?device=rxe1&gid=0", "the GID is"),
            (f"{gpu.address}?device=rxe1&gid=1&pkey=0x1234", "not a member of partition 0x1234"),
            (gpu.address.replace("rdma", "tcp"), "this port is that of an rdma:// address"),
        ]:
            done = gpu.run("true", url=url)
            assert done.status == 1 and why in done.output, done.output
        with mtu(client, 1500):
            done = gpu.run("true", url=f"{gpu.address}?device=rxe1&gid=1&mtu=2048")
        assert done.status == 1, done.output
        assert "an MTU of 2048 bytes is more than port 1 of RDMA device rxe1 carries: 1024" in done.output, done.output
        doctor = guest.run(f"{OUTBOARD} doctor --gpu '{gpu.url}&gid=1'")
        assert re.search(r"ok +rdma +rxe0, port 1: Ethernet, GID \d \(", doctor.output), doctor.output
        # And the server serves on.
        done = gpu.run(EXAMPLES / "vector_add", url=f"{gpu.url}&gid=1")
        assert done.status == 0 and "every result is right" in done.output, done.output


def test_a_launch_is_one_request_and_one_doorbell(guest: Guest) -> None:
    def counted(gpu: Serving, launches: int) -> dict[str, int]:
        stats = guest.shared / f"{launches}.json"
        program = [sys.executable, TEST_PROGRAMS / "steady_state.py", str(ROUNDS - 1), str(launches)]
        done = gpu.run("env", f"OUTBOARD_STATS={stats}", *program)
        assert done.status == 0, done.output
        counts: dict[str, int] = json.loads(stats.read_text())["rdma"]
        return counts

    with serving(*ports_of(guest)) as gpu:
        few, many = counted(gpu, 4), counted(gpu, 54)
    more = 50 * ROUNDS
    assert many["requests"] - few["requests"] == more
    assert many["doorbells"] - few["doorbells"] == more
    # Small enough to travel in the request.
    assert many["inline"] - few["inline"] == more


def test_a_wait_is_one_request_and_a_question_none(guest: Guest) -> None:
    def requests(gpu: Serving, rounds: int, queries: int) -> int:
        stats = guest.shared / f"{rounds}-{queries}.json"
        program = [sys.executable, TEST_PROGRAMS / "waits.py", str(rounds), str(queries)]
        done = gpu.run("env", f"OUTBOARD_STATS={stats}", *program)
        assert done.status == 0, done.output
        counts: dict[str, dict[str, int]] = json.loads(stats.read_text())
        return counts["rdma"]["requests"]

    with serving(*ports_of(guest)) as gpu:
        few, many = requests(gpu, 4, 0), requests(gpu, 24, 0)
        asked_once, asked_often = requests(gpu, 24, 1), requests(gpu, 24, 50)
    # The memset, and the question that the wait is.
    assert many - few == 2 * 20
    # The bytes that the server wrote are checked.
    assert asked_often == asked_once


def test_links_are_measured_beside_perftest(guest: Guest) -> None:
    results = f"{guest.shared}/link.json"
    devices = f"--rdma '{SERVER}' --rdma-client '{CLIENT}'"
    command = f"bench link --quick --only rdma {devices} --perftest --json {results}"
    guest.check(f"HOME=/tmp {OUTBOARD} {command}", timeout_s=BENCH_S_MAX)
    measured = json.loads((guest.shared / "link.json").read_text())
    assert measured["complete"] and measured["round_trips"] and measured["bandwidths"]
    for row in measured["round_trips"]:
        assert row["link"] == "rdma" and row["samples"] >= 20
        assert 0 < row["min_ns"] <= row["p50_ns"] <= row["p99_ns"] <= row["max_ns"]
    assert all(row["link"] == "rdma" and row["median_bps"] > 0 for row in measured["bandwidths"])
    # The ratios mean nothing on emulated processors that share cores.
    assert all(measured["raw"][name] > 0 for name in ("write_round_trip_ns", "send_round_trip_ns", "write_bps"))
    assert measured["raw"]["latency_ratio"] > 0 and measured["raw"]["bandwidth_ratio"] > 0

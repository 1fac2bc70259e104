"""Outboard's own rdma link on software RoCE: the crate's tests between two devices, and programs of `outboard run`."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cable import Port, loss, ports_between, ports_of

from conftest import ROOT
from rdma_guest.guest import Guest

OUTBOARD = ROOT / "target" / "debug" / "outboard"
EXAMPLES = ROOT / "build" / "examples"
# The server's device and the client's; between them the cable. Their link-local GIDs know the way.
SERVER, CLIENT = "device=rxe0&gid=0", "device=rxe1&gid=0"
CASES_S_MAX = 600
PROGRAM_S_MAX = 240
START_S_MAX = 120
LOSS_PERCENT = 5
# Of the link's frames and of raw writes, on emulated processors whose every system call takes long.
BENCH_S_MAX = 300
NOBODY = 65534


@pytest.fixture(scope="session")
def executables() -> dict[str, Path]:
    """The link crate's tests, as they lie in the target folder."""
    command = ["cargo", "test", "--quiet", "-p", "outboard-link", "--lib", "--test", "conformance", "--test", "rdma"]
    built = subprocess.run(
        [*command, "--no-run", "--message-format=json"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    said = [json.loads(line) for line in built.stdout.splitlines() if line.startswith("{")]
    return {one["target"]["name"]: Path(one["executable"]) for one in said if one.get("executable")}


def run_cases(
    guest: Guest, executable: Path, cases: str, *, devices: tuple[str, str], count: int, before: str = ""
) -> str:
    """Runs the tests whose names begin with `cases`: all pass, none is left out, and there are so many at least."""
    server, client = devices
    environment = f"OUTBOARD_RDMA='{server}' OUTBOARD_RDMA_CLIENT='{client}' OUTBOARD_RDMA_REQUIRED=1"
    command = f"{before}{environment} {executable} {cases} --test-threads 1 --nocapture"
    done = guest.run(command, timeout_s=CASES_S_MAX)
    assert done.status == 0, done.output
    passed = re.search(r"test result: ok\. (\d+) passed", done.output)
    assert passed and int(passed[1]) >= count, done.output
    return done.output


def test_verbs_and_links_of_the_crate(guest: Guest, executables: dict[str, Path]) -> None:
    said = run_cases(guest, executables["outboard_link"], "rdma::", devices=(SERVER, CLIENT), count=20)
    # But for the one below.
    assert set(re.findall(r"NOT RUN: (\w+)", said)) == {"a_limit_on_locked_memory_is_named"}


def test_a_limit_on_locked_memory_is_named(guest: Guest, executables: dict[str, Path]) -> None:
    case = "rdma::link_tests::a_limit_on_locked_memory_is_named"
    one = f"OUTBOARD_RDMA='{SERVER}' OUTBOARD_RDMA_MEMLOCK=1 {executables['outboard_link']} {case}"
    limited = f"ulimit -l 1024; {one} --nocapture"
    guest.check("chmod a+rw /dev/infiniband/uverbs*")
    nobody = f"setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups bash -c {shlex.quote(limited)}"
    done = guest.run(nobody)
    assert done.status == 0 and "1 passed" in done.output and "NOT RUN" not in done.output, done.output


def test_the_suite_between_two_devices(guest: Guest, executables: dict[str, Path]) -> None:
    said = run_cases(guest, executables["conformance"], "rdma::", devices=(SERVER, CLIENT), count=36)
    assert "NOT RUN" not in said


def test_a_bad_cable(guest: Guest, executables: dict[str, Path]) -> None:
    said = run_cases(
        guest,
        executables["rdma"],
        "",
        devices=(SERVER, CLIENT),
        count=3,
        before="OUTBOARD_RDMA_CABLE=veth0,veth1 ",
    )
    assert "NOT RUN" not in said


@contextmanager
def serving(port: Port, listen: str, *, folder: str = "/tmp/outboard") -> Iterator[str]:
    """A server in a guest, and its address."""
    command = f"mkdir -p {folder}; HOME={folder} exec {OUTBOARD} serve --device soft --spare 0 --listen '{listen}'"
    server = port.guest.start(command)
    try:
        said = server.wait_for("\n", START_S_MAX)
        address = re.search(r"listening on (\S+)", said)
        assert address, said
        yield address[1]
    finally:
        server.kill()


def run_program(port: Port, url: str, program: str) -> None:
    command = f"HOME=/tmp timeout {PROGRAM_S_MAX} {OUTBOARD} run --gpu '{url}' -- {EXAMPLES / program}"
    done = port.guest.run(command, timeout_s=PROGRAM_S_MAX + 10)
    assert done.status == 0, done.output
    assert f"{program}: every result is right" in done.output and "WRONG" not in done.output


@pytest.mark.parametrize("program", ["vector_add", "matmul_tiled", "reduce_shuffle", "graph_capture", "device_printf"])
def test_programs_in_one_guest(guest: Guest, program: str) -> None:
    server, client = ports_of(guest)
    with serving(server, f"rdma://127.0.0.1:0?{SERVER}") as address:
        sent = client.counters()["sent_pkts"]
        run_program(client, address.partition("?")[0] + f"?{CLIENT}", program)
        # The bytes went over the cable.
        assert client.counters()["sent_pkts"] > sent


def test_a_program_while_packets_get_lost(guest: Guest) -> None:
    server, client = ports_of(guest)
    with serving(server, f"rdma://127.0.0.1:0?{SERVER}") as address, loss(LOSS_PERCENT, server, client):
        run_program(client, address.partition("?")[0] + f"?{CLIENT}", "vector_add")


def test_what_is_missing_is_said(guest: Guest) -> None:
    server, client = ports_of(guest)
    with serving(server, f"rdma://127.0.0.1:0?{SERVER}") as address:
        place = address.partition("?")[0]
        for url, why in [
            (f"{place}?device=mlx5_9", 'no RDMA device "mlx5_9" here; there is rxe0, rxe1'),
            (f"{place}?device=rxe1&gid=77", "has no GID 77"),
            (f"{place}?device=rxe1&gid=1", "the GID is"),
            (f"{place}?device=rxe1&gid=0&pkey=0x1234", "not a member of partition 0x1234"),
            (place.replace("rdma", "tcp"), "this port is that of an rdma:// address"),
        ]:
            done = client.guest.run(f"HOME=/tmp {OUTBOARD} run --gpu '{url}' -- true")
            assert done.status == 1 and why in done.output, done.output
        doctor = client.guest.run(f"HOME=/tmp {OUTBOARD} doctor --gpu '{place}?{CLIENT}'")
        assert re.search(r"ok +rdma +rxe0, port 1: Ethernet, GID 0 \(fe80:", doctor.output), doctor.output
        # And the server serves on.
        run_program(client, f"{place}?{CLIENT}", "vector_add")


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
    # What the ratios are says nothing on emulated processors that share cores.
    assert all(measured["raw"][name] > 0 for name in ("write_round_trip_ns", "send_round_trip_ns", "write_bps"))
    assert measured["raw"]["latency_ratio"] > 0 and measured["raw"]["bandwidth_ratio"] > 0


def test_a_program_between_two_guests(pair: tuple[Guest, Guest]) -> None:
    server, client = ports_between(pair)
    # The device and the GID are chosen by the address.
    with serving(server, f"rdma://{server.address}:4833") as address:
        assert address == f"rdma://{server.address}:4833"
        run_program(client, address, "vector_add")
        run_program(client, address, "reduce_shuffle")

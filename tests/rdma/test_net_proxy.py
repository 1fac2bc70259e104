"""Threads post to queues whose entries the proxy's thread, or the adapter in software, posts by verbs: on software
RoCE."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cable import loss, ports_of

from harness import OUTBOARD, ROOT, TEST_PROGRAMS
from rdma_guest.guest import Guest

BUILD_S_MAX = 300
RUN_S_MAX = 240
LIBRARY = OUTBOARD.parent


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("net")
    tests = ROOT / "crates" / "net" / "tests"
    for source in (tests / "meet.cpp", tests / "refused.cpp", TEST_PROGRAMS / "net" / "messages.cu"):
        flags = ["-x", "c++", "-std=c++17", "-O1", "-pthread", f"-I{ROOT / 'include'}", f"-Wl,-rpath,{LIBRARY}"]
        link = [f"-L{LIBRARY}", "-loutboard_net"]
        command = ["g++", *flags, source, "-o", folder / source.stem, *link]
        subprocess.run(command, check=True, timeout=BUILD_S_MAX)
    return folder


def bring(guest: Guest, programs: Path) -> None:
    for program in programs.iterdir():
        (guest.shared / program.name).write_bytes(program.read_bytes())
        (guest.shared / program.name).chmod(0o755)


def test_threads_exchange_data_between_devices_and_survive_a_peer(guest: Guest, programs: Path) -> None:
    """Two processes, each with a device of its own, and then two queues of one."""
    bring(guest, programs)
    ports = ports_of(guest)
    before = [port.counters()["sent_pkts"] for port in ports]
    env = "OUTBOARD_NET_PROVIDER=proxy OUTBOARD_RDMA=device="
    done = guest.run(f"{env}rxe0 {guest.shared}/meet 17000 none device=rxe1", timeout_s=RUN_S_MAX)
    assert done.status == 0, done.output
    # 256 KiB each way, in each of two meetings, over the cable.
    for port, counted in zip(ports, before, strict=True):
        assert port.counters()["sent_pkts"] - counted > 200
    done = guest.run(f"{env}rxe0 {guest.shared}/messages thread 2 2 20 6 3 16 1 0 1", timeout_s=RUN_S_MAX)
    assert done.status == 0 and done.output.endswith(": right\n"), done.output


def test_entries_of_the_adapter_in_software_travel_between_devices(guest: Guest, programs: Path) -> None:
    """Two processes, each with an adapter and a device; what either refuses; and packets that get lost."""
    bring(guest, programs)
    ports = ports_of(guest)
    before = [port.counters()["sent_pkts"] for port in ports]
    env = "OUTBOARD_NET_PROVIDER=nic OUTBOARD_NET_WAY=verbs OUTBOARD_RDMA=device="
    with loss(1, *ports):
        done = guest.run(f"{env}rxe0 {guest.shared}/meet 17001 verbs device=rxe1", timeout_s=RUN_S_MAX)
    assert done.status == 0, done.output
    for port, counted in zip(ports, before, strict=True):
        assert port.counters()["sent_pkts"] - counted > 200
    done = guest.run(f"{env}rxe0 {guest.shared}/refused 17002 device device=rxe1", timeout_s=RUN_S_MAX)
    assert done.status == 0, done.output

"""The guest that RDMA is tested in is real, shown by tools that know nothing of this project."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest
from cable import Port, loss, port_down, ports_between, ports_of

from harness import ROOT
from rdma_guest.guest import Command, Done, Guest, GuestError

# GIDs: of a link-local address, and of the IPv4 address.
LINK_LOCAL, IPV4 = 0, 1
LOSS_PERCENT = 5
SILENCE_S = 0.5
USAGE_S_MAX = 30


class PingPong:
    """Both ends of a ping-pong with checked data, under way."""

    def __init__(self, server: Port, client: Port, *, gid: int, count: int) -> None:
        command = f"ibv_rc_pingpong --chk --events --size 512 --iters {count} --gid-idx {gid} --ib-dev"
        self.server = server.guest.start(f"{command} {server.device}")
        server.guest.check("for _ in {1..100}; do ss -ltn | grep -q :18515 && break; sleep 0.05; done")
        self.client = client.guest.start(f"{command} {client.device} {server.address}")

    def done(self) -> tuple[Done, Done]:
        return self.server.wait(), self.client.wait()


def ping_pong(server: Port, client: Port, *, gid: int, count: int = 200) -> None:
    for done in PingPong(server, client, gid=gid, count=count).done():
        assert done.status == 0 and f"{count} iters in" in done.output, done.output
        assert "invalid data" not in done.output


def test_a_guest_does_what_it_is_told(guest: Guest) -> None:
    assert guest.run("echo out; echo err >&2; exit 7") == Done(7, "out\nerr\n")
    # A folder that is shared has one name on both sides, and the host's files are there.
    (guest.shared / "from-host").write_text("hello")
    guest.check(f"cat {guest.shared}/from-host {ROOT}/Makefile >{guest.shared}/from-guest")
    assert (guest.shared / "from-guest").read_text() == "hello" + (ROOT / "Makefile").read_text()
    # Files that it writes elsewhere stay in its memory.
    guest.check(f"touch {ROOT}/written-in-the-guest")
    assert not (ROOT / "written-in-the-guest").exists()


def test_commands_in_a_guest_have_an_end(guest: Guest) -> None:
    with pytest.raises(GuestError, match=r"still running after 1 s\nbegun"):
        guest.run("echo begun; sleep 1000", timeout_s=1)
    with pytest.raises(GuestError, match="ended before it printed 'ready'"):
        guest.start("echo no").wait_for("ready")
    guest.check("sleep 1001 & sleep 1002 &")
    both: list[Command] = [guest.start("echo a; sleep 1003"), guest.start("echo b; sleep 1004")]
    for command in both:
        command.wait_for("\n")
    guest.end_all()
    assert [command.status() for command in both] == [137, 137]
    assert guest.run("pgrep -l sleep") == Done(1, "")


def test_devices(guest: Guest) -> None:
    assert re.findall(r"^\s+(rxe\d)\s", guest.check("ibv_devices"), re.MULTILINE) == ["rxe0", "rxe1"]
    for port in ports_of(guest):
        assert port.is_active()
        said = guest.check(f"ibv_devinfo --verbose --ib-dev {port.device}")
        assert "fe80::" in said and f"::ffff:{port.address}, RoCE v2" in said


@pytest.mark.parametrize("gid", [LINK_LOCAL, IPV4])
def test_ping_pong_between_two_devices(guest: Guest, gid: int) -> None:
    ports = ports_of(guest)
    before = [port.counters() for port in ports]
    ping_pong(*ports, gid=gid)
    for counted, port in zip(before, ports, strict=True):
        # A message and its acknowledgement each way, and all of it over the cable.
        assert port.counters()["sent_pkts"] - counted["sent_pkts"] >= 400


def test_ping_pong_with_loss_each_way(guest: Guest) -> None:
    ports = ports_of(guest)
    before = [port.counters() for port in ports]
    with loss(LOSS_PERCENT, *ports):
        ping_pong(*ports, gid=LINK_LOCAL)
        dropped = guest.check("tc -s qdisc show dev veth0; tc -s qdisc show dev veth1")
    assert all(int(count) > 0 for count in re.findall(r"dropped (\d+)", dropped)), dropped
    for counted, port in zip(before, ports, strict=True):
        assert resent(port.counters()) > resent(counted), port.counters()


def resent(counters: dict[str, int]) -> int:
    """Requests that a device sent again, or got again from its peer."""
    return counters["completer_retry_err"] + counters["duplicate_request"]


def test_a_port_goes_down_and_comes_back(guest: Guest) -> None:
    server, client = ports_of(guest)
    running = PingPong(server, client, gid=LINK_LOCAL, count=1_000_000)
    received = [client.counters()["rcvd_pkts"]]
    while received[-1] < received[0] + 50:
        received.append(client.counters()["rcvd_pkts"])
    with port_down(server):
        assert not server.is_active() and not client.is_active()
        held = client.counters()["rcvd_pkts"]
        time.sleep(SILENCE_S)
        assert client.counters()["rcvd_pkts"] == held
    assert server.is_active() and client.is_active()
    running.server.kill()
    running.client.kill()
    ping_pong(server, client, gid=LINK_LOCAL)


@pytest.mark.parametrize("test", ["ib_write_lat", "ib_send_lat", "ib_write_bw"])
def test_perftest(guest: Guest, test: str) -> None:
    command = f"{test} --gid-index {LINK_LOCAL} --CPU-freq --iters 100 --ib-dev"
    server = guest.start(f"{command} rxe0")
    guest.check("for _ in {1..100}; do ss -ltn | grep -q :18515 && break; sleep 0.05; done")
    done = guest.run(f"{command} rxe1 10.213.78.1")
    assert done.status == 0 == server.wait().status, f"{done.output}\n{server.output()}"
    assert re.search(r"^ \d+ +100 +[\d.]+", done.output, re.MULTILINE), done.output


@pytest.mark.parametrize("gid", [LINK_LOCAL, IPV4])
def test_ping_pong_between_two_guests(pair: tuple[Guest, Guest], gid: int) -> None:
    ping_pong(*ports_between(pair), gid=gid)


def test_ping_pong_between_two_guests_with_loss(pair: tuple[Guest, Guest]) -> None:
    ports = ports_between(pair)
    with loss(LOSS_PERCENT, *ports):
        ping_pong(*ports, gid=IPV4)
    assert all(resent(port.counters()) > 0 for port in ports)


def test_wrong_use_of_the_command() -> None:
    for arguments in (["run"], ["pair", "one"], ["run", "/nowhere"]):
        argv = [sys.executable, str(ROOT / "tools" / "rdma_guest"), *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=USAGE_S_MAX)
        assert done.returncode in (1, 2) and done.stderr

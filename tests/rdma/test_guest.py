"""The guest that RDMA is tested in is real, shown by tools that know nothing of this project."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest
from cable import Port, calm_after, loss, port_down, ports_between, ports_of

from harness import ROOT
from rdma_guest.guest import COMMAND_S_MAX, KERNEL_ARGUMENTS, Command, Done, Guest, GuestError
from rdma_guest.image import Image

# GIDs: of a link-local address, and of the IPv4 address.
LINK_LOCAL, IPV4 = 0, 1
LOSS_PERCENT = 5
# Packets each way. That many are lost long before the rounds are over.
LOST_MIN = 10
ROUNDS_WITH_LOSS = 1000
ROUNDS_WITH_LOSS_S_MAX = 180
SILENCE_S = 0.5
CLOCK_S = 1
USAGE_S_MAX = 30


class PingPong:
    """Both ends of a ping-pong with checked data, under way."""

    def __init__(self, server: Port, client: Port, *, gid: int, count: int) -> None:
        # By lines, so that an end which gets stuck has said how far it came.
        command = f"stdbuf -oL ibv_rc_pingpong --chk --events --size 512 --iters {count} --gid-idx {gid} --ib-dev"
        self.server = server.guest.start(f"{command} {server.device}")
        server.guest.check("for _ in {1..100}; do ss -ltn | grep -q :18515 && break; sleep 0.05; done")
        self.client = client.guest.start(f"{command} {client.device} {server.address}")
        self.count = count

    def check(self, timeout_s: float = COMMAND_S_MAX) -> None:
        """Waits for both ends, which must have got what they were sent."""
        try:
            both = self.server.wait(timeout_s), self.client.wait(timeout_s)
        except GuestError as error:
            error.add_note(f"server:\n{self.server.output()}\nclient:\n{self.client.output()}")
            raise
        for done in both:
            assert done.status == 0 and f"{self.count} iters in" in done.output, done.output
            assert "invalid data" not in done.output


def ping_pong(server: Port, client: Port, *, gid: int, count: int = 200) -> None:
    PingPong(server, client, gid=gid, count=count).check()


def test_a_guest_does_what_it_is_told(guest: Guest) -> None:
    assert guest.run("echo out; echo err >&2; exit 7") == Done(7, "out\nerr\n")
    # A folder that is shared has one name on both sides, and the host's files are there.
    (guest.shared / "from-host").write_text("hello")
    guest.check(f"cat {guest.shared}/from-host {ROOT}/Makefile >{guest.shared}/from-guest")
    assert (guest.shared / "from-guest").read_text() == "hello" + (ROOT / "Makefile").read_text()
    # Files that it writes elsewhere stay in its memory.
    guest.check(f"touch {ROOT}/written-in-the-guest")
    assert not (ROOT / "written-in-the-guest").exists()


def test_a_guests_clock_is_the_hosts(guest: Guest) -> None:
    def uptime() -> tuple[float, float, float]:
        before = time.monotonic()
        said = guest.check("cat /proc/uptime").split()[0]
        return before, float(said), time.monotonic()

    first_before, first, first_after = uptime()
    time.sleep(CLOCK_S)
    last_before, last, last_after = uptime()
    # Between these bounds however late the guest is told and answers; it counts hundredths.
    least, most = last_before - first_after, last_after - first_before
    assert 0.99 * least - 0.01 < last - first < 1.01 * most + 0.01, (least, last - first, most)


class PanicsFirst(Guest):
    """A guest whose kernel finds no first process when it boots for the first time."""

    boots = 0

    def _boot(self) -> None:
        self.boots += 1
        arguments = self._argv
        if self.boots == 1:
            self._argv = [
                f"{word} rdinit=/nowhere" if word.startswith(KERNEL_ARGUMENTS) else word for word in arguments
            ]
        super()._boot()
        self._argv = arguments


def test_a_guest_that_panics_as_it_boots_is_started_again(image: Image, capsys: pytest.CaptureFixture[str]) -> None:
    guest = PanicsFirst(image, cpus=1, memory_mib=512)
    try:
        guest.wait_until_ready()
        assert guest.boots == 2 and guest.run("echo up") == Done(0, "up\n")
    finally:
        guest.stop()
    assert re.search(r"the guest ended\n(.*\n)*.*Kernel panic(.*\n)*starting it again", capsys.readouterr().out)


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
    ping_pong_with_loss(*ports_of(guest), gid=LINK_LOCAL)


def ping_pong_with_loss(*ports: Port, gid: int) -> None:
    """Packets get lost from the first on, but not to the last: an end that has all it waits for goes away, and if the
    acknowledgement is lost that it left behind, software RoCE at the other end repeats its request for ever."""
    before = [port.counters() for port in ports]
    with loss(LOSS_PERCENT, *ports):
        calm = [calm_after(LOST_MIN, port) for port in ports]
        PingPong(*ports, gid=gid, count=ROUNDS_WITH_LOSS).check(ROUNDS_WITH_LOSS_S_MAX)
        assert [command.wait() for command in calm] == [Done(0, "")] * 2
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
    ping_pong_with_loss(*ports_between(pair), gid=IPV4)


def test_wrong_use_of_the_command() -> None:
    for arguments in (["run"], ["pair", "one"], ["run", "/nowhere"]):
        argv = [sys.executable, str(ROOT / "tools" / "rdma_guest"), *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=USAGE_S_MAX)
        assert done.returncode in (1, 2) and done.stderr

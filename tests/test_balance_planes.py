"""Data planes of the balancer between real hosts: NAT over AF_XDP, and paths with a smaller MTU."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import OUTBOARD, ROOT, TEST_PROGRAMS
from test_balance import (
    BALANCER,
    CLIENTS,
    ECHO_PORT,
    PLANE,
    SERVERS,
    VIP,
    WAIT_S_MAX,
    Balancer,
    Net,
    ask,
    can_unshare,
    has_program,
    serve,
    service,
)

pytestmark = pytest.mark.skipif(not can_unshare, reason="needs ip, nsenter and user namespaces")

CLIENT, CLIENT_6, VIP_6 = "198.51.100.1", "2001:db8:1::1", "2001:db8::10"
SERVERS_6 = ["2001:db8::2", "2001:db8::3"]
BALANCER_6 = "2001:db8::1"


@pytest.fixture
def root_net() -> Iterator[Net]:
    if os.geteuid() != 0:
        pytest.skip("XDP programs are loaded by root")
    with contextlib.ExitStack() as stack:
        net = Net(stack, as_root=True)
        for host in [BALANCER, *SERVERS, CLIENTS[0]]:
            net.add(host)
        yield net


def nat(name: str, vip: str, backends: list[str], rest: str) -> str:
    ends = ", ".join(f'{{ address = "{one}:{ECHO_PORT}" }}' for one in backends)
    return (
        f'[[service]]\nname = "{name}"\naddress = "{vip}:{ECHO_PORT}"\nforward = "nat"\n'
        f'check = {{ kind = "tcp", interval_ms = 200 }}\n{rest}\nbackend = [{ends}]\n'
    )


def test_nat_over_af_xdp(root_net: Net, tmp_path: Path) -> None:
    """Answers have the client's address as destination and still come to the balancer, from two queues, in fragments
    and over IPv6; the answers to its health checks, and what backends send it otherwise, go to its kernel."""
    net = root_net
    for number, host in enumerate([BALANCER, *SERVERS], 1):
        net.sh(net.hosts[host], f"ip addr add 2001:db8::{number}/64 dev eth0 nodad")
    for host, host_6 in zip(SERVERS, SERVERS_6, strict=True):
        gateways = f"ip route add default via {BALANCER}; ip -6 route add default via {BALANCER_6}"
        net.sh(net.hosts[host], gateways)
        serve(net, host, "serve", host)
        serve(net, host, "serve-datagrams", host)
        serve(net, host, "serve", host_6)
    serve(net, BALANCER, "serve", BALANCER)
    net.sh(
        net.hosts[CLIENTS[0]],
        f"ip addr add {CLIENT}/32 dev eth0; ip route add {VIP} dev eth0 src {CLIENT};"
        f"ip addr add {CLIENT_6}/128 dev eth0 nodad; ip route add {VIP_6} dev eth0 src {CLIENT_6}",
    )
    config = (
        '[plane]\nkind = "xdp"\ninterfaces = ["eth0"]\n'
        + nat("echo", VIP, SERVERS, "")
        + nat("datagrams", VIP, SERVERS, 'protocol = "udp"')
        + nat("six", f"[{VIP_6}]", [f"[{one}]" for one in SERVERS_6], "")
    )
    balancer = Balancer(net, tmp_path, config)
    assert has_program(net)
    assert "queues=2" in balancer.log.read_text()

    def are_up() -> bool:
        return all(one["is_up"] for service in range(3) for one in balancer.backends(service).values())

    for kind, vip, servers, count in [
        ("transfer", VIP, SERVERS, 60),
        ("ask", VIP, SERVERS, 60),
        ("transfer", VIP_6, SERVERS_6, 60),
    ]:
        report = ask(net, kind, vip, count)
        assert report["results"] == {"right": count}, f"{vip}: {report}\n{balancer.status()}"
        assert set(report["servers"]) == set(servers)
    assert are_up(), f"answers to health checks go to the kernel: {balancer.status()}"
    status = balancer.status()
    assert status["fragments"] >= 20 * 4 * 2
    assert status["packets"][1] > 1000, "answers pass the balancer"
    flows = json.loads(balancer.command("flows", "--json"))
    clients = {flow["client"].rsplit(":", 1)[0] for flow in flows}
    assert clients == {CLIENT, f"[{CLIENT_6}]"}
    before = balancer.process
    balancer.start("--take-over")
    assert before.wait(WAIT_S_MAX) == 0, balancer.log.read_text()
    report = ask(net, "transfer", VIP, 25)
    assert report["results"] == {"right": 25}, f"the next process takes answers, too: {report}\n{balancer.status()}"
    # What a backend sends to the machine itself, from other ports, is the kernel's as before.
    packets = sum(balancer.status()["packets"])
    report = ask(net, "transfer", BALANCER, 10, SERVERS[0])
    assert report["results"] == {"right": 10}, report
    assert sum(balancer.status()["packets"]) - packets < 20
    balancer.stop()
    assert not has_program(net)


BACK, SERVER, BACK_SOURCE = "203.0.113.1", "203.0.113.2", "203.0.113.20"
NARROW = 1300


@pytest.fixture
def narrow_net() -> Iterator[Net]:
    """The balancer between two networks: the client on a switch, and a server at the other interface."""
    with contextlib.ExitStack() as stack:
        net = Net(stack)
        for host in [BALANCER, CLIENTS[0]]:
            net.add(host)
        server = net.hosts[SERVER] = net.hold(*net.inside(net.switch), "unshare", "-n")
        net.sh(
            net.hosts[BALANCER],
            f"ip link add eth1 type veth peer name eth0 netns {server}; ip addr add {BACK}/24 dev eth1;"
            "ip link set eth1 up",
        )
        net.sh(
            server,
            f"ip link set lo up; ip addr add {SERVER}/24 dev eth0; ip link set eth0 up;ip route add default via {BACK}",
        )
        yield net


@pytest.mark.parametrize(("forward", "narrow"), [("nat", SERVER), ("full-nat", SERVER), ("nat", CLIENTS[0])])
def test_a_smaller_mtu_behind_the_balancer(narrow_net: Net, tmp_path: Path, forward: str, narrow: str) -> None:
    """The host on a link of 1,300 bytes announces segments for 1,500, as if that link were further away: its peer
    learns the MTU from the balancer alone."""
    net = narrow_net
    interface = "eth1" if narrow == SERVER else "eth0"
    net.sh(net.hosts[BALANCER], f"ip link set {interface} mtu {NARROW}")
    routes = [f"{narrow.rsplit('.', 1)[0]}.0/24"] + ([f"default via {BACK}"] if narrow == SERVER else [])
    for route in routes:
        net.sh(net.hosts[narrow], f"ip link set eth0 mtu {NARROW}; ip route replace {route} dev eth0 advmss 1460")
    serve(net, SERVER, "serve", SERVER)
    sources = f'sources = ["{BACK_SOURCE}"]\n' if forward == "full-nat" else ""
    config = (
        '[plane]\ninterfaces = ["eth0", "eth1"]\n'
        f'[[service]]\nname = "echo"\naddress = "{VIP}:{ECHO_PORT}"\nforward = "{forward}"\n{sources}'
        'check = { kind = "tcp", interval_ms = 200 }\n'
        f'backend = [{{ address = "{SERVER}:{ECHO_PORT}" }}]\n'
    )
    balancer = Balancer(net, tmp_path, config)
    # 100,000 bytes each way in each.
    report = ask(net, "transfer", VIP, 10)
    assert report["results"] == {"right": 10}, f"{report}\n{balancer.status()}"
    status = balancer.status()
    assert status["dropped"]["too_long"] == status["told_too_long"] > 0, status
    assert "unsent" not in status["dropped"], status
    balancer.stop()


FAR = "192.0.2.103"
BAD_TRANSFERS = 40


def test_transfers_over_a_bad_link(tmp_path: Path) -> None:
    """A client whose frames are lost, delayed, reordered and doubled; meanwhile a backend is drained, and the balancer
    starts again."""
    with contextlib.ExitStack() as stack:
        net = Net(stack)
        for host in [BALANCER, *SERVERS, CLIENTS[0]]:
            net.add(host)
        relay = net.hosts[CLIENTS[0]]
        far = net.hosts[FAR] = net.hold(*net.inside(net.switch), "unshare", "-n")
        net.sh(relay, f"ip link add eth1 type veth peer name eth0 netns {far}; ip link set eth1 up")
        net.sh(far, f"ip addr add {FAR}/24 dev eth0; ip link set eth0 up")
        command = [sys.executable, TEST_PROGRAMS / "relay.py", "eth0", "eth1", "1", "3", "3", "5", "10"]
        link = net.start(CLIENTS[0], *command, stdout=subprocess.PIPE)
        assert link.stdout is not None
        assert link.stdout.readline() == "ready\n"
        for host in SERVERS:
            serve(net, host, "serve", host)
        check = 'check = { kind = "tcp", interval_ms = 200 }'
        config = PLANE + service("echo", ECHO_PORT, check)
        balancer = Balancer(net, tmp_path, config)
        balancer.until("both are up", lambda: all(one["is_up"] for one in balancer.backends().values()))
        command = [sys.executable, TEST_PROGRAMS / "transfers.py", "transfer", VIP, str(ECHO_PORT), str(BAD_TRANSFERS)]
        transfers = net.start(FAR, *command, stdout=subprocess.PIPE)
        time.sleep(0.5)
        balancer.command("drain", f"{SERVERS[0]}:{ECHO_PORT}")
        time.sleep(0.3)
        balancer.stop()
        balancer.start()
        out, _ = transfers.communicate(timeout=100)
        report = json.loads(out)
        assert report["results"] == {"right": BAD_TRANSFERS}, f"{report}\n{balancer.status()}"
        balancer.stop()


def test_a_capture_is_replayed_and_one_that_is_cut_is_told(tmp_path: Path) -> None:
    captures = ROOT / "crates" / "balance" / "captures"
    cut, out = tmp_path / "cut.pcap", tmp_path / "out.pcap"
    cut.write_bytes((captures / "programs.pcap").read_bytes()[:5000])

    def replay(capture: Path, to: Path = out) -> subprocess.CompletedProcess[str]:
        command = [OUTBOARD, "balance", "replay", captures / "balance.toml", capture, to]
        return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S_MAX)

    whole = replay(captures / "programs.pcap")
    assert (whole.returncode, whole.stdout.splitlines()[0]) == (0, "408 frames read, 204 sent, 18 connections opened")
    part = replay(cut)
    assert part.returncode == 1
    assert part.stdout.startswith("47 frames read, 24 sent")
    assert "record 48 is cut short" in part.stderr
    assert out.stat().st_size > 24, "frames before the cut are written"
    before, inode = out.read_bytes(), out.stat().st_ino
    none = replay(captures / "balance.toml")
    assert none.returncode == 1 and none.stdout.startswith("0 frames read")
    assert (out.read_bytes(), out.stat().st_ino) == (before, inode), "what is no capture replaces nothing"
    assert replay(captures / "programs.pcap", Path("/dev/null")).returncode == 0
    assert sorted(one.name for one in tmp_path.iterdir()) == ["cut.pcap", "out.pcap"]
    same = replay(cut, cut)
    assert same.returncode == 1
    assert "would be overwritten" in same.stderr

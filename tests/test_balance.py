"""The balancer between real hosts: network namespaces with no way out, made without root."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness import EXAMPLES, OUTBOARD, ROOT, TEST_PROGRAMS, start_server

VIP, SOURCE, BALANCER = "192.0.2.10", "192.0.2.20", "192.0.2.5"
SERVERS = ["192.0.2.11", "192.0.2.12"]
CLIENTS = ["192.0.2.101", "192.0.2.102"]
PORT = 4833
ECHO_PORT = 7000
TRANSFERS = 1000
TAKEN_OVER = 800
WAIT_S_MAX = 20
# Time after which namespaces go in any case, whatever becomes of the tests.
HELD_S = 3_600
DEVICE_UNAVAILABLE = 46

has_tools = all(shutil.which(name) for name in ["ip", "unshare", "nsenter"])
can_unshare = has_tools and subprocess.run(["unshare", "-Urn", "true"], capture_output=True).returncode == 0
pytestmark = pytest.mark.skipif(not can_unshare, reason="needs ip, nsenter and user namespaces")


class Net:
    """Hosts in namespaces of their own, on one switch."""

    def __init__(self, stack: contextlib.ExitStack, as_root: bool = False) -> None:
        self.stack = stack
        self.hosts: dict[str, int] = {}
        # XDP programs need the right to load them, which a user namespace does not give.
        self.user = [] if as_root else ["-U", "--preserve-credentials"]
        self.queues = 2 if as_root else 1
        self.switch = self.hold("unshare", "-n" if as_root else "-Urn")

    def hold(self, *command: str) -> int:
        """Starts a process that keeps a namespace, and returns its number."""
        process = subprocess.Popen([*command, "sh", "-c", f"echo ready; exec sleep {HELD_S}"], stdout=subprocess.PIPE)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process.pid

    def inside(self, pid: int) -> list[str]:
        return ["nsenter", "-t", str(pid), *self.user, "-n", "--"]

    def at(self, host: str) -> list[str]:
        """Returns the beginning of a command at a host."""
        return self.inside(self.hosts[host])

    def sh(self, pid: int, script: str) -> None:
        done = subprocess.run([*self.inside(pid), "sh", "-ec", script], capture_output=True, text=True)
        assert done.returncode == 0, f"{script}\n{done.stderr}"

    def add(self, host: str) -> None:
        join = ["nsenter", "-t", str(self.switch), *self.user, "-n", "--", "unshare", "-n"]
        pid = self.hosts[host] = self.hold(*join)
        number = len(self.hosts)
        if number == 1:
            self.sh(self.switch, "ip link add br0 type bridge forward_delay 0; ip link set br0 up")
        self.sh(
            self.switch,
            f"ip link add v{number} numrxqueues {self.queues} numtxqueues {self.queues} type veth peer name eth0"
            f" numrxqueues {self.queues} numtxqueues {self.queues} netns {pid}; ip link set v{number} master br0 up",
        )
        # A new namespace forwards if this machine does, as one with containers.
        quiet = "echo 0 > /proc/sys/net/ipv4/ip_forward"
        self.sh(pid, f"{quiet}; ip link set lo up; ip addr add {host}/24 dev eth0; ip link set eth0 up")

    def start(self, host: str, *command: str | Path, **options: Any) -> subprocess.Popen[str]:
        """Starts a program at a host, which ends with the test."""
        process = subprocess.Popen([*self.at(host), *map(str, command)], text=True, **options)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process


class Balancer:
    """`outboard balance run` at its host."""

    def __init__(self, net: Net, folder: Path, config: str, before: str = "") -> None:
        self.net, self.folder = net, folder
        self.file, self.api, self.log = folder / "balance.toml", folder / "balance.sock", folder / "balance.log"
        self.head = f'api = "{self.api}"\nstate = "{folder}/state"\n{before}'
        self.write(config)
        self.start()

    def write(self, config: str) -> None:
        self.file.write_text(self.head + config)

    def start(self, *options: str, before: Sequence[str] = ()) -> None:
        """Starts it, by the command `before` if there is one."""
        command = [*before, OUTBOARD, "balance", "run", *options, self.file]
        self.process = self.net.start(BALANCER, *command, stdout=subprocess.PIPE, stderr=self.log.open("a"))
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("balancing on"), self.log.read_text()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(WAIT_S_MAX) == 0, self.log.read_text()

    def command(self, *arguments: str) -> str:
        done = subprocess.run(
            [OUTBOARD, "balance", *arguments, "--api", self.api], capture_output=True, text=True, timeout=WAIT_S_MAX
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.command("status", "--json"))
        return status

    def backends(self, service: int = 0) -> dict[str, dict[str, Any]]:
        return {one["address"]: one for one in self.status()["services"][service]["backends"]}

    def until(self, what: str, holds: Any) -> None:
        end = time.monotonic() + WAIT_S_MAX
        while not holds():
            assert time.monotonic() < end, f"{what}: {self.status()}\n{self.log.read_text()}"
            time.sleep(0.05)


@pytest.fixture
def net() -> Iterator[Net]:
    with contextlib.ExitStack() as stack:
        net = Net(stack)
        for host in [BALANCER, *SERVERS, *CLIENTS]:
            net.add(host)
        yield net


@pytest.fixture
def root_net() -> Iterator[Net]:
    if os.geteuid() != 0:
        pytest.skip("XDP programs are loaded by root")
    with contextlib.ExitStack() as stack:
        net = Net(stack, as_root=True)
        for host in [BALANCER, *SERVERS, *CLIENTS]:
            net.add(host)
        yield net


def service(name: str, port: int, rest: str, backends: list[str] = SERVERS) -> str:
    addresses = ", ".join(f'{{ address = "{one}:{port}" }}' for one in backends)
    return (
        f'[[service]]\nname = "{name}"\naddress = "{VIP}:{port}"\nforward = "full-nat"\nsources = ["{SOURCE}"]\n'
        f"{rest}\nbackend = [{addresses}]\n"
    )


PLANE = '[plane]\ninterfaces = ["eth0"]\n'


class Program:
    """A program that uses a GPU by the balancer's address."""

    def __init__(self, net: Net, client: str) -> None:
        command = [OUTBOARD, "run", "--gpu", f"tcp://{VIP}:{PORT}", "--", sys.executable, TEST_PROGRAMS / "balanced.py"]
        environment = {**os.environ, "OUTBOARD_DATA_CONNECTIONS": "2"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = net.start(client, *command, env=environment, **pipes)
        self.expect("ready")

    def expect(self, line: str) -> None:
        assert self.process.stdout is not None and self.process.stderr is not None
        got = self.process.stdout.readline().strip()
        assert got == line, f"{got!r}\n{'' if got else self.process.stderr.read()}"

    def copy(self, result: str = "right") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("copy\n")
        self.process.stdin.flush()
        self.expect(result)

    def end(self) -> None:
        self.process.communicate()
        assert self.process.returncode == 0


def test_programs_are_balanced_drained_and_survive_a_server(net: Net, tmp_path: Path) -> None:
    """Programs stay with a server that is drained until they end; one whose server is killed gets an error, and the
    next goes elsewhere. Their data connections go to the server of their session."""
    servers = {}
    for host in SERVERS:
        folder = tmp_path / host
        folder.mkdir()
        options = ["--insecure", "--listen", f"tcp://{host}:{PORT}"]
        os.environ["OUTBOARD_DATA_CONNECTIONS"] = "2"
        try:
            # A process group of its own, so that all of a server's processes can be killed.
            server = start_server(folder, *options, before=["setsid", *net.at(host)])
        finally:
            del os.environ["OUTBOARD_DATA_CONNECTIONS"]
        servers[f"{host}:{PORT}"] = server
        net.stack.callback(server.process.wait)
        net.stack.callback(kill_group, server.process.pid)
    check = 'affinity = true\ncheck = { kind = "outboard", interval_ms = 200, rise = 1, fall = 2 }'
    balancer = Balancer(net, tmp_path, PLANE + service("gpu", PORT, check))
    balancer.until("both are up", lambda: all(one["is_up"] for one in balancer.backends().values()))

    def used() -> set[str]:
        return {address for address, one in balancer.backends().items() if one["connections"]}

    first = Program(net, CLIENTS[0])
    first.copy()
    (home,) = used()
    (other,) = servers.keys() - {home}
    flows = json.loads(balancer.command("flows", "--json"))
    established = [one for one in flows if one["phase"] == "established"]
    assert len(established) >= 3, "a session and its data connections"
    assert {one["backend"] for one in established} == {home}

    assert json.loads(balancer.command("drain", home, "--json")) == {"backend": home, "drained": True, "services": 1}
    first.copy()
    second = Program(net, CLIENTS[1])
    second.copy()
    assert used() == {home, other}, "a new client goes elsewhere, the old one stays"
    first.copy()
    first.end()
    second.end()
    balancer.command("drain", home, "--end")

    third = Program(net, CLIENTS[0])
    third.copy()
    kill_group(servers[home].process.pid)
    third.copy(f"failed {DEVICE_UNAVAILABLE}")
    third.process.communicate()
    balancer.until("the killed one is down", lambda: not balancer.backends()[home]["is_up"])
    fourth = Program(net, CLIENTS[0])
    fourth.copy()
    assert other in used()
    fourth.end()
    balancer.stop()


def kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def test_no_transfer_breaks_while_backends_and_the_balancer_come_and_go(net: Net, tmp_path: Path) -> None:
    """1,000 transfers, beside a flood of SYNs: backends are drained, removed and added, and the balancer starts again
    twice. Nothing breaks, and no byte is wrong."""
    echo = [sys.executable, TEST_PROGRAMS / "transfers.py"]
    for host in SERVERS:
        serve(net, host, "serve", host)
    check = 'check = { kind = "tcp", interval_ms = 200, fall = 5 }'
    limits = "[limits]\nhalf_open = 4000\n"
    whole = PLANE + limits + service("echo", ECHO_PORT, check)
    balancer = Balancer(net, tmp_path, whole)
    warm_up(net, balancer)
    transfers = net.start(CLIENTS[0], *echo, "transfer", VIP, str(ECHO_PORT), str(TRANSFERS), stdout=subprocess.PIPE)
    flood = net.start(CLIENTS[1], *echo, "flood", VIP, str(ECHO_PORT), "4", stdout=subprocess.PIPE)
    time.sleep(0.5)
    drained = f"{SERVERS[0]}:{ECHO_PORT}"
    balancer.command("drain", drained)
    time.sleep(0.5)
    balancer.command("drain", drained, "--end")
    balancer.stop()
    balancer.start()
    balancer.write(PLANE + limits + service("echo", ECHO_PORT, check, SERVERS[:1]))
    balancer.command("reload")
    time.sleep(0.5)
    removed = balancer.backends().get(f"{SERVERS[1]}:{ECHO_PORT}")
    assert removed is None or removed["is_removed"], "it stays for as long as it has connections, and takes no new ones"
    balancer.write(whole)
    balancer.process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    balancer.stop()
    balancer.start()
    out, _ = transfers.communicate(timeout=60)
    report = json.loads(out)
    assert report["results"] == {"right": TRANSFERS}, f"{report}\n{balancer.status()}"
    assert set(report["servers"]) == set(SERVERS)
    sent, _ = flood.communicate(timeout=60)
    assert int(sent) > 4000, "more than there is room for"
    status = balancer.status()
    assert status["half_open"] <= 4000
    balancer.stop()


TUN = '[plane]\nkind = "tun"\ninterfaces = ["lb0"]\n'
XDP = '[plane]\nkind = "xdp"\ninterfaces = ["eth0"]\n'


def route_by_tun(net: Net) -> None:
    """Has the kernel of the balancer's host route by a device that outlasts the balancer."""
    here = net.hosts[BALANCER]
    net.sh(here, "ip tuntap add dev lb0 mode tun; ip link set lb0 up; echo 1 > /proc/sys/net/ipv4/ip_forward")
    net.sh(here, f"ip route add {VIP} dev lb0; ip route add {SOURCE} dev lb0")
    for host in SERVERS + CLIENTS:
        net.sh(net.hosts[host], f"ip route add {VIP} via {BALANCER}; ip route add {SOURCE} via {BALANCER}")


@pytest.mark.parametrize("kind", ["packet", "tun", "xdp"])
def test_new_processes_take_over_under_transfers(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Transfers go on while three processes follow each other, and each hands over its connections and ends."""
    net: Net = request.getfixturevalue("root_net" if kind == "xdp" else "net")
    for host in SERVERS:
        serve(net, host, "serve", host)
    if kind == "tun":
        route_by_tun(net)
    plane = {"packet": PLANE, "tun": TUN, "xdp": XDP}[kind]
    check = 'check = { kind = "tcp", interval_ms = 200, fall = 5 }'
    balancer = Balancer(net, tmp_path, plane + service("echo", ECHO_PORT, check))
    warm_up(net, balancer)
    count = TAKEN_OVER if kind == "packet" else TAKEN_OVER // 2
    echo = [sys.executable, TEST_PROGRAMS / "transfers.py", "transfer", VIP, str(ECHO_PORT), str(count)]
    transfers = net.start(CLIENTS[0], *echo, stdout=subprocess.PIPE)
    for _ in range(3):
        time.sleep(0.3)
        balancer.command("drain", f"{SERVERS[0]}:{ECHO_PORT}")
        before = balancer.process
        balancer.start("--take-over")
        assert before.wait(WAIT_S_MAX) == 0, balancer.log.read_text()
        assert balancer.backends()[f"{SERVERS[0]}:{ECHO_PORT}"]["is_drained"], balancer.status()
        balancer.command("drain", f"{SERVERS[0]}:{ECHO_PORT}", "--end")
        assert has_program(net) == (kind == "xdp")
    still_running = transfers.poll() is None
    out, _ = transfers.communicate(timeout=60)
    report = json.loads(out)
    assert report["results"] == {"right": count}, f"{report}\n{balancer.status()}\n{balancer.log.read_text()}"
    assert still_running, "the transfers were over before the last process took over"
    balancer.stop()
    assert not has_program(net)


def test_a_successor_that_hangs_stops_frames_for_a_bounded_time(net: Net, tmp_path: Path) -> None:
    for host in SERVERS:
        serve(net, host, "serve", host)
    balancer = Balancer(net, tmp_path, PLANE + service("echo", ECHO_PORT, ""))
    warm_up(net, balancer)
    plane = {"kind": "auto", "interfaces": ["eth0"], "spin_us": None}
    with socket.socket(socket.AF_UNIX) as taker:
        taker.connect(str(balancer.api))
        taker.sendall(json.dumps({"hand-over": {"plane": plane}}).encode() + b"\n")
        assert taker.recv(1) == b"H"
        begin = time.monotonic()
        assert ask(net, "transfer", VIP, 20)["results"] == {"right": 20}
        assert time.monotonic() - begin < 10
        assert "not handed over: this balancer goes on" in balancer.log.read_text()
    balancer.start("--take-over")
    balancer.stop()


def test_a_take_over_that_fails_leaves_the_running_balancer(net: Net, tmp_path: Path) -> None:
    config = PLANE + service("echo", ECHO_PORT, "")
    balancer = Balancer(net, tmp_path, config, 'metrics = "127.0.0.1:9185"\n')
    listen = (
        "import socket, time; s = socket.create_server(('127.0.0.1', 9186)); print('ready', flush=True); time.sleep(60)"
    )
    other = net.start(BALANCER, sys.executable, "-c", listen, stdout=subprocess.PIPE)
    assert other.stdout is not None and other.stdout.readline() == "ready\n"
    head = balancer.head
    balancer.head = head.replace("9185", "9186")
    balancer.write(config)
    command = [*net.at(BALANCER), OUTBOARD, "balance", "run", "--take-over", balancer.file]
    failed = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S_MAX)
    assert (failed.returncode, "127.0.0.1:9186: Address already in use" in failed.stderr) == (1, True), failed.stderr
    assert not (tmp_path / "balance.sock.new").exists()
    metrics = [*net.at(BALANCER), "curl", "-sf", "http://127.0.0.1:9185/metrics"]
    assert subprocess.run(metrics, capture_output=True).returncode == 0
    assert balancer.process.poll() is None, balancer.log.read_text()
    # The next one gets the address of its predecessor.
    balancer.head = head
    balancer.write(config)
    before = balancer.process
    balancer.start("--take-over")
    assert before.wait(WAIT_S_MAX) == 0, balancer.log.read_text()
    assert subprocess.run(metrics, capture_output=True).returncode == 0
    balancer.stop()


def warm_up(net: Net, balancer: Balancer) -> None:
    """Waits until the balancer knows its neighbours: one transfer succeeds."""
    command = [sys.executable, TEST_PROGRAMS / "transfers.py", "transfer", VIP, str(ECHO_PORT), "1"]
    out, _ = net.start(CLIENTS[0], *command, stdout=subprocess.PIPE).communicate(timeout=60)
    assert json.loads(out)["results"] == {"right": 1}, f"{out}\n{balancer.status()}\n{balancer.log.read_text()}"


def test_a_tun_device_balances_what_the_kernel_routes_to_it(net: Net, tmp_path: Path) -> None:
    for host in SERVERS:
        serve(net, host, "serve", host)
    metrics = 'metrics = "127.0.0.1:9185"\n'
    balancer = Balancer(net, tmp_path, metrics + TUN + service("echo", ECHO_PORT, ""))
    routes = f"ip route add {VIP} dev lb0; ip route add {SOURCE} dev lb0; echo 1 > /proc/sys/net/ipv4/ip_forward"
    net.sh(net.hosts[BALANCER], f"{routes}; echo 1 > /proc/sys/net/ipv4/conf/eth0/proxy_arp")
    for host in SERVERS + CLIENTS:
        net.sh(net.hosts[host], f"ip route add {VIP} via {BALANCER}; ip route add {SOURCE} via {BALANCER}")
    report = ask(net, "transfer", VIP, 50)
    assert report["results"] == {"right": 50}, f"{report}\n{balancer.status()}"
    assert set(report["servers"]) == set(SERVERS)
    assert subprocess.run([*net.at(CLIENTS[0]), "ping", "-c1", "-W2", VIP], capture_output=True).returncode in (0, 127)
    exposition = net.start(BALANCER, "curl", "-s", "http://127.0.0.1:9185/metrics", stdout=subprocess.PIPE)
    text, _ = exposition.communicate()
    assert "outboard_balance_opened_total 50\n" in text
    assert f'outboard_balance_backend_up{{service="echo",backend="{SERVERS[0]}:{ECHO_PORT}"}} 1\n' in text
    explained = balancer.command("explain", "45 00 00 28 00 07 00 00 40 06 00 00 c0 00 02 65 c0 00 02 0a")
    assert "(length)" in explained
    balancer.stop()


def serve(net: Net, host: str, kind: str, address: str) -> None:
    """Starts a server for transfers at a host."""
    command = [sys.executable, TEST_PROGRAMS / "transfers.py", kind, address, str(ECHO_PORT)]
    server = net.start(host, *command, stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"


def ask(net: Net, kind: str, address: str, count: int, client: str = CLIENTS[0]) -> dict[str, Any]:
    command = [sys.executable, TEST_PROGRAMS / "transfers.py", kind, address, str(ECHO_PORT), str(count)]
    out, _ = net.start(client, *command, stdout=subprocess.PIPE).communicate(timeout=60)
    report: dict[str, Any] = json.loads(out)
    return report


def rule(forward: str, vip: str, backends: list[str], rest: str) -> str:
    addresses = ", ".join(f'{{ address = "{one}:{ECHO_PORT}" }}' for one in backends)
    return (
        f'{PLANE}[[service]]\nname = "echo"\naddress = "{vip}:{ECHO_PORT}"\nforward = "{forward}"\n{rest}\n'
        f"backend = [{addresses}]\n"
    )


def test_nat_with_the_balancer_as_gateway(net: Net, tmp_path: Path) -> None:
    """Backends see the client, which is on another network, and answer by way of the balancer."""
    client = "198.51.100.1"
    for host in SERVERS:
        serve(net, host, "serve", host)
        net.sh(net.hosts[host], f"ip route add default via {BALANCER}")
    here = f"ip addr add {client}/32 dev eth0; ip route add {VIP} dev eth0 src {client}"
    net.sh(net.hosts[CLIENTS[0]], here)
    balancer = Balancer(net, tmp_path, rule("nat", VIP, SERVERS, 'check = { kind = "tcp", interval_ms = 200 }'))
    warm_up(net, balancer)
    report = ask(net, "transfer", VIP, 50)
    assert report["results"] == {"right": 50}, f"{report}\n{balancer.status()}"
    assert set(report["servers"]) == set(SERVERS)
    flows = json.loads(balancer.command("flows", "--json"))
    assert {flow["client"].split(":")[0] for flow in flows} == {client}
    balancer.stop()


def test_direct_return_goes_around_the_balancer(net: Net, tmp_path: Path) -> None:
    for host in SERVERS:
        quiet = "echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore; echo 2 > /proc/sys/net/ipv4/conf/all/arp_announce"
        net.sh(net.hosts[host], f"{quiet}; ip addr add {VIP}/32 dev lo")
        serve(net, host, "serve", VIP)
        serve(net, host, "serve", host)
    balancer = Balancer(net, tmp_path, rule("direct", VIP, SERVERS, 'check = { kind = "tcp", interval_ms = 200 }'))
    warm_up(net, balancer)
    assert ask(net, "transfer", VIP, 50)["results"] == {"right": 50}, balancer.status()
    status = balancer.status()
    assert status["packets"][0] > 500
    assert status["packets"][1] == 0, "answers do not pass"
    assert all(one["opened"] > 5 for one in balancer.backends().values())
    balancer.stop()


def test_ipv6_by_full_nat(net: Net, tmp_path: Path) -> None:
    for number, host in enumerate([BALANCER, *SERVERS, *CLIENTS], 1):
        net.sh(net.hosts[host], f"ip addr add 2001:db8::{number}/64 dev eth0 nodad")
    backends = ["2001:db8::2", "2001:db8::3"]
    for host, address in zip(SERVERS, backends, strict=True):
        serve(net, host, "serve", address)
    rest = 'sources = ["2001:db8::20"]\ncheck = { kind = "tcp", interval_ms = 200 }'
    names = [f"[{one}]" for one in backends]
    balancer = Balancer(net, tmp_path, rule("full-nat", "[2001:db8::10]", names, rest))
    report = ask(net, "transfer", "2001:db8::10", 50)
    assert report["results"] == {"right": 50}, f"{report}\n{balancer.status()}"
    assert set(report["servers"]) == set(backends)
    balancer.stop()


def test_datagrams_and_their_fragments(net: Net, tmp_path: Path) -> None:
    for host in SERVERS:
        serve(net, host, "serve-datagrams", host)
        serve(net, host, "serve", host)
    rest = f'protocol = "udp"\nsources = ["{SOURCE}"]\ncheck = {{ kind = "tcp", interval_ms = 200 }}'
    balancer = Balancer(net, tmp_path, rule("full-nat", VIP, SERVERS, rest))
    report = ask(net, "ask", VIP, 60)
    assert report["results"] == {"right": 60}, f"{report}\n{balancer.status()}"
    assert set(report["servers"]) == set(SERVERS)
    assert balancer.status()["fragments"] >= 20 * 4 * 2
    balancer.stop()


def has_program(net: Net) -> bool:
    show = [*net.at(BALANCER), "ip", "link", "show", "eth0"]
    return "xdp" in subprocess.run(show, capture_output=True, text=True).stdout


def test_af_xdp_takes_the_balancer_s_frames_and_leaves_the_rest(root_net: Net, tmp_path: Path) -> None:
    """Two queues, checksums left out by the hosts' devices; the kernel's own traffic goes on; the program comes off
    the interface at the end, and when the process is killed."""
    net = root_net
    for host in [*SERVERS, BALANCER]:
        serve(net, host, "serve", host)
    balancer = Balancer(net, tmp_path, XDP + service("echo", ECHO_PORT, 'check = { kind = "tcp", interval_ms = 200 }'))
    assert has_program(net)
    assert "queues=2" in balancer.log.read_text()
    warm_up(net, balancer)

    def transfer(address: str, count: int) -> dict[str, Any]:
        report = ask(net, "transfer", address, count)
        assert report["results"] == {"right": count}, f"{report}\n{balancer.status()}"
        return report

    assert set(transfer(VIP, 100)["servers"]) == set(SERVERS)
    packets = sum(balancer.status()["packets"])
    transfer(BALANCER, 25)
    after = balancer.status()
    assert sum(after["packets"]) - packets < 20, "what is the kernel's does not come to the balancer"
    assert after["checksums_completed"] > 0
    balancer.process.kill()
    balancer.process.wait()
    assert not has_program(net)
    balancer.start()
    transfer(VIP, 25)
    balancer.process.send_signal(signal.SIGINT)
    assert balancer.process.wait(WAIT_S_MAX) == 0
    assert not has_program(net)
    transfer(BALANCER, 25)


@pytest.mark.parametrize(
    ("config", "text", "code"),
    [
        (PLANE + "surprise = 1", "surprise", 2),
        (PLANE + service("a", 1, "", [VIP]), f"its address {VIP} is a backend's, too", 2),
        (PLANE + service("a", 1, "", []), "0 backends", 2),
        (PLANE + service("a", 1, "") + service("b", 1, ""), "belongs to another service already", 2),
        ('[plane]\nkind = "xpd"\ninterfaces = ["eth0"]\n', "unknown variant `xpd`", 2),
        ('[plane]\nkind = "xdp"\n', "AF_XDP needs interfaces", 2),
        (service("a", 1, ""), 'kind = "tun" for a TUN device', 2),
        ('[plane]\ninterfaces = ["eth0", "eth0"]\n', "interface eth0 is there twice", 2),
        (TUN.replace("lb0", "eth0") + service("a", 1, ""), "which is not where packets come from", 0),
        ('[plane]\ninterfaces = ["eth7"]\n' + service("a", 1, ""), "interface eth7: finding it", 0),
        ('[plane]\ninterfaces = ["lo"]\n' + service("a", 1, ""), "interface lo is not Ethernet", 0),
    ],
)
def test_what_cannot_run_says_why(net: Net, tmp_path: Path, config: str, text: str, code: int) -> None:
    """`code` is that of `outboard balance check`, which looks at files alone."""
    file = tmp_path / "balance.toml"
    file.write_text(config)
    checked = subprocess.run([OUTBOARD, "balance", "check", file], capture_output=True, text=True)
    assert checked.returncode == code
    command = [*net.at(BALANCER), OUTBOARD, "balance", "run", file, "--api", tmp_path / "api"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S_MAX)
    assert run.returncode == (code or 1)
    assert text in (checked.stderr if code else "") + run.stderr
    assert text in run.stderr
    assert not (tmp_path / "api").exists()


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for words, code in [(["check", pipe], 2), (["check", "/dev/zero"], 2), (["explain", "--pcap", pipe], 1)]:
        done = subprocess.run([OUTBOARD, "balance", *words], capture_output=True, text=True, timeout=WAIT_S_MAX)
        assert (done.returncode, "this is no file" in done.stderr) == (code, True), done.stderr


def test_a_balancer_that_starts_waits_for_no_pipe_and_ends_by_a_signal(net: Net, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    file, api = tmp_path / "balance.toml", tmp_path / "api"
    file.write_text(f'api = "{api}"\nstate = "{tmp_path}/pipe"\n{PLANE}{service("a", 1, "")}')
    command = [*net.at(BALANCER), OUTBOARD, "balance", "run", file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S_MAX)
    assert (done.returncode, "pipe: this is no file" in done.stderr) == (1, True), done.stderr
    lines = [f'state = "{tmp_path}/none/state"', f'control = "127.0.0.1:1"\ncontrol_token = "{tmp_path}/none"']
    for line in lines:
        wrong = tmp_path / "wrong.toml"
        wrong.write_text(f"{line}\n{PLANE}{service('a', 1, '')}")
        done = subprocess.run([OUTBOARD, "balance", "check", wrong], capture_output=True, text=True, timeout=WAIT_S_MAX)
        assert (done.returncode, "No such file" in done.stderr) == (2, True), done.stderr
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(api))
        silent.listen()
        taker = net.start(BALANCER, *command[len(net.at(BALANCER)) :], "--take-over")
        with silent.accept()[0] as asked:
            asked.recv(1)
            taker.send_signal(signal.SIGTERM)
            assert taker.wait(WAIT_S_MAX) == -signal.SIGTERM


def test_a_restart_refuses_what_is_wrong_and_changes_nothing(net: Net, tmp_path: Path) -> None:
    good = PLANE + service("echo", ECHO_PORT, "")
    balancer = Balancer(net, tmp_path, good)
    before = balancer.status()["services"]
    balancer.write(good.replace("full-nat", "fool-nat"))
    refused = subprocess.run(
        [OUTBOARD, "balance", "reload", "--api", balancer.api], capture_output=True, text=True, timeout=WAIT_S_MAX
    )
    assert refused.returncode == 1
    assert "fool-nat" in refused.stderr
    balancer.write(f"hash_seed = 9\n{good}")
    command = [OUTBOARD, "balance", "reload", "--api", balancer.api]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S_MAX)
    assert "hash_seed: changed, for which a restart is needed" in refused.stderr
    balancer.file.unlink()
    os.mkfifo(balancer.file)
    refused = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S_MAX)
    assert (refused.returncode, "this is no file" in refused.stderr) == (1, True), refused.stderr
    balancer.file.unlink()
    assert balancer.status()["services"] == before
    # A second one at the same socket is refused; one that was killed leaves a socket that is taken over.
    balancer.write(good)
    command = [*net.at(BALANCER), OUTBOARD, "balance", "run", balancer.file]
    second = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S_MAX)
    assert second.returncode == 1
    assert "balance.sock: another balancer answers there" in second.stderr
    # So is one at another socket with the same state file.
    elsewhere = tmp_path / "elsewhere.toml"
    elsewhere.write_text(balancer.file.read_text().replace("balance.sock", "elsewhere.sock"))
    balancer.start("--take-over")
    second = subprocess.run([*command[:-1], elsewhere], capture_output=True, text=True, timeout=WAIT_S_MAX)
    assert (second.returncode, "state: another balancer keeps" in second.stderr) == (1, True), second.stderr
    assert balancer.status()["services"] == before
    balancer.process.kill()
    balancer.process.wait()
    balancer.start()
    balancer.stop()
    (tmp_path / "state").write_bytes((tmp_path / "state").read_bytes()[:-1])
    damaged = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S_MAX)
    assert damaged.returncode == 1
    assert "the dump is cut or changed" in damaged.stderr
    (tmp_path / "state").write_bytes(b"OBBALNCE\1\0\0\0")
    other = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S_MAX)
    assert other.returncode == 1
    assert re.search(r"state: a dump of version 1, where \d+ is understood", other.stderr), other.stderr


def test_an_interface_that_goes_down_or_vanishes(net: Net, tmp_path: Path) -> None:
    """The balancer goes on with the others, and with one that comes up again; without any it ends, with its state."""
    here = net.hosts[BALANCER]
    for host in SERVERS:
        serve(net, host, "serve", host)
    net.sh(here, "ip link add eth1 type veth peer name other; ip link set eth1 up")
    plane = '[plane]\ninterfaces = ["eth1", "eth0"]\n'
    balancer = Balancer(net, tmp_path, plane + service("echo", ECHO_PORT, ""))
    warm_up(net, balancer)
    net.sh(here, "ip link set eth0 down; ip link del eth1; ip link set eth0 up")
    assert ask(net, "transfer", VIP, 25)["results"] == {"right": 25}, balancer.log.read_text()
    balancer.until("it says so", lambda: balancer.status()["interfaces_gone"] == ["eth1"])
    assert "is gone, until there is one of its name" in balancer.log.read_text()
    assert "interface eth1 is gone" in balancer.command("status")
    # The one that the hosts are at, too, made again while another is there.
    net.sh(here, "ip link add eth1 type veth peer name other; ip link set eth1 up")
    balancer.until("it is there again", lambda: balancer.status()["interfaces_gone"] == [])
    net.sh(here, "ip link del eth0")
    balancer.until("it says so", lambda: balancer.status()["interfaces_gone"] == ["eth0"])
    net.sh(
        net.switch,
        f"ip link add again type veth peer name eth0 netns {here}; ip link set again master br0 up",
    )
    net.sh(here, f"ip addr add {BALANCER}/24 dev eth0; ip link set eth0 up")
    balancer.until("it is there again", lambda: balancer.status()["interfaces_gone"] == [])
    assert ask(net, "transfer", VIP, 25)["results"] == {"right": 25}, balancer.log.read_text()
    net.sh(here, "ip link del eth1; ip link del eth0")
    assert balancer.process.wait(WAIT_S_MAX) == 1
    assert "no interface is left, eth1, eth0 is gone" in balancer.log.read_text()
    assert (tmp_path / "state").exists() and not balancer.api.exists()


def test_a_device_that_vanishes_is_an_error(net: Net, tmp_path: Path) -> None:
    balancer = Balancer(net, tmp_path, TUN + service("echo", ECHO_PORT, ""))
    net.sh(net.hosts[BALANCER], "ip link set lb0 up; ip link del lb0")
    assert balancer.process.wait(WAIT_S_MAX) == 1
    assert "lb0" in balancer.log.read_text().splitlines()[-1]
    assert (tmp_path / "state").exists() and not balancer.api.exists()


def test_an_xdp_interface_that_vanishes_is_an_error(root_net: Net, tmp_path: Path) -> None:
    balancer = Balancer(root_net, tmp_path, XDP + service("echo", ECHO_PORT, ""))
    root_net.sh(root_net.hosts[BALANCER], "ip link del eth0")
    assert balancer.process.wait(WAIT_S_MAX) == 1
    assert "no interface is left, eth0 is gone" in balancer.log.read_text()


def test_a_second_balancer_does_not_take_the_interface_of_the_first(root_net: Net, tmp_path: Path) -> None:
    balancer = Balancer(root_net, tmp_path, XDP + service("echo", ECHO_PORT, ""))
    file = tmp_path / "second.toml"
    file.write_text(XDP + service("echo", ECHO_PORT, ""))
    command = [*root_net.at(BALANCER), OUTBOARD, "balance", "run", file, "--api", tmp_path / "second.sock"]
    second = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S_MAX)
    assert second.returncode == 1
    assert "interface eth0: putting the XDP program on it" in second.stderr
    assert has_program(root_net) and not (tmp_path / "second.sock").exists()
    balancer.stop()
    assert not has_program(root_net)


@pytest.mark.parametrize(
    ("plane", "text"),
    [
        (PLANE, "interface eth0: opening a packet socket: Operation not permitted"),
        (XDP, "interface eth0: "),
        (TUN, "interface lb0: "),
    ],
)
def test_without_rights_the_step_is_named(net: Net, tmp_path: Path, plane: str, text: str) -> None:
    """XDP programs need more than a user namespace gives; the other ways, more than no rights at all."""
    file = tmp_path / "balance.toml"
    file.write_text(plane + service("a", 1, ""))
    none = [] if plane == XDP else ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    command = [*net.at(BALANCER), *none, OUTBOARD, "balance", "run", file, "--api", tmp_path / "api"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S_MAX)
    assert done.returncode == 1
    assert text in done.stderr and "ermitted" in done.stderr, done.stderr
    assert not (tmp_path / "api").exists()


def fill(net: Net, balancer: Balancer) -> int:
    """Has the balancer know many connections, half-open ones. Returns their number."""
    flood = [sys.executable, TEST_PROGRAMS / "flood.py", VIP, str(ECHO_PORT), "40000", "2"]
    net.start(CLIENTS[1], *flood, stdout=subprocess.PIPE).communicate()
    counts = [0, 0]
    while len(set(counts[-2:])) > 1 or not counts[-1]:
        time.sleep(0.2)
        counts.append(balancer.status()["half_open"])
    assert counts[-1] > 10_000
    return counts[-1]


def test_the_state_stays_whole_wherever_the_process_ends(net: Net, tmp_path: Path) -> None:
    """It is killed while it writes, again and again, and then interrupted while it writes."""
    serve(net, SERVERS[0], "serve", SERVERS[0])
    limits = "dump_seconds = 1\n"
    balancer = Balancer(net, tmp_path, PLANE + service("echo", ECHO_PORT, "", SERVERS[:1]), limits)
    warm_up(net, balancer)
    count = fill(net, balancer)
    state, new = tmp_path / "state", tmp_path / "state.new"
    for _ in range(2):
        # Each dump is a new file, and the second one began after all were there.
        before = state.stat().st_ino if state.exists() else 0
        balancer.until("it is written", lambda before=before: state.exists() and state.stat().st_ino != before)

    def until_writing() -> None:
        end = time.monotonic() + WAIT_S_MAX
        while not new.exists():
            assert time.monotonic() < end
            time.sleep(0.0002)

    for turn in range(5):
        until_writing()
        time.sleep(0.001 * turn)
        balancer.process.kill()
        balancer.process.wait()
        balancer.start()
        assert balancer.status()["half_open"] == count, f"{turn}: {balancer.log.read_text()}"
    until_writing()
    balancer.process.send_signal(signal.SIGINT)
    assert balancer.process.wait(WAIT_S_MAX) == 0
    assert not new.exists()
    balancer.start()
    assert balancer.status()["half_open"] == count
    balancer.stop()


def test_a_full_disk_leaves_the_state_as_it_was(net: Net, tmp_path: Path) -> None:
    serve(net, SERVERS[0], "serve", SERVERS[0])
    small = tmp_path / "small"
    small.mkdir()
    rules = "dump_seconds = 1\n" + PLANE + service("echo", ECHO_PORT, "", SERVERS[:1])
    balancer = Balancer(net, tmp_path, PLANE + service("echo", ECHO_PORT, "", SERVERS[:1]))
    balancer.stop()
    balancer.head = f'api = "{balancer.api}"\nstate = "{small}/state"\n'
    balancer.write(rules)
    mount = f'mount -t tmpfs -o size=256k none {small} && exec "$@"'
    balancer.start(before=["unshare", "-m", "sh", "-c", mount, "sh"])
    warm_up(net, balancer)
    inside = Path(f"/proc/{balancer.process.pid}/root/{small}")
    balancer.until("it is written once", lambda: (inside / "state").exists())
    fill(net, balancer)
    balancer.until("the disk is full", lambda: "No space left" in balancer.log.read_text())
    balancer.until("the rest is removed", lambda: not (inside / "state.new").exists())
    assert 0 < (inside / "state").stat().st_size <= 256 << 10
    balancer.process.send_signal(signal.SIGTERM)
    assert balancer.process.wait(WAIT_S_MAX) == 1
    assert "small/state: No space left" in balancer.log.read_text().splitlines()[-1]


TOKEN = "a token of a test, of 32 letters"


def test_commands_over_http_need_the_token_and_bear_garbage(net: Net, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    control = f'metrics = "127.0.0.1:9185"\ncontrol = "127.0.0.1:9186"\ncontrol_token = "{token}"\n'
    balancer = Balancer(net, tmp_path, PLANE + service("echo", ECHO_PORT, ""), control)
    backend = f"{SERVERS[0]}:{ECHO_PORT}"
    requests = [sys.executable, TEST_PROGRAMS / "http_requests.py", "9186", "9185", TOKEN, backend]
    out, _ = net.start(BALANCER, *requests, stdout=subprocess.PIPE).communicate(timeout=60)
    report = json.loads(out)
    codes, answers = report["codes"], report["answers"]
    refused = {
        "no backend": 409, "no token": 401, "wrong token": 401, "open drain": 404, "open flows": 404, "get drain": 405,
        "hand-over": 404, "not there": 404, "wrong body": 400, "body of a reload": 400, "no packet": 400,
        "1,001 packets": 409, "wrong phase": 400, "not HTTP": 400, "long head": 413, "many headers": 400,
        "long body": 413, "no length": 400, "chunks": 400, "cut": 400, "cut body": 400, "no port": 400,
        "slow": 408,
    }  # fmt: skip
    assert {name: code for name, code in codes.items() if code != 200} == refused
    assert answers["drain"] == "1\n" and json.loads(answers["no backend"]) == {"error": "192.0.2.99:1 is no backend"}
    assert "no port 9: there are 1" in answers["no port"]
    assert json.loads(answers["drained"])["services"] == [{"name": "echo", "usable": 1, "backends": 2}]
    assert json.loads(answers["drained"])["exhausted"] == []
    assert "frames cut short" in answers["explain"] or "cut" in answers["explain"]
    assert report["beside_s"] < 2, "those that send nothing more make room"
    assert report["slow_s"] < 7 and "has not come whole within 3 s" in answers["slow"]
    at = ["--api", "http://127.0.0.1:9186", "--api-token", token]

    def command(*words: str | Path) -> subprocess.CompletedProcess[str]:
        asked = [*net.at(BALANCER), OUTBOARD, "balance", *words]
        return subprocess.run(asked, capture_output=True, text=True, timeout=WAIT_S_MAX)

    assert command("drain", backend, *at).returncode == 0
    assert balancer.backends()[backend]["is_drained"]
    shown = command("status", *at).stdout
    assert "drained" in shown
    assert re.search(r"^passed by +\d+ not_ours$", shown, re.M), "frames that are the host's own"
    assert command("flows", "--phase", "established", *at).stdout == ""
    assert "no port 9: there are 1" in command("explain", "45", "--port", "9", *at).stderr
    assert "192.0.2.99:1 is no backend" in command("drain", "192.0.2.99:1", *at).stderr
    assert "needs --api-token" in command("status", *at[:2]).stderr
    token.chmod(0o644)
    assert "others can read" in command("status", *at).stderr
    balancer.stop()
    again = command("run", balancer.file)
    assert again.returncode == 1
    assert "control_token: " in again.stderr and "others can read" in again.stderr


def test_the_demo_shows_both_servers_and_ends_with_ctrl_c() -> None:
    command = [ROOT / "tools" / "demo_balance.py", OUTBOARD, EXAMPLES / "vector_add"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.count("vector_add: every result is right") == 3, done.stdout
    assert "cudaErrorDevicesUnavailable" in done.stdout
    cut = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert cut.stdout is not None
    while "vector_add" not in cut.stdout.readline():
        pass
    started = children(cut.pid)
    assert len(started) > 6
    cut.send_signal(signal.SIGINT)
    assert cut.wait(WAIT_S_MAX) == 130
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()

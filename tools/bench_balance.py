#!/usr/bin/env python3
"""Measures `outboard balance` beside nftables, HAProxy, nginx and plain forwarding, in namespaces of this machine.

python3 tools/bench_balance.py run RESULTS.json [--quick] [--rounds N] [--only NAME,...] [--parts PART,...]
python3 tools/bench_balance.py page RESULTS.json PAGE.md

A client, a balancer and two backends behind it are joined by veth devices. Everything of the balancer, the kernel's
work for its interfaces too, is on one core; client and backends are on others where there are enough. Ways to balance
take turns, round after round. It needs root, ip, nft and ethtool; what else is missing (iperf3, wrk, HAProxy, nginx)
leaves its rows out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUTBOARD = Path(os.environ.get("OUTBOARD", ROOT / "target" / "release" / "outboard")).absolute()
TRAFFIC = Path(os.environ.get("TRAFFIC", ROOT / "target" / "release" / "examples" / "traffic")).absolute()

CLIENT, FRONT, BACK = "198.18.0.1", "198.18.0.2", "198.18.1.2"
BACKENDS = ["198.18.1.11", "198.18.1.12"]
VIP, SOURCE = "192.0.2.10", "192.0.2.20"
MACS = {"client": "02:00:00:00:00:01", "front": "02:00:00:00:00:02", "back": "02:00:00:00:00:03"}
MACS["backend"] = "02:00:00:00:00:04"
DATAGRAMS, IPERF, HTTP = 9000, 5201, 8080
FLOWS = 1024
# Frames a second of the latency's measurement.
MODERATE = 20_000
OUR_PLANES = {"packet": "packet", "packet-alone": "packet", "tun": "tun", "xdp": "xdp", "xdp-generic": "xdp"}
NAMES = {
    "forwarding": "plain forwarding, no balancing",
    "nftables": "nftables DNAT",
    "haproxy": "HAProxy, tcp",
    "nginx": "nginx, stream",
    "packet": "outboard, packet sockets",
    "packet-alone": "outboard, packet sockets, frames kept from the kernel",
    "tun": "outboard, TUN device",
    "xdp": "outboard, AF_XDP in the driver",
    "xdp-generic": "outboard, AF_XDP after the driver",
}
PARTS = ["latency", "rate", "cost", "tcp", "tcp without offloads", "http", "http short"]
# Frames and samples a second of the cost's measurement.
SAMPLED, SAMPLES = 50_000, 7999
# A server may take this long until it listens.
SERVED_S_MAX = 10
# Ways and parts of the quick form.
QUICK = ["nftables", "packet", "tun", "xdp"]
QUICK_PARTS = ["latency", "rate", "tcp", "http"]

Rows = dict[str, Any]


class Failed(Exception):
    """A measurement that did not work, with the reason."""


def run(*command: str | Path, check: bool = True, timeout: float = 60) -> str:
    done = subprocess.run([str(one) for one in command], capture_output=True, text=True, timeout=timeout)
    if check and done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))}: {done.stderr.strip()[-500:]}{done.stdout.strip()[-200:]}")
    return done.stdout


class Cores:
    """Cores of client, balancer and backends: apart where there are four, on two otherwise."""

    def __init__(self) -> None:
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) >= 8:
            self.client, self.balancer, self.backend = cores[2], cores[4], cores[6]
        elif len(cores) >= 3:
            self.client, self.balancer, self.backend = cores[0], cores[1], cores[2]
        else:
            self.client, self.balancer, self.backend = cores[0], cores[-1], cores[0]


class Lab:
    """Namespaces and the devices between them."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path) -> None:
        self.stack, self.folder, self.cores = stack, folder, Cores()
        self.spin_us = 50
        self.client, self.balancer, self.backend = self.hold(), self.hold(), self.hold()
        self.pins = {
            self.client: self.cores.client,
            self.balancer: self.cores.balancer,
            self.backend: self.cores.backend,
        }
        self.devices = [(self.client, "eth0"), (self.balancer, "eth0"), (self.balancer, "eth1"), (self.backend, "eth0")]
        self.connect()
        self.steered = [self.steer(pid, device) for pid, device in self.devices]
        self.sh(self.backend, f"nft add table netdev sink; nft {quoted(SINK)}; nft {quoted(SINK_RULE)}")

    def hold(self) -> int:
        """Starts a process that keeps a namespace with its own view of /sys, and returns its number."""
        # A new namespace forwards if this machine does, as one with containers.
        script = "mount -t sysfs none /sys 2>/dev/null; echo 0 > /proc/sys/net/ipv4/ip_forward; ip link set lo up; "
        script += "echo ready; exec sleep 3000"
        command = ["unshare", "-n", "-m", "sh", "-c", script]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        if process.stdout is None or process.stdout.readline() != b"ready\n":
            raise Failed("no namespaces can be made here")
        return process.pid

    def inside(self, pid: int) -> list[str]:
        return ["nsenter", "-t", str(pid), "-n", "-m", "--", "taskset", "-c", str(self.pins[pid])]

    def sh(self, pid: int, script: str, check: bool = True) -> str:
        return run(*self.inside(pid), "sh", "-ec", script, check=check)

    def start(self, pid: int, *command: str | Path) -> subprocess.Popen[str]:
        log = (self.folder / "log").open("a")
        return subprocess.Popen(
            [*self.inside(pid), *map(str, command)], text=True, stdout=subprocess.PIPE, stderr=log, process_group=0
        )

    def connect(self) -> None:
        for number, (pid, device, mac, peer, peer_mac) in enumerate(
            [
                (self.client, "eth0", "client", "eth0", "front"),
                (self.backend, "eth0", "backend", "eth1", "back"),
            ]
        ):
            name = f"ob{os.getpid()}{number}"
            run("ip", "link", "add", name, "numrxqueues", "1", "numtxqueues", "1", "type", "veth", "peer", "name",
                f"{name}p", "numrxqueues", "1", "numtxqueues", "1")  # fmt: skip
            run("ip", "link", "set", name, "netns", str(pid), "name", device, "address", MACS[mac])
            run("ip", "link", "set", f"{name}p", "netns", str(self.balancer), "name", peer, "address", MACS[peer_mac])
        neighbour = "ip neigh replace {} lladdr {} dev {} nud permanent"
        addresses = "; ".join(f"ip addr add {one}/24 dev eth0" for one in BACKENDS)
        self.sh(self.client, f"ip addr add {CLIENT}/24 dev eth0; ip link set eth0 up; ip route add default via {FRONT}")
        self.sh(self.backend, f"{addresses}; ip link set eth0 up; ip route add default via {BACK}")
        self.sh(
            self.balancer,
            f"ip addr add {FRONT}/24 dev eth0; ip addr add {BACK}/24 dev eth1;"
            " ip link set eth0 up; ip link set eth1 up",
        )
        self.sh(self.client, neighbour.format(FRONT, MACS["front"], "eth0"))
        self.sh(self.backend, neighbour.format(BACK, MACS["back"], "eth0"))
        for one in BACKENDS:
            self.sh(self.balancer, neighbour.format(one, MACS["backend"], "eth1"))
        self.sh(self.balancer, neighbour.format(CLIENT, MACS["client"], "eth0"))

    def steer(self, pid: int, device: str, on: bool = True) -> bool:
        """Has the kernel handle a device's frames on the core of its host, or else on their sender's."""
        mask = f"{(1 << self.pins[pid]) if on else 0:x}"
        queues = f"/sys/class/net/{device}/queues"
        script = f"for queue in {queues}/rx-*; do echo {comma(mask)} > $queue/rps_cpus; done"
        try:
            self.sh(pid, script)
        except Failed:
            return False
        return True

    def offloads(self, on: bool) -> None:
        word = "on" if on else "off"
        for pid, device in self.devices:
            self.sh(pid, f"ethtool -K {device} tx {word} rx {word} tso {word} gso {word} gro off", check=False)

    def mtu(self, size: int) -> None:
        """Sets the hosts' size; the routes keep segments small."""
        for pid, via in [(self.client, FRONT), (self.backend, BACK)]:
            self.sh(pid, f"ip link set eth0 mtu {size}; ip route replace default via {via} mtu 1500")

    def pin_pollers(self) -> None:
        """Has threads of the kernel on the balancer's core read the devices that an XDP program is on; the sender's
        core would do it otherwise."""
        self.sh(self.balancer, "for one in eth0 eth1; do echo 1 > /sys/class/net/$one/threaded; done", check=False)
        for one in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if one.name.isdigit() and (one / "comm").read_text().startswith("napi/eth"):
                    run("taskset", "-p", "-c", str(self.cores.balancer), one.name, check=False)


# Packet sockets see frames before this rule, and the kernel's own network does not see them after it.
KEEP = "nft add table netdev keep; " + " ".join(
    f"nft 'add chain netdev keep {one} {{ type filter hook ingress device {one} priority 0; }}';"
    f"nft 'add rule netdev keep {one} ip daddr {{ {VIP}, {SOURCE} }} drop';"
    for one in ["eth0", "eth1"]
)
SINK = "add chain netdev sink in { type filter hook ingress device eth0 priority 0; }"
SINK_RULE = f"add rule netdev sink in udp dport {DATAGRAMS} drop"


def quoted(text: str) -> str:
    return f"'{text}'"


def comma(mask: str) -> str:
    """Writes a mask of cores in groups of eight digits."""
    groups = []
    while mask:
        groups.insert(0, mask[-8:])
        mask = mask[:-8]
    return ",".join(groups)


def ended(process: subprocess.Popen[str]) -> None:
    """Ends a program that was started here, and what it has started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


@contextlib.contextmanager
def forwarding(lab: Lab, _name: str) -> Iterator[str]:
    lab.sh(lab.balancer, "echo 1 > /proc/sys/net/ipv4/ip_forward")
    try:
        yield BACKENDS[0]
    finally:
        lab.sh(lab.balancer, "echo 0 > /proc/sys/net/ipv4/ip_forward")


@contextlib.contextmanager
def nftables(lab: Lab, name: str) -> Iterator[str]:
    choice = f"dnat to jhash ip saddr mod 2 map {{ 0 : {BACKENDS[0]}, 1 : {BACKENDS[1]} }}"
    rules = f"""
        table ip balance {{
            chain in {{
                type nat hook prerouting priority dstnat;
                ip daddr {VIP} {choice}
            }}
        }}
    """
    file = lab.folder / "nft"
    file.write_text(rules)
    lab.sh(lab.balancer, f"nft -f {file}")
    try:
        with forwarding(lab, name):
            yield VIP
    finally:
        lab.sh(lab.balancer, "nft delete table ip balance")


@contextlib.contextmanager
def proxy(lab: Lab, *command: str | Path) -> Iterator[str]:
    lab.sh(lab.balancer, f"ip addr add {VIP}/32 dev lo")
    process = lab.start(lab.balancer, *command)
    try:
        time.sleep(0.4)
        if process.poll() is not None:
            raise Failed(f"{command[0]} ended: {(lab.folder / 'log').read_text()[-400:]}")
        yield VIP
    finally:
        ended(process)
        lab.sh(lab.balancer, f"ip addr del {VIP}/32 dev lo")


@contextlib.contextmanager
def haproxy(lab: Lab, _name: str) -> Iterator[str]:
    config = "global\n nbthread 1\n maxconn 8000\ndefaults\n mode tcp\n"
    config += "".join(f" timeout {one} 60s\n" for one in ["connect", "client", "server"])
    for port in [IPERF, HTTP]:
        servers = "".join(f" server s{at} {one}:{port}\n" for at, one in enumerate(BACKENDS))
        config += f"listen on{port}\n bind {VIP}:{port}\n balance source\n{servers}"
    file = lab.folder / "haproxy.cfg"
    file.write_text(config)
    with proxy(lab, "haproxy", "-db", "-f", file) as address:
        yield address


def nginx_command(lab: Lab, name: str, config: str) -> list[str | Path]:
    folder = lab.folder / name
    folder.mkdir(exist_ok=True)
    modules = Path(os.environ.get("NGINX_MODULES", "/usr/lib/nginx/modules")) / "ngx_stream_module.so"
    load = f"load_module {modules};\n" if modules.exists() and "stream {" in config else ""
    file = folder / "nginx.conf"
    user = "user root;\n" if os.geteuid() == 0 else ""
    file.write_text(
        f"{load}{user}daemon off;\nworker_processes 1;\nworker_rlimit_nofile 40000;\npid {folder}/pid;\n"
        f"error_log {folder}/error.log;\nevents {{ worker_connections 16000; }}\n{config}"
    )
    return ["nginx", "-p", folder, "-e", folder / "error.log", "-c", file]


@contextlib.contextmanager
def nginx(lab: Lab, _name: str) -> Iterator[str]:
    parts = []
    for port, kind in [(IPERF, ""), (HTTP, ""), (DATAGRAMS, " udp")]:
        servers = "".join(f"server {one}:{port};" for one in BACKENDS)
        parts.append(f"upstream u{port} {{ hash $remote_addr; {servers} }}")
        parts.append(f"server {{ listen {VIP}:{port}{kind}; proxy_pass u{port}; }}")
    config = "stream {\n" + "\n".join(parts) + "\n}\n"
    with proxy(lab, *nginx_command(lab, "stream", config)) as address:
        yield address


def outboard_config(lab: Lab, kind: str) -> str:
    interfaces = '["lb0"]' if kind == "tun" else '["eth0", "eth1"]'
    text = f'api = "{lab.folder}/api"\n[plane]\nkind = "{kind}"\ninterfaces = {interfaces}\nspin_us = {lab.spin_us}\n'
    for protocol, port in [("udp", DATAGRAMS), ("tcp", IPERF), ("tcp", HTTP)]:
        backends = ", ".join(f'{{ address = "{one}:{port}" }}' for one in BACKENDS)
        text += (
            f'[[service]]\nname = "{protocol}{port}"\naddress = "{VIP}:{port}"\nprotocol = "{protocol}"\n'
            f'forward = "full-nat"\nsources = ["{SOURCE}"]\naffinity = true\nbackend = [{backends}]\n'
        )
    return text


@contextlib.contextmanager
def outboard(lab: Lab, name: str) -> Iterator[str]:
    kind = OUR_PLANES[name]
    file = lab.folder / "balance.toml"
    file.write_text(outboard_config(lab, kind))
    # The driver refuses a program where its peer's frames may be longer than a page.
    lab.mtu(9000 if name == "xdp-generic" else 1500)
    process = lab.start(lab.balancer, OUTBOARD, "balance", "run", file)
    try:
        first = process.stdout.readline() if process.stdout else ""
        if not first.startswith("balancing on"):
            raise Failed(f"outboard ended: {(lab.folder / 'log').read_text()[-400:]}")
        if name == "packet-alone":
            lab.sh(lab.balancer, KEEP)
        if kind == "tun":
            lab.sh(
                lab.balancer,
                f"ip route add {VIP} dev lb0; ip route add {SOURCE} dev lb0; echo 1 > /proc/sys/net/ipv4/ip_forward",
            )
        if kind == "xdp":
            mode = lab.sh(lab.balancer, "ip link show eth0")
            if ("xdpgeneric" in mode) != (name == "xdp-generic"):
                raise Failed(f"the program is not where it should be: {mode}")
            lab.pin_pollers()
        # The kernel's neighbours are read once a second.
        time.sleep(1.2)
        yield VIP
    finally:
        ended(process)
        lab.sh(lab.balancer, "nft delete table netdev keep", check=False)
        lab.sh(lab.balancer, "echo 0 > /proc/sys/net/ipv4/ip_forward")
        lab.mtu(1500)


SETUPS: dict[str, Callable[[Lab, str], contextlib.AbstractContextManager[str]]] = {
    "forwarding": forwarding,
    "nftables": nftables,
    "haproxy": haproxy,
    "nginx": nginx,
    **dict.fromkeys(OUR_PLANES, outboard),
}
NEEDS = {"haproxy": "haproxy", "nginx": "nginx"}


class Measures:
    """Measurements of one address."""

    def __init__(self, lab: Lab, seconds: float) -> None:
        self.lab, self.seconds = lab, seconds

    def start_traffic(self, kind: str, address: str, rate: float, seconds: float) -> subprocess.Popen[str]:
        lab = self.lab
        service = f"{address}:{DATAGRAMS}"
        command = [TRAFFIC, kind, lab.client, lab.backend, service, MACS["front"], FLOWS, rate, seconds]
        pinned = ["taskset", "-c", str(lab.cores.client), *map(str, command)]
        return subprocess.Popen(pinned, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def traffic(self, kind: str, address: str, rate: float, seconds: float) -> Rows:
        started = self.start_traffic(kind, address, rate, seconds)
        try:
            out, error = started.communicate(timeout=seconds * 3 + 10)
        finally:
            started.kill()
        if started.returncode != 0:
            raise Failed(f"traffic: {error}")
        answer: Rows = json.loads(out)
        return answer

    def latency(self, address: str) -> Rows:
        # Opens the flows: each gets an answer.
        self.traffic("latency", address, MODERATE / 2, FLOWS / (MODERATE / 2) * 1.5)
        answer = self.traffic("latency", address, MODERATE, self.seconds)
        if answer["back"] < answer["sent"] * 0.9:
            answer["lost"] = answer["sent"] - answer["back"]
        return answer

    def rate(self, address: str) -> Rows:
        """Offers all that can be sent, then less, and keeps the highest rate that arrives."""
        whole = self.traffic("flood", address, 0, self.seconds / 2)
        best = whole
        for share in [2.0, 1.4, 1.1]:
            offered = best["arrived_mpps"] * share
            if 0 < offered < whole["sent_mpps"]:
                one = self.traffic("flood", address, offered * 1e6, self.seconds / 2)
                best = max(best, one, key=lambda answer: answer["arrived_mpps"])
        return {"mpps": best["arrived_mpps"], "offered": best["sent_mpps"], "flooded": whole["arrived_mpps"],
                "flood": whole["sent_mpps"]}  # fmt: skip

    def cost(self, address: str) -> Rows:
        """Samples the balancer's core while a fixed rate passes: its time for a frame, without what other programs
        take of it."""
        self.traffic("latency", address, MODERATE / 2, FLOWS / (MODERATE / 2) * 1.5)
        file, seconds = self.lab.folder / "perf", max(self.seconds, 0.5)
        options = ["-q", "-a", "-C", str(self.lab.cores.balancer), "-e", "cpu-clock", "-F", str(SAMPLES), "-g", "-o"]
        # It samples the middle of the time.
        command = ["perf", "record", *options, str(file), "--", "sleep", str(seconds)]
        rate = self.start_traffic("flood", address, SAMPLED, seconds * 1.5)
        time.sleep(seconds * 0.4)
        subprocess.run(command, stderr=subprocess.DEVNULL, check=True, timeout=seconds + 30)
        answer: Rows = json.loads(rate.communicate(timeout=30)[0])
        if answer["arrived_mpps"] < answer["sent_mpps"] * 0.95:
            raise Failed(f"frames were lost at {SAMPLED} a second")
        text = run("perf", "script", "-i", file, "-F", "comm,ip,sym")
        counted = sum(1 for sample in text.split("\n\n") if is_balancing(sample))
        return {"ns": counted / SAMPLES / seconds / (answer["arrived_mpps"] * 1e6) * 1e9}

    def tcp(self, address: str) -> Rows:
        lab = self.lab
        with served(lab, IPERF, "iperf3", "-s", "-1"):
            command = ["iperf3", "-J", "-c", address, "-t", f"{max(self.seconds, 1):.0f}", "--connect-timeout", "3000"]
            text = run(*lab.inside(lab.client), *command, check=False, timeout=self.seconds + 8)
        answer = json.loads(text)
        if "error" in answer:
            raise Failed(answer["error"])
        total = answer["end"]["sum_received"]
        return {
            "gbps": total["bits_per_second"] / 1e9,
            "retransmits": answer["end"]["sum_sent"].get("retransmits"),
        }

    def http(self, address: str, is_short: bool = False) -> Rows:
        lab = self.lab
        url = f"http://{address}:{HTTP}/"
        close = ["-H", "Connection: close"] if is_short else []
        command = ["wrk", "-t1", "-c64", f"-d{max(self.seconds, 1):.0f}s", *close, url]
        temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        paths = " ".join(f"{one}_temp_path {lab.folder}/{one};" for one in temporary)
        config = f"http {{ {paths} access_log off; keepalive_requests 100000000; "
        config += f"server {{ listen {HTTP} backlog=8192; location / {{ return 200 'hello'; }} }} }}"
        with served(lab, HTTP, *nginx_command(lab, "http", config)):
            text = run(*lab.inside(lab.client), *command, timeout=self.seconds + 8)
        found = re.search(r"Requests/sec:\s+([\d.]+)", text)
        if not found:
            raise Failed(text)
        errors = re.search(r"Socket errors: (.*)", text)
        return {"per_s": float(found[1]), **({"errors": errors[1]} if errors else {})}


def is_balancing(sample: str) -> bool:
    """Returns whether a sample of perf's is a balancer's, or the kernel's work for a device."""
    name = sample.strip().split(maxsplit=1)[:1]
    ours = OUTBOARD.name, "balancer", "haproxy", "nginx", "napi/"
    return bool(name) and (name[0].startswith(ours) or "net_rx_action" in sample or "__napi_poll" in sample)


@contextlib.contextmanager
def served(lab: Lab, port: int, *command: str | Path) -> Iterator[None]:
    """A server at the backends, once it listens."""
    process = lab.start(lab.backend, *command)
    deadline = time.monotonic() + SERVED_S_MAX
    try:
        while not lab.sh(lab.backend, f"ss -Hltn sport = :{port}"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"{command[0]} does not listen on port {port}")
            time.sleep(0.02)
        yield
    finally:
        ended(process)


def measure(lab: Lab, name: str, parts: list[str], seconds: float, results: Rows) -> None:
    """Measures one way to balance, once."""
    measures = Measures(lab, seconds)
    by_part: dict[str, Callable[[str], Rows]] = {
        "latency": measures.latency,
        "rate": measures.rate,
        "cost": measures.cost,
        "tcp": measures.tcp,
        "tcp without offloads": measures.tcp,
        "http": measures.http,
        "http short": lambda address: measures.http(address, is_short=True),
    }
    for among in PASSES:
        wanted = [part for part in parts if part in among and can(name, part)]
        if not wanted:
            continue
        offloads, lab.spin_us = among[0] not in WITHOUT_OFFLOADS, 0 if "cost" in among else 50
        lab.offloads(offloads)
        with SETUPS[name](lab, name) as address:
            for part in wanted:
                # An interrupt of the backends' core for each frame would be the balancer's work, and most of it.
                lab.steer(lab.backend, "eth0", on=part not in DATAGRAM_PARTS)
                try:
                    row = by_part[part](address)
                except (Failed, subprocess.SubprocessError, ValueError, KeyError) as error:
                    row = {"failed": str(error)[-300:]}
                results.setdefault(part, {}).setdefault(name, []).append(row)
                print(f"{name:12} {part:22} {json.dumps(row)}", file=sys.stderr, flush=True)


DATAGRAM_PARTS = ["latency", "rate", "cost"]
WITHOUT_OFFLOADS = [*DATAGRAM_PARTS, "tcp without offloads"]
# Parts for which a way is set up once.
PASSES = [["latency", "rate", "tcp without offloads"], ["tcp", "http", "http short"], ["cost"]]


def can(name: str, part: str) -> bool:
    needs = {"tcp": "iperf3", "tcp without offloads": "iperf3", "http": "wrk", "http short": "wrk"}
    needs["cost"] = "perf"
    if part in needs and not shutil.which(needs[part]):
        return False
    # Its frames are longer than AF_XDP takes: nothing but the driver's program turns long segments off.
    if name == "xdp-generic" and part not in WITHOUT_OFFLOADS:
        return False
    return name != "haproxy" or part not in DATAGRAM_PARTS


def machine() -> Rows:
    lines = Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*: (.*)", lines)
    versions = {
        "nft": ["nft", "--version"],
        "haproxy": ["haproxy", "-v"],
        "nginx": ["nginx", "-v"],
        "iperf3": ["iperf3", "--version"],
        "outboard": [str(OUTBOARD), "--version"],
    }
    found = {}
    for name, command in versions.items():
        if shutil.which(command[0]):
            done = subprocess.run(command, capture_output=True, text=True)
            found[name] = (done.stdout + done.stderr).strip().splitlines()[0]
    return {
        "cpu": model[1] if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "load": os.getloadavg()[0],
        "versions": found,
    }


def measure_all(arguments: argparse.Namespace) -> int:
    if os.geteuid() != 0 or not all(shutil.which(name) for name in ["ip", "nft", "ethtool", "unshare", "nsenter"]):
        print("NOT RUN: bench-balance: needs root, ip, nft, ethtool, unshare and nsenter")
        return 0
    names = [one for one in arguments.only.split(",") if one] or (QUICK if arguments.quick else list(SETUPS))
    names = [one for one in names if shutil.which(NEEDS.get(one, "ip"))]
    parts = [one for one in arguments.parts.split(",") if one] or (QUICK_PARTS if arguments.quick else PARTS)
    rounds = 1 if arguments.quick else arguments.rounds
    seconds = 0.3 if arguments.quick else arguments.seconds
    results: Rows = {"machine": machine() | {"note": arguments.note}, "rounds": rounds, "seconds": seconds}
    end = time.monotonic() + arguments.budget_s
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        lab = Lab(stack, folder)
        results["steered"] = all(lab.steered)
        results["core_map"] = vars(lab.cores)
        for number in range(rounds):
            for name in names:
                if time.monotonic() > end:
                    print(f"bench-balance: out of time in round {number + 1}", file=sys.stderr)
                    break
                try:
                    measure(lab, name, parts, seconds, results)
                except Failed as error:
                    print(f"{name}: {error}", file=sys.stderr)
                    results.setdefault("failed", {})[name] = str(error)
            Path(arguments.results).write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    rows = [row for part in PARTS for runs in results.get(part, {}).values() for row in runs]
    broken = [row for row in rows if "failed" in row] or results.get("failed")
    print(f"bench-balance: {len(rows)} measurements, {len(broken or [])} failed", file=sys.stderr)
    return 1 if arguments.quick and broken else 0


def main() -> int:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    measured = commands.add_parser("run")
    measured.add_argument("results")
    measured.add_argument("--quick", action="store_true")
    measured.add_argument("--rounds", type=int, default=3)
    measured.add_argument("--seconds", type=float, default=2)
    measured.add_argument("--budget-s", type=float, default=3000)
    measured.add_argument("--only", default="")
    measured.add_argument("--parts", default="")
    measured.add_argument("--note", default="", help="said of the machine on the page")
    paged = commands.add_parser("page")
    paged.add_argument("results", type=Path)
    paged.add_argument("page", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "run":
        return measure_all(arguments)
    arguments.page.write_text(page_of(json.loads(arguments.results.read_text())))
    return 0


def page_of(results: Rows) -> str:
    machine, cores = results["machine"], results["core_map"]
    versions = "; ".join(f"{name}: {text}" for name, text in sorted(machine["versions"].items()))
    shared = " The client and the backends share a core." if cores["client"] == cores["backend"] else ""
    lines = [
        "# The balancer beside others: what was measured",
        "",
        "`make bench-balance` measures and writes this page; [balance.md](balance.md) describes the balancer.",
        "",
        f"{machine['date']} UTC, {machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}. A client, the "
        "balancer and two backends in namespaces, joined by veth devices of one queue. All of the balancer's work, "
        f"the kernel's for its interfaces too, is on one core.{shared} Ways take turns; numbers are medians of at most "
        f"{results['rounds']} rounds of {results['seconds']:g} s, in brackets the lowest and the highest.",
        "",
        *([machine["note"], ""] if machine.get("note") else []),
        f"Versions: {versions}.",
        "",
        "nftables translates the destination alone and has no health checks; `outboard` translates both addresses "
        "(`full-nat`), as HAProxy and nginx do by opening connections of their own.",
        "",
    ]
    for part, title, unit, pick in COLUMNS:
        rows = results.get(part)
        if rows:
            lines += [f"## {title}", "", *part_table(rows, unit, pick), ""]
            if part in WHY:
                lines += [WHY[part], ""]
    return "\n".join(lines).rstrip() + "\n"


# For each part its title, the columns, and how a run's number of each column is found.
COLUMNS: list[tuple[str, str, list[str], list[Callable[[Rows], float]]]] = [
    (
        "rate",
        "UDP, 64-byte frames, 1,024 flows, offloads off",
        ["Mpps, highest", "Mpps when flooded"],
        [lambda row: row["mpps"], lambda row: row["flooded"]],
    ),
    (
        "latency",
        f"Time of a frame at {MODERATE:,} a second, microseconds",
        ["to the backend, p50", "p99", "there and back, p50", "p99"],
        [
            lambda row: row["there_us"]["p50"],
            lambda row: row["there_us"]["p99"],
            lambda row: row["round_us"]["p50"],
            lambda row: row["round_us"]["p99"],
        ],
    ),
    (
        "cost",
        f"Time of the balancer's core for a 64-byte frame, {SAMPLED:,} a second, sampled",
        ["nanoseconds"],
        [lambda row: row["ns"]],
    ),
    ("tcp", "TCP, one connection, offloads on", ["Gbit/s"], [lambda row: row["gbps"]]),
    ("tcp without offloads", "TCP, one connection, offloads off", ["Gbit/s"], [lambda row: row["gbps"]]),
    ("http", "HTTP, 64 connections that stay open", ["requests/s"], [lambda row: row["per_s"]]),
    ("http short", "HTTP, a connection for each request", ["requests/s"], [lambda row: row["per_s"]]),
]

WHY: dict[str, str] = {
    "rate": "Where ours is below nftables: a program has each frame copied out of the kernel and in again, and "
    "the kernel hands each frame on to a veth device by itself. Where client and balancer have two cores between "
    "them, the client limits the highest rates.",
    "latency": "nftables works while the interrupt is handled. A program must get its core first, so where other "
    "programs want it, too, this shows mostly how long it waits.",
    "cost": "The share of the client and of other programs is not in these numbers; the backends' reception is in all "
    "of them. AF_XDP copies a frame of a veth device twice on its way in and once on its way out, nftables never. "
    "Packet sockets share their frames with the kernel's own network unless a rule keeps them from it.",
    "tcp": "Frames of up to 64 KiB pass packet sockets and TUN devices whole, but are copied out and in. AF_XDP takes "
    "no frame that long: its program turns long segments off, so each segment of 1,448 bytes costs a frame.",
    "tcp without offloads": "Each segment of 1,448 bytes costs what a frame costs above.",
    "http": "A request costs a few frames each way, so the cost of a frame decides.",
    "http short": "The hosts' own work for opening and ending connections is the larger part here.",
}


def part_table(rows: Rows, columns: list[str], picks: list[Callable[[Rows], float]]) -> list[str]:
    def values(name: str, pick: Callable[[Rows], float]) -> list[float]:
        return [pick(row) for row in rows.get(name, []) if "failed" not in row]

    base = values("nftables", picks[0])
    head = ["", *columns, f"{columns[0]}: nftables = 1"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name in [one for one in NAMES if one in rows]:
        cells = []
        for pick in picks:
            found = values(name, pick)
            cells.append(
                f"{shown(statistics.median(found))} ({shown(min(found))} to {shown(max(found))})" if found else "failed"
            )
        found = values(name, picks[0])
        cells.append(f"{statistics.median(found) / statistics.median(base):.2f}" if found and base else "-")
        lines.append(f"| {NAMES[name]} | " + " | ".join(cells) + " |")
    return lines


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


if __name__ == "__main__":
    sys.exit(main())

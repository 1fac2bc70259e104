"""Faults of the cable between two RDMA devices: lost packets, a small MTU, a port down; and the devices' counters.

Software RoCE takes a retry count of 7 as endless, unlike a NIC: an end that is to notice a dead cable has 6 or less.
An end that only waits for a message, and sent nothing that needs an acknowledgement, notices nothing, as on a NIC.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rdma_guest.guest import Command, Guest


@dataclass(frozen=True)
class Port:
    """One end of the cable."""

    guest: Guest
    device: str
    interface: str
    address: str

    def counters(self) -> dict[str, int]:
        """Returns the device's counters, by the kernel's names."""
        folder = f"/sys/class/infiniband/{self.device}/ports/1/hw_counters"
        lines = self.guest.check(f"cd {folder} && grep . *").splitlines()
        return {name: int(value) for name, _, value in (line.partition(":") for line in lines)}

    def is_active(self) -> bool:
        state = f"/sys/class/infiniband/{self.device}/ports/1/state"
        return "ACTIVE" in self.guest.check(["cat", state])


def ports_of(guest: Guest) -> tuple[Port, Port]:
    """Both ends in one guest."""
    return Port(guest, "rxe0", "veth0", "10.213.78.1"), Port(guest, "rxe1", "veth1", "10.213.78.2")


def ports_between(pair: tuple[Guest, Guest]) -> tuple[Port, Port]:
    """An end in each guest."""
    server, client = pair
    return Port(server, "rxe0", "eth0", "10.213.78.1"), Port(client, "rxe0", "eth0", "10.213.78.2")


@contextmanager
def loss(percent: float, one: Port, other: Port) -> Iterator[None]:
    """Packets get lost that leave these ports, which know each other's hardware address: a queue pair that asks for it
    waits a second for the answer, in which it asks once, and fails."""
    introduce(one, other)
    introduce(other, one)
    for port in (one, other):
        port.guest.check(f"tc qdisc replace dev {port.interface} root netem loss {percent}%")
    try:
        yield
    finally:
        for port in (one, other):
            port.guest.check(f"tc qdisc del dev {port.interface} root")


def introduce(port: Port, to: Port) -> None:
    """A port's addresses are known to the other, until that goes down."""
    said = port.guest.check(f"cat /sys/class/net/{port.interface}/address; ip -6 -o addr show dev {port.interface}")
    hardware, *rest = said.split()
    addresses = [port.address, *(word.partition("/")[0] for word in rest if word.startswith("fe80:"))]
    commands = [f"ip neigh replace {address} lladdr {hardware} dev {to.interface}" for address in addresses]
    to.guest.check(" && ".join(commands))


def calm_after(count: int, port: Port) -> Command:
    """Within `loss`, no more are lost once so many were. The guest itself looks: it may take seconds to answer."""
    lost = f"tc -s qdisc show dev {port.interface} | sed -n 's/.*dropped \\([0-9]*\\).*/\\1/p'"
    calm = f"tc qdisc change dev {port.interface} root netem loss 0%"
    return port.guest.start(f"until [ $({lost}) -ge {count} ]; do sleep 0.1; done; {calm}")


@contextmanager
def mtu(port: Port, size: int) -> Iterator[None]:
    """Sets the longest packet of the interface; RDMA's payload is somewhat shorter."""
    interface = f"/sys/class/net/{port.interface}/mtu"
    before = port.guest.check(["cat", interface]).strip()
    port.guest.check(f"echo {size} >{interface}")
    try:
        yield
    finally:
        port.guest.check(f"echo {before} >{interface}")


@contextmanager
def port_down(port: Port) -> Iterator[None]:
    """The port is taken down, and comes back."""
    port.guest.check(f"ip link set {port.interface} down")
    try:
        yield
    finally:
        # Some of what was set goes with the link.
        port.guest.check(f"ip link set {port.interface} up")

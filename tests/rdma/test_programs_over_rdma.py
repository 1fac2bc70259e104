"""Unmodified programs over RDMA, between two devices of one guest, and between two guests."""

from __future__ import annotations

import sys

from cable import Port, ports_between, ports_of
from serving import EXAMPLES, PROGRAM_S_MAX, ROOT, Serving, serving

from rdma_guest.guest import Done, Guest

PROGRAMS = sorted(path.stem for path in (ROOT / "examples" / "cuda").iterdir() if path.suffix in {".cu", ".cpp"})
SCRIPTS = sorted((ROOT / "examples" / "python").glob("*.py"))
# Most of a program's time is spent on being started.
AT_ONCE = 3
# Each program runs between two devices of one guest, and one in this many between two guests: what differs there is the
# machine at the other end, not the program.
EACH_OF_PAIR = 3


def wrong_results(gpu: Serving, each: int) -> dict[str, str]:
    """Runs one in `each` programs; returns the output of those with wrong results."""
    wrong = {}
    commands = {name: (EXAMPLES / name,) for name in PROGRAMS} | {path.stem: (sys.executable, path) for path in SCRIPTS}
    assert len(commands) > 20
    names = list(commands)[::each]
    for at in range(0, len(names), AT_ONCE):
        started = {name: gpu.start(*commands[name]) for name in names[at : at + AT_ONCE]}
        for name, command in started.items():
            done = command.wait(PROGRAM_S_MAX)
            if not is_right(name, done):
                wrong[name] = done.output
    return wrong


def is_right(name: str, done: Done) -> bool:
    return done.status == 0 and "WRONG" not in done.output and (name not in PROGRAMS or f"{name}: every" in done.output)


def test_in_one_guest(guest: Guest) -> None:
    run(ports_of(guest), 1)


def test_in_two_guests(pair: tuple[Guest, Guest]) -> None:
    run(ports_between(pair), EACH_OF_PAIR)


def run(ports: tuple[Port, Port], each: int) -> None:
    server, client = ports
    before = [port.counters() for port in ports]
    with serving(server, client) as gpu:
        assert wrong_results(gpu, each) == {}
    for port, counted in zip(ports, before, strict=True):
        # Every program took the cable.
        assert port.counters()["sent_pkts"] - counted["sent_pkts"] > 10 * len(PROGRAMS) // each

"""CUDA's ordering rules: the values that a read may see.

The model knows no times. Each piece of work has the set of works that must be done before it; a read may see any write
that no other write must hide from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Step = list[Any]
Spot = tuple[str, int]

PARTS = 4
# D: cuMemAlloc, Q: from a pool, P: pinned, H: pageable, R: registered.
BUFFERS = {"device": ["D0", "D1", "D2", "Q0"], "host": ["P0", "H0", "P1", "H1", "R0"]}
ALL = BUFFERS["device"] + BUFFERS["host"]
FIRST_VALUE = 1
VALUES_MAX = 64


@dataclass
class Work:
    """A piece of work that reads and writes, of a stream or of the host."""

    before: int  # a bit for each work that must be done before it
    # Values that it writes, by place: a value, or another place's value plus a number.
    writes: dict[Spot, int | tuple[Spot, int]] = field(default_factory=dict)
    touches: set[Spot] = field(default_factory=set)


class Model:
    """The order that CUDA promises, and the values that reads may see in it."""

    def __init__(self) -> None:
        self.works: list[Work] = []
        self.last: dict[str, int] = {}
        self.events: dict[int, int] = {}
        self.done = 0  # work that the host knows to be done
        self.seen: list[tuple[int, Spot, list[int], int]] = []
        self.values: dict[tuple[int, Spot], set[int] | None] = {}
        self.tape: list[dict[Spot, int | tuple[Spot, int]]] = []
        self.muted = False
        self.host({(name, part): FIRST_VALUE for name in ALL for part in range(PARTS)})

    def add(self, before: int, writes: dict[Spot, int | tuple[Spot, int]], reads: set[Spot] | None = None) -> int:
        sources = {source[0] for source in writes.values() if isinstance(source, tuple)}
        self.works.append(Work(before, writes, set(writes) | sources | (reads or set())))
        return len(self.works) - 1

    def through(self, work: int) -> int:
        return self.works[work].before | 1 << work

    def host(self, writes: dict[Spot, int | tuple[Spot, int]], reads: set[Spot] | None = None) -> int:
        """Adds work of the host, which comes before everything later."""
        work = self.add(self.done, writes, reads)
        self.done |= 1 << work
        return work

    def on(self, stream: str, writes: dict[Spot, int | tuple[Spot, int]], after: int | None = None) -> int:
        """Adds work of a stream. The default stream and blocking ones wait for each other."""
        self.tape.append(writes)
        if self.muted:
            return -1
        waited = [stream]
        if stream == "default":
            waited += [s for s in self.last if s.startswith("blocking")]
        elif stream.startswith("blocking"):
            waited.append("default")
        before = self.done if after is None else self.done | self.through(after)
        for other in waited:
            if other in self.last:
                before |= self.through(self.last[other])
        self.last[stream] = self.add(before, writes)
        return self.last[stream]

    def is_free(self, spots: set[Spot]) -> bool:
        """Whether the host may write these places."""
        return all(self.done >> i & 1 for i, work in enumerate(self.works) if work.touches & spots)

    def may_see(self, reader: int, spot: Spot) -> set[int] | None:
        """Returns the values that a work may read; None if they are too many, or depend on
        themselves."""
        key = (reader, spot)
        if key not in self.values:
            self.values[key] = None
            self.values[key] = self.find(reader, spot)
        return self.values[key]

    def find(self, reader: int, spot: Spot) -> set[int] | None:
        before = self.works[reader].before
        writers = [i for i, work in enumerate(self.works) if spot in work.writes and i != reader]
        writers = [i for i in writers if not self.works[i].before >> reader & 1]
        hides = [i for i in writers if before >> i & 1]
        values: set[int] = set()
        for writer in writers:
            if any(self.works[other].before >> writer & 1 for other in hides):
                continue
            source = self.works[writer].writes[spot]
            if isinstance(source, int):
                values.add(source)
                continue
            place, more = source
            read = self.may_see(writer, place)
            if read is None or len(values) > VALUES_MAX:
                return None
            values |= {value + more for value in read}
        return values

    def settled(self) -> list[tuple[int, str, int, int]]:
        """Returns reads that could see only one value: call, place, part and value seen."""
        found = []
        for reader, (name, part), got, step in self.seen:
            allowed = self.may_see(reader, (name, part))
            if allowed is not None and len(allowed) == 1 and len(got) == 1:
                found.append((step, name, part, got[0]))
        return found

    def wrong(self) -> str | None:
        """Describes the first read that no order allows."""
        for reader, spot, got, step in self.seen:
            allowed = self.may_see(reader, spot)
            if allowed is not None and not set(got) <= allowed:
                return f"{spot[0]} part {spot[1]}, read by call {step}: {sorted(got)}, allowed {sorted(allowed)}"
        return None


def spots(name: str, first: int, parts: int) -> list[Spot]:
    return [(name, part) for part in range(first, first + parts)]

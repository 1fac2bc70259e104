"""The cores of a check: those of a program's threads and those of the server share no physical core."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# Physical cores, or cores whose siblings the system does not name, that are enough.
PHYSICAL_MIN, CORES_MIN = 7, 12
SYSTEM = Path("/sys/devices/system/cpu")


class Cores:
    """Cores of the program's first thread, of the one that computes gradients, of its others, and of the server; none
    are given on machines with few. Two threads of a core slow each other down, so where the system says which those
    are, each of the program's has a core whose other threads nobody gets."""

    def __init__(self, siblings: Mapping[int, frozenset[int]] | None = None) -> None:
        named = siblings_of(sorted(os.sched_getaffinity(0))) if siblings is None else siblings
        self.all = sorted(named)
        self.physical = sorted({tuple(sorted(named[core])) for core in self.all})
        has_pairs = len(self.physical) < len(self.all)
        self.are_enough = len(self.physical) >= PHYSICAL_MIN if has_pairs else len(self.all) >= CORES_MIN
        self.first, self.gradients = {self.all[0]}, {self.all[0]}
        self.others, self.server = set(self.all), set(self.all)
        if self.are_enough and has_pairs:
            own = [threads[0] for threads in self.physical[1:6]]
            rest = self.physical[6:] + self.physical[:1]
            self._give(own, {core for threads in rest for core in threads})
        elif self.are_enough:
            # Neighbours may be siblings all the same.
            self._give(self.all[2:11:2], set(self.all[11:]))

    def _give(self, own: list[int], server: set[int]) -> None:
        self.first, self.gradients, self.others, self.server = {own[0]}, {own[1]}, set(own[2:]), server

    @contextlib.contextmanager
    def of(self, cores: set[int]) -> Iterator[None]:
        """Starts what it encloses on these cores."""
        if self.are_enough:
            os.sched_setaffinity(0, cores)
        try:
            yield
        finally:
            os.sched_setaffinity(0, self.all)

    def place(self, leader: int) -> None:
        """Gives each thread of a program, whose processes are a group, its core."""
        if not self.are_enough:
            return
        for pid in _group(leader):
            with contextlib.suppress(OSError):
                for thread in Path(f"/proc/{pid}/task").iterdir():
                    name = (thread / "comm").read_text()
                    is_first = thread.name == str(pid)
                    its = self.first if is_first else self.gradients if "autograd" in name else self.others
                    os.sched_setaffinity(int(thread.name), its)

    def described(self) -> dict[str, Any]:
        given = {"first": self.first, "gradients": self.gradients, "others": self.others, "server": self.server}
        return {"physical": self.physical} | {name: sorted(its) for name, its in given.items()}


def siblings_of(cores: list[int], system: Path = SYSTEM) -> dict[int, frozenset[int]]:
    """Returns the threads of each one's physical core among `cores`; itself alone if the system does not say."""
    found = {}
    for core in cores:
        named = {core}
        with contextlib.suppress(OSError, ValueError):
            named |= _numbers((system / f"cpu{core}" / "topology" / "thread_siblings_list").read_text())
        found[core] = frozenset(named & set(cores))
    return found


def _numbers(text: str) -> set[int]:
    """Returns the numbers of a list such as 2,10 or 4-5."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        numbers |= set(range(int(low), int(high or low) + 1))
    return numbers


def _group(leader: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            # The name in brackets may have blanks.
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) == leader:
                found.append(int(stat.parent.name))
    return found

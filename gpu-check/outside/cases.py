"""The result of one case, its line, and which cases a slice keeps."""

from __future__ import annotations

import hashlib
import random
from dataclasses import asdict, dataclass, field
from typing import Any

PASS = "pass"
FAIL = "fail"
SKIP = "skip"
CRASH = "crash"
HANG = "hang"
# The budget was used up before the case had its turn.
LEFT_OUT = "left out"
RAN = (PASS, FAIL, SKIP, CRASH, HANG)

DETAIL_CHARACTERS_MAX = 300


@dataclass
class Outcome:
    """Result of one case in one mode."""

    outcome: str
    # Hash over the raw bytes of everything computed; empty where the case checks itself.
    digest: str = ""
    # A sum for each thing computed, for what two local runs compute to different bits.
    numbers: list[float] = field(default_factory=list)
    # Last line that the case had to say.
    detail: str = ""
    seconds: float = 0.0

    def line(self, name: str) -> str:
        """`name outcome digest`, without blanks inside of the name."""
        return f"{name.replace(' ', '_')} {self.outcome.replace(' ', '_')} {self.digest[:16] or '-'}"

    def fields(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value not in ("", [], 0.0)}


def parse(fields: dict[str, Any]) -> Outcome:
    """Reads the outcome of a child's event; anything unknown is a failure that says so."""
    outcome = str(fields.get("outcome", ""))
    if outcome not in RAN:
        return Outcome(FAIL, detail=f"no outcome: {outcome!r}")
    numbers = fields.get("numbers", [])
    good = isinstance(numbers, list) and all(isinstance(n, int | float) for n in numbers)
    return Outcome(
        outcome,
        digest=str(fields.get("digest", "")),
        numbers=[float(n) for n in numbers] if good else [],
        detail=last_line(str(fields.get("detail", ""))),
    )


def last_line(text: str) -> str:
    """Last line of `text` that is not blank, cut to a bounded length."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:DETAIL_CHARACTERS_MAX] if lines else ""


def kept(names: list[str], part: tuple[int, int], seed: int) -> list[str]:
    """Returns the names of part I of K, chosen by hash, in an order that depends on the seed alone."""
    index, parts = part
    chosen = sorted(name for name in set(names) if _hash(name) % parts == index - 1)
    random.Random(seed).shuffle(chosen)
    return chosen


def part_of(text: str) -> tuple[int, int]:
    """Reads `I/K`, with 1 <= I <= K. Raises ValueError."""
    index, parts = (int(word) for word in text.split("/"))
    if not 1 <= index <= parts:
        raise ValueError(text)
    return index, parts


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")

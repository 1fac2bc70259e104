"""Helpers of all workloads, for any library. Standard library only."""

from __future__ import annotations

import hashlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

EVENT_PREFIX = "GPU-CHECK "
WARM_UP = 3


class SkipWorkload(Exception):
    """The workload cannot run here, without anyone's fault."""


class CheckFailed(Exception):
    """The workload computed something wrong."""


@dataclass(frozen=True)
class Settings:
    quick: bool = False

    def iterations(self, full: int, quick: int) -> int:
        return quick if self.quick else full


@dataclass
class Result:
    """The result of a workload. Everything but the times is compared with the local run."""

    # SHA-256 over the raw bytes of the outputs.
    digest: str | None = None
    # Compared within a relative tolerance.
    numbers: dict[str, float] = field(default_factory=dict)
    # Compared within an absolute tolerance.
    losses: list[float] = field(default_factory=list)
    # Compared exactly.
    facts: dict[str, Any] = field(default_factory=dict)
    # Medians, in milliseconds; never compared, only reported.
    timings_ms: dict[str, float] = field(default_factory=dict)
    # Whether a second run in the same process gave the same bits.
    reproducible: bool = True

    def fields(self) -> dict[str, Any]:
        kept = {name: value for name, value in asdict(self).items() if value not in (None, {}, [])}
        if self.reproducible:
            kept.pop("reproducible")
        return kept


def emit(event: str, **fields: Any) -> None:
    # One write, so that no other thread's output can end up inside the line.
    sys.stdout.write(EVENT_PREFIX + json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def require(condition: bool, message: str) -> None:
    """Raises CheckFailed with the message unless the condition holds."""
    if not condition:
        raise CheckFailed(message)


def digest_bytes(*parts: bytes | memoryview) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()


def median_ms(step: Callable[[], object], iterations: int, warm_up: int = WARM_UP) -> float:
    """The median time of `step`, which must itself wait for what it measures."""
    for _ in range(warm_up):
        step()
    times = []
    for _ in range(iterations):
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    return round(statistics.median(times) * 1e3, 6)


def per_call_ms(step: Callable[[], object], finish: Callable[[], object], calls: int, rounds: int = 5) -> float:
    """The time of one of `calls` calls issued without waiting, the wait at the end included; median of rounds."""

    def one_round() -> None:
        for _ in range(calls):
            step()
        finish()

    return round(median_ms(one_round, rounds, warm_up=1) / calls, 6)

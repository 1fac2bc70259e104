"""Compares what a workload gave through Outboard with what it gave on the local GPU.

Everything but times is compared, whatever a result has of it: `digest` (SHA-256 of the raw bytes of the
outputs) and `facts` exactly, `losses` within an absolute tolerance, `numbers` within a relative one. A workload
that finds itself not reproducible on the local GPU (`reproducible` false) is held to its numbers alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from suite import LOSS_TOLERANCE, Workload

PASS = "pass"
SKIP = "skip"
DIFFERENCES_MAX = 8


@dataclass
class Verdict:
    """The verdict on one workload in one mode."""

    status: str
    # None if there is nothing to compare: the local mode itself, or a side without a result.
    equal: bool | None = None
    differences: list[str] = field(default_factory=list)
    ok: bool = False


def judge(workload: Workload, local: dict[str, Any] | None, result: dict[str, Any], remote: bool) -> Verdict:
    """Judges one result. `local` is None if the local mode was not asked for."""
    status = str(result.get("status", "fail"))
    verdict = Verdict(status)
    if not remote or local is None:
        verdict.ok = status in (PASS, SKIP)
    elif status == SKIP:
        # Missing locally too is not Outboard's fault; missing only through Outboard is.
        verdict.ok = local.get("status") == SKIP
    elif status == PASS:
        if local.get("status") == PASS:
            verdict.differences = differences(workload, local, result)
            verdict.equal = not verdict.differences
        # A failed local run is reported under its own mode.
        verdict.ok = verdict.equal is not False
    if workload.known_failure and not verdict.ok:
        verdict.status = "known failure"
        verdict.ok = True
    return verdict


def differences(workload: Workload, local: dict[str, Any], remote: dict[str, Any]) -> list[str]:
    """Describes the differences; empty if both agree."""
    found: list[str] = []
    reproducible = local.get("reproducible", True)
    if reproducible and not remote.get("reproducible", True):
        found.append("two runs in one process agree locally and differ here")
    if reproducible and local.get("digest") != remote.get("digest"):
        found.append(f"digest {_short(local.get('digest'))} locally, {_short(remote.get('digest'))} here")
    found += _compare_facts(local.get("facts", {}), remote.get("facts", {}))
    found += _compare_losses(local.get("losses", []), remote.get("losses", []))
    found += _compare_numbers(local.get("numbers", {}), remote.get("numbers", {}), workload.number_tolerance_relative)
    if len(found) > DIFFERENCES_MAX:
        found[DIFFERENCES_MAX:] = [f"and {len(found) - DIFFERENCES_MAX} more"]
    return found


def _short(digest: object) -> str:
    return str(digest)[:12]


def _compare_facts(local: dict[str, Any], remote: dict[str, Any]) -> list[str]:
    names = sorted(local.keys() | remote.keys())
    return [f"{n}: {local.get(n)!r} locally, {remote.get(n)!r} here" for n in names if local.get(n) != remote.get(n)]


def _compare_losses(local: list[float], remote: list[float]) -> list[str]:
    if len(local) != len(remote):
        return [f"{len(local)} losses locally, {len(remote)} here"]
    far = [i for i, (a, b) in enumerate(zip(local, remote, strict=True)) if not abs(a - b) <= LOSS_TOLERANCE]
    if not far:
        return []
    worst = max(abs(local[i] - remote[i]) for i in far)
    return [f"{len(far)} losses differ, the first at step {far[0]}, by up to {worst:.3g}"]


def _compare_numbers(local: dict[str, float], remote: dict[str, float], tolerance_relative: float) -> list[str]:
    found = []
    for name in sorted(local.keys() | remote.keys()):
        a, b = local.get(name, math.nan), remote.get(name, math.nan)
        if not math.isclose(a, b, rel_tol=tolerance_relative, abs_tol=1e-9):
            found.append(f"{name}: {a:.9g} locally, {b:.9g} here")
    return found


def ratios(local: dict[str, Any] | None, result: dict[str, Any]) -> dict[str, float]:
    """Returns the ratio to the local GPU for every time that both have."""
    if local is None:
        return {}
    mine, theirs = result.get("timings_ms", {}), local.get("timings_ms", {})
    return {name: round(ms / theirs[name], 3) for name, ms in mine.items() if theirs.get(name, 0) > 0}

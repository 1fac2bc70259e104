"""A pool between hosts in namespaces while its processes are killed and stopped and its links are cut: no GPU is given
twice, none is lost. The long form: `make pool-faults`."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pool_faults import Found, World, judge, run, summary

has_tools = all(shutil.which(name) for name in ["ip", "unshare", "nsenter", "curl", "etcd"])
can_unshare = has_tools and subprocess.run(["unshare", "-Urn", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not can_unshare, reason="needs ip, nsenter, curl, etcd and user namespaces")
def test_no_gpu_is_given_twice_or_lost_whatever_fails(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        world = World(stack, tmp_path, seed=1)
        run(world, seconds=15, fault_s=(0.5, 2), calm_every_s=15)
        for log in tmp_path.glob("*.log"):
            assert "panicked" not in log.read_text(), log.read_text()
    assert judge(world.found) == []
    numbers = summary(world.found)
    assert numbers["operations"] > 0 and numbers["gpus_given"] > 0 and sum(numbers["faults"].values()) > 3, numbers


def use(name: str, lease: int, since: float, until: float, uuid: str = "GPU-0") -> dict[str, Any]:
    return {
        "name": name,
        "uuid": uuid,
        "lease": lease,
        "operations": 1,
        "met": None,
        "from": [since, since],
        "to": [until, until],
    }


def entry(number: int, what: str, lease: int, epoch: int, at_s: int, uuid: str = "GPU-0") -> dict[str, Any]:
    gpus = [{"uuid": uuid, "epoch": epoch}]
    return {"number": number, "what": what, "lease": lease, "at_s": at_s, "cause": None, "gpus": gpus}


GOOD = [
    entry(1, "given", 1, 1, 10),
    entry(2, "taken", 1, 1, 12),
    entry(3, "given", 2, 2, 12),
    entry(4, "taken", 2, 2, 15),
]


def found(audit: list[dict[str, Any]], *uses: dict[str, Any]) -> list[str]:
    return judge(Found(audit=audit, uses=list(uses)))


def test_the_judge_sees_what_is_wrong() -> None:
    assert found(GOOD, use("a", 1, 10.5, 12.4), use("b", 2, 12.5, 14)) == []
    assert "at one time" in found(GOOD, use("a", 1, 10.5, 12.6), use("b", 2, 12.5, 14))[0]
    # One that lasts long covers several.
    late = [use("a", 1, 10.5, 12.9), use("b", 1, 10.6, 10.7), use("c", 2, 12.8, 14)]
    assert len(found(GOOD, *late)) == 2
    assert "beyond its lease" in found(GOOD, use("a", 1, 10.5, 13))[0]
    assert "beyond its lease" in found(GOOD, use("a", 7, 10.5, 11))[0]
    assert "no entry 2" in found([GOOD[0], *GOOD[2:]])[0]
    assert "given to the leases 1 and 2" in found([GOOD[0], entry(2, "given", 2, 2, 12)])[0]
    assert "with the epoch 1 after 1" in found([*GOOD[:2], entry(3, "given", 2, 1, 12), entry(4, "taken", 2, 1, 13)])[0]
    assert "never taken back" in found(GOOD[:3])[0]
    assert "did not have it" in found([*GOOD, entry(5, "taken", 2, 2, 16)])[0]

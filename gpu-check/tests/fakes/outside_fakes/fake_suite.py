"""A suite without a GPU: each case does what its name says."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from outside.cases import FAIL, PASS, SKIP, Outcome
from outside.child import Missing, Suite

REMOTE = os.environ.get("FAKE_MODE", "local") != "local"


class Fake(Suite):
    def __init__(self) -> None:
        self._broken = False

    def cases(self) -> list[str]:
        return [
            "right",
            "skips",
            "fails everywhere",
            "other bits",
            "fails through it",
            "hangs through it",
            "crashes through it",
            "spoils",
            "new bits each time",
            "new numbers each time",
        ]

    def run(self, name: str) -> Outcome:
        if self._broken:
            return Outcome(FAIL, detail="a case before this one spoiled the process")
        print(f"{name} says something")
        match name:
            case "skips":
                return Outcome(SKIP, detail="not here")
            case "fails everywhere":
                raise ValueError(f"wrong {'there' if REMOTE else 'here'}")
            case "fails through it" if REMOTE:
                print("outboard: cuFunctionOf is not served", file=sys.stderr)
                return Outcome(FAIL)
            case "hangs through it" if REMOTE:
                time.sleep(600)
            case "crashes through it" if REMOTE:
                os.abort()
            case "spoils" if REMOTE:
                self._broken = True
                return Outcome(FAIL, detail="device assertion")
            case "other bits":
                return Outcome(PASS, digest="remote" if REMOTE else "local", numbers=[1.0])
            case "new bits each time":
                return Outcome(PASS, digest=str(time.monotonic_ns()), numbers=[1.0])
            case "new numbers each time":
                return Outcome(
                    PASS, digest=str(time.monotonic_ns()), numbers=[float(time.monotonic_ns() % 1_000_000_007)]
                )
        return Outcome(PASS, digest="same")

    def healthy(self) -> bool:
        return not self._broken


def open_suite(sources: Path) -> Fake:
    if sources.name == "empty":
        raise Missing("no checkout")
    return Fake()

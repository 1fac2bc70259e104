"""A process that runs cases of one suite, one after the other, as it is told on standard input.

    python child.py SUITE --sources DIR --list       names of all cases, as events
    python child.py SUITE --sources DIR              runs the name, a JSON string, on each line of its input

Events are JSON lines on the standard output that the process was started with; whatever a case prints goes to
standard error.

    {"event": "missing", "why": ...}       the suite cannot run here
    {"event": "case", "name": ...}         a case there is (--list)
    {"event": "ready"}                     waits for the first name
    {"event": "result", "name": ..., ...}  a case has ended; `spoiled` where the process is of no more use
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    # The suites must import this module itself, not a second copy of its text.
    sys.modules["outside.child"] = sys.modules["__main__"]

from outside.cases import FAIL, Outcome


class Missing(Exception):
    """A requirement of the suite is missing; the text names it."""


class Suite:
    """The suite that a module of `outside.suites` returns from `open_suite(sources)`, which may
    raise Missing."""

    def cases(self) -> list[str]:
        """Lists the names of all cases, the same in every process."""
        raise NotImplementedError

    def run(self, name: str) -> Outcome:
        """Runs one case."""
        raise NotImplementedError

    def healthy(self) -> bool:
        """Tells whether the process can go on after a case that failed."""
        return True

    def within(self, body: Callable[[], None]) -> None:
        """Calls `body`, which uses the suite, where the suite can be used. Raises Missing instead."""
        body()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite")
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    # Cases print what they like: events have the old standard output to themselves.
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.set_inheritable(events.fileno(), False)
    os.dup2(2, 1)

    def tell(**event: Any) -> None:
        events.write(json.dumps(event) + "\n")

    try:
        suite: Suite = importlib.import_module(_module(options.suite)).open_suite(options.sources)
        suite.within(lambda: _list(suite, tell) if options.list else _serve(suite, tell))
    except (Missing, ImportError) as missing:
        tell(event="missing", why=f"{missing}")
    # Libraries that lost their device may hang or abort as they are unloaded, after every result has been told.
    events.flush()
    os._exit(0)


def _module(name: str) -> str:
    """A name with a dot is a module of its own: tests bring theirs."""
    return name if "." in name else f"outside.suites.{name}"


def _list(suite: Suite, tell: Callable[..., None]) -> None:
    for name in suite.cases():
        tell(event="case", name=name)


def _serve(suite: Suite, tell: Callable[..., None]) -> None:
    """Runs what standard input names, until it ends or the process is of no more use."""
    tell(event="ready")
    for line in sys.stdin:
        name = str(json.loads(line))
        outcome = _run(suite, name)
        spoiled = outcome.outcome == FAIL and not suite.healthy()
        tell(event="result", name=name, spoiled=spoiled, **outcome.fields())
        if spoiled:
            break


def _run(suite: Suite, name: str) -> Outcome:
    try:
        return suite.run(name)
    except Exception as error:
        traceback.print_exc()
        text = next((line for line in str(error).splitlines() if line.strip()), "")
        return Outcome(FAIL, detail=f"{type(error).__name__}: {text}")


if __name__ == "__main__":
    sys.exit(main())

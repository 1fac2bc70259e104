"""Tests that pytest collects, run one at a time in the order in which their names come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from outside.cases import FAIL, PASS, SKIP, Outcome, last_line
from outside.child import Missing, Suite


class Pytests(Suite):
    """Tests of the files below `root`; cases are their ids."""

    def __init__(self, root: Path, files: list[str], *options: str) -> None:
        present = [str(root / name) for name in files if (root / name).exists()]
        if not present:
            raise Missing(f"no checkout with {files[0]} at {root}")
        # Without -s pytest would put its own standard input in place of the one that names the cases.
        base = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly", f"--rootdir={root}"]
        self._arguments = [*base, *options, "--continue-on-collection-errors", *present]
        self._items: dict[str, Any] = {}

    def cases(self) -> list[str]:
        return list(self._items)

    def run(self, name: str) -> Outcome:
        item = self._items.get(name)
        if item is None:
            return Outcome(FAIL, detail="there is no such test in this mode")
        with _reports(item) as reports:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        for report in reports:
            if report.failed:
                return Outcome(FAIL, detail=_why(report))
        skipped = next((report for report in reports if report.skipped), None)
        return Outcome(SKIP, detail=_why(skipped)) if skipped else Outcome(PASS)

    def within(self, body: Callable[[], None]) -> None:
        """Calls `body` in place of pytest's own loop, after the collection."""
        suite = self

        class Loop:
            @pytest.hookimpl(tryfirst=True)
            def pytest_runtestloop(self, session: pytest.Session) -> bool:
                suite._items = {item.nodeid: item for item in session.items}
                if suite._items:
                    body()
                return True

        status = pytest.main(self._arguments, plugins=[Loop()])
        if not self._items:
            raise Missing(f"pytest collects no test: exit status {int(status)}")


@contextmanager
def _reports(item: Any) -> Iterator[list[Any]]:
    class Keeper:
        def pytest_runtest_logreport(self, report: Any) -> None:
            kept.append(report)

    kept: list[Any] = []
    keeper = Keeper()
    item.config.pluginmanager.register(keeper)
    try:
        yield kept
    finally:
        item.config.pluginmanager.unregister(keeper)


def _why(report: Any) -> str:
    """The error's own line, which pytest marks with E, else the last."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[-1])
    lines = [line[1:].strip() for line in str(report.longrepr).splitlines() if line.startswith("E ")]
    return last_line(lines[0] if lines else str(report.longrepr))

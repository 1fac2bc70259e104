"""Runs cases in several processes of one mode; a hang or a crash loses the one case that was running."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outside.cases import CRASH, FAIL, HANG, LEFT_OUT, Outcome, last_line, parse
from process import end_process_group, exit_text

CHILD = Path(__file__).resolve().parent / "child.py"
EVENT_BYTES_MAX = 1 << 20
STDERR_TAIL_BYTES_MAX = 8192
# A pool whose processes fail that often to start, one after the other, gives up.
FAILED_STARTS_MAX = 3


@dataclass(frozen=True)
class Limits:
    """Time limits in seconds; `deadline` is a time of time.monotonic()."""

    case_s: float
    start_s: float
    deadline: float


@dataclass(frozen=True)
class Where:
    """A mode: how a command is started in it, and with which variables."""

    mode: str
    through: Callable[[list[str]], list[str]]
    environment: dict[str, str]
    # Called before each process; raises where there is no server for it.
    prepare: Callable[[], None] = lambda: None


class Unusable(Exception):
    """The suite cannot run; the text says why."""


@dataclass
class Pool:
    """Cases of one suite in one mode."""

    suite: str
    sources: Path
    where: Where
    limits: Limits
    log_dir: Path
    # Python of the suite's packages.
    python: str = sys.executable
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    unusable: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _started: int = 0
    _failed_starts: int = 0
    _stopped: bool = False
    _children: list[_Child] = field(default_factory=list)

    def list_cases(self) -> list[str]:
        """Asks a process of its own for the names. Raises Unusable."""
        command = self.where.through([self.python, str(CHILD), self.suite, "--sources", str(self.sources), "--list"])
        self.where.prepare()
        with _Child(command, self.where.environment, self._log()) as child:
            names = []
            until = min(time.monotonic() + self.limits.start_s, self.limits.deadline)
            while (event := child.event(until)) is not None:
                if event.get("event") == "missing":
                    raise Unusable(str(event.get("why", "")))
                if event.get("event") == "case":
                    names.append(str(event["name"]))
            if not child.closed:
                raise Unusable("the list of cases did not come in time")
            code = child.process.wait()
            if code != 0:
                raise Unusable(f"the list of cases broke off with {exit_text(code)}: {last_line(child.stderr(0))}")
        return names

    def run(self, names: list[str], processes: int) -> dict[str, Outcome]:
        """Runs all cases, `processes` at a time; what the deadline left out says so."""
        self.outcomes = {}
        self._failed_starts = 0
        waiting = deque(names)
        threads = [threading.Thread(target=self._work, args=(waiting,)) for _ in range(min(processes, len(names)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name in names:
            self.outcomes.setdefault(name, Outcome(LEFT_OUT, detail=self.unusable))
        return self.outcomes

    def stop(self) -> None:
        """Ends the processes, from another thread than the one in `run`, which returns soon after."""
        with self._lock:
            self._stopped = True
            for child in self._children:
                child.kill()

    def _work(self, waiting: deque[str]) -> None:
        while waiting and time.monotonic() < self.limits.deadline and self._failed_starts < FAILED_STARTS_MAX:
            if self._stopped:
                break
            try:
                self.where.prepare()
                started = self._attempt(waiting)
            except Exception as error:
                self.unusable, started = f"{error}", False
            with self._lock:
                self._failed_starts = 0 if started else self._failed_starts + 1

    def _attempt(self, waiting: deque[str]) -> bool:
        """Runs cases in one process until none is left or it is lost. Tells whether it started at all."""
        command = self.where.through([self.python, str(CHILD), self.suite, "--sources", str(self.sources)])
        with _Child(command, self.where.environment, self._log()) as child:
            with self._lock:
                self._children.append(child)
            if self._stopped:
                return False
            event = child.event(min(time.monotonic() + self.limits.start_s, self.limits.deadline))
            if event is None or event.get("event") != "ready":
                why = (event or {}).get("why") or last_line(child.stderr(0))
                self.unusable = f"no process of the suite started: {why}"
                return False
            while waiting:
                try:
                    name = waiting.popleft()
                except IndexError:
                    break
                if not self._one(child, name):
                    break
        return True

    def _one(self, child: _Child, name: str) -> bool:
        """Runs one case; tells whether the process can take another."""
        mark, began = child.stderr_size(), time.monotonic()
        until = min(began + self.limits.case_s, self.limits.deadline)
        event = child.event(until, send=name)
        if event is not None and event.get("event") == "result" and event.get("name") == name:
            outcome = parse(event)
            if outcome.outcome == FAIL and not outcome.detail:
                outcome.detail = last_line(child.stderr(mark))
            good = not event.get("spoiled")
        elif child.closed:
            code = child.process.wait()
            outcome, good = Outcome(CRASH, detail=f"{exit_text(code)}: {last_line(child.stderr(mark))}"), False
        elif until == self.limits.deadline:
            outcome, good = Outcome(LEFT_OUT, detail="it was running when the budget was used up"), False
        else:
            outcome, good = Outcome(HANG, detail=last_line(child.stderr(mark))), False
        outcome.seconds = round(time.monotonic() - began, 2)
        with self._lock:
            self.outcomes[name] = outcome
        return good

    def _log(self) -> Path:
        with self._lock:
            self._started += 1
            return self.log_dir / f"{self.suite}-{self.where.mode}-{self._started:03}.stderr"


class _Child:
    """A process of `child.py`, and everything below it, ended together."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self.log = log
        self.closed = False
        self._buffer = b""
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
                start_new_session=True,
            )
        self._selector = selectors.DefaultSelector()
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self._selector.register(self.process.stdout, selectors.EVENT_READ)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        end_process_group(self.process)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except OSError:
                continue

    def event(self, until: float, send: str = "") -> dict[str, Any] | None:
        """Sends a line if there is one, and returns the next event; None at its end or after `until`."""
        if send:
            assert self.process.stdin is not None
            try:
                self.process.stdin.write(json.dumps(send).encode() + b"\n")
                self.process.stdin.flush()
            except OSError:
                self.closed = True
                return None
        while True:
            line, newline, rest = self._buffer.partition(b"\n")
            if newline:
                self._buffer = rest
                return _parse_event(line)
            if not self._read(until):
                return None

    def _read(self, until: float) -> bool:
        assert self.process.stdout is not None
        if not self._selector.select(max(0.0, until - time.monotonic())):
            return False
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        if not data or len(self._buffer) > EVENT_BYTES_MAX:
            self.closed = True
            return False
        self._buffer += data
        return True

    def stderr_size(self) -> int:
        return self.log.stat().st_size

    def stderr(self, mark: int) -> str:
        """Returns the end of what the process wrote to standard error after `mark`."""
        with self.log.open("rb") as file:
            file.seek(max(mark, self.stderr_size() - STDERR_TAIL_BYTES_MAX))
            return file.read().decode(errors="replace")


def _parse_event(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}

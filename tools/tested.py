#!/usr/bin/env python3
"""Runs one part of `make test`, and keeps for its last lines what could not run and what ran a second time.

    python3 tools/tested.py command PART -- COMMAND     a command; its lines `NOT RUN: TEST: WHY` are counted
    python3 tools/tested.py pytest PART [--again] -- ARGUMENTS
    python3 tools/tested.py summary PART...             the counts of these parts

A part's counts are in `build/tested/PART.json`. With --again, one test that failed runs a second time: an emulated
machine on a busy host loses its patience. Two that failed are a failure.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "tested"
AGAIN_MAX = 1
NOT_RUN = re.compile(r"NOT RUN: (?P<test>\S+): (?P<why>.*)")
RESULT = re.compile(r"^test result: .*? (?P<passed>\d+) passed; .*; (?P<ignored>\d+) ignored;")


@dataclass
class Counts:
    """One part's tests, besides those that failed: with them there is no summary."""

    passed: int = 0
    ignored: int = 0
    seconds: int = 0
    not_run: list[tuple[str, str]] = field(default_factory=list)
    again: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="do", required=True)
    for name in ["command", "pytest"]:
        one = commands.add_parser(name)
        one.add_argument("part")
        one.add_argument("--again", action="store_true")
    commands.add_parser("summary").add_argument("parts", nargs="+")
    # The command may have a `--` of its own, which argparse would take away.
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    command = sys.argv[at + 1 :]
    arguments = parser.parse_args(sys.argv[1:at])
    if arguments.do == "summary":
        print("\n".join(summary({part: load(part) for part in arguments.parts})))
        return 0
    counts, start = Counts(), time.monotonic()
    kept = FOLDER / f"{arguments.part}.json"
    kept.unlink(missing_ok=True)
    if arguments.do == "command":
        status = run_command(command, counts)
    else:
        status = run_pytest(arguments.part, command, arguments.again, counts)
    counts.seconds = round(time.monotonic() - start)
    if status == 0:
        FOLDER.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(asdict(counts), indent=1))
    return status


def run_command(command: list[str], counts: Counts) -> int:
    """Runs a command, and counts by what it prints."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        count_line(line, counts)
    return process.wait()


def count_line(line: str, counts: Counts) -> None:
    if found := NOT_RUN.search(line):
        counts.not_run.append((found["test"], found["why"]))
    elif result := RESULT.search(line):
        counts.passed += int(result["passed"])
        counts.ignored += int(result["ignored"])


def run_pytest(part: str, arguments: list[str], is_again: bool, counts: Counts) -> int:
    """Runs pytest, and counts by its report; with `is_again` one failure is tried once more."""
    failed, status = pytest_once(part, arguments, counts)
    if status == 0 or not is_again:
        return status
    if not 1 <= len(failed) <= AGAIN_MAX:
        print(f"{part}: {len(failed)} tests failed, and one may run again: {', '.join(failed)}", flush=True)
        return status
    print(f"{part}: once more, {failed[0]}", flush=True)
    _, status = pytest_once(part, [*arguments, "--last-failed", "--last-failed-no-failures", "none"], counts)
    counts.again += failed
    return status


def pytest_once(part: str, arguments: list[str], counts: Counts) -> tuple[list[str], int]:
    """The tests that failed, and pytest's exit status; the others are counted."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    report = FOLDER / f"{part}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", "-o", "junit_logging=no", *arguments]
    status = subprocess.run(command, cwd=ROOT).returncode
    return (count_report(report, counts) if report.exists() else []), status


def count_report(report: Path, counts: Counts) -> list[str]:
    """Counts what pytest's report says of each test, and returns those that failed."""
    failed = []
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif skipped is not None:
            counts.not_run.append((name, skipped.get("message", "").partition("\n")[0]))
        else:
            counts.passed += 1
    return failed


def load(part: str) -> Counts:
    return Counts(**json.loads((FOLDER / f"{part}.json").read_text()))


def summary(parts: dict[str, Counts]) -> list[str]:
    """The last lines of a run: reasons first, the counts of all in the very last."""
    lines, not_run, again = [], 0, 0
    for part, counts in parts.items():
        reasons = Counter(why for _, why in counts.not_run)
        lines += [f"WARNING: {part}: NOT RUN, {count} tests: {why}" for why, count in reasons.items()]
        lines += [f"WARNING: {part}: passed only when run again: {test}" for test in counts.again]
        not_run, again = not_run + len(counts.not_run), again + len(counts.again)
    passed, ignored = (sum(getattr(counts, kind) for counts in parts.values()) for kind in ["passed", "ignored"])
    times = ", ".join(f"{part} {counts.seconds} s" for part, counts in parts.items())
    lines.append(f"tests: {times}")
    lines.append(f"{passed} passed, {not_run} not run, {again} run again, {ignored} ignored with their reason")
    return lines


if __name__ == "__main__":
    sys.exit(main())

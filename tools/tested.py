#!/usr/bin/env python3
"""Runs one part of `make test`, and keeps for its last lines what could not run and what ran a second time.

    python3 tools/tested.py command PART -- COMMAND     a command; its lines `NOT RUN: TEST: WHY` are counted
    python3 tools/tested.py cargo PART [--again] -- ARGUMENTS       of cargo test
    python3 tools/tested.py pytest PART [--again] -- ARGUMENTS
    python3 tools/tested.py summary PART...             the counts of these parts
    python3 tools/tested.py room                        whether there is space for what the tests build

A part's counts are in `build/tested/PART.json`. With --again, up to two tests that failed run a second time: a real
server, an emulated machine, a peer in another process lose their patience on a busy host. What failed twice, and a
third that failed, are failures; what passed only the second time is said in the last lines.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "tested"
AGAIN_MAX = 2
# A debug build of everything and the tools, and what stays of it to be written in a tree that is built.
FRESH_MIN_MIB, BUILT_MIN_MIB = 8_000, 1_000
NOT_RUN = re.compile(r"NOT RUN: (?P<test>\S+): (?P<why>.*)")
RESULT = re.compile(r"^test result: .*? (?P<passed>\d+) passed; .*; (?P<ignored>\d+) ignored;")
# What cargo test prints before the output of a test that failed, and of each executable whose tests failed.
FAILED = re.compile(r"^---- (?P<test>.+) stdout ----$")
TARGET = re.compile(r"^    `(?P<arguments>-.+)`$")


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
    for name in ["command", "cargo", "pytest"]:
        one = commands.add_parser(name)
        one.add_argument("part")
        one.add_argument("--again", action="store_true")
    commands.add_parser("summary").add_argument("parts", nargs="+")
    commands.add_parser("room")
    # The command may have a `--` of its own, which argparse would take away.
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    command = sys.argv[at + 1 :]
    arguments = parser.parse_args(sys.argv[1:at])
    if arguments.do == "summary":
        print("\n".join(summary({part: load(part) for part in arguments.parts})))
        return 0
    if arguments.do == "room":
        lacking = lacking_room(ROOT, [Path(tempfile.gettempdir())])
        print("\n".join(lacking), end="\n" if lacking else "", file=sys.stderr)
        return 1 if lacking else 0
    counts, start = Counts(), time.monotonic()
    kept = FOLDER / f"{arguments.part}.json"
    kept.unlink(missing_ok=True)
    if arguments.do == "command":
        status = run_command(command, counts)
    elif arguments.do == "cargo":
        status = run_cargo(arguments.part, command, arguments.again, counts)
    else:
        status = run_pytest(arguments.part, command, arguments.again, counts)
    counts.seconds = round(time.monotonic() - start)
    if status == 0:
        FOLDER.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(asdict(counts), indent=1))
    return status


def lacking_room(root: Path, others: list[Path]) -> list[str]:
    """Says which folders have too little free space; on a full disk tests fail in ways that do not name it."""
    is_built = (root / "target" / "debug" / "outboard").exists()
    wanted = [(root, BUILT_MIN_MIB if is_built else FRESH_MIN_MIB), *((other, BUILT_MIN_MIB) for other in others)]
    free = [(folder, shutil.disk_usage(folder).free >> 20, needed) for folder, needed in wanted]
    return [f"tests: {has} MiB free at {at}, {needed} MiB needed" for at, has, needed in free if has < needed]


def run_command(command: list[str], counts: Counts, lines: list[str] | None = None) -> int:
    """Runs a command, counts by what it prints, and adds that to `lines`."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        count_line(line, counts)
        if lines is not None:
            lines.append(line.rstrip("\n"))
    return process.wait()


def run_cargo(part: str, arguments: list[str], is_again: bool, counts: Counts) -> int:
    """Runs cargo test to its end, and counts; with `is_again` few failures are tried once more."""
    lines: list[str] = []
    cargo = os.environ.get("CARGO", "cargo")
    status = run_command([cargo, "test", "--no-fail-fast", *arguments], counts, lines)
    failed = sorted({found["test"] for line in lines if (found := FAILED.match(line))})
    targets = [found["arguments"].split() for line in lines if (found := TARGET.match(line))]
    if status == 0 or not is_again or not may_run_again(part, failed):
        return status
    for target in targets:
        # An executable in which nothing failed by name has crashed.
        found = Counts()
        status = run_command([cargo, "test", "--quiet", *target, "--", "--exact", *failed], found)
        if status != 0 or found.passed == 0:
            return status or 1
        counts.passed += found.passed
    counts.again += failed
    return 0 if targets else status


def may_run_again(part: str, failed: list[str]) -> bool:
    """Says which tests run again, or why none may."""
    if not 1 <= len(failed) <= AGAIN_MAX:
        print(f"{part}: {len(failed)} tests failed, and {AGAIN_MAX} may run again: {', '.join(failed)}", flush=True)
        return False
    print(f"{part}: once more, {', '.join(failed)}", flush=True)
    return True


def count_line(line: str, counts: Counts) -> None:
    if found := NOT_RUN.search(line):
        counts.not_run.append((found["test"], found["why"]))
    elif result := RESULT.search(line):
        counts.passed += int(result["passed"])
        counts.ignored += int(result["ignored"])


def run_pytest(part: str, arguments: list[str], is_again: bool, counts: Counts) -> int:
    """Runs pytest, and counts by its report; with `is_again` few failures are tried once more."""
    failed, status = pytest_once(part, arguments, counts)
    if status == 0 or not is_again or not may_run_again(part, failed):
        return status
    # One after the other, whatever ran beside them before.
    last = ["--last-failed", "--last-failed-no-failures", "none", *(["-n", "0"] if "-n" in arguments else [])]
    _, status = pytest_once(part, [*arguments, *last], counts)
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

"""Calls functions that take a number or nothing, and prints their statuses: `calls.py
CALL[:ARGUMENT]...`."""

from __future__ import annotations

import sys

from cuda import lib, wide


def main(calls: list[str]) -> None:
    if not calls:
        raise SystemExit("no calls")
    statuses = []
    for call in calls:
        function, _, argument = call.partition(":")
        given = [wide(int(argument))] if argument else []
        statuses.append(getattr(lib, function)(*given))
    print(*statuses)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Connections beside a flood: clients.py ADDRESS PORT ESTABLISHED NEW SECONDS

Opens connections, says "ready", and uses them to the end, while new clients come, evenly over the time. Prints how many
of both had their answers, and the time that new ones took.
"""

from __future__ import annotations

import concurrent.futures
import json
import random
import socket
import sys
import time

from transfers import read

ANSWER_S_MAX = 5
BYTES = 1000
ROUNDS = 20


def exchange(connection: socket.socket, seed: int) -> bool:
    data = random.Random(seed).randbytes(BYTES)
    connection.sendall(data)
    return read(connection, BYTES) == data


def open_to(target: tuple[str, int]) -> socket.socket:
    connection = socket.create_connection(target, timeout=ANSWER_S_MAX)
    read(connection, 16)
    return connection


def come(target: tuple[str, int], seed: int, begin: float) -> float | None:
    """Connects at a time, and returns how long it took to be served."""
    time.sleep(max(begin - time.monotonic(), 0))
    begin = time.monotonic()
    try:
        with open_to(target) as connection:
            return time.monotonic() - begin if exchange(connection, seed) else None
    except OSError:
        return None


def stay(connection: socket.socket, seconds: float) -> bool:
    connection.settimeout(30)
    try:
        for number in range(ROUNDS):
            if not exchange(connection, number):
                return False
            time.sleep(seconds / ROUNDS)
        return True
    except OSError:
        return False


def main() -> None:
    target, (established, new, seconds) = (sys.argv[1], int(sys.argv[2])), map(int, sys.argv[3:])
    connections = [open_to(target) for _ in range(established)]
    print("ready", flush=True)
    # The flood's sender makes its frames first.
    begin = time.monotonic() + 2
    with concurrent.futures.ThreadPoolExecutor(established + new) as pool:
        stayed = [pool.submit(stay, one, float(seconds)) for one in connections]
        came = [pool.submit(come, target, number, begin + seconds * number / new) for number in range(new)]
        kept = sum(one.result() for one in stayed)
        took = sorted(ms for one in came if (ms := one.result()) is not None)
    at = [round(took[len(took) * share // 100] * 1000, 2) for share in (50, 90, 99)] if took else []
    print(
        json.dumps(
            {
                "established": established,
                "established_kept": kept,
                "new_clients": new,
                "new_clients_served": len(took),
                "served_ms_p50_p90_p99": at,
            }
        )
    )


if __name__ == "__main__":
    main()

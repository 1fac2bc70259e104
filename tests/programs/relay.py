"""A bad link for the balancer's tests: passes frames between two interfaces and loses, delays, reorders and doubles
them by a seed.

relay.py INTERFACE INTERFACE SEED LOST_PERCENT TWICE_PERCENT DELAY_MS JITTER_MS
"""

from __future__ import annotations

import heapq
import random
import select
import socket
import sys
import time

ALL_PROTOCOLS = 3
SOL_PACKET, IGNORE_OUTGOING, VNET_HEADER = 263, 23, 15
FRAME_BYTES_MAX = 70_000


def open_socket(interface: str) -> socket.socket:
    """Frames come with a header that says which checksums and segments the device has yet to make."""
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    link.setsockopt(SOL_PACKET, IGNORE_OUTGOING, 1)
    link.setsockopt(SOL_PACKET, VNET_HEADER, 1)
    link.bind((interface, ALL_PROTOCOLS))
    return link


def main() -> None:
    links = [open_socket(name) for name in sys.argv[1:3]]
    seed, lost, twice, delay_ms, jitter_ms = map(int, sys.argv[3:])
    rng = random.Random(seed)
    other = {links[0]: links[1], links[1]: links[0]}
    under_way: list[tuple[float, int, socket.socket, bytes]] = []
    number = 0
    print("ready", flush=True)
    while True:
        pause = max(under_way[0][0] - time.monotonic(), 0) if under_way else None
        for link in select.select(links, [], [], pause)[0]:
            frame = link.recv(FRAME_BYTES_MAX)
            for _ in range(1 + (rng.random() * 100 < twice)):
                if rng.random() * 100 < lost:
                    continue
                number += 1
                at = time.monotonic() + (delay_ms + rng.random() * jitter_ms) / 1000
                heapq.heappush(under_way, (at, number, other[link], frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, link, frame = heapq.heappop(under_way)
            try:
                link.send(frame)
            except OSError:
                # A link that is full or down loses it.
                continue


if __name__ == "__main__":
    main()

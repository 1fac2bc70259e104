"""Transfers over TCP for the balancer's tests.

transfers.py serve ADDRESS PORT            sends back what it receives, with the address before each connection's
transfers.py transfer ADDRESS PORT COUNT   makes so many, 25 at a time, each in pieces; prints what became of them
transfers.py flood ADDRESS PORT SECONDS    sends SYNs of made-up clients, as many as it can; prints how many
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import random
import socket
import socketserver
import struct
import sys
import time
from collections import Counter

PIECES = 5
PIECE_BYTES = 20_000
PAUSE_S = 0.04
AT_A_TIME = 25
TIMEOUT_S = 20


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        # Health checks go without reading anything, which is a reset.
        with contextlib.suppress(ConnectionResetError):
            self.request.sendall(self.server.server_address[0].encode().ljust(16))
            while data := self.request.recv(1 << 16):
                self.request.sendall(data)


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 512


def serve_datagrams(address: str, port: int) -> None:
    with socket.socket(family(address), socket.SOCK_DGRAM) as server:
        server.bind((address, port))
        print("ready", flush=True)
        while True:
            data, client = server.recvfrom(1 << 16)
            server.sendto(address.encode().ljust(16) + data, client)


def ask(address: str, port: int, count: int) -> None:
    """Each datagram is of a connection of its own; one that is lost is sent again."""
    results: Counter[str] = Counter()
    servers: Counter[str] = Counter()
    for number in range(count):
        data = random.Random(number).randbytes([10, 1000, 5000][number % 3])
        with socket.socket(family(address), socket.SOCK_DGRAM) as client:
            client.settimeout(0.5)
            client.connect((address, port))
            answer = b""
            for _ in range(10):
                client.send(data)
                try:
                    answer = client.recv(1 << 16)
                    break
                except TimeoutError:
                    continue
        results["right" if answer[16:] == data else "wrong"] += 1
        servers[answer[:16].decode().strip()] += 1
    print(json.dumps({"results": results, "servers": servers}))


def family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def read(connection: socket.socket, count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        part = connection.recv(count - len(parts))
        if not part:
            raise ConnectionError("the end, too early")
        parts += part
    return parts


def transfer(address: str, port: int, number: int) -> tuple[str, str]:
    """Returns the server's address, and what became of the transfer."""
    name = ""
    try:
        with socket.create_connection((address, port), timeout=TIMEOUT_S) as connection:
            name = read(connection, 16).decode().strip()
            for piece in range(PIECES):
                data = random.Random(number * PIECES + piece).randbytes(PIECE_BYTES)
                connection.sendall(data)
                if read(connection, PIECE_BYTES) != data:
                    return name, "wrong"
                time.sleep(PAUSE_S)
    except OSError as error:
        return name, f"broken: {error!r}"
    return name, "right"


def transfers(address: str, port: int, count: int) -> None:
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        done = list(pool.map(lambda number: transfer(address, port, number), range(count)))
    print(json.dumps({"results": Counter(result for _, result in done), "servers": Counter(name for name, _ in done)}))


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF


def flood(address: str, port: int, seconds: float) -> None:
    sender = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    target = socket.inet_aton(address)
    rng, sent, end = random.Random(1), 0, time.monotonic() + seconds
    while time.monotonic() < end:
        source = bytes([198, 18, *rng.randbytes(2)])
        segment = struct.pack(
            "!HHIIBBHHH", rng.randrange(1024, 65536), port, rng.getrandbits(32), 0, 0x50, 2, 1000, 0, 0
        )
        sum_of = checksum(source + target + struct.pack("!HH", 6, len(segment)) + segment)
        segment = segment[:16] + struct.pack("!H", sum_of) + segment[18:]
        header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(segment), 1, 0, 64, 6, 0, source, target)
        try:
            sender.sendto(header + segment, (address, 0))
            sent += 1
        except OSError:
            time.sleep(0.001)
        if sent % 50 == 0:
            # Other processes of the test need the processor, too.
            time.sleep(0.005)
    print(sent)


def main() -> None:
    what, address, port, *rest = sys.argv[1:]
    if what == "serve":
        Server.address_family = family(address)
        with Server((address, int(port)), Echo) as server:
            print("ready", flush=True)
            server.serve_forever()
    elif what == "serve-datagrams":
        serve_datagrams(address, int(port))
    elif what == "ask":
        ask(address, int(port), int(rest[0]))
    elif what == "transfer":
        transfers(address, int(port), int(rest[0]))
    else:
        flood(address, int(port), float(rest[0]))


if __name__ == "__main__":
    main()

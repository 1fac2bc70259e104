"""SYNs of made-up clients, as many each second as told: flood.py ADDRESS PORT RATE SECONDS prints how many were sent.

Tables of frames are made beforehand, and sent by sendmmsg, so that one process suffices for some 100,000 each second.
"""

from __future__ import annotations

import ctypes
import json
import random
import socket
import struct
import sys
import time
from typing import ClassVar

from transfers import checksum

CLIENTS = 1 << 16
PAUSE_S = 0.005
PACKET_BYTES = 40


class Vector(ctypes.Structure):
    _fields_: ClassVar = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class Message(ctypes.Structure):
    """struct mmsghdr."""

    _fields_: ClassVar = [
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint32),
        ("vectors", ctypes.POINTER(Vector)),
        ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("sent", ctypes.c_uint),
    ]


def packets(address: str, port: int) -> bytes:
    """Returns a SYN of each client, one after the other."""
    rng, target, out = random.Random(1), socket.inet_aton(address), bytearray()
    for number in range(CLIENTS):
        source = bytes([198, 18]) + struct.pack("!H", number)
        head = (rng.randrange(1024, 65536), port, rng.getrandbits(32), 0, 0x50, 2, 1000)
        segment = struct.pack("!HHIIBBHHH", *head, 0, 0)
        total = checksum(source + target + struct.pack("!HH", 6, len(segment)) + segment)
        out += struct.pack("!BBHHHBBH4s4s", 0x45, 0, PACKET_BYTES, 1, 0, 64, 6, 0, source, target)
        out += struct.pack("!HHIIBBHHH", *head, total, 0)
    return bytes(out)


def main() -> None:
    address, port, rate, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    data = ctypes.create_string_buffer(packets(address, port))
    name = ctypes.create_string_buffer(struct.pack("=H", socket.AF_INET) + b"\0\0" + socket.inet_aton(address), 16)
    vectors = (Vector * CLIENTS)()
    messages = (Message * CLIENTS)()
    for number in range(CLIENTS):
        vectors[number] = Vector(ctypes.addressof(data) + number * PACKET_BYTES, PACKET_BYTES)
        message = messages[number]
        message.name, message.name_length = ctypes.addressof(name), 16
        message.vectors, message.vector_count = ctypes.pointer(vectors[number]), 1
    libc = ctypes.CDLL(None)
    sender = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    print("ready", flush=True)
    begin, sent = time.monotonic(), 0
    while (passed := time.monotonic() - begin) < seconds:
        due = int(passed * rate) - sent
        first = sent % CLIENTS
        count = min(due, CLIENTS - first, 1024)
        if count <= 0:
            time.sleep(PAUSE_S)
            continue
        done = libc.sendmmsg(sender.fileno(), ctypes.byref(messages, first * ctypes.sizeof(Message)), count, 0)
        if done <= 0:
            time.sleep(PAUSE_S)
        sent += max(done, 0)
    print(json.dumps({"sent": sent, "seconds": round(time.monotonic() - begin, 2)}))


if __name__ == "__main__":
    main()

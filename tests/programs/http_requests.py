"""Requests to a balancer over HTTP: http_requests.py CONTROL-PORT METRICS-PORT TOKEN BACKEND prints what was answered.

Good ones, and ones that are slow, cut, huge, not HTTP, without the token, and 1,000 at once that never end.
"""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import sys
import time
from typing import Any

AT_ONCE = 1000
ANSWER_S_MAX = 20


def send(port: int, data: bytes, end: bool = False) -> tuple[int, str]:
    """Returns status and body of what is answered; 0 for nothing."""
    answer = b""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), ANSWER_S_MAX) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(data)
            if end:
                connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(1 << 16):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    return (int(head.split()[1]) if head else 0), body.decode()


def ask(port: int, method: str, path: str, token: str = "", body: Any = None) -> tuple[int, str]:
    text = "" if body is None else json.dumps(body)
    head = f"{method} {path} HTTP/1.1\r\nHost: balancer\r\nContent-Length: {len(text)}\r\n"
    return send(port, f"{head}Authorization: Bearer {token}\r\n\r\n{text}".encode())


def main() -> None:
    control, metrics, token, backend = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    codes: dict[str, int] = {}
    answers: dict[str, Any] = {}

    def note(name: str, answer: tuple[int, str]) -> None:
        codes[name], answers[name] = answer[0], answer[1]

    for path in ["status", "health", "flows?limit=2", "flows?phase=established", "metrics"]:
        note(path, ask(control, "GET", f"/{path}", token))
    note("drain", ask(control, "POST", "/drain", token, {"backend": backend}))
    note("drained", ask(control, "GET", "/health", token))
    note("drain ends", ask(control, "POST", "/drain", token, {"backend": backend, "drain": False}))
    note("explain", ask(control, "POST", "/explain", token, {"frames": ["45 00 00 28", "ff"]}))
    note("reload", ask(control, "POST", "/reload", token))
    note("open status", ask(metrics, "GET", "/status"))
    # What is refused.
    note("no backend", ask(control, "POST", "/drain", token, {"backend": "192.0.2.99:1"}))
    note("no token", ask(control, "POST", "/reload"))
    note("wrong token", ask(control, "GET", "/status", token[:-1]))
    note("open drain", ask(metrics, "POST", "/drain", token, {"backend": backend}))
    note("open flows", ask(metrics, "GET", "/flows", token))
    note("get drain", ask(control, "GET", "/drain", token))
    note("hand-over", ask(control, "POST", "/hand-over", token, {"plane": {}}))
    note("not there", ask(control, "GET", "/../etc/passwd", token))
    note("wrong body", ask(control, "POST", "/drain", token, {"backend": 7}))
    note("body of a reload", ask(control, "POST", "/reload", token, [[]]))
    note("no packet", ask(control, "POST", "/explain", token, {"frames": ["4"]}))
    note("no port", ask(control, "POST", "/explain", token, {"frames": ["45"], "port": 9}))
    note("1,001 packets", ask(control, "POST", "/explain", token, {"frames": ["45"] * 1001}))
    note("wrong phase", ask(control, "GET", "/flows?phase=none", token))
    note("not HTTP", send(control, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"))
    note("long head", send(control, b"GET / HTTP/1.1\r\n" + b"A: " + b"a" * 10_000))
    note("many headers", send(control, b"GET / HTTP/1.1\r\n" + b"A: a\r\n" * 100 + b"\r\n"))
    note("long body", send(control, b"POST /drain HTTP/1.1\r\nContent-Length: 2000000\r\n\r\n" + b"a" * 2_000_000))
    note("no length", send(control, b"POST /drain HTTP/1.1\r\nContent-Length: -1\r\n\r\n"))
    note("chunks", send(control, b"POST /drain HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"))
    note("cut", send(control, b"GET /status HT", end=True))
    note("cut body", send(control, b"POST /drain HTTP/1.1\r\nContent-Length: 100\r\n\r\n{", end=True))
    # All at once, never ending.
    with contextlib.ExitStack() as stack:
        slow = [
            stack.enter_context(socket.create_connection(("127.0.0.1", control), ANSWER_S_MAX)) for _ in range(AT_ONCE)
        ]
        for one in slow:
            with contextlib.suppress(OSError):
                one.sendall(b"GET /st")
        begin = time.monotonic()
        note("beside 1,000", ask(control, "GET", "/status", token))
        beside_s = time.monotonic() - begin
    # One byte at a time.
    begin = time.monotonic()
    answer = b""
    with socket.create_connection(("127.0.0.1", control), ANSWER_S_MAX) as one:
        one.settimeout(0.1)
        while time.monotonic() - begin < 8 and not answer:
            one.sendall(b"G")
            with contextlib.suppress(TimeoutError):
                answer = one.recv(1000)
    note("slow", (int(answer.split()[1]), answer.decode()))
    slow_s = time.monotonic() - begin
    print(json.dumps({"codes": codes, "answers": answers, "beside_s": beside_s, "slow_s": slow_s}))


if __name__ == "__main__":
    main()

"""`outboard top` and the metrics of a server whose session is a real program."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import OUTBOARD, TEST_PROGRAMS, Server, start_server

PATIENCE_S = 30
MIB = 1 << 20


def status(server: Server, link: str) -> dict:
    """What the server says of itself."""
    done = subprocess.run([OUTBOARD, "top", server.urls[link], "--json"], capture_output=True, check=True, timeout=20)
    return json.loads(done.stdout)


def eventually(what: str, look: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.mark.smoke
def test_top_shows_a_program(tmp_path: Path) -> None:
    """A program's memory, messages and waits, what its thread awaits, and what is left when it is killed."""
    server = start_server(tmp_path, "--metrics", "0", "--audit", str(tmp_path / "audit"))
    assert server.process.stdout is not None
    url = server.process.stdout.readline().removeprefix("metrics at ").strip()
    program = [sys.executable, str(TEST_PROGRAMS / "idles.py")]
    argv = [str(OUTBOARD), "run", "--gpu", server.urls["tcp"], "--", *program]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None and client.stdin is not None
        assert client.stdout.readline() == "idle\n"
        # Reports come once a second, and the first may come before the program has done anything.
        eventually("its memory", lambda: status(server, "tcp")["sessions"][0]["usage"]["memory_bytes"] == [4 * MIB])
        eventually("the session is idle", lambda: status(server, "tcp")["sessions"][0]["usage"]["doing"] != "busy")
        eventually("all messages", lambda: status(server, "tcp")["sessions"][0]["messages_per_s"] == 0)
        [session] = status(server, "shm")["sessions"]
        usage = session["usage"]
        assert session["pid"] == client.pid and session["link"] == "tcp"
        assert session["program"].startswith("python")
        assert usage["memory_bytes"] == [4 * MIB]
        assert usage["doing"] == "awaits_client"
        assert usage["messages"] > 100
        assert usage["sent_bytes"] >= 40 * 4 * MIB
        # At least the 20 waits for the stream.
        assert usage["waits"] >= 20 and usage["waits"] == sum(usage["wait_counts"])
        assert status(server, "shm")["gpus"][0]["used_bytes"] == 4 * MIB
        screen = subprocess.run([OUTBOARD, "top", server.urls["shm"], "--once"], capture_output=True, text=True)
        assert f"{client.pid}" in screen.stdout and "4.0M" in screen.stdout, screen.stdout
        scraped = urllib.request.urlopen(url, timeout=10).read().decode()
        assert f'outboard_device_memory_bytes{{device="0"}} {4 * MIB}\n' in scraped
        assert f"outboard_session_messages_total {usage['messages']}\n" in scraped
        subprocess.run([OUTBOARD, "top", server.urls["shm"], "--end", str(session["session"])], check=True)
        client.stdin.close()
        client.wait(PATIENCE_S)
    eventually("the session's end", lambda: status(server, "shm")["sessions"] == [])
    [line] = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert (line["reason"], line["pid"], line["memory_peak_bytes"]) == ("asked", client.pid, [4 * MIB])
    assert server.stop() == 0


def test_top_names_the_message_that_waits(server: Server) -> None:
    """While a stream does not come to an end, the reply that waits for it is named."""
    program = [sys.executable, str(TEST_PROGRAMS / "waits_for_ever.py")]
    argv = [str(OUTBOARD), "run", "--gpu", server.urls["tcp"], "--", *program]
    with subprocess.Popen(argv) as client:

        def awaited() -> object:
            sessions = [one for one in status(server, "tcp")["sessions"] if one["pid"] == client.pid]
            return sessions and sessions[0]["usage"]["doing"] == {"awaits_gpu": "fence_stream"}

        eventually("a reply that waits", awaited)
        client.kill()

"""Programs over encrypted connections, and over those that need a token, have the results that they have without."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from authority import Authority
from harness import OUTBOARD, TEST_PROGRAMS, Server, start_server


def made(*command: str | Path) -> str:
    return subprocess.run([OUTBOARD, *command], check=True, capture_output=True, text=True).stdout


def keys(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Gives this process's programs a key. Returns the options of a server with a key and a list of keys."""
    server_key, key, friends = folder / "server-key", folder / "key", folder / "friends"
    made("keygen", server_key)
    friends.write_text(made("keygen", key))
    friends.chmod(0o644)
    monkeypatch.setenv("OUTBOARD_KEY_FILE", str(key))
    return ["--tls", "--tls-key", str(server_key), "--authorized", str(friends)]


def certificates(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Gives this process's programs a certificate. Returns the options of a server with one."""
    authority = Authority(folder)
    server, server_key = authority.sign("server", "serverAuth", "IP:127.0.0.1")
    certificate, key = authority.sign("program", "clientAuth")
    monkeypatch.setenv("OUTBOARD_CA", str(authority.file))
    monkeypatch.setenv("OUTBOARD_CERTIFICATE", str(certificate))
    monkeypatch.setenv("OUTBOARD_CERTIFICATE_KEY", str(key))
    return ["--certificate", str(server), "--key", str(server_key), "--client-ca", str(authority.file)]


@pytest.fixture(params=["keys, spare", "keys, no spare", "certificates, spare"])
def guarded(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that knows this process's programs by keys or certificates, and by tokens."""
    token, tokens = tmp_path / "token", tmp_path / "tokens"
    token.write_text(made("token", "create", "tests", "--tokens", tokens))
    token.chmod(0o600)
    monkeypatch.setenv("OUTBOARD_TOKEN_FILE", str(token))
    # Data connections and heartbeats, soon and on any machine.
    monkeypatch.setenv("OUTBOARD_DATA_CONNECTIONS", "2")
    monkeypatch.setenv("OUTBOARD_HEARTBEAT", "0.3")
    known, spare = request.param.split(", ")
    options = {"keys": keys, "certificates": certificates}[known](tmp_path, monkeypatch)
    options += ["--tokens", str(tokens), "--spare", "1" if spare == "spare" else "0"]
    server = start_server(tmp_path, *options)
    yield server
    assert server.stop() == 0
    assert "panicked" not in server.log.read_text()


def test_a_programs_calls_and_copies(guarded: Server, tmp_path: Path) -> None:
    stats = tmp_path / "stats.json"
    program = [sys.executable, TEST_PROGRAMS / "long_copies.py"]
    done = guarded.run("tcps", *program, env={"OUTBOARD_STATS": str(stats)})
    assert done.returncode == 0, done.stdout + done.stderr + guarded.log.read_text()
    if os.environ.get("SHOW"):
        print(stats.read_text())
    assert "data connections are open" in guarded.log.read_text() or '"data_connections"' in stats.read_text()


def test_ordered_and_threaded_work(guarded: Server) -> None:
    for name, *arguments in (["many_threads.py"], ["mixed_calls.py", "0.5"]):
        done = guarded.run("tcps", sys.executable, TEST_PROGRAMS / name, *arguments)
        assert done.returncode == 0, f"{name}:\n{done.stdout}{done.stderr}{guarded.log.read_text()}"
    assert "bytes right" in done.stdout

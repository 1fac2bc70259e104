"""A pool's manager that encrypts requests, known by its key or by a certificate."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from authority import Authority
from harness import OUTBOARD
from test_pool import GPUS_A_BOX, Pool, until


def outboard(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([OUTBOARD, *command], capture_output=True, text=True, timeout=30)


def key(folder: Path, name: str) -> tuple[Path, str]:
    made = outboard("keygen", folder / name)
    assert made.returncode == 0, made.stderr
    return folder / name, made.stdout.strip()


@pytest.fixture
def by_key(tmp_path: Path) -> Iterator[Pool]:
    pool = Pool(tmp_path, "--tls", "--tls-key", str(key(tmp_path, "key")[0]))
    yield pool
    pool.stop()


class Wire:
    """Passes connections on to a manager, and keeps the bytes."""

    def __init__(self, port: int) -> None:
        self.seen, self.port = bytearray(), port
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            near, _ = self.listener.accept()
            far = socket.create_connection(("127.0.0.1", self.port))
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self.carry, args=ends, daemon=True).start()

    def carry(self, come: socket.socket, go: socket.socket) -> None:
        with suppress(OSError):
            while piece := come.recv(65536):
                self.seen += piece
                go.sendall(piece)
            go.shutdown(socket.SHUT_WR)


def test_a_pool_works_encrypted_and_nothing_is_readable_on_the_way(by_key: Pool, tmp_path: Path) -> None:
    direct = by_key.url
    address, pin = direct.removeprefix("https://127.0.0.1:").split("?")
    wire = Wire(int(address))
    by_key.url = f"https://127.0.0.1:{wire.listener.getsockname()[1]}?{pin}"
    by_key.start_box("a")
    until(lambda: by_key.free() == GPUS_A_BOX)
    token = tmp_path / "token"
    token.write_text(outboard("token", "create", "alice", "--tokens", tmp_path / "tokens").stdout)
    token.chmod(0o600)
    program = by_key.run("--pool-token-file", str(token))
    assert len(program.gpus()) == 1
    program.finish()
    assert program.process.returncode == 0
    until(lambda: by_key.free() == GPUS_A_BOX)
    assert len(wire.seen) > 1000
    for text in (b"Bearer", b"HTTP", b"gpus", token.read_bytes().strip()):
        assert text not in wire.seen
    other = key(tmp_path, "other")[1]
    said = outboard("pool", "list", "--pool", f"{by_key.url.split('?')[0]}?fingerprint={other}")
    assert said.returncode == 1 and "another key" in said.stderr


def test_who_does_not_encrypt_is_told_the_scheme(by_key: Pool, tmp_path: Path) -> None:
    bare = by_key.url.split("?")[0]
    said = outboard("pool", "list", "--pool", bare.replace("https", "http"))
    assert said.returncode == 1 and "begins with https://" in said.stderr
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(bare.replace("https", "http") + "/v1/pool", timeout=10)
    authority = Authority(tmp_path)
    said = outboard("pool", "list", "--pool", bare, "--pool-ca", authority.file)
    assert said.returncode == 1 and "has a key and no certificate" in said.stderr
    (tmp_path / "plain").mkdir()
    plain = Pool(tmp_path / "plain")
    said = outboard("pool", "list", "--pool", plain.url.replace("http", "https"), "--pool-ca", authority.file)
    assert said.returncode == 1 and "has an address of http://" in said.stderr
    plain.stop()
    for noise in (b"\x16\x03\x01\xff\xff\x01", b"\x16" * 70_000):
        with socket.create_connection(("127.0.0.1", int(bare.rsplit(":", 1)[1])), timeout=10) as stranger:
            stranger.sendall(noise)
    assert by_key.free() == 0


def test_a_manager_is_known_by_its_certificate_which_is_renewed(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, private = authority.sign("manager", "serverAuth", "IP:127.0.0.1")
    pool = Pool(tmp_path, "--certificate", str(certificate), "--key", str(private))
    ask = ("pool", "list", "--json", "--pool", pool.url)
    said = outboard(*ask, "--pool-ca", authority.file)
    assert said.returncode == 0 and json.loads(said.stdout)["gpus"] == [], said.stderr
    said = outboard("pool", "list", "--pool", pool.url.replace("127.0.0.1", "localhost"), "--pool-ca", authority.file)
    assert said.returncode == 1 and "is for another name: not for localhost" in said.stderr
    (tmp_path / "other").mkdir()
    said = outboard(*ask, "--pool-ca", Authority(tmp_path / "other").file)
    assert said.returncode == 1 and "no authority that is trusted here" in said.stderr
    context = ssl.create_default_context(cafile=str(authority.file))
    with urllib.request.urlopen(f"{pool.url}/v1/pool", timeout=10, context=context) as answer:
        assert json.load(answer)["gpus"] == []
    at = ("127.0.0.1", int(pool.url.rsplit(":", 1)[1]))
    before = ssl.get_server_certificate(at)
    authority.sign("manager", "serverAuth", "IP:127.0.0.1")
    time.sleep(1.1)
    assert ssl.get_server_certificate(at) not in (before, "")
    pool.stop()


def test_beyond_this_machine_a_manager_encrypts_and_asks_for_tokens(tmp_path: Path) -> None:
    serve = ("pool", "serve", "--store", tmp_path / "pool", "--listen", "0.0.0.0:0")
    said = outboard(*serve)
    assert said.returncode == 1 and "add --tls or --certificate" in said.stderr
    tls = ("--tls", "--tls-key", key(tmp_path, "key")[0])
    said = outboard(*serve, *tls)
    assert said.returncode == 1 and "name who may by --tokens" in said.stderr
    said = outboard(*serve, *tls[1:])
    assert said.returncode == 1 and "add --tls" in said.stderr

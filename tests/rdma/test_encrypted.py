"""RDMA set up over an encrypted connection: keys and tokens decide who is served, and nothing of the setup is read on
the way. What the adapters send is open, as ever."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cable import ports_of
from serving import OUTBOARD, PROGRAM_S_MAX, Serving, serving

from harness import TEST_PROGRAMS
from rdma_guest.guest import Done, Guest

# Times that a program is started. On an emulated processor of a busy host a handshake may take longer than it may.
TRIES = 5
TOO_SLOW = "is the machine up"
# The first bytes of each side's setup.
SETUP = "OUTBRDMA"
# Copies what passes between programs of this guest, and says whether it contained some bytes.
WATCH = """
import pathlib, select, socket, sys
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.bind(("lo", 0))
print("watching", flush=True)
seen, frames, end = 0, 0, pathlib.Path(sys.argv[2])
while not end.exists():
    while select.select([wire], [], [], 0.1)[0]:
        frame = wire.recv(65536)
        seen, frames = seen + frame.count(sys.argv[1].encode()), frames + 1
print("seen" if seen else "not seen", "in some" if frames else "in none", flush=True)
"""


def made(*command: str | Path) -> str:
    return subprocess.run([OUTBOARD, *command], check=True, capture_output=True, text=True).stdout


class Keys:
    """Keys, tokens and lists in a folder that the guest sees as well."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fingerprint = made("keygen", folder / "server").strip()
        (folder / "friends").write_text(made("keygen", folder / "friend"))
        made("keygen", folder / "stranger")
        (folder / "token").write_text(made("token", "create", "tests", "--tokens", folder / "tokens"))
        (folder / "token").chmod(0o600)

    def options(self, spare: int) -> list[str | Path]:
        known: list[str | Path] = ["--tls", "--tls-key", self.folder / "server"]
        known += ["--authorized", self.folder / "friends", "--tokens", self.folder / "tokens"]
        return [*known, "--spare", str(spare), "--greet-within", "60s"]

    def url(self, gpu: Serving, fingerprint: str = "") -> str:
        return f"{gpu.url}&fingerprint={fingerprint or self.fingerprint}"

    def run(self, gpu: Serving, *program: str | Path, key: str = "friend", token: str = "token", url: str = "") -> Done:
        environment = [
            f"OUTBOARD_KEY_FILE={self.folder / key}",
            f"OUTBOARD_TOKEN_FILE={self.folder / token if token else ''}",
        ]
        command = ["env", *environment, OUTBOARD, "run", "--gpu", url or self.url(gpu), "--", *program]
        for _ in range(TRIES):
            done = gpu.client.guest.run(shlex.join(map(str, command)), timeout_s=PROGRAM_S_MAX)
            if TOO_SLOW not in done.output:
                break
        return done


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


@contextmanager
def watching(guest: Guest) -> Iterator[list[str]]:
    """Fills the list with what the watcher says at its end."""
    end, said = guest.shared / "watched", [""]
    end.unlink(missing_ok=True)
    watcher = guest.start([sys.executable, "-c", WATCH, SETUP, end])
    watcher.wait_for("watching")
    yield said
    end.touch()
    said[0] = watcher.wait().output


def test_keys_and_tokens_decide_who_is_served(guest: Guest, keys: Keys) -> None:
    with serving(*ports_of(guest), more=keys.options(0)) as gpu:
        assert gpu.address.startswith("rdmas://")
        assert f"fingerprint={keys.fingerprint}" in gpu.command.output()
        other = made("keygen", keys.folder / "other").strip()
        plain = gpu.url.replace("rdmas", "rdma")
        for done, why in [
            (keys.run(gpu, "true", key="stranger"), "is not authorized"),
            (keys.run(gpu, "true", token=""), "token"),
            (keys.run(gpu, "true", url=keys.url(gpu, other)), "another key"),
            (keys.run(gpu, "true", url=plain), "rdmas:// address"),
            (keys.run(gpu, "true", url=keys.url(gpu).replace("rdmas", "tcps").replace("device=rxe1&", "")), "rdma"),
        ]:
            assert done.status == 1 and why in done.output, done.output
        done = keys.run(gpu, sys.executable, TEST_PROGRAMS / "steady_state.py", "2", "4")
        assert done.status == 0, done.output + gpu.command.output()


def test_a_spare_worker_takes_an_encrypted_setup_over(guest: Guest, keys: Keys) -> None:
    with serving(*ports_of(guest), more=keys.options(1)) as gpu:
        done = keys.run(gpu, sys.executable, TEST_PROGRAMS / "long_copies.py", "plain")
        assert done.status == 0, done.output + gpu.command.output()


def test_nobody_on_the_way_reads_the_setup(guest: Guest, keys: Keys) -> None:
    with serving(*ports_of(guest)) as gpu, watching(guest) as said:
        assert gpu.run("true").status == 0
    assert said == ["watching\nseen in some\n"], "the watcher sees nothing, or an open setup is not what it was"
    with serving(*ports_of(guest), more=keys.options(0)) as gpu, watching(guest) as said:
        done = keys.run(gpu, "true")
        assert done.status == 0, done.output
    assert said == ["watching\nnot seen in some\n"]

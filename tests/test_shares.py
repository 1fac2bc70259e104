"""Shares of tenants: what one uses up is refused to all its programs, and to nobody else's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest

from authority import Authority
from harness import OUTBOARD, TEST_PROGRAMS, Server, start_server

GROUP = 47_999
ALICE, BOB = 47_001, 47_002
MIB = 1 << 20
SMALL = "memory=100MiB,host-memory=96MiB"
REFUSED = "CUDA_ERROR_OUT_OF_MEMORY"
# Capabilities by which another user runs a Python interpreter in root's home.
CAPABILITIES = "+dac_read_search,+dac_override"


class Program:
    """A program that holds memory."""

    def __init__(self, url: str, user: int | None = None, token: Path | None = None, **more: str) -> None:
        argv: list[str | Path] = [
            OUTBOARD,
            "run",
            "--gpu",
            url,
            "--",
            sys.executable,
            TEST_PROGRAMS / "holds_memory.py",
        ]
        if user is not None:
            who = ["--reuid", str(user), "--regid", str(GROUP), "--clear-groups"]
            argv = ["setpriv", *who, f"--inh-caps={CAPABILITIES}", f"--ambient-caps={CAPABILITIES}", *argv]
        env = {**os.environ, "OUTBOARD_SERVER_UID": "0", "OUTBOARD_TOKEN_FILE": str(token or ""), **more}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(argv, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline()

    def __enter__(self) -> Self:
        assert self.said == "ready\n", self.process.communicate()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()

    def error(self) -> str:
        assert self.said == "", "the program was let in"
        return self.process.communicate()[1]

    def does(self, command: str) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        assert answer, self.process.communicate()[1]
        return answer


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users reach."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def tokens(folder: Path) -> dict[str, Path]:
    made = {}
    for name in ("alice", "bob"):
        make = [OUTBOARD, "token", "create", name, "--tokens", folder / "tokens"]
        made[name] = folder / name
        made[name].write_text(subprocess.run(make, check=True, capture_output=True, text=True).stdout)
        made[name].chmod(0o600)
    return made


def share(*shares: str) -> list[str]:
    return [part for one in shares for part in ("--share", one)]


def metrics_of(server: Server) -> str:
    """Returns the address of a server's metrics, which it prints last."""
    assert server.process.stdout is not None
    return server.process.stdout.readline().removeprefix("metrics at ").strip()


def ended(server: Server) -> None:
    assert server.stop() == 0
    assert "panicked" not in server.log.read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root runs programs as two other users")
@pytest.mark.parametrize("spare", ["0", "1"])
def test_two_users_have_a_share_each(folder: Path, spare: str) -> None:
    users = ["--allow-uid", str(ALICE), "--allow-uid", str(BOB), "--socket-group", str(GROUP)]
    server = start_server(folder, *users, *share(SMALL), "--spare", spare)
    url = server.urls["shm"]
    with ExitStack() as stack:
        one, two, bobs = (stack.enter_context(Program(url, user)) for user in (ALICE, ALICE, BOB))
        for way in ("device", "small", "created", "pool"):
            assert one.does(f"{way} 64") == "CUDA_SUCCESS"
            # The call itself fails, and nothing else does.
            assert two.does(f"{way} 64") == REFUSED, way
            assert two.does(f"{way} 8") == "CUDA_SUCCESS", way
            assert two.does("works") == "works"
            assert bobs.does(f"{way} 80") == "CUDA_SUCCESS", way
            # What the first gives back is the second's at once.
            assert one.does("free") == "CUDA_SUCCESS"
            assert two.does(f"{way} 64") == "CUDA_SUCCESS"
            assert one.does(f"{way} 64") == REFUSED
            assert [program.does("free") for program in (two, bobs)] == ["CUDA_SUCCESS"] * 2
    ended(server)


def test_two_tokens_have_a_share_each(folder: Path, tokens: dict[str, Path]) -> None:
    audit = folder / "audit"
    options = ["--tokens", str(folder / "tokens"), "--audit", str(audit), "--metrics", "0"]
    limits = share(f"sessions=2,queries=4,{SMALL}", "token:bob:sessions=3", "server:memory=160MiB")
    server = start_server(folder, *options, *limits)
    metrics, url = metrics_of(server), server.urls["tcp"]
    with ExitStack() as stack:
        one, two, bobs = (stack.enter_context(Program(url, token=tokens[name])) for name in ("alice", "alice", "bob"))
        assert "token:alice has 2 sessions, and may have 2" in Program(url, token=tokens["alice"]).error()
        stack.enter_context(Program(url, token=tokens["bob"]))
        # Memory of the server's machine, for pages that kernels would read.
        assert one.does("host 32") == "CUDA_SUCCESS"
        assert two.does("host 32") == REFUSED
        assert two.does("works") == "works"
        assert bobs.does("host 32") == "CUDA_SUCCESS"
        assert one.does("free") == "CUDA_SUCCESS"
        assert two.does("host 32") == "CUDA_SUCCESS"
        # All programs together.
        assert [program.does("device 80") for program in (one, bobs)] == ["CUDA_SUCCESS"] * 2
        assert two.does("device 8") == REFUSED
        assert bobs.does("device 8") == REFUSED
        # A worker that is killed holds nothing any more.
        sessions = json.loads(subprocess.check_output([OUTBOARD, "top", server.urls["shm"], "--json"]))["sessions"]
        [worker] = [s["worker_pid"] for s in sessions if s["pid"] == one.process.pid]
        os.kill(worker, 9)
        one.process.communicate()
        while str(worker) in subprocess.check_output([OUTBOARD, "top", server.urls["shm"], "--json"], text=True):
            pass
        assert two.does("device 80") == "CUDA_SUCCESS"
        read = urllib.request.urlopen(metrics, timeout=20).read().decode()
        assert 'outboard_tenant_refusals_total{tenant="token:alice"} 1' in read.splitlines(), read
        assert 'outboard_tenant_sessions{tenant="token:bob"} 2' in read.splitlines()
        assert 'outboard_refusals_total{reason="share"} 1' in read.splitlines()
    ended(server)
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    [refusal] = [line for line in lines if line["event"] == "refusal"]
    assert (refusal["reason"], refusal["tenant"]) == ("share", "token:alice")
    tenants = [line["tenant"] for line in lines if line["event"] == "session"]
    assert sorted(tenants) == ["token:alice"] * 2 + ["token:bob"] * 2
    refused = {
        line["tenant"]: line["memory_refusals"] for line in lines if line["event"] == "session" and line["session"]
    }
    assert refused["token:alice"] > 0 and refused["token:bob"] > 0


def test_two_certificates_have_a_share_each(folder: Path) -> None:
    authority, audit = Authority(folder), folder / "audit"
    server_files = authority.sign("server", "serverAuth", "IP:127.0.0.1")
    options = ["--certificate", str(server_files[0]), "--key", str(server_files[1])]
    options += ["--client-ca", str(authority.file), "--audit", str(audit)]
    server = start_server(folder, *options, *share(f"sessions=2,{SMALL}", "cert:bob@example.org:sessions=1"))
    url = server.urls["tcps"]
    shown = {}
    for name, names in (("alice", ""), ("bob", "email:bob@example.org")):
        certificate, key = authority.sign(name, "clientAuth", names)
        shown[name] = {"OUTBOARD_CERTIFICATE": str(certificate), "OUTBOARD_CERTIFICATE_KEY": str(key)}
        shown[name]["OUTBOARD_CA"] = str(authority.file)
    with ExitStack() as stack:
        one, two, bobs = (stack.enter_context(Program(url, **shown[name])) for name in ("alice", "alice", "bob"))
        said = Program(url, **shown["bob"]).error()
        assert "cert:bob@example.org has 1 sessions, and may have 1" in said, said
        assert one.does("device 64") == "CUDA_SUCCESS"
        assert two.does("device 64") == REFUSED
        assert bobs.does("device 80") == "CUDA_SUCCESS"
    ended(server)
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    tenants = [line["tenant"] for line in lines if line["event"] == "session"]
    assert sorted(tenants) == ["cert:alice"] * 2 + ["cert:bob@example.org"]


def test_connections_are_counted_by_the_second(folder: Path, tokens: dict[str, Path]) -> None:
    limits = share("token:alice:connections=1")
    server = start_server(folder, "--tokens", str(folder / "tokens"), *limits)
    url = server.urls["tcp"]

    def ask(name: str) -> subprocess.CompletedProcess[str]:
        argv = [OUTBOARD, "top", url, "--json"]
        env = {**os.environ, "OUTBOARD_TOKEN_FILE": str(tokens[name])}
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=20)

    alices = [
        subprocess.Popen(
            [OUTBOARD, "top", url, "--json"],
            stdout=-3,
            stderr=-1,
            text=True,
            env={**os.environ, "OUTBOARD_TOKEN_FILE": str(tokens["alice"])},
        )
        for _ in range(8)
    ]
    said = [program.communicate()[1] for program in alices]
    refused = [text for text in said if "token:alice may make 1 connections a second" in text]
    assert refused and len(refused) < len(said), said
    assert ask("bob").returncode == 0
    ended(server)


LOADS = r"""
import sys
from ctypes import byref, c_void_p
from cuda import must, primary_context

primary_context()
for seed in sys.argv[1:]:
    text = f".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() {{ ret; }}\n// {seed} " + "x" * 100_000
    must("cuModuleLoadData", byref(c_void_p()), text.encode())
"""


def test_the_disk_of_a_tenant(folder: Path, tokens: dict[str, Path]) -> None:
    server = start_server(folder, "--tokens", str(folder / "tokens"), *share("disk=250KiB"))

    def kept() -> dict[str, list[int]]:
        files: dict[str, list[int]] = {}
        for path in (folder / "cache").iterdir():
            files.setdefault(path.name.partition("-")[0], []).append(path.stat().st_size)
        return files

    def loads(name: str, *seeds: str) -> None:
        env = {"OUTBOARD_TOKEN_FILE": str(tokens[name]), "PYTHONPATH": str(TEST_PROGRAMS)}
        done = server.run("tcp", sys.executable, "-c", LOADS, *seeds, env=env)
        assert done.returncode == 0, done.stderr

    loads("bob", "1")
    [(bob, bobs)] = kept().items()
    for seeds in ("1", "2"), ("3", "4", "5"):
        loads("alice", *seeds)
        files = kept()
        assert files.pop(bob) == bobs
        [alices] = files.values()
        assert sum(alices) <= 250 << 10 and sum(size > 100_000 for size in alices) == 2, files
    ended(server)


def test_a_weight_that_nothing_keeps_is_refused() -> None:
    doctor = subprocess.run([OUTBOARD, "doctor", "--json"], capture_output=True, text=True, timeout=60)
    [groups] = [one for one in json.loads(doctor.stdout) if one["what"] == "control groups"]
    if groups["verdict"] == "ok":
        pytest.skip("NOT RUN: there are control groups here, and the weight is kept")
    argv = [OUTBOARD, "serve", "--no-config", "--device", "soft", "--listen", "tcp://127.0.0.1:0"]
    for more in ([], ["--check-config"]):
        done = subprocess.run([*argv, *share("compute=200"), *more], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and "--share compute= cannot be kept" in done.stderr, done.stderr
        assert groups["found"].rpartition(": ")[2] in done.stderr, (groups, done.stderr)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("cores=3", "there is no limit"),
        ("alice:sessions=3", "is no tenant"),
        ("server:sessions=3", "a limit of tenants"),
    ],
)
def test_a_wrong_share_is_refused(wrong: str, why: str) -> None:
    argv = [str(OUTBOARD), "serve", "--no-config", "--check-config", "--device", "soft", "--share", wrong]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    assert done.returncode == 2 and why in done.stderr, done.stderr


def test_shares_are_settings(tmp_path: Path) -> None:
    settings = tmp_path / "serve.toml"
    settings.write_text('share = ["sessions=4", "token:alice:memory=1GiB"]\n')
    argv = [str(OUTBOARD), "serve", "--config", str(settings), "--check-config", "--device", "soft"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=20)
    assert "share of each tenant: sessions=4\nshare of token:alice: memory=1073741824\n" in done.stdout

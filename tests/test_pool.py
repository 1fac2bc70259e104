"""A pool: its manager, two boxes with software GPUs, programs that lease them, and what happens when one dies."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import OUTBOARD, PROGRAM_S_MAX, START_S_MAX, TEST_PROGRAMS

PROGRAM = [sys.executable, str(TEST_PROGRAMS / "pool_checksums.py")]
# GPUs of a killed client are free within this time; the rest is room for a loaded machine.
FREE_S_MAX = 1 + 3
GPUS_A_BOX = 2


class Pool:
    """A manager and its boxes, each a process that can be killed and started again."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.options = folder, options
        self.boxes: dict[str, subprocess.Popen[str]] = {}
        self.addresses: dict[str, str] = {}
        self.manager = self.start_manager("127.0.0.1:0")

    def start_manager(self, address: str) -> subprocess.Popen[str]:
        argv = [OUTBOARD, "pool", "serve", "--store", self.folder / "pool", "--listen", address]
        argv += self.options
        log = (self.folder / "manager.log").open("a")
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=log, text=True)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("manager at "), (self.folder / "manager.log").read_text()
        self.url = line.removeprefix("manager at ").strip()
        return process

    def start_box(self, name: str) -> None:
        argv = [OUTBOARD, "serve", "--no-config", "--device", "soft", "--devices", str(GPUS_A_BOX), "--no-cache"]
        argv += ["--listen", self.addresses.get(name, "tcp://127.0.0.1:0"), "--pool", self.url, "--pool-name", name]
        argv += ["--pool-state", self.folder / name, *self.box_options(name)]
        log = (self.folder / f"{name}.log").open("a")
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=log, text=True)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on "), (self.folder / f"{name}.log").read_text()
        self.boxes[name], self.addresses[name] = process, line.removeprefix("listening on ").strip()

    def box_options(self, name: str) -> list[str]:
        """Further options of a box, for those who need some."""
        return []

    def ask(self, *command: str) -> Any:
        argv = [OUTBOARD, "pool", *command, "--pool", self.url, "--json"]
        return json.loads(subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30).stdout)

    def free(self) -> int:
        return sum(gpu["state"] == "free" for gpu in self.ask("list")["gpus"])

    def run(self, *options: str) -> Program:
        return Program(self, options)

    def stop(self) -> None:
        for process in [*self.boxes.values(), self.manager]:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
        for process in [*self.boxes.values(), self.manager]:
            assert process.wait(20) == 0
        for log in self.folder.glob("*.log"):
            assert "panicked" not in log.read_text(), log.read_text()


class Program:
    """A program that computes checksums on the GPUs of its lease."""

    def __init__(self, pool: Pool, options: tuple[str, ...]) -> None:
        argv = [OUTBOARD, "run", *options, "--", *PROGRAM]
        if "--gpu" not in options:
            argv[2:2] = ["--pool", pool.url]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(argv, text=True, **pipes)

    def gpus(self) -> list[str]:
        assert self.process.stdout is not None
        limit = threading.Timer(PROGRAM_S_MAX, self.process.kill)
        limit.start()
        line = self.process.stdout.readline().strip()
        limit.cancel()
        if not line.startswith("GPU-"):
            # What it has said is shown without waiting for its end.
            self.process.kill()
            raise AssertionError(line + self.process.stdout.read())
        return line.split(",")

    def finish(self) -> str:
        said, _ = self.process.communicate("end\n", timeout=60)
        return said

    def outcome(self, timeout: float = 60) -> tuple[int, str]:
        """Waits for a program that ends by itself."""
        code = self.process.wait(timeout)
        assert self.process.stdout is not None
        return code, self.process.stdout.read()

    def lost(self) -> int:
        """Returns the CUDA error that ended the program; what is said of its lease stands before or after it."""
        code, said = self.outcome()
        errors = [line.removeprefix("lost ") for line in said.splitlines() if line.startswith("lost ")]
        assert code == 3 and len(errors) == 1, said
        return int(errors[0])


def until(what: Callable[[], bool], seconds: float = START_S_MAX) -> float:
    start = time.monotonic()
    while not what():
        assert time.monotonic() < start + seconds, f"not within {seconds} s"
        time.sleep(0.02)
    return time.monotonic() - start


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    pool = Pool(tmp_path_factory.mktemp("pool"))
    for name in ("a", "b"):
        pool.start_box(name)
    yield pool
    pool.stop()


@pytest.fixture
def pool(made: Pool) -> Pool:
    """All GPUs are free before each test."""
    until(lambda: made.free() == 2 * GPUS_A_BOX)
    return made


def test_programs_see_their_gpus_alone_and_give_them_back(pool: Pool) -> None:
    first = pool.run("--gpus", "3", "--model", "software")
    theirs = first.gpus()
    second = pool.run()
    ours = second.gpus()
    assert len(theirs) == 3 and len(ours) == 1 and not set(theirs) & set(ours)
    view = pool.ask("list")
    leases = {lease["lease"]: set(lease["gpus"]) for lease in view["leases"]}
    assert sorted(map(len, leases.values())) == [1, 3]
    assert set(theirs) in leases.values() and set(ours) in leases.values()
    until(lambda: all(e["memory_base"] for e in pool.ask("tables")["hosts"][0]["entries"]))
    tables = pool.ask("tables")
    entries = tables["hosts"][0]["entries"]
    assert [entry["entry"] for entry in entries] == [0, 1, 2, 3] and all(entry["used"] for entry in entries)
    nodes = {table["node"]: table for table in tables["boxes"]}
    for entry in entries:
        of = [e for e in nodes[entry["box"]]["entries"] if e["slot"] == entry["slot"]]
        assert [(e["valid"], e["used"], e["host"], e["path"]) for e in of] == [
            (True, True, tables["hosts"][0]["node"], entry["path"])
        ]
        assert entry["memory_limit"] > entry["memory_base"]
    refused = pool.run("--no-wait")
    code, said = refused.outcome()
    assert code == 1 and "no such GPU is free now" in said, said
    assert first.finish().startswith("right") and second.finish().startswith("right")
    until(lambda: pool.free() == 4)
    assert not pool.ask("tables")["hosts"][0]["entries"]


def test_a_claim_waits_for_gpus(pool: Pool) -> None:
    first = pool.run("--gpus", "4")
    first.gpus()
    second = pool.run("--gpus", "2", "--same", "box")
    until(lambda: len(pool.ask("list")["queue"]) == 1)
    assert first.finish().startswith("right")
    assert len(second.gpus()) == 2
    # The machine of both is one host, and the box of a lease for one box is one.
    assert len(pool.ask("list")["leases"][0]["boxes"]) == 1
    assert second.finish().startswith("right")


def test_gpus_of_a_killed_client_are_free_at_once(pool: Pool) -> None:
    program = pool.run("--gpus", "4", "--term", "1h")
    program.gpus()
    program.process.kill()
    until(lambda: pool.free() == 4, FREE_S_MAX)
    program.process.communicate()


def test_a_killed_manager_is_not_noticed(pool: Pool) -> None:
    program = pool.run("--gpus", "2", "--term", "5s")
    gpus = program.gpus()
    pool.manager.kill()
    pool.manager.wait()
    time.sleep(0.5)
    pool.manager = pool.start_manager(pool.url.removeprefix("http://"))
    view = pool.ask("list")
    assert [set(lease["gpus"]) for lease in view["leases"]] == [set(gpus)]
    # Longer than the term: the new manager renews the lease.
    time.sleep(5)
    assert program.process.poll() is None
    said = program.finish()
    assert said.startswith("right"), said


def test_a_killed_box_ends_its_programs_and_comes_back(pool: Pool) -> None:
    program = pool.run("--gpus", "4")
    gpus = program.gpus()
    pool.boxes["a"].kill()
    pool.boxes["a"].wait()
    code, said = program.outcome()
    assert code == 3 and "lost" in said, said
    pool.start_box("a")
    until(lambda: pool.free() == 4)
    again = pool.run("--gpus", "4")
    assert set(again.gpus()) == set(gpus)
    assert again.finish().startswith("right")


def grants(pool: Pool, name: str, term: str = "1h") -> tuple[int, Path, str]:
    """Claims a GPU. Returns the lease, the file of its grant, and the address of its box."""
    file = pool.folder / f"grants-{name}"
    granted = pool.ask("claim", "--term", term, "--grants", str(file))
    return granted["lease"], file, granted["boxes"][0]["url"]


def refused(pool: Pool, url: str, file: Path | None, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("OUTBOARD_GRANT_FILE", str(file) if file else "")
    code, said = pool.run("--gpu", url).outcome()
    assert code != 0, said
    return said


def test_grants_that_are_wrong_give_nothing(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    url = pool.addresses["a"]
    assert "is part of a pool" in refused(pool, url, None, monkeypatch)
    lease, file, url = grants(pool, "good")
    text = file.read_text()
    # It is good now.
    monkeypatch.setenv("OUTBOARD_GRANT_FILE", str(file))
    program = pool.run("--gpu", url)
    assert len(program.gpus()) == 1
    assert program.finish().startswith("right")
    forged = pool.folder / "forged"
    last = text.strip()[-1]
    forged.write_text(text.strip()[:-1] + ("0" if last != "0" else "1") + "\n")
    forged.chmod(0o600)
    assert "not signed" in refused(pool, url, forged, monkeypatch)
    other = next(address for address in pool.addresses.values() if address != url)
    foreign = pool.folder / "foreign"
    foreign.write_text(text.replace(url, other))
    foreign.chmod(0o600)
    assert "the grant is for the box" in refused(pool, other, foreign, monkeypatch)
    pool.ask("release", str(lease))
    until(lambda: pool.free() == 4, FREE_S_MAX)
    # Replayed: its time is not over, but the GPU has been taken back.
    assert "has been given to others since" in refused(pool, url, file, monkeypatch)
    short, file, url = grants(pool, "short", "1s")
    time.sleep(1.2)
    said = refused(pool, url, file, monkeypatch)
    assert "the lease is over" in said or "given to others since" in said, said
    until(lambda: pool.free() == 4)
    assert short > lease


def test_a_session_ends_with_its_lease_although_its_server_is_stopped(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, file, url = grants(pool, "stopped", "4s")
    monkeypatch.setenv("OUTBOARD_GRANT_FILE", str(file))
    program = pool.run("--gpu", url)
    program.gpus()
    name = next(name for name, address in pool.addresses.items() if address == url)
    pool.boxes[name].send_signal(signal.SIGSTOP)
    try:
        code, said = program.outcome(10)
        assert code == 3 and "lost" in said, said
    finally:
        pool.boxes[name].send_signal(signal.SIGCONT)
    until(lambda: pool.free() == 4)


def test_bad_claims_are_refused(pool: Pool) -> None:
    for gpus, code, text in (
        ("0", 2, "invalid value"),
        ("-1", 2, "unexpected argument"),
        ("5", 1, "5 GPUs are asked for, and there are 4"),
        ("100000", 2, "invalid value"),
    ):
        argv = [OUTBOARD, "pool", "claim", "--pool", pool.url, "--gpus", gpus]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
        assert (done.returncode, text in done.stderr) == (code, True), done.stderr
    argv = [OUTBOARD, "pool", "claim", "--pool", pool.url, "--same", "nvlink", "--gpus", "2"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and "in one nvlink are asked for, and there are 1" in done.stderr
    assert pool.free() == 4


def post(pool: Pool, path: str, document: Any) -> tuple[int, str]:
    request = urllib.request.Request(pool.url + path, json.dumps(document).encode(), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_boxes_and_requests_that_are_wrong_are_refused(pool: Pool) -> None:
    gpu = pool.ask("list")["gpus"][0]
    facts = {
        key: gpu[key] for key in ("uuid", "model", "memory_bytes", "capability", "pci", "nvlink", "bridge", "proxy")
    }
    join = {"name": "c", "identity": "c", "instance": "c", "url": "tcp://x:1", "gpus": [facts]}
    code, said = post(pool, "/v1/boxes/join", join)
    assert code == 409 and f"is a GPU of the box {gpu['box']}" in said, said
    code, said = post(pool, "/v1/boxes/join", {**join, "name": "a", "gpus": []})
    assert code == 409 and "another box of the name" in said, said
    for path, document, expected in (
        ("/v1/boxes/join", {"name": 1}, 400),
        ("/v1/claims", [], 400),
        ("/v1/leases/999999/hold", {}, 404),
        ("/v1/leases/x/hold", {}, 400),
        ("/v1/nothing", {}, 404),
        ("/v1/boxes/none/drain", {"reason": "x"}, 404),
    ):
        assert post(pool, path, document)[0] == expected, path
    assert pool.free() == 4


def test_a_drained_box_gives_out_nothing(pool: Pool) -> None:
    drain = [OUTBOARD, "pool", "drain", "--pool", pool.url, "a", "--reason", "repair"]
    said = subprocess.run([*drain, "--json"], check=True, capture_output=True, text=True).stdout
    assert json.loads(said) == {"box": "a", "drained": True, "reason": "repair"} and pool.free() == 2
    program = pool.run("--gpus", "2")
    program.gpus()
    assert pool.ask("list")["leases"][0]["boxes"] == ["b"]
    assert program.finish().startswith("right")
    assert not pool.ask("undrain", "a")["drained"]
    until(lambda: pool.free() == 4)


def test_a_store_that_is_cut_or_lost_is_refused(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    pool.stop()
    store, key = tmp_path / "pool", tmp_path / "pool.key"
    whole = store.read_bytes()
    argv = [OUTBOARD, "pool", "serve", "--store", str(store), "--listen", "127.0.0.1:0"]
    for size, said in [(len(whole) // 2, "the store is damaged"), (5_000, "damaged"), (0, "missing or empty")]:
        store.write_bytes(whole[:size])
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
        assert done.returncode == 1 and said in done.stderr and "panicked" not in done.stderr, done.stderr
    store.unlink()
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and "put the store back" in done.stderr and not store.exists(), done.stderr
    # The store without its key gets no new one.
    store.write_bytes(whole)
    signer = key.read_bytes()
    key.unlink()
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and "another key" in done.stderr and not key.exists(), done.stderr
    key.write_bytes(signer)
    key.chmod(0o600)
    pool.manager = pool.start_manager("127.0.0.1:0")
    pool.stop()


def test_tokens_say_who_may_do_what(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    for name in ("alice", "box.a"):
        argv = [OUTBOARD, "token", "create", name, "--tokens", tokens]
        (tmp_path / name).write_text(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
        (tmp_path / name).chmod(0o600)
    argv = [OUTBOARD, "pool", "serve", "--store", tmp_path / "pool", "--listen", "127.0.0.1:0", "--tokens", tokens]
    manager = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert manager.stdout is not None
    url = manager.stdout.readline().removeprefix("manager at ").strip()

    def said(*command: str, token: str | None) -> str:
        argv = [OUTBOARD, "pool", *command, "--pool", url]
        argv += ["--pool-token-file", str(tmp_path / token)] if token else []
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
        return done.stderr

    assert "a token is needed" in said("list", token=None)
    assert said("list", token="alice") == ""
    assert "names begin with operator." in said("drain", "a", token="alice")
    assert "a box claims nothing" in said("claim", token="box.a")
    assert "and there are 0" in said("claim", token="alice")
    manager.terminate()
    assert manager.wait(20) == 0

"""What happens in a pool over time: the audit, idle GPUs that are taken back, programs that are told of changes."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from harness import OUTBOARD, PROGRAM_S_MAX, ROOT, TEST_PROGRAMS
from pool_boxes import Boxes
from test_pool import GPUS_A_BOX, Pool, until
from test_pool_attach import CUDA_ERROR_DEVICE_UNAVAILABLE

sys.path.insert(0, str(ROOT / "python"))

from outboard import pool as client

CLAIMS = 40
# Time without a call after which GPUs are taken back: longer than a loaded machine lets a program wait.
IDLE = "5s"


def replay(entries: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """Plays an audit again: returns who has which GPU in the end, and fails if one is given twice."""
    held: dict[str, tuple[int, int]] = {}
    assert [entry["number"] for entry in entries] == list(range(1, len(entries) + 1))
    for entry in entries:
        for gpu in entry["gpus"]:
            holding = (entry["lease"], gpu["epoch"])
            if entry["what"] == "given":
                assert gpu["uuid"] not in held, entry
                held[gpu["uuid"]] = holding
            if entry["what"] == "taken":
                assert held.pop(gpu["uuid"]) == holding and entry["cause"] is not None, entry
    return held


def test_the_audit_of_a_random_run_agrees_with_itself_over_a_restart(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    boxes = Boxes(pool.url, 2, 8)
    asked = client.Pool(pool.url)
    until(lambda: [gpu["state"] for gpu in asked.list()["gpus"]] == ["free"] * 16)
    chance = random.Random(7)
    leases: list[client.Lease] = []
    for number in range(CLAIMS):
        try:
            holder = chance.choice(["alice", "bob"])
            # Some are never given back: their deadlines end them.
            lease = asked.claim(chance.randint(1, 5), wait_s=0, owner=holder, term_s=60 if number % 4 else 1)
            leases.append(lease)
        except client.Busy:
            for _ in range(min(2, len(leases))):
                asked.release(leases.pop(chance.randrange(len(leases))))
        if number == CLAIMS // 2:
            asked.drain("box1", "repair")
            before = asked.audit()
            boxes.stop()
            pool.manager.kill()
            pool.manager.wait()
            pool.manager = pool.start_manager(pool.url.removeprefix("http://"))
            boxes = Boxes(pool.url, 2, 8)
            asked.drain("box1", None)
    view, gpus = asked.audit(), asked.list()["gpus"]
    # Deadlines end leases between both questions.
    while asked.audit()["revision"] != view["revision"]:
        view, gpus = asked.audit(), asked.list()["gpus"]
    assert replay(view["entries"]) == {gpu["uuid"]: (gpu["lease"], gpu["epoch"]) for gpu in gpus if gpu["lease"]}
    for lease in asked.list()["leases"]:
        asked.release(lease["lease"])
    late = asked.claim(term_s=1, wait_s=60)
    until(lambda: asked.lease(late.number)["state"] == "over")
    until(lambda: all(gpu["state"] == "free" for gpu in asked.list()["gpus"]))
    view = asked.audit()
    assert replay(view["entries"]) == {} and view["dropped"] == 0
    assert {"released", "expired"} <= {entry["cause"] for entry in view["entries"]}
    # It goes on where it was, and what was before the restart is the same.
    assert view["entries"][: before["revision"]] == before["entries"]
    assert asked.audit(before["revision"])["entries"] == view["entries"][before["revision"] :]
    assert asked.audit(view["revision"])["entries"] == []
    with pytest.raises(client.Gone, match="older copy"):
        asked.audit(view["revision"] + 1)
    # The command says the same, and leaves out what does not suit.
    assert pool.ask("audit")["entries"] == view["entries"]
    bobs = pool.ask("audit", "--holder", "bob", "--since", "1d")["entries"]
    assert bobs == [entry for entry in view["entries"] if entry["holder"] == "bob"] != []
    gpu = view["entries"][0]["gpus"][0]["uuid"]
    assert all(gpu in [it["uuid"] for it in entry["gpus"]] for entry in pool.ask("audit", "--gpu", gpu)["entries"])
    [drained] = [entry["number"] for entry in view["entries"] if entry["what"] == "drained"]
    argv = [OUTBOARD, "pool", "audit", "--pool", pool.url, "--after", str(drained - 1)]
    text = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30).stdout
    assert " drained   box box1; by anyone; repair\n" in text and " ended " in text, text
    boxes.stop()
    pool.stop()


def test_the_audit_names_the_token_of_those_who_do_something(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    create = [OUTBOARD, "token", "create", "--tokens", tokens]
    texts = {
        name: subprocess.run([*create, name], check=True, capture_output=True, text=True).stdout
        for name in ("alice", "operator.carol", "box.box0")
    }
    pool = Pool(tmp_path, "--tokens", str(tokens))
    boxes = Boxes(pool.url, 1, 2, texts["box.box0"])
    alice, carol = (client.Pool(pool.url, token=texts[name]) for name in ("alice", "operator.carol"))
    until(lambda: [gpu["state"] for gpu in alice.list()["gpus"]] == ["free"] * 2)
    own, other = alice.claim(), alice.claim()
    alice.release(own)
    carol.release(other)
    carol.taint(own.gpus[0], "odd")
    until(lambda: len(alice.audit()["entries"]) == 7)
    told = [(entry["what"], entry["lease"], entry["by"]) for entry in alice.audit()["entries"]]
    # Boxes confirm when they do.
    assert sorted(told, key=str) == sorted(
        [
            *(("given", lease.number, None) for lease in (own, other)),
            *((what, own.number, "alice") for what in ("ended", "taken")),
            *((what, other.number, "operator.carol") for what in ("ended", "taken")),
            ("tainted", None, "operator.carol"),
        ],
        key=str,
    )
    with pytest.raises(client.PoolError, match="a token is needed"):
        client.Pool(pool.url).audit()
    boxes.stop()
    pool.stop()


def test_idle_gpus_are_taken_back_after_a_notice_and_used_ones_stay(tmp_path: Path) -> None:
    pool = Pool(tmp_path, "--idle-reclaim", IDLE)
    pool.start_box("a")
    until(lambda: pool.free() == GPUS_A_BOX)
    asked = client.Pool(pool.url)
    program = pool.run("--gpus", "1")
    [used] = program.gpus()
    own = next(gpu["lease"] for gpu in asked.list()["gpus"] if gpu["uuid"] == used)
    # One that no session uses goes; the program calls all the time.
    unused = asked.claim(1, term_s=60)
    until(lambda: asked.lease(unused.number)["reason"] == "idle")
    assert asked.lease(own)["state"] == "granted" and asked.lease(own)["notices"] == []
    # A session whose program makes no calls goes, too, once its holder was told.
    changes = asked.changes(own)
    program.process.send_signal(signal.SIGSTOP)
    assert [change.what for change in changes] == ["notice", "over"]
    until(lambda: pool.free() == GPUS_A_BOX)
    program.process.send_signal(signal.SIGCONT)
    assert program.lost() == CUDA_ERROR_DEVICE_UNAVAILABLE
    for lease in (own, unused.number):
        entries = [entry for entry in asked.audit()["entries"] if entry["lease"] == lease]
        assert [entry["what"] for entry in entries] == ["given", "noticed", "ended", "taken"]
        assert [entry["cause"] for entry in entries[2:]] == ["idle", "idle"]
    with urllib.request.urlopen(pool.url + "/metrics", timeout=20) as answer:
        assert 'outboard_pool_leases_ended_total{reason="idle"} 2\n' in answer.read().decode()
    pool.stop()


def test_a_program_reads_on_its_standard_error_why_its_lease_is_over(tmp_path: Path) -> None:
    pool = Pool(tmp_path, "--idle-reclaim", IDLE)
    pool.start_box("a")
    until(lambda: pool.free() == GPUS_A_BOX)
    argv = [OUTBOARD, "run", "--pool", pool.url, "--", sys.executable, TEST_PROGRAMS / "pool_waits.py"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PROGRAM_S_MAX)
    assert done.returncode == 0, done.stderr
    [first, last] = [line for line in done.stderr.splitlines() if line.startswith("outboard: lease 1")]
    assert "GPUs are taken back in " in first, done.stderr
    assert last.endswith("no session and no call for the time that is allowed"), done.stderr
    pool.stop()


def test_a_program_reads_that_its_manager_is_silent_before_its_sessions_end(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    pool.start_box("a")
    until(lambda: pool.free() == GPUS_A_BOX)
    program = pool.run("--term", "6s")
    program.gpus()
    # Not at its beginning, whose renewal the box may not know.
    time.sleep(3)
    pool.manager.send_signal(signal.SIGSTOP)
    code, said = program.outcome()
    pool.manager.send_signal(signal.SIGCONT)
    lines = said.splitlines()
    told = [line for line in lines if line.startswith("outboard: lease 1 is over, or will be within 3 s")]
    assert code == 3 and len(told) == 1, said
    lost = next(at for at, line in enumerate(lines) if line.startswith("lost "))
    assert lines.index(told[0]) < lost, said
    until(lambda: pool.free() == GPUS_A_BOX)
    # A program goes on whose manager is back in time.
    program = pool.run("--term", "6s")
    program.gpus()
    pool.manager.send_signal(signal.SIGSTOP)
    time.sleep(2)
    pool.manager.send_signal(signal.SIGCONT)
    time.sleep(6)
    said = program.finish()
    assert program.process.returncode == 0 and said.splitlines()[-1].startswith("right"), said
    assert "is over" not in said, said
    pool.stop()


def test_what_is_said_of_a_lease_and_what_its_program_writes_lie_one_after_the_other_in_a_file(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    pool.start_box("a")
    until(lambda: pool.free() == GPUS_A_BOX)
    log = tmp_path / "log"
    lines = "; ".join(f"echo line {number}; read _" for number in range(3))
    with log.open("w") as both:
        argv = [OUTBOARD, "run", "--pool", pool.url, "--", "sh", "-c", f"{lines}; echo end"]
        program = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=both, stderr=both, text=True)
    until(lambda: log.read_text() == "line 0\n")
    [lease] = [gpu["lease"] for gpu in pool.ask("list")["gpus"] if gpu["lease"] is not None]
    pool.ask("release", str(lease))
    over = f"outboard: lease {lease} is over, and its GPUs are gone: it was given back\n"
    until(lambda: log.read_text().count("\n") == 2)
    program.communicate("\n\n\n", timeout=PROGRAM_S_MAX)
    assert log.read_text() == f"line 0\n{over}line 1\nline 2\nend\n"
    pool.stop()


def test_gpus_that_cannot_be_handed_out_are_given_back(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    pool.start_box("a")
    until(lambda: pool.free() == GPUS_A_BOX)
    claim = [OUTBOARD, "pool", "claim", "--pool", pool.url, "--term", "1h"]
    there = tmp_path / "there"
    there.write_text("mine")
    for more in (["--grants", there], ["--grants", tmp_path / "missing" / "grants"]):
        done = subprocess.run([*claim, *more], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and "was given back: --grants: " in done.stderr, done.stderr
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(claim, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1 and "was given back" in done.stderr, done.stderr
    until(lambda: pool.free() == GPUS_A_BOX)
    assert there.read_text() == "mine"
    # An attached GPU is the host's, which is said.
    with Path("/dev/full").open("w") as full:
        attach = [OUTBOARD, "pool", "attach", "hostx", "--pool", pool.url]
        done = subprocess.run(attach, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1 and "host hostx has GPU-" in done.stderr, done.stderr
    pool.ask("detach", done.stderr.split("hostx has ")[1].split()[0])
    until(lambda: pool.free() == GPUS_A_BOX)
    # A claim with a name may be somebody else's, too.
    done = subprocess.run([*claim, "--uid", "u", "--grants", there], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "has the GPUs, by a claim that is named" in done.stderr, done.stderr
    assert pool.free() == GPUS_A_BOX - 1
    pool.stop()


def test_what_a_client_asked_for_that_has_given_up_is_not_granted(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    pool.start_box("a")
    until(lambda: pool.free() == GPUS_A_BOX)
    pool.manager.send_signal(signal.SIGSTOP)
    argv = [OUTBOARD, "pool", "claim", "--pool", pool.url, "--term", "1h"]
    asking = [subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    port = int(pool.url.rpartition(":")[2])
    until(lambda: len(unread(port)) >= len(asking))
    asking[0].kill()
    asking[0].wait()
    pool.manager.send_signal(signal.SIGCONT)
    said, _ = asking[1].communicate(timeout=60)
    assert asking[1].returncode == 0 and said.startswith(b"lease 1\n"), said
    assert [lease["lease"] for lease in pool.ask("list")["leases"]] == [1]
    assert pool.free() == GPUS_A_BOX - 1
    pool.stop()


# As <net/tcp_states.h> has it.
TCP_LISTEN = "0A"


def unread(port: int) -> list[str]:
    """The connections to a port of this machine at whose server's end a request waits, by the kernel's list."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    lines = [line for line in lines if line[3] != TCP_LISTEN]
    return [line[1] for line in lines if line[1].endswith(f":{port:04X}") and int(line[4].partition(":")[2], 16) > 0]


class Told:
    """A program that prints what changes in its lease."""

    def __init__(self, pool: Pool) -> None:
        argv = [OUTBOARD, "run", "--pool", pool.url, "--attached", "--", sys.executable]
        argv.append(TEST_PROGRAMS / "pool_changes.py")
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def line(self) -> str:
        assert self.process.stdout is not None
        limit = threading.Timer(PROGRAM_S_MAX, self.process.kill)
        limit.start()
        line = self.process.stdout.readline().strip()
        limit.cancel()
        return line


def test_a_program_that_runs_is_told_of_gpus_that_come_and_go(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    pool.start_box("a")
    until(lambda: pool.free() == GPUS_A_BOX)
    [first] = pool.ask("attach", "--term", "30s")["gpus"]
    program = Told(pool)
    assert program.line() == first
    both = pool.ask("attach", "--term", "30s")["gpus"]
    [second] = set(both) - {first}
    assert program.line() == f"attached {second} -"
    pool.ask("detach", first)
    assert [program.line() for _ in range(2)] == [f"detaching {first} -", f"detached {first} -"]
    # It goes on with another manager of the same store.
    pool.manager.kill()
    pool.manager.wait()
    pool.manager = pool.start_manager(pool.url.removeprefix("http://"))
    client.Pool(pool.url).drain("a", "repair")
    assert program.line() == "notice - drain: repair"
    pool.ask("detach", second, "--force")
    lines = [program.line()]
    while lines[-1] != "":
        lines.append(program.line())
    assert lines[-2:] == ["over - detached", ""] and program.process.wait(20) == 0, lines
    pool.stop()

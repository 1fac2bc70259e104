"""GPUs and boxes of a pool that fail: spares, programs that run again, and how many spares are enough."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import OUTBOARD, ROOT
from test_pool import Pool, Program, until

TRACE = ROOT / "tests" / "traces" / "pool"
# A spare has the place within 1 s of the detection; the check of a box runs every 2 s, and the machine may be busy.
REPLACED_S_MAX = 2 + 1 + 3
# A command ends at once by a signal, on a busy machine.
SIGNAL_S_MAX = 5


class CheckedPool(Pool):
    """A pool whose boxes are told by a file which of their GPUs are broken."""

    def box_options(self, name: str) -> list[str]:
        self.file(name).touch()
        return ["--pool-check", f"cat {self.file(name)}"]

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.broken"

    def gpu(self, uuid: str) -> dict[str, Any]:
        return next(gpu for gpu in self.ask("list")["gpus"] if gpu["uuid"] == uuid)

    def operate(self, *command: str) -> None:
        subprocess.run([OUTBOARD, "pool", *command, "--pool", self.url], check=True, timeout=30)

    def states(self) -> list[str]:
        return sorted(gpu["state"] for gpu in self.ask("list")["gpus"])


def next_run(program: Program) -> list[str]:
    """Returns what is said until the program has begun again; its GPUs are the last line."""
    assert program.process.stdout is not None
    said = [""]
    while not said[-1].startswith("GPU-"):
        line = program.process.stdout.readline()
        assert line, f"the program did not run again: {said}"
        said.append(line.strip())
    return said


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CheckedPool]:
    pool = CheckedPool(tmp_path_factory.mktemp("health"))
    for name in ("a", "b"):
        pool.start_box(name)
    until(lambda: pool.free() == 4)
    yield pool
    pool.stop()


def test_a_spare_replaces_a_broken_gpu_and_the_program_runs_again(pool: CheckedPool) -> None:
    pool.operate("spares", "1")
    assert pool.states() == ["free", "free", "free", "spare"]
    argv = [OUTBOARD, "pool", "spares", "--pool", pool.url]
    assert "1 of each model for the pool\n1 held back" in subprocess.check_output(argv, text=True, timeout=30)
    program = pool.run("--gpus", "2", "--restart", "1")
    before = program.gpus()
    entries = [entry["entry"] for entry in pool.ask("tables")["hosts"][0]["entries"]]
    lease = pool.ask("list")["leases"][0]["lease"]
    broken = before[0]
    pool.file(pool.gpu(broken)["box"]).write_text(f"{broken} Xid 79: fallen off the bus\n")
    until(lambda: pool.gpu(broken)["health"]["condition"] == "broken", REPLACED_S_MAX)
    lost = pool.ask("list")["leases"][0]["lost"]
    assert [(it["uuid"], it["replaced"]) for it in lost] == [(broken, True)] and "fallen" in lost[0]["reason"]
    # Its old session has ended, which it says; then it runs again with the spare.
    after = next_run(program)[-1].split(",")
    assert broken not in after and len(after) == 2 and len(set(after) & set(before)) == 1
    view = pool.ask("list")["leases"][0]
    assert view["lease"] == lease and sorted(view["gpus"]) == sorted(after)
    assert [entry["entry"] for entry in pool.ask("tables")["hosts"][0]["entries"]] == entries
    assert program.finish().startswith("right")
    health = pool.gpu(broken)["health"]
    assert health["reason"] == "Xid 79: fallen off the bus" and abs(health["since_s"] - time.time()) < 60
    text = subprocess.check_output([OUTBOARD, "pool", "list", "--pool", pool.url], text=True, timeout=30)
    assert "broken since" in text and "fallen off the bus" in text
    text = subprocess.check_output([OUTBOARD, "pool", "tables", "--pool", pool.url], text=True, timeout=30)
    assert "broken since" in text
    until(lambda: pool.states() == ["broken", "free", "free", "spare"])
    for name in ("a", "b"):
        pool.file(name).write_text("")
    # A report with the old finding may still be on its way.
    time.sleep(2.5)
    pool.operate("untaint", broken)
    pool.operate("spares", "0")
    until(lambda: pool.free() == 4)


def test_a_program_runs_again_elsewhere_when_its_box_is_lost(pool: CheckedPool) -> None:
    program = pool.run("--restart", "2")
    [gpu] = program.gpus()
    name = pool.gpu(gpu)["box"]
    pool.boxes[name].kill()
    pool.boxes[name].wait()
    said = next_run(program)
    again = [line for line in said if line.startswith("outboard: the program lost a GPU (")]
    assert len(again) == 1 and "it runs again, 1 of 2" in again[0], said
    assert pool.gpu(said[-1])["box"] != name, said
    # GPUs of a box that is not there are not given out.
    assert pool.free() == 1
    assert program.finish().startswith("right")
    pool.start_box(name)
    until(lambda: pool.free() == 4)


def test_a_program_that_fails_by_itself_is_not_run_again(pool: CheckedPool) -> None:
    until(lambda: pool.free() == 4)
    code = "print('once', flush=True); raise SystemExit(5)"
    argv = [OUTBOARD, "run", "--pool", pool.url, "--restart", "3", "--", sys.executable, "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (5, "once\n"), done.stderr
    argv[-1] = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert done.returncode == 128 + 9, done.stderr
    argv[-3:] = ["/nowhere/program"]
    assert subprocess.run(argv, capture_output=True, timeout=30).returncode == 127


def started(argv: list[str | Path]) -> subprocess.Popen[str]:
    """Starts a command that ignores no signal, as a shell's job in the background would."""

    def attend() -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, preexec_fn=attend)


def test_a_signal_ends_a_command_that_waits_for_gpus(pool: CheckedPool) -> None:
    until(lambda: pool.free() == 4)
    first = pool.run("--gpus", "4")
    first.gpus()
    argv = [OUTBOARD, "run", "--pool", pool.url, "--restart", "3", "--", sys.executable, "-c", "print('ran')"]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        waiting = started(argv)
        until(lambda: len(pool.ask("list")["queue"]) == 1)
        waiting.send_signal(number)
        out, _ = waiting.communicate(timeout=SIGNAL_S_MAX)
        assert (waiting.returncode, out) == (-number, "")
        until(lambda: not pool.ask("list")["queue"])
    assert first.finish().startswith("right")


def test_a_signal_is_passed_on_and_the_program_is_not_run_again(pool: CheckedPool) -> None:
    until(lambda: pool.free() == 4)
    code = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print('up', flush=True)"
    code += "; signal.pause()"
    running = started([OUTBOARD, "run", "--pool", pool.url, "--restart", "3", "--", sys.executable, "-c", code])
    assert running.stdout is not None and running.stdout.readline() == "up\n"
    running.terminate()
    assert running.communicate(timeout=30)[0] == "" and running.returncode == 7


def test_a_program_dies_with_its_killed_command(pool: CheckedPool) -> None:
    until(lambda: pool.free() == 4)
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    running = started([OUTBOARD, "run", "--pool", pool.url, "--restart", "3", "--", sys.executable, "-c", code])
    assert running.stdout is not None
    program = Path("/proc", running.stdout.readline().strip(), "stat")
    running.kill()

    def has_ended() -> bool:
        try:
            return program.read_text().rsplit(") ", 1)[1].startswith("Z")
        except (FileNotFoundError, ProcessLookupError):
            return True

    until(has_ended, SIGNAL_S_MAX)
    running.communicate()


def test_grants_that_a_killed_holder_has_left_are_removed(
    pool: CheckedPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    until(lambda: pool.free() == 4)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    def grants() -> set[Path]:
        return set(tmp_path.glob("outboard/grants-*"))

    program = pool.run("--term", "5s")
    program.gpus()
    left = grants()
    lines = subprocess.check_output(["pgrep", "-f", f"pool-hold.*{tmp_path}"], text=True).split()
    for line in lines:
        os.kill(int(line), signal.SIGKILL)
    other = pool.run()
    other.gpus()
    # Those of a program that runs stay.
    assert left and left <= grants()
    assert other.finish().startswith("right")
    program.process.kill()
    program.process.communicate()
    third = pool.run()
    third.gpus()
    assert grants() and not left & grants()
    assert third.finish().startswith("right")
    until(lambda: not grants())
    until(lambda: pool.free() == 4)


def test_a_program_waits_for_a_box_that_begins_anew(pool: CheckedPool) -> None:
    """The claim comes when the box has died and nobody knows, or waits until it is back."""
    until(lambda: pool.free() == 4)
    pool.operate("drain", "b")
    pool.boxes["a"].kill()
    pool.boxes["a"].wait()
    program = pool.run("--gpus", "2")
    time.sleep(0.7)
    pool.start_box("a")
    assert program.process.stdout is not None
    line = program.process.stdout.readline()
    if line.startswith("outboard: the box a does not serve the program yet"):
        line = program.process.stdout.readline()
    assert line.startswith("GPU-"), line
    assert program.finish().startswith("right")
    pool.operate("undrain", "b")
    until(lambda: pool.free() == 4)


def test_how_many_spares_are_enough() -> None:
    argv = [OUTBOARD, "pool", "spares", "--afr", "9%", "--repair", "3d", "--target", "99.9%", "--gpus", "512"]
    assert subprocess.check_output(argv, text=True).startswith("3 spares; 0.38 GPUs are in repair on average\n")
    assert json.loads(subprocess.check_output([*argv, "--json"], text=True))["spares"] == 3
    for wrong in (["--afr", "9%"], ["--afr", "0%", "--repair", "3d", "--gpus", "5"], ["-1"], ["513"]):
        done = subprocess.run([OUTBOARD, "pool", "spares", *wrong], capture_output=True, text=True)
        assert done.returncode == 2, done.stderr


def test_a_trace_is_played_on_servers_and_on_a_pool(tmp_path: Path) -> None:
    argv = [OUTBOARD, "pool", "simulate", str(TRACE), "--as-is"]
    runs = json.loads(subprocess.check_output([*argv, "--json"], text=True))["runs"]
    # Counted by hand: docs/design/datacenter.md.
    assert {run["run"]: (run["placed"], run["refused"]) for run in runs} == {
        "servers, random": (1, 5),
        "servers, best fit": (1, 5),
        "servers, FGD": (1, 5),
        "pool, best fit": (5, 1),
        "pool with groups, best fit": (5, 1),
    }
    assert "pool, best fit                   100.00    100.00" in subprocess.check_output(argv, text=True)
    # Two GPUs with 4 of 16 vCPU each, and four instances that take all of a server.
    head = (
        "instance_sn,role,app_name,cpu_request,cpu_limit,gpu_request,gpu_limit,rdma_request,rdma_limit,memory_request,"
    )
    head += "memory_limit,disk_request,disk_limit,max_instance_per_node,creation_time,scheduled_time,deletion_time\n"
    services = tmp_path / "services.csv"
    lines = ["i,HN,a,4,4,1,1,0,0,8.0,8.0,0,0,-1,,,\n"] * 2 + ["i,CN,a,16,16,0,0,0,0,8.0,8.0,0,0,-1,,,9.0\n"] * 4
    services.write_text(head + "".join(lines))
    argv = [OUTBOARD, "pool", "simulate", str(services), "--shape", "16,2,64"]
    runs = json.loads(subprocess.check_output([*argv, "--json"], text=True))["runs"]
    needed = [(run["run"], run["machines"], run["gpus"], run["gpus_used_mean"]) for run in runs]
    assert needed == [("servers", 5, 10, 0.2), ("servers of two kinds", 5, 2, 1.0), ("pool", 5, 2, 1.0)]
    assert "servers                        5        80" in subprocess.check_output(argv, text=True)
    bad = tmp_path / "tasks.csv"
    bad.write_text("name,cpu_milli\n")
    for wrong, said in ((bad, "one of machines"), (tmp_path, "machines.csv"), (tmp_path / "none", "one of machines")):
        done = subprocess.run([OUTBOARD, "pool", "simulate", wrong], capture_output=True, text=True)
        assert done.returncode in (1, 2) and said in done.stderr, done.stderr

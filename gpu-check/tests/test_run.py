"""The whole check, with a fake outboard program and fake workloads."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import process
import run
from suite import Group, Workload

FAKES = Path(__file__).resolve().parent / "fakes"


def fake_group(*names, name="fake", exit_code=0, environment=None, **options):
    workloads = tuple(Workload(n, "fake_workloads", n, **options) for n in names)
    return Group(name, workloads, environment or {}, exit_code, FAKES)


def check(tmp_path, *groups, modes="local,shm,tcp", extra=()):
    """Runs the check over the groups; returns its exit status and the results."""
    out = tmp_path / "results.json"
    arguments = ["--outboard", str(FAKES / "outboard"), "--out", str(out), "--modes", modes, "--device", "soft"]
    arguments += ["--log-dir", str(tmp_path / "logs"), "--timeout-s", "3", *extra]
    status = run.main(arguments, groups)
    return status, json.loads(out.read_text())


def assert_nothing_runs():
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes().split(b"\0")
        except OSError:
            continue
        # The fake server, and any workload process, have one of these as an argument of its own.
        assert str(FAKES / "outboard").encode() not in arguments[:2]
        assert not (b"--modules" in arguments and str(FAKES).encode() in arguments)


@pytest.fixture(autouse=True)
def short_exit(monkeypatch):
    monkeypatch.setattr(run, "EXIT_S", 3.0)


def test_right_workload_passes_in_every_mode(tmp_path):
    status, results = check(tmp_path, fake_group("right"))
    assert status == 0 and results["ok"] and results["complete"]
    row = results["workloads"]["right"]
    assert [row[mode]["status"] for mode in ("local", "shm", "tcp")] == ["pass"] * 3
    assert row["shm"]["equal"] is True and "equal" not in row["local"]
    assert row["tcp"]["ratio_to_local"] == {"step": 2.0}
    assert results["processes"]["fake"]["shm"]["startup_s"] > 0
    assert results["machine"]["outboard"] == "outboard fake"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("wrong_digest", "digest"),
        ("wrong_loss", "losses differ, the first at step 1"),
    ],
)
def test_difference_is_a_failure(tmp_path, capsys, name, text):
    status, results = check(tmp_path, fake_group(name, "right"), modes="local,shm")
    assert status == 1 and not results["ok"]
    entry = results["workloads"][name]["shm"]
    assert entry["equal"] is False and text in entry["differences"][0]
    assert results["workloads"]["right"]["shm"]["ok"]
    assert "DIFFERENT" in capsys.readouterr().out


def test_what_is_not_reproducible_locally_is_held_to_its_numbers(tmp_path):
    status, results = check(tmp_path, fake_group("not_reproducible"), modes="local,shm")
    assert status == 0
    assert results["workloads"]["not_reproducible"]["local"]["reproducible"] is False


def test_hang_loses_only_itself(tmp_path):
    started = time.monotonic()
    status, results = check(tmp_path, fake_group("right", "hangs", "wrong_loss"), modes="local,tcp")
    assert time.monotonic() - started < 30
    rows = results["workloads"]
    assert status == 1
    assert rows["right"]["tcp"]["ok"]
    assert rows["hangs"]["tcp"]["status"] == "timeout" and "running hangs" in rows["hangs"]["tcp"]["error"]
    # The stack at the time of the hang is kept.
    assert any("fake_workloads.py" in line for line in rows["hangs"]["tcp"]["stderr"])
    assert rows["wrong_loss"]["tcp"]["status"] == "pass" and rows["wrong_loss"]["tcp"]["equal"] is False
    assert results["processes"]["fake"]["tcp"]["restarts"] == 1


def test_crash_loses_only_itself(tmp_path):
    status, results = check(tmp_path, fake_group("crashes", "right"), modes="local,shm")
    rows = results["workloads"]
    assert status == 1
    assert rows["crashes"]["shm"]["status"] == "crash" and "SIGSEGV" in rows["crashes"]["shm"]["error"]
    assert "about to crash" in " ".join(rows["crashes"]["shm"]["stderr"])
    assert rows["right"]["shm"]["ok"]


def test_lost_context_does_not_spoil_the_rest(tmp_path):
    _, results = check(tmp_path, fake_group("loses_context", "raises", "right"), modes="local,shm")
    rows = results["workloads"]
    assert "illegal memory access" in rows["loses_context"]["shm"]["error"]
    # Said by a healthy process, after a restart.
    assert "two and two are five" in rows["raises"]["shm"]["error"]
    assert rows["right"]["shm"]["ok"]


def test_hang_at_start_ends_the_group_only(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "START_S", 2.0)
    stuck = fake_group("right", "raises", name="stuck", environment={"FAKE_HANG_AT_START": "1"})
    status, results = check(tmp_path, stuck, fake_group("wrong_loss"), modes="local,shm")
    assert status == 1
    assert results["workloads"]["right"]["shm"]["status"] == "timeout"
    assert "starting" in results["workloads"]["raises"]["shm"]["error"]
    assert results["workloads"]["wrong_loss"]["shm"]["status"] == "pass"


def test_soak_lasts_as_long_as_asked(tmp_path):
    group = fake_group("soaks", name="soak")
    extra = ("--timeout-s", "1", "--soak-s", "1.5", "--soak-seed", "7")
    status, results = check(tmp_path, group, modes="shm", extra=extra)
    assert status == 0
    assert results["workloads"]["soaks"]["shm"]["facts"] == {"seed": "7"}


def test_no_first_result_fails_the_group_at_once(tmp_path):
    group = fake_group("right", "wrong_loss", environment={"FAKE_NO_DEVICE": "1"})
    status, results = check(tmp_path, group, modes="local,shm")
    assert status == 1
    for name in ("right", "wrong_loss"):
        entry = results["workloads"][name]["shm"]
        assert entry["status"] == "fail" and "no CUDA-capable device" in entry["error"]
    assert results["processes"]["fake"]["shm"]["restarts"] == 1


def test_group_that_keeps_hanging_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "TIMEOUTS_MAX", 1)
    _, results = check(tmp_path, fake_group("hangs", "right"), modes="local,tcp")
    assert results["workloads"]["right"]["tcp"]["status"] == "not run"


def test_process_must_exit(tmp_path):
    status, results = check(tmp_path, fake_group("hangs_at_exit"), modes="local,shm")
    assert status == 1
    assert results["workloads"]["hangs_at_exit"]["shm"]["equal"] is True
    assert "exiting" in results["workloads"]["fake.exit"]["shm"]["error"]


@pytest.mark.parametrize(("expected", "status"), [(3, 0), (0, 1)])
def test_exit_status_is_checked(tmp_path, expected, status):
    group = fake_group("right", "leaves_after_result", exit_code=expected)
    assert check(tmp_path, group, modes="local")[0] == status


def test_skipped_everywhere_is_fine_and_skipped_remotely_is_not(tmp_path):
    assert check(tmp_path, fake_group("skips"), modes="local,shm")[0] == 0
    assert check(tmp_path, fake_group("skips_remotely"), modes="local,shm")[0] == 1


def test_missing_library_is_skipped(tmp_path):
    group = Group("missing", (Workload("m", "imports_nothing_that_exists", "m"),), directory=FAKES)
    status, results = check(tmp_path, group, modes="local,shm")
    assert status == 0
    assert results["workloads"]["m"]["shm"]["status"] == "skip"
    assert "imports_nothing_that_exists" in results["workloads"]["m"]["shm"]["error"]


def test_known_failure_does_not_fail_the_check(tmp_path):
    status, results = check(tmp_path, fake_group("raises", known_failure="arithmetic"), modes="local,shm")
    assert status == 0
    assert results["workloads"]["raises"]["shm"]["status"] == "known failure"
    assert "five" in results["workloads"]["raises"]["shm"]["error"]


def test_known_failure_of_another_mode_is_a_failure(tmp_path):
    group = fake_group("raises", known_failure="arithmetic", known_failure_modes=("tcp",))
    status, results = check(tmp_path, group)
    assert status == 1
    modes = results["workloads"]["raises"]
    assert modes["tcp"]["status"] == "known failure" and modes["shm"]["status"] == "fail"


@pytest.mark.parametrize("fault", ["silent", "exits"])
def test_server_that_does_not_start(tmp_path, monkeypatch, fault):
    monkeypatch.setenv("FAKE_SERVER", fault)
    monkeypatch.setattr(run, "SERVER_START_S", 2.0)
    status, results = check(tmp_path, fake_group("right"))
    assert status == 1 and not results["ok"]
    assert "not ready" in results["errors"][0]
    if fault == "exits":
        assert "no such device" in results["errors"][0]


def test_nothing_starts_past_the_budget(tmp_path):
    status, results = check(tmp_path, fake_group("right"), extra=["--budget-s", "0"], modes="local,shm")
    assert status == 1
    assert results["workloads"]["right"]["local"]["status"] == "not run"


def test_counts_are_held_against_their_bound(tmp_path):
    status, results = check(tmp_path, fake_group("right", synchronous_max=2), modes="local,shm", extra=["--counts"])
    counted = results["calls_per_iteration"]["right"]
    assert status == 0
    assert counted["per_iteration"] == {"local": 1.0, "outstanding": 0.0, "shadowed": 0.0, "synchronous": 2.0}
    assert counted["by_call"] == {"cuFake": 3.0}
    assert check(tmp_path, fake_group("right", synchronous_max=1), modes="local,shm", extra=["--counts"])[0] == 1


def test_nothing_is_left_running(tmp_path):
    check(tmp_path, fake_group("hangs", "right"), modes="local,tcp")
    assert_nothing_runs()


def test_ended_from_outside_it_leaves_results_and_nothing_running(tmp_path):
    script = f"""
import sys
sys.path[:0] = [{str(FAKES.parents[1])!r}]
from pathlib import Path
import run
from suite import Group, Workload
names = ("right", "hangs")
workloads = tuple(Workload(n, "fake_workloads", n) for n in names)
groups = [Group(g, (w,), directory=Path({str(FAKES)!r})) for g, w in zip(names, workloads)]
sys.exit(run.main(sys.argv[1:], tuple(groups)))
"""
    out = tmp_path / "results.json"
    arguments = ["--outboard", str(FAKES / "outboard"), "--out", str(out), "--device", "soft", "--modes", "local,tcp"]
    check_process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments, "--log-dir", str(tmp_path / "logs")],
        stdout=subprocess.PIPE,
        text=True,
    )
    for line in check_process.stdout:
        if line.startswith("hangs (local)"):
            break
    time.sleep(1)
    check_process.send_signal(signal.SIGTERM)
    assert check_process.wait(timeout=15) == 1
    results = json.loads(out.read_text())
    assert results["workloads"]["right"]["tcp"]["ok"]
    assert not results["ok"] and not results["complete"]
    assert_nothing_runs()


def test_only_quick_and_unknown_names(tmp_path, capsys):
    group = fake_group("right", "raises")
    _, results = check(tmp_path, group, modes="local", extra=["--only", "right"])
    assert list(results["workloads"]) == ["right"]
    assert run.main(["--dry-run", "--only", "nonsense"], (group,)) == 2
    assert "nonsense" in capsys.readouterr().err
    slow = fake_group("crashes", name="slow", slow=True)
    run.main(["--dry-run", "--quick"], (group, slow))
    assert "crashes" not in capsys.readouterr().out


def test_dry_run_as_a_person_would_type_it():
    script = Path(run.__file__)
    done = subprocess.run(
        [sys.executable, str(script), "--dry-run"], capture_output=True, text=True, check=True, cwd="/", env=os.environ
    )
    assert "resnet18_infer_b1" in done.stdout and "workloads in" in done.stdout

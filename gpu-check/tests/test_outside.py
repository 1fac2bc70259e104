"""The frame of `gpu_suites.py`: processes, limits, verdicts and the page, with a fake suite and no GPU."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import ClassVar

import pytest

import gpu_suites
from outside import build, programs, results
from outside.cases import CRASH, FAIL, HANG, LEFT_OUT, PASS, SKIP, Outcome, kept, parse, part_of
from outside.compare import (
    DIFFERS,
    FAILS,
    IRREPRODUCIBLE,
    LOCAL_FAILS,
    NOT_COMPARED,
    NUMBERS,
    SAME,
    SKIPPED,
    UNSTEADY,
    judge,
)
from outside.pool import Limits, Pool, Unusable, Where

FAKES = Path(__file__).resolve().parent / "fakes"
SUITE = "outside_fakes.fake_suite"


def pool(tmp_path, mode, case_s=1.0, seconds=60.0, sources="sources"):
    environment = {**os.environ, "PYTHONPATH": str(FAKES), "FAKE_MODE": mode}
    where = Where(mode, lambda command: command, environment)
    return Pool(SUITE, Path(sources), where, Limits(case_s, 30.0, time.monotonic() + seconds), tmp_path)


def test_a_hang_a_crash_and_a_spoiled_process_lose_one_case_each(tmp_path):
    remote = pool(tmp_path, "shm")
    outcomes = remote.run(remote.list_cases(), 2)
    assert len(outcomes) == 10
    assert outcomes["right"].outcome == PASS and outcomes["skips"].outcome == SKIP
    assert outcomes["hangs through it"].outcome == HANG
    assert outcomes["crashes through it"].outcome == CRASH and "SIGABRT" in outcomes["crashes through it"].detail
    assert outcomes["spoils"].detail == "device assertion"
    # The last line of standard error stands in where a case gives no reason of its own.
    assert outcomes["fails through it"].detail == "outboard: cuFunctionOf is not served"
    assert outcomes["fails everywhere"].detail == "ValueError: wrong there"
    assert not any("spoiled the process" in outcome.detail for outcome in outcomes.values())


def test_the_deadline_leaves_the_rest_out(tmp_path):
    late = pool(tmp_path, "shm", case_s=60.0, seconds=1.5)
    outcomes = late.run(["hangs through it", "right"], 1)
    assert [outcomes[name].outcome for name in ("hangs through it", "right")] == [LEFT_OUT, LEFT_OUT]


def test_a_check_that_is_interrupted_ends_its_pools_and_keeps_what_ended(tmp_path, monkeypatch):
    """Effect of Ctrl-C in the main thread while the pools run in theirs."""
    held = pool(tmp_path, "shm", case_s=60.0)
    monkeypatch.setattr(gpu_suites, "threading", Interrupted)
    monkeypatch.setattr(Interrupted, "ready", lambda: "right" in held.outcomes)
    runs = {"shm": {}}
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        gpu_suites.Check._round(None, {"shm": held}, ["right", "hangs through it"], 1, runs)
    for thread in Interrupted.started:
        thread.end()
    assert time.monotonic() - began < 50.0
    assert [run.outcome for run in runs["shm"]["right"]] == [PASS]


class Interrupted:
    """The module threading, whose threads are interrupted when they are waited for."""

    started: ClassVar[list[threading.Thread]] = []
    ready = None

    class Thread(threading.Thread):
        def join(self, timeout=None):
            Interrupted.started.append(self)
            deadline = time.monotonic() + 30.0
            while not Interrupted.ready() and time.monotonic() < deadline:
                time.sleep(0.1)
            raise KeyboardInterrupt

        def end(self):
            super().join(30.0)


def test_a_suite_that_is_not_here_says_why(tmp_path):
    with pytest.raises(Unusable, match="no checkout"):
        pool(tmp_path, "local", sources="empty").list_cases()


def test_whole_check_names_every_difference(tmp_path, monkeypatch):
    def where(check, mode):
        return Where(mode, lambda command: command, {**os.environ, "PYTHONPATH": str(FAKES), "FAKE_MODE": mode})

    class NoServer:
        restarts = 0

        def __init__(self, *_):
            self.urls = {}

        def start(self):
            pass

        def stop(self):
            pass

    monkeypatch.setattr(gpu_suites.Check, "_where", where)
    monkeypatch.setattr(gpu_suites, "Server", NoServer)
    monkeypatch.setattr(gpu_suites, "SUITES", (SUITE,))
    monkeypatch.setattr(gpu_suites.machine, "has_gpu", lambda: True)
    out = tmp_path / "results.json"
    arguments = ["--outboard", "true", "--out", str(out), "--log-dir", str(tmp_path / "logs")]
    arguments += ["--suites", SUITE, "--modes", "local,shm", "--case-s", "1", "--processes", "4"]
    assert gpu_suites.main(arguments) == gpu_suites.EXIT_DIFFERENT
    document = json.loads(out.read_text())
    suite = document["suites"][SUITE]
    assert suite["modes"] == {
        "shm": {SAME: 1, NUMBERS: 1, LOCAL_FAILS: 1, IRREPRODUCIBLE: 1, SKIPPED: 1, DIFFERS: 5},
    }
    assert sorted(suite["named"]) == [
        "crashes through it",
        "fails through it",
        "hangs through it",
        "other bits",
        "spoils",
    ]
    page = results.page(document)
    assert "| outside_fakes.fake_suite | 1/1 | 10 | shm | 1 | 1 | 1 | 1 | 1 | 5 |" in page
    assert "| `hangs through it` | shm | differs | pass | hang" in page
    lines = (tmp_path / "logs" / f"{SUITE}-shm.outcomes").read_text().splitlines()
    assert "other_bits pass remote" in lines and "skips skip -" in lines


def passed(digest, *numbers):
    return Outcome(PASS, digest=digest, numbers=list(numbers))


@pytest.mark.parametrize(
    ("local", "remote", "verdict"),
    [
        ([passed("a")], [passed("a")], SAME),
        ([Outcome(SKIP)], [Outcome(SKIP)], SKIPPED),
        ([Outcome(SKIP)], [passed("a")], DIFFERS),
        ([passed("a")], [Outcome(SKIP)], DIFFERS),
        ([Outcome(FAIL)], [Outcome(FAIL)], LOCAL_FAILS),
        ([Outcome(FAIL)], [Outcome(CRASH)], DIFFERS),
        ([Outcome(FAIL), Outcome(FAIL)], [passed("a"), passed("a")], DIFFERS),
        ([Outcome(HANG)], [Outcome(HANG)], LOCAL_FAILS),
        ([Outcome(HANG)], [passed("a")], NOT_COMPARED),
        ([passed("a")], [Outcome(HANG)], DIFFERS),
        ([passed("a"), passed("a")], [passed("b"), passed("b")], DIFFERS),
        ([passed("a"), passed("a")], [passed("b"), passed("a")], UNSTEADY),
        ([passed("a"), passed("a")], [Outcome(FAIL), Outcome(LEFT_OUT)], DIFFERS),
        ([passed("a", 1.0), passed("b", 1.001)], [passed("c", 1.0), passed("d", 0.999)], NUMBERS),
        ([passed("a", 1.0), passed("b", 1.0)], [passed("c", 2.0), passed("d", 2.0)], DIFFERS),
        ([passed("a", 1.0), passed("b", 5.0)], [passed("c", 2.0), passed("d", 2.0)], IRREPRODUCIBLE),
        ([passed("a", 1.0), passed("b", 1.0)], [Outcome(FAIL), Outcome(FAIL)], DIFFERS),
        ([Outcome(LEFT_OUT)], [passed("a")], NOT_COMPARED),
        ([passed("a")], [Outcome(LEFT_OUT)], NOT_COMPARED),
        ([], [passed("a")], SAME),
        ([], [Outcome(FAIL)], FAILS),
    ],
)
def test_verdicts(local, remote, verdict):
    assert judge(local, remote) == verdict


def test_slices_part_the_names_and_ignore_their_order():
    names = [f"case {i}" for i in range(300)]
    chosen = kept(names, (1, 3), seed=1)
    assert 60 < len(chosen) < 140
    assert sorted(kept(names[::-1], (1, 3), seed=2)) == sorted(chosen) and kept(names, (1, 3), seed=2) != chosen
    assert sorted(name for i in (1, 2, 3) for name in kept(names, (i, 3), seed=0)) == sorted(names)
    with pytest.raises(ValueError):
        part_of("4/3")


def test_events_from_a_child_are_not_trusted():
    assert parse({"outcome": "splendid"}).outcome == FAIL
    assert parse({"outcome": PASS, "numbers": ["x"]}).numbers == []
    assert len(parse({"outcome": FAIL, "detail": "y" * 10_000}).detail) < 1000


@pytest.mark.parametrize(
    ("code", "text", "outcome"),
    [
        (0, "Test PASSED", PASS),
        (1, "Test FAILED", FAIL),
        (2, "This sample needs two GPUs, waiving", SKIP),
        (2, "CUDA error at line 3, waived nothing", FAIL),
        (-11, "", FAIL),
    ],
)
def test_programs_are_read_by_status_and_words(code, text, outcome):
    assert programs.judge(code, text).outcome == outcome


def test_times_that_a_program_prints_do_not_matter_and_verdicts_do():
    first, second = programs.judge(0, "12.5 ms\nTest PASSED in 3 ms"), programs.judge(0, "9 ms\nTest PASSED in 4 ms")
    assert first.digest == second.digest != programs.judge(0, "12.5 ms").digest


def test_build_reads_a_sample_and_its_libraries(tmp_path):
    folder = tmp_path / "cuda-samples" / "Samples" / "0_Introduction" / "cdpSmall"
    folder.mkdir(parents=True)
    (folder / "CMakeLists.txt").write_text("target_link_libraries(cdpSmall PUBLIC CUDA::cublas CUDA::cuda_driver)")
    (folder / "main.cu").touch()
    shown = folder.parent / "window"
    shown.mkdir()
    (shown / "CMakeLists.txt").write_text("find_package(OpenGL)")
    (shown / "main.cu").touch()
    compiler = build.Compiler("nvcc", "compute_80", [])
    [program] = build.cuda_samples(tmp_path, tmp_path / "built" / "cuda_samples", compiler)
    [command] = program.commands
    assert program.name == "cdpSmall" and {"-lcublas", "-lcuda", "-rdc=true"} <= set(command)
    assert "arch=compute_80,code=compute_80" in command


def test_results_that_cannot_be_written_are_said_at_once(tmp_path):
    (tmp_path / "other.json").write_text("{}")
    command = [sys.executable, str(Path(gpu_suites.__file__)), "--outboard", "x", "--modes", "soft"]
    for out in (tmp_path, tmp_path / "other.json", tmp_path / "other.json" / "r.json", Path("/proc/none/r.json")):
        done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith("gpu-suites: results or logs cannot be written: "), done.stderr


def test_a_page_of_what_is_no_results_file_is_an_error(tmp_path):
    (tmp_path / "broken.json").write_text('{"format": 1,')
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "list.json").write_text("[1]")
    whole = {"format": results.FORMAT_VERSION, "machine": {}, "settings": {}, "suites": {"a": 1}}
    (tmp_path / "part.json").write_text(json.dumps(whole))
    for name in ("missing.json", "broken.json", "other.json", "list.json", "part.json", "."):
        command = [sys.executable, str(Path(gpu_suites.__file__)), "--page", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and not done.stdout, (name, done.stderr)
        assert done.stderr.startswith("gpu-suites: there is no page of ") and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("part", ["3/2", "0/2", "1", "a/b", "1/2/3"])
def test_a_slice_that_is_none_says_what_one_is(part, capsys):
    with pytest.raises(SystemExit) as ended:
        gpu_suites.main(["--outboard", "x", "--out", "y", "--slice", part])
    assert ended.value.code == 2
    assert f"{part!r} is not I/K with 1 <= I <= K" in capsys.readouterr().err


def test_a_check_of_nothing_is_no_success(tmp_path, monkeypatch, capsys):
    class NoServer:
        restarts = 0

        def __init__(self, *_):
            self.urls = {}

        start = stop = lambda _: None

    monkeypatch.setattr(gpu_suites, "Server", NoServer)
    monkeypatch.setattr(gpu_suites.Check, "_suite", lambda *_: {"missing": "no checkout"})
    arguments = ["--outboard", "true", "--out", str(tmp_path / "r.json"), "--log-dir", str(tmp_path / "logs")]
    assert gpu_suites.main([*arguments, "--modes", "soft", "--suites", "op_db,hecbench"]) == 2
    assert "nothing was compared" in capsys.readouterr().err


def test_usage_without_a_gpu(tmp_path):
    command = [sys.executable, str(Path(gpu_suites.__file__)), "--outboard", "x", "--out", str(tmp_path / "r.json")]
    done = subprocess.run([*command, "--modes", "other"], capture_output=True, text=True)
    assert done.returncode == 2 and "known are local, shm, tcp, soft" in done.stderr


def test_pytest_runs_what_is_named_in_one_collection(tmp_path):
    (tmp_path / "test_fake.py").write_text(
        "import pytest\n"
        "@pytest.fixture\ndef two():\n    yield 2\n"
        "@pytest.mark.parametrize('n', [2, 3])\ndef test_number(n, two):\n    print('said')\n    assert n == two\n"
        "@pytest.mark.skip(reason='not here')\ndef test_skipped(): pass\n"
    )
    tests = pool(tmp_path, "local", sources=tmp_path)
    tests.suite = "outside_fakes.fake_pytests"
    names = tests.list_cases()
    assert names == ["test_fake.py::test_number[2]", "test_fake.py::test_number[3]", "test_fake.py::test_skipped"]
    outcomes = tests.run(names[::-1] + names[:1], 1)
    assert [outcomes[name].outcome for name in names] == [PASS, FAIL, SKIP]
    assert outcomes[names[1]].detail == "assert 3 == 2" and "not here" in outcomes[names[2]].detail

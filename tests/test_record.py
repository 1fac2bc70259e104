"""outboard run --record: a recording matches what the program did, however the program ends."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness import EXAMPLES, OUTBOARD, ROOT, TEST_PROGRAMS, Server

WAIT_S_MAX = 60
LOOP = TEST_PROGRAMS / "loops.py"
MARKS = TEST_PROGRAMS / "marks_steps.py"


def record(
    url: str, file: Path, *command: str | Path, options: tuple[str, ...] = (), **env: str
) -> subprocess.CompletedProcess[str]:
    argv = [str(OUTBOARD), "run", "--gpu", url, "--record", str(file), *options, "--", *map(str, command)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), **env}
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=WAIT_S_MAX)


def show(file: Path, *options: str) -> dict[str, Any]:
    done = subprocess.run([OUTBOARD, "trace", "show", "--json", *options, file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def events(file: Path) -> list[dict[str, Any]]:
    out = file.with_suffix(".json")
    done = subprocess.run([OUTBOARD, "trace", "export", "--chrome", file, "-o", out], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(json.loads(out.read_text())["traceEvents"])


def of(summary: dict[str, Any], name: str) -> tuple[int, int, int]:
    """Returns calls, request bytes and response bytes of a function, over all classes."""
    parts = [f for f in summary["functions"] if f["name"] == name]
    calls, request, response = (sum(f[key] for f in parts) for key in ("calls", "request_bytes", "response_bytes"))
    return calls, request, response


@pytest.mark.smoke
@pytest.mark.parametrize("program", ["streams_events", "two_threads", "graph_capture"])
def test_every_call_is_there_by_what_it_did(server: Server, link: str, tmp_path: Path, program: str) -> None:
    file, stats = tmp_path / "a.trace", tmp_path / "stats"
    done = record(server.urls[link], file, EXAMPLES / program, OUTBOARD_STATS=str(stats))
    assert done.returncode == 0, done.stderr
    summary = show(file)
    assert summary["complete"] and summary["lost"] == 0
    recorded = {(f["name"], f["class"]): f["calls"] for f in summary["functions"] if f["class"] != "unsupported"}
    counted = {
        (name, kind): calls
        for name, kinds in json.loads(stats.read_text())["by_call"].items()
        for kind, calls in kinds.items()
        if calls > 0
    }
    # Exit handlers of the program run after the end of one or the other.
    late = {"cuLibraryUnload", "cuDevicePrimaryCtxRelease_v2", "cuModuleUnload"}
    assert {k: n for k, n in recorded.items() if k[0] not in late} == {
        k: n for k, n in counted.items() if k[0] not in late
    }
    assert summary["about"]["argv"] == [str(EXAMPLES / program)]
    assert summary["about"]["gpu"] == server.urls[link]
    assert summary["about"]["devices"] and summary["about"]["driver_version"] > 12000
    by_class = summary["by_class"]
    assert by_class["local"]["request_bytes"] == by_class["local"]["response_bytes"] == 0
    assert by_class["outstanding"]["request_bytes"] > 24 * by_class["outstanding"]["calls"]
    assert by_class["synchronous"]["response_bytes"] >= 16 * by_class["synchronous"]["calls"]
    assert summary["threads"] == (3 if program == "two_threads" else 1)
    assert sum(c["duration_ns"] for c in by_class.values()) <= summary["duration_ns"] * summary["threads"]


def test_bytes_are_the_same_over_either_link(server: Server, tmp_path: Path) -> None:
    sums = {}
    for link in ("shm", "tcp"):
        file = tmp_path / link
        assert record(server.urls[link], file, EXAMPLES / "vector_add").returncode == 0
        sums[link] = {
            name: of(show(file), name)[1:] for name in ("cuLaunchKernel", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2")
        }
    assert sums["shm"] == sums["tcp"]


def test_at_a_lower_level_calls_wait(server: Server, link: str, tmp_path: Path) -> None:
    file = tmp_path / "a.trace"
    done = record(server.urls[link], file, EXAMPLES / "vector_add", options=("--optimise", "sync"))
    assert done.returncode == 0, done.stderr
    summary = show(file)
    assert summary["about"]["optimise"] == "sync"
    launches = [f for f in summary["functions"] if f["name"] == "cuLaunchKernel"]
    assert [f["class"] for f in launches] == ["synchronous"]
    assert all(f["response_bytes"] >= 16 * f["calls"] for f in launches)


def test_a_killed_program_leaves_what_it_did(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "a.trace"
    argv = [OUTBOARD, "run", "--gpu", server.urls["shm"], "--record", file, "--", sys.executable, LOOP]
    program = subprocess.Popen(argv)
    deadline = time.monotonic() + WAIT_S_MAX
    while time.monotonic() < deadline:
        time.sleep(0.1)
        if file.exists() and file.stat().st_size > 0 and show(file)["calls"]["calls"] > 20:
            break
    program.send_signal(signal.SIGKILL)
    program.wait()
    summary = show(file)
    assert summary["calls"]["calls"] > 20 and not summary["complete"]


def test_other_files_are_not_touched(server: Server, tmp_path: Path) -> None:
    url = server.urls["shm"]
    precious = tmp_path / "precious"
    precious.write_text("do not lose me")
    for file, why in [
        (precious, "exists and is not a recording"),
        (tmp_path / "no" / "folder", "No such file"),
        (tmp_path, "Is a directory"),
        (Path("/dev/null"), "is no file"),
    ]:
        done = record(url, file, "/bin/echo", "it ran")
        assert done.returncode == 1 and "it ran" not in done.stdout, file
        assert why in done.stderr and str(file) in done.stderr, done.stderr
    assert precious.read_text() == "do not lose me"
    # A recording, or an empty file, is replaced.
    file = tmp_path / "a.trace"
    file.touch()
    for _ in range(2):
        assert record(url, file, EXAMPLES / "vector_add").returncode == 0
        assert show(file)["complete"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.trace", "precious"]


def test_a_recording_that_was_cut_off_says_what_is_not_known(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "a.trace"
    assert record(server.urls["shm"], file, EXAMPLES / "vector_add").returncode == 0
    # Before the device and the server are named.
    file.write_bytes(file.read_bytes()[:300])
    done = subprocess.run([OUTBOARD, "trace", "show", file], capture_output=True, text=True)
    assert done.returncode == 0 and "where it ran is not known" in done.stdout, done.stdout + done.stderr
    assert "not complete" in done.stdout and "on , here" not in done.stdout


def test_a_program_without_cuda_leaves_an_empty_file(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "a.trace"
    assert record(server.urls["shm"], file, "/bin/true").returncode == 0
    done = subprocess.run([OUTBOARD, "trace", "show", file], capture_output=True, text=True)
    assert done.returncode == 1 and "nothing was recorded" in done.stderr


def test_a_place_that_vanishes_does_not_harm_the_program(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    done = record(server.urls["shm"], folder / "a", "/bin/sh", "-c", f"rm -r {folder}; exec {EXAMPLES / 'vector_add'}")
    assert done.returncode == 0 and "every result is right" in done.stdout
    assert "nothing is recorded" in done.stderr


def test_a_forked_child_writes_nothing(server: Server, link: str, tmp_path: Path) -> None:
    file = tmp_path / "a.trace"
    done = record(server.urls[link], file, EXAMPLES / "fork_child")
    assert done.returncode == 0, done.stdout + done.stderr
    # The program forks four times. The first child uses CUDA before its parent does: both have a
    # file, no other process has.
    first, second = sorted(tmp_path.iterdir())
    assert first == file and second.name.startswith("a.trace.")
    for one in (first, second):
        summary = show(one)
        assert summary["complete"] and of(summary, "cuLaunchKernel")[0] == (1 if one == first else 4)


def test_a_file_for_each_process(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "a.trace"
    program = EXAMPLES / "vector_add"
    done = record(server.urls["shm"], file, "/bin/sh", "-c", f"{program} & {program} & wait; {program}; exec {program}")
    assert done.returncode == 0, done.stderr
    files = sorted(tmp_path.iterdir())
    assert len(files) == 4 and files[0] == file
    for one in files:
        assert show(one)["complete"]
        assert one == file or one.name.removeprefix("a.trace.").isdigit()


def test_marks_of_python(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "a.trace"
    done = record(server.urls["shm"], file, sys.executable, MARKS, options=("--iterations", "step"))
    assert done.returncode == 0, done.stderr
    assert show(file)["iterations"]["count"] == 4
    assert show(file, "--iterations", "Iteration of another kind")["iterations"]["count"] == 1
    assert show(file, "--iterations", "nothing")["iterations"] is None
    marks = [e["ph"] for e in events(file) if e.get("cat") == "mark" and e["name"] == "step"]
    assert marks == ["b", "e"] * 4
    # Without a recording, marks do nothing.
    for argv in ([sys.executable], [OUTBOARD, "run", "--gpu", server.urls["shm"], "--", sys.executable]):
        plain = "import outboard\nwith outboard.mark('step'): pass"
        env = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
        assert subprocess.run([*argv, "-c", plain], env=env).returncode == 0


def test_ranges_of_nvtx(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "a.trace"
    done = record(server.urls["shm"], file, sys.executable, TEST_PROGRAMS / "nvtx_ranges.py")
    assert done.returncode == 0, done.stderr
    marks = [(e["name"], e["ph"]) for e in events(file) if e.get("cat") == "mark"]
    expected = []
    for step in range(3):
        name = f"iteration {step}"
        expected += [(name, "b"), ("inner", "b"), ("registered", "b"), ("inner", "e"), (name, "e"), ("registered", "e")]
    assert marks == [*expected, ("a", "b"), ("b", "b"), ("a", "e"), ("b", "e")]
    assert show(file)["iterations"]["count"] == 3


def test_chrome_events(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "a.trace"
    assert record(server.urls["shm"], file, EXAMPLES / "two_threads").returncode == 0
    summary = show(file)
    all_events = events(file)
    calls = [e for e in all_events if e["ph"] == "X"]
    assert len(calls) == summary["calls"]["calls"]
    for event in calls:
        assert event["pid"] == 1 and isinstance(event["tid"], int) and event["ts"] >= 0 and event["dur"] >= 0
        assert event["name"].startswith("cu") and event["cat"] == event["args"]["class"]
    named = {e["tid"]: e["args"]["name"] for e in all_events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert set(named) == {e["tid"] for e in calls} and len(named) == 3
    processes = [e["args"]["name"] for e in all_events if e["ph"] == "M" and e["name"] == "process_name"]
    assert processes == [str(EXAMPLES / "two_threads")]


EVENTS = TEST_PROGRAMS / "records_events.py"
# Name, stream and event of each call about an event, in one round.
ABOUT = [
    ("cuEventRecord", 1, 1),
    ("cuEventRecordWithFlags", 2, 2),
    ("cuStreamWaitEvent", 1, 2),
    ("cuEventSynchronize", 0, 1),
    ("cuEventSynchronize", 0, 2),
    ("cuEventQuery", 0, 1),
    ("cuEventElapsedTime", 0, 1),
    ("cuEventDestroy_v2", 0, 1),
    ("cuEventDestroy", 0, 2),
]


THREADS = TEST_PROGRAMS / "many_threads.py"


def test_threads_that_come_and_go(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "a.trace"
    done = record(server.urls["shm"], file, sys.executable, THREADS)
    assert done.returncode == 0, done.stderr
    summary = show(file)
    assert summary["complete"] and summary["lost"] == 0
    assert of(summary, "cuDeviceGetCount")[0] == 80 * 50
    assert summary["threads"] == 81
    # Each thread's calls follow each other, whichever way they reached the file.
    all_calls = [e for e in events(file) if e["ph"] == "X"]
    for thread in range(81):
        calls = [e for e in all_calls if e["tid"] == thread]
        assert all(a["ts"] + a["dur"] <= b["ts"] + 0.002 for a, b in itertools.pairwise(calls))


def events_of(file: Path) -> list[tuple[str, int, int]]:
    calls = sorted((e for e in events(file) if "event" in e.get("args", {})), key=lambda e: e["ts"])
    return [(e["name"], e["args"]["stream"], e["args"]["event"]) for e in calls]


def test_calls_say_which_event_they_are_about(server: Server, link: str, tmp_path: Path) -> None:
    file = tmp_path / "a.trace"
    done = record(server.urls[link], file, sys.executable, EVENTS)
    assert done.returncode == 0, done.stderr
    # A reused handle would be another event.
    assert events_of(file) == ABOUT + [(name, stream, event + 2) for name, stream, event in ABOUT]


def test_wrong_files_are_said(tmp_path: Path) -> None:
    whole = bytes([0x89]) + b"OBTR\r\n\x1a" + (99).to_bytes(4, "little")
    for name, content, why in [
        ("text", b"hello", "not a recording"),
        ("empty", b"", "the file is empty"),
        ("version", whole, "version 99, this release reads versions 1 to 4"),
        ("short", whole[:10], "ends inside its first 12 bytes"),
    ]:
        file = tmp_path / name
        file.write_bytes(content)
        for command in (["show", file], ["export", "--chrome", file, "-o", tmp_path / "out"]):
            done = subprocess.run([OUTBOARD, "trace", *command], capture_output=True, text=True)
            assert done.returncode == 1 and why in done.stderr and str(file) in done.stderr, done.stderr
    done = subprocess.run([OUTBOARD, "trace", "show", tmp_path / "missing"], capture_output=True, text=True)
    assert done.returncode == 1 and "missing" in done.stderr


def cut(file: Path, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([OUTBOARD, "trace", "cut", file, "-o", out, *options], capture_output=True, text=True)


def test_some_iterations_are_kept(server: Server, tmp_path: Path) -> None:
    file, out = tmp_path / "a.trace", tmp_path / "b.trace"
    done = record(server.urls["shm"], file, sys.executable, MARKS, options=("--iterations", "step"))
    assert done.returncode == 0, done.stderr
    whole = show(file)
    done = cut(file, out, "--iterations", "2-3", "--program", "two of them")
    assert done.returncode == 0, done.stderr
    part = show(out)
    assert whole["iterations"]["count"] > part["iterations"]["count"] == 2 and part["about"]["argv"] == ["two of them"]
    assert 0 < part["calls"]["calls"] < whole["calls"]["calls"] and part["complete"]
    # In place, too.
    assert cut(out, out, "--iterations", "1").returncode == 0 and show(out)["iterations"]["count"] == 1
    kept = out.read_bytes()
    for options in (("--iterations", "7-9"), ("--iterations", "0-1"), ("--iterations", "x")):
        done = cut(out, out, *options)
        assert done.returncode in (1, 2) and options[1][-1] in done.stderr and out.read_bytes() == kept
    other = tmp_path / "thesis.tex"
    other.write_text("no recording")
    assert cut(file, other).returncode == 1 and other.read_text() == "no recording"
    assert not list(tmp_path.glob("*.part"))

"""outboard run --local --record: the machine's own driver is here the client library, connected to
a server."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from harness import EXAMPLES, OUTBOARD, ROOT, TEST_PROGRAMS, Server
from test_record import ABOUT, EVENTS, MARKS, events, events_of, of, record, show

DRIVER = OUTBOARD.parent / "liboutboard_client.so"
CALLS = TEST_PROGRAMS / "calls.py"
# Share of all bytes of a program, in either direction: the recorder does not know which memory and
# modules the client keeps.
TOLERANCE, TOLERANCE_BYTES = 0.02, 400
PROGRAMS = [
    "copies_2d_3d",
    "driver_api",
    "histogram_atomics",
    "host_callbacks",
    "library_kernels",
    "matmul_tiled",
    "scan",
    "streams_events",
    "vector_add",
]
# Calls of the same class in both, if no stream is idle when it is waited for.
SAME = [
    "cuLaunchKernel",
    "cuMemcpyHtoD_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuStreamWaitEvent",
    "cuStreamCreateWithPriority",
    "cuCtxGetCurrent",
]


def record_here(
    server: Server, file: Path, *command: str | Path, options: tuple[str, ...] = (), **env: str
) -> subprocess.CompletedProcess[str]:
    argv = [str(OUTBOARD), "run", "--local", "--record", str(file), *options, "--", *map(str, command)]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "python"),
        "OUTBOARD_DRIVER": str(DRIVER),
        "OUTBOARD_GPU": server.urls["tcp"],
        **env,
    }
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60)


def about_events(file: Path) -> list[tuple[str, int]]:
    """Returns the calls about an event, in order, with the event's number by first use."""
    calls = [e for e in events(file) if e["ph"] == "X" and "event" in e["args"]]
    about = [(e["name"], e["args"]["event"]) for e in sorted(calls, key=lambda e: e["ts"])]
    firsts = list(dict.fromkeys(event for _, event in about))
    assert firsts == list(range(1, len(firsts) + 1)) and len(firsts) > 1
    return about


def classes(summary: dict[str, Any], name: str) -> dict[str, int]:
    return {f["class"]: f["calls"] for f in summary["functions"] if f["name"] == name}


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_says_what_remoting_carries(server: Server, tmp_path: Path, program: str) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    done = record_here(server, here, EXAMPLES / program)
    assert done.returncode == 0 and f"{program}: every result is right" in done.stdout, done.stdout + done.stderr
    assert record(server.urls["tcp"], there, EXAMPLES / program).returncode == 0
    local, remote = show(here), show(there)
    assert local["complete"] and local["lost"] == 0
    assert local["about"]["gpu"] is None and remote["about"]["gpu"] is not None
    assert local["about"]["devices"] == remote["about"]["devices"]
    assert local["about"]["driver_version"] == remote["about"]["driver_version"]
    # The same calls, however often.
    names = {f["name"] for f in remote["functions"] if f["class"] != "unsupported"}
    for name in names:
        assert of(local, name)[0] == of(remote, name)[0], name
    assert (local["threads"], local["refused"]) == (remote["threads"], remote["refused"])
    if program == "streams_events":
        assert about_events(here) == about_events(there)
        for name in SAME:
            assert classes(local, name) == classes(remote, name) != {}, name
    for key in ("request_bytes", "response_bytes"):
        assert local["calls"][key] == pytest.approx(remote["calls"][key], rel=TOLERANCE, abs=TOLERANCE_BYTES), key
    launches = of(local, "cuLaunchKernel"), of(remote, "cuLaunchKernel")
    assert launches[0] == launches[1]


def test_python_and_marks(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "a.trace"
    done = record_here(server, file, sys.executable, MARKS, options=("--iterations", "step"))
    assert done.returncode == 0, done.stderr
    assert show(file)["iterations"]["count"] == 4
    done = record_here(server, file, sys.executable, TEST_PROGRAMS / "nvtx_ranges.py")
    assert done.returncode == 0, done.stderr
    assert show(file)["iterations"]["count"] == 3


def test_calls_say_which_event_they_are_about(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "a.trace"
    # With a driver that reuses the handles of destroyed events, as a real one may.
    done = record_here(server, file, sys.executable, EVENTS, OUTBOARD_DRIVER=str(reusing_driver(tmp_path)))
    assert done.returncode == 0, done.stderr
    assert events_of(file) == ABOUT + [(name, stream, event + 2) for name, stream, event in ABOUT]


def reusing_driver(folder: Path) -> Path:
    """Builds a driver that knows two events and does nothing."""
    source, library = folder / "driver.c", folder / "libdriver.so"
    names = (
        "Init CtxSetCurrent EventRecord EventRecordWithFlags_ptsz StreamWaitEvent EventSynchronize EventQuery"
        " EventElapsedTime StreamSynchronize"
    )
    does_nothing = [f"int cu{name}(void) {{ return 0; }}" for name in names.split()]
    source.write_text(
        "\n".join(does_nothing)
        + """
static char used[3];
int cuEventCreate(void **event, unsigned flags) {
    int at = used[1] ? 2 : 1;
    used[at] = 1;
    *event = (void *)(0x1000L * at + flags);
    return 0;
}
int cuEventDestroy_v2(void *event) { used[(long)event / 0x1000] = 0; return 0; }
int cuEventDestroy(void *event) { return cuEventDestroy_v2(event); }
int cuStreamCreate(void **stream, unsigned flags) { *stream = (void *)(0x1000L + flags); return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(0x1000L + device); return 0; }
int cuDeviceGetCount(int *count) { *count = 0; return 0; }
"""
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def test_what_is_not_recorded_passes(server: Server, tmp_path: Path) -> None:
    # The driver here does not serve this call, and returns its own error.
    done = record_here(server, tmp_path / "a", sys.executable, CALLS, "cuGreenCtxDestroy:1")
    assert done.returncode == 0 and done.stdout == "801\n", done.stdout + done.stderr
    assert "cuGreenCtxDestroy is not supported" in done.stderr


def test_a_driver_without_a_function(server: Server, tmp_path: Path) -> None:
    source, library = tmp_path / "driver.c", tmp_path / "libdriver.so"
    source.write_text(
        "int cuInit(unsigned flags) { return flags ? 1 : 0; }\nint cuDeviceGetCount(int *n) { *n = 0; return 0; }"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    calls = ["cuInit:0", "cuInit:1", "cuCtxSynchronize", "cuCtxSynchronize", "cuGreenCtxDestroy:1"]
    file = tmp_path / "a"
    done = record_here(server, file, sys.executable, CALLS, *calls, OUTBOARD_DRIVER=str(library))
    assert done.returncode == 0 and done.stdout == "0 1 500 500 500\n", done.stdout + done.stderr
    assert done.stderr.count("the driver has no cuCtxSynchronize") == 1
    assert done.stderr.count("the driver has no cuGreenCtxDestroy") == 1
    assert {f["name"]: f["calls"] for f in show(file)["functions"]} == {"cuInit": 2, "cuCtxSynchronize": 2}


def test_a_driver_that_is_none(server: Server, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no library")
    for driver in (text, tmp_path / "missing"):
        done = record_here(server, tmp_path / "a", "/bin/echo", "it ran", OUTBOARD_DRIVER=str(driver))
        assert done.returncode == 1 and "it ran" not in done.stdout
        assert str(driver) in done.stderr
    assert not (tmp_path / "a").exists()
    # Outboard's own recorder is refused as a driver.
    recorder = OUTBOARD.parent / "liboutboard_recorder.so"
    done = record_here(server, tmp_path / "a", sys.executable, CALLS, "cuInit:0", OUTBOARD_DRIVER=str(recorder))
    assert "not a driver" in done.stderr and done.stdout in ("100\n", ""), done.stdout + done.stderr


def test_local_needs_a_file() -> None:
    done = subprocess.run([OUTBOARD, "run", "--local", "--", "/bin/true"], capture_output=True, text=True)
    assert done.returncode == 2 and "--record" in done.stderr


def fake_cupti(folder: Path, *options: str) -> Path:
    """Builds a stand-in for CUPTI and for the driver that it hooks: both are one library."""
    # The real library has a different name from its wrapper.
    real = folder / "libreal.so.1"
    real.write_bytes(DRIVER.read_bytes().replace(b"libcuda.so.1\0", b"libreal.so.1\0"))
    library = folder / "libcupti.so.12"
    source = TEST_PROGRAMS / "fake_cupti.c"
    command = ["cc", "-shared", "-fPIC", "-Wall", f'-DDRIVER="{real}"', *options, "-o", library, source]
    subprocess.run([*command, "-Wl,--no-as-needed", real, "-Wl,-rpath,$ORIGIN"], check=True)
    return library


def with_fake(library: Path) -> dict[str, str]:
    return {"OUTBOARD_CUPTI": str(library), "OUTBOARD_DRIVER": str(library)}


def test_times_of_the_gpu(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "a.trace"
    cupti = fake_cupti(tmp_path)
    done = record_here(server, file, EXAMPLES / "streams_events", **with_fake(cupti))
    assert done.returncode == 0, done.stderr
    summary = show(file)
    assert summary["complete"] and summary["about"]["gpu_times"] == "cupti"
    started = ("cuLaunchKernel", "cuMemcpyHtoD_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2")
    starting = [f for f in summary["functions"] if f["name"] in started]
    # CUPTI calls the driver too, but these are not the program's calls.
    assert of(summary, "cuDeviceGetCount")[0] == 1
    kernels = summary["gpu"]["kernels"]
    assert kernels["count"] == sum(f["calls"] for f in starting) > 40
    assert (kernels["min_ns"], kernels["max_ns"]) == (7000, 7000)
    assert summary["gpu"]["short_kernels_share"] == 1 and 0 < summary["gpu"]["kernel_share"] < 1
    assert [k["name"] for k in summary["gpu"]["top_kernels"]] == ["a_kernel"]
    # Each is tied to its call, on the call's stream, and its time lies within the call's.
    trace = events(file)
    ends = {e["id"]: e for e in trace if e["ph"] == "f"}
    starts = {e["id"]: e for e in trace if e["ph"] == "s"}
    assert len(ends) == len(starts) == kernels["count"]
    for number, end in ends.items():
        # CUPTI is in the call, on another clock; the machine may be busy.
        assert 0 < end["ts"] + 1000 - starts[number]["ts"] < 100_000
    assert {e["tid"] for e in ends.values()} > {0, 1}


def test_another_cupti_is_refused_politely(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "a.trace"
    cupti = fake_cupti(tmp_path, "-DVERSION=150000")
    done = record_here(server, file, EXAMPLES / "vector_add", OUTBOARD_CUPTI=str(cupti))
    assert done.returncode == 0 and "CUPTI version 150000 are not known" in done.stderr
    # Events replace CUPTI.
    assert show(file)["complete"] and show(file)["about"]["gpu_times"] == "events"
    for value, said, times in (
        ("off", "", "events"),
        (str(tmp_path / "missing"), "cannot be loaded", "events"),
        ("none", "", "none"),
    ):
        done = record_here(server, file, EXAMPLES / "vector_add", OUTBOARD_CUPTI=value)
        assert done.returncode == 0 and said in done.stderr
        summary = show(file)
        assert summary["about"]["gpu_times"] == times and (summary["gpu"] is None) == (times == "none")


STARTING = ("cuLaunchK", "cuLaunchC", "cuMemcpy", "cuMemset", "cuGraphLaunch")


def by_events(server: Server, file: Path, *command: str | Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Runs a program; returns its calls, and the work that events timed."""
    done = record_here(server, file, *command, OUTBOARD_CUPTI="off")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    summary = show(file)
    assert summary["complete"] and summary["lost"] == 0 and summary["about"]["gpu_times"] == "events"
    complete = sorted((e for e in events(file) if e["ph"] == "X"), key=lambda e: e["ts"])
    return [e for e in complete if e["pid"] == 1], [e for e in complete if e["pid"] != 1]


def test_times_by_events(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "a.trace"
    calls, work = by_events(server, file, EXAMPLES / "streams_events")
    # None of the calls are ours.
    assert record_here(server, tmp_path / "b", EXAMPLES / "streams_events", OUTBOARD_CUPTI="none").returncode == 0
    counts = [{f["name"]: f["calls"] for f in show(f)["functions"]} for f in (file, tmp_path / "b")]
    assert counts[0] == counts[1]
    starting = [e for e in calls if e["name"].startswith(STARTING)]
    assert len(work) == len(starting) > 40
    kinds = {e["cat"] for e in work}
    assert kinds == {"kernel", "copy_to_device", "copy_to_host"}
    assert all(e["name"].startswith("_Z") for e in work if e["cat"] == "kernel")
    # Each is tied to its call, on its stream. It begins after the call, and had ended when its
    # stream was waited for.
    trace = events(file)
    starts = {e["id"]: e for e in trace if e["ph"] == "s"}
    assert len(starts) == len(work) == len({e["args"]["correlation"] for e in work})
    syncs = [e for e in calls if e["name"] in ("cuStreamSynchronize", "cuCtxSynchronize") and e["args"]["status"] == 0]
    for one in work:
        call = starts[one["args"]["correlation"]]
        assert one["ts"] > call["ts"] - SLACK_US and one["dur"] > 0
        last = [e for e in syncs if e["ts"] > call["ts"] and e["args"]["stream"] == one["tid"]]
        assert not last or one["ts"] + one["dur"] < last[0]["ts"] + last[0]["dur"] + SLACK_US
    # Work of one stream is one after the other.
    for stream in {e["tid"] for e in work}:
        mine = [e for e in work if e["tid"] == stream]
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1 for a, b in itertools.pairwise(mine))


# The GPU's clock is found over tcp here, on a busy machine.
SLACK_US = 20_000


def test_work_that_events_time_has_its_kind_and_bytes(server: Server, tmp_path: Path) -> None:
    _calls, work = by_events(server, tmp_path / "a.trace", sys.executable, TEST_PROGRAMS / "sized_work.py")
    found = Counter((e["cat"], e["args"]["bytes"]) for e in work)
    kinds = ["copy_to_device", "copy_to_host", "copy_on_device", "copy_to_device", "memset", "memset", "memset"]
    expected = Counter({(kind, 100 * (n + 1)): 100 for n, kind in enumerate(kinds)})
    # After its context was destroyed the program created another.
    assert found == expected + Counter({("memset", 800): 1})


def test_events_stay_out_of_captures(server: Server, tmp_path: Path) -> None:
    calls, work = by_events(server, tmp_path / "a.trace", EXAMPLES / "graph_capture")
    graphs = [e for e in work if e["cat"] == "graph"]
    assert len(graphs) == len([e for e in calls if e["name"] == "cuGraphLaunch"]) > 0
    captured, is_capturing = 0, False
    for call in calls:
        is_capturing |= call["name"].startswith("cuStreamBeginCapture")
        is_capturing &= call["name"] != "cuStreamEndCapture"
        captured += is_capturing and call["name"].startswith(STARTING)
    starting = [e for e in calls if e["name"].startswith(STARTING)]
    assert captured > 0 and len(work) == len(starting) - captured


@pytest.mark.parametrize("by", ["cupti", "events"])
def test_the_first_iterations_pass_untimed(server: Server, tmp_path: Path, by: str) -> None:
    how = with_fake(fake_cupti(tmp_path)) if by == "cupti" else {"OUTBOARD_CUPTI": "off"}
    for untimed, timed in ((0, 5), (3, 2), (5, 0)):
        file = tmp_path / f"{untimed}.trace"
        options = ("--untimed", str(untimed))
        done = record_here(server, file, sys.executable, TEST_PROGRAMS / "marks_copies.py", options=options, **how)
        assert done.returncode == 0, done.stderr
        summary = show(file)
        assert summary["iterations"]["count"] == 5
        assert len([e for e in events(file) if e["ph"] == "X" and e["pid"] != 1]) == timed
        assert summary["about"]["gpu_times"] == (by if timed else "none")


def test_a_recording_through_a_server_without_a_network_sharpens_what_is_required(
    server: Server, tmp_path: Path
) -> None:
    program = (sys.executable, TEST_PROGRAMS / "marks_copies.py")
    here, there, far, plain = (tmp_path / name for name in ("here", "there", "far", "plain"))
    done = record_here(server, here, *program)
    assert done.returncode == 0, done.stderr
    emulated = {there: ("--emulate", "rtt=1ns,bandwidth=100Gbps"), far: ("--emulate", "rtt=1ms"), plain: ()}
    for file, options in emulated.items():
        done = record(server.urls["shm"], file, *program, options=options)
        assert done.returncode == 0, done.stderr
    assert [show(file)["about"].get("emulated") for file in (there, far, plain, here)] == [
        "rtt=1ns,bandwidth=100Gbps",
        "rtt=1ms",
        None,
        None,
    ]

    def require(*through: Path, optimise: str = "or+sr+local") -> subprocess.CompletedProcess[str]:
        options = [part for file in through for part in ("--through", str(file))]
        options += ["--optimise", optimise]
        argv = [str(OUTBOARD), "require", str(here), "--json", "-", "--budget", "1000%", *options]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60)

    alone, both = json.loads(require().stdout), json.loads(require(there).stdout)
    known = both["without_network"]
    assert alone["without_network"] is None and known["pairs"] == 1 and known["error"] >= 0.03
    # The measured time holds there, whatever the replay says.
    assert known["network"] == {"rtt_ns": 1.0, "bits_per_s": 1e11} and known["overhead"] > -1
    assert known["level"] == "or+sr+local"
    moved = both["perfect"]["simulated"] - alone["perfect"]["simulated"]
    assert moved == pytest.approx(known["overhead"] - known["foreseen"])
    for file, says in ((far, "over rtt=1ms"), (plain, "names no emulated network"), (here, "not through a server")):
        refused = require(file)
        assert refused.returncode == 1 and says in refused.stderr, refused.stderr
    refused = require(there, optimise="or")
    assert refused.returncode == 1 and "measured at --optimise or+sr+local" in refused.stderr, refused.stderr

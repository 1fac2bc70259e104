"""CUPTI's activity interface as a profiler uses it, on the software device: `profiled.c` prints every record."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import OUTBOARD, ROOT, TEST_PROGRAMS, Server, start_server

TOOLCHAIN = ROOT / ".toolchain"
LIBCUPTI = ROOT / "target" / "debug" / "liboutboard_cupti.so"
# CUPTI's numbers.
NONE = 2**32 - 1
CUDA_MEMSET, CUDA_MEMCPY, CU_LAUNCH_KERNEL, CUDA_GRAPH_LAUNCH = 49, 31, 307, 311


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("profiled")
    (folder / "libcupti.so").symlink_to(LIBCUPTI)
    (folder / "libcupti.so.13").symlink_to(LIBCUPTI)
    built = folder / "profiled"
    flags = [f"-I{TOOLCHAIN}/include", f"-L{TOOLCHAIN}/lib", f"-L{TOOLCHAIN}/lib/stubs", f"-L{folder}"]
    libraries = ["-lcudart", "-lcuda", "-lcupti", f"-Wl,-rpath,{TOOLCHAIN}/lib:{folder}"]
    subprocess.run(["cc", *flags, "-o", built, TEST_PROGRAMS / "profiled.c", *libraries], check=True)
    subprocess.run(
        ["cc", *flags, "-o", folder / "profiled_xla", TEST_PROGRAMS / "profiled_xla.c", *libraries], check=True
    )
    yield built


def run(server: Server, link: str, program: Path, what: str, **options: object) -> tuple[list[str], str]:
    done = server.run(link, program, what, timeout=60, **options)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr}\n{server.log.read_text()[-2000:]}"
    lines = done.stdout.splitlines()
    assert lines[0] == "version 130001" and lines[-1] == "done"
    return lines, done.stderr


def records(lines: list[str], kind: str) -> list[dict[str, str]]:
    """Returns the records of a kind, each word keyed by the word before it."""
    found = []
    for line in lines:
        if line.startswith(f"{kind} call "):
            *words, at, begin, end = line.split()[1:]
            assert at == "at"
            found.append(dict(zip(words[::2], words[1::2], strict=True)) | {"at": begin, "end": end})
    return found


def pairs(line: str) -> list[tuple[str, str]]:
    words = line.split()[1:]
    return list(zip(words[::2], words[1::2], strict=True))


def between(lines: list[str]) -> tuple[int, int, int]:
    [found] = re.findall(r"^between (\d+) (\d+) dropped (\d+)$", "\n".join(lines), re.MULTILINE)
    return tuple(map(int, found))


def test_work_bears_the_number_of_its_call(server: Server, link: str, program: Path) -> None:
    lines, stderr = run(server, link, program, "all")
    runtime = {r["call"]: int(r["cbid"]) for r in records(lines, "runtime")}
    driver = {r["call"]: int(r["cbid"]) for r in records(lines, "driver")}
    [kernel] = records(lines, "kernel")
    assert (kernel["name"], kernel["grid"], kernel["block"], kernel["stream"]) == ("fill", "2", "32", "7")
    assert driver[kernel["call"]] == CU_LAUNCH_KERNEL
    [memset] = records(lines, "memset")
    assert (memset["bytes"], runtime[memset["call"]]) == ("4096", CUDA_MEMSET)
    copies = [(c["bytes"], c["kind"], c["from"], c["to"], runtime[c["call"]]) for c in records(lines, "copy")]
    # Copies from and to pageable memory of the host.
    assert copies == [("100000", "1", "1", "3", CUDA_MEMCPY), ("128", "2", "3", "1", CUDA_MEMCPY)]
    # The pushed number belongs to the call made meanwhile, and to no other.
    external = re.findall(r"external call (\d+) kind (\d) id (\d+)", "\n".join(lines))
    assert external == [(memset["call"], "3", "77")]
    # A driver call that the runtime makes has no record.
    assert not runtime.keys() & driver.keys()
    begin, end, dropped = between(lines)
    for kind in ("kernel", "memset", "copy", "runtime", "driver"):
        for record in records(lines, kind):
            assert begin <= int(record["at"]) <= int(record["end"]) <= end, (kind, record)
    calls = {r["call"]: int(r["at"]) for kind in ("runtime", "driver") for r in records(lines, kind)}
    for kind in ("kernel", "memset", "copy"):
        for record in records(lines, kind):
            # Nothing runs before its call, within the error of comparing the clocks.
            assert int(record["at"]) > calls[record["call"]] - 1_000_000
    assert dropped == 0
    assert "unsupported 27 kind 27 wrong 21" in lines
    assert stderr.count("cuptiEventGroupCreate is not supported") == 1
    assert "CUPTI_ACTIVITY_KIND_MARKER is not supported" in stderr


def test_nodes_of_a_graph_bear_graph_and_node(server: Server, link: str, program: Path) -> None:
    lines, _ = run(server, link, program, "graph")
    runtime = {r["call"]: int(r["cbid"]) for r in records(lines, "runtime")}
    nodes = records(lines, "memset")
    assert [node["bytes"] for node in nodes] == ["64", "32"]
    assert {runtime[node["call"]] for node in nodes} == {CUDA_GRAPH_LAUNCH}
    assert len({node["graph"] for node in nodes}) == 1 and nodes[0]["graph"] != "0"
    assert len({node["node"] for node in nodes}) == 2


def test_nothing_is_lost_of_ten_thousand_kernels(server: Server, link: str, program: Path) -> None:
    lines, _ = run(server, link, program, "many")
    kernels, launches = records(lines, "kernel"), records(lines, "driver")
    dropped = between(lines)[2]
    assert len(kernels) == 10_000 and dropped == 0
    assert {kernel["call"] for kernel in kernels} <= {launch["call"] for launch in launches}
    starts = [int(kernel["at"]) for kernel in kernels]
    assert starts == sorted(starts)


def test_work_beyond_its_memory_is_dropped_and_counted(server: Server, link: str, program: Path) -> None:
    lines, stderr = run(server, link, program, "dropped")
    kernels, dropped = records(lines, "kernel"), between(lines)[2]
    assert kernels and dropped and len(kernels) + dropped == 1000
    assert f"{dropped} pieces of the GPU's work are missing" in stderr
    # What is kept is the first of it.
    launches = {launch["call"]: at for at, launch in enumerate(records(lines, "driver"))}
    assert [launches[kernel["call"]] for kernel in kernels] == list(range(len(kernels)))


def test_waits_and_events(server: Server, link: str, program: Path) -> None:
    lines, _ = run(server, link, program, "waits")
    [numbers] = [list(map(int, line.split()[1:5])) for line in lines if line.startswith("numbers")]
    context, null, first, second = numbers
    assert len({null, first, second}) == 3 and "wrong 1" in "\n".join(lines)
    # The numbers are those of the work.
    streams = {memset["bytes"]: int(memset["stream"]) for memset in records(lines, "memset")}
    assert streams["11"] == first and streams["22"] == second
    assert streams["33"] not in (null, first, second)
    events = [{k: int(v) for k, v in pairs(line)} for line in lines if line.startswith("event ")]
    assert [event["stream"] for event in events] == [first, second]
    assert len({event["event"] for event in events}) == 1 and events[0]["record"] < events[1]["record"]
    event, records_of = events[0]["event"], [event["record"] for event in events]
    waits = [{k: int(v) for k, v in pairs(line.split(" at ")[0])} for line in lines if line.startswith("wait ")]
    assert {wait["context"] for wait in waits} == {context} and {wait["result"] for wait in waits} == {0}
    found = [(wait["type"], wait["stream"], wait["event"], wait["record"]) for wait in waits]
    # Type 1 to 4: for an event, of a stream for an event, for a stream, for a context.
    assert found[:5] == [
        (2, second, event, records_of[0]),
        (3, second, -1, NONE),
        (1, -1, event, records_of[0]),
        (1, -1, event, records_of[1]),
        (4, -1, -1, NONE),
    ]
    assert (3, streams["33"], -1, NONE) in found
    # Waits are of the runtime's calls, and as long as they are.
    runtime = {r["call"] for r in records(lines, "runtime")}
    assert {str(wait["call"]) for wait in waits} <= runtime
    begin, end, _ = between(lines)
    times = [list(map(int, line.split(" at ")[1].split())) for line in lines if line.startswith("wait ")]
    assert all(begin <= start <= stop <= end for start, stop in times)


def test_events_bear_the_time_at_which_the_gpu_passed_them(server: Server, link: str, program: Path) -> None:
    lines, stderr = run(server, link, program, "times")
    events = [{k: int(v) for k, v in pairs(line)} for line in lines if line.startswith("event ")]
    first, second = sorted(events, key=lambda event: event["record"])
    ends = {memset["bytes"]: int(memset["end"]) for memset in records(lines, "memset")}
    begin, end, _ = between(lines)
    # Each is recorded behind its stream's work.
    assert begin < ends["11"] <= first["passed"] < end and ends["22"] <= second["passed"] < end
    assert "DeviceTimestamps" not in stderr
    lines, _ = run(server, link, program, "waits")
    assert {dict(pairs(line))["passed"] for line in lines if line.startswith("event ")} == {"0"}


def test_records_without_a_buffer_are_counted(server: Server, program: Path) -> None:
    lines, _ = run(server, "shm", program, "stingy")
    assert between(lines)[2] >= 4 and not records(lines, "kernel")
    # A buffer that takes one record at a time.
    lines, _ = run(server, "shm", program, "small")
    assert between(lines)[2] == 0 and len(records(lines, "kernel")) == 1


def test_each_buffer_is_given_back(server: Server, program: Path) -> None:
    """One that is not aligned, at once and empty; one too many of those asked for at the same moment, likewise."""
    lines, stderr = run(server, "shm", program, "skewed")
    [(given, returned)] = re.findall(r"^given (\d+) returned (\d+)$", "\n".join(lines), re.MULTILINE)
    assert given == returned != "0"
    assert between(lines)[2] > 0 and not records(lines, "kernel")
    assert stderr.count("not aligned to 8 bytes") == 1
    lines, _ = run(server, "shm", program, "crowd")
    [(given, returned)] = re.findall(r"^given (\d+) returned (\d+)$", "\n".join(lines), re.MULTILINE)
    assert given == returned and int(given) >= 70
    # Each thread's record, and that of the call that waits for them.
    assert between(lines)[2] == 0 and len(records(lines, "runtime")) == 71


def test_a_stopped_server_does_not_stop_a_flush(tmp_path: Path, program: Path) -> None:
    """It ends with an error after ACTIVITY_ANSWER_MS_MAX; when the server goes on nothing is lost."""
    server = start_server(tmp_path, "--spare", "0")
    argv = [OUTBOARD, "run", "--gpu", server.urls["shm"], "--", program, "stopped"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    profiled = subprocess.Popen(argv, text=True, **pipes)
    assert profiled.stdin and profiled.stdout
    lines = []
    while not lines or lines[-1] != "ready":
        lines.append(profiled.stdout.readline().rstrip("\n"))
    [worker] = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    os.kill(int(worker), signal.SIGSTOP)
    try:
        profiled.stdin.write("\n")
        profiled.stdin.flush()
        while not lines[-1].startswith("flush"):
            lines.append(profiled.stdout.readline().rstrip("\n"))
    finally:
        os.kill(int(worker), signal.SIGCONT)
    found = re.fullmatch(r"flush 999 after (\d+) s", lines[-1])
    assert found and 9 <= int(found[1]) <= 15, lines[-1]
    stdout, stderr = profiled.communicate("\n", timeout=60)
    lines += stdout.splitlines()
    assert profiled.returncode == 0 and lines[-1] == "done", (lines, stderr)
    assert stderr.count("has not answered in time") == 1, stderr
    assert len(records(lines, "kernel")) == 1 and between(lines)[2] == 0
    assert server.stop() == 0


def test_functions_for_buffers_may_call_cuda(server: Server, program: Path) -> None:
    """Calls of these functions are not profiled, which would ask for a buffer again; a flush during
    a flush is refused."""
    lines, stderr = run(server, "shm", program, "calling")
    assert "inside 7" in lines and "cuptiActivityFlushAll cannot be called" in stderr
    assert between(lines)[2] == 0 and len(records(lines, "kernel")) == 1
    # The calls of work(), and the one that waits for it.
    assert len(records(lines, "runtime")) == 4


def test_a_subscriber_is_called_for_what_it_asked(server: Server, program: Path) -> None:
    lines, stderr = run(server, "shm", program, "callbacks")
    called = [line for line in lines if line.startswith("called")]
    assert called == [f"called user domain 2 cbid {CUDA_MEMSET} site {site}" for site in (0, 1)]
    assert "second 39" in lines and "nvtx 27 unknown 1" in lines
    assert "CUPTI_CB_DOMAIN_NVTX is not supported" in stderr


def test_a_profile_as_xla_makes_it(server: Server, link: str, program: Path) -> None:
    """JAX's profiler gives up at the first function that fails, and reads parameters where it is called back."""
    done = server.run(link, program.parent / "profiled_xla", timeout=60)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines[-1] == "done", f"{done.stdout[-3000:]}\n{done.stderr}"
    assert not [line for line in lines if line.startswith(("the word", "wrong", "dropped", "other"))], lines
    # None of the functions that were called is missing.
    assert "not supported" not in done.stderr
    again = lines.index("again")
    for profile in (lines[:again], lines[again + 1 :]):
        exits = [dict(pairs(line)) for line in profile if line.startswith("exit ")]
        by_name = {call["name"]: (call["call"], call) for call in exits}
        for name, what in [
            ("cuMemAlloc_v2", "4096"),
            ("cuMemcpyHtoDAsync_v2", "300"),
            ("cuMemsetD8Async", "77"),
            ("cuLaunchKernel", "5"),
        ]:
            assert by_name[name][1]["what"] == what, by_name[name]
        assert {call["device"] for call in exits} == {"0"}
        assert by_name["cuLaunchKernel"][1]["symbol"] == "fill"
        # Work bears the numbers of the calls that were told of, and its context's.
        rows = [line.split() for line in profile]
        copies = [(row[2], row[4], row[6]) for row in rows if row[0] == "copy"]
        context = by_name["cuLaunchKernel"][1]["context"]
        expected = [("cuMemcpyHtoDAsync_v2", "300"), ("cuMemcpyDtoHAsync_v2", "200")]
        assert copies == [(by_name[name][0], size, context) for name, size in expected]
        kernels = [(row[2], row[6], row[8]) for row in rows if row[0] == "kernel"]
        launch, graph_launch = by_name["cuLaunchKernel"][0], by_name["cuGraphLaunch"]
        nodes = [dict(zip(row[::2], row[1::2], strict=True)) for row in rows if row[:2] == ["resource", "13"]]
        exec_number = graph_launch[1]["what"]
        assert kernels[0] == (launch, "0", "0")
        assert kernels[1:] == [(graph_launch[0], exec_number, node["node"]) for node in nodes]
        [made] = [row for row in rows if row[:2] == ["resource", "18"]]
        assert made[5] == exec_number and [row[1] for row in rows if row[0] == "resource"] == ["9", "13", "13", "18"]


def test_twice_and_in_a_child(server: Server, program: Path) -> None:
    lines, _ = run(server, "shm", program, "twice")
    # The second profile has its own kernel, and not the one between both.
    assert len(records(lines, "kernel")) == 2
    lines, _ = run(server, "shm", program, "fork")
    assert "child 0" in lines and len(records(lines, "kernel")) == 1


def test_without_outboards_driver_it_says_so(program: Path) -> None:
    stub = program.parent / "libcuda.so.1"
    source = "int cuGetExportTable(void **t, void *i) { (void)t, (void)i; return 1; }"
    names = sorted(set(re.findall(r"\bcu[A-Z]\w+(?=\()", (TEST_PROGRAMS / "profiled.c").read_text())))
    more = "".join(f"int {name}(void) {{ return 100; }}\n" for name in names)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", stub, "-x", "c", "-", "-Wl,-soname,libcuda.so.1"],
        input=source + more + "int cuMemsetD8_v2(void){return 100;}",
        text=True,
        check=True,
    )
    environment = {"LD_LIBRARY_PATH": str(program.parent)}
    done = subprocess.run([program, "alone"], env=environment, capture_output=True, text=True, timeout=30)
    assert done.stdout.splitlines()[1:] == ["enable 15 flush 15"], done.stderr
    assert done.stderr.count("libcuda.so.1 is not Outboard's") == 1


def test_run_preloads_it_behind_what_is_there(server: Server) -> None:
    show = "import os; print(os.environ.get('LD_PRELOAD', ''))"
    loaded = server.run("shm", sys.executable, "-c", show, env={"LD_PRELOAD": "libm.so.6"}).stdout.strip()
    first, last = loaded.split(":")
    assert first == "libm.so.6" and Path(last).name == "libcupti.so.13"

"""Several servers in one program, on software devices that differ."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import EXAMPLES, OUTBOARD, TEST_PROGRAMS, Server, run_through, start_server

pytestmark = pytest.mark.smoke

PROGRAM = TEST_PROGRAMS / "several_servers.py"
FIRST = ("--capability", "8.0", "--memory", "1GiB")
SECOND = ("--capability", "9.0", "--memory", "2GiB")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    both = tuple(start_server(tmp_path_factory.mktemp("server"), *options) for options in (FIRST, SECOND))
    assert len(both) == 2
    yield both
    for server in both:
        assert server.process.poll() is None, f"the server died:\n{server.log.read_text()}"
        assert server.stop() == 0


def through(
    urls: list[str], case: str, env: dict[str, str] | None = None, *options: str
) -> subprocess.CompletedProcess[str]:
    argv = [OUTBOARD, "run", "--gpu", ",".join(urls), *options, "--", sys.executable, PROGRAM, case]
    return subprocess.run(argv, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=100)


CASES = ["kernels", "copies", "boxes", "events", "order", "peers", "threads", "races", "forks", "nvml"]


@pytest.mark.parametrize("case", CASES)
def test_several_servers(servers: tuple[Server, Server], link: str, case: str) -> None:
    done = through([server.urls[link] for server in servers], case)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("visible", "order", "devices"),
    [
        (None, None, ["0 8.0 1024", "1 9.0 2048"]),
        ("1,0", None, ["0 9.0 2048", "1 8.0 1024"]),
        ("1", None, ["0 9.0 2048"]),
        (None, "PCI_BUS_ID", ["0 8.0 1024", "1 9.0 2048"]),
    ],
)
def test_one_list(servers: tuple[Server, Server], visible: str | None, order: str | None, devices: list[str]) -> None:
    given = {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": order}
    env = {name: value for name, value in given.items() if value}
    # One over shm, one over tcp; and the same server once more, which is two GPUs with memory of their own.
    urls = [servers[0].urls["shm"], servers[1].urls["tcp"]]
    done = through(urls, "list", env)
    assert done.stdout.splitlines() == [*devices, "right"], done.stdout + done.stderr


def test_one_server_twice(servers: tuple[Server, Server]) -> None:
    urls = [servers[0].urls["shm"]] * 2
    done = through(urls, "list")
    assert done.stdout.splitlines() == ["0 8.0 1024", "1 8.0 1024", "right"], done.stdout + done.stderr
    done = through(urls, "copies")
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stdout + done.stderr


def test_swapped_devices_work(servers: tuple[Server, Server]) -> None:
    done = through([s.urls["shm"] for s in servers], "copies", {"CUDA_VISIBLE_DEVICES": "1,0"})
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stdout + done.stderr


def test_a_runtime_takes_swapped_devices(servers: tuple[Server, Server]) -> None:
    """It checks the driver by a value over all devices, in the program's order."""
    urls = ",".join(server.urls["shm"] for server in servers)
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "1,0"}
    argv = [OUTBOARD, "run", "--gpu", urls, "--", EXAMPLES / "vector_add"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_first_gpus(servers: tuple[Server, Server]) -> None:
    urls = [s.urls["shm"] for s in servers]
    done = through(urls, "list", None, "--gpus", "1")
    assert done.stdout.splitlines() == ["0 8.0 1024", "right"], done.stdout + done.stderr
    done = through(urls, "list", None, "--gpus", "3")
    assert (done.returncode, done.stdout) == (1, "") and "--gpus 3: there are 2" in done.stderr, done.stderr
    done = through(urls, "list", {"CUDA_VISIBLE_DEVICES": "1"}, "--gpus", "1")
    assert done.returncode == 1 and "leave one out" in done.stderr, done.stderr


def test_a_server_that_is_not_there(servers: tuple[Server, Server], tmp_path: Path) -> None:
    urls = [servers[0].urls["shm"], f"shm://{tmp_path}/none.sock"]
    done = through(urls, "refused")
    assert done.returncode == 1 and "none.sock" in done.stderr, done.stderr
    # One that has gone since `outboard run` looked: cuInit names it.
    inner = f'OUTBOARD_GPU={",".join(urls)} exec "$0" "$@"'
    done = run_through(urls[0], "sh", "-c", inner, sys.executable, PROGRAM, "refused")
    assert done.stdout == "CUDA_ERROR_DEVICE_UNAVAILABLE\nright\n", done.stderr
    assert "none.sock" in done.stderr, done.stderr


def test_too_many(servers: tuple[Server, Server]) -> None:
    done = through([servers[0].urls["shm"]] * 9, "refused")
    assert done.returncode != 0 and "at most 8" in done.stderr, done.stderr


def outboard(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([OUTBOARD, *argv], capture_output=True, text=True, timeout=60)


def launches(file: Path) -> list[str | None]:
    """Returns the server of each launch that succeeded, in the order of a recording."""
    out = file.with_suffix(".json")
    done = outboard("trace", "export", "--chrome", file, "-o", out)
    assert done.returncode == 0, done.stderr
    events = [one for one in json.loads(out.read_text())["traceEvents"] if one["name"] == "cuLaunchKernel"]
    return [one["args"].get("server") for one in events if one["args"]["status"] == 0]


def test_a_recording_has_the_calls_of_all_servers(servers: tuple[Server, Server], tmp_path: Path) -> None:
    urls = [servers[0].urls["shm"], servers[1].urls["tcp"]]
    whole, part = tmp_path / "a.trace", tmp_path / "b.trace"
    done = through(urls, "kernels", None, "--record", str(whole))
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stdout + done.stderr
    # One on each device, one of the first's own module, one by a stream of the second.
    assert launches(whole) == [urls[0], urls[1], urls[0], urls[1]]
    summary = json.loads(outboard("trace", "show", "--json", whole).stdout)
    of = {one["gpu"]: one for one in summary["by_server"]}
    assert list(of) == urls and summary["complete"]
    for key in ("calls", "request_bytes", "response_bytes"):
        assert sum(one[key] for one in of.values()) == summary["calls"][key], key
    assert all(one["request_bytes"] for one in of.values())
    assert [one["memory_bytes"] >> 20 for one in summary["about"]["devices"]] == [1024, 2048]
    refused = outboard("require", whole)
    assert refused.returncode == 1 and "2 servers" in refused.stderr and "--server" in refused.stderr, refused.stderr
    # One server's calls are a recording of one link.
    done = outboard("trace", "cut", whole, "-o", part, "--server", "2")
    assert done.returncode == 0, done.stderr
    second = json.loads(outboard("trace", "show", "--json", part).stdout)
    assert second["calls"]["calls"] == of[urls[1]]["calls"] and second["about"]["gpu"] == urls[1]
    assert [one["memory_bytes"] >> 20 for one in second["about"]["devices"]] == [2048]
    assert launches(part) == [None, None]
    answered = outboard("require", part)
    assert "servers" not in answered.stderr and answered.stdout, answered.stderr
    beyond = outboard("trace", "cut", whole, "-o", part, "--server", "3")
    assert beyond.returncode == 1 and "no server 3" in beyond.stderr, beyond.stderr


def test_one_server_dies(tmp_path: Path, link: str) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first, second = start_server(tmp_path / "a", *FIRST), start_server(tmp_path / "b", *SECOND)
    urls = ",".join(server.urls[link] for server in (first, second))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    argv = [OUTBOARD, "run", "--gpu", urls, "--", sys.executable, PROGRAM, "death"]
    program = subprocess.Popen(argv, text=True, **pipes)
    assert program.stdout
    assert program.stdout.readline() == "ready\n"
    supervisor = second.process.pid
    workers = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    for worker in workers:
        os.kill(int(worker), signal.SIGKILL)
    stdout, stderr = program.communicate("\n", timeout=60)
    assert (program.returncode, stdout) == (0, "right\n"), stdout + stderr
    assert "lost" in stderr
    for server in (first, second):
        server.stop()

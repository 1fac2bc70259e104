"""Endpoints that are where the GPU is, in the server's process of the session."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness import OUTBOARD, Server, start_server
from posting import build_on_gpu, by, free_address, is_right, workers_of


# Over tcp the endpoint, its rings and its adapter are in the server's process of the session.
@pytest.mark.parametrize(
    "case",
    [
        "nic soak 64 5 5 0 1",
        "nic soak 32 3 6 20000 3 gpu",
        "nic messages warp 2 2 12 6 3 33 0 20000 3",
        "nvlink soak 64 5 5 0 1",
        "nvlink messages warp 2 2 12 6 3 33 0 0 3",
    ],
)
def test_kernels_post_where_the_gpu_is(server: Server, soak_on_gpu: Path, messages_on_gpu: Path, case: str) -> None:
    provider, name, *arguments = case.split()
    program = {"soak": soak_on_gpu, "messages": messages_on_gpu}[name]
    is_right(server.run("tcp", program, *arguments, env=by(provider)))


def test_threads_of_the_cpu_post_to_and_poll_what_is_where_the_gpu_is(server: Server, host_on_gpu: Path) -> None:
    is_right(server.run("shm", host_on_gpu, "program"))
    is_right(server.run("tcp", host_on_gpu, "server"))


def test_a_look_of_another_thread_tears_no_post_and_undoes_nothing(
    server: Server, lending: Server, tmp_path: Path
) -> None:
    """What a thread has written before a doorbell is at the adapter with the doorbell, whoever sends it."""
    program = build_on_gpu(tmp_path, "looked.cu")
    is_right(server.run("tcp", program, "1000", "2"))
    is_right(lending.run("tcp", program, "1000", "2", env=by("mlx5")))


@pytest.mark.parametrize("provider", ["nic", "proxy", "mlx5"])
def test_threads_of_the_cpu_do_not_wait_for_a_session_that_is_lost(
    lending: Server, tmp_path: Path, provider: str
) -> None:
    program = build_on_gpu(tmp_path, "lost.cu")
    workers_of(lending, 1)
    command = [OUTBOARD, "run", "--gpu", lending.urls["tcp"], "--", program]
    env = {**os.environ, **by(provider)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting\n"
            time.sleep(0.5)
            os.kill(workers_of(lending, 2)[0], signal.SIGKILL)
            # A second where the processors are free.
            said = process.communicate(timeout=10)[0].splitlines()
        finally:
            process.kill()
    gone = "cause 2, syndrome 0x15, entry"
    failed = ["exclusive: ", "plain: ", "receive: ", "receive: ", "shared: "]
    waits = sorted([name + gone for name in failed] + ["poll any: -1", "poll: 0"])
    assert [line.rpartition(" ")[0] if gone in line else line for line in sorted(said[:7])] == waits
    after = ["done: cause 0, syndrome 0, entry 0", f"post: {gone} 1"] * 3
    assert said[7:-1] == after
    assert said[-1].startswith("look: -1, the endpoint is lost with its session"), said[-1]


def two_ends(servers: list[Server], program: Path, *links: str) -> list[str]:
    address = free_address()
    with ThreadPoolExecutor(2) as both:
        ends = zip(servers, links, ("listen", "connect"), strict=True)
        runs = [both.submit(at.run, link, program, role, address, "10") for at, link, role in ends]
        return [run.result().stdout for run in runs]


def test_kernels_of_two_servers_exchange_data(two_kernels: Path, tmp_path: Path) -> None:
    """The programs meet as they do without servers; the adapters' entries go from server to server."""
    (tmp_path / "closed").mkdir()
    with contextlib.ExitStack() as started:
        servers = []
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            servers.append(start_server(tmp_path / name, "--peer-copies", "127.0.0.0/8"))
            started.callback(servers[-1].stop)
        assert two_ends(servers, two_kernels, "tcp", "tcp") == ["10 of 10 rounds are right\n"] * 2
        # Two sessions of one server, too.
        assert two_ends(servers[:1] * 2, two_kernels, "tcp", "tcp") == ["10 of 10 rounds are right\n"] * 2
        closed = start_server(tmp_path / "closed")
        started.callback(closed.stop)
        # A program that has its own adapter is met by the program itself, not by its server.
        for links in (("tcp", "shm"), ("shm", "tcp")):
            assert two_ends([closed] * 2, two_kernels, *links) == ["10 of 10 rounds are right\n"] * 2
        said = two_ends([closed, servers[0]], two_kernels, "tcp", "tcp")
        assert "outboard serve --peer-copies" in said[0] and "where its server is" in said[1], said

"""Devices that a server lends programs."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import pytest

from harness import ROOT, TEST_PROGRAMS, Server
from posting import LIBRARY, build_on_gpu, by, is_right, lends

AT_SERVER = ["soak 32 5 6 0 3", "soak 1 20 5 0 1 gpu 4", "messages warp 2 2 12 6 3 33 0 0 3", "host server"]
# Completions in a ring, and more receives than are used.
PLAIN = "messages thread 32 32 10 6 4 16 1 0 4"


@pytest.mark.parametrize(("provider", "case"), [*product(("proxy", "mlx5"), [*AT_SERVER, PLAIN])])
def test_a_thread_of_the_server_posts_to_its_device_for_kernels_or_rings(
    lending: Server, soak_on_gpu: Path, messages_on_gpu: Path, host_on_gpu: Path, provider: str, case: str
) -> None:
    name, *arguments = case.split()
    program = {"soak": soak_on_gpu, "messages": messages_on_gpu, "host": host_on_gpu}[name]
    is_right(lending.run("tcp", program, *arguments, env=by(provider)))


def test_receives_that_are_left_at_a_server_are_flushed_by_a_reset(
    lending: Server, fabric: Path, tmp_path: Path
) -> None:
    program = build_on_gpu(tmp_path, "receives.cu")
    with lends(tmp_path, fabric, "OUTBOARD_NIC_COMMANDS=0") as old:
        for at, provider, kinds in (
            (lending, "nic", ([], ["plain"])),
            (lending, "proxy", ([], ["plain"])),
            (lending, "mlx5", ([], ["plain"])),
            (old, "mlx5", (["plain"],)),
        ):
            for kind in kinds:
                is_right(at.run("tcp", program, "9", *kind, env=by(provider)))
        done = old.run("tcp", program, "9", env=by("mlx5"))
        assert done.returncode == 1 and "has to be OUTBOARD_NET_PLAIN then" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("provider", ["proxy", "mlx5"])
def test_a_device_has_memory_of_the_gpu_until_it_is_freed(lending: Server, tmp_path: Path, provider: str) -> None:
    program = build_on_gpu(tmp_path, "of_gpu.cu")
    done = lending.run("tcp", program, env=by(provider))
    assert done.returncode == 0, done.stdout + done.stderr
    place, refused, right = done.stdout.splitlines()
    assert place in ("in its place", "elsewhere") and right == "right"
    assert refused.startswith("31 of 2 GiB: a session has 64 GiB registered with RDMA devices at most"), refused


def test_devices_that_are_not_lent_are_refused(server: Server, soak_on_gpu: Path) -> None:
    for provider in ("proxy", "mlx5"):
        done = server.run("tcp", soak_on_gpu, "1", "1", "5", "0", "1", env=by(provider))
        why = "outboard serve --net-device says which"
        assert done.returncode == 1 and why in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("provider", ["proxy", "mlx5"])
def test_a_session_has_128_queues_of_devices(lending: Server, provider: str) -> None:
    env = {"PYTHONPATH": f"{TEST_PROGRAMS}:{ROOT / 'python'}", **by(provider)}
    env["OUTBOARD_NET_LIBRARY"] = str(LIBRARY / "liboutboard_net.so")
    done = lending.run("tcp", sys.executable, TEST_PROGRAMS / "net" / "many.py", env=env)
    assert done.stdout.splitlines() == ["128", "a session has 128 queues of RDMA devices at most"], done.stderr

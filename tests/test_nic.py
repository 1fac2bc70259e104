"""Programs for RDMA adapters, on the adapter in software."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import OUTBOARD, TEST_PROGRAMS, start_server

# Programs of rdma-core and perftest, as two processes: what they do, and words of what they print.
PAIRS = {
    "pingpong": ("ibv_rc_pingpong -g 0 -n 50 -c", "50 iters"),
    "pingpong by events": ("ibv_rc_pingpong -g 0 -n 50 -e -c", "50 iters"),
    "pingpong by newer calls": ("ibv_rc_pingpong -g 0 -n 50 -N -c", "50 iters"),
    "pingpong with shared receives": ("ibv_srq_pingpong -g 0 -n 50 -q 4 -r 32 -c", "50 iters"),
    "latency of writes": ("ib_write_lat -n 10 -s 8", "8       10"),
    "large writes": ("ib_write_bw -n 5 -s 8388608 --use_old_post_send", "8388608    5"),
    "reads of two queues": ("ib_read_bw -n 20 -s 65536 -q 2", "65536      40"),
    "sends by events": ("ib_send_bw -n 50 -s 4096 -e", "4096       50"),
    "latency of sends by events": ("ib_send_lat -n 500 -s 64 -e", "64      500"),
    "atomics": ("ib_atomic_bw -n 50 -A CMP_AND_SWAP", "8          50"),
}


def nic_run(fabric: Path, *program: str) -> list[str]:
    return [str(OUTBOARD), "nic", "run", "--fabric", str(fabric), "--", *program]


def run(fabric: Path, *program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(nic_run(fabric, *program), capture_output=True, text=True, timeout=60)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def wait_for_listener(port: int, process: subprocess.Popen[str]) -> None:
    """Waits for the program's socket without a connection, which would be taken for its peer."""
    wanted = f":{port:04X}"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()]
        if any(line[1].endswith(wanted) and line[3] == "0A" for line in lines):
            return
        time.sleep(0.02)
    raise AssertionError(f"nobody listens at port {port}")


def test_a_program_finds_the_adapter(tmp_path: Path) -> None:
    """The exit code and the arguments are the program's own."""
    done = run(tmp_path, "sh", "-c", "ibv_devinfo -d mlx5_0 && exit 5")
    assert done.returncode == 5, done.stderr
    assert "hca_id:\tmlx5_0" in done.stdout and "PORT_ACTIVE" in done.stdout
    done = run(tmp_path, "ibv_devinfo", "-d", "mlx5_1")
    assert done.returncode != 0 and "mlx5_1" in done.stderr


def both(fabric: Path, program: str, before: Callable[[], None] = lambda: None) -> str:
    """Runs a program as server and client. Returns what the client says."""
    port = free_port()
    command = [*program.split(), "-p", str(port)]
    with subprocess.Popen(
        nic_run(fabric, *command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        try:
            wait_for_listener(port, server)
            before()
            client = run(fabric, *command, "localhost")
            said, _ = server.communicate(timeout=60)
        finally:
            server.kill()
    assert client.returncode == 0 and server.returncode == 0, client.stdout + client.stderr + said
    return client.stdout


@pytest.mark.parametrize("pair", PAIRS)
def test_two_processes_meet(tmp_path: Path, pair: str) -> None:
    """Unmodified, each with an adapter of its own. With -c, pingpong looks at what arrived."""
    program, expected = PAIRS[pair]
    said = both(tmp_path, program)
    assert expected in said, said


def test_adapters_of_two_folders_do_not_reach_each_other(tmp_path: Path) -> None:
    """Their queue pairs and keys have the same numbers: each would take its own for the other's."""
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir(mode=0o700)
    port = str(free_port())
    program = ["ibv_rc_pingpong", "-g", "0", "-n", "50", "-p", port]
    with subprocess.Popen(nic_run(folders[0], *program), stderr=subprocess.PIPE, text=True) as server:
        try:
            wait_for_listener(int(port), server)
            client = run(folders[1], *program, "localhost")
            _, said = server.communicate(timeout=60)
        finally:
            server.kill()
    assert client.returncode == 1 and server.returncode == 1, client.stdout
    assert "the peer's address is not that of the adapters of this folder" in said


def test_strangers_are_hung_up_on(tmp_path: Path) -> None:
    """Connections that say nothing, nonsense, or numbers that nobody awaits keep nobody from meeting."""
    hello = b"OBNIC\0\0\4"
    says = [
        hello + bytes.fromhex("00000100 00000100"),
        hello + bytes.fromhex("01000000 00000100"),
        b"GET / HTTP/1.1\r\n",
        b"",
    ]
    strangers: list[socket.socket] = []

    def come() -> None:
        for said in says * 20:
            stranger = socket.socket(socket.AF_UNIX)
            stranger.settimeout(30)
            stranger.connect(str(tmp_path / "1"))
            stranger.sendall(said)
            strangers.append(stranger)

    assert "50 iters" in both(tmp_path, "ibv_rc_pingpong -g 0 -n 50 -c", come)
    for stranger in strangers:
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
        stranger.close()


def test_queues_reach_the_memory_of_gpus(tmp_path: Path) -> None:
    """Two processes with a GPU each: writes, reads, sends and atomics between them, keys of memory that is freed."""
    program = tmp_path / "gpu_memory"
    source = TEST_PROGRAMS / "nic" / "gpu_memory.c"
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", source, "-o", program, "-libverbs", "-lmlx5"], check=True)
    server = start_server(tmp_path)
    try:
        done = run(tmp_path / "fabric", str(OUTBOARD), "run", "--gpu", server.urls["shm"], "--", str(program))
    finally:
        assert server.stop() == 0
    assert done.returncode == 0 and done.stdout == "right\n", done.stdout + done.stderr
    assert "mlx5dv_devx_umem_reg: memory at 0x" in done.stderr


# Limit of descriptors, and ways, of both sides; what the two say, in order.
@pytest.mark.parametrize(
    ("limits", "ways", "expected"),
    [
        ((10, 0), ("", ""), ("Too many open files", "")),
        ((0, 10), ("", ""), ("", "Too many open files")),
        ((0, 0), ("tcp", "shm"), ("", "a process shares none if its OUTBOARD_NET_WAY is tcp")),
    ],
)
def test_who_cannot_connect_says_why(
    tmp_path: Path, limits: tuple[int, int], ways: tuple[str, str], expected: tuple[str, str]
) -> None:
    port = str(free_port())
    program = ["ibv_rc_pingpong", "-g", "0", "-n", "20", "-p", port]
    ends = []
    for limit, way, peer in zip(limits, ways, ([], ["localhost"]), strict=True):
        under = ["prlimit", f"--nofile={limit}"] if limit else []
        env = {**os.environ, **({"OUTBOARD_NET_WAY": way} if way else {})}
        command = [*under, *nic_run(tmp_path, *program, *peer)]
        ends.append(subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
        if not peer:
            wait_for_listener(int(port), ends[0])
    try:
        # The one that connects gives up after 8 s, and the other then has no peer.
        connects = ends[1].communicate(timeout=60)[1]
    finally:
        for end in ends:
            end.kill()
    says = (ends[0].communicate()[1], connects)
    for said, wanted in zip(says, expected, strict=True):
        lines = [line for line in said.splitlines() if "queue pairs of two processes do not connect" in line]
        assert (len(lines) == 1 and wanted in lines[0]) if wanted else not lines, says


def test_a_program_that_is_not_there_is_said(tmp_path: Path) -> None:
    done = run(tmp_path, "/nowhere/at-all")
    assert done.returncode == 127
    assert "/nowhere/at-all" in done.stderr


def test_a_place_that_is_no_file_is_passed_by(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "1.lock")
    (tmp_path / "2").mkdir()
    (tmp_path / "3.lock").symlink_to("elsewhere")
    done = run(tmp_path, "ibv_devinfo")
    assert done.returncode == 0 and (tmp_path / "4").is_socket(), done.stderr
    (tmp_path / "address").unlink()
    os.mkfifo(tmp_path / "address")
    done = run(tmp_path, "ibv_devinfo")
    assert done.returncode != 0 and "address: this is no file" in done.stderr, done.stderr


def test_adapters_meet_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(tmp_path / "file", "ibv_devinfo")
    assert done.returncode == 1 and f"--fabric {tmp_path / 'file'}: that is no folder" in done.stderr, done.stderr

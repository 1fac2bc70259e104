"""Bad input fails with an error that describes it, and the server serves the next client."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import EXAMPLES, OUTBOARD, TEST_PROGRAMS, Server, run_through, start_server, without_run

MISUSE = TEST_PROGRAMS / "misuse.py"
# `OUTBOARD_NOISE_S=60 make programs` runs it for a minute.
NOISE_S = float(os.environ.get("OUTBOARD_NOISE_S", "6"))

INVALID_VALUE = "CUDA_ERROR_INVALID_VALUE"
INVALID_HANDLE = "CUDA_ERROR_INVALID_HANDLE"

CASES = {
    "unknown_instruction": r"CUDA_ERROR_INVALID_PTX .*frobnicate",
    "cubin_only": r"CUDA_ERROR_NO_BINARY_FOR_GPU .*sm_90",
    "later_ptx": r"CUDA_ERROR_UNSUPPORTED_PTX_VERSION .*version 10\.1",
    "million_registers": r"CUDA_ERROR_INVALID_PTX .*registers of a function is 1000000, the limit is \d+",
    "nonsense": "CUDA_ERROR_INVALID_PTX True True",
    "texture_instruction": r"CUDA_ERROR_INVALID_PTX .*line \d+.*tex\.2dms",
    "stack_overflow": "CUDA_SUCCESS CUDA_ERROR_HARDWARE_STACK_ERROR CUDA_ERROR_HARDWARE_STACK_ERROR",
    "link_missing": r"CUDA_ERROR_INVALID_PTX .*external function `nowhere`",
    "link_twice": r"CUDA_ERROR_INVALID_PTX .*`store` is defined twice",
    "half_fatbin": r"CUDA_ERROR_INVALID_IMAGE|CUDA_ERROR_NO_BINARY_FOR_GPU|CUDA_ERROR_INVALID_PTX",
    "empty_image": r"CUDA_ERROR_INVALID_\w+ CUDA_ERROR_INVALID_VALUE",
    "missing_arguments": INVALID_VALUE,
    # The rest of the pointer is zeros.
    "short_buffer": "CUDA_SUCCESS CUDA_ERROR_ILLEGAL_ADDRESS",
    "too_many_threads": INVALID_VALUE,
    "more_threads_than_compiled_for": INVALID_VALUE,
    "wild_handles": " ".join([INVALID_HANDLE] * 4 + [INVALID_VALUE, "CUDA_ERROR_INVALID_CONTEXT", INVALID_HANDLE]),
    "destroyed_handles": f"{INVALID_HANDLE} {INVALID_HANDLE}",
    "wild_pointer_in_copy": " ".join([INVALID_VALUE] * 4),
    "past_the_end": INVALID_VALUE,
    "wild_pointer_in_kernel": "CUDA_SUCCESS" + " CUDA_ERROR_ILLEGAL_ADDRESS" * 3,
    "out_of_memory": "CUDA_ERROR_OUT_OF_MEMORY CUDA_SUCCESS CUDA_SUCCESS",
    "unsupported": "CUDA_ERROR_NOT_SUPPORTED",
    "other_processes": f"{INVALID_HANDLE} False {INVALID_VALUE}\n{INVALID_VALUE} {INVALID_VALUE}",
    "long_registration": " ".join([INVALID_VALUE] * 4),
    "read_only_registration": "\n".join(
        [*[INVALID_VALUE] * 2, "CUDA_SUCCESS", *[INVALID_VALUE] * 2, "CUDA_SUCCESS CUDA_SUCCESS", "CUDA_SUCCESS 0"]
    ),
    "null_outputs": " ".join([INVALID_VALUE] * 3),
}


def still_serves(server: Server, link: str) -> None:
    done = server.run(link, EXAMPLES / "vector_add")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.smoke
@pytest.mark.parametrize("case", CASES)
def test_misuse(server: Server, link: str, case: str) -> None:
    done = server.run(link, sys.executable, MISUSE, case)
    assert done.returncode == 0, done.stderr
    assert re.match(CASES[case], done.stdout, re.DOTALL), done.stdout + done.stderr


@pytest.mark.smoke
def test_unsupported_calls_are_named(server: Server, link: str) -> None:
    done = server.run(link, sys.executable, MISUSE, "unsupported")
    assert "cuMulticastCreate is not supported" in done.stderr


def test_a_program_without_a_log_is_told_why_its_image_is_refused(server: Server, link: str) -> None:
    done = server.run(link, sys.executable, MISUSE, "refused_without_a_log")
    assert done.stdout.strip() == "CUDA_ERROR_NO_BINARY_FOR_GPU"
    assert "has no PTX" in done.stderr and "sm_90" in done.stderr, done.stderr
    assert done.stderr.count("an image was refused") == 4, done.stderr


def test_faults_name_kernel_and_address(server: Server, link: str) -> None:
    done = server.run(link, sys.executable, MISUSE, "wild_pointer_in_kernel")
    assert "store" in done.stderr and "200000123450" in done.stderr.replace("_", ""), done.stderr


@pytest.mark.parametrize("launches", [1, 2, 40])
def test_a_lost_context_is_reported_once(server: Server, link: str, launches: int) -> None:
    """Whether the error comes with the reply to a copy or with a later launch is chance, and the message is not."""
    for copies in ["1", "3"]:
        done = server.run(link, sys.executable, MISUSE, "ignores_errors", str(launches), copies)
        assert done.returncode == 0, done.stderr
        lines = [line for line in done.stderr.splitlines() if "outboard: " in line]
        assert len(lines) == 1, done.stderr
        assert lines[0].startswith("outboard: the context is lost: CUDA_ERROR_ILLEGAL_ADDRESS (700): "), lines
        assert "`store`" in lines[0] and "0x200008123450" in lines[0], lines


def worker_pids(server: Server) -> list[int]:
    """Returns the worker processes of a server that have a client, without spares."""
    columns = ["ps", "-o", "pid=,comm=", "--ppid", str(server.process.pid)]
    lines = subprocess.run(columns, capture_output=True, text=True).stdout.splitlines()
    processes = [line.split() for line in lines]
    # A worker names itself once it knows what it is for.
    return [int(pid) for pid, name in processes if name == "outboard-worker"]


def wait_until(true: object, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def start(server: Server, link: str, case: str, first_line: str) -> subprocess.Popen[str]:
    argv = [str(OUTBOARD), "run", "--gpu", server.urls[link], "--", sys.executable, str(MISUSE), case]
    client = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert client.stdout is not None
    assert client.stdout.readline().strip() == first_line
    return client


def test_client_killed_in_mid_copy(server: Server, link: str) -> None:
    before = set(worker_pids(server))
    client = start(server, link, "copy_for_ever", "copying")
    time.sleep(0.3)
    assert set(worker_pids(server)) - before
    client.kill()
    client.wait()
    wait_until(lambda: not set(worker_pids(server)) - before)
    still_serves(server, link)


def test_client_killed_beside_an_endless_kernel(server: Server, link: str) -> None:
    before = set(worker_pids(server))
    client = start(server, link, "loop_for_ever", "looping")
    assert set(worker_pids(server)) - before
    still_serves(server, link)
    client.kill()
    client.wait()
    wait_until(lambda: not set(worker_pids(server)) - before)
    still_serves(server, link)


@pytest.mark.smoke
def test_worker_killed(server: Server, link: str) -> None:
    before = set(worker_pids(server))
    client = start(server, link, "wait_for_the_end", "working")
    for pid in set(worker_pids(server)) - before:
        os.kill(pid, signal.SIGKILL)
    out, err = client.communicate(timeout=20)
    assert out.split() == ["CUDA_ERROR_DEVICE_UNAVAILABLE"] * 3, out + err
    assert err.count("the session with the GPU server is lost") == 1, err
    still_serves(server, link)


def test_server_killed(tmp_path: Path, link: str) -> None:
    server = start_server(tmp_path)
    client = start(server, link, "wait_for_the_end", "working")
    server.process.kill()
    out, err = client.communicate(timeout=30)
    assert out.split() == ["CUDA_ERROR_DEVICE_UNAVAILABLE"] * 3, out + err
    server.process.wait()
    # And without a server.
    done = run_through(server.urls[link], EXAMPLES / "vector_add", timeout=30)
    assert done.returncode != 0
    assert "no server" in done.stderr, done.stderr


def connect(url: str) -> socket.socket:
    if url.startswith("shm://"):
        raw = socket.socket(socket.AF_UNIX)
        raw.connect(url.removeprefix("shm://"))
    else:
        host, _, port = url.removeprefix("tcp://").rpartition(":")
        raw = socket.create_connection((host, int(port)))
    raw.settimeout(20)
    return raw


def test_random_bytes(server: Server, link: str) -> None:
    noise = random.Random(7)
    end = time.monotonic() + NOISE_S
    connections = 0
    while time.monotonic() < end:
        with connect(server.urls[link]) as raw:
            connections += 1
            try:
                prefix = b"OUTBOARD" if connections % 2 else b""
                raw.sendall(prefix + noise.randbytes(noise.randrange(1, 5000)))
                if connections % 3 == 0:
                    raw.shutdown(socket.SHUT_WR)
                    raw.recv(100)
            except OSError:
                pass
    assert connections > 5
    still_serves(server, link)


def captured_hello(tmp_path: Path) -> bytes:
    """Returns the first message of a real client."""
    path = tmp_path / "ear.sock"
    with socket.socket(socket.AF_UNIX) as ear:
        ear.bind(str(path))
        ear.listen()
        # A client that does not come is a failure, and no wait without end.
        ear.settimeout(60)
        env = {**without_run(tmp_path), "OUTBOARD_GPU": f"shm://{path}"}
        program = [sys.executable, TEST_PROGRAMS / "calls.py", "cuInit:0"]
        client = subprocess.Popen(program, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with ear.accept()[0] as heard:
            hello = heard.recv(65536)
        client.wait(30)
    assert hello.startswith(b"OUTBOARD")
    return hello


FRAMES = {
    "oversized": struct.pack("<I", 0x7FFF_FFFF) + b"x" * 64,
    "empty": struct.pack("<I", 0),
    "truncated": struct.pack("<I", 1000) + b"x" * 10,
    "unknown message": struct.pack("<IHHIQ", 16, 0xFFFF, 0, 1, 0),
    "cut message": struct.pack("<IHHIQ", 16, 1, 0, 1, 0),
}


@pytest.mark.parametrize("frame", FRAMES)
def test_bad_frames_after_a_good_handshake(server: Server, tmp_path: Path, frame: str) -> None:
    with connect(server.urls["tcp"]) as raw:
        raw.sendall(captured_hello(tmp_path))
        welcome = raw.recv(24, socket.MSG_WAITALL)
        assert welcome.startswith(b"OUTBOARD")
        (length,) = struct.unpack_from("<I", welcome, 12)
        raw.recv(length, socket.MSG_WAITALL)
        raw.sendall(FRAMES[frame])
        raw.shutdown(socket.SHUT_WR)
        # The session ends: the server closes the socket within bounded time.
        while raw.recv(65536):
            pass
    still_serves(server, "tcp")


def test_another_release_is_refused(server: Server, link: str, tmp_path: Path) -> None:
    hello = bytearray(captured_hello(tmp_path))
    hello[8:10] = struct.pack("<H", 999)
    with connect(server.urls[link]) as raw:
        raw.sendall(hello)
        answer = b""
        while piece := raw.recv(65536):
            answer += piece
    assert b"999" in answer and b"version" in answer, answer


@pytest.mark.parametrize("sealed", [False, True])
def test_memory_that_is_taken_away_harms_nobody(server: Server, sealed: bool, tmp_path: Path) -> None:
    preloaded = tmp_path / "shrinks.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", preloaded, TEST_PROGRAMS / "shrinks.c"], check=True)
    with server.log.open() as log:
        log.seek(0, os.SEEK_END)
        env = {"SHRINKS": str(preloaded), **({"SEALED": "1"} if sealed else {})}
        program = 'LD_PRELOAD=$SHRINKS exec "$0" "$1"'
        done = server.run("shm", "sh", "-c", program, sys.executable, TEST_PROGRAMS / "shrinks.py", env=env)
        # Sealed memory cannot shrink; unsealed memory is refused as pinned memory.
        wanted = ["0 0 True", "0 0"] if sealed else [r"[^0]\d* [^0]\d* True"]
        assert re.fullmatch("\n".join(wanted) + "\n", done.stdout), done.stdout + done.stderr
        still_serves(server, "shm")
        assert "killed" not in log.read()


# On data connections the bytes are sent by threads of the library, too.
SENDERS = [{"OUTBOARD_DATA_CONNECTIONS": "0"}, {"OUTBOARD_DATA_CONNECTIONS": "4"}]


@pytest.mark.parametrize("direction", ["to", "from"])
@pytest.mark.parametrize("how", ["nowhere", "hole"])
def test_a_copy_of_unmapped_memory_ends_the_program_alone(server: Server, link: str, direction: str, how: str) -> None:
    """The program gets the signal that it gets with a GPU of its own, and not a session that is lost."""
    for env in SENDERS if link == "tcp" else [{}]:
        done = server.run(link, sys.executable, TEST_PROGRAMS / "wild_copy.py", direction, how, env=env)
        assert done.returncode in (-signal.SIGSEGV, 128 + signal.SIGSEGV), (done.returncode, done.stderr)
        assert "outboard" not in done.stderr, done.stderr
    still_serves(server, link)


@pytest.mark.parametrize("direction", ["to", "from"])
def test_a_handler_that_maps_memory_lets_its_copy_go_on(server: Server, link: str, direction: str) -> None:
    for env in SENDERS if link == "tcp" else [{}]:
        done = server.run(link, sys.executable, TEST_PROGRAMS / "wild_copy.py", direction, "mended", env=env)
        assert (done.returncode, done.stdout) == (0, "went on\n"), (env, done.returncode, done.stderr)


@pytest.mark.parametrize("descriptors", [4, 5])
def test_a_limit_of_descriptors_is_named(server: Server, descriptors: int) -> None:
    """What comes with descriptors is cut by the kernel: the limit is this program's, and no fault of the server's."""
    limited = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", str(OUTBOARD), "run", "--gpu"]
    argv = [*limited, server.urls["shm"], "--", str(EXAMPLES / "vector_add")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "Too many open files" in done.stderr, (done.returncode, done.stderr)
    assert "misbehaved" not in done.stderr, done.stderr
    still_serves(server, "shm")


def test_a_sandbox_without_memory_files_is_named(server: Server) -> None:
    done = server.run("shm", sys.executable, TEST_PROGRAMS / "no_memfd.py", timeout=60)
    assert (done.returncode, done.stdout) == (0, "CUDA_ERROR_OUT_OF_MEMORY\n"), (done.returncode, done.stderr)
    assert "no memory that the server can map: memfd_create: Operation not permitted" in done.stderr, done.stderr
    still_serves(server, "shm")


def test_a_limit_of_a_servers_files_is_named(tmp_path: Path) -> None:
    """The rings of a session over shm are a file of the server's, and so is the software device's memory."""
    server = start_server(tmp_path, before=["prlimit", "--fsize=1000000"])
    why = "the server gets no shared memory ("
    for argv in (["run", "--gpu", server.urls["shm"], "--", "true"], ["doctor", "--gpu", server.urls["shm"]]):
        done = subprocess.run([OUTBOARD, *argv], capture_output=True, text=True, timeout=60)
        said = done.stdout + done.stderr
        assert done.returncode == 1 and why in said and "(ulimit -f)" in said, said
    assert why in server.log.read_text()
    done = server.run("tcp", EXAMPLES / "vector_add", timeout=60)
    assert done.returncode == 0, done.stderr
    assert server.stop() == 0
    assert "SIGXFSZ" not in server.log.read_text()


def test_a_limit_of_files_is_named(server: Server) -> None:
    """Shared memory counts as a file: the kernel would end the process without a word. What needs none goes on."""
    limited = ["sh", "-c", 'ulimit -f 4; exec "$@"', "sh", str(OUTBOARD), "run", "--gpu"]
    argv = [*limited, server.urls["shm"], "--", str(EXAMPLES / "vector_add")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "(ulimit -f)" in done.stderr, (done.returncode, done.stderr)
    over_tcp = [*limited, server.urls["tcp"], *argv[-2:]]
    done = subprocess.run(over_tcp, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    still_serves(server, "shm")

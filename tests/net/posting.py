"""Programs of net.h that tests build and run, and servers that lend them devices."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness import DEVICE, OUTBOARD, ROOT, TEST_PROGRAMS, Server, start_server

LIBRARY = OUTBOARD.parent
NVCC = ROOT / ".toolchain" / "bin" / "nvcc"
LINK = [f"-L{LIBRARY}", "-loutboard_net"]
# A spinning thread beside a spinning adapter makes little progress where others want the processors.
RUN_S_MAX = 240
BUILD_S_MAX = 300
EXAMPLES = ("two_kernels.cu", "loops.cu")


def build(target: Path, source: str, *command: str | Path) -> Path:
    path = ROOT / "examples" / "net" / source if source in EXAMPLES else TEST_PROGRAMS / "net" / source
    done = subprocess.run(
        [*command, "-std=c++17", "-O2", f"-I{ROOT / 'include'}", path, "-o", target, *LINK],
        capture_output=True,
        text=True,
        timeout=BUILD_S_MAX,
    )
    assert done.returncode == 0, done.stderr
    return target


def build_on_cpu(folder: Path, source: str) -> Path:
    flags = ["-x", "c++", "-Wall", "-Wextra", "-Werror", "-pthread", f"-Wl,-rpath,{LIBRARY}"]
    return build(folder / "cpu", source, "g++", *flags)


def build_on_gpu(folder: Path, source: str, *more: str) -> Path:
    flags = [*more, "-gencode", "arch=compute_80,code=compute_80", "-Xlinker", f"-rpath={LIBRARY}"]
    return build(folder / "gpu", source, NVCC, *flags)


def free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def by(provider: str) -> dict[str, str]:
    return {"OUTBOARD_NET_PROVIDER": provider}


def run(program: Path, case: str, provider: str = "nic", *under: str | Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **by(provider)}
    command = [*under, program, *case.split()]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=RUN_S_MAX)


def is_right(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(": right\n")


def with_devices(fabric: Path) -> list[str | Path]:
    """Returns the command before a program or server that has a device, of those of a folder."""
    return [OUTBOARD, "nic", "run", "--fabric", fabric, "--"]


@contextmanager
def lends(folder: Path, fabric: Path, *environment: str) -> Iterator[Server]:
    """A server that lends programs a device. The library of devices in software lies in no folder of the machine's,
    which a sandbox would let a worker read."""
    before = [*map(str, with_devices(fabric)), "env", *environment]
    server = start_server(folder, "--net-device", "any", "--sandbox", "off", before=before)
    yield server
    server.stop()


def workers_of(server: Server, count: int) -> list[int]:
    """The server's workers, once there are as many: those that have a session first, in the order of their start."""
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    deadline = time.monotonic() + 60
    while len(workers := children.read_text().split()) != count:
        assert time.monotonic() < deadline, f"{len(workers)} workers, not {count}"
        time.sleep(0.02)
    # On a GPU a waiting worker may have begun to start before those that have a session.
    waits = [Path(f"/proc/{worker}/comm").read_text() != "outboard-worker\n" for worker in workers]
    return [int(worker) for _, worker in sorted(zip(waits, workers, strict=True), key=lambda pair: pair[0])]


@contextmanager
def meeting(
    server: Server,
    ends: Path,
    *links: str,
    rounds: int | tuple[int, int],
    provider: str = "nic",
    under: Sequence[str | Path] = (),
) -> Iterator[list[subprocess.Popen[str]]]:
    """Two programs that have met, each with what it sends and receives in the GPU's memory where the endpoint reaches
    it."""
    address, processes = free_address(), []
    both_rounds = (rounds, rounds) if isinstance(rounds, int) else rounds
    reaches = DEVICE == "soft" and provider in ("nic", "proxy")
    try:
        for link, role, count in zip(links, ("listen", "connect"), both_rounds, strict=True):
            memory = ["gpu"] if provider == "nvlink" or (reaches and link == "tcp") else []
            command = [OUTBOARD, "run", "--gpu", server.urls[link], "--", ends, role, address, str(count), *memory]
            command = [*(under if link == "shm" else ()), *command]
            env = {**os.environ, **by(provider)}
            pipe = subprocess.PIPE
            processes.append(subprocess.Popen(command, env=env, stdout=pipe, stderr=subprocess.STDOUT, text=True))
        for process, link in zip(processes, links, strict=True):
            assert process.stdout is not None
            said = process.stdout.readline()
            assert said == f"met by {'server' if link == 'tcp' else 'program'}\n", said + process.stdout.read()
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()

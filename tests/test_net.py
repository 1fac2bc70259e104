"""Kernels on the software device, and threads of the CPU, that post RDMA operations to the adapter in software."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest

from harness import DEVICE, OUTBOARD, ROOT, TEST_PROGRAMS, Server, start_server

LIBRARY = OUTBOARD.parent
NVCC = ROOT / ".toolchain" / "bin" / "nvcc"
LINK = [f"-L{LIBRARY}", "-loutboard_net"]
# A spinning thread beside a spinning adapter makes little progress where others want the processors.
RUN_S_MAX = 240
BUILD_S_MAX = 300
EXAMPLES = ("two_kernels.cu", "loops.cu")
# Served in one process and asked by another: loops that the CPU drives, and those that it only starts.
DRIVEN, STARTED = "abc", "defg"
REPORT_MS = 250


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


@pytest.fixture(scope="module")
def soak_on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_on_cpu(tmp_path_factory.mktemp("soak"), "soak.cu")


@pytest.fixture(scope="module")
def soak_on_gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_on_gpu(tmp_path_factory.mktemp("soak"), "soak.cu")


@pytest.fixture(scope="module")
def messages_on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_on_cpu(tmp_path_factory.mktemp("messages"), "messages.cu")


@pytest.fixture(scope="module")
def messages_on_gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_on_gpu(tmp_path_factory.mktemp("messages"), "messages.cu")


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


# Threads, rounds of seven operations, logarithm of the ring's entries, losses of each million, seed. 9,400 rounds pass
# the 16 bits of an index; 64 threads fill a ring of 32 entries.
@pytest.mark.parametrize("case", ["1 1500 5 0 1", "64 150 5 0 1", "16 20 6 20000 3", "1 9400 5 0 1 host 4"])
def test_threads_of_the_cpu_share_a_queue(soak_on_cpu: Path, case: str) -> None:
    is_right(run(soak_on_cpu, case))


def test_a_ring_that_has_no_room_for_a_warp_is_refused(soak_on_cpu: Path, messages_on_cpu: Path) -> None:
    done = run(soak_on_cpu, "1 1 4 0 1")
    assert done.returncode == 1
    assert "a queue has 2^5 to 2^15 entries, not 2^4" in done.stdout
    done = run(messages_on_cpu, "thread 1 1 1 6 1 34 0 0 1")
    assert done.returncode == 1
    assert "one of 33 entries is signalled at least, so that a warp finds room; not one of 34" in done.stdout


# With gpu the queue's counters are in the device's memory; 4 is a queue for one thread at a time.
@pytest.mark.parametrize(
    "case", ["1 20 5 0 1", "64 10 5 0 1", "32 5 6 20000 3", "64 10 5 0 1 gpu", "32 5 6 20000 3 gpu", "1 20 5 0 1 gpu 4"]
)
def test_threads_of_a_kernel_share_a_queue(server: Server, soak_on_gpu: Path, case: str) -> None:
    """The adapter runs in the program's process: over shm its memory is the kernel's, too."""
    is_right(server.run("shm", soak_on_gpu, *case.split()))


# Scope, senders, receivers, rounds, logarithms of the ring's entries and of the receives, one of how many entries
# completes, 1 if completions lie in a ring, losses of each million, seed.
@pytest.mark.parametrize("case", ["thread 8 4 50 6 5 16 1 0 1", "thread 6 6 30 6 3 33 0 20000 2"])
def test_messages_of_threads_of_the_cpu_arrive_once(messages_on_cpu: Path, case: str) -> None:
    is_right(run(messages_on_cpu, case))


@pytest.mark.parametrize(
    "case", ["thread 32 32 20 6 4 16 1 20000 4", "warp 2 2 12 6 3 33 0 20000 3", "block 2 2 20 6 2 1 1 0 3"]
)
def test_messages_of_a_kernel_arrive_once(server: Server, messages_on_gpu: Path, case: str) -> None:
    """Groups of one, 32 and 64 threads; then a warp takes 70 flags."""
    is_right(server.run("shm", messages_on_gpu, *case.split()))


# The programs above, whose threads load and store themselves: nothing is lost then.
@pytest.mark.parametrize("case", ["1 20 5 0 1", "64 10 5 0 1", "64 10 5 0 1 gpu"])
def test_threads_of_a_kernel_reach_a_peer_by_loads_and_stores(server: Server, soak_on_gpu: Path, case: str) -> None:
    is_right(server.run("shm", soak_on_gpu, *case.split(), env=by("nvlink")))


@pytest.mark.parametrize(
    "case", ["thread 32 32 20 6 4 16 1 0 4", "warp 2 2 12 6 3 33 0 0 3", "block 2 2 20 6 2 1 1 0 3"]
)
def test_messages_by_loads_and_stores_arrive_once(server: Server, messages_on_gpu: Path, case: str) -> None:
    is_right(server.run("shm", messages_on_gpu, *case.split(), env=by("nvlink")))


def test_blocks_of_one_gpu_put_and_signal_to_each_other(server: Server, tmp_path: Path) -> None:
    """The program that gpu-check/net_peers.py times on two GPUs; bytes at odd distances, of whole and of half units."""
    program = build_on_gpu(tmp_path, "peers.cu")
    apart = ["latency thread 8 20", "latency warp 1000 5"]
    together = ["latency warp 40 5 together", "latency block 8200 3 together"]
    for case in (*apart, *together, "bandwidth 1001 3 1", "bandwidth 1000 3 2", "rate 64 5"):
        done = server.run("shm", program, *case.split())
        assert done.returncode == 0 and json.loads(done.stdout)["right"], (case, done.stdout + done.stderr)


def test_threads_of_the_cpu_load_and_store_themselves(soak_on_cpu: Path, messages_on_cpu: Path) -> None:
    is_right(run(soak_on_cpu, "16 100 5 0 1", "nvlink"))
    is_right(run(messages_on_cpu, "thread 8 4 50 6 5 16 1 0 1", "nvlink"))


def test_threads_of_the_cpu_post_to_adapters_by_commands_and_by_verbs(
    soak_on_cpu: Path, messages_on_cpu: Path, tmp_path: Path
) -> None:
    """The stand-ins of `outboard nic run` have the commands, rings and doorbells of a real one, and its verbs."""
    cases = [(soak_on_cpu, "1 200 5 0 1"), (soak_on_cpu, "16 20 6 0 3 host 1")]
    cases += [(messages_on_cpu, "thread 8 4 50 6 5 16 1 0 1"), (messages_on_cpu, "thread 6 6 30 6 3 33 0 0 2")]
    for program, case in cases:
        for provider in ("mlx5", "proxy"):
            is_right(run(program, case, provider, OUTBOARD, "nic", "run", "--fabric", tmp_path, "--"))
    # The same adapter without commands: queues of its verbs.
    under = [OUTBOARD, "nic", "run", "--fabric", tmp_path, "--", "env", "OUTBOARD_NIC_COMMANDS=0"]
    for program, case in cases[1:3]:
        is_right(run(program, case, "mlx5", *under))


CASES = ["soak 32 10 6 0 3", "soak 1 20 5 0 1 gpu 4", "messages warp 2 2 12 6 3 33 0 0 3"]


@pytest.mark.parametrize(
    ("provider", "case"), [*product(("mlx5", "proxy"), CASES), ("mlx5 by verbs", CASES[0]), ("mlx5 by verbs", CASES[2])]
)
def test_kernels_post_to_adapters_themselves_and_by_a_thread(
    server: Server, soak_on_gpu: Path, messages_on_gpu: Path, tmp_path: Path, provider: str, case: str
) -> None:
    """To a device of `outboard nic run`, whose doorbells kernels reach, or whose verbs a thread calls for them."""
    name, *arguments = case.split()
    provider, *by_verbs = provider.split(maxsplit=1)
    environment = ["env", "OUTBOARD_NIC_COMMANDS=0"] if by_verbs else []
    program = {"soak": soak_on_gpu, "messages": messages_on_gpu}[name]
    remote = [OUTBOARD, "run", "--gpu", server.urls["shm"], "--"]
    under = [OUTBOARD, "nic", "run", "--fabric", tmp_path, "--", *environment, *remote]
    is_right(run(program, " ".join(arguments), provider, *under))


# The adapter is a kernel, of one warp here: each takes its time on the software device.
BY_KERNEL = {"OUTBOARD_NET_PROVIDER": "nic", "OUTBOARD_NET_ENGINE": "gpu,warps=1"}


@pytest.mark.parametrize(
    "case",
    [
        "soak 32 5 6 0 1",
        "soak 16 5 6 0 1 gpu",
        "messages thread 32 32 10 6 4 16 1 0 4",
        "messages warp 2 2 12 6 3 33 0 0 3",
    ],
)
def test_kernels_post_to_an_adapter_that_is_a_kernel(
    server: Server, soak_on_gpu: Path, messages_on_gpu: Path, case: str
) -> None:
    name, *arguments = case.split()
    program = {"soak": soak_on_gpu, "messages": messages_on_gpu}[name]
    is_right(server.run("shm", program, *arguments, env=BY_KERNEL))
    blocks = {**BY_KERNEL, "OUTBOARD_NET_ENGINE": "gpu,blocks=2,warps=2"}
    is_right(server.run("shm", program, *arguments, env=blocks))


@pytest.fixture(scope="module")
def by_kernel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_on_gpu(tmp_path_factory.mktemp("adapter"), "adapter.cu")


def test_an_adapter_that_is_a_kernel_reaches_the_gpus_memory_and_takes_keys_while_kernels_post(
    server: Server, by_kernel: Path, soak_on_gpu: Path
) -> None:
    for case in ([], ["others"]):
        done = server.run("shm", by_kernel, *case, env=BY_KERNEL)
        assert done.returncode == 0 and done.stdout == "right\n", done.stdout + done.stderr
    for link, case, engine, why in (
        ("tcp", "1 1 5 0 1", "gpu", "only where program and GPU have the same memory"),
        ("shm", "1 1 5 20000 1", "gpu", "a perfect network alone"),
        ("shm", "1 1 5 0 1", "gpu,warps=99", "there is no engine gpu,warps=99"),
    ):
        done = server.run(link, soak_on_gpu, *case.split(), env={**BY_KERNEL, "OUTBOARD_NET_ENGINE": engine})
        assert done.returncode == 1 and why in done.stdout, done.stdout + done.stderr


def test_a_killed_program_leaves_no_kernel_that_is_an_adapter(
    server: Server, by_kernel: Path, soak_on_gpu: Path
) -> None:
    command = [OUTBOARD, "run", "--gpu", server.urls["shm"], "--", by_kernel, "linger"]
    with subprocess.Popen(command, env={**os.environ, **BY_KERNEL}, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "under way\n"
        program.kill()
    is_right(server.run("shm", soak_on_gpu, "1", "5", "5", "0", "1", env=BY_KERNEL))


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


@pytest.fixture(scope="module")
def host_on_gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_on_gpu(tmp_path_factory.mktemp("host"), "host.cu")


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


@pytest.fixture(scope="module")
def two_kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_on_gpu(tmp_path_factory.mktemp("two_kernels"), "two_kernels.cu")


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


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_on_gpu(tmp_path_factory.mktemp("ends"), "ends.cu")


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fabric")


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


@pytest.fixture(scope="module")
def lending(tmp_path_factory: pytest.TempPathFactory, fabric: Path) -> Iterator[Server]:
    with lends(tmp_path_factory.mktemp("lending"), fabric) as server:
        yield server


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


WITH_TCP = [("nic", "tcp", "shm"), ("nic", "shm", "tcp"), ("nvlink", "tcp", "tcp"), ("nvlink", "shm", "tcp")]


@pytest.mark.parametrize(("provider", "one", "other"), WITH_TCP)
def test_ends_at_a_server_and_in_a_program_meet(
    server: Server, ends: Path, provider: str, one: str, other: str
) -> None:
    with meeting(server, ends, one, other, rounds=10, provider=provider) as processes:
        said = [process.communicate(timeout=RUN_S_MAX)[0] for process in processes]
    assert said == ["10 rounds: right\n"] * 2


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


@pytest.mark.parametrize(("provider", "one", "other"), WITH_TCP)
@pytest.mark.parametrize("victim", ["program", "worker"])
def test_an_end_that_is_killed_is_an_error_of_the_other_and_leaves_nothing(
    server: Server, ends: Path, provider: str, one: str, other: str, victim: str
) -> None:
    workers_of(server, 1)
    with meeting(server, ends, one, other, rounds=10**9, provider=provider) as processes:
        workers = workers_of(server, 3)
        if victim == "program":
            processes[0].kill()
        else:
            os.kill(workers[0], signal.SIGKILL)
        start = time.monotonic()
        said = [process.communicate(timeout=RUN_S_MAX)[0] for process in processes]
        assert time.monotonic() - start < 60
        # A second of silence, then the question whether the peer is there. Who is in whose session is not known.
        assert any("syndrome 0x15" in one or "syndrome 0x5" in one for one in said), said
        assert all(process.returncode != 0 for process in processes)
    workers_of(server, 1)


LINKS = [("tcp", "tcp"), ("tcp", "shm"), ("shm", "tcp")]
BY_DEVICES = [(provider, *links) for provider, links in product(("proxy", "mlx5"), LINKS)]


@pytest.mark.parametrize(("provider", "one", "other"), BY_DEVICES)
def test_ends_of_devices_at_servers_and_of_programs_meet(
    lending: Server, ends: Path, fabric: Path, provider: str, one: str, other: str
) -> None:
    how = {"provider": provider, "under": with_devices(fabric)}
    with meeting(lending, ends, one, other, rounds=10, **how) as processes:
        said = [process.communicate(timeout=RUN_S_MAX)[0] for process in processes]
    assert said == ["10 rounds: right\n"] * 2
    # An endpoint that is closed is gone for the other.
    with meeting(lending, ends, one, other, rounds=(10, 10**9), **how) as processes:
        said = [process.communicate(timeout=RUN_S_MAX)[0] for process in processes]
    assert said[0] == "10 rounds: right\n" and "syndrome 0x15" in said[1], said


@pytest.mark.parametrize(("provider", "one", "other"), BY_DEVICES)
@pytest.mark.parametrize("victim", ["program", "worker"])
def test_an_end_of_a_device_that_is_killed_is_an_error_of_the_other(
    lending: Server, ends: Path, fabric: Path, provider: str, one: str, other: str, victim: str
) -> None:
    workers_of(lending, 1)
    how = {"provider": provider, "under": with_devices(fabric)}
    with meeting(lending, ends, one, other, rounds=10**9, **how) as processes:
        workers = workers_of(lending, 3)
        if victim == "program":
            processes[0].kill()
        else:
            os.kill(workers[0], signal.SIGKILL)
        start = time.monotonic()
        said = [process.communicate(timeout=RUN_S_MAX)[0] for process in processes]
        assert time.monotonic() - start < 60
        assert any("syndrome 0x15" in one or "syndrome 0x5" in one for one in said), said
        assert all(process.returncode != 0 for process in processes)
    workers_of(lending, 1)


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


def test_kernels_of_two_processes_exchange_data(server: Server, two_kernels: Path, tmp_path: Path) -> None:
    """Each process has an adapter of its own; the example of docs/net.md. By verbs a device of nic run, too."""
    remote = [OUTBOARD, "run", "--gpu", server.urls["shm"], "--"]
    by_verbs = [OUTBOARD, "nic", "run", "--fabric", tmp_path, "--", "env", "OUTBOARD_NET_WAY=verbs", *remote]
    for under in (["env", "OUTBOARD_NET_WAY=shm", *remote], ["env", "OUTBOARD_NET_WAY=tcp", *remote], by_verbs):
        address = free_address()
        with ThreadPoolExecutor(2) as both:
            roles = ("listen", "connect")
            ends = [both.submit(run, two_kernels, f"{role} {address} 20", "nic", *under) for role in roles]
            for done in (end.result() for end in ends):
                assert done.returncode == 0, done.stdout + done.stderr
                assert done.stdout == "20 of 20 rounds are right\n"


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ptx = tmp_path_factory.mktemp("kernels") / "kernels.ptx"
    source = TEST_PROGRAMS / "net" / "kernels.cu"
    flags = ["-std=c++17", "-arch=compute_80", "-ptx", f"-I{ROOT / 'include'}"]
    subprocess.run([NVCC, *flags, source, "-o", ptx], check=True, timeout=BUILD_S_MAX)
    return ptx


def run_python(
    server: Server, kernels: Path, *place: str, provider: str = "nic", link: str = "shm", inbox: str = "host"
) -> list[str]:
    path = f"{TEST_PROGRAMS}:{ROOT / 'python'}"
    env = {"PYTHONPATH": path, "OUTBOARD_NET_LIBRARY": str(LIBRARY / "liboutboard_net.so"), **by(provider)}
    env["INBOX"] = inbox
    done = server.run(link, sys.executable, TEST_PROGRAMS / "net" / "endpoints.py", kernels, *place, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_python_makes_endpoints_for_kernels(server: Server, kernels: Path) -> None:
    """Two queues of a process, and one in each of two."""
    refused = "this tensor is in a GPU's memory, which the adapter in software does not reach: pin it"
    expected = [refused, "an array that is not contiguous", "5 rounds are right"]
    assert run_python(server, kernels) == expected
    # With the inbox in the GPU's memory.
    assert run_python(server, kernels, provider="nvlink") == expected
    # Where the GPU is, with the inbox in its memory.
    for provider in ("nic", "nvlink", "auto"):
        assert run_python(server, kernels, provider=provider, link="tcp", inbox="gpu") == expected
    for provider in ("nic", "nvlink"):
        address = free_address()
        with ThreadPoolExecutor(2) as both:
            roles = ("listen", "connect")
            ends = [both.submit(run_python, server, kernels, role, address, provider=provider) for role in roles]
            assert [end.result() for end in ends] == [expected, expected]


def test_memory_that_kernels_and_adapters_do_not_share_is_refused(server: Server) -> None:
    """A server over shm has a copy of memory that the program registers, before or after an endpoint has it, whole or
    a part; behind a network all memory is copied, and the endpoint there has the copy, which it keeps."""
    path = f"{TEST_PROGRAMS}:{ROOT / 'python'}"
    env = {"PYTHONPATH": path, "OUTBOARD_NET_LIBRARY": str(LIBRARY / "liboutboard_net.so")}
    program = TEST_PROGRAMS / "net" / "copied.py"
    done, copied, refused = "CUDA_SUCCESS", "memory of cudaHostAlloc", "CUDA_ERROR_NOT_SUPPORTED"
    invalid, already = "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"
    says = {
        "shm": [
            done,
            f"{copied} {copied}",
            "taken",
            f"taken {refused}",
            done,
            f"{refused} {invalid} {done} {done}",
            f"{done} {invalid} CUDA_ERROR_INVALID_VALUE",
        ],
        "tcp": [
            done,
            "taken not pinned",
            "taken",
            f"not pinned {done}",
            refused,
            f"{done} {refused} {done} {refused}",
            f"{already} {done} {done}",
        ],
    }
    for link, expected in says.items():
        ran = server.run(link, sys.executable, program, env={**env, **by("nic")})
        assert ran.stdout.splitlines() == expected, ran.stderr
    assert "close the endpoint first" in ran.stderr


NONSENSE = """
import ctypes
import mmap
import os
import struct
from outboard import OutboardError, net

class Array:
    def __init__(self, typestr, is_constant=False):
        self.room = ctypes.create_string_buffer(1 << 10)
        data = (ctypes.addressof(self.room), is_constant)
        self.__array_interface__ = {"shape": (4,), "typestr": typestr, "data": data, "version": 3}

class Constant:  # says so by DLPack
    def __dlpack__(self, max_version):
        self.room = (ctypes.c_uint64 * 4)(), (ctypes.c_int64 * 1)(4)
        room, shape = map(ctypes.addressof, self.room)
        of = struct.pack("<IIQQQ QiiiBBH QQQ", 1, 0, 0, 0, 1, room, 1, 0, 1, 1, 64, 1, shape, 0, 0)
        self.of = ctypes.create_string_buffer(of)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.of), b"dltensor_versioned", None)

def said(call):
    try:
        call()
    except (OutboardError, TypeError, ValueError) as error:
        return str(error)
    raise AssertionError("taken")

page = mmap.mmap(-1, 1 << 16)
print(said(lambda: net.Endpoint(provider="mlx5")))
os.environ["OUTBOARD_NET_PROVIDER"] = "wire"
print(said(lambda: net.Endpoint()))
assert net.Endpoint(provider="nic").provider == "nic"
os.environ["OUTBOARD_NET_PROVIDER"] = ""
assert net.Endpoint().provider == "nic"
for named in (None, 3, "nic\\0x"):
    print(said(lambda: net.Endpoint(provider=named)))
del os.environ["OUTBOARD_NET_PROVIDER"]
print(said(lambda: net.Endpoint(loss_ppm=1_000_001)))
print(said(lambda: net.Endpoint(loss_ppm=-1)))
print(said(lambda: net.Endpoint(delay_ns=(2, 1))))
print(said(lambda: net.Endpoint(delay_ns=(2,))))
with net.Endpoint() as endpoint:
    print(said(lambda: endpoint.register(page, 16)))
    print(said(lambda: endpoint.register(page, 1 << 32)))
    print(said(lambda: endpoint.register(bytearray(), 1)))
    print(said(lambda: endpoint.register([1, 2])))
    print(said(lambda: endpoint.register(Array("|O"))))
    print(said(lambda: endpoint.register(Array("<u8", True))))
    print(said(lambda: endpoint.queue(memory=Array("<u8", True))))
    print(said(lambda: endpoint.register(Constant())))
    print(said(lambda: endpoint.register(b"constant")))
    for constant, size in ((Array("<u8", True), 32), (Constant(), 32), (b"constant", 8)):
        assert endpoint.register(constant, net.REMOTE_READ).bytes == size
    assert endpoint.register(Array("<U5")).bytes == 80
    assert endpoint.register(Array("<M8[ns]")).bytes == 32
    print(said(lambda: endpoint.queue((1 << 32) + 6, memory=page)))
    endpoint.queue(memory=page)
    print(said(lambda: endpoint.queue(memory=page)))
    print(said(lambda: endpoint.queue()))
"""


def test_python_takes_no_nonsense() -> None:
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "python"),
        "OUTBOARD_NET_LIBRARY": str(LIBRARY / "liboutboard_net.so"),
    }
    done = subprocess.run([sys.executable, "-c", NONSENSE], env=env, capture_output=True, text=True, timeout=RUN_S_MAX)
    assert done.returncode == 0, done.stderr
    expected = [
        "the provider mlx5 is not possible here: ",
        "there is no provider wire: auto, mlx5, nic, nvlink, proxy are there",
        "a provider is named by a text, as auto or nic, and not by None",
        "a provider is named by a text, as auto or nic, and not by 3",
        "'nic\\x00x' is no provider's name",
        "loses 1000001 of a million messages",
        "-1 is no unsigned number of 32 bits",
        "messages take 2 to 1 ns",
        "not enough values to unpack",
        "no access 0x10",
        "4294967296 is no unsigned number of 32 bits",
        "0 bytes cannot be registered",
        "a list is no tensor, array or buffer",
        "an array of |O, whose elements are objects of Python or have no size",
        "an array that may not be written: register it for reading alone, by access=net.REMOTE_READ",
        "an array that may not be written",
        "an array that may not be written",
        "a buffer that cannot be written",
        "4294967302 is no unsigned number of 32 bits",
        "a queue of this process already lies there",
        "a queue lies in memory",
    ]
    for said, part in zip(done.stdout.splitlines(), expected, strict=True):
        assert part in said


LEFT_OPEN = """
import gc
import mmap
import os
from outboard import OutboardError, net

threads = lambda: len(os.listdir("/proc/self/task"))
before = threads()
for _ in range(20):
    net.Endpoint().queue(memory=mmap.mmap(-1, 1 << 16))
gc.collect()
print(threads() - before)
exported = net.Endpoint().queue(memory=mmap.mmap(-1, 1 << 16)).exported
gc.collect()
print(threads() - before)
one, other = net.Endpoint(), net.Endpoint()
ends = [one.queue(memory=mmap.mmap(-1, 1 << 16)) for _ in range(2)]
try:
    ends[0].connect(other.queue(memory=mmap.mmap(-1, 1 << 16)))
except OutboardError as error:
    print(error)
ends[0].connect(ends[1])
if os.fork() != 0:
    assert os.wait()[1] == 0
"""


def test_an_endpoint_that_nobody_closed_ends_with_its_last_queue() -> None:
    """Its thread would read memory that is gone; at the end of the program, too, and not in a forked child."""
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "python"),
        "OUTBOARD_NET_LIBRARY": str(LIBRARY / "liboutboard_net.so"),
    }
    done = subprocess.run([sys.executable, "-c", LEFT_OPEN], env=env, capture_output=True, text=True, timeout=RUN_S_MAX)
    expected = ["0", "1", "the other queue is of another endpoint: use meet"]
    assert (done.returncode, done.stdout.splitlines()) == (0, expected), done


ANYWHERE = """
import mmap
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from outboard import OutboardError, net

for command in (["ip", "link", "set", "lo", "up"], ["ip", "address", "add", "10.99.0.1/32", "dev", "lo"]):
    subprocess.run(command, check=True)
with net.Endpoint() as one, net.Endpoint() as other:
    offers = one.register(mmap.mmap(-1, 8192))
    ends = [one.queue(memory=mmap.mmap(-1, 1 << 16)), other.queue(memory=mmap.mmap(-1, 1 << 16))]
    try:
        ends[0].meet("10.99.0.1:7000", listens=True, timeout_ms=10)
    except OutboardError as error:
        print(error)
    with ThreadPoolExecutor(2) as both:
        listening = both.submit(ends[0].meet, "10.99.0.1:7000", listens=True, offers=offers, anywhere=True)
        met = both.submit(ends[1].meet, "10.99.0.1:7000", listens=False, anywhere=True).result()
        print(met.address == offers.address, met.bytes, met.key == offers.key, listening.result().bytes)
"""


@pytest.mark.skipif(
    subprocess.run(["unshare", "-Urn", "ip", "link"], capture_output=True).returncode != 0,
    reason="NOT RUN: needs ip and user namespaces",
)
def test_processes_meet_at_other_addresses_if_both_say_so() -> None:
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "python"),
        "OUTBOARD_NET_LIBRARY": str(LIBRARY / "liboutboard_net.so"),
    }
    command = ["unshare", "-Urn", sys.executable, "-c", ANYWHERE]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=RUN_S_MAX)
    assert done.returncode == 0, done.stderr
    refused, met = done.stdout.splitlines()
    assert "queues meet at loopback addresses, unless OUTBOARD_NET_ANYWHERE is given" in refused
    assert met == "True 8192 True 0"


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_on_gpu(tmp_path_factory.mktemp("loops"), "loops.cu", "-rdc=true")


@contextmanager
def serving(server: Server, loops: Path, loop: str, address: str, link: str = "shm") -> Iterator[subprocess.Popen[str]]:
    """A server in this loop, in a group of its own."""
    command = [OUTBOARD, "run", "--gpu", server.urls[link], "--", loops, "serve", loop, address, str(REPORT_MS)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def end_of(process: subprocess.Popen[str]) -> dict[str, float]:
    said, _ = process.communicate(timeout=RUN_S_MAX)
    reports = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert reports and "loop" in reports[-1], said
    return {**reports[-1], "reports": len(reports) - 1, "said": said}


@pytest.mark.parametrize("loop", DRIVEN + STARTED)
def test_each_loop_answers_and_stops_in_the_midst_of_a_wait(server: Server, loops: Path, loop: str) -> None:
    """Requests wake nobody where the CPU only starts the loop: it wakes for its reports, and for the end."""
    address, requests = free_address(), 130 if loop == "f" else 40
    with serving(server, loops, loop, address) as process:
        # It stays, so that the loop is idle for some reports, and then told.
        ask = [loops, "ask", address, str(requests), str(RUN_S_MAX * 1000)]
        with subprocess.Popen(ask, stdout=subprocess.PIPE, text=True) as peer:
            assert peer.stdout is not None
            said = peer.stdout.readline() + peer.stdout.readline()
            time.sleep(3 * REPORT_MS / 1000)
            os.killpg(process.pid, signal.SIGTERM)
            end = end_of(process)
            peer.kill()
        assert said.endswith(f"{requests} of {requests} answers are right\n"), said
    assert process.returncode == 0, end["said"]
    assert end["served"] == requests
    assert end["stop_us"] > 0, "it was told, and did not end by itself"
    if loop in STARTED:
        assert end["wakes"] <= end["reports"] + 6, end["said"]
        assert end["cpu_percent"] < 10, end["said"]


@pytest.mark.parametrize("loop", "ag")
def test_a_loop_where_the_gpu_is_answers_a_program_without_one(server: Server, loops: Path, loop: str) -> None:
    address = free_address()
    with serving(server, loops, loop, address, "tcp") as process:
        asked = subprocess.run([loops, "ask", address, "20"], capture_output=True, text=True, timeout=RUN_S_MAX)
        end = end_of(process)
    assert asked.stdout.endswith("20 of 20 answers are right\n"), asked.stdout + end["said"]


@pytest.mark.parametrize("loop", "adefg")
def test_a_loop_ends_when_its_peer_is_killed(server: Server, loops: Path, loop: str) -> None:
    address = free_address()
    with serving(server, loops, loop, address) as process:
        peer = subprocess.Popen([loops, "ask", address, "1000000"], stdout=subprocess.DEVNULL)
        assert process.stdout is not None
        while json.loads(process.stdout.readline())["served"] < 5:
            pass
        peer.kill()
        peer.wait()
        end = end_of(process)
    assert process.returncode == 1, end["said"]
    assert "syndrome 0x15" in end["said"] or "syndrome 0x5" in end["said"], end["said"]
    assert end["stop_us"] == -1


def test_bench_net_measures_every_verb_and_says_that_it_is_software() -> None:
    command = [OUTBOARD, "bench", "net", "--quick", "--no-local", "--bytes", "1000", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert results["complete"]
    rows = {(row["verb"], row["window"]): row for row in results["rows"]}
    verbs = ("put", "put-value", "get", "fetch-add", "compare-swap", "send", "put-imm", "nop")
    assert sorted(rows) == sorted((verb, window) for verb in verbs for window in (1, 64))
    for (verb, _), row in rows.items():
        assert row["is_software"] and row["provider"] == "nic"
        assert row["us_each"] > 0 and row["registers"] > 0 and row["processors"] == 1
        assert (row["gigabytes_a_second"] > 0) == (verb != "nop")
    # A warp has no atomics here, and 33 threads are no warps.
    for more, why in (
        (["--scope", "warp", "--threads", "32", "--verb", "nop"], "do not nop"),
        # Also where the threads are no warp, which is another fault.
        (["--scope", "warp", "--verb", "get"], "do not get"),
        (["--scope", "block", "--threads", "33", "--verb", "put"], "33 threads are no whole warps"),
        (["--verb", "send", "--provider", "nic-shm"], "nobody who receives"),
        (["--verb", "send", "--threads", "1024"], "1025 threads, of which 1 receive"),
        (["--verb", "put-imm", "--queues", "2"], "a poster for each queue"),
    ):
        refused = subprocess.run([*command[:-1], *more], capture_output=True, text=True, timeout=RUN_S_MAX)
        assert refused.returncode == 2 and why in refused.stderr, refused.stderr


def test_bench_net_measures_providers_in_turns() -> None:
    bench = [OUTBOARD, "bench", "net", "--quick", "--no-local", "--bytes", "1000", "--window", "1", "--threads", "3"]
    near = ["--verb", "put,send,put-imm", "--queues", "3"]
    for before, more, providers in (
        ([], [*near, "--provider"], ("nic", "nvlink")),
        ([], ["--verb", "put", "--provider"], ("nic", "nic-gpu")),
        ([OUTBOARD, "nic", "run", "--"], ["--verb", "put,get", "--provider"], ("nic-shm", "nic-tcp", "nic-verbs")),
        ([OUTBOARD, "nic", "run", "--"], [*near, "--provider"], ("proxy", "mlx5", "nic")),
    ):
        command = [*before, *bench, *more, ",".join(providers), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX)
        assert done.returncode == 0, done.stderr
        rows = json.loads(done.stdout)["rows"]
        assert [row["provider"] for row in rows] == [*providers] * (len(rows) // len(providers))
        assert all(row["us_each"] > 0 for row in rows)
        assert all(row["processors"] == (2 if row["provider"] == "nic-gpu" else 1) for row in rows)
    refused = subprocess.run([*bench, "--provider", "mlx5"], capture_output=True, text=True, timeout=RUN_S_MAX)
    assert refused.returncode != 0 and "the provider mlx5 is not possible here" in refused.stderr, refused.stderr

"""Attacks on a server, with what must hold afterwards. Each returns the counts of what it did; a count is an argument,
so that the same attack is a test of a second and one of an hour."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from harness import EXAMPLES, OUTBOARD, PROGRAM_S_MAX, TEST_PROGRAMS, Server, start_server

HERE = Path(__file__).resolve().parent
SOAK = TEST_PROGRAMS / "soak.py"
# Errors that a program may print if its worker was killed.
LOST = ("CUDA_ERROR_DEVICE_UNAVAILABLE", "is lost", "hung up", "did not answer", "no server")
HELLO_HEADER_BYTES = 24
END_S_MAX = 20
# A server is at rest if it holds as much at so many looks in a row.
REST_LOOKS, REST_LOOK_S = 5, 0.25
# Programs of both links in a row that reach no allocation that fails.
RIGHT_IN_A_ROW = 8
PR_SET_CHILD_SUBREAPER = 36
# The words of a program that could not connect in time.
NOT_CONNECTED = "answer did not finish within"
# The last line of a program whose checksums were right.
CHECKED = re.compile(r"^(\d+) bytes right", re.MULTILINE)
# Looks at the memory of sessions that last.
LASTING_LOOKS = 12
# Growth of such a session after the first third of its time.
LASTING_GROWTH_MAX, LASTING_KIB = 0.02, 2048

Counts = dict[str, object]


def children(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def resident_kib(process: int, kind: str = "VmRSS") -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(f"{kind}:")]
    return int(line.split()[1])


def descriptors(process: int) -> int:
    return len(os.listdir(f"/proc/{process}/fd"))


def still_serves(server: Server, link: str = "shm") -> None:
    assert server.process.poll() is None, f"the server ended:\n{server.log.read_text()[-4000:]}"
    done = server.run(link, EXAMPLES / "vector_add", timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "panicked" not in server.log.read_text(errors="replace")


def sessions(server: Server) -> int:
    said = subprocess.run([OUTBOARD, "top", server.urls["shm"], "--json"], capture_output=True, timeout=60)
    return len(json.loads(said.stdout)["sessions"])


def nothing_is_left(server: Server) -> None:
    """Waits until the server has no session."""
    end = time.monotonic() + END_S_MAX
    while sessions(server):
        assert time.monotonic() < end, "sessions without programs"
        time.sleep(0.1)


def at_rest(server: Server) -> dict[str, int]:
    """Returns what a server holds once it has no session and its next spare is there."""
    nothing_is_left(server)
    held: list[dict[str, int]] = []
    end = time.monotonic() + END_S_MAX
    while len(held) < REST_LOOKS or any(one != held[-1] for one in held[-REST_LOOKS:]):
        assert time.monotonic() < end, held
        pid = server.process.pid
        workers = len(children(pid))
        held.append({"kib": resident_kib(pid), "descriptors": descriptors(pid), "processes": workers})
        time.sleep(REST_LOOK_S)
    return held[-1]


def killed_workers(server: Server, count: int, seed: int = 1, together: int = 3) -> Counts:
    """Kills workers at random moments while programs copy bytes and look at each: what a program reads is right, or it
    is told of the end."""
    choice, killed, over = random.Random(seed), 0, threading.Event()
    ends = {"right": 0, "told": 0}

    def programs(number: int) -> None:
        turn = number
        while not over.is_set():
            turn += 1
            done = server.run(["shm", "tcp"][turn % 2], sys.executable, SOAK, "0.3", "20000")
            if done.returncode == 0:
                assert "bytes right" in done.stdout
                ends["right"] += 1
                continue
            assert "WRONG" not in done.stdout + done.stderr, done.stderr
            assert any(word in done.stderr for word in LOST), done.stdout + done.stderr
            ends["told"] += 1

    with ThreadPoolExecutor(together) as pool:
        running = [pool.submit(programs, number) for number in range(together)]
        while killed < count and not any(one.done() for one in running):
            time.sleep(choice.random() * 0.3)
            workers = children(server.process.pid)
            if workers:
                try:
                    os.kill(choice.choice(workers), signal.SIGKILL)
                    killed += 1
                except ProcessLookupError:
                    continue
        over.set()
        for one in running:
            one.result()
    nothing_is_left(server)
    still_serves(server)
    return {"killed": killed, **ends}


def recorded(server: Server, program: list[str | Path]) -> tuple[bytes, list[bytes]]:
    """Returns a program's hello, and the frames that it sends."""
    host, _, port = server.urls["tcp"].removeprefix("tcp://").rpartition(":")
    streams: list[bytearray] = []
    with socket.create_server(("127.0.0.1", 0)) as ear:

        def relay() -> None:
            while True:
                try:
                    client = ear.accept()[0]
                except OSError:
                    return
                stream = bytearray()
                streams.append(stream)
                behind = socket.create_connection((host, int(port)))
                threading.Thread(target=pump, args=(client, behind, stream), daemon=True).start()
                threading.Thread(target=pump, args=(behind, client, None), daemon=True).start()

        def pump(source: socket.socket, target: socket.socket, kept: bytearray | None) -> None:
            try:
                while piece := source.recv(65536):
                    if kept is not None:
                        kept += piece
                    target.sendall(piece)
                target.shutdown(socket.SHUT_WR)
            except OSError:
                return

        threading.Thread(target=relay, daemon=True).start()
        argv = [OUTBOARD, "run", "--gpu", f"tcp://127.0.0.1:{ear.getsockname()[1]}", "--", *program]
        env = {**os.environ, "OUTBOARD_DATA_CONNECTIONS": "0"}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    stream = max(streams, key=len)
    (length,) = struct.unpack_from("<I", stream, 12)
    at = HELLO_HEADER_BYTES + length
    hello, frames = bytes(stream[:at]), []
    while at + 4 <= len(stream):
        (length,) = struct.unpack_from("<I", stream, at)
        frames.append(bytes(stream[at + 4 : at + 4 + length]))
        at += 4 + length
    return hello, frames


def mutated(frame: bytes, choice: random.Random) -> bytes:
    out = bytearray(frame)
    for _ in range(choice.randint(1, 4)):
        at = choice.randrange(len(out)) if out else 0
        match choice.randrange(4):
            case 0 if out:
                out[at] ^= 1 << choice.randrange(8)
            case 1 if out:
                out[at : at + 8] = choice.choice([0, 1, 2**63, 2**64 - 1, 2**32 - 1]).to_bytes(8, "little")
            case 2:
                del out[at:]
            case _:
                out[at:at] = choice.randbytes(choice.randint(1, 16))
    return bytes(out)


def mutated_messages(server: Server, count: int, seed: int = 1) -> Counts:
    """Sends a real program's messages with some of them changed: each session ends within its time."""
    choice = random.Random(seed)
    programs = [[EXAMPLES / name] for name in ("vector_add", "graph_nodes", "streams_events", "malloc_async")]
    kept = [recorded(server, list(program)) for program in programs]
    host, _, port = server.urls["tcp"].removeprefix("tcp://").rpartition(":")
    sent = changed = connections = 0
    while changed < count:
        hello, frames = choice.choice(kept)
        connections += 1
        with socket.create_connection((host, int(port))) as raw:
            raw.settimeout(END_S_MAX)
            raw.sendall(hello)
            welcome = raw.recv(HELLO_HEADER_BYTES, socket.MSG_WAITALL)
            assert welcome.startswith(b"OUTBOARD"), welcome
            try:
                for frame in frames:
                    if choice.random() < 0.1:
                        frame = mutated(frame, choice)
                        changed += 1
                    raw.sendall(struct.pack("<I", len(frame)) + frame)
                    sent += 1
                raw.shutdown(socket.SHUT_WR)
                while raw.recv(1 << 20):
                    pass
            except (BrokenPipeError, ConnectionResetError):
                pass
            except OSError as error:
                # A connection that the server has reset cannot be shut down; a silent one is a timeout.
                if error.errno != errno.ENOTCONN:
                    raise
    nothing_is_left(server)
    still_serves(server, "tcp")
    return {"changed": changed, "sent": sent, "sessions": connections}


def mutated_ptx(server: Server, count: int, seed: int = 1) -> Counts:
    program = [sys.executable, HERE / "loads_ptx.py", str(seed), str(count), EXAMPLES / "kernels.ptx"]
    env = {"PYTHONPATH": str(TEST_PROGRAMS)}
    done = server.run("shm", *program, env=env, timeout=60 + count)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    still_serves(server)
    return {"texts": count, "ends": done.stdout.strip()}


def sessions_in_a_row(server: Server, count: int, warm: int = 30) -> Counts:
    """One program after another leaves nothing behind in the server: memory, descriptors."""
    first = {}
    for number in range(warm + count):
        if number == warm:
            first = at_rest(server)
        done = server.run(["shm", "tcp"][number % 2], EXAMPLES / "vector_add", timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
    last = at_rest(server)
    return {"sessions": count, "first": first, "last": last, "growth": last["kib"] / first["kib"] - 1}


def sessions_at_once(server: Server, count: int) -> Counts:
    """All programs have a session at the same time, and each has its own bytes."""
    argv = [OUTBOARD, "run", "--gpu", server.urls["shm"], "--", sys.executable, TEST_PROGRAMS / "holds_memory.py"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    programs = [subprocess.Popen(argv, **pipes) for _ in range(count)]  # type: ignore[call-overload]
    for program in programs:
        assert program.stdout.readline() == "ready\n", server.log.read_text()[-4000:]
    seen = sessions(server)
    for program in programs:
        program.stdin.write("works\n")
        program.stdin.flush()
    answers = [program.stdout.readline() for program in programs]
    for program in programs:
        program.communicate(timeout=60)
    assert answers == ["works\n"] * count and seen == count, (seen, answers)
    nothing_is_left(server)
    still_serves(server)
    return {"sessions": count}


@contextmanager
def orphans_come_here() -> Iterator[None]:
    """Makes processes whose parents have ended children of this one, so that they can be found."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def files_left(folder: Path) -> set[str]:
    """Returns the files of the servers' folder and of the programs' one for temporary files, and of that for shared
    memory what has our name. What lies in a cache is meant to stay."""
    folders = (folder.glob("*/*"), Path("/dev/shm").glob("*outboard*"))
    return {str(path) for paths in folders for path in paths}


@dataclass
class Mixed:
    """Servers that differ in how programs come to them, tenants, and what their programs have done."""

    # A way to a server: its name, server and link.
    ways: list[tuple[str, Server, str]]
    tenants: dict[str, dict[str, str]]
    temporary: Path
    calls: dict[str, int] = field(default_factory=dict)
    checked_bytes: int = 0
    programs: dict[str, int] = field(default_factory=dict)
    # How often a program may come again whose connection took too long, and how many did: on a machine with other
    # work a handshake may wait for the processor for longer than its deadline.
    late_max: int = 0
    late: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def servers(self) -> list[Server]:
        return list({id(server): server for _, server, _ in self.ways}.values())

    def run(self, way: int, tenant: str, command: list[str | Path], timeout: float = PROGRAM_S_MAX) -> None:
        """Runs a program, which must say that its results are right, and counts what it did."""
        name, server, link = self.ways[way]
        with tempfile.TemporaryDirectory() as folder:
            stats = Path(folder) / "stats"
            env = {**self.tenants[tenant], "TMPDIR": str(self.temporary), "OUTBOARD_STATS": str(stats)}
            done = server.run(link, *command, env=env, timeout=timeout)
            for _ in range(self.late_max):
                if NOT_CONNECTED not in done.stderr:
                    break
                self.late += 1
                done = server.run(link, *command, env=env, timeout=timeout)
            assert done.returncode == 0, f"{done.args}:\n{done.stdout}{done.stderr}{server.log.read_text()[-4000:]}"
            calls = json.loads(stats.read_text())
        with self.lock:
            for kind in ("local", "outstanding", "shadowed", "synchronous"):
                self.calls[kind] = self.calls.get(kind, 0) + calls[kind]
            found = CHECKED.search(done.stdout)
            self.checked_bytes += int(found[1]) if found else 0
            [program, *_] = [part for part in command if part != sys.executable]
            for key in (name, f"tenant {tenant}", Path(program).stem):
                self.programs[key] = self.programs.get(key, 0) + 1


@contextmanager
def mixed_servers(folder: Path) -> Iterator[Mixed]:
    """Two servers, one plain and one with TLS, that know the tenants by tokens, and have shares."""
    folders = [folder / "plain", folder / "guarded", folder / "temporary"]
    for one in folders:
        one.mkdir()
    key, tokens, tenants = folder / "key", folder / "tokens", {}
    subprocess.run([OUTBOARD, "keygen", key], check=True, capture_output=True, timeout=20)
    for name in ("alice", "bob", "carol"):
        token = folder / name
        argv = [OUTBOARD, "token", "create", name, "--tokens", tokens]
        token.write_text(subprocess.run(argv, check=True, capture_output=True, text=True, timeout=20).stdout)
        token.chmod(0o600)
        tenants[name] = {"OUTBOARD_TOKEN_FILE": str(token), "OUTBOARD_DATA_CONNECTIONS": "2"}
    options = ["--tokens", str(tokens), "--sessions-max", "80", "--share", "sessions=8,memory=1GiB,host-memory=1GiB"]
    plain = start_server(folders[0], *options)
    guarded = start_server(folders[1], *options, "--tls", "--tls-key", str(key))
    try:
        ways = [("shm", plain, "shm"), ("tcp", plain, "tcp"), ("tcps", guarded, "tcps")]
        yield Mixed(ways, tenants, folders[2])
    finally:
        ends = [server.stop() for server in (plain, guarded)]
    assert ends == [0, 0], ends


def mixed_work(
    folder: Path, seconds: float, seed: int = 1, warm: int = 24, pause_s: float = 0.5, late_max: int = 0
) -> Counts:
    """Programs of many kinds and several tenants, each checking its own results, over shm, tcp and tcps, besides one
    session of each link that lasts all the time. Nothing of it is left: memory, descriptors, processes, files."""
    choice, own = random.Random(seed), set(children(os.getpid()))
    with orphans_come_here(), mixed_servers(folder) as mixed:
        mixed.late_max = late_max
        for number in range(warm):
            mixed.run(number % 3, choice.choice(list(mixed.tenants)), mixed_program(choice, number))
        before, files, begin = at_rest_all(mixed), files_left(folder), time.monotonic()
        mixed.calls, mixed.checked_bytes, mixed.programs = {}, 0, {}
        with ThreadPoolExecutor(5) as pool:
            lasting = [
                pool.submit(
                    mixed.run, way, tenant, lasting_program(seconds, seed + way, pause_s), seconds + PROGRAM_S_MAX
                )
                for way, tenant in enumerate(mixed.tenants)
            ]
            workers: list[dict[str, int]] = []
            while time.monotonic() - begin < seconds:
                two = [
                    pool.submit(
                        mixed.run, choice.randrange(3), choice.choice(list(mixed.tenants)), mixed_program(choice)
                    )
                    for _ in range(2)
                ]
                for one in two:
                    one.result()
                assert not any(one.done() and one.exception() for one in lasting), [one.exception() for one in lasting]
                lasted = time.monotonic() - begin
                if len(workers) / LASTING_LOOKS <= lasted / seconds < 1:
                    workers.append(lasting_kib(mixed))
            for one in lasting:
                one.result()
        took = round(time.monotonic() - begin)
        for server in mixed.servers():
            still_serves(server)
        after = at_rest_all(mixed)
        counted = ("descriptors", "processes")
        for one, other in zip(before, after, strict=True):
            assert all(one[key] == other[key] for key in counted), (before, after)
        own |= {server.process.pid for server in mixed.servers()}
        orphans = [child for child in children(os.getpid()) if child not in own]
        assert not orphans, f"{len(orphans)} processes were left"
        assert files_left(folder) <= files, files_left(folder) - files
    # A short run ends before programs and workers have all the buffers that they keep. A copy that is under way has
    # memory for a moment, so the least of the last looks counts.
    third = len(workers) // 3
    for process in workers[0] if len(workers) >= LASTING_LOOKS else ():
        early, late = (max(look[process] for look in workers[:third]), min(look[process] for look in workers[-third:]))
        assert late <= early * (1 + LASTING_GROWTH_MAX) + LASTING_KIB, (process, workers)
    return {
        "seconds": took,
        "programs": mixed.programs,
        "calls": {**mixed.calls, "all": sum(mixed.calls.values())},
        "checked_bytes": mixed.checked_bytes,
        "connections_late": mixed.late,
        "before": dict(zip(("plain", "guarded"), before, strict=True)),
        "after": dict(zip(("plain", "guarded"), after, strict=True)),
        "growth": [round(other["kib"] / one["kib"] - 1, 4) for one, other in zip(before, after, strict=True)],
        "lasting_workers_kib": workers,
        "files_left": 0,
        "orphans": 0,
    }


def at_rest_all(mixed: Mixed) -> list[dict[str, int]]:
    return [at_rest(server) for server in mixed.servers()]


def lasting_program(seconds: float, seed: int, pause_s: float) -> list[str | Path]:
    return [sys.executable, TEST_PROGRAMS / "mixed_calls.py", str(seconds), str(seed), str(pause_s)]


def lasting_kib(mixed: Mixed) -> dict[str, int]:
    """Returns the resident memory of the workers whose sessions last, and their programs', by link. It is their own:
    the pages of shared rings are touched one after the other, up to the rings' size."""
    seen = {}
    for way, server, link in mixed.ways:
        said = subprocess.run([OUTBOARD, "top", server.urls["shm"], "--json"], capture_output=True, timeout=60)
        found = [one for one in json.loads(said.stdout)["sessions"] if (one["link"] == "shm") == (link == "shm")]
        oldest = min(found, key=lambda one: one["session"])
        seen[way] = resident_kib(oldest["worker_pid"], "RssAnon")
        seen[f"{way}, program"] = resident_kib(oldest["pid"], "RssAnon")
    return seen


def mixed_program(choice: random.Random, number: int | None = None) -> list[str | Path]:
    """Returns one of the programs that check their results: the number says which, else chance."""
    examples = ["async_copies", "graph_nodes", "matmul_tiled", "managed_memory", "pinned_mapped", "malloc_async"]
    programs: list[list[str | Path]] = [[EXAMPLES / name] for name in examples]
    programs += [[sys.executable, SOAK, "1"], [sys.executable, TEST_PROGRAMS / "many_threads.py"]]
    programs += [[sys.executable, TEST_PROGRAMS / "mixed_calls.py", "1", str(choice.randrange(1 << 30))]] * 2
    return choice.choice(programs) if number is None else programs[number % len(programs)]


def faults_beside(server: Server, count: int) -> Counts:
    """Kernels of other sessions fault while two programs compute: these have every byte right, and the others the
    error that names the fault."""
    misuse = TEST_PROGRAMS / "misuse.py"
    computing = {}
    for link in ("shm", "tcp"):
        argv = [OUTBOARD, "run", "--gpu", server.urls[link], "--", *lasting_program(PROGRAM_S_MAX, 1, 0)]
        computing[link] = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert computing[link].stdout.readline() == "under way\n"
    try:
        for number in range(count):
            done = server.run(["shm", "tcp"][number % 2], sys.executable, misuse, "wild_pointer_in_kernel")
            assert done.returncode == 0 and "200000123450" in done.stderr.replace("_", ""), done.stdout + done.stderr
    finally:
        for program in computing.values():
            # It ends as if its time were over.
            program.send_signal(signal.SIGINT)
    said = {link: program.communicate(timeout=60) for link, program in computing.items()}
    pieces = {link: re.search(r"bytes right in (\d+) pieces", out) for link, (out, _) in said.items()}
    assert all(pieces.values()), said
    nothing_is_left(server)
    still_serves(server)
    return {"faults": count, "pieces": {link: int(found[1]) for link, found in pieces.items() if found}}


def preloaded(name: str, folder: Path) -> Path:
    library = folder / f"{name}.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, HERE / f"{name}.c"], check=True, timeout=60)
    return library


@contextmanager
def server_of(folder: Path, *options: str, env: dict[str, str] | None = None) -> Iterator[Server]:
    before = ["env", *(f"{name}={value}" for name, value in (env or {}).items())]
    server = start_server(folder, *options, before=before)
    yield server
    assert server.stop() == 0


def failing_allocations(folder: Path, step: int) -> Counts:
    """From one allocation of a worker on, there is no more memory: its program ends right or is told, at once, and the
    next one is served. Every so many allocations, from the first to those that no worker reaches."""
    number = folder / "number"
    number.write_text("-1")
    env = {"LD_PRELOAD": str(preloaded("failing_malloc", folder)), "FAILING_MALLOC": str(number)}
    told, at, right_in_a_row = 0, 0, 0
    with server_of(folder, "--spare", "0", env=env) as server:
        while right_in_a_row < RIGHT_IN_A_ROW:
            number.write_text(str(at))
            done = server.run(["shm", "tcp"][at // step % 2], EXAMPLES / "vector_add", timeout=60)
            right_in_a_row = right_in_a_row + 1 if done.returncode == 0 else 0
            if done.returncode != 0:
                told += 1
                assert done.stderr, "an end without a word"
                assert "WRONG" not in done.stdout
            at += step
        number.write_text("-1")
        nothing_is_left(server)
        still_serves(server)
    return {"told": told, "last": at - step, "step": step}


def jumping_clocks(folder: Path, seconds: float) -> Counts:
    """Programs and server whose time of day jumps by days, each way, with questions about heartbeats under way."""
    clock = {"LD_PRELOAD": str(preloaded("jumping_clock", folder))}
    env = {**clock, "OUTBOARD_HEARTBEAT": "0.3"}
    with server_of(folder, "--audit", str(folder / "audit"), env=env) as server:
        said = {}
        for link in ("shm", "tcp"):
            done = server.run(link, sys.executable, SOAK, str(seconds), env=env)
            assert done.returncode == 0, done.stderr + server.log.read_text()
            said[link] = done.stdout.split()[-3]
        nothing_is_left(server)
        still_serves(server)
    return {"bytes": said, "seconds": seconds}


def full_cache(folder: Path) -> Counts:
    """A cache on a disk without room; only root can make one."""
    place = folder / "cache"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "none", place], check=True, timeout=20)
    try:
        (place / "filled").write_bytes(bytes(60 << 10))
        with server_of(folder) as server:
            for link in ("shm", "tcp"):
                still_serves(server, link)
                done = server.run(link, EXAMPLES / "matmul_tiled")
                assert done.returncode == 0, done.stderr
    finally:
        subprocess.run(["umount", place], check=True, timeout=20)
    return {"programs": 4}

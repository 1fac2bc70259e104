"""A pool between real hosts, in namespaces, with faults: processes killed and stopped, links cut, and programs all the
while. `World` has the pool, `Faults` happens to it, `judge` says whether a GPU was given twice or is lost."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import OUTBOARD, TEST_PROGRAMS
from test_balance import Net

ETCDS = ["192.0.2.11", "192.0.2.12", "192.0.2.13"]
MANAGERS = ["192.0.2.21", "192.0.2.22", "192.0.2.23"]
BOXES = ["192.0.2.31", "192.0.2.32", "192.0.2.33"]
CLIENTS = ["192.0.2.41", "192.0.2.42"]
# Nothing happens to this one: it asks the managers.
WATCHER = "192.0.2.51"
POOL = ",".join(f"http://{host}:4834" for host in MANAGERS)
GPUS_A_BOX = 2
GPUS = GPUS_A_BOX * len(BOXES)
TERM_S = 4
# Longer than a lease and the manager's margin after its deadline.
STOPPED_S = (7.0, 10.0)
# Programs that run at a time, the GPUs of each, and the time that each works.
PROGRAMS, WANTED, WORKS_S = 6, (1, 1, 1, 2, 3), (1.0, 9.0)
# Time after which everything is free when nothing happens any more, and time for one answer.
CALM_S_MAX, ANSWER_S_MAX = 150, 30
LOST, WRONG = 3, 8


@dataclass
class Part:
    """A process of the pool that is started again whenever it has ended."""

    name: str
    host: str
    argv: list[str]
    process: subprocess.Popen[str] | None = None
    # Time at which it is started.
    at: float = 0.0
    is_stopped: bool = False


@dataclass
class Program:
    name: str
    process: subprocess.Popen[str]
    said: Path
    # What was done to it, if anything.
    fault: str | None = None
    is_stopped: bool = False
    until: float = 0.0


@dataclass
class Found:
    """What has been seen so far."""

    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    uses: list[dict[str, Any]] = field(default_factory=list)
    audit: list[dict[str, Any]] = field(default_factory=list)
    calms_s: list[float] = field(default_factory=list)


class World:
    """Three members of etcd, three managers, three boxes and two hosts of programs, each in a namespace of its own."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path, seed: int) -> None:
        self.stack, self.folder, self.rng = stack, folder, random.Random(seed)
        for name in ("uses", "marks", "said"):
            (folder / name).mkdir()
        self.net = Net(stack)
        for host in [*ETCDS, *MANAGERS, *BOXES, *CLIENTS, WATCHER]:
            self.net.add(host)
        self.ports = {host: number for number, host in enumerate(self.net.hosts, 1)}
        self.found = Found()
        self.programs: list[Program] = []
        self.last = 0
        self.etcds = [self.etcd(at) for at in range(3)]
        self.managers = [self.manager(at) for at in range(3)]
        self.boxes = [self.box(at) for at in range(3)]
        stack.callback(self.end)

    @property
    def parts(self) -> list[Part]:
        return [*self.etcds, *self.managers, *self.boxes]

    def etcd(self, at: int) -> Part:
        host, folder = ETCDS[at], self.folder
        cluster = ",".join(f"m{number}=http://{of}:2380" for number, of in enumerate(ETCDS))
        argv = ["etcd", "--name", f"m{at}", "--data-dir", str(folder / f"etcd{at}"), "--initial-cluster", cluster]
        argv += ["--listen-client-urls", f"http://{host}:2379", "--advertise-client-urls", f"http://{host}:2379"]
        argv += ["--listen-peer-urls", f"http://{host}:2380", "--initial-advertise-peer-urls", f"http://{host}:2380"]
        return Part(f"etcd{at}", host, argv)

    def manager(self, at: int) -> Part:
        store = "etcd://" + ",".join(f"{of}:2379" for of in ETCDS) + "/faults"
        argv = [str(OUTBOARD), "pool", "serve", "--store", store, "--grant-key", str(self.folder / "grants.key")]
        argv += ["--insecure", "--listen", f"{MANAGERS[at]}:4834"]
        return Part(f"manager{at}", MANAGERS[at], argv)

    def box(self, at: int) -> Part:
        argv = [str(OUTBOARD), "serve", "--no-config", "--device", "soft", "--devices", str(GPUS_A_BOX), "--no-cache"]
        argv += ["--insecure", "--listen", f"tcp://{BOXES[at]}:4833", "--pool", POOL]
        argv += ["--pool-name", f"box{at}", "--pool-state", str(self.folder / f"box{at}")]
        return Part(f"box{at}", BOXES[at], argv)

    def tick(self) -> None:
        """Starts what has ended, programs too, and looks at programs that have ended."""
        now = time.monotonic()
        for part in self.parts:
            if part.process is not None and part.process.poll() is not None:
                part.process, part.at = None, max(part.at, now + 0.3)
            if part.process is None and now >= part.at:
                with (self.folder / f"{part.name}.log").open("a") as log:
                    argv = [*self.net.at(part.host), *part.argv]
                    part.process = subprocess.Popen(argv, stdout=log, stderr=log, text=True, start_new_session=True)
        for program in list(self.programs):
            code = program.process.poll()
            if code is not None:
                self.programs.remove(program)
                self.ended(program, code)
            elif now > program.until and not program.is_stopped:
                program.fault = "hung"
                self.found.wrong.append(f"{program.name} does not end")
                program.process.kill()

    def start_program(self) -> None:
        self.last += 1
        name = f"p{self.last}"
        works_s = self.rng.uniform(*WORKS_S)
        argv = [*self.net.at(self.rng.choice(CLIENTS)), str(OUTBOARD), "run", "--pool", POOL, "--term", f"{TERM_S}s"]
        argv += ["--gpus", str(self.rng.choice(WANTED)), "--", sys.executable, str(TEST_PROGRAMS / "pool_marks.py")]
        argv += [str(self.folder), f"{works_s:.1f}"]
        said = self.folder / "said" / name
        env = {**os.environ, "POOL_MARKS": name}
        with said.open("w") as out:
            process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, text=True)
        # Claims wait for as long as there is no manager.
        self.programs.append(Program(name, process, said, until=time.monotonic() + works_s + CALM_S_MAX))

    def ended(self, program: Program, code: int) -> None:
        text = program.said.read_text()
        if program.fault:
            outcome = program.fault
        elif code == 0 and text.rstrip().rpartition("\n")[2].startswith("right"):
            outcome = "right"
        elif code == LOST:
            outcome = "lost its GPU"
        elif code == WRONG or "panicked" in text:
            outcome = "wrong"
            self.found.wrong.append(f"{program.name}: {text[-300:]}")
        else:
            outcome = "did not begin, or its GPU was lost while it did"
        self.found.outcomes[outcome] += 1
        program.said.unlink()
        for file in (self.folder / "uses").glob(f"{program.name}-*"):
            if use := file.read_text():
                self.found.uses.append(json.loads(use))
            file.unlink()

    def ask(self, *command: str) -> Any:
        """Asks the manager that leads; nothing if there is none."""
        argv = [*self.net.at(WATCHER), str(OUTBOARD), "pool", *command, "--pool", POOL, "--json"]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=ANSWER_S_MAX)
        except subprocess.TimeoutExpired:
            return None
        return json.loads(done.stdout) if done.returncode == 0 else None

    def read_audit(self) -> bool:
        """Reads what the audit has beyond what is known. Returns whether a manager has answered."""
        audit = self.found.audit
        view = self.ask("audit", "--after", str(audit[-1]["number"] if audit else 0))
        if view is None:
            return False
        if view["dropped"]:
            self.found.wrong.append(f"{view['dropped']} entries of the audit are gone")
        audit += view["entries"]
        return True

    def leader(self) -> Part:
        """Returns the manager that leads, or any."""
        for part in self.managers:
            argv = [*self.net.at(WATCHER), "curl", "-sf", "-m", "1", f"http://{part.host}:4834/v1/leader"]
            if subprocess.run(argv, capture_output=True).returncode == 0:
                return part
        return self.rng.choice(self.managers)

    def calm(self) -> float:
        """Waits until all programs have ended and everything is free. Returns the time that it took since then."""
        start = time.monotonic()
        while self.programs:
            self.tick()
            time.sleep(0.1)
        ended = time.monotonic()
        while time.monotonic() < start + CALM_S_MAX + WORKS_S[1]:
            self.tick()
            view = self.ask("list")
            states = [gpu["state"] for gpu in view["gpus"]] if view else []
            if states == ["free"] * GPUS and not view["queue"]:
                tables = self.ask("tables")
                if tables and not any(host["entries"] for host in tables["hosts"]) and self.read_audit():
                    self.found.calms_s.append(time.monotonic() - ended)
                    return self.found.calms_s[-1]
            time.sleep(0.3)
        self.found.wrong.append(f"not everything is free again: {json.dumps(view)}")
        return time.monotonic() - ended

    def end(self) -> None:
        for part in self.parts:
            if part.process is not None:
                for pid in tree(part.process.pid):
                    send(pid, signal.SIGKILL)
                part.process.wait()
        for program in self.programs:
            for pid in marked(program.name):
                send(pid, signal.SIGKILL)
            program.process.wait()


def send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def tree(root: int) -> list[int]:
    """Returns a process and all that descend from it."""
    children: dict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            children[int(stat.read_text().rpartition(")")[2].split()[1])].append(int(stat.parent.name))
    found = [root]
    for pid in found:
        found += children[pid]
    return found


def marked(name: str) -> list[int]:
    """Returns the processes of a program: itself, and the holder of its lease, which is nobody's child."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"POOL_MARKS={name}\0".encode() in environ.read_bytes():
                found.append(int(environ.parent.name))
    return found


Heal = Callable[[], None]


class Faults:
    """What happens to a pool. Each fault is done at once, and healed after a time by what it returns."""

    def __init__(self, world: World) -> None:
        self.world, self.rng = world, world.rng
        self.active: list[tuple[float, Heal]] = []
        self.kinds: list[Callable[[], tuple[float, Heal] | None]] = [
            self.kill_leader,
            self.kill_managers,
            self.kill_box,
            self.kill_etcd,
            self.kill_quorum,
            self.kill_program,
            self.kill_program_and_holder,
            self.stop_leader,
            self.stop_server,
            self.freeze_box,
            self.stop_program,
            self.stop_etcd,
            self.cut_host,
            self.cut_pair,
        ]

    def happen(self, kinds: Iterable[Callable[[], tuple[float, Heal] | None]] | None = None) -> None:
        kind = self.rng.choice(list(kinds or self.kinds))
        done = kind()
        if done is not None:
            self.world.found.faults[kind.__name__] += 1
            after_s, heal = done
            self.active.append((time.monotonic() + after_s, heal))

    def heal(self, everything: bool = False) -> None:
        now = time.monotonic()
        due = [heal for at, heal in self.active if everything or at <= now]
        self.active = [(at, heal) for at, heal in self.active if not everything and at > now]
        for heal in due:
            heal()

    def kill(self, *parts: Part) -> tuple[float, Heal]:
        down_s = self.rng.uniform(0.2, 6)
        for part in parts:
            part.at = time.monotonic() + down_s
            if part.process is not None:
                part.process.kill()
        return down_s, lambda: None

    def stop(self, pids: list[int], seconds: tuple[float, float], and_then: Heal = lambda: None) -> tuple[float, Heal]:
        for pid in pids:
            send(pid, signal.SIGSTOP)

        def go_on() -> None:
            for pid in pids:
                send(pid, signal.SIGCONT)
            and_then()

        return self.rng.uniform(*seconds), go_on

    def running(self, parts: list[Part]) -> Part | None:
        return self.rng.choice([part for part in parts if part.process is not None] or [None])

    def kill_leader(self) -> tuple[float, Heal]:
        return self.kill(self.world.leader())

    def kill_managers(self) -> tuple[float, Heal]:
        return self.kill(*self.world.managers)

    def kill_box(self) -> tuple[float, Heal]:
        return self.kill(self.rng.choice(self.world.boxes))

    def kill_etcd(self) -> tuple[float, Heal]:
        return self.kill(self.rng.choice(self.world.etcds))

    def kill_quorum(self) -> tuple[float, Heal]:
        return self.kill(*self.rng.sample(self.world.etcds, 2))

    def kill_program(self) -> tuple[float, Heal] | None:
        """Kills a program; its holder gives the GPUs back."""
        program = self.some_program()
        if program is None:
            return None
        program.fault = "killed"
        program.process.kill()
        return 0, lambda: None

    def kill_program_and_holder(self) -> tuple[float, Heal] | None:
        """Kills a program and its holder, as if the power of its host failed."""
        program = self.some_program()
        if program is None:
            return None
        program.fault = "killed"
        for pid in marked(program.name):
            send(pid, signal.SIGKILL)
        return 0, lambda: None

    def some_program(self) -> Program | None:
        return self.rng.choice([it for it in self.world.programs if not it.fault and not it.is_stopped] or [None])

    def stop_leader(self) -> tuple[float, Heal] | None:
        part = self.world.leader()
        return None if part.process is None else self.stop([part.process.pid], STOPPED_S)

    def stop_server(self) -> tuple[float, Heal] | None:
        """Stops a box's supervisor; its workers go on."""
        part = self.running(self.world.boxes)
        return None if part is None or part.process is None else self.stop([part.process.pid], STOPPED_S)

    def freeze_box(self) -> tuple[float, Heal] | None:
        """Stops a box's server with its workers, as a machine that is paused."""
        part = self.running(self.world.boxes)
        return None if part is None or part.process is None else self.stop(tree(part.process.pid), STOPPED_S)

    def stop_etcd(self) -> tuple[float, Heal] | None:
        part = self.running(self.world.etcds)
        return None if part is None or part.process is None else self.stop([part.process.pid], (1, 6))

    def stop_program(self) -> tuple[float, Heal] | None:
        """Stops a program and its holder past the lease's deadline."""
        program = self.some_program()
        if program is None:
            return None
        program.is_stopped = True

        def goes_on() -> None:
            program.is_stopped = False

        return self.stop(marked(program.name), STOPPED_S, goes_on)

    def cut_host(self) -> tuple[float, Heal]:
        """Cuts the link of a host."""
        host = self.rng.choice([*ETCDS, *MANAGERS, *BOXES, *CLIENTS])
        link, net = f"v{self.world.ports[host]}", self.world.net
        net.sh(net.switch, f"ip link set {link} down")
        return self.rng.uniform(1, 9), lambda: net.sh(net.switch, f"ip link set {link} up")

    def cut_pair(self) -> tuple[float, Heal]:
        """Cuts the way between two kinds of hosts, which both reach all others."""
        one, others = self.rng.choice(
            [
                (self.rng.choice(BOXES), MANAGERS),
                (self.rng.choice(BOXES), CLIENTS),
                (self.rng.choice(CLIENTS), MANAGERS),
                (self.rng.choice(MANAGERS), ETCDS),
                (self.rng.choice(ETCDS), ETCDS),
            ]
        )
        pairs = [(a, b) for other in others if other != one for a, b in ((one, other), (other, one))]
        self.route("add", pairs)
        return self.rng.uniform(1, 9), lambda: self.route("del", pairs)

    def route(self, what: str, pairs: list[tuple[str, str]]) -> None:
        net = self.world.net
        for host, to in pairs:
            # Two cuts can have a pair in common.
            net.sh(net.hosts[host], f"ip route {what} blackhole {to} 2>/dev/null || true")


def run(
    world: World,
    seconds: float,
    fault_s: tuple[float, float],
    calm_every_s: float,
    tell: Callable[[Found], None] = lambda _: None,
) -> None:
    """Runs programs while faults happen, with a calm now and then and at the end, in which everything must become
    free. One fault of each kind is the first. `tell` hears of each calm."""
    faults = Faults(world)
    world.calm()
    world.found.calms_s.clear()
    end = time.monotonic() + seconds
    first = list(faults.kinds)
    world.rng.shuffle(first)
    while time.monotonic() < end:
        calm_at = min(end, time.monotonic() + calm_every_s)
        next_at = audit_at = time.monotonic() + 3
        while time.monotonic() < calm_at:
            world.tick()
            if sum(not program.is_stopped for program in world.programs) < PROGRAMS:
                world.start_program()
            faults.heal()
            if time.monotonic() >= next_at and len(faults.active) < 3:
                faults.happen([first.pop()] if first else None)
                next_at = time.monotonic() + world.rng.uniform(*fault_s)
            if time.monotonic() >= audit_at:
                world.read_audit()
                audit_at = time.monotonic() + 20
            time.sleep(0.1)
        faults.heal(everything=True)
        world.calm()
        tell(world.found)


def judge(found: Found) -> list[str]:
    """Returns what is wrong: GPUs that two programs had, or that the audit gives to two, or that no lease had."""
    return [*found.wrong, *overlaps(found.uses), *replayed(found.audit, found.uses)]


def overlaps(uses: list[dict[str, Any]]) -> Iterator[str]:
    """Two programs that had one GPU at a time, whatever the pool says of it."""
    by_gpu: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for use in uses:
        by_gpu[use["uuid"]].append(use)
    for uuid, of in by_gpu.items():
        of.sort(key=lambda use: use["from"][0])
        latest = of[0]
        for use in of[1:]:
            if use["from"][0] <= latest["to"][0]:
                yield f"{uuid} was used by {latest['name']} and {use['name']} at one time"
            latest = max(latest, use, key=lambda it: it["to"][0])


def replayed(audit: list[dict[str, Any]], uses: list[dict[str, Any]]) -> Iterator[str]:
    """Plays the audit again: no GPU is given before it was taken, epochs grow, and uses lie within their leases."""
    given: dict[str, tuple[int, int]] = {}
    spans: dict[tuple[int, str], list[int]] = {}
    epochs: dict[str, int] = defaultdict(int)
    for before, entry in zip([None, *audit], audit, strict=False):
        if before is not None and entry["number"] != before["number"] + 1:
            yield f"the audit has no entry {before['number'] + 1}"
        for gpu in entry["gpus"]:
            uuid, key = gpu["uuid"], (entry["lease"], gpu["uuid"])
            if entry["what"] == "given":
                if uuid in given:
                    yield f"{uuid} was given to the leases {given[uuid][0]} and {entry['lease']}"
                if gpu["epoch"] <= epochs[uuid]:
                    yield f"{uuid} was given with the epoch {gpu['epoch']} after {epochs[uuid]}"
                given[uuid], epochs[uuid] = (entry["lease"], gpu["epoch"]), gpu["epoch"]
                spans[key] = [entry["at_s"], sys.maxsize]
            elif entry["what"] == "taken":
                if given.pop(uuid, None) != (entry["lease"], gpu["epoch"]):
                    yield f"{uuid} was taken from the lease {entry['lease']}, which did not have it"
                spans.setdefault(key, [0, 0])[1] = entry["at_s"]
    yield from (f"{uuid} was never taken back" for uuid in given)
    for use in uses:
        span = spans.get((use["lease"], use["uuid"]))
        # The audit has whole seconds.
        if span is None or not span[0] <= use["from"][1] or not int(use["to"][1]) <= span[1]:
            yield f"{use['name']} used {use['uuid']} beyond its lease {use['lease']}: {use} {span}"


def summary(found: Found) -> dict[str, Any]:
    """Returns the numbers of a run."""
    causes = Counter(entry["cause"] for entry in found.audit if entry["what"] == "taken" for _ in entry["gpus"])
    return {
        "faults": dict(found.faults),
        "programs": dict(found.outcomes),
        "operations": sum(use["operations"] for use in found.uses),
        "uses_of_gpus": len(found.uses),
        "given_while_the_former_program_still_lived": sum(use["met"] is not None for use in found.uses),
        "gpus_given": sum(len(entry["gpus"]) for entry in found.audit if entry["what"] == "given"),
        "taken_by_cause": dict(causes),
        "free_again_s": {"times": len(found.calms_s), "longest": max(found.calms_s, default=None)},
    }

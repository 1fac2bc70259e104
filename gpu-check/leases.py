#!/usr/bin/env python3
"""Leases of this machine's GPU in a pool: who has it, who has it no more, and what the last one leaves in its memory.

    python3 gpu-check/leases.py --outboard target/release/outboard --out docs/results/leases.json

A manager and one box, both of this machine. Each check says what it saw; ends with 1 if one fails, with 77 where there
is no GPU. `--device soft` is a trial without one.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
from suite import ROOT

sys.path.insert(0, str(ROOT / "python"))
from outboard.pool import Busy, Lease, Pool

PROGRAM = [sys.executable, str(ROOT / "gpu-check" / "workloads" / "leased_memory.py")]
EXIT_FAILED = 1
EXIT_NOT_RUN = 77
WAIT_S_MAX = 60.0
# Time within which a killed program's GPU is to be free, and after its deadline that of one that is stopped.
FREE_S_MAX = 1.0
MARGIN_S = 5.0
TERM_S = 5


class Machine:
    """The manager and the box, and programs that lease the GPU."""

    def __init__(self, outboard: Path, device: str, folder: Path) -> None:
        self.outboard, self.folder = outboard, folder
        self.processes: list[subprocess.Popen[str]] = []
        listen = ["--listen", "127.0.0.1:0"]
        self.url = self._started("manager at ", "pool", "serve", "--store", str(folder / "pool"), *listen)
        self.pool = Pool(self.url)
        box = ["serve", "--no-config", "--device", device, "--listen", "tcp://127.0.0.1:0", "--pool", self.url]
        self._started("listening on ", *box, "--pool-name", "box", "--pool-state", str(folder / "box"))
        self.wait_until(lambda: self.free() > 0)
        self.gpu_count = self.free()

    def _started(self, says: str, *arguments: str) -> str:
        log = (self.folder / f"{arguments[0]}.log").open("w")
        process = subprocess.Popen([self.outboard, *arguments], stdout=subprocess.PIPE, stderr=log, text=True)
        self.processes.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith(says):
            raise RuntimeError(f"{arguments[0]} did not start: {(self.folder / f'{arguments[0]}.log').read_text()}")
        return line.removeprefix(says).strip()

    def free(self) -> int:
        return sum(gpu["state"] == "free" for gpu in self.pool.list()["gpus"])

    def wait_until(self, what: Callable[[], bool]) -> float:
        began = time.monotonic()
        while not what():
            if time.monotonic() > began + WAIT_S_MAX:
                raise RuntimeError(f"not within {WAIT_S_MAX:g} s")
            time.sleep(0.01)
        return time.monotonic() - began

    def program(self, *arguments: str, options: list[str] | None = None) -> subprocess.Popen[str]:
        argv = [self.outboard, "run", "--pool", self.url, *(options or []), "--", *PROGRAM, *arguments]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def look(self, size: int) -> tuple[int, int, int]:
        """Returns the bytes that the next holder could read, the words with the pattern, and those not zero."""
        said, _ = self.program("look", str(size)).communicate(timeout=300)
        seen, same, other = map(int, said.split("looked ")[1].split())
        return seen, same, other

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
            process.wait(30)


def filled(program: subprocess.Popen[str]) -> int:
    assert program.stdout is not None
    line = program.stdout.readline()
    if not line.startswith("filled "):
        raise RuntimeError(line + program.stdout.read())
    return int(line.split()[1])


def killed(of: Machine, size: int) -> dict[str, Any]:
    """A program that is killed: its GPU is free at once, and its memory is not the next one's."""
    program = of.program("fill", str(size))
    had = filled(program)
    program.send_signal(signal.SIGKILL)
    program.wait()
    free_s = of.wait_until(lambda: of.free() == of.gpu_count)
    seen, same, other = of.look(size)
    is_right = free_s <= FREE_S_MAX and seen >= had // 2 and same == 0
    return {"is_right": is_right, "filled": had, "free_s": free_s, "looked": seen, "same": same, "not_zero": other}


def stopped(of: Machine, size: int) -> dict[str, Any]:
    """A program whose host stands still: the box ends it at the deadline, and it has nothing more afterwards."""
    program = of.program("fill", str(size), options=["--term", f"{TERM_S}s"])
    had = filled(program)
    [lease] = [it["lease"] for it in of.pool.list()["leases"]]
    holders = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and is_holder(int(pid))]
    for pid in [program.pid, *holders]:
        os.kill(pid, signal.SIGSTOP)
    free_s = of.wait_until(lambda: of.free() == of.gpu_count)
    seen, same, _ = of.look(size)
    for pid in [*holders, program.pid]:
        os.kill(pid, signal.SIGCONT)
    said, _ = program.communicate(timeout=60)
    reason = of.pool.lease(lease)["reason"]
    is_right = free_s <= TERM_S + MARGIN_S and program.returncode == 3 and same == 0 and seen >= had // 2
    outcome = {"is_right": is_right, "filled": had, "free_s": free_s, "looked": seen, "same": same}
    return outcome | {"reason": reason, "code": program.returncode, "said": said.splitlines()[-1:]}


def is_holder(pid: int) -> bool:
    try:
        return b"pool-hold" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def dedicated(of: Machine, size: int) -> dict[str, Any]:
    """A leased GPU is given to nobody else, and a grant that is over opens nothing, though it is kept."""
    with of.pool.claim(of.gpu_count, term_s=TERM_S) as lease:
        try:
            of.pool.claim(1, wait_s=0)
            is_busy = False
        except Busy:
            is_busy = True
        first = with_grants(of, lease, size)
        kept = of.folder / "kept"
        lease.write_grants(kept)
    of.wait_until(lambda: of.free() == of.gpu_count)
    address = lease.boxes[0]["url"]
    late = with_grant_file(of, address, kept, size)
    with of.pool.claim(of.gpu_count, term_s=TERM_S) as other:
        replayed = with_grant_file(of, address, kept, size)
        second = with_grants(of, other, size)
    codes = [first.returncode, late.returncode, replayed.returncode, second.returncode]
    is_right = is_busy and codes[0] == codes[3] == 0 and codes[1] != 0 and codes[2] != 0
    said = [(one.stdout + one.stderr).strip().splitlines()[-1:] for one in (late, replayed)]
    return {"is_right": is_right, "busy": is_busy, "codes": codes, "refused": said}


def with_grants(of: Machine, lease: Lease, size: int) -> subprocess.CompletedProcess[str]:
    argv = [of.outboard, "run", "--", *PROGRAM, "look", str(size)]
    return subprocess.run(argv, env=lease.environment(), capture_output=True, text=True, timeout=300)


def with_grant_file(of: Machine, address: str, file: Path, size: int) -> subprocess.CompletedProcess[str]:
    argv = [of.outboard, "run", "--gpu", address, "--", *PROGRAM, "look", str(size)]
    env = {**os.environ, "OUTBOARD_GRANT_FILE": str(file)}
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300)


CHECKS = {"killed": killed, "stopped": stopped, "dedicated": dedicated}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outboard", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="nvidia")
    parser.add_argument("--gib", type=float, default=64, help="memory that programs fill, as far as there is so much")
    options = parser.parse_args()
    if options.device != "soft" and not machine.has_gpu():
        print("NOT RUN: there is no NVIDIA GPU with a driver here")
        return EXIT_NOT_RUN
    size = int(options.gib * (1 << 30))
    results: dict[str, Any] = {
        "format": 1,
        "what": "gpu-check/leases.py: a manager and a box of one machine; words are of 4 bytes",
        "machine": machine.describe([str(options.outboard)]),
        "checks": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        of = Machine(options.outboard.resolve(), options.device, Path(folder))
        try:
            for name, check in CHECKS.items():
                outcome = check(of, min(size, 1 << 30) if name == "dedicated" else size)
                results["checks"][name] = outcome
                print(name, json.dumps(outcome), flush=True)
                options.out.write_text(json.dumps(machine.scrub(results), indent=1) + "\n")
        finally:
            of.stop()
    return 0 if all(outcome["is_right"] for outcome in results["checks"].values()) else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())

"""What NVML's events tell: of the driver's errors to a box, and of a lease's GPUs to the programs that have it."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness import OUTBOARD, PROGRAM_S_MAX, ROOT, TEST_PROGRAMS
from test_pool import GPUS_A_BOX, Pool, until

pytest.importorskip("pynvml")

LIBRARY = ROOT / "crates" / "nvidia" / "src" / "tests" / "nvml_events.c"
XID, DOUBLE_BIT = 8, 2


class Watched(Pool):
    """Boxes whose management library tells what a file of the test says."""

    def start_box(self, name: str) -> None:
        folder = self.library(name)
        if not folder.exists():
            folder.mkdir()
            argv = ["cc", "-shared", "-fPIC", "-O1", "-w", "-o", str(folder / "libnvidia-ml.so.1"), str(LIBRARY)]
            subprocess.run(argv, check=True)
        os.environ["OUTBOARD_NVML"] = str(folder / "libnvidia-ml.so.1")
        try:
            super().start_box(name)
        finally:
            del os.environ["OUTBOARD_NVML"]

    def library(self, name: str) -> Path:
        return self.folder / f"{name}.nvml"

    def tell(self, gpu: str, kind: int, data: int) -> None:
        """Lets the library of the GPU's box tell an event, and waits until it has been taken."""
        folder = self.library(self.gpu(gpu)["box"])
        (folder / "new").write_text(f"{gpu} {kind} {data}\n")
        (folder / "new").rename(folder / "event")
        until(lambda: not (folder / "event").exists())

    def gpu(self, uuid: str) -> dict[str, Any]:
        return next(gpu for gpu in self.ask("list")["gpus"] if gpu["uuid"] == uuid)

    def operate(self, *command: str) -> None:
        subprocess.run([OUTBOARD, "pool", *command, "--pool", self.url], check=True, timeout=30)


class Listener:
    """The program that says what NVML tells it."""

    def __init__(self, pool: Pool, *options: str, then: Sequence[str] = ()) -> None:
        argv = [OUTBOARD, "run", "--pool", pool.url, *options, "--", sys.executable, TEST_PROGRAMS / "pool_events.py"]
        argv += then
        self.process = subprocess.Popen(argv, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.lines: queue.Queue[str] = queue.Queue()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        self.gpus = self.line().split(",")

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.strip())

    def line(self) -> str:
        return self.lines.get(timeout=PROGRAM_S_MAX)

    def end(self) -> list[str]:
        assert self.process.stdin is not None
        self.process.stdin.write("end\n")
        self.process.stdin.close()
        assert self.process.wait(60) == 0
        self.reader.join(60)
        return [self.lines.get_nowait() for _ in range(self.lines.qsize())]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    pool = Watched(tmp_path_factory.mktemp("events"))
    for name in ("a", "b"):
        pool.start_box(name)
    yield pool
    pool.stop()


@pytest.fixture
def pool(made: Watched) -> Watched:
    until(lambda: made.free() == 2 * GPUS_A_BOX)
    return made


def gpu_id(pool: Watched, uuid: str) -> str:
    """The driver's id of a GPU: its PCI address."""
    domain, bus, device = pool.gpu(uuid)["pci"]
    return f"{domain << 16 | bus << 8 | device:08x}"


def test_a_program_that_runs_is_told_of_gpus_that_come_and_go(pool: Watched) -> None:
    first = pool.ask("attach")["gpus"]
    program = Listener(pool, "--attached")
    looking = Listener(pool, "--attached", then=["now"])
    assert program.gpus == looking.gpus == first
    both = pool.ask("attach", "--fit", "best")["gpus"]
    [more] = set(both) - set(first)
    assert program.line() == looking.line() == f"bind {gpu_id(pool, more)}"
    # The library shows it at once to a process that starts, and to one that looks again.
    assert set(seen_now(pool)) == set(both)
    assert pool.gpu(more)["box"] == pool.gpu(first[0])["box"]
    *over, now = looking.end()
    assert over == ["over", "over"] and set(now.split(",")) == set(both)
    pool.ask("detach", more)
    assert program.line() == f"unbind {gpu_id(pool, more)}"
    pool.ask("detach", first[0], "--force")
    assert program.line() == f"unbind {gpu_id(pool, first[0])}"
    assert program.end() == ["over", "over"]


def seen_now(pool: Watched) -> list[str]:
    script = "import pynvml as n; n.nvmlInit(); "
    script += "print(*(n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(i)) for i in range(n.nvmlDeviceGetCount())))"
    argv = [OUTBOARD, "run", "--pool", pool.url, "--attached", "--", sys.executable, "-c", script]
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout.split()


def test_a_gpu_with_an_error_of_its_own_is_replaced_and_its_program_told(pool: Watched) -> None:
    pool.operate("spares", "1")
    program = Listener(pool, "--gpus", "1")
    [gpu] = program.gpus
    # A page fault is the program's own error.
    pool.tell(gpu, XID, 31)
    pool.tell(gpu, XID, 79)
    # Two threads of the program tell it, in any order.
    told = {program.line() for _ in range(3)}
    [lease] = pool.ask("list")["leases"]
    assert lease["lost"][0] == {"uuid": gpu, "reason": "Xid 79: GPU has fallen off the bus", "replaced": True}
    [spare] = [of for of in lease["gpus"] if of != gpu]
    assert told == {f"xid 79 {gpu}", f"unbind {gpu_id(pool, gpu)}", f"bind {gpu_id(pool, spare)}"}
    assert program.end() == ["over", "over"]
    # An operator's word holds: the event is not reported again.
    pool.operate("spares", "0")
    pool.operate("untaint", gpu)
    until(lambda: pool.free() == 2 * GPUS_A_BOX)
    assert pool.gpu(gpu)["health"]["condition"] == "healthy"


def test_memory_errors_and_lost_gpus_are_found_without_programs(pool: Watched) -> None:
    one, two, *_ = [gpu["uuid"] for gpu in pool.ask("list")["gpus"]]
    pool.tell(one, DOUBLE_BIT, 0)
    until(lambda: pool.gpu(one)["state"] == "broken")
    assert pool.gpu(one)["health"]["reason"] == "double-bit ECC error"
    lost = pool.library(pool.gpu(two)["box"]) / "lost"
    lost.write_text(f"{two}\n")
    until(lambda: pool.gpu(two)["state"] == "broken")
    assert "off the bus" in pool.gpu(two)["health"]["reason"]
    lost.unlink()
    # The box has to look again before it no longer says so.
    until(lambda: mended(pool, one) and mended(pool, two))


def mended(pool: Watched, uuid: str) -> bool:
    if pool.gpu(uuid)["state"] == "broken":
        pool.operate("untaint", uuid)
    return pool.gpu(uuid)["state"] == "free"

#!/usr/bin/env python3
"""Puts with signals by kernels under `outboard nic run`: NCCL's GIN, NVSHMEM's IBGDA and net.cuh, in turns.

    python3 gpu-check/nic_peers.py build FOLDER                      # with .toolchain and target/release, anywhere
    python3 gpu-check/nic_peers.py run FOLDER --outboard target/release/outboard --out RESULTS.json

Two processes, on this machine's GPUs or on its one GPU, each with the stand-ins' adapter. Each program looks at what
arrived, to the word, and says how long one way takes. NCCL's library is --nccl, or the one in the folder: its headers
are the toolchain's, so a machine's own serves if it is the same release. NVSHMEM's program is built there, with the
nvcc and the library there, and takes two GPUs. Ways that fail at their first case are not tried again. Ends with 1
where a value is wrong or a way fails, with 77 where there is no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import machine
import net
import net_peers

ROOT = net.ROOT
RANKS = 2
SOURCES = {
    "turns": ROOT / "tests" / "programs" / "net" / "turns.cu",
    "nccl_gin": ROOT / "tests" / "packages" / "nccl_gin.cu",
    "nvshmem_put": ROOT / "tests" / "packages" / "nvshmem_put.cu",
}
NCCL = "libnccl.so.2"
# Bytes and rounds of turns.
CASES = ((8, 500), (4096, 300), (65536, 100))
OF_NCCL = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,NET",
    "NCCL_NET": "IB",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
}
OF_NVSHMEM = {
    "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "lo",
    "NVSHMEM_DISABLE_P2P": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "NVSHMEM_DISABLE_CUDA_VMM": "1",
    "NVSHMEM_IB_DISABLE_DMABUF": "1",
    "NVSHMEM_ENABLE_NIC_PE_MAPPING": "1",
    "NVSHMEM_IB_GID_INDEX": "0",
    "NVSHMEM_SYMMETRIC_SIZE": "64M",
    "NVSHMEM_IB_ENABLE_IBGDA": "1",
    "NVSHMEM_IBGDA_NIC_HANDLER": "gpu",
    # At WARN nothing tells the way: where IBGDA fails, NVSHMEM goes on with its proxy.
    "NVSHMEM_DEBUG": "INFO",
}
# Its host library says the first once the transport is there, which kernels use from then on; the transport says who
# rings the doorbells, a kernel or the CPU, and where the rings are (3.4.5 and 3.7.2).
IBGDA = ("Successfully initialized the transport: IBGDA", "NIC handler will be GPU")
# Words of a program's output that tell how far it came.
TELLING = ("right", "failed", "wrong", "Assigned plugin", "WARN", "outboard", "DOCA", "rror", "the transport:", "NIC ")
LINES_MAX = 25
# For the other process, once one has failed, and for one that is killed.
PATIENCE_S = 2.0
EXIT_FAILED = 1
EXIT_NOT_RUN = 77


@dataclass
class Way:
    """A program, what it needs, and what it says if it goes that way."""

    program: str
    settings: dict[str, str]
    # Each process says all of them.
    says: tuple[str, ...] = ()
    # Arguments after the bytes and rounds.
    after: list[str] = field(default_factory=list)
    is_by_plugin: bool = False


@dataclass
class Place:
    """Where programs run, and what all of them have."""

    outboard: Path
    folder: Path
    gpus: int
    env: dict[str, str]
    log_dir: Path | None


OURS = {"OUTBOARD_NET_PROVIDER": "mlx5"}
GDAKI = "GIN/Plugin: Assigned plugin GIN_IB_GDAKI type 3"
WAYS = {
    "net.cuh, the GPU's memory": Way("turns", OURS, after=["gpu"]),
    "GIN by kernels (GDAKI)": Way("nccl_gin", {**OF_NCCL, "NCCL_GIN_TYPE": "3"}, (GDAKI,)),
    "NVSHMEM IBGDA": Way("nvshmem_put", OF_NVSHMEM, (*IBGDA, "NIC buffer will be on GPU memory")),
    "GIN by a proxy": Way("nccl_gin", {**OF_NCCL, "NCCL_GIN_TYPE": "2"}, ("Assigned plugin RMA_IB_PROXY type 2",)),
    "net.cuh, pinned memory": Way("turns", OURS, after=["host"]),
    "NVSHMEM IBGDA, rings in host memory": Way(
        "nvshmem_put",
        {**OF_NVSHMEM, "NVSHMEM_IBGDA_FORCE_NIC_BUF_MEMTYPE": "hostmem"},
        (*IBGDA, "NIC buffer will be on host memory"),
    ),
    "GIN by our plugin": Way(
        "nccl_gin",
        {**OF_NCCL, "NCCL_NET": "Socket", "NCCL_GIN_TYPE": "2"},
        ("Assigned plugin OUTBOARD type 2",),
        is_by_plugin=True,
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="do", required=True)
    one = commands.add_parser("build")
    one.add_argument("folder", type=Path)
    one.add_argument("--library", type=Path, default=ROOT / "target" / "release" / net.LIBRARY)
    one.add_argument("--nvcc", type=Path, default=net.NVCC)
    one = commands.add_parser("run")
    one.add_argument("folder", type=Path)
    one.add_argument("--outboard", type=Path, required=True)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--rounds", type=int, default=3)
    one.add_argument("--timeout-s", type=float, default=25, help="for one pair of processes")
    one.add_argument("--seconds", type=float, default=120, help="for all")
    one.add_argument("--log-dir", type=Path, help="for all that each process says, the last time")
    for one in commands.choices.values():
        one.add_argument("--nvshmem", type=Path, help="the folder with NVSHMEM's include and lib")
        one.add_argument("--nccl", type=Path, help="build: the folder with include and lib; run: the library")
    options = parser.parse_args()
    return build(options) if options.do == "build" else run(options)


def build(options: argparse.Namespace) -> int:
    options.folder.mkdir(parents=True, exist_ok=True)
    library = shutil.copy(options.library, options.folder / net.LIBRARY)
    ours = [f"-I{ROOT / 'include'}", SOURCES["turns"], "-o", options.folder / "turns", library]
    subprocess.run([*net_peers.compiles(options.nvcc), *ours], check=True)
    there = net_peers.folder_of("nccl", options.nccl)
    if there is None:
        print("NCCL is not here: --nccl names its folder")
        return EXIT_FAILED
    gin = [f"-I{there / 'include'}", SOURCES["nccl_gin"], "-o", options.folder / "nccl_gin"]
    subprocess.run([*net_peers.compiles(options.nvcc), *gin, f"-L{there / 'lib'}", f"-l:{NCCL}"], check=True)
    return 0


def build_nvshmem(folder: Path, there: Path) -> None:
    of = [f"-I{there / 'include'}", SOURCES["nvshmem_put"], "-o", folder / "nvshmem_put", f"-L{there / 'lib'}"]
    command = [*net_peers.compiles(shutil.which("nvcc") or "nvcc"), *of, *net_peers.LINKED["nvshmem"]]
    if subprocess.run(list(map(str, command))).returncode != 0:
        print(f"nvshmem_put does not compile with the headers in {there}", flush=True)


def run(options: argparse.Namespace) -> int:
    gpus = len(machine.gpus())
    if gpus == 0:
        print("NOT RUN: there is no NVIDIA GPU with a driver here")
        return EXIT_NOT_RUN
    folder, deadline = options.folder.resolve(), time.monotonic() + options.seconds
    nvshmem = net_peers.folder_of("nvshmem", options.nvshmem)
    if nvshmem and gpus >= RANKS and not (folder / "nvshmem_put").exists() and shutil.which("nvcc"):
        build_nvshmem(folder, nvshmem)
    libraries = [(options.nccl or folder / NCCL).resolve().parent, folder, *([nvshmem / "lib"] if nvshmem else [])]
    env = {**os.environ, "LD_LIBRARY_PATH": ":".join([*map(str, libraries), os.environ.get("LD_LIBRARY_PATH", "")])}
    ways = [name for name, way in WAYS.items() if (folder / way.program).exists()]
    if gpus < RANKS:
        ways = [name for name in ways if WAYS[name].program != "nvshmem_put"]
    results: dict[str, Any] = {
        "format": 1,
        "what": "one way of a put with a signal, by one thread of a kernel of each of two processes under `outboard nic"
        " run`, in turns; medians of what both say on average",
        "machine": machine.describe([str(options.outboard)]),
        "ways": ways,
        "failed": [],
        "left_out": 0,
        "rows": [],
        "said": {},
    }
    said: dict[tuple[str, int], list[float]] = {}
    broken: set[str] = set()
    for _ in range(options.rounds):
        for size, rounds in CASES:
            for name in ways:
                if time.monotonic() > deadline or name in broken:
                    results["left_out"] += 1
                    continue
                place = Place(options.outboard.resolve(), folder, gpus, env, options.log_dir)
                one = pair(place, name, size, rounds, options.timeout_s)
                results["said"].setdefault(name, one.pop("said"))
                if "failed" in one:
                    results["failed"].append({"way": name, "bytes": size, **one})
                    print(f"{name}: {size} B: {' | '.join(one['failed'][-6:])}", flush=True)
                    if not any(of == name for of, _ in said):
                        broken.add(name)
                else:
                    said.setdefault((name, size), []).append(one["one_way_ns"])
                    print(f"{name}: {size} B: {one['one_way_ns']} ns", flush=True)
                results["rows"] = rows(said)
                options.out.write_text(json.dumps(machine.scrub(results), indent=1) + "\n")
    return EXIT_FAILED if results["failed"] or not said else 0


def rows(said: dict[tuple[str, int], list[float]]) -> list[dict[str, Any]]:
    """The medians of each size, by way."""
    sizes = dict.fromkeys(size for _, size in said)
    return [
        {"bytes": size, **{name: statistics.median(times) for (name, of), times in said.items() if of == size}}
        for size in sizes
    ]


def pair(place: Place, name: str, size: int, rounds: int, timeout_s: float) -> dict[str, Any]:
    """Runs both processes of a way. Returns the time of one way, or `failed` with the last lines, and `said`."""
    way = WAYS[name]
    with tempfile.TemporaryDirectory() as work:
        where = free_address() if way.program == "turns" else f"{work}/number"
        both, logs = [], [Path(work) / f"said{rank}" for rank in range(RANKS)]
        for rank, log in enumerate(logs):
            under = [place.outboard, "nic", "run", "--fabric", f"{work}/fabric", "--"]
            argv = [*([] if way.is_by_plugin else under), place.folder / way.program]
            argv += [rank, where, size, rounds, *way.after]
            of_rank = {**place.env, **way.settings}
            if way.is_by_plugin:
                plugin = place.outboard.parent / "liboutboard_nic.so"
                of_rank |= {"NCCL_RMA_PLUGIN": str(plugin), "OUTBOARD_NIC_FABRIC": f"{work}/fabric"}
            # NVSHMEM's program chooses its GPU itself. Ranks of one machine may not share one.
            if way.program != "nvshmem_put":
                of_rank |= {"CUDA_VISIBLE_DEVICES": str(rank % place.gpus), "NCCL_HOSTID": f"host-{rank}"}
            with log.open("w") as out:
                started = subprocess.Popen(
                    list(map(str, argv)), env=of_rank, stdout=out, stderr=subprocess.STDOUT, process_group=0
                )
            both.append(started)
        ends = ends_of(both, timeout_s)
        said = [log.read_text(errors="replace").splitlines() for log in logs]
    if place.log_dir:
        place.log_dir.mkdir(parents=True, exist_ok=True)
        for rank, its in enumerate(said):
            text = "\n".join([*its, f"ended with {ends}", ""])
            (place.log_dir / f"{''.join(c for c in name if c.isalnum())}-{size}-{rank}.log").write_text(text)
    lines = [line[-300:] for its in said for line in its]
    figures = [json.loads(line) for line in lines if line.startswith("{") and "one_way_ns" in line]
    telling = [line for line in lines if any(word in line for word in TELLING)][-LINES_MAX:]
    is_its_way = all(any(says in line for line in its) for its in said for says in way.says)
    if ends != [0, 0] or not is_its_way or not figures or not all(one.get("right", True) for one in figures):
        last = [line for its in said for line in its[-LINES_MAX // 2 :]]
        return {"failed": [*last, f"ended with {ends}"], "said": telling}
    return {"one_way_ns": statistics.mean(one["one_way_ns"] for one in figures), "said": telling}


def ends_of(both: list[subprocess.Popen[bytes]], timeout_s: float) -> list[int | None]:
    """The exit codes. Who has not ended in time, or soon after the other has failed, is killed with its group."""
    until = time.monotonic() + timeout_s
    while None in (ends := [one.poll() for one in both]) and time.monotonic() < until:
        if any(ends):
            until = min(until, time.monotonic() + PATIENCE_S)
        time.sleep(0.02)
    for one in both:
        if one.poll() is None:
            os.killpg(one.pid, signal.SIGKILL)
            # A process in the driver may outlast that: it is left.
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(PATIENCE_S)
    return [one.returncode for one in both]


def free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


if __name__ == "__main__":
    sys.exit(main())

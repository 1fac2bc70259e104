#!/usr/bin/env python3
"""The provider nvlink between two GPUs of this machine beside NVSHMEM, NCCL's LSA and UCX, in turns.

    python3 gpu-check/net_peers.py build FOLDER                      # with .toolchain and target/release, anywhere
    python3 gpu-check/net_peers.py run FOLDER --out RESULTS.json     # on a machine with two GPUs

Ours is compiled for nvlink alone, and runs on one GPU, too, between two blocks of it, others then not. `before` in the
folder, an older build of ours, takes turns, too. Another library's program is built with the library of its package
(nvidia.nvshmem, nvidia.nccl, libucx) or of a folder that is given; what is missing in the folder is built before the
run, with the nvcc and the library there. Each case takes turns, ROUNDS times; what does not fit in --seconds is left
out, and the results say so. Ends with 1 where a result is wrong or a program fails, with 77 where there is no GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import machine
import net

ROOT = net.ROOT
PROGRAMS = {
    "outboard": ROOT / "tests" / "programs" / "net" / "peers.cu",
    "nvshmem": ROOT / "tests" / "packages" / "nvshmem_peers.cu",
    "nccl": ROOT / "tests" / "packages" / "nccl_peers.cu",
    "ucx": ROOT / "tests" / "packages" / "ucx_peers.cu",
}
# Libraries and flags that each is linked with, besides its folder's lib.
LINKED = {
    "nvshmem": ["-rdc=true", "-l:libnvshmem_host.so.3", "-lnvshmem_device"],
    "nccl": ["-l:libnccl.so.2"],
    "ucx": ["-l:libucp.so.0", "-l:libucs.so.0"],
}
MODULES = {"nvshmem": "nvidia.nvshmem", "nccl": "nvidia.nccl", "ucx": "libucx"}
# A build of ours that somebody has put into the folder, to compare with.
BEFORE = "before"
# Where the toolchain has the packages of NVIDIA's libraries.
PACKAGES = ROOT / ".toolchain" / "packages" / "torch" / "lib"
# Cases of both programs, the most wanted first: the first lines of peers.cu explain them.
CASES = [
    "latency thread 8 5000 together",
    "latency warp 8 5000 together",
    "latency warp 1024 5000 together",
    "latency block 4096 3000 together",
    "latency block 65536 2000 together",
    "rate 32 4000",
    "rate 1024 4000",
    "rate 32768 1000",
    *(
        f"bandwidth {size} 500 {n}"
        for blocks in ((8, 32), (4, 16))
        for size in (65536, 1048576, 16777216)
        for n in blocks
    ),
    "latency thread 64 5000 together",
    "latency block 1024 5000 together",
    "latency thread 8 5000",
    "latency warp 8 5000",
    "latency block 4096 3000",
]
FIGURES = ("one_way_ns", "gigabytes_a_second", "operations_a_second")
# Two processes on one host by unique id over loopback, peers by NVLink alone, without its multicast.
ENVIRONMENT = {
    "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "lo",
    "NVSHMEM_DISABLE_NVLS": "1",
    "NVSHMEM_REMOTE_TRANSPORT": "none",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NVLS_ENABLE": "0",
    "UCX_TLS": "cuda_copy,cuda_ipc,sm,self",
}
EXIT_FAILED = 1
EXIT_NOT_RUN = 77


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="do", required=True)
    one = commands.add_parser("build")
    one.add_argument("folder", type=Path)
    one.add_argument("--library", type=Path, default=ROOT / "target" / "release" / net.LIBRARY)
    one.add_argument("--nvcc", type=Path, default=net.NVCC)
    one = commands.add_parser("run")
    one.add_argument("folder", type=Path)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--rounds", type=int, default=3)
    one.add_argument("--timeout-s", type=float, default=30, help="for one program")
    one.add_argument("--seconds", type=float, default=240, help="for all")
    for one in commands.choices.values():
        one.add_argument("--nvshmem", type=Path, help="the folder with NVSHMEM's include and lib")
        one.add_argument("--nccl", type=Path, help="the folder with NCCL's include and lib")
        one.add_argument("--ucx", type=Path, help="the folder with UCX's include and lib")
    options = parser.parse_args()
    return build(options) if options.do == "build" else run(options)


def folder_of(library: str, given: Path | None) -> Path | None:
    """The folder that was given, of an installed package, or of the toolchain."""
    if given:
        return given
    try:
        spec = importlib.util.find_spec(MODULES[library])
    except ModuleNotFoundError:
        spec = None
    if spec is not None and spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return next(PACKAGES.glob(f"python3*/site-packages/nvidia/{library}"), None)


def build(options: argparse.Namespace) -> int:
    options.folder.mkdir(parents=True, exist_ok=True)
    library = shutil.copy(options.library, options.folder / net.LIBRARY)
    ours = [f"-I{ROOT / 'include'}", PROGRAMS["outboard"], "-o", options.folder / "outboard", library]
    subprocess.run([*compiles(options.nvcc), *ours, "-Xlinker", "-rpath=$ORIGIN"], check=True)
    for name in LINKED:
        build_peer(options, name, options.nvcc)
    return 0


def compiles(nvcc: Path | str) -> list[str]:
    return [str(nvcc), "-std=c++17", "-O2", "-gencode", "arch=compute_90,code=sm_90"]


def build_peer(options: argparse.Namespace, name: str, nvcc: Path | str) -> None:
    """Builds another library's program, if that library is here."""
    there = folder_of(name, getattr(options, name))
    if there is None:
        print(f"{name} is not here: --{name} names its folder")
        return
    of = [f"-I{there / 'include'}", PROGRAMS[name], "-o", options.folder / name, f"-L{there / 'lib'}", *LINKED[name]]
    if subprocess.run([*compiles(nvcc), *of]).returncode != 0:
        print(f"{name} does not compile with the headers in {there}")


def run(options: argparse.Namespace) -> int:
    if not machine.has_gpu():
        print("NOT RUN: there is no NVIDIA GPU with a driver here")
        return EXIT_NOT_RUN
    folders = [folder_of(name, getattr(options, name)) for name in LINKED]
    libraries = "".join(f"{there / 'lib'}:" for there in folders if there)
    env = {**os.environ, **ENVIRONMENT, "LD_LIBRARY_PATH": libraries + os.environ.get("LD_LIBRARY_PATH", "")}
    folder, deadline = options.folder.resolve(), time.monotonic() + options.seconds
    for name in LINKED:
        if not (folder / name).exists() and (nvcc := shutil.which("nvcc")):
            build_peer(options, name, nvcc)
    who = [name for name in (*PROGRAMS, BEFORE) if (folder / name).exists()]
    if len(machine.gpus()) < 2:
        who = [name for name in who if name in ("outboard", BEFORE)]
    results: dict[str, Any] = {
        "format": 1,
        "what": "tests/programs/net/peers.cu by nvlink beside others' programs: medians in turns",
        "machine": net.this_machine(),
        "programs": who,
        "failed": [],
        "left_out": 0,
        "rows": [],
    }
    said: dict[tuple[str, str], list[dict[str, Any]]] = {}
    broken: set[str] = set()
    for turn in range(options.rounds):
        for case in CASES:
            for name in who:
                if time.monotonic() > deadline or name in broken:
                    results["left_out"] += 1
                    continue
                one = result_of([folder / name, *case.split()], env, options.timeout_s)
                if "failed" in one:
                    results["failed"].append({"who": name, "case": case, "said": one["failed"]})
                    print(f"{name}: {case}: {one['failed']}", flush=True)
                    # A program that cannot begin would take all the time.
                    if turn == 0 and not any(of == name for of, _ in said):
                        broken.add(name)
                else:
                    said.setdefault((name, case), []).append(one)
                results["rows"] = [row(case, said) for case in CASES if any(case == of for _, of in said)]
                options.out.write_text(json.dumps(machine.scrub(results), indent=1) + "\n")
    for one in results["rows"]:
        print(" ".join(f"{key}={value}" for key, value in one.items()))
    return EXIT_FAILED if results["failed"] or not said else 0


def result_of(command: list[Any], env: dict[str, str], timeout_s: float) -> dict[str, Any]:
    """The line of JSON that a program says, if it ends with 0 in time; else `failed`."""
    process = subprocess.Popen(
        list(map(str, command)), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0
    )
    # All of a program's processes are in the group.
    ended, lines = net.end_of(process, timeout_s, whole_group=True)
    found = [line for line in lines if line.startswith("{")]
    if not ended or not found:
        return {"failed": " ".join(lines)[-400:] or f"ended with {process.returncode}"}
    return json.loads(found[-1])


def row(case: str, said: dict[tuple[str, str], list[dict[str, Any]]]) -> dict[str, Any]:
    """The medians of a case, and ours over each other's."""
    out: dict[str, Any] = {"case": case}
    for (name, of), runs in said.items():
        if of == case:
            figure = next(key for key in FIGURES if key in runs[0])
            out["gpus"], out["figure"] = runs[0]["gpus"], figure
            out[name] = statistics.median(run[figure] for run in runs)
    for name in LINKED:
        if name in out and "outboard" in out:
            out[f"over_{name}"] = round(out["outboard"] / out[name], 3)
    return out


if __name__ == "__main__":
    sys.exit(main())

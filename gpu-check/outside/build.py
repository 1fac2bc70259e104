#!/usr/bin/env python3
"""Compiles cuda-samples, HeCBench's programs and nccl-tests from their checkouts, for `gpu_suites.py`.

    python3 gpu-check/outside/build.py --sources DIR [--nvcc nvcc] [--arch sm_90] [--jobs 16]

Programs go to `DIR/built/`, and a list of them, with arguments and folder, to `DIR/built/SUITE.json`. `--arch
compute_80` embeds PTX alone, as the software device needs it. What does not compile is named and left out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

COMPILE_S_MAX = 180
# Samples that show pictures, need other machines or other devices.
NOT_HERE = ("OpenGL", "GLUT", "EGL", "Vulkan", "MPI", "FreeImage", "NVSCI", "LLVM", "X11", "D3D", "nvmedia", "cudla")
# Samples whose kernels start kernels, or call functions of other files.
SEPARATE = ("cdp", "simpleSeparateCompilation", "newdelete", "graphConditionalNodes", "FunctionPointers")
# Examples of a later number are for GPUs after Hopper.
CUTLASS_LAST = 65
SELF_CHECKING = re.compile(rb"PASS|pass(ed)?\b", re.IGNORECASE)


@dataclass(frozen=True)
class Program:
    """A program to be compiled: commands, and how it is started."""

    name: str
    folder: Path
    commands: list[list[str]]
    program: Path
    arguments: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Compiler:
    nvcc: str
    arch: str
    libraries: list[str]

    @property
    def target(self) -> list[str]:
        virtual = self.arch.replace("sm_", "compute_")
        return ["-gencode", f"arch={virtual},code={self.arch}"]


def cuda_samples(sources: Path, built: Path, compiler: Compiler) -> Iterator[Program]:
    """NVIDIA's samples, by what their CMake files say of them."""
    root = sources / "cuda-samples"
    for cmake in sorted(root.glob("Samples/*/*/CMakeLists.txt")):
        folder, text = cmake.parent, cmake.read_text()
        if any(f"find_package({word}" in text or word.lower() in folder.name.lower() for word in NOT_HERE):
            continue
        files = [path for path in sorted(folder.iterdir()) if path.suffix in (".cu", ".cpp", ".c")]
        fatbins = dict(re.findall(r"(\w+)\.fatbin\"\)\s*\n\s*set\(CUDA_KERNEL_SOURCE \"[^\"]*/([\w.]+)\"", text))
        files = [path for path in files if path.name not in fatbins.values()]
        if not files:
            continue
        program = built / folder.name
        command = [compiler.nvcc, "-O2", "-w", "-std=c++17", "--extended-lambda", *compiler.target]
        command += ["-I", str(root / "Common"), "-I", str(folder), "-Xcompiler", "-fopenmp,-fpermissive"]
        if folder.name.startswith(SEPARATE):
            command += ["-rdc=true", "-lcudadevrt"]
        if folder.name in ("simpleIPC", "memMapIPCDrv", "streamOrderedAllocationIPC"):
            files.append(root / "Common" / "helper_multiprocess.cpp")
        command += [str(path) for path in dict.fromkeys(files)] + ["-o", str(program), *compiler.libraries]
        command += [_library(word) for word in sorted(set(re.findall(r"CUDA::(\w+)", text)))]
        commands = [command] + [
            [
                compiler.nvcc,
                "-fatbin",
                "-w",
                *compiler.target,
                str(folder / source),
                "-o",
                str(folder / f"{name}.fatbin"),
            ]
            for name, source in fatbins.items()
        ]
        yield Program(folder.name, folder, commands, program)


def _library(word: str) -> str:
    return {"cuda_driver": "-lcuda"}.get(word, f"-l{word}")


def hecbench(sources: Path, built: Path, compiler: Compiler) -> Iterator[Program]:
    """HeCBench's programs that say whether they passed, with the arguments of their own makefiles."""
    for makefile in sorted((sources / "HeCBench" / "src").glob("*-cuda/Makefile")):
        folder, text = makefile.parent, makefile.read_text()
        files = [path for path in folder.rglob("*") if path.suffix in (".cu", ".cpp", ".h", ".cuh", ".c")]
        run = re.search(r"\$\(LAUNCHER\)\s+\./\$\(program\)(.*)", text)
        if run is None or not any(SELF_CHECKING.search(path.read_bytes()) for path in files):
            continue
        if re.search(r"mpi|nccl|nvshmem", text, re.IGNORECASE):
            continue
        name = re.search(r"^program\s*:?=\s*(\S+)", text, re.MULTILINE)
        made = folder / (name.group(1) if name else "main")
        ptx = f"EXTRA_CFLAGS=-w {' '.join(compiler.target)}"
        make = ["make", "-s", "-B", "-C", str(folder), f"CC={compiler.nvcc}", f"ARCH={compiler.arch}", made.name]
        if compiler.arch.startswith("compute_"):
            make += [ptx, "CUDA_ARCH="]
        program = built / folder.name.removesuffix("-cuda")
        commands = [make, ["cp", str(made), str(program)], ["make", "-s", "-C", str(folder), "clean"]]
        yield Program(program.name, folder, commands, program, run.group(1).split())


def nccl_tests(sources: Path, built: Path, compiler: Compiler) -> Iterator[Program]:
    """NVIDIA's tests of NCCL, one GPU and small sizes, each checking its results."""
    folder = sources / "nccl-tests"
    if not (folder / "Makefile").exists():
        return
    arguments = ["-b", "8", "-e", "8M", "-f", "8", "-g", "1", "-n", "5", "-w", "1", "-c", "1"]
    make = ["make", "-s", "-C", str(folder), f"NVCC_GENCODE={' '.join(compiler.target)}", f"BUILDDIR={built}"]
    if home := os.environ.get("NCCL_HOME"):
        make.append(f"NCCL_HOME={home}")
    for source in sorted(folder.glob("src/*.cu")):
        if source.stem not in ("common", "util"):
            program = built / f"{source.stem}_perf"
            yield Program(
                source.stem, folder, [[*make, "-j1"]] if source.stem == "all_reduce" else [], program, arguments
            )


def cutlass(sources: Path, built: Path, compiler: Compiler) -> Iterator[Program]:
    """CUTLASS's examples that need no later GPU than the compiler is for."""
    root = sources / "cutlass"
    for folder in sorted(root.glob("examples/[0-9][0-9]_*/")):
        if int(folder.name[:2]) > CUTLASS_LAST or "distributed" in folder.name:
            continue
        for source in sorted(folder.glob("*.cu")):
            program = built / source.stem
            command = [compiler.nvcc, "-O2", "-w", "-std=c++17", "--expt-relaxed-constexpr", *compiler.target]
            command += [f"-I{root / name}" for name in ("include", "tools/util/include", "examples/common")]
            command += [str(source), "-o", str(program), *compiler.libraries, "-lcuda"]
            yield Program(source.stem, folder, [command], program)


KINDS = {"cuda_samples": cuda_samples, "hecbench": hecbench, "nccl_tests": nccl_tests, "cutlass": cutlass}


def build(suite: str, programs: list[Program], built: Path, jobs: int, deadline: float) -> dict[str, str]:
    """Compiles all programs and writes their list. Returns why each of the others failed."""
    failures: dict[str, str] = {}

    def one(program: Program) -> None:
        for command in program.commands:
            left = min(COMPILE_S_MAX, deadline - time.monotonic())
            if left <= 0:
                failures[program.name] = "the time was used up"
                return
            try:
                done = subprocess.run(
                    command, cwd=program.folder, capture_output=True, text=True, timeout=left, errors="replace"
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                failures[program.name] = type(error).__name__
                return
            if done.returncode != 0:
                errors = [line for line in (done.stderr + done.stdout).splitlines() if "error" in line.lower()]
                failures[program.name] = (errors or ["?"])[0][:200]
                return

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, programs))
    table = {
        program.name: {
            "program": str(program.program.relative_to(built.parent)),
            "folder": str(program.folder.relative_to(built.parent.parent)),
            "arguments": program.arguments,
        }
        for program in programs
        if program.program.exists()
    }
    (built.parent / f"{suite}.json").write_text(json.dumps(table, indent=1) + "\n")
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--nvcc", default=shutil.which("nvcc") or "nvcc")
    parser.add_argument("--arch", default="sm_90", help="sm_NN, or compute_NN for PTX alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default=",".join(KINDS), metavar="SUITE,...")
    parser.add_argument("--budget-s", type=float, default=float("inf"))
    parser.add_argument("--library-path", action="append", default=[], help="passed to nvcc as -L")
    options = parser.parse_args()
    deadline = time.monotonic() + options.budget_s
    compiler = Compiler(options.nvcc, options.arch, [f"-L{path}" for path in options.library_path])
    for suite in options.only.split(","):
        built = options.sources.resolve() / "built" / suite
        built.mkdir(parents=True, exist_ok=True)
        programs = list(KINDS[suite](options.sources.resolve(), built, compiler))
        failures = build(suite, programs, built, options.jobs, deadline)
        print(f"{suite}: {len(programs) - len(failures)} of {len(programs)} compiled", flush=True)
        for name, why in sorted(failures.items()):
            print(f"  {name}: {why}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

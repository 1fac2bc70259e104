"""Describes what the results were measured on: machine, GPU, driver, versions, commit."""

from __future__ import annotations

import csv
import ctypes
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from suite import ROOT

PACKAGES = (
    "torch",
    "torchvision",
    "transformers",
    "diffusers",
    "triton",
    "jax",
    "jaxlib",
    "cupy-cuda13x",
    "cupy-cuda12x",
    "numba",
    "numba-cuda",
    "nvidia-cublas",
    "nvidia-cudnn-cu13",
    "nvidia-cufft",
    "nvidia-curand",
    "nvidia-cusolver",
    "nvidia-cusparse",
    "nvidia-ml-py",
    "nvidia-nccl-cu13",
    "nvidia-nvjitlink",
    "nvidia-nvshmem-cu13",
    "numpy",
)
QUERY_S_MAX = 20


def describe(outboard: list[str]) -> dict[str, Any]:
    """Returns the facts about the machine that readers of the results need, and nothing that
    identifies it."""
    return {
        "date_utc": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": commit(),
        "outboard": _output([*outboard, "--version"]),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "gpus": gpus(),
        "cuda_driver_version": _cuda_version(),
        "python": platform.python_version(),
        "packages": _versions(),
    }


def has_gpu() -> bool:
    """Whether the driver can be initialised here."""
    try:
        return int(ctypes.CDLL("libcuda.so.1").cuInit(0)) == 0
    except OSError:
        return False


def gpus() -> list[dict[str, str]]:
    """Returns name, driver and memory of every GPU, from nvidia-smi; empty without a GPU."""
    fields = ("name", "driver_version", "memory.total", "compute_cap")
    output = _output(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"])
    rows = csv.reader(output.splitlines(), skipinitialspace=True)
    return [dict(zip(fields, row, strict=True)) for row in rows if len(row) == len(fields)]


def commit() -> str:
    """The commit measured, marked where the working tree differs from it.

    Where the program measured was built elsewhere, GPU_CHECK_COMMIT names the commit that it was built from.
    """
    if named := os.environ.get("GPU_CHECK_COMMIT"):
        return named
    revision = _output(["git", "-C", str(ROOT), "rev-parse", "HEAD"])
    if not revision:
        return "unknown"
    changed = _output(["git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"])
    return f"{revision}-modified" if changed else revision


def scrub(value: Any) -> Any:
    """Returns the value without this machine's paths, because results are published."""
    if isinstance(value, dict):
        return {k: scrub(v) for k, v in value.items()}
    if isinstance(value, list):
        return [scrub(v) for v in value]
    if isinstance(value, str):
        for path, name in ((str(ROOT), "."), (sys.prefix, "$PYTHON"), (str(Path.home()), "~")):
            if path != "/":
                value = value.replace(path, name)
    return value


def _cuda_version() -> str:
    found = re.search(r"CUDA Version:\s*([\d.]+)", _output(["nvidia-smi"]))
    return found.group(1) if found else ""


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1) if found else platform.machine()


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _output(command: list[str]) -> str:
    """Returns the command's output; empty if it is missing, fails or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_S_MAX, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()

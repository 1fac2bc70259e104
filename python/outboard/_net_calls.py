"""Calls of net.cuh for compilers other than nvcc: their list, which include/outboard/net_calls.cu has, and what clang
makes of it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from ._use import OutboardError

# Bit of an answer that is a failure. The bits below it are the syndrome, 8 of them, and the cause.
FAILED = 1 << 63

SOURCE = "net_calls.cu"
PREFIX = "outboard_net_"
CLANG_S_MAX = 120
_CALL = re.compile(r"\.visible \.func\s+\(\.param \.b64 \w+\)\s+" + PREFIX + r"(\w+)\(([^)]*)\)")
# As net_clang.cuh explains. Triton links no code that keeps denormal numbers.
_FLAGS = ["-x", "cuda", "--cuda-device-only", "--cuda-gpu-arch=sm_70", "-nocudainc", "-nocudalib", "-std=c++17", "-O2"]
_FLAGS += ["-fcuda-flush-denormals-to-zero"]
# Of PTX, whose version has to have what is used.
_FEATURES = ["-Xclang", "-target-feature", "-Xclang", "+ptx70"]


def declared(ptx: Path) -> dict[str, tuple[int, ...]]:
    """The calls that a PTX file has, without their prefix: the bits of what each takes."""
    found = _CALL.findall(ptx.read_text())
    if not found:
        raise OutboardError(f"{ptx} has no calls of net.cuh: compile include/outboard/{SOURCE} with -rdc=true -ptx")
    return {name: tuple(map(int, re.findall(r"\.param \.b(\d+)", params))) for name, params in found}


def compiled(clang: str | os.PathLike[str] | None) -> tuple[Path, Path]:
    """LLVM's bitcode of the calls, and their PTX, which clang made now or before."""
    compiler = _clang(clang)
    source = _headers() / "outboard" / SOURCE
    folder = _cache() / f"net-calls-{_digest(compiler, source.parent)}"
    made = folder / "net_calls.bc", folder / "net_calls.ptx"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as place:
            new = Path(place) / "new"
            new.mkdir()
            _compile(compiler, source, ["-emit-llvm", "-c"], new / made[0].name)
            _compile(compiler, source, ["-S", *_FEATURES], new / made[1].name)
            try:
                new.rename(folder)
            except OSError:
                # Another process was first.
                if not folder.is_dir():
                    raise
    return made


def _compile(compiler: str, source: Path, how: list[str], to: Path) -> None:
    headers = [f"-I{source.parent.parent}", "-include", "outboard/net_clang.cuh"]
    argv = [compiler, *_FLAGS, *how, *headers, os.fspath(source), "-o", os.fspath(to)]
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=CLANG_S_MAX)
    if done.returncode != 0:
        raise OutboardError(
            f"{compiler} does not compile {source} for NVPTX (clang 14 and later do):\n{done.stderr[:2000]}"
        )


def _clang(named: str | os.PathLike[str] | None) -> str:
    name = os.fspath(named or os.environ.get("OUTBOARD_CLANG") or "clang")
    found = shutil.which(name)
    if found is None:
        raise OutboardError(
            f"{name} was not found: Triton links LLVM's bitcode of include/outboard/{SOURCE}, which clang makes, 14 or "
            "later (Debian's and Ubuntu's package clang); OUTBOARD_CLANG names another one"
        )
    return found


def _headers() -> Path:
    """The folder with net.cuh: of the wheel, or of the clone that this file lies in."""
    here = Path(__file__).resolve().parent
    places = [here / "installed" / "include", here.parent.parent / "include"]
    if named := os.environ.get("OUTBOARD_NET_INCLUDE"):
        places = [Path(named)]
    for place in places:
        if (place / "outboard" / SOURCE).is_file():
            return place
    raise OutboardError(f"outboard/{SOURCE} is not in {places[0]}: OUTBOARD_NET_INCLUDE names the folder that has it")


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "outboard"


def _digest(compiler: str, headers: Path) -> str:
    """What the result depends on: the compiler, what it is told, and the headers."""
    version = subprocess.run([compiler, "--version"], capture_output=True, timeout=CLANG_S_MAX).stdout
    digest = hashlib.sha256(version + " ".join(_FLAGS + _FEATURES).encode())
    for header in sorted(headers.iterdir()):
        if header.suffix in (".cuh", ".h", ".cu"):
            contents = header.read_bytes()
            digest.update(f"{header.name} {len(contents)} ".encode() + contents)
    return digest.hexdigest()[:16]

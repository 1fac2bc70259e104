#!/usr/bin/env python3
"""Sets up the CUDA toolchain of this checkout in `.toolchain/`, without root and without a GPU.

    .toolchain/bin/nvcc        the stock CUDA 13.0 compiler
    .toolchain/bin/python      a Python with numpy, nvidia-ml-py, pytest and ruff
    .toolchain/include, lib    CUDA headers and libraries, for gcc too
    .toolchain/lib/stubs       a libcuda.so to link against (`-lcuda`) where no driver is installed

Run it again at any time: when everything is there it only says so, and after an interruption it goes on
with the packages already downloaded. Needs Python 3.11 or later, gcc, and a Python package index for the first run.
"""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOOLCHAIN = os.path.join(ROOT, ".toolchain")
VENV = os.path.join(TOOLCHAIN, "venv")
WHEELS = os.path.join(TOOLCHAIN, "wheels")
STAMP = os.path.join(TOOLCHAIN, "ready")
REQUIREMENTS = os.path.join(ROOT, "tools", "toolchain-requirements.txt")

LAYOUT_VERSION = 1  # raise it when install() changes what it leaves behind
PYTHON_MIN = (3, 11)
DISK_FREE_MIN_MIB = 1200
DOWNLOAD_TIMEOUT_S = 20
DOWNLOAD_RETRIES = 2


class ToolchainError(Exception):
    """A failure that the user can act on; its text says how."""


def main() -> int:
    quiet = "--quiet" in sys.argv[1:]
    unknown = [argument for argument in sys.argv[1:] if argument != "--quiet"]
    if unknown:
        print(__doc__, file=sys.stderr)
        print(f"usage: {sys.argv[0]} [--quiet]", file=sys.stderr)
        return 0 if unknown in (["-h"], ["--help"]) else 2
    try:
        if sys.version_info < PYTHON_MIN:
            raise ToolchainError(
                f"Python {PYTHON_MIN[0]}.{PYTHON_MIN[1]} or later is needed, this is {sys.version.split()[0]}"
            )
        if not is_ready():
            install_locked()
    except ToolchainError as error:
        print(f"toolchain: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ntoolchain: interrupted; run it again to go on", file=sys.stderr)
        return 130
    if not quiet:
        print(f"toolchain: ready in {os.path.relpath(TOOLCHAIN)}")
    return 0


def wanted_stamp() -> str:
    """Returns the stamp file's text for this version of the toolchain."""
    with open(REQUIREMENTS, encoding="utf-8") as file:
        return f"layout {LAYOUT_VERSION}, python {sys.version_info[0]}.{sys.version_info[1]}\n{file.read()}"


def is_ready() -> bool:
    try:
        with open(STAMP, encoding="utf-8") as file:
            if file.read() != wanted_stamp():
                return False
    except FileNotFoundError:
        return False
    # The stamp alone does not notice a removed system Python or a half-deleted folder.
    return all(
        os.path.exists(os.path.join(TOOLCHAIN, path))
        for path in ("venv/bin/python", "cuda/bin/nvcc", "lib/stubs/libcuda.so")
    )


def install_locked() -> None:
    """Installs under a lock, so that parallel makes wait for each other."""
    import fcntl

    os.makedirs(TOOLCHAIN, exist_ok=True)
    with open(os.path.join(TOOLCHAIN, "lock"), "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another installation")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_ready():
            install()


def install() -> None:
    """Completes the toolchain from nothing or from any interrupted state; the stamp is written
    last."""
    import shutil

    if shutil.which("gcc") is None:
        raise ToolchainError("gcc is needed and was not found on the PATH")
    free_mib = shutil.disk_usage(TOOLCHAIN).free >> 20
    if free_mib < DISK_FREE_MIN_MIB:
        raise ToolchainError(f"{free_mib} MiB free at {TOOLCHAIN}, {DISK_FREE_MIN_MIB} MiB needed")
    if os.path.exists(STAMP):
        os.remove(STAMP)
    create_venv()
    download_wheels()
    install_wheels()
    link_layout()
    build_libcuda_stub()
    with open(STAMP + ".new", "w", encoding="utf-8") as file:
        file.write(wanted_stamp())
    os.replace(STAMP + ".new", STAMP)
    shutil.rmtree(WHEELS, ignore_errors=True)


def create_venv() -> None:
    """Always a fresh one: pip cannot repair a package whose installation was cut in half."""
    import shutil

    say("creating a Python environment")
    shutil.rmtree(VENV, ignore_errors=True)
    execute(
        [sys.executable, "-m", "venv", VENV],
        "could not create a Python environment (on Debian and Ubuntu: apt install python3-venv)",
    )


def download_wheels() -> None:
    """One pip call a package, so that an interruption loses at most one download."""
    os.makedirs(WHEELS, exist_ok=True)
    packages = requirements()
    for index, package in enumerate(packages, 1):
        say(f"[{index}/{len(packages)}] {package.replace('==', ' ')}")
        execute(
            [
                *pip("download", "--no-deps", "--only-binary", ":all:", "--dest", WHEELS, package),
                "--timeout",
                str(DOWNLOAD_TIMEOUT_S),
                "--retries",
                str(DOWNLOAD_RETRIES),
            ],
            f"could not download {package}: is there a network? "
            "pip's settings (pip config, PIP_INDEX_URL, HTTPS_PROXY) are honoured",
        )


def install_wheels() -> None:
    say("installing")
    execute(
        pip("install", "--no-deps", "--no-index", "--find-links", WHEELS, "--requirement", REQUIREMENTS),
        "could not install the downloaded packages",
    )


def link_layout() -> None:
    """The packages hold no development links, and nvcc looks into lib64."""
    import shutil

    cuda = os.path.join(VENV, f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/nvidia/cu13")
    if not os.path.exists(os.path.join(cuda, "bin/nvcc")):
        raise ToolchainError(f"the packages did not bring {cuda}/bin/nvcc")
    link(os.path.join(cuda, "lib64"), "lib")
    link(os.path.join(cuda, "lib/libcudart.so"), "libcudart.so.13")
    link(os.path.join(cuda, "lib/libnvrtc.so"), "libnvrtc.so.13")
    link(os.path.join(TOOLCHAIN, "cuda"), os.path.relpath(cuda, TOOLCHAIN))
    link(os.path.join(TOOLCHAIN, "include"), "cuda/include")
    link(os.path.join(TOOLCHAIN, "lib"), "cuda/lib")

    # Wrappers instead of links: nvcc and Python find their own files from the path they are started by.
    bin_folder = os.path.join(TOOLCHAIN, "bin")
    shutil.rmtree(bin_folder, ignore_errors=True)
    os.makedirs(bin_folder)
    wrap(os.path.join(bin_folder, "nvcc"), "../cuda/bin/nvcc")
    wrap(os.path.join(bin_folder, "ptxas"), "../cuda/bin/ptxas")
    wrap(os.path.join(bin_folder, "python"), "../venv/bin/python")
    wrap(os.path.join(bin_folder, "pytest"), "../venv/bin/python", "-m pytest")


def build_libcuda_stub() -> None:
    """A libcuda.so to link against, with every function that cuda.h declares.

    The toolkit's packages leave out the stub library that a full toolkit has. As there, each function answers
    CUDA_ERROR_STUB_LIBRARY, and the soname makes programs load the real libcuda.so.1 at run time.
    """
    import re
    import subprocess

    include = os.path.join(TOOLCHAIN, "include")
    names: set[str] = set()
    # cuda.h renames functions by macros (cuMemAlloc is cuMemAlloc_v2), differently with per-thread default streams.
    for defines in ([], ["-DCUDA_API_PER_THREAD_DEFAULT_STREAM"]):
        text = subprocess.run(
            ["gcc", "-E", "-P", *defines, "-I", include, os.path.join(include, "cuda.h")],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        names.update(re.findall(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(", text))
    if "cuInit" not in names:
        raise ToolchainError("found no function declarations in cuda.h")
    stubs = os.path.join(TOOLCHAIN, "lib/stubs")
    os.makedirs(stubs, exist_ok=True)
    source = "enum { CUDA_ERROR_STUB_LIBRARY = 34 };\n"
    source += "".join(f"int {name}(void) {{ return CUDA_ERROR_STUB_LIBRARY; }}\n" for name in sorted(names))
    subprocess.run(
        [
            "gcc",
            "-x",
            "c",
            "-",
            "-shared",
            "-fPIC",
            "-Wl,-soname,libcuda.so.1",
            "-o",
            os.path.join(stubs, "libcuda.so"),
        ],
        input=source,
        check=True,
        text=True,
    )


def requirements() -> list[str]:
    with open(REQUIREMENTS, encoding="utf-8") as file:
        lines = (line.split("#")[0].strip() for line in file)
        return [line for line in lines if line]


def pip(*arguments: str) -> list[str]:
    return [os.path.join(VENV, "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]


def execute(command: list[str], failure: str) -> None:
    """Runs the command; on failure its own last words and then what it means here."""
    import subprocess

    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if result.returncode == -2:
        raise KeyboardInterrupt
    if result.returncode != 0:
        last_words = "\n".join("  " + line for line in result.stdout.strip().splitlines()[-4:])
        raise ToolchainError(f"{failure}\n{last_words}")


def link(path: str, target: str) -> None:
    if os.path.lexists(path):
        os.remove(path)
    os.symlink(target, path)


def wrap(path: str, program: str, arguments: str = "") -> None:
    """A relative wrapper, so that a moved checkout keeps working."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(
            f'#!/bin/sh\nexec "$(dirname "$(readlink -f "$0")")/{program}" {arguments + " " if arguments else ""}"$@"\n'
        )
    os.chmod(path, 0o755)


def say(text: str) -> None:
    print(f"toolchain: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

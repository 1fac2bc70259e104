#!/usr/bin/env python3
"""Sets up the Python packages that are tested on the software device, in `.toolchain/packages/`.

    python3 tools/packages.py numba_cupy torch

Each argument is a list of packages in `tools/packages/` and becomes a virtual environment. PyTorch and the libraries
of NVIDIA's that it loads take 6 GB. Run it again at any time: what is there already stays, what was interrupted begins
anew. With --skipped FILE an environment that cannot be had, for want of space or of a network, is a line of that file
and no failure.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LISTS = ROOT / "tools" / "packages"
PACKAGES = ROOT / ".toolchain" / "packages"
STAMP = "ready"
DISK_FREE_MIN_MIB = {"torch": 9_000, "numba_cupy": 2_000}


class PackagesError(Exception):
    """A failure that the user can act on; its text says how."""


def main() -> int:
    known = sorted(path.stem for path in LISTS.glob("*.txt"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=known, metavar="NAME", help=f"some of {', '.join(known)}")
    parser.add_argument("--skipped", type=Path, metavar="FILE", help="where to say what cannot be installed here")
    arguments = parser.parse_args()
    failures: dict[str, str] = {}
    try:
        PACKAGES.mkdir(parents=True, exist_ok=True)
        # One installation at a time.
        with (PACKAGES / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for name in arguments.names:
                try:
                    prepare(name)
                except PackagesError as error:
                    failures[name] = str(error)
                    print(f"packages: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("\npackages: interrupted", file=sys.stderr)
        return 130
    if arguments.skipped is None:
        return 1 if failures else 0
    arguments.skipped.unlink(missing_ok=True)
    if failures:
        arguments.skipped.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"{name}: {why.splitlines()[0]}" for name, why in failures.items()]
        arguments.skipped.write_text("\n".join(lines) + "\n")
    return 0


def prepare(name: str) -> None:
    """Installs an environment completely or not at all: the stamp is written last."""
    folder, wanted = PACKAGES / name, (LISTS / f"{name}.txt").read_text()
    stamp = folder / STAMP
    if stamp.exists() and stamp.read_text() == wanted and (folder / "bin" / "python").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    free_mib = shutil.disk_usage(PACKAGES).free >> 20
    if free_mib < DISK_FREE_MIN_MIB.get(name, 0):
        raise PackagesError(f"{free_mib} MiB free at {PACKAGES}, {DISK_FREE_MIN_MIB[name]} MiB needed for {name}")
    print(f"packages: installing {name}", flush=True)
    execute([sys.executable, "-m", "venv", str(folder)], "could not create a Python environment")
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    # Most of PyTorch's files are never imported, so they are not compiled ahead.
    install = [*pip, "install", "--no-deps", "--no-compile", "--only-binary", ":all:"]
    execute([*install, "--requirement", str(LISTS / f"{name}.txt")], f"could not install {name}: is there a network?")
    stamp.write_text(wanted)


def execute(command: list[str], failure: str) -> None:
    """Runs the command; on failure prints its last output and then the meaning of the failure."""
    environment = {**os.environ, "PIP_ROOT_USER_ACTION": "ignore"}
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != 0:
        last_words = "\n".join("  " + line for line in done.stdout.strip().splitlines()[-4:])
        raise PackagesError(f"{failure}\n{last_words}")


if __name__ == "__main__":
    sys.exit(main())

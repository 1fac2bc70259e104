#!/usr/bin/env python3
"""Builds the images of packaging/containers from the wheel, and runs them: a server, and programs in another container.

    make wheel examples && python3 tools/containers.py --out docs/results/containers.json

No registry is used: the base image is a minimal root of Debian with Python, made by debootstrap, unless --base names
an image. Podman's storage is a folder of its own, which is removed at the end. Root only; it needs Debian's packages
podman, runc, netavark, iptables and debootstrap. The server has the software device, or the GPU that --device names.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECIPE = ROOT / "packaging" / "containers" / "Containerfile"
SUITE = "bookworm"
INCLUDED = "python3,python3-pip,python-is-python3"
STEP_S_MAX = 600
PORT = 4833

# The program that the client's container runs without an example: a kernel's result by the driver's own calls.
WORDS = """
import ctypes as c
lib = c.CDLL("libcuda.so.1")
def must(name, *arguments):
    status = getattr(lib, name)(*arguments)
    assert status == 0, (name, status)
context, at, word = c.c_void_p(), c.c_uint64(), c.c_uint32()
must("cuInit", 0)
must("cuDevicePrimaryCtxRetain", c.byref(context), 0)
must("cuCtxSetCurrent", context)
must("cuMemAlloc_v2", c.byref(at), c.c_size_t(4))
must("cuMemsetD8_v2", at, c.c_ubyte(7), c.c_size_t(4))
must("cuMemcpyDtoH_v2", c.byref(word), at, c.c_size_t(4))
print(hex(word.value))
"""


def run(*argv: str | Path, **more: object) -> str:
    """Runs a command; returns what it printed."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=STEP_S_MAX, **more)  # type: ignore[call-overload]
    if done.returncode != 0:
        sys.exit(f"containers: {' '.join(map(str, argv))[:300]}:\n{done.stdout}{done.stderr}")
    return done.stdout


class Podman:
    """Podman with storage of its own. Limits of containers are this process's: it may not be allowed to raise them."""

    def __init__(self, folder: Path) -> None:
        storage = ["--root", folder / "storage", "--runroot", folder / "run", "--storage-driver", "vfs"]
        self.argv = [
            "podman",
            *map(str, storage),
            "--cgroup-manager=cgroupfs",
            "--runtime",
            shutil.which("runc") or "runc",
        ]
        self.steps: dict[str, float] = {}

    def __call__(self, *arguments: str | Path, step: str | None = None) -> str:
        begin = time.monotonic()
        said = run(*self.argv, *arguments)
        if step:
            self.steps[step] = round(time.monotonic() - begin, 2)
        return said

    def container(self, *arguments: str | Path, step: str | None = None) -> str:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        limits = [f"nofile={files}:{files}", "nproc=4096:4096"]
        return self("run", "--cgroups=no-conmon", *(f"--ulimit={one}" for one in limits), *arguments, step=step)


def base(podman: Podman, folder: Path, root: Path | None) -> str:
    """Imports a minimal root of Debian as an image."""
    if root is None:
        root = folder / "root"
        run("debootstrap", "--variant=minbase", f"--include={INCLUDED}", SUITE, root)
    # pip of Debian's installs for all only where the distribution does not forbid it.
    for marker in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        marker.unlink()
    archive = folder / "root.tar"
    kept_out = [
        f"--exclude=./{place}/*" for place in ("proc", "sys", "dev", "var/cache/apt/archives", "var/lib/apt/lists")
    ]
    run("tar", "--directory", root, *kept_out, "--create", "--file", archive, ".")
    podman("import", "--quiet", archive, "localhost/outboard-base")
    archive.unlink()
    return "localhost/outboard-base"


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + STEP_S_MAX
    while not is_so():
        if time.monotonic() > deadline:
            sys.exit(f"containers: {what} did not happen")
        time.sleep(0.2)


def serve_and_use(podman: Podman, device: str | None, program: Path | None) -> dict[str, str]:
    """Runs a server's container as the recipe says it, and programs in containers of their own."""
    options = ["--device", device] if device else []
    serve = [] if device else ["--device", "soft"]
    published = f"127.0.0.1:{PORT}:{PORT}"
    podman.container("--detach", "--name", "server", "-p", published, *options, "outboard-server", *serve)
    log = [*podman.argv, "logs", "server"]

    def listens() -> bool:
        done = subprocess.run(log, capture_output=True, text=True, timeout=STEP_S_MAX)
        return "listening on" in done.stdout

    until(listens, "the server's listening")
    said = {"user": podman("exec", "server", "id", "--user", "--name").strip()}
    if said["user"] != "outboard":
        sys.exit(f"containers: the server runs as {said['user']}")
    client = ["--rm", "--network=host", "--env", f"OUTBOARD_GPU=tcp://127.0.0.1:{PORT}"]
    said["python"] = podman.container(*client, "outboard-client", "python", "-c", WORDS, step="python_s").strip()
    if said["python"] != "0x7070707":
        sys.exit(f"containers: the program in its container printed {said['python']!r}")
    if program is not None:
        mounted = ["--volume", f"{program}:/program:ro"]
        said["program"] = podman.container(*client, *mounted, "outboard-client", "/program", step="program_s").strip()
    podman("stop", "--time", "20", "server", step="stop_s")
    state = podman("inspect", "--format", "{{.State.ExitCode}}", "server").strip()
    if state != "0":
        sys.exit(f"containers: the server ended with {state}:\n{podman('logs', 'server')}")
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, default=ROOT / "build" / "wheel", help="the folder with the wheel")
    parser.add_argument("--program", type=Path, help="a CUDA program that the client's container runs, too")
    parser.add_argument("--base", help="the base image [default: Debian, by debootstrap]")
    parser.add_argument("--root", type=Path, help="a root for the base that was made before")
    parser.add_argument("--device", help="the server's GPU, as --device of podman; else the software device")
    parser.add_argument("--out", type=Path, help="where the results are written, as JSON")
    arguments = parser.parse_args()
    [wheel] = arguments.wheels.glob("outboard-*.whl")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        podman = Podman(folder)
        try:
            image = arguments.base or base(podman, folder, arguments.root)
            for target in ("client", "server"):
                build = ["build", "--isolation=chroot", "--build-arg", f"BASE={image}", "--target", target]
                build += ["--tag", f"outboard-{target}", "--file", str(RECIPE), str(wheel.parent)]
                podman(*build, step=f"build_{target}_s")
            said = serve_and_use(podman, arguments.device, arguments.program)
        finally:
            subprocess.run([*podman.argv, "rm", "--all", "--force"], capture_output=True, timeout=STEP_S_MAX)
    results = {
        "format": 1,
        "date_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {"cores": os.cpu_count(), "kernel": platform.release()},
        "podman": run("podman", "--version").strip(),
        "base": arguments.base or f"Debian {SUITE}, minbase, {INCLUDED}",
        "wheel": {"name": wheel.name, "bytes": wheel.stat().st_size},
        "device": arguments.device or "soft",
        "steps": podman.steps,
        "said": said,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())

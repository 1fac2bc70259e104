#!/usr/bin/env python3
"""Installs the wheel and the Debian package where nothing else is: in a minimal root of Debian, made by debootstrap.

    make wheel deb && python3 tools/bare_root.py --out docs/results/bare-root.json

In the root there is no compiler, no CUDA and no network. Each package is installed, a server with the software device
is started, and a stock CUDA program runs through it; the result says what each step took. Jupyter runs a notebook's
cells on the host, in an environment with the wheel, if --jupyter allows it to fetch its packages. Root only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUITE = "bookworm"
# What Debian's own Python needs for environments; a notebook's packages, by hand.
INCLUDED = "python3,python3-venv"
JUPYTER = ["jupyter_client", "ipykernel"]
STEP_S_MAX = 600
# The promise that the Makefile states.
COMMAND_BYTES_MAX = int(re.search(r"^COMMAND_BYTES_MAX := (\d+)$", (ROOT / "Makefile").read_text(), re.M)[1])  # type: ignore[index]

# An adapter in software, as programs for RDMA find it.
ADAPTER = (
    "import ctypes; n = ctypes.c_int(); verbs = ctypes.CDLL('libibverbs.so.1');"
    " verbs.ibv_get_device_list(ctypes.byref(n)); print('adapters', n.value)"
)

PROGRAM = """
import outboard, outboard.net, subprocess
outboard.net.Endpoint()
with outboard.session(None, "--device", "soft", "--no-cache") as address:
    done = subprocess.run(["/root/vector_add"], capture_output=True, text=True)
    print(done.stdout, done.stderr)
    raise SystemExit(done.returncode)
"""

SERVICE = f"""
set -e
outboard serve --no-config --device soft --no-cache --listen shm:///root/gpu.sock >/root/listening &
server=$!
while ! grep -q listening /root/listening; do sleep 0.05; done
outboard run --gpu shm:///root/gpu.sock -- /root/vector_add
outboard doctor --gpu shm:///root/gpu.sock >/root/doctor || true
grep 'ok .*server' /root/doctor
test -f /etc/outboard/serve.toml && test -f /usr/lib/systemd/system/outboard.service
outboard serve --check-config --device soft --no-cache | grep 'the settings are right'
outboard nic run -- python3 -c "{ADAPTER}" | grep 'adapters 1'
kill $server
dpkg --remove outboard
! test -e /usr/bin/outboard
"""

CELLS = """
import sys
from jupyter_client.manager import start_new_kernel
cells = [
    "import outboard; outboard.use({address!r})",
    "import ctypes; lib = ctypes.CDLL('libcuda.so.1'); status = lib.cuInit(0)",
    "count = ctypes.c_int(); status = status or lib.cuDeviceGetCount(ctypes.byref(count))",
    "print('devices', count.value, 'status', status)",
]
manager, client = start_new_kernel(kernel_name="python3")
said = []
def heard(message):
    if message["msg_type"] in ("stream", "error"):
        said.append(str(message["content"].get("text") or message["content"].get("traceback")))
for cell in cells:
    client.execute_interactive(cell, timeout=60, output_hook=heard)
client.stop_channels()
manager.shutdown_kernel(now=True)
print("".join(said))
sys.exit(0 if "devices 1 status 0" in "".join(said) else 1)
"""


def run(*argv: str | Path, **more: object) -> str:
    """Runs a command; returns what it printed."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=STEP_S_MAX, **more)  # type: ignore[call-overload]
    if done.returncode != 0:
        sys.exit(f"bare_root: {' '.join(map(str, argv))[:200]}:\n{done.stdout}{done.stderr}")
    return done.stdout


@contextlib.contextmanager
def mounted(root: Path) -> Iterator[None]:
    """/proc and /dev of the root, for as long as the block runs."""
    places = [root / "proc", root / "dev"]
    run("mount", "-t", "proc", "proc", places[0])
    run("mount", "--bind", "/dev", places[1])
    try:
        yield
    finally:
        for place in places:
            subprocess.run(["umount", "--lazy", place])


def within(root: Path, *argv: str) -> str:
    """Runs a command in the root, without a network."""
    env = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive"}
    return run("unshare", "--net", "chroot", root, *argv, env=env)


def timed(steps: dict[str, float], name: str, *argv: str, root: Path) -> str:
    begin = time.monotonic()
    said = within(root, *argv)
    steps[name] = round(time.monotonic() - begin, 2)
    return said


def check_size(command: Path) -> None:
    """An installed command has as few bytes as promised."""
    size = command.stat().st_size
    if size >= COMMAND_BYTES_MAX:
        sys.exit(f"bare_root: {command} has {size} bytes; below {COMMAND_BYTES_MAX} are promised")


def packages(root: Path, wheel: Path, deb: Path, program: Path) -> dict[str, float]:
    home = root / "root"
    for path in (wheel, deb):
        shutil.copy(path, home)
    shutil.copy(program, home / "vector_add")
    steps: dict[str, float] = {}
    with mounted(root):
        within(root, "sh", "-c", "! command -v cc && ! command -v nvcc")
        timed(steps, "venv_s", "python3", "-m", "venv", "/root/venv", root=root)
        pip = ["/root/venv/bin/pip", "install", "--no-index", f"/root/{wheel.name}"]
        timed(steps, "pip_install_s", *pip, root=root)
        said = timed(steps, "first_result_s", "/root/venv/bin/python", "-c", PROGRAM, root=root)
        print(said.strip())
        [command] = root.glob("root/venv/lib/python3*/site-packages/outboard/installed/bin/outboard")
        check_size(command)
        timed(steps, "dpkg_install_s", "dpkg", "--install", f"/root/{deb.name}", root=root)
        check_size(root / "usr" / "bin" / "outboard")
        print(timed(steps, "deb_s", "bash", "-c", SERVICE, root=root).strip())
    return steps


def jupyter(wheel: Path) -> dict[str, object]:
    """A notebook's kernel uses a server's GPU: cells as a client sends them."""
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "venv" / "bin" / "python"
        run(sys.executable, "-m", "venv", Path(folder) / "venv")
        run(python, "-m", "pip", "install", "--quiet", *JUPYTER)
        run(python, "-m", "pip", "install", "--quiet", "--no-index", wheel)
        address = f"shm://{folder}/gpu.sock"
        argv = [python.parent / "outboard", "serve", "--no-config", "--device", "soft", "--no-cache"]
        with subprocess.Popen([*argv, "--listen", address], stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None and server.stdout.readline()
            env = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
            said = run(python, "-c", CELLS.format(address=address), env=env)
            server.terminate()
        versions = run(python, "-m", "pip", "list", "--format=json")
    found = {one["name"]: one["version"] for one in json.loads(versions)}
    return {"said": said.strip(), "versions": {name: found[name] for name in JUPYTER}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="the folder with the wheel and the package")
    parser.add_argument("--program", type=Path, default=ROOT / "build" / "examples" / "vector_add")
    parser.add_argument("--root", type=Path, help="a root that was made before [default: a new one]")
    parser.add_argument("--jupyter", action="store_true", help="install Jupyter from the package index, and use it")
    parser.add_argument("--out", type=Path, help="where the results are written, as JSON")
    arguments = parser.parse_args()
    [wheel], [deb] = arguments.build.glob("wheel/outboard-*.whl"), arguments.build.glob("outboard_*.deb")
    with tempfile.TemporaryDirectory() as folder:
        root = arguments.root or Path(folder) / "root"
        if not root.exists():
            run("debootstrap", "--variant=minbase", f"--include={INCLUDED}", SUITE, root)
        steps = packages(root, wheel, deb, arguments.program)
    results: dict[str, object] = {
        "format": 1,
        "date_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {"cores": os.cpu_count(), "kernel": platform.release()},
        "root": f"Debian {SUITE}, minbase, {INCLUDED}",
        "wheel": {"name": wheel.name, "bytes": wheel.stat().st_size},
        "deb": {"name": deb.name, "bytes": deb.stat().st_size},
        "steps": steps,
    }
    if arguments.jupyter:
        results["jupyter"] = jupyter(wheel)
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Uses a server's GPU in this process, and starts servers."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# The libraries that this process takes in place of NVIDIA's, by the names under which programs look for them.
LIBRARIES = ["libcuda.so.1", "libnvidia-ml.so.1", "libcupti.so.13"]
# Marks a process that has been started again.
AGAIN = "OUTBOARD_STARTED_AGAIN"
ENV = "/usr/bin/env"
GREETING_S_MAX = 30
START_S_MAX = 60
STOP_S_MAX = 10

_used: str | None = None
# The libraries stay loaded as long as the process lives.
_loaded: list[ctypes.CDLL] = []
# Variables that were set here, with their values.
_given_by_us: dict[str, str] = {}


class OutboardError(RuntimeError):
    """The GPU of a server cannot be used; says why."""


def command() -> str:
    """Returns the path of the `outboard` command: that of this package, otherwise that of PATH."""
    installed = Path(__file__).resolve().parent / "installed" / "bin" / "outboard"
    found = str(installed) if installed.exists() else shutil.which("outboard")
    if found is None:
        raise FileNotFoundError(
            "this package carries no command, and there is none in PATH: make wheel, or make install"
        )
    return found


def environment(gpu: str | None = None) -> dict[str, str]:
    """Returns the environment of a program that uses the server at the address, for subprocess and the like."""
    argv = [command(), "run", *(["--gpu", gpu] if gpu else []), "--", ENV, "-0"]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=GREETING_S_MAX)
    except subprocess.TimeoutExpired:
        raise OutboardError(f"{gpu or 'the server'} has not answered within {GREETING_S_MAX} s") from None
    if done.returncode != 0:
        raise OutboardError(_said(done.stderr.decode(errors="replace")))
    entries = (os.fsdecode(entry).partition("=") for entry in done.stdout.split(b"\0") if entry)
    return {name: value for name, _, value in entries}


def _said(stderr: str) -> str:
    """Returns what a command said, without its name and the place of its help."""
    said = stderr.partition("\n\nFor more information")[0]
    return said.strip().removeprefix("outboard: ").removeprefix("error: ")


def use(gpu: str | None = None) -> None:
    """Makes this process, and those that it starts, use the GPU of the server at the address: `tcp://gpu-box`. Call it
    before torch, or whatever else uses CUDA, is imported. Without an address OUTBOARD_GPU names it, else it is this
    machine's default one."""
    global _used
    wanted = environment(gpu)
    address = wanted["OUTBOARD_GPU"]
    if _used is not None:
        if _used != address:
            raise OutboardError(f"this process uses {_used} already, and cannot change to {address}")
        return
    folder = Path(wanted["LD_LIBRARY_PATH"].split(":")[0])
    _set(wanted)
    foreign = _foreign(folder)
    if foreign is not None:
        _start_again(foreign)
    for name in LIBRARIES:
        if (folder / name).exists():
            # By its SONAME it is found by everything that looks for NVIDIA's later.
            _loaded.append(ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL))
    _used = address


def _set(wanted: dict[str, str]) -> dict[str, str | None]:
    """Sets variables; returns those that were different, with their values before."""
    changed = {name: value for name, value in wanted.items() if os.environ.get(name) != value}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    _given_by_us.update(changed)
    return before


def _foreign(folder: Path) -> str | None:
    """Returns the driver that this process has loaded already, unless that is Outboard's."""
    ours = os.path.realpath(folder / LIBRARIES[0])
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.partition("/")[2]
        if path and Path(path).name.startswith("libcuda.so") and os.path.realpath("/" + path) != ours:
            return "/" + path
    return None


def _can_be_read_again() -> bool:
    """Returns whether this program is there a second time: neither from standard input nor from a pipe, nor a child of
    multiprocessing, whose work comes through one."""
    main = sys.modules["__main__"]
    if multiprocessing.parent_process() is not None:
        return False
    if getattr(main, "__spec__", None) is not None:
        return True
    script = getattr(main, "__file__", None)
    # Python -c has no file: its program stands on the command line.
    return os.path.isfile(script) if script is not None else "-c" in sys.orig_argv


def _start_again(foreign: str) -> None:
    """Starts this program again, with Outboard's libraries first."""
    is_interactive = hasattr(sys, "ps1") or sys.flags.interactive or "ipykernel" in sys.modules
    argv = getattr(sys, "orig_argv", None)
    if is_interactive or AGAIN in os.environ or not argv or len(argv) < 2 or not _can_be_read_again():
        raise OutboardError(
            f"{foreign} is loaded already: restart Python, and call outboard.use() before what uses CUDA is imported"
        )
    print(f"outboard: {foreign} came first; the program starts again with Outboard's libraries", file=sys.stderr)
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *argv[1:]], {**os.environ, AGAIN: "1"})


@contextmanager
def session(gpu: str | None = None, *options: str) -> Iterator[str]:
    """A block whose child processes use a server: the one at the address, or one that is started for the block, with
    options of `outboard serve`. Gives its address, for `use` and `--gpu`.

        with outboard.session(None, "--device", "soft") as address:
            subprocess.run([sys.executable, "train.py"])

    A server that was started ends with the block, and so do the sessions of programs that use it. Of the environment
    the block's end takes back what the block's begin has set, and nothing that was changed in between."""
    with _started(options) if gpu is None else _given(gpu) as address:
        before = _set(environment(address))
        try:
            yield address
        finally:
            for name, value in before.items():
                if os.environ.get(name) != _given_by_us[name]:
                    continue
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


@contextmanager
def _given(gpu: str) -> Iterator[str]:
    yield gpu


@contextmanager
def _started(options: tuple[str, ...]) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="outboard-") as folder:
        address = f"shm://{folder}/gpu.sock"
        argv = [command(), "serve", "--no-config", "--until-eof", "--listen", address, *options]
        log = Path(folder) / "log"
        pipe = subprocess.PIPE
        # The server's standard input ends with this process, even where no Python code runs any more.
        with log.open("w") as stderr, subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=stderr) as server:
            try:
                assert server.stdout is not None
                if not server.stdout.readline():
                    server.wait(START_S_MAX)
                    raise OutboardError(f"the server did not start: {_said(log.read_text())}")
                yield address
            finally:
                server.terminate()
                try:
                    server.wait(STOP_S_MAX)
                except subprocess.TimeoutExpired:
                    server.kill()

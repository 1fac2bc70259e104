"""Real servers on the software device, and programs run through them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUTBOARD = Path(os.environ.get("OUTBOARD", ROOT / "target" / "debug" / "outboard"))
EXAMPLES = ROOT / "build" / "examples"
# Where servers run programs: `nvidia` shows that what the software device does is what a GPU does.
DEVICE = os.environ.get("OUTBOARD_TESTS_DEVICE", "soft")
# Options, with their value, that the software device alone has.
SOFT_ALONE = ("--capability",)
# What tests run through a server, in Python and C.
TEST_PROGRAMS = ROOT / "tests" / "programs"
START_S_MAX = 30
PROGRAM_S_MAX = 120


@dataclass
class Server:
    """A running `outboard serve`."""

    process: subprocess.Popen[str]
    urls: dict[str, str]
    log: Path

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)

    def run(
        self, link: str, *command: str | Path, env: dict[str, str] | None = None, timeout: float = PROGRAM_S_MAX
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program through this server."""
        return run_through(self.urls[link], *command, env=env, timeout=timeout)


def without_run(folder: Path) -> dict[str, str]:
    """Returns the environment of a program that `outboard run` does not start: in this folder it finds the client as
    the machine's driver."""
    (folder / "libcuda.so.1").symlink_to(OUTBOARD.parent / "liboutboard_client.so")
    return {**os.environ, "LD_LIBRARY_PATH": str(folder)}


def run_through(
    url: str, *command: str | Path, env: dict[str, str] | None = None, timeout: float = PROGRAM_S_MAX
) -> subprocess.CompletedProcess[str]:
    argv = [str(OUTBOARD), "run", "--gpu", url, "--", *map(str, command)]
    return subprocess.run(argv, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=timeout)


def start_server(folder: Path, *options: str, before: Sequence[str] = ()) -> Server:
    """Starts a server that listens over shm and tcp, by the command `before` if there is one, and waits until it
    listens."""
    log = folder / "server.log"
    if DEVICE != "soft":
        soft = {at + more for at, option in enumerate(options) if option in SOFT_ALONE for more in (0, 1)}
        options = tuple(option for at, option in enumerate(options) if at not in soft)
    argv = [*before, str(OUTBOARD), "serve", "--device", DEVICE, "--cache", str(folder / "cache")]
    argv += ["--listen", f"shm://{folder}/gpu.sock", "--listen", "tcp://127.0.0.1:0", *options]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=log.open("w"), text=True)
    assert process.stdout is not None
    urls: dict[str, str] = {}
    deadline = time.monotonic() + START_S_MAX
    while len(urls) < 2:
        line = process.stdout.readline()
        assert line and time.monotonic() < deadline, f"the server did not start:\n{log.read_text()}"
        url = line.removeprefix("listening on ").strip()
        urls[url.partition(":")[0]] = url
    return Server(process, urls, log)

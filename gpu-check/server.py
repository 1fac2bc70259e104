"""`outboard serve`, started for the check and ended with it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType

READY_PREFIX = "listening on "
STOP_S_MAX = 5.0
LOG_LINES_MAX = 40


class ServerError(Exception):
    """The server did not start, or stopped."""


class Server:
    """One server with a listener for each link, restarted after it died."""

    def __init__(self, outboard: list[str], links: list[str], device: str, log_path: Path, start_s: float) -> None:
        self.outboard = outboard
        self.device = device
        self.log_path = log_path
        self.start_s = start_s
        self.restarts = 0
        self.urls = {link: _listen_url(link) for link in links}
        self._process: subprocess.Popen[bytes] | None = None
        self._listening: set[str] = set()
        self._changed = threading.Condition()
        self._output_closed = False

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the server and waits until every listener is up. Raises ServerError."""
        command = [*self.outboard, "serve", "--device", self.device]
        for url in self.urls.values():
            command += ["--listen", url]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise ServerError(f"cannot start {command[0]}: {error.strerror}") from error
        self._process = process
        self._listening = set()
        self._output_closed = False
        threading.Thread(target=self._pump, args=(process,), daemon=True).start()
        until = time.monotonic() + self.start_s
        with self._changed:
            while len(self._listening) < len(self.urls):
                left = until - time.monotonic()
                if self._output_closed or left <= 0:
                    break
                self._changed.wait(left)
            ready = len(self._listening) >= len(self.urls)
        if not ready:
            self.stop()
            raise ServerError(
                f"the server was not ready within {self.start_s:g} s ({len(self._listening)} of {len(self.urls)} "
                f"listeners, exit status {process.returncode}):\n" + "\n".join(self.log_tail())
            )

    def ensure_running(self) -> None:
        """Restarts the server if it has died, so that the rest of the check still runs."""
        if self._process is not None and self._process.poll() is None:
            return
        self.restarts += 1
        self.stop()
        self.start()

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(timeout=STOP_S_MAX)
        with contextlib.suppress(ProcessLookupError):
            # The workers too; each session has one.
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def log_tail(self) -> list[str]:
        try:
            return self.log_path.read_text(errors="replace").splitlines()[-LOG_LINES_MAX:]
        except OSError:
            return []

    def _pump(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with self.log_path.open("ab") as log:
            for line in process.stdout:
                log.write(line)
                log.flush()
                text = line.decode(errors="replace").strip()
                if text.startswith(READY_PREFIX):
                    with self._changed:
                        self._listening.add(text[len(READY_PREFIX) :])
                        self._changed.notify_all()
        with self._changed:
            self._output_closed = True
            self._changed.notify_all()


def _listen_url(link: str) -> str:
    if link == "shm":
        return f"shm:///tmp/outboard-gpu-check-{os.getpid()}.sock"
    if link == "tcp":
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    raise ServerError(f"no link is called {link}: shm and tcp are")

"""`outboard serve` at one end of the cable and `outboard run` at the other."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cable import Port

from rdma_guest.guest import Command, Done

ROOT = Path(__file__).resolve().parent.parent.parent
OUTBOARD = Path(os.environ.get("OUTBOARD", ROOT / "target" / "debug" / "outboard"))
EXAMPLES = ROOT / "build" / "examples"
LISTENING_S_MAX = 120
PROGRAM_S_MAX = 240


@dataclass(frozen=True)
class Serving:
    """A server that listens, and the port from which clients come."""

    port: Port
    client: Port
    command: Command
    # Without options.
    address: str

    @property
    def url(self) -> str:
        # In one guest every address is the machine's own, and does not tell which device is meant.
        return f"{self.address}?device={self.client.device}" if self.is_one_guest() else self.address

    def is_one_guest(self) -> bool:
        return self.port.guest is self.client.guest

    def start(self, *program: str | Path, url: str | None = None) -> Command:
        """Runs a program through this server."""
        return self.client.guest.start([OUTBOARD, "run", "--gpu", url or self.url, "--", *program])

    def run(self, *program: str | Path, url: str | None = None) -> Done:
        return self.start(*program, url=url).wait(PROGRAM_S_MAX)

    def workers(self) -> list[str]:
        """The numbers of the processes that serve a client now."""
        return self.port.guest.run("pgrep -f 'outboard.* worker .*--control'").output.split()


@contextmanager
def serving(
    server: Port, client: Port, options: str = "", around: str = "", more: Sequence[str | Path] = ("--spare", "0")
) -> Iterator[Serving]:
    """`around` runs the command that it is given."""
    listen = f"rdma://{server.address}:0"
    if server.guest is client.guest:
        listen += f"?device={server.device}{options}"
    # No spare workers: a worker is a client's.
    argv = [OUTBOARD, "serve", "--device", "soft", "--cache", "/tmp/cache", "--insecure"]
    argv += [*more, "--listen", listen]
    command = server.guest.start(f"{around} {shlex.join(map(str, argv))}" if around else argv)
    said = command.wait_for("listening on", LISTENING_S_MAX)
    address = re.search(r"listening on (rdmas?://[\d.:]+)", said)
    assert address, said
    yield Serving(server, client, command, address[1])
    assert command.status() is None, f"the server died:\n{command.output()}"
    assert "panicked" not in command.output(), command.output()
    command.kill()

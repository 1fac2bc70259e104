"""One guest that runs commands for the host.

    host                                        guest
      write ID.sh in the shared folder
      "run ID"      ── serial port ──►          bash ID.sh > ID.out
      read ID.out while it grows
                    ◄── serial port ──          "ended ID STATUS"

Commands run at the same time if they are started so. All end with the guest, and the guest with this process.
"""

from __future__ import annotations

import itertools
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rdma_guest.clock import counter_khz
from rdma_guest.image import HERE, Image, say, which

BOOT_S_MAX = 120
BOOTS_MAX = 3
START_LOOK_S = 1
END_S_MAX = 15
COMMAND_S_MAX = 60
# A glance at what has arrived.
AT_ONCE_S = 0.001
CONSOLE_LINES_SHOWN = 15
KERNEL_ARGUMENTS = "console=ttyS0 panic=-1 mitigations=off preempt=full tsc=reliable"
# The two guests' addresses are 10.213.78.1 and .2, as are those of veth0 and veth1 in one guest.
NETWORK = "10.213.78."


class GuestError(Exception):
    """The guest did not do its task; the text has its last output."""


@dataclass(frozen=True)
class Done:
    """A command that ended; as in bash, a status of 128 and more is a signal's."""

    status: int
    output: str


class Guest:
    """A running guest. With a cable it has `eth0` and `rxe0`; alone it has `rxe0` and `rxe1` on a veth pair."""

    def __init__(
        self, image: Image, *, cpus: int, memory_mib: int, number: int | None = None, cable: Path | None = None
    ) -> None:
        # Short, since names of sockets are.
        self.folder = Path(tempfile.mkdtemp(prefix="guest-"))
        self.number = number
        self._ids = itertools.count(1)
        self._started: list[Command] = []
        self._ended: dict[str, int] = {}
        self._received = b""
        self._console = self.folder / "console"
        shared = self.folder / "shared"
        shared.mkdir()
        shutil.copy(HERE / "agent.sh", shared)
        (shared / "config").write_text(
            f"FOLDER={shlex.quote(str(shared))}\nMODULES={shlex.quote(str(image.modules))}\nNUMBER={number or ''}\n"
            f"HAS_RDMA={'yes' if image.has_rdma else ''}\n"
        )
        self.shared = shared
        self._argv = [*_qemu(image, self.folder, cpus, memory_mib), *_cable(number, cable)]
        try:
            self._boot()
        except GuestError:
            shutil.rmtree(self.folder)
            raise

    def _boot(self) -> None:
        name = self.folder / "port"
        name.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(name))
            listener.listen(1)
            listener.settimeout(START_LOOK_S)
            with self._console.open("wb") as console:
                self._qemu = subprocess.Popen(
                    self._argv,
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            while True:
                try:
                    self._port, _ = listener.accept()
                    return
                except TimeoutError:
                    if self._qemu.poll() is not None:
                        raise GuestError(f"QEMU did not start\n{self.console()}") from None

    def wait_until_ready(self) -> None:
        """A kernel that gets stuck, as one was seen to on a busy machine before it said a word, or that panics, as one
        did where an emulated processor ran code that another had just changed, is started anew."""
        for _ in range(1, BOOTS_MAX):
            try:
                return self._wait_until_ready()
            except GuestError as error:
                say(f"{error}\nstarting it again")
                self._halt()
                self._boot()
        return self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + BOOT_S_MAX
        while "ready" not in self._ended:
            if time.monotonic() > deadline:
                raise GuestError(f"the guest was not up within {BOOT_S_MAX} s\n{self.console()}")
            self._receive(deadline - time.monotonic())

    def run(
        self, command: str | Sequence[str | Path], *, timeout_s: float = COMMAND_S_MAX, folder: Path | None = None
    ) -> Done:
        """Runs a bash script, or a program with its arguments, to its end."""
        return self.start(command, folder=folder).wait(timeout_s)

    def check(self, command: str | Sequence[str | Path], *, timeout_s: float = COMMAND_S_MAX) -> str:
        """Runs a command and returns its output; raises an error unless it succeeds."""
        done = self.run(command, timeout_s=timeout_s)
        if done.status != 0:
            raise GuestError(f"status {done.status} of {command}\n{done.output}")
        return done.output

    def start(self, command: str | Sequence[str | Path], *, folder: Path | None = None) -> Command:
        """Starts a command without waiting for it, in this folder or in the host process's."""
        script = command if isinstance(command, str) else shlex.join(map(str, command))
        name = str(next(self._ids))
        (self.shared / f"{name}.sh").write_text(f"cd {shlex.quote(str(folder or Path.cwd()))}\n{script}\n")
        self._send(f"run {name}")
        command = Command(self, name)
        self._started.append(command)
        return command

    def end_all(self) -> None:
        """Kills whatever still runs."""
        for command in self._started:
            command.kill()
        self._started.clear()

    def console(self) -> str:
        """The last of what the kernel and the agent said."""
        text = self._console.read_text(errors="replace").replace("\r", "")
        return "\n".join(text.splitlines()[-CONSOLE_LINES_SHOWN:])

    def stop(self) -> None:
        """Nothing in the guest is worth an orderly end."""
        self._halt()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _halt(self) -> None:
        self._qemu.kill()
        self._qemu.wait()
        self._port.close()

    def _send(self, line: str) -> None:
        try:
            self._port.sendall(f"{line}\n".encode())
        except OSError as error:
            raise GuestError(f"the guest is gone: {error}\n{self.console()}") from error

    def _receive(self, timeout_s: float) -> None:
        """Takes in what the guest said; returns when it said something, or at the end of the time."""
        self._port.settimeout(max(timeout_s, AT_ONCE_S))
        try:
            received = self._port.recv(4096)
        except TimeoutError:
            return
        except ConnectionError:
            received = b""
        if not received:
            raise GuestError(f"the guest ended\n{self.console()}")
        *lines, self._received = (self._received + received).split(b"\n")
        for line in lines:
            match line.decode(errors="replace").split():
                case ["ready"]:
                    self._ended["ready"] = 0
                case ["ended", name, status]:
                    self._ended[name] = int(status)


class Command:
    """Something that runs in a guest, or has ended there."""

    def __init__(self, guest: Guest, name: str) -> None:
        self._guest = guest
        self._name = name

    def output(self) -> str:
        """Returns its output so far, of both streams."""
        try:
            return (self._guest.shared / f"{self._name}.out").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def status(self) -> int | None:
        """None while it runs."""
        if self._name not in self._guest._ended:
            self._guest._receive(0)
        return self._guest._ended.get(self._name)

    def wait(self, timeout_s: float = COMMAND_S_MAX) -> Done:
        """Waits for its end; a command that takes longer is killed, which is an error."""
        deadline = time.monotonic() + timeout_s
        while (status := self._guest._ended.get(self._name)) is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                self.kill()
                raise GuestError(f"still running after {timeout_s} s\n{self.output()}")
            self._guest._receive(left_s)
        return Done(status, self.output())

    def wait_for(self, text: str, timeout_s: float = COMMAND_S_MAX) -> str:
        """Returns its output once it contains this text."""
        deadline = time.monotonic() + timeout_s
        while text not in (printed := self.output()):
            if self.status() is not None and text not in self.output():
                raise GuestError(f"it ended before it printed {text!r}\n{printed}")
            if time.monotonic() > deadline:
                self.kill()
                raise GuestError(f"it did not print {text!r} within {timeout_s} s\n{printed}")
            time.sleep(0.02)
        return printed

    def kill(self) -> None:
        """Ends it with all that it started, by SIGKILL."""
        if self.status() is None:
            self._guest._send(f"kill {self._name}")
            deadline = time.monotonic() + END_S_MAX
            while self.status() is None:
                if time.monotonic() > deadline:
                    raise GuestError(f"it cannot be killed\n{self._guest.console()}")
                self._guest._receive(deadline - time.monotonic())


@contextmanager
def one_guest(image: Image, *, cpus: int = 2, memory_mib: int = 2048) -> Iterator[Guest]:
    guest = Guest(image, cpus=cpus, memory_mib=memory_mib)
    try:
        guest.wait_until_ready()
        yield guest
    finally:
        guest.stop()


@contextmanager
def two_guests(image: Image, *, cpus: int = 1, memory_mib: int = 2048) -> Iterator[tuple[Guest, Guest]]:
    """Two that share a cable, and boot at the same time."""
    started: list[Guest] = []
    with tempfile.TemporaryDirectory(prefix="cable-") as cable:
        try:
            for number in (1, 2):
                started.append(Guest(image, cpus=cpus, memory_mib=memory_mib, number=number, cable=Path(cable)))
            for guest in started:
                guest.wait_until_ready()
            yield started[0], started[1]
        finally:
            for guest in started:
                guest.stop()


def _qemu(image: Image, folder: Path, cpus: int, memory_mib: int) -> list[str]:
    # KVM is not relied on: nested virtualisation is rare, and tests should meet the same machine everywhere.
    return [
        *("setpriv", "--pdeathsig", "KILL", which("qemu-system-x86_64")),
        *("-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max"),
        *("-smp", str(cpus), "-m", str(memory_mib)),
        *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-monitor", "none", "-serial", "stdio"),
        *("-kernel", str(image.kernel), "-initrd", str(image.initramfs), "-append", kernel_arguments()),
        *("-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"),
        *("-device", "virtio-9p-pci,fsdev=host,mount_tag=host"),
        *("-fsdev", f"local,id=share,path={folder}/shared,security_model=none"),
        *("-device", "virtio-9p-pci,fsdev=share,mount_tag=share"),
        *("-chardev", f"socket,id=port,path={folder}/port", "-device", "virtio-serial-pci"),
        *("-device", "virtserialport,chardev=port,name=outboard"),
    ]


def kernel_arguments() -> str:
    """A kernel that measures the processor's clock while this machine is busy gets it wrong: a guest's hour was seen to
    take fifteen minutes, and deadlines passed that nobody had missed."""
    khz = counter_khz()
    return KERNEL_ARGUMENTS if khz is None else f"{KERNEL_ARGUMENTS} tsc_early_khz={khz}"


def _cable(number: int | None, cable: Path | None) -> list[str]:
    if number is None or cable is None:
        return []
    ends = f"local.type=unix,local.path={cable}/{number},remote.type=unix,remote.path={cable}/{3 - number}"
    return [
        *("-netdev", f"dgram,id=cable,{ends}"),
        *("-device", f"virtio-net-pci,netdev=cable,mac=52:54:00:0d:4e:0{number},host_mtu=4200"),
    ]

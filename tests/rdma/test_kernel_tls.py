"""Encrypted connections whose records a real kernel makes and reads: links of the crate, servers and programs, each end
with the kernel and without; and kernels that cannot."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serving import EXAMPLES, LISTENING_S_MAX, OUTBOARD, PROGRAM_S_MAX

from rdma_guest.guest import Command, Guest

CASES_S_MAX = 600
# Cases of the suite that every link passes, in which data, ends and keys of both directions meet the kernel.
CASES = [
    "long_frames_are_placed_and_short_ones_are_not",
    "a_placed_frame_goes_on_in_a_later_call",
    "a_peer_that_goes_away_in_a_placed_frame",
    "both_directions_at_once",
    "a_sender_learns_that_nobody_receives",
    "a_closer_ends_a_blocked_receiver_and_a_blocked_sender",
    "the_end_of_one_direction_leaves_the_other",
    "noise_from_the_peer_is_an_error",
    "a_peer_killed_in_mid_stream",
]
# Of these, those with the kernel at one end.
CASES_OF_ONE_END = ["both_directions_at_once", "the_end_of_one_direction_leaves_the_other"]
OFF = "OUTBOARD_KERNEL_TLS=off"


def counters(guest: Guest) -> dict[str, int]:
    lines = guest.check("cat /proc/net/tls_stat").splitlines()
    return {name: int(value) for name, value in (line.split() for line in lines)}


def run_cases(guest: Guest, executable: Path, cases: list[str]) -> None:
    environment = "OUTBOARD_KERNEL_TLS_REQUIRED=1 OUTBOARD_FEW_ROUNDS=1"
    command = f"{environment} {executable} --exact {shlex.join(cases)} --nocapture"
    done = guest.run(command, timeout_s=CASES_S_MAX)
    assert done.status == 0 and "NOT RUN" not in done.output, done.output
    assert f"ok. {len(cases)} passed" in done.output, done.output


def test_links_with_the_kernel_at_both_ends_and_at_one(tls_guest: Guest, executables: dict[str, Path]) -> None:
    before = counters(tls_guest)
    ends = {"both": CASES, "server": CASES_OF_ONE_END, "client": CASES_OF_ONE_END}
    names = [f"kernel_tls::{end}::{case}" for end, cases in ends.items() for case in cases]
    run_cases(tls_guest, executables["link/conformance"], names)
    after = counters(tls_guest)
    for name in ("TlsTxSw", "TlsRxSw", "TlsTxRekeyOk", "TlsRxRekeyOk"):
        assert after[name] > before[name], name
    for name in ("TlsTxRekeyError", "TlsRxRekeyError"):
        assert after[name] == before[name], name


def test_records_that_the_kernel_refuses(tls_guest: Guest, executables: dict[str, Path]) -> None:
    cases = [
        "a_changed_record_is_an_error",
        "a_record_that_comes_again_is_an_error",
        "records_that_are_no_data_end_the_link_or_change_its_key",
    ]
    before = counters(tls_guest)
    run_cases(tls_guest, executables["link/outboard_link"], [f"tcp::kernel::tests::{case}" for case in cases])
    assert counters(tls_guest)["TlsDecryptError"] > before["TlsDecryptError"]


def test_a_hostile_client_ends_its_worker_alone(tls_guest: Guest, executables: dict[str, Path]) -> None:
    before = counters(tls_guest)
    run_cases(tls_guest, executables["cli/all"], ["tls::records_that_no_client_makes_end_their_session_alone"])
    assert counters(tls_guest)["TlsRxSw"] >= before["TlsRxSw"] + 9


def made(*command: str | Path) -> str:
    return subprocess.run([OUTBOARD, *command], check=True, capture_output=True, text=True).stdout


class Serving:
    """A server of encrypted connections, and programs that may use it."""

    def __init__(self, guest: Guest, keys: Path, *options: str) -> None:
        self.guest, self.keys = guest, keys
        argv = [OUTBOARD, "serve", "--device", "soft", "--cache", "/tmp/cache", "--tls", "--tls-key", keys / "server"]
        argv += ["--authorized", keys / "friends", "--greet-within", "60s", "--listen", "tcp://127.0.0.1:0", *options]
        self.command: Command = guest.start(f"OUTBOARD_LOG=info {shlex.join(map(str, argv))}")
        said = self.command.wait_for("listening on", LISTENING_S_MAX)
        address = re.search(r"listening on (tcps://\S+)", said)
        assert address, said
        self.url = address[1]

    def run(self, *program: str | Path, environment: str = "") -> None:
        command = ["env", f"OUTBOARD_KEY_FILE={self.keys / 'friend'}", *environment.split()]
        command += [OUTBOARD, "run", "--gpu", self.url, "--", *program]
        done = self.guest.run(shlex.join(map(str, command)), timeout_s=PROGRAM_S_MAX)
        assert done.status == 0, done.output + self.command.output()


@contextmanager
def serving(guest: Guest, folder: Path, *options: str) -> Iterator[Serving]:
    if not (folder / "server").exists():
        made("keygen", folder / "server")
        (folder / "friends").write_text(made("keygen", folder / "friend"))
    gpu = Serving(guest, folder, *options)
    yield gpu
    assert gpu.command.status() is None and "panicked" not in gpu.command.output(), gpu.command.output()
    gpu.command.kill()


def test_programs_use_the_kernel_at_each_end_that_may(tls_guest: Guest, tmp_path: Path) -> None:
    def used(gpu: Serving, environment: str = "") -> tuple[int, int]:
        before = counters(tls_guest)
        gpu.run(EXAMPLES / "vector_add", environment=environment)
        after = counters(tls_guest)
        sealing, opening = (after[name] - before[name] for name in ("TlsTxSw", "TlsRxSw"))
        return sealing, opening

    with serving(tls_guest, tmp_path) as gpu:
        # Of each connection both ends, or the server's.
        assert min(used(gpu)) >= 2
        # A program has been served, so this part of the log is there.
        assert "the kernel encrypts tcps connections" in gpu.command.output()
        assert min(used(gpu, OFF)) >= 1
    with serving(tls_guest, tmp_path, "--kernel-tls", "off") as gpu:
        assert "as --kernel-tls or OUTBOARD_KERNEL_TLS says" in gpu.command.output()
        assert used(gpu, OFF) == (0, 0)


def test_doctor_says_who_encrypts(tls_guest: Guest) -> None:
    assert re.search(r"ok +kernel TLS +the kernel encrypts", tls_guest.run(f"{OUTBOARD} doctor").output)
    off = tls_guest.run(f"{OFF} {OUTBOARD} doctor").output
    assert re.search(r"note +kernel TLS .*OUTBOARD_KERNEL_TLS says", off), off


def test_a_kernel_that_cannot_change_keys_is_not_used(guest: Guest) -> None:
    """Linux 6.1. A privileged process has it load its module if it is where modules are, which here it is not."""
    missing = guest.run(f"{OUTBOARD} doctor").output
    assert re.search(r"note +kernel TLS .*not loaded", missing) and "modprobe tls" in missing, missing
    guest.check('. /share/config; modprobe -d "$MODULES" tls')
    old = guest.run(f"{OUTBOARD} doctor").output
    assert re.search(r"note +kernel TLS .*cannot change keys", old) and "Linux 6.14" in old, old

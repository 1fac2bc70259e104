"""A server as an administrator runs it: by a file of settings, and by a service manager that opens its sockets."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness import OUTBOARD, ROOT, TEST_PROGRAMS, Server, run_through

UNITS = ROOT / "packaging" / "systemd"


def serve(*options: str | Path, **more: object) -> subprocess.CompletedProcess[str]:
    argv = [OUTBOARD, "serve", *options]
    return subprocess.run(argv, capture_output=True, text=True, timeout=20, **more)  # type: ignore[call-overload]


def test_sockets_that_a_service_manager_opened(tmp_path: Path) -> None:
    """The server takes over what LISTEN_FDS names, and a program that connected before it started is served."""
    path = tmp_path / "gpu.sock"
    unix, tcp = socket.socket(socket.AF_UNIX), socket.socket()
    unix.bind(str(path))
    tcp.bind(("127.0.0.1", 0))
    for one in (unix, tcp):
        one.listen()

    def as_systemd_does() -> None:
        copies = [os.dup(unix.fileno()), os.dup(tcp.fileno())]
        for number, copy in enumerate(copies, 3):
            os.dup2(copy, number)

    # LISTEN_PID is the server's own number, which exec keeps.
    options = f"--no-config --device soft --no-cache --audit {tmp_path}/audit"
    argv = ["sh", "-c", f'LISTEN_PID=$$ LISTEN_FDS=2 exec "{OUTBOARD}" serve {options}']
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, preexec_fn=as_systemd_does, close_fds=False, text=True)
    assert process.stdout is not None
    urls = [process.stdout.readline().removeprefix("listening on ").strip() for _ in range(2)]
    port = tcp.getsockname()[1]
    assert urls == [f"shm://{path}", f"tcp://127.0.0.1:{port}"]
    for url in urls:
        done = run_through(url, sys.executable, TEST_PROGRAMS / "waits.py", "3", "1")
        assert done.returncode == 0 and "right" in done.stdout, done.stderr
    process.terminate()
    assert process.wait(20) == 0
    assert path.exists(), "the socket's file is the service manager's"


def test_another_process_s_sockets_are_left_alone(tmp_path: Path) -> None:
    environment = {**os.environ, "LISTEN_PID": "1", "LISTEN_FDS": "1"}
    address = f"shm://{tmp_path}/gpu.sock"
    options = ("--no-config", "--device", "soft", "--no-cache", "--check-config")
    done = serve(*options, "--listen", address, env=environment)
    assert done.returncode == 0 and f"listen at {address}\n" in done.stdout


def test_a_file_of_settings_is_checked(tmp_path: Path) -> None:
    """Every mistake exits with 2 and its line, before anything is done; the user's own file is found."""
    (tmp_path / "outboard").mkdir()
    file = tmp_path / "outboard" / "serve.toml"
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    address = tmp_path / "gpu.sock"
    file.write_text(f'device = "soft"\nno-cache = true\nlisten = "shm://{address}"\nsessions-max = 5\n')
    done = serve("--check-config", env=environment)
    assert done.returncode == 0, done.stderr
    assert f"settings in {file}\nlisten at shm://{address}\ndevice soft\nsandbox " in done.stdout
    assert "\n5 sessions, 1 spares\n" in done.stdout
    assert not address.exists()
    assert "7 sessions" in serve("--check-config", "--sessions-max", "7", env=environment).stdout
    holds = json.loads(serve("--check-config", "--json", env=environment).stdout)
    assert holds["file"] == str(file) and holds["set"]["sessions-max"] == ["5"] and "memory" not in holds["set"]
    assert holds["listen"] == [f"shm://{address}"] and holds["sessions_max"] == 5 and holds["cache"] is None
    done = serve("--json", env=environment)
    assert done.returncode == 2 and "add --check-config" in done.stderr
    file.write_text('device = "soft"\nsesions-max = 5\n')
    done = serve("--check-config", env=environment)
    assert done.returncode == 2 and f'{file}:2: there is no setting "sesions-max"' in done.stderr
    assert serve("--no-config", "--check-config", "--device", "soft", env=environment).returncode == 0
    # A hand-over at what is no socket: the start says the same.
    for wrong in (tmp_path, file, Path("/dev/null")):
        for check in (["--check-config"], []):
            argv = ["--no-config", "--device", "soft", "--listen", f"shm://{address}", "--hand-over", str(wrong)]
            done = serve(*argv, *check, env=environment)
            assert done.returncode == 2 and f"--hand-over: {wrong} is no socket" in done.stderr, done.stderr
    # Settings that this machine does not allow.
    file.write_text('device = "nvidia"\n')
    done = serve("--check-config", env={**environment, "OUTBOARD_DRIVER": "/nowhere/libcuda.so.1"})
    assert done.returncode == 2 and "--device: " in done.stderr, done.stderr
    file.write_text('device = "soft"\nlisten = "tcp://0.0.0.0:0"\n')
    assert serve("--check-config", env=environment).returncode == 2
    file.write_text('device = "soft"\nsessions-max = 99999999999999999999\n')
    done = serve("--check-config", env=environment)
    assert done.returncode == 2 and f"{file}:2: " in done.stderr and "from 1 to 4096" in done.stderr, done.stderr
    # Things at the file's place that are no files.
    file.unlink()
    file.mkdir()
    done = serve("--check-config", "--device", "soft", env=environment)
    assert done.returncode == 2 and f"{file}: Is a directory" in done.stderr, done.stderr
    file.rmdir()
    file.symlink_to("nowhere")
    done = serve("--check-config", "--device", "soft", env=environment)
    assert done.returncode == 2 and f"{file}: No such file" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--audit", "none/audit"), "--audit: none/audit: No such file"),
        (("--audit", "."), "--audit: .: "),
        (("--listen", "shm:a", "--listen", "shm:./a"), "are one place"),
        (("--listen", "shm:link/a", "--listen", "shm:a"), "are one place"),
        (("--listen", "tcp://127.0.0.1:4833", "--listen", "tcp://127.0.0.1"), "are one place"),
        (("--listen", "tcp://127.0.0.1:9184", "--metrics", "9184"), "are one place"),
        (("--listen", "shm:none/a"), "the folder of the socket: No such file"),
        (("--memory", "1KiB"), "less than 2 MiB"),
        (("--tls-key", "none"), "add --tls"),
    ],
)
def test_settings_that_cannot_hold_are_found_before_anything_is_done(
    tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    """Exit code 2, whether the settings are only checked or the server is started."""
    (tmp_path / "link").symlink_to(tmp_path)
    for more in (("--check-config",), ()):
        done = serve("--no-config", "--device", "soft", "--no-cache", *options, *more, cwd=tmp_path)
        assert done.returncode == 2 and said in done.stderr, done.stderr
        assert "the settings are right" not in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


@pytest.mark.parametrize(
    ("count", "opened", "said"),
    [
        ("x", "tcp", 'LISTEN_FDS="x" is no number'),
        ("", "tcp", 'LISTEN_FDS="" is no number'),
        ("0", "tcp", "LISTEN_FDS=0: a service manager passes 1 to 64 sockets on"),
        ("99999999999", "tcp", "LISTEN_FDS=99999999999: "),
        ("2", "tcp", "descriptor 4 cannot be taken over: Bad file descriptor"),
        ("1", "udp", "descriptor 3: a socket of another type than stream"),
        ("1", "seqpacket", "descriptor 3: a socket of another type than stream"),
        ("1", "unlistened", "descriptor 3: a socket that does not listen"),
        ("1", "file", "descriptor 3: this is no socket"),
    ],
)
def test_what_a_service_manager_cannot_mean_is_refused(tmp_path: Path, count: str, opened: str, said: str) -> None:
    with ExitStack() as held:
        if opened == "file":
            number = held.enter_context((tmp_path / "file").open("w")).fileno()
        else:
            family = socket.AF_UNIX if opened == "seqpacket" else socket.AF_INET
            kinds = {"udp": socket.SOCK_DGRAM, "seqpacket": socket.SOCK_SEQPACKET}
            made = held.enter_context(socket.socket(family, kinds.get(opened, socket.SOCK_STREAM)))
            made.bind(str(tmp_path / "seq") if opened == "seqpacket" else ("127.0.0.1", 0))
            if opened in {"tcp", "seqpacket"}:
                made.listen()
            number = made.fileno()
        options = "--no-config --device soft --no-cache --check-config"
        start = f'exec 4>&-; LISTEN_PID=$$ LISTEN_FDS="{count}" exec "{OUTBOARD}" serve {options}'

        def as_systemd_does() -> None:
            os.dup2(number, 3) if number != 3 else os.set_inheritable(3, True)

        done = subprocess.run(
            ["sh", "-c", start],
            preexec_fn=as_systemd_does,
            close_fds=False,
            capture_output=True,
            text=True,
            timeout=20,
        )
    assert done.returncode == 2 and said in done.stderr, done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes a file another user's")
def test_a_set_user_id_program_is_named(server: Server, tmp_path: Path) -> None:
    program = tmp_path / "program"
    shutil.copy("/bin/true", program)
    for mode, owner, is_named in [(0o755, 1, False), (0o4755, 1, True), (0o4755, 0, False), (0o2755, 1, True)]:
        os.chown(program, owner, owner)
        program.chmod(mode)
        done = server.run("shm", program)
        assert done.returncode == 0 and ("set-user-id" in done.stderr) == is_named, (oct(mode), done.stderr)


def test_a_small_stack_is_raised_or_named(tmp_path: Path) -> None:
    """The program that runs then has the limit of its user."""
    command = f'"{OUTBOARD}" token create "{"x" * 5000}" --tokens {tmp_path}/tokens'
    for limit, code in (("-S -s 64", 1), ("-s 64", 1)):
        done = subprocess.run(["bash", "-c", f"ulimit {limit}; {command}"], capture_output=True, text=True, timeout=20)
        assert done.returncode == code, done.stderr
        raised = limit.startswith("-S")
        assert ("is no name of a token" if raised else "the stack is limited to 64 KiB (ulimit -s)") in done.stderr
        assert len(done.stderr) < 400, "the name is not echoed whole"


def test_the_packaged_settings_hold(tmp_path: Path) -> None:
    """Each line of the example, made a setting, is one."""
    lines = (ROOT / "packaging" / "serve.toml").read_text().splitlines()
    settings = [line.removeprefix("# ") for line in lines if " = " in line]
    assert len(settings) >= 8
    file = tmp_path / "serve.toml"
    for setting in settings:
        setting = re.sub("/var/(log|cache)/outboard", str(tmp_path), setting)
        file.write_text(setting + "\n")
        options = ("--device", "soft", "--no-cache", "--allow-uid", "5", "--check-config", "--config", file)
        done = serve(*options)
        assert done.returncode == 0, f"{setting}: {done.stderr}"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_the_units_are_valid(tmp_path: Path) -> None:
    for unit in UNITS.glob("outboard.s*"):
        if unit.suffix in {".service", ".socket"}:
            text = unit.read_text().replace("/usr/bin/outboard", str(OUTBOARD))
            (tmp_path / unit.name).write_text(text)
    argv = ["systemd-analyze", "verify", "--man=no", tmp_path / "outboard.service", tmp_path / "outboard.socket"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    about_these = [line for line in done.stderr.splitlines() if "outboard." in line]
    assert done.returncode == 0 and not about_these, done.stderr

"""The wheel, made of the binaries that the other tests use, in an environment that has nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from harness import OUTBOARD, ROOT, TEST_PROGRAMS

WORKS = """
from cuda import must, primary_context
from ctypes import byref, c_size_t, c_ubyte, c_uint32, c_uint64
at, word = c_uint64(), c_uint32()
primary_context()
must("cuMemAlloc_v2", byref(at), c_size_t(4))
must("cuMemsetD8_v2", at, c_ubyte(7), c_size_t(4))
must("cuMemcpyDtoH_v2", byref(word), at, c_size_t(4))
print(hex(word.value))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment with the wheel, which pip installed without an index."""
    folder = tmp_path_factory.mktemp("wheel")
    environment = {**os.environ, "OUTBOARD_BINARIES": str(OUTBOARD.parent)}
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True, timeout=120)
    pip = [folder / "venv" / "bin" / "python", "-m", "pip", "--no-cache-dir", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-index", "--no-deps", "--wheel-dir", folder, ROOT]
    subprocess.run(build, check=True, env=environment, timeout=300, capture_output=True)
    [wheel] = folder.glob("outboard-*.whl")
    assert re.search(r"-py3-none-manylinux_2_\d+_x86_64\.whl$", wheel.name)
    subprocess.run([*pip, "install", "--no-index", wheel], check=True, timeout=120, capture_output=True)
    return folder / "venv" / "bin"


def python(installed: Path, code: str, *before: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a program of the environment, without what tests run with."""
    environment = {"PATH": f"{installed}:/usr/bin:/bin", "PYTHONPATH": str(TEST_PROGRAMS), **env}
    argv = [*before, str(installed / "python"), "-c", code]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120)


def test_the_command_is_there_with_its_libraries(installed: Path) -> None:
    done = subprocess.run([installed / "outboard", "doctor", "--gpu", "shm:///nowhere"], capture_output=True, text=True)
    assert re.search(r"ok\s+client library\s+\S*/installed/lib/outboard/libcuda.so.1", done.stdout), done.stdout
    assert re.search(r"ok\s+management library", done.stdout)


def test_the_adapter_in_software_is_there(installed: Path) -> None:
    """`outboard nic run` gives a program stand-ins for rdma-core's library, and `outboard.net` opens endpoints."""
    adapters = "import ctypes; n = ctypes.c_int(); v = ctypes.CDLL('libibverbs.so.1')"
    adapters += "; v.ibv_get_device_list.restype = ctypes.c_void_p"
    adapters += "; print(bool(v.ibv_get_device_list(ctypes.byref(n))), n.value)"
    argv = [installed / "outboard", "nic", "run", "--", installed / "python", "-c", adapters]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.stdout == "True 1\n", done.stderr
    opens = "from outboard import net; net.Endpoint(); print('opened')"
    opens += "; from outboard import _net_calls; assert 'installed' in str(_net_calls._headers())"
    done = python(installed, opens, "env", "-u", "OUTBOARD_NET_LIBRARY")
    assert done.stdout == "opened\n", done.stderr


def test_a_program_uses_a_server_of_its_own(installed: Path) -> None:
    """`use` in the process that started the server, then `session`'s children; the server ends with the block."""
    code = f"""
import outboard, os, subprocess, sys
os.environ.update(KEPT="1", OUTBOARD_GPU="shm:///before")
before = dict(os.environ)
with outboard.session(None, "--device", "soft", "--no-cache", "--spare", "0") as address:
    child = [sys.executable, "-c", {WORKS!r}]
    print(subprocess.run(child, capture_output=True, text=True, check=True).stdout.strip())
    outboard.use(address)
    outboard.use(address)
    exec({WORKS!r})
    try:
        outboard.use("shm:///nowhere")
    except outboard.OutboardError as error:
        print(error)
    # The program's own changes stay.
    os.environ.update(BAR="3", TRITON_LIBCUDA_PATH="/mine")
    del os.environ["KEPT"]
del before["KEPT"]
assert os.environ == {{**before, "BAR": "3", "TRITON_LIBCUDA_PATH": "/mine"}}, os.environ
try:
    outboard.use("nonsense")
except outboard.OutboardError as error:
    print(error)
outboard._use.GREETING_S_MAX = 0
try:
    outboard.environment(address)
except outboard.OutboardError as error:
    print(error)
print(os.environ["OUTBOARD_GPU"], os.path.exists(address.removeprefix("shm://")))
"""
    done = python(installed, code)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[:2] == ["0x7070707"] * 2
    assert "no server at shm:///nowhere" in lines[2]
    assert lines[3].startswith("invalid value 'nonsense'") and "--help" not in done.stdout
    assert lines[-2].endswith(" has not answered within 0 s")
    assert lines[-1] == "shm:///before False"


def test_binaries_that_are_missing_are_named(tmp_path: Path) -> None:
    argv = [sys.executable, ROOT / "python" / "outboard_build.py", tmp_path]
    environment = {**os.environ, "OUTBOARD_BINARIES": "/nowhere"}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and not done.stdout, done
    assert done.stderr.startswith("outboard: OUTBOARD_BINARIES=/nowhere has no outboard, liboutboard_client.so"), done


def test_a_command_that_is_too_large_is_not_packaged(tmp_path: Path) -> None:
    """The packages are made by hand; this is the check that fails there."""
    promised = re.search(r"^COMMAND_BYTES_MAX := (\d+)$", (ROOT / "Makefile").read_text(), re.M)
    assert promised and int(promised[1]) == 15_000_000
    for size, passes in [(int(promised[1]) - 1, True), (int(promised[1]), False)]:
        with (tmp_path / "outboard").open("w") as command:
            command.truncate(size)
        make = ["make", "--silent", "-C", ROOT, "check-size", f"PACKAGED={tmp_path}"]
        done = subprocess.run(make, capture_output=True, text=True, timeout=60)
        assert (done.returncode == 0) == passes and (f"{size} bytes" in done.stderr) != passes, done.stderr
    for packaged in ["wheel", "deb", "install"]:
        assert f"\n{packaged}: dist\n" in (ROOT / "Makefile").read_text()


def test_libraries_that_came_too_early(installed: Path, tmp_path: Path) -> None:
    """A driver that is loaded already: the program starts again, once, and says so."""
    driver = tmp_path / "libcuda.so.1"
    compile_driver = ["cc", "-shared", "-Wl,-soname,libcuda.so.1", "-o", driver, "-x", "c", os.devnull]
    subprocess.run(compile_driver, check=True)
    code = f"""
import ctypes, sys
if not sys.flags.ignore_environment:
    ctypes.CDLL("libcuda.so.1")
import outboard
outboard.use()
exec({WORKS!r})
"""
    serve = ["serve", "--no-config", "--device", "soft", "--no-cache", "--listen", f"shm://{tmp_path}/gpu.sock"]
    with subprocess.Popen([installed / "outboard", *serve], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None and server.stdout.readline()
        address = f"shm://{tmp_path}/gpu.sock"
        done = python(installed, code, LD_LIBRARY_PATH=str(tmp_path), OUTBOARD_GPU=address)
        assert done.stdout == "0x7070707\n", done.stderr
        assert done.stderr.count("came first; the program starts again") == 1
        interactive = python(
            installed, f"import sys; sys.ps1 = '>'\n{code}", LD_LIBRARY_PATH=str(tmp_path), OUTBOARD_GPU=address
        )
        assert "restart Python, and call outboard.use() before" in interactive.stderr
        # What came through a pipe is gone, and so cannot be read a second time.
        environment = {"LD_LIBRARY_PATH": str(tmp_path), "OUTBOARD_GPU": address, "PYTHONPATH": str(TEST_PROGRAMS)}
        argv = [installed / "python", "/dev/stdin"]
        piped = subprocess.run(argv, input=code, env=environment, capture_output=True, text=True, timeout=60)
        assert piped.returncode == 1 and "restart Python, and call outboard.use() before" in piped.stderr, piped
        server.terminate()


def test_a_server_ends_with_the_program_that_started_it(installed: Path) -> None:
    """However it ends: a program that is killed runs no more code of its own."""
    code = """
import os, outboard, signal
with outboard.session(None, "--device", "soft", "--no-cache", "--spare", "0") as address:
    print(address, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = python(installed, code)
    socket = Path(done.stdout.strip().removeprefix("shm://"))
    assert done.returncode == -9 and socket.name == "gpu.sock", done
    until = time.monotonic() + 20
    while socket.exists():
        assert time.monotonic() < until, "the server goes on"
        time.sleep(0.05)
    shutil.rmtree(socket.parent)


def test_the_wheel_is_the_same_when_built_again(tmp_path: Path) -> None:
    """Times of files do not matter, and every file is in the record."""
    for name in ["a", "b"]:
        argv = [sys.executable, ROOT / "python" / "outboard_build.py", tmp_path / name]
        environment = {**os.environ, "OUTBOARD_BINARIES": str(OUTBOARD.parent)}
        subprocess.run(argv, check=True, env=environment, timeout=300, capture_output=True)
    [first], [second] = ((tmp_path / name).glob("*.whl") for name in ["a", "b"])
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as archive:
        names = archive.namelist()
        [record] = (name for name in names if name.endswith("/RECORD"))
        recorded = {line.split(",")[0] for line in archive.read(record).decode().splitlines()}
    assert recorded == set(names)


# A `cargo` that notes what it is to build, and builds files that say which profile they are of.
CARGO = """#!/bin/sh
echo "$*" >> "$0.said"
mkdir -p "$CARGO_TARGET_DIR/$3"
for name in outboard outboard-packaged liboutboard_client.so liboutboard_nvml.so liboutboard_cupti.so \\
    liboutboard_recorder.so liboutboard_nic.so liboutboard_net.so; do
    echo "$name of $3" > "$CARGO_TARGET_DIR/$3/$name"
done
"""


def test_from_source_the_command_is_the_small_one_and_the_libraries_are_not(tmp_path: Path) -> None:
    cargo = tmp_path / "cargo"
    cargo.write_text(CARGO)
    cargo.chmod(0o755)
    # Without `strip`, for which these are no binaries.
    for tool in ("sh", "mkdir"):
        (tmp_path / tool).symlink_to(f"/bin/{tool}")
    environment = {"PATH": str(tmp_path), "CARGO_TARGET_DIR": str(tmp_path / "target")}
    argv = [sys.executable, ROOT / "python" / "outboard_build.py", tmp_path / "wheel"]
    subprocess.run(argv, env=environment, check=True, capture_output=True, timeout=60)
    [wheel] = (tmp_path / "wheel").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = {name: archive.read(name).decode() for name in archive.namelist() if "/installed/" in name}
    assert inside.pop("outboard/installed/bin/outboard") == "outboard-packaged of dist\n"
    for header in (ROOT / "include" / "outboard").iterdir():
        assert inside.pop(f"outboard/installed/include/outboard/{header.name}") == header.read_text()
    assert len(inside) == 6 and all(text.endswith(".so of release\n") for text in inside.values()), inside
    said = (tmp_path / "cargo.said").read_text().splitlines()
    assert all("--locked" in line for line in said) and len(said) == 2, said

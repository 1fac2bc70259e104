"""Several devices of one server, and several processes of one program, on the software device."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import OUTBOARD, TEST_PROGRAMS, Server, start_server

pytestmark = pytest.mark.smoke

PROGRAM = TEST_PROGRAMS / "peers.py"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start_server(tmp_path_factory.mktemp("server"), "--devices", "2")
    yield server
    assert server.process.poll() is None, f"the server died:\n{server.log.read_text()}"
    assert server.stop() == 0


@pytest.mark.parametrize(
    "case", ["access", "descriptors", "handles", "copied", "released", "forged", "pools", "hidden"]
)
def test_peers(server: Server, link: str, case: str) -> None:
    done = server.run(link, sys.executable, PROGRAM, case)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stdout + done.stderr


# Kernels: that of a library runs on its stream's device, a module's function in its own context alone.
@pytest.mark.parametrize("case", ["order", "kernels", "races"])
def test_devices_of_one_server_are_as_those_of_several(server: Server, link: str, case: str) -> None:
    done = server.run(link, sys.executable, PROGRAM.with_name("several_servers.py"), case)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stdout + done.stderr


# A unit test of the library has more cases, as two H200 answered them.
@pytest.mark.parametrize(
    ("visible", "answer"),
    [
        ("1", "SUCCESS 1"),
        (" 1 , 0", "SUCCESS 10"),
        ("0,7,1", "SUCCESS 0"),
        ("GPU-6f7574626f6172642d736f66742d3031", "SUCCESS 1"),
        ("-1", "NO_DEVICE "),
        ("", "NO_DEVICE "),
        ("1,1", "INVALID_DEVICE "),
    ],
)
def test_visible_devices(server: Server, link: str, visible: str, answer: str) -> None:
    done = server.run(link, sys.executable, PROGRAM, "visible", env={"CUDA_VISIBLE_DEVICES": visible})
    assert done.stdout == answer + "\nright\n", done.stdout + done.stderr


def test_a_device_that_is_gone(tmp_path: Path) -> None:
    """A server starts again with one device less: who had it, and who wants it, gets CUDA's own errors, at once."""
    program = [sys.executable, str(PROGRAM.with_name("gone_devices.py"))]
    before = start_server(tmp_path, "--devices", "2")
    url = before.urls["shm"]
    argv = [OUTBOARD, "run", "--gpu", url, "--", *program, "stays"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    stays = subprocess.Popen(argv, text=True, **pipes)
    assert stays.stdout
    assert stays.stdout.readline() == "CUDA_SUCCESS CUDA_SUCCESS\n"
    handle = stays.stdout.readline().strip()
    assert before.stop() == 0
    after = start_server(tmp_path, "--devices", "1")
    assert after.urls["shm"] == url
    stdout, stderr = stays.communicate("\n", timeout=20)
    assert (stays.returncode, stdout) == (0, "DEVICE_UNAVAILABLE DEVICE_UNAVAILABLE\n"), stderr
    done = after.run("shm", *program, handle, timeout=20)
    assert done.stdout.splitlines() == ["1 CUDA_SUCCESS INVALID_DEVICE", "INVALID_VALUE"], done.stdout + done.stderr
    hidden = after.run("shm", *program, handle, env={"CUDA_VISIBLE_DEVICES": "1"}, timeout=20)
    assert hidden.stdout == "NO_DEVICE\n", hidden.stdout + hidden.stderr
    assert after.stop() == 0

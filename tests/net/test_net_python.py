"""Endpoints that Python makes, for kernels and for itself."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness import DEVICE, ROOT, TEST_PROGRAMS, Server
from posting import BUILD_S_MAX, LIBRARY, NVCC, RUN_S_MAX, by, free_address


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ptx = tmp_path_factory.mktemp("kernels") / "kernels.ptx"
    source = TEST_PROGRAMS / "net" / "kernels.cu"
    flags = ["-std=c++17", "-arch=compute_80", "-ptx", f"-I{ROOT / 'include'}"]
    subprocess.run([NVCC, *flags, source, "-o", ptx], check=True, timeout=BUILD_S_MAX)
    return ptx


def run_python(
    server: Server, kernels: Path, *place: str, provider: str = "nic", link: str = "shm", inbox: str = "host"
) -> list[str]:
    path = f"{TEST_PROGRAMS}:{ROOT / 'python'}"
    env = {"PYTHONPATH": path, "OUTBOARD_NET_LIBRARY": str(LIBRARY / "liboutboard_net.so"), **by(provider)}
    env["INBOX"] = inbox
    done = server.run(link, sys.executable, TEST_PROGRAMS / "net" / "endpoints.py", kernels, *place, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_python_makes_endpoints_for_kernels(server: Server, kernels: Path) -> None:
    """Two queues of a process, and one in each of two."""
    refused = "this tensor is in a GPU's memory, which the adapter in software does not reach: pin it"
    expected = [refused, "an array that is not contiguous", "5 rounds are right"]
    assert run_python(server, kernels) == expected
    # With the inbox in the GPU's memory.
    assert run_python(server, kernels, provider="nvlink") == expected
    # Where the GPU is, with the inbox in its memory, which a thread of a server of NVIDIA's does not reach.
    for provider in ("nic", "nvlink", "auto") if DEVICE == "soft" else ("nvlink", "auto"):
        assert run_python(server, kernels, provider=provider, link="tcp", inbox="gpu") == expected
    for provider in ("nic", "nvlink"):
        address = free_address()
        with ThreadPoolExecutor(2) as both:
            roles = ("listen", "connect")
            ends = [both.submit(run_python, server, kernels, role, address, provider=provider) for role in roles]
            assert [end.result() for end in ends] == [expected, expected]


def test_memory_that_kernels_and_adapters_do_not_share_is_refused(server: Server) -> None:
    """A server over shm has a copy of memory that the program registers, before or after an endpoint has it, whole or
    a part; behind a network all memory is copied, and the endpoint there has the copy, which it keeps."""
    path = f"{TEST_PROGRAMS}:{ROOT / 'python'}"
    env = {"PYTHONPATH": path, "OUTBOARD_NET_LIBRARY": str(LIBRARY / "liboutboard_net.so")}
    program = TEST_PROGRAMS / "net" / "copied.py"
    done, copied, refused = "CUDA_SUCCESS", "memory of cudaHostAlloc", "CUDA_ERROR_NOT_SUPPORTED"
    invalid, already = "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"
    says = {
        "shm": [
            done,
            f"{copied} {copied}",
            "taken",
            f"taken {refused}",
            done,
            f"{refused} {invalid} {done} {done}",
            f"{done} {invalid} CUDA_ERROR_INVALID_VALUE",
        ],
        "tcp": [
            done,
            "taken not pinned",
            "taken",
            f"not pinned {done}",
            refused,
            f"{done} {refused} {done} {refused}",
            f"{already} {done} {done}",
        ],
    }
    for link, expected in says.items():
        ran = server.run(link, sys.executable, program, env={**env, **by("nic")})
        assert ran.stdout.splitlines() == expected, ran.stderr
    assert "close the endpoint first" in ran.stderr


NONSENSE = """
import ctypes
import mmap
import os
import struct
from outboard import OutboardError, net

class Array:
    def __init__(self, typestr, is_constant=False):
        self.room = ctypes.create_string_buffer(1 << 10)
        data = (ctypes.addressof(self.room), is_constant)
        self.__array_interface__ = {"shape": (4,), "typestr": typestr, "data": data, "version": 3}

class Constant:  # says so by DLPack
    def __dlpack__(self, max_version):
        self.room = (ctypes.c_uint64 * 4)(), (ctypes.c_int64 * 1)(4)
        room, shape = map(ctypes.addressof, self.room)
        of = struct.pack("<IIQQQ QiiiBBH QQQ", 1, 0, 0, 0, 1, room, 1, 0, 1, 1, 64, 1, shape, 0, 0)
        self.of = ctypes.create_string_buffer(of)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.of), b"dltensor_versioned", None)

def said(call):
    try:
        call()
    except (OutboardError, TypeError, ValueError) as error:
        return str(error)
    raise AssertionError("taken")

page = mmap.mmap(-1, 1 << 16)
print(said(lambda: net.Endpoint(provider="mlx5")))
os.environ["OUTBOARD_NET_PROVIDER"] = "wire"
print(said(lambda: net.Endpoint()))
assert net.Endpoint(provider="nic").provider == "nic"
os.environ["OUTBOARD_NET_PROVIDER"] = ""
assert net.Endpoint().provider == "nic"
for named in (None, 3, "nic\\0x"):
    print(said(lambda: net.Endpoint(provider=named)))
del os.environ["OUTBOARD_NET_PROVIDER"]
print(said(lambda: net.Endpoint(loss_ppm=1_000_001)))
print(said(lambda: net.Endpoint(loss_ppm=-1)))
print(said(lambda: net.Endpoint(delay_ns=(2, 1))))
print(said(lambda: net.Endpoint(delay_ns=(2,))))
with net.Endpoint() as endpoint:
    print(said(lambda: endpoint.register(page, 16)))
    print(said(lambda: endpoint.register(page, 1 << 32)))
    print(said(lambda: endpoint.register(bytearray(), 1)))
    print(said(lambda: endpoint.register([1, 2])))
    print(said(lambda: endpoint.register(Array("|O"))))
    print(said(lambda: endpoint.register(Array("<u8", True))))
    print(said(lambda: endpoint.queue(memory=Array("<u8", True))))
    print(said(lambda: endpoint.register(Constant())))
    print(said(lambda: endpoint.register(b"constant")))
    for constant, size in ((Array("<u8", True), 32), (Constant(), 32), (b"constant", 8)):
        assert endpoint.register(constant, net.REMOTE_READ).bytes == size
    assert endpoint.register(Array("<U5")).bytes == 80
    assert endpoint.register(Array("<M8[ns]")).bytes == 32
    print(said(lambda: endpoint.queue((1 << 32) + 6, memory=page)))
    endpoint.queue(memory=page)
    print(said(lambda: endpoint.queue(memory=page)))
    print(said(lambda: endpoint.queue()))
"""


def test_python_takes_no_nonsense() -> None:
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "python"),
        "OUTBOARD_NET_LIBRARY": str(LIBRARY / "liboutboard_net.so"),
    }
    done = subprocess.run([sys.executable, "-c", NONSENSE], env=env, capture_output=True, text=True, timeout=RUN_S_MAX)
    assert done.returncode == 0, done.stderr
    expected = [
        "the provider mlx5 is not possible here: ",
        "there is no provider wire: auto, mlx5, nic, nvlink, proxy are there",
        "a provider is named by a text, as auto or nic, and not by None",
        "a provider is named by a text, as auto or nic, and not by 3",
        "'nic\\x00x' is no provider's name",
        "loses 1000001 of a million messages",
        "-1 is no unsigned number of 32 bits",
        "messages take 2 to 1 ns",
        "not enough values to unpack",
        "no access 0x10",
        "4294967296 is no unsigned number of 32 bits",
        "0 bytes cannot be registered",
        "a list is no tensor, array or buffer",
        "an array of |O, whose elements are objects of Python or have no size",
        "an array that may not be written: register it for reading alone, by access=net.REMOTE_READ",
        "an array that may not be written",
        "an array that may not be written",
        "a buffer that cannot be written",
        "4294967302 is no unsigned number of 32 bits",
        "a queue of this process already lies there",
        "a queue lies in memory",
    ]
    for said, part in zip(done.stdout.splitlines(), expected, strict=True):
        assert part in said


LEFT_OPEN = """
import gc
import mmap
import os
from outboard import OutboardError, net

threads = lambda: len(os.listdir("/proc/self/task"))
before = threads()
for _ in range(20):
    net.Endpoint().queue(memory=mmap.mmap(-1, 1 << 16))
gc.collect()
print(threads() - before)
exported = net.Endpoint().queue(memory=mmap.mmap(-1, 1 << 16)).exported
gc.collect()
print(threads() - before)
one, other = net.Endpoint(), net.Endpoint()
ends = [one.queue(memory=mmap.mmap(-1, 1 << 16)) for _ in range(2)]
try:
    ends[0].connect(other.queue(memory=mmap.mmap(-1, 1 << 16)))
except OutboardError as error:
    print(error)
ends[0].connect(ends[1])
if os.fork() != 0:
    assert os.wait()[1] == 0
"""


def test_an_endpoint_that_nobody_closed_ends_with_its_last_queue() -> None:
    """Its thread would read memory that is gone; at the end of the program, too, and not in a forked child."""
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "python"),
        "OUTBOARD_NET_LIBRARY": str(LIBRARY / "liboutboard_net.so"),
    }
    done = subprocess.run([sys.executable, "-c", LEFT_OPEN], env=env, capture_output=True, text=True, timeout=RUN_S_MAX)
    expected = ["0", "1", "the other queue is of another endpoint: use meet"]
    assert (done.returncode, done.stdout.splitlines()) == (0, expected), done


ANYWHERE = """
import mmap
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from outboard import OutboardError, net

for command in (["ip", "link", "set", "lo", "up"], ["ip", "address", "add", "10.99.0.1/32", "dev", "lo"]):
    subprocess.run(command, check=True)
with net.Endpoint() as one, net.Endpoint() as other:
    offers = one.register(mmap.mmap(-1, 8192))
    ends = [one.queue(memory=mmap.mmap(-1, 1 << 16)), other.queue(memory=mmap.mmap(-1, 1 << 16))]
    try:
        ends[0].meet("10.99.0.1:7000", listens=True, timeout_ms=10)
    except OutboardError as error:
        print(error)
    with ThreadPoolExecutor(2) as both:
        listening = both.submit(ends[0].meet, "10.99.0.1:7000", listens=True, offers=offers, anywhere=True)
        met = both.submit(ends[1].meet, "10.99.0.1:7000", listens=False, anywhere=True).result()
        print(met.address == offers.address, met.bytes, met.key == offers.key, listening.result().bytes)
"""


@pytest.mark.skipif(
    subprocess.run(["unshare", "-Urn", "ip", "link"], capture_output=True).returncode != 0,
    reason="NOT RUN: needs ip and user namespaces",
)
def test_processes_meet_at_other_addresses_if_both_say_so() -> None:
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "python"),
        "OUTBOARD_NET_LIBRARY": str(LIBRARY / "liboutboard_net.so"),
    }
    command = ["unshare", "-Urn", sys.executable, "-c", ANYWHERE]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=RUN_S_MAX)
    assert done.returncode == 0, done.stderr
    refused, met = done.stdout.splitlines()
    assert "queues meet at loopback addresses, unless OUTBOARD_NET_ANYWHERE is given" in refused
    assert met == "True 8192 True 0"

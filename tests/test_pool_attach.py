"""GPUs that are attached to a host: programs come and go, the GPUs stay until they are detached."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import pytest

from harness import OUTBOARD
from test_pool import FREE_S_MAX, GPUS_A_BOX, Pool, until

CUDA_ERROR_DEVICE_UNAVAILABLE = 46


@pytest.fixture
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    pool = Pool(tmp_path_factory.mktemp("attach"))
    for name in ("a", "b"):
        pool.start_box(name)
    until(lambda: pool.free() == 2 * GPUS_A_BOX)
    yield pool
    pool.stop()


def test_attached_gpus_are_the_hosts_until_they_are_detached(pool: Pool) -> None:
    code, said = pool.run("--attached").outcome()
    assert code == 1 and "no GPU is attached to this host" in said, said
    first = pool.ask("attach", "--term", "3s")
    program = pool.run("--attached")
    gpus = program.gpus()
    assert gpus == first["gpus"] and len(gpus) == 1

    # One more: programs that start see both, the one that runs keeps what it has.
    more = pool.ask("attach", "--term", "3s")
    assert more["lease"] == first["lease"] and len(more["gpus"]) == 2
    second = pool.run("--attached")
    assert set(second.gpus()) == set(more["gpus"])
    assert second.finish().startswith("right")
    own = pool.run("--gpus", "2")
    assert not set(own.gpus()) & set(more["gpus"])
    assert own.finish().startswith("right")

    # The host keeps them without a program's help, over a manager's death, and longer than the term.
    pool.manager.kill()
    pool.manager.wait()
    pool.manager = pool.start_manager(pool.url.removeprefix("http://"))
    time.sleep(4)
    assert program.process.poll() is None
    until(lambda: pool.free() == 2)

    # A detach waits for the program that has it; programs that start do not see it.
    argv = [OUTBOARD, "pool", "detach", gpus[0], "--pool", pool.url]
    waiting = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    until(lambda: pool.ask("list")["leases"][0]["detaching"] == gpus)
    third = pool.run("--attached")
    left = third.gpus()
    assert set(left) == set(more["gpus"]) - set(gpus)
    assert waiting.poll() is None and program.process.poll() is None
    assert program.finish().startswith("right")
    said, _ = waiting.communicate(timeout=20)
    assert waiting.returncode == 0 and f"{gpus[0]} is free" in said, said

    # By force its session ends with an error that CUDA has.
    pool.ask("detach", left[0], "--force")
    until(lambda: pool.free() == 4, FREE_S_MAX)
    assert third.lost() == CUDA_ERROR_DEVICE_UNAVAILABLE
    refused = subprocess.run([OUTBOARD, "pool", "detach", left[0], "--pool", pool.url], capture_output=True, text=True)
    assert refused.returncode == 1 and "not attached to a host" in refused.stderr, refused.stderr

"""gpu-check/nic_peers.py: what it makes of two processes that end, fail or hang."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import nic_peers

# Stands for `outboard nic run --fabric FOLDER --`.
OUTBOARD = '#!/bin/sh\nshift 5\nexec "$@"\n'


def place(folder: Path, program: str) -> nic_peers.Place:
    for name, text in {
        "outboard": OUTBOARD,
        "turns": f"#!/bin/sh\n{program}\n",
        "nccl_gin": "#!/bin/sh\necho\n",
        "nvshmem_put": "#!/bin/sh\necho\n",
    }.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return nic_peers.Place(folder / "outboard", folder, 2, dict(os.environ), folder / "logs")


def test_a_pair_has_the_mean_of_both_and_a_log_of_each(tmp_path: Path) -> None:
    says = 'echo "{\\"one_way_ns\\": $(($1 * 200 + 100)), \\"right\\": true, \\"bytes\\": $3}"'
    name = "net.cuh, pinned memory"
    assert nic_peers.pair(place(tmp_path, says), name, 8, 5, 60)["one_way_ns"] == 200
    logs = sorted((tmp_path / "logs").iterdir())
    assert [log.name for log in logs] == ["netcuhpinnedmemory-8-0.log", "netcuhpinnedmemory-8-1.log"]
    assert logs[1].read_text().splitlines()[-1] == "ended with [0, 0]"


@pytest.mark.parametrize(
    "says", ['echo "{\\"one_way_ns\\": 1, \\"right\\": false}"', "true", 'echo "{\\"one_way_ns\\": 1}"; exit 3']
)
def test_a_pair_that_is_wrong_says_nothing_or_fails_has_no_figure(tmp_path: Path, says: str) -> None:
    assert "failed" in nic_peers.pair(place(tmp_path, says), "net.cuh, pinned memory", 8, 5, 60)


def test_the_other_process_does_not_outlast_one_that_failed(tmp_path: Path) -> None:
    began = time.monotonic()
    one = nic_peers.pair(place(tmp_path, "[ $1 = 1 ] && exit 1; sleep 100"), "net.cuh, pinned memory", 8, 5, 60)
    assert one["failed"][-1] == "ended with [-9, 1]" and time.monotonic() - began < 30
    hangs = nic_peers.pair(place(tmp_path, "sleep 100 & sleep 100"), "net.cuh, pinned memory", 8, 5, 0.3)
    assert hangs["failed"][-1] == "ended with [-9, -9]"


def test_a_program_that_went_another_way_has_no_figure(tmp_path: Path) -> None:
    here = place(tmp_path, "true")
    (tmp_path / "nccl_gin").write_text('#!/bin/sh\necho "{\\"one_way_ns\\": 1}"\necho "$SAYS"\n')
    kernels, proxy = "GIN by kernels (GDAKI)", "GIN by a proxy"
    here.env["SAYS"] = nic_peers.WAYS[kernels].says[0]
    assert nic_peers.pair(here, kernels, 8, 5, 60)["one_way_ns"] == 1
    assert "failed" in nic_peers.pair(here, proxy, 8, 5, 60)


@pytest.mark.parametrize(
    "goes, memory",
    [("NIC handler will be GPU.", "GPU"), ("NIC handler will be CPU with host memory backend.", ""), ("", "")],
)
def test_nvshmem_by_its_proxy_or_with_doorbells_of_the_cpu_has_no_figure(
    tmp_path: Path, goes: str, memory: str
) -> None:
    here = place(tmp_path, "true")
    says = 'echo "{\\"one_way_ns\\": 1}"\n[ "$NVSHMEM_DEBUG" = INFO ] && echo "$SAYS"'
    (tmp_path / "nvshmem_put").write_text(f"#!/bin/sh\n{says}\n")
    names = {"GPU": "NVSHMEM IBGDA", "host": "NVSHMEM IBGDA, rings in host memory"}
    here.env["SAYS"] = "NVSHMEM INFO Successfully initialized the transport: ibrc"
    if goes:
        here.env["SAYS"] += f"""
NVSHMEM INFO Successfully initialized the transport: IBGDA. It will be used for device-side APIs over IB.
ibgda.cpp 5272 NIC buffer will be on GPU memory.
ibgda.cpp 5287 {goes}"""
    for where, name in names.items():
        assert ("failed" not in nic_peers.pair(here, name, 8, 5, 60)) == (where == memory), name


def test_rows_have_the_medians_of_each_size() -> None:
    assert nic_peers.rows({("a", 8): [3.0, 1.0, 2.0], ("b", 8): [4.0], ("a", 64): [5.0]}) == [
        {"bytes": 8, "a": 2.0, "b": 4.0},
        {"bytes": 64, "a": 5.0},
    ]

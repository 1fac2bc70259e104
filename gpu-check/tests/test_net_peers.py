"""gpu-check/net_peers.py: what it makes of what programs say."""

from __future__ import annotations

import os
import sys

import net_peers


def test_a_row_has_the_medians_and_their_ratio() -> None:
    case = "latency thread 8 5000"
    times = {"outboard": (3.0, 1.0, 2.0), "nvshmem": (4.0, 4.0, 5.0)}
    said = {(who, case): [{"gpus": 2, "one_way_ns": one} for one in of] for who, of in times.items()}
    expected = {"case": case, "gpus": 2, "figure": "one_way_ns", "outboard": 2.0, "nvshmem": 4.0, "over_nvshmem": 0.5}
    assert net_peers.row(case, said) == expected
    assert "over_nvshmem" not in net_peers.row(case, {("outboard", case): said["outboard", case]})


def test_a_program_that_hangs_or_fails_has_no_figures() -> None:
    command = [sys.executable, "-c"]
    env = dict(os.environ)
    assert net_peers.result_of([*command, "print('{\"gpus\": 1}')"], env, 60) == {"gpus": 1}
    assert "failed" in net_peers.result_of([*command, "print('{\"gpus\": 1}'); raise SystemExit(1)"], env, 60)
    # Its child is ended with it.
    hangs = "import os, time; os.fork(); time.sleep(100)"
    assert "no end within 0.3 s" in net_peers.result_of([*command, hangs], env, 0.3)["failed"]

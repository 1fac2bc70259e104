"""`outboard bench net`."""

from __future__ import annotations

import json
import subprocess

from harness import OUTBOARD
from posting import RUN_S_MAX


def test_bench_net_measures_every_verb_and_says_that_it_is_software() -> None:
    command = [OUTBOARD, "bench", "net", "--quick", "--no-local", "--bytes", "1000", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert results["complete"]
    rows = {(row["verb"], row["window"]): row for row in results["rows"]}
    verbs = ("put", "put-value", "get", "fetch-add", "compare-swap", "send", "put-imm", "nop")
    assert sorted(rows) == sorted((verb, window) for verb in verbs for window in (1, 64))
    for (verb, _), row in rows.items():
        assert row["is_software"] and row["provider"] == "nic"
        assert row["us_each"] > 0 and row["registers"] > 0 and row["processors"] == 1
        assert (row["gigabytes_a_second"] > 0) == (verb != "nop")
    # A warp has no atomics here, and 33 threads are no warps.
    for more, why in (
        (["--scope", "warp", "--threads", "32", "--verb", "nop"], "do not nop"),
        # Also where the threads are no warp, which is another fault.
        (["--scope", "warp", "--verb", "get"], "do not get"),
        (["--scope", "block", "--threads", "33", "--verb", "put"], "33 threads are no whole warps"),
        (["--verb", "send", "--provider", "nic-shm"], "nobody who receives"),
        (["--verb", "send", "--threads", "1024"], "1025 threads, of which 1 receive"),
        (["--verb", "put-imm", "--queues", "2"], "a poster for each queue"),
    ):
        refused = subprocess.run([*command[:-1], *more], capture_output=True, text=True, timeout=RUN_S_MAX)
        assert refused.returncode == 2 and why in refused.stderr, refused.stderr


def test_bench_net_measures_providers_in_turns() -> None:
    bench = [OUTBOARD, "bench", "net", "--quick", "--no-local", "--bytes", "1000", "--window", "1", "--threads", "3"]
    near = ["--verb", "put,send,put-imm", "--queues", "3"]
    for before, more, providers in (
        ([], [*near, "--provider"], ("nic", "nvlink")),
        ([], ["--verb", "put", "--provider"], ("nic", "nic-gpu")),
        ([OUTBOARD, "nic", "run", "--"], ["--verb", "put,get", "--provider"], ("nic-shm", "nic-tcp", "nic-verbs")),
        ([OUTBOARD, "nic", "run", "--"], [*near, "--provider"], ("proxy", "mlx5", "nic")),
    ):
        command = [*before, *bench, *more, ",".join(providers), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX)
        assert done.returncode == 0, done.stderr
        rows = json.loads(done.stdout)["rows"]
        assert [row["provider"] for row in rows] == [*providers] * (len(rows) // len(providers))
        assert all(row["us_each"] > 0 for row in rows)
        assert all(row["processors"] == (2 if row["provider"] == "nic-gpu" else 1) for row in rows)
    refused = subprocess.run([*bench, "--provider", "mlx5"], capture_output=True, text=True, timeout=RUN_S_MAX)
    assert refused.returncode != 0 and "the provider mlx5 is not possible here" in refused.stderr, refused.stderr

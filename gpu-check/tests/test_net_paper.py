"""gpu-check/net_paper.py with programs that only print."""

import json
import sys

import pytest

import net_paper

BENCH = """echo '{"us_each": 2.5, "post_us": 1.5, "right": true}'"""
BENCHED = ("post", "throughput", "connections", "limits")
LOOPS = """sleep 0.12
echo 'median 4.50 us, 99 % below 9.00 us'
echo '{"loop": "x", "rounds": 1, "wakes": 2, "cpu_percent": 0.1, "process_percent": 3, "stop_us": 70}'"""


@pytest.fixture
def figures(tmp_path, monkeypatch):
    """Runs the runner on programs with these lines of shell."""
    sizes = net_paper.Sizes(
        bytes=(8,), threads=(32,), queues=(1,), requests=20, serve_s=0, idle_s=0, long_idle_s=0, sample_s=0.05
    )
    monkeypatch.setattr(net_paper, "QUICK", sizes)

    def run(**programs: str) -> tuple[int, dict]:
        for name in ("bench", "bench_cpu", "allocate", *net_paper.PAYLOADS):
            path = tmp_path / name
            path.write_text(f"#!/bin/sh\n{programs.get(name, LOOPS if 'loops' in name else BENCH)}\n")
            path.chmod(0o755)
        out = tmp_path / "paper.json"
        command = ["net_paper.py", str(tmp_path), "--out", str(out), "--quick", "--loops", "g", "--by", "env A=1"]
        monkeypatch.setattr(sys, "argv", command)
        return net_paper.main(), json.loads(out.read_text())

    return run


def test_each_figure_has_its_rows(figures):
    status, results = figures()
    assert status == 0 and results["failed"] == [] and results["is_software"]
    assert [row["us_each"] for name in BENCHED for row in results[name]] == [2.5] * (3 + 4 + 4 + 2)
    rows = results["loops"]["rows"]
    assert [
        (row["provider"], row["bytes"], row["us_median"], row["us_99_percent"], row["stop_us"]) for row in rows
    ] == [(provider, size, 4.5, 9, 70) for size in (64, 4096, 16384) for provider in ("nic", "nvlink")]
    assert [row["every"] for row in results["periods"]["rows"]] == [1, 4, 16, 32]
    assert [row["waits"] for row in results["waits"]["rows"]] == ["sleeps", "synchronise"]
    assert [(row["way"], row["us_median"]) for row in results["processes"]] == [("shm", 4.5), ("tcp", 4.5)] * 3
    assert results["memory"] == [{"us_each": 2.5, "post_us": 1.5, "right": True}]
    assert all(sample["interrupts_a_second"] > 0 for row in rows for sample in row["samples"])


def test_a_program_that_fails_is_said_and_has_no_figures(figures):
    status, results = figures(loops="echo 'no GPU'; exit 1", bench="echo no; exit 3")
    assert status == net_paper.EXIT_FAILED
    assert "loops g: no GPU" in results["failed"] and len(results["failed"]) == 2 + 2 + 2 + 2 + 5
    assert all("us_each" not in row for row in results["limits"])


def test_without_a_gpu_nothing_is_run(monkeypatch, tmp_path):
    monkeypatch.setattr(net_paper.machine, "has_gpu", lambda: False)
    monkeypatch.setattr(sys, "argv", ["net_paper.py", str(tmp_path), "--out", str(tmp_path / "out")])
    assert net_paper.main() == 77


def test_interrupts_are_counted_while_requests_come_and_while_none_do():
    rates = [900, 900, 50, 60, 50, 700, 5, 6, 7, 800]
    samples = [{"interrupts_a_second": rate} for rate in rates]
    assert net_paper.interrupts_of(samples[:-1], 2.0, 2.0, 0.5) == {
        "interrupts_a_second_idle": 6,
        "interrupts_a_second_serving": 50,
    }
    assert net_paper.interrupts_of(samples[:2], 0.2, 0, 0.5) == {}

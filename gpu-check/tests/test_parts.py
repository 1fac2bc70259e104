"""The parts of the check by themselves, and the agreement of its tables with each other."""

import ast
import json
import re
from pathlib import Path

import pytest

import compare
import machine
import steady
import suite
from judge import differences, judge, ratios

WORKLOAD = suite.Workload("w", "m", "f")
RESULTS = suite.ROOT / "docs" / "results"


def literal_keys(module: str, table: str) -> set[str]:
    """The keys of a table in a workload module, read without importing it: its library may be missing here."""
    tree = ast.parse((suite.WORKLOADS_DIR / f"{module}.py").read_text())
    for node in tree.body:
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        if isinstance(target, ast.Name) and target.id == table:
            if isinstance(node.value, ast.Dict):
                return {key.value for key in node.value.keys}
            if isinstance(node.value, ast.DictComp):
                source = node.value.generators[0].iter
                if isinstance(source, ast.Tuple):
                    # `{function.__name__: function for function in (...)}`
                    return {function.id for function in source.elts}
                return literal_keys(module, source.id)
    return set()


@pytest.mark.parametrize("workload", [w for g in suite.groups() for w in g.workloads], ids=lambda w: w.name)
def test_every_workload_of_the_suite_exists(workload):
    if workload.module != "cuda_programs":
        assert workload.function in literal_keys(workload.module, "WORKLOADS")
    if workload.synchronous_max is not None:
        assert workload.function in literal_keys(workload.module, "STEPS")


def test_every_workload_that_exists_is_in_the_suite():
    listed = {(w.module, w.function) for g in suite.groups() for w in g.workloads}
    for path in suite.WORKLOADS_DIR.glob("*.py"):
        for function in literal_keys(path.stem, "WORKLOADS"):
            assert (path.stem, function) in listed


def test_names_are_unique():
    names = [w.name for g in suite.groups() for w in g.workloads]
    assert len(names) == len(set(names))


def test_losses_within_tolerance_are_equal():
    local = {"status": "pass", "losses": [1.0, 0.5]}
    assert differences(WORKLOAD, local, {"status": "pass", "losses": [1.00009, 0.5]}) == []
    assert differences(WORKLOAD, local, {"status": "pass", "losses": [1.0]}) == ["2 losses locally, 1 here"]
    assert differences(WORKLOAD, local, {"status": "pass", "losses": [float("nan"), 0.5]})


def test_only_the_local_run_may_excuse_itself_as_not_reproducible():
    a, b = {"digest": "a"}, {"digest": "b"}
    assert not differences(WORKLOAD, {**a, "reproducible": False}, b)
    assert differences(WORKLOAD, {**a, "reproducible": False}, {**b, "numbers": {"mean": 1.0}})
    assert any("agree locally" in text for text in differences(WORKLOAD, a, {**a, "reproducible": False}))


def test_missing_values_are_differences():
    local = {"status": "pass", "digest": "a", "facts": {"n": 1}, "numbers": {"mean": 1.0}}
    found = differences(WORKLOAD, local, {"status": "pass"})
    assert len(found) == 3


def test_numbers_are_compared_relatively():
    assert not differences(WORKLOAD, {"numbers": {"x": 1e6}}, {"numbers": {"x": 1e6 + 50}})
    assert differences(WORKLOAD, {"numbers": {"x": 1e6}}, {"numbers": {"x": 1e6 + 5000}})
    assert differences(WORKLOAD, {"numbers": {"x": 1.0}}, {"numbers": {"x": float("nan")}})


def test_failed_local_run_fails_locally_and_is_not_compared():
    failed = {"status": "fail", "error": "no"}
    assert not judge(WORKLOAD, None, failed, remote=False).ok
    assert judge(WORKLOAD, failed, {"status": "pass"}, remote=True).equal is None


def test_ratios_need_both_times():
    assert ratios({"timings_ms": {"a": 2.0}}, {"timings_ms": {"a": 3.0, "b": 1.0}}) == {"a": 1.5}
    assert ratios(None, {"timings_ms": {"a": 3.0}}) == {}


def test_steady_counts_cancel_start_up():
    n = {"synchronous": 120, "by_call": {"cuInit": 1, "cuLaunchKernel": 500}}
    twice = {"synchronous": 140, "by_call": {"cuInit": 1, "cuLaunchKernel": 900}}
    counted = steady.evaluate(suite.Workload("w", "m", "f", synchronous_max=2), n, twice, 10)
    assert counted["per_iteration"]["synchronous"] == 2 and counted["ok"]
    assert counted["by_call"] == {"cuLaunchKernel": 40.0}
    assert not steady.evaluate(suite.Workload("w", "m", "f", synchronous_max=1.9), n, twice, 10)["ok"]


def test_results_name_no_path_of_the_machine():
    text = machine.scrub({"error": [f"{suite.ROOT}/x", f"{Path.home()}/y"]})["error"]
    assert text[0] == "./x" and str(Path.home()) not in text[1]


def test_baseline_rows_name_times_that_the_suite_measures():
    names = {w.name for g in suite.groups() for w in g.workloads}
    rows = json.loads(compare.BASELINE.read_text())["rows"]
    assert len(rows) == 15
    for row in rows:
        assert row["workload"] in names
        source = "".join(p.read_text() for p in suite.WORKLOADS_DIR.glob("*.py"))
        assert f'"{row["timing"]}"' in source


def test_comparison_table():
    results = {
        "machine": {"date_utc": "2026-01-01T00:00:00Z", "gpus": [{"name": "NVIDIA Test", "driver_version": "1.2"}]},
        "modes": ["local", "shm"],
        "workloads": {
            "item": {"local": {"timings_ms": {"call": 0.01}}, "shm": {"status": "pass", "timings_ms": {"call": 0.02}}}
        },
    }
    table = compare.table(results, json.loads(compare.BASELINE.read_text()))
    line = next(line for line in table.splitlines() if "item()" in line)
    assert "0.007" in line and "0.782" in line and "0.02 (2.00)" in line
    missing = next(line for line in table.splitlines() if "GPT-2" in line)
    assert missing.endswith("| - | - |")


def test_the_page_of_results_shows_the_committed_ones():
    page = (RESULTS / "README.md").read_text()
    [(name, shown)] = re.findall(r"<!-- speed: compare.py (\S+) -->\n(.*?)\n<!-- end -->", page, re.DOTALL)
    results = json.loads((RESULTS / name).read_text())
    assert shown == compare.speed_table(results, json.loads(compare.BASELINE.read_text()))

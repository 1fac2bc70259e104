"""gpu-check/net_tests.py counts what pytest has reported, and nothing that was interrupted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness import ROOT

sys.path.insert(0, str(ROOT / "gpu-check"))
import net_tests

pytestmark = pytest.mark.smoke


def test_a_row_without_a_name_is_no_test_that_has_passed(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="a" name="one" time="1.5"/>'
        '<testcase classname="" name="" time="2"/>'
        '<testcase classname="a" name="two" time="1"><failure message="wrong">here</failure></testcase>'
        '<testcase classname="a" name="three"><skipped message="no device"/></testcase></testsuite></testsuites>'
    )
    rows = net_tests.outcomes(report)
    assert [(row["test"], row["outcome"]) for row in rows] == [
        ("one", "passed"),
        ("two", "failed"),
        ("three", "skipped"),
    ]

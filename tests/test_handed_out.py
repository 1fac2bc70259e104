"""Variables of a module that a program knows only by the addresses that its kernels hand out."""

from __future__ import annotations

import sys

import pytest

from harness import TEST_PROGRAMS, Server

pytestmark = pytest.mark.smoke

EXPECTED = {
    "to_device": "SUCCESS 0 1 1023",
    "to_host": "SUCCESS 7 0 0",
    "unified": "SUCCESS SUCCESS 0 1 1023",
    "unified_on_stream": "SUCCESS 7 0 0",
    "on_stream": "SUCCESS SUCCESS 0 1 1023",
    "within_device": "SUCCESS SUCCESS 7 0 0",
    "set": "SUCCESS SUCCESS 3 16843009 3",
    "rows": "SUCCESS 0 1 0 16 241",
    "rows_to_device": "SUCCESS 0 1 0 2 3",
    "node": "SUCCESS 0 1 1023",
    "captured": "SUCCESS 0 1 1023",
    "attributes": "SUCCESS 2 SUCCESS 0 0 True",
    "range": "SUCCESS True",
    "word": "SUCCESS SUCCESS 13 0 0",
    "constant_attributes": "SUCCESS 2",
    "constant": "SUCCESS 5 0 0 SUCCESS 2",
    "by_name_too": "True 4096 SUCCESS 7 0 0",
    "unloaded": "SUCCESS 9 0 0 refused SUCCESS 7 0 0",
    "of_heap": "INVALID_VALUE INVALID_VALUE 0",
    "kernels_see_it": "SUCCESS 0 41 1023",
}


def test_a_variable_is_known_by_its_address(server: Server, link: str) -> None:
    done = server.run(link, sys.executable, TEST_PROGRAMS / "handed_out.py")
    assert done.returncode == 0, done.stderr
    assert dict(line.split(": ") for line in done.stdout.splitlines()) == EXPECTED

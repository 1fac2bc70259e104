"""numba-cuda's own tests, which its wheel has."""

from __future__ import annotations

import importlib.util
import unittest
import warnings
from pathlib import Path

import numpy as np

from outside.cases import FAIL, PASS, SKIP, Outcome, last_line
from outside.child import Missing, Suite

# numba 0.68 asks for a name that numpy 2.5 has no more.
if not hasattr(np, "row_stack"):
    np.row_stack = np.vstack


class NumbaCuda(Suite):
    """Cases are the ids of the tests."""

    def __init__(self) -> None:
        if importlib.util.find_spec("numba_cuda") is None:
            raise Missing("numba-cuda is not installed")
        warnings.simplefilter("ignore")
        from numba import cuda

        self._cuda = cuda
        self._tests: dict[str, unittest.TestCase] = {}
        _collect(unittest.defaultTestLoader.loadTestsFromName("numba.cuda.tests"), self._tests)

    def cases(self) -> list[str]:
        return list(self._tests)

    def run(self, name: str) -> Outcome:
        test = self._tests.get(name)
        if test is None:
            return Outcome(FAIL, detail="there is no such test in this mode")
        result = unittest.TestResult()
        # A suite of one also runs the fixtures of its class and module.
        unittest.TestSuite([test]).run(result)
        for _, text in result.errors + result.failures:
            print(text)
            return Outcome(FAIL, detail=last_line(text))
        if result.skipped:
            return Outcome(SKIP, detail=last_line(result.skipped[0][1]))
        return Outcome(PASS)

    def healthy(self) -> bool:
        try:
            self._cuda.synchronize()
            return bool(self._cuda.to_device(np.ones(1)).copy_to_host()[0] == 1.0)
        except Exception:
            return False


def _collect(suite: unittest.TestSuite, tests: dict[str, unittest.TestCase]) -> None:
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            _collect(one, tests)
        elif isinstance(one, unittest.TestCase):
            tests.setdefault(one.id(), one)


def open_suite(sources: Path) -> NumbaCuda:
    return NumbaCuda()

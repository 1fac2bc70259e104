"""Asks for private tables and for a function that are not there, three times each."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_void_p

from cuda import lib

nvml = ctypes.CDLL("libnvidia-ml.so.1")
table = c_void_p(1)
for _ in range(3):
    assert lib.cuGetExportTable(byref(table), bytes.fromhex("6e163fbfb958444d835ce182aff1991e")) != 0
    assert table.value is None
assert nvml.nvmlInit_v2() == 0
for _ in range(3):
    assert nvml.nvmlGpmSampleAlloc(None) == 3
    assert nvml.nvmlInternalGetExportTable(byref(table), bytes(range(16))) == 3

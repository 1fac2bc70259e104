"""Makes a call every millisecond until it is killed."""

from __future__ import annotations

import time
from ctypes import byref, c_int

from cuda import must

must("cuInit", 0)
while True:
    must("cuDeviceGetCount", byref(c_int()))
    time.sleep(0.001)

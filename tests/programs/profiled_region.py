"""Records an event 5 times between `cuProfilerStart` and `cuProfilerStop`, and 7 times after them."""

from __future__ import annotations

from cuda import made, must, primary_context

primary_context()
event = made("cuEventCreate", 0)
must("cuProfilerStart")
for _ in range(5):
    must("cuEventRecord", event, None)
must("cuProfilerStop")
for _ in range(7):
    must("cuEventRecord", event, None)
must("cuCtxSynchronize")

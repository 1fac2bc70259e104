"""Makes every call about an event, in two rounds with new events."""

from __future__ import annotations

from ctypes import byref, c_float, c_uint

from cuda import made, must, primary_context

primary_context()
stream = made("cuStreamCreate", 0)
for _ in range(2):
    one, other = made("cuEventCreate", 0), made("cuEventCreate", 0)
    must("cuEventRecord", one, stream)
    must("cuEventRecordWithFlags_ptsz", other, None, c_uint(0))
    must("cuStreamWaitEvent", stream, other, 0)
    must("cuEventSynchronize", one)
    must("cuEventSynchronize", other)
    must("cuEventQuery", one)
    must("cuEventElapsedTime", byref(c_float()), other, one)
    must("cuEventDestroy_v2", one)
    must("cuEventDestroy", other)
must("cuStreamSynchronize", stream)

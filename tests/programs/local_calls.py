"""Makes calls that the client answers by itself, at least mostly: `local_calls.py`, or `local_calls.py GROUP START` for
a group of `driver_answers.py` from a question on, in a process that ends as programs do."""

from __future__ import annotations

import ctypes
import sys
import threading
from ctypes import byref, c_char_p, c_double, c_float, c_int, c_size_t, c_uint64, c_void_p

import driver_answers
from cuda import call, made, must, primary_context
from driver_asking import PTX

BYTES = 2 << 20
DEVICE_TYPE = 1
ENDS_S_MAX = 10


class Place(ctypes.Structure):
    """CUmemAccessDesc, whose first fields are a CUmemLocation."""

    _fields_ = (("kind", c_int), ("id", c_int), ("access", c_int))


def devices_and_contexts(context: c_void_p) -> None:
    number, long, text = c_int(), c_uint64(), ctypes.create_string_buffer(256)
    must("cuDeviceComputeCapability", byref(number), byref(c_int()), 0)
    must("cuDeviceGetProperties", text, 0)
    must("cuDeviceGetUuid", text, 0)
    must("cuDeviceGetExecAffinitySupport", byref(number), 0, 0)
    call("cuDeviceGetLuid", text, byref(number), 0)
    call("cuDeviceGetP2PAtomicCapabilities", text, byref(c_int()), 1, 0, 0)
    must("cuDeviceGetGraphMemAttribute", 0, 0, byref(long))
    must("cuDeviceSetGraphMemAttribute", 0, 1, byref(c_uint64(0)))
    must("cuCtxGetSharedMemConfig", byref(number))
    must("cuCtxSetSharedMemConfig", 0)
    must("cuCtxGetFlags", byref(number))
    must("cuCtxSetFlags", number)
    must("cuCtxGetDevice_v2", byref(number), context)
    must("cuCtxGetId", context, byref(long))
    must("cuCtxGetCacheConfig", byref(number))
    must("cuCtxAttach", byref(c_void_p()), 0)
    must("cuCtxDetach", context)
    must("cuProfilerStart")
    must("cuProfilerStop")
    call("cuProfilerInitialize", b"", b"", 0)
    call("cuFlushGPUDirectRDMAWrites", 0, 0)
    must("cuGetProcAddress", b"cuInit", byref(c_void_p()), 12000, c_uint64(0))


def pools_and_memory(stream: c_void_p) -> None:
    pool = made("cuDeviceGetMemPool", 0)
    must("cuDeviceSetMemPool", 0, pool)
    number, long = c_int(), c_uint64()
    must("cuMemPoolGetAttribute", pool, 4, byref(long))
    must("cuMemPoolSetAttribute", pool, 4, byref(long))
    place = Place(DEVICE_TYPE, 0, 3)
    must("cuMemPoolGetAccess", byref(number), pool, byref(place))
    must("cuMemPoolSetAccess", pool, byref(place), c_size_t(1))
    for default in ("cuMemGetDefaultMemPool", "cuMemGetMemPool"):
        call(default, byref(c_void_p()), byref(place), 1)
    call("cuMemSetMemPool", byref(place), 1, pool)
    call("cuMemPoolExportToShareableHandle", byref(number), pool, 1, c_uint64(0))
    call("cuMemPoolImportFromShareableHandle", byref(c_void_p()), c_void_p(), 1, c_uint64(0))

    managed = made("cuMemAllocManaged", c_size_t(BYTES), 1)
    device = ctypes.c_uint64(DEVICE_TYPE)
    must("cuMemAdvise", managed, c_size_t(BYTES), 1, 0)
    must("cuMemAdvise_v2", managed, c_size_t(BYTES), 2, device)
    must("cuMemPrefetchAsync", managed, c_size_t(BYTES), 0, stream)
    must("cuMemPrefetchAsync_v2", managed, c_size_t(BYTES), device, 0, stream)
    must("cuMemRangeGetAttribute", byref(number), c_size_t(4), 1, managed, c_size_t(BYTES))
    values, sizes, which = (c_void_p * 1)(ctypes.addressof(number)), (c_size_t * 1)(4), (c_int * 1)(1)
    must("cuMemRangeGetAttributes", values, sizes, which, c_size_t(1), managed, c_size_t(BYTES))
    must("cuStreamAttachMemAsync", stream, managed, c_size_t(0), 1)
    # CUmemAllocationProp: pinned memory of the device.
    properties = (c_int * 8)(1, 0, DEVICE_TYPE, 0)
    must("cuMemGetAllocationGranularity", byref(c_size_t()), properties, 0)
    physical = c_uint64()
    must("cuMemCreate", byref(physical), c_size_t(BYTES), properties, c_uint64(0))
    must("cuMemGetAllocationPropertiesFromHandle", properties, physical)
    at = c_uint64()
    must("cuMemAddressReserve", byref(at), c_size_t(BYTES), c_size_t(0), c_uint64(0), c_uint64(0))
    must("cuMemMap", at, c_size_t(BYTES), c_size_t(0), physical, c_uint64(0))
    must("cuMemSetAccess", at, c_size_t(BYTES), byref(place), c_size_t(1))
    must("cuMemGetAccess", byref(long), byref(place), at)
    must("cuMemRetainAllocationHandle", byref(physical), at)
    must("cuMemUnmap", at, c_size_t(BYTES))
    must("cuMemAddressFree", at, c_size_t(BYTES))


def kernels_and_streams(stream: c_void_p) -> None:
    number, name = c_int(), c_char_p()
    library = made("cuLibraryLoadData", PTX, None, None, 0, None, None, 0)
    must("cuLibraryGetKernelCount", byref(number), library)
    handles = (c_void_p * number.value)()
    must("cuLibraryEnumerateKernels", handles, number, library)
    kernel, module = c_void_p(handles[0]), made("cuLibraryGetModule", library)
    must("cuModuleGetFunctionCount", byref(number), module)
    must("cuModuleEnumerateFunctions", handles, number, module)
    must("cuKernelGetName", byref(name), kernel)
    must("cuKernelGetLibrary", byref(c_void_p()), kernel)
    call("cuKernelGetParamInfo", kernel, c_size_t(0), byref(c_size_t()), byref(c_size_t()))
    call("cuLibraryGetUnifiedFunction", byref(c_void_p()), library, b"none")
    function = made("cuKernelGetFunction", kernel)
    must("cuFuncGetName", byref(name), function)
    must("cuFuncGetModule", byref(c_void_p()), function)
    call("cuFuncGetParamInfo", function, c_size_t(0), byref(c_size_t()), byref(c_size_t()))
    must("cuFuncIsLoaded", byref(number), function)
    must("cuFuncSetBlockShape", function, 1, 1, 1)
    must("cuFuncSetSharedSize", function, 0)
    must("cuParamSetSize", function, 16)
    must("cuParamSeti", function, 0, 1)
    call("cuParamSetf", function, 4, c_float(1))
    must("cuParamSetv", function, 8, byref(c_double(1)), 8)
    for occupancy, flags in (
        ("cuOccupancyMaxPotentialBlockSize", ()),
        ("cuOccupancyMaxPotentialBlockSizeWithFlags", (0,)),
    ):
        must(occupancy, byref(number), byref(c_int()), function, None, c_size_t(0), 0, *flags)
    other = made("cuStreamCreate", 1)
    must("cuStreamCopyAttributes", other, stream)
    must("cuStreamGetDevice", stream, byref(number))
    must("cuStreamGetCtx_v2", stream, byref(c_void_p()), byref(c_void_p()))
    must("cuStreamGetId", stream, byref(c_uint64()))


def graphs() -> None:
    graph, ended = made("cuGraphCreate", 0), threading.Event()
    destroy = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: ended.set())
    thing = made("cuUserObjectCreate", c_void_p(1), destroy, 2, 1)
    must("cuUserObjectRetain", thing, 1)
    must("cuGraphRetainUserObject", graph, thing, 1, 0)
    must("cuGraphReleaseUserObject", graph, thing, 1)
    must("cuUserObjectRelease", thing, 3)
    assert ended.wait(ENDS_S_MAX)


def main() -> None:
    if len(sys.argv) == 3:
        driver_answers.answer_group(sys.argv[1], int(sys.argv[2]), sys.exit)
    context = primary_context()
    stream = made("cuStreamCreate", 1)
    devices_and_contexts(context)
    pools_and_memory(stream)
    kernels_and_streams(stream)
    graphs()
    must("cuCtxSynchronize")
    print("right")


if __name__ == "__main__":
    main()

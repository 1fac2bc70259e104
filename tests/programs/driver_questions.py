"""Questions of `driver_answers.py` about contexts and devices, and those that need no particular
state."""

from __future__ import annotations

from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

from driver_asking import NOTHING, PTX, WILD, ZEROS, Question, State, call, got, must, q

# Questions that most drivers answer without state or context; asked both with and without.
STATELESS: dict[str, Question] = {
    "cuDeviceGet": q("cuDeviceGet", c_int, 0),
    "cuDeviceGetCount": q("cuDeviceGetCount", c_int),
    "cuDeviceGetCount null": q("cuDeviceGetCount", None),
    "cuDeviceGetName": q("cuDeviceGetName", ZEROS, 100, 0),
    "cuDeviceTotalMem_v2": q("cuDeviceTotalMem_v2", c_size_t, 0),
    "cuDeviceGetAttribute": q("cuDeviceGetAttribute", c_int, 16, 0),
    "cuDeviceGetUuid_v2": q("cuDeviceGetUuid_v2", ZEROS, 0),
    "cuDeviceGetPCIBusId": q("cuDeviceGetPCIBusId", ZEROS, 20, 0),
    "cuDeviceCanAccessPeer": q("cuDeviceCanAccessPeer", c_int, 0, 0),
    "cuDeviceGetP2PAttribute null": q("cuDeviceGetP2PAttribute", None, 1, 0, 0),
    "cuDeviceGetDefaultMemPool": q("cuDeviceGetDefaultMemPool", c_void_p, 0),
    "cuDevicePrimaryCtxGetState": q("cuDevicePrimaryCtxGetState", 0, c_uint, c_int),
    "cuCtxGetCurrent": q("cuCtxGetCurrent", c_void_p),
    "cuCtxSetCurrent null": q("cuCtxSetCurrent", None),
    "cuCtxPushCurrent null": q("cuCtxPushCurrent_v2", None),
    "cuCtxPopCurrent": q("cuCtxPopCurrent_v2", c_void_p),
    "cuCtxSynchronize": q("cuCtxSynchronize"),
    "cuCtxGetDevice": q("cuCtxGetDevice", c_int),
    "cuCtxGetDevice null": q("cuCtxGetDevice", None),
    "cuCtxGetLimit": q("cuCtxGetLimit", c_size_t, 0),
    "cuCtxSetLimit": q("cuCtxSetLimit", 0, 2048),
    "cuCtxGetFlags": q("cuCtxGetFlags", c_uint),
    "cuCtxGetCacheConfig": q("cuCtxGetCacheConfig", c_int),
    "cuCtxGetApiVersion null context": q("cuCtxGetApiVersion", None, c_uint),
    "cuCtxGetStreamPriorityRange": q("cuCtxGetStreamPriorityRange", c_int, c_int),
    "cuCtxGetId null context": q("cuCtxGetId", None, c_uint64),
    "cuMemAlloc_v2": q("cuMemAlloc_v2", c_uint64, 64),
    "cuMemAlloc_v2 null": q("cuMemAlloc_v2", None, 64),
    "cuMemAlloc_v2 of 0": q("cuMemAlloc_v2", c_uint64, 0),
    "cuMemFree_v2 of 0": q("cuMemFree_v2", 0),
    "cuMemGetInfo_v2": q("cuMemGetInfo_v2", c_size_t, c_size_t),
    "cuMemGetAddressRange_v2": q("cuMemGetAddressRange_v2", c_uint64, c_size_t, WILD),
    "cuMemHostAlloc": q("cuMemHostAlloc", c_void_p, 64, 0),
    "cuMemFreeHost null": q("cuMemFreeHost", None),
    "cuMemHostGetFlags": q("cuMemHostGetFlags", c_uint, ZEROS),
    "cuMemHostUnregister": q("cuMemHostUnregister", ZEROS),
    "cuMemcpyHtoD_v2": q("cuMemcpyHtoD_v2", WILD, ZEROS, 4),
    "cuMemcpyHtoD_v2 of 0": q("cuMemcpyHtoD_v2", WILD, ZEROS, 0),
    "cuMemcpyDtoH_v2": q("cuMemcpyDtoH_v2", ZEROS, WILD, 4),
    "cuMemcpy": q("cuMemcpy", ZEROS, ZEROS, 4),
    "cuMemsetD8_v2": q("cuMemsetD8_v2", WILD, 0, 4),
    "cuMemsetD8Async": q("cuMemsetD8Async", WILD, 0, 4, None),
    "cuMemAllocAsync": q("cuMemAllocAsync", c_uint64, 64, None),
    "cuMemFreeAsync of 0": q("cuMemFreeAsync", 0, None),
    "cuModuleLoadData": q("cuModuleLoadData", c_void_p, PTX),
    "cuModuleLoadData null": q("cuModuleLoadData", c_void_p, None),
    "cuModuleUnload null": q("cuModuleUnload", None),
    "cuModuleGetFunction null": q("cuModuleGetFunction", c_void_p, None, b"store"),
    "cuFuncGetAttribute null": q("cuFuncGetAttribute", c_int, 0, None),
    "cuStreamCreate": q("cuStreamCreate", c_void_p, 0),
    "cuStreamSynchronize null": q("cuStreamSynchronize", None),
    "cuStreamQuery null": q("cuStreamQuery", None),
    "cuStreamDestroy_v2 null": q("cuStreamDestroy_v2", None),
    "cuStreamIsCapturing null": q("cuStreamIsCapturing", None, c_int),
    "cuStreamBeginCapture null": q("cuStreamBeginCapture_v2", None, 0),
    "cuEventCreate": q("cuEventCreate", c_void_p, 0),
    "cuEventQuery null": q("cuEventQuery", None),
    "cuEventSynchronize null": q("cuEventSynchronize", None),
    "cuEventRecord null": q("cuEventRecord", None, None),
    "cuEventDestroy_v2 null": q("cuEventDestroy_v2", None),
    "cuLaunchKernel null": q("cuLaunchKernel", None, 1, 1, 1, 1, 1, 1, 0, None, None, None),
    "cuLaunchKernelEx null": q("cuLaunchKernelEx", None, None, None, None),
    "cuGraphCreate": q("cuGraphCreate", c_void_p, 0),
    "cuGraphDestroy null": q("cuGraphDestroy", None),
    "cuGraphLaunch null": q("cuGraphLaunch", None, None),
    "cuPointerGetAttribute": q("cuPointerGetAttribute", c_uint64, 2, ZEROS),
    "cuOccupancy null": q("cuOccupancyMaxActiveBlocksPerMultiprocessor", c_int, None, 32, 0),
    "cuProfilerStart": q("cuProfilerStart"),
    "cuProfilerStop": q("cuProfilerStop"),
    "cuMemAddressReserve": q("cuMemAddressReserve", c_uint64, 2 << 20, 0, 0, 0),
    "cuLibraryLoadData null": q("cuLibraryLoadData", c_void_p, None, None, None, 0, None, None, 0),
    "cuLibraryUnload null": q("cuLibraryUnload", None),
    "cuThreadExchangeStreamCaptureMode null": q("cuThreadExchangeStreamCaptureMode", None),
    "cuFlushGPUDirectRDMAWrites": q("cuFlushGPUDirectRDMAWrites", 100, 0),
    "cuDriverGetVersion null": q("cuDriverGetVersion", None),
    "cuGetErrorName null": q("cuGetErrorName", 1, None),
    "cuGetErrorName of none": q("cuGetErrorName", 12345, c_char_p),
    "cuGetErrorString of none": q("cuGetErrorString", 12345, c_char_p),
    "cuGetExportTable null": q("cuGetExportTable", None, None),
    "cuGetExportTable of none": q("cuGetExportTable", c_void_p, NOTHING),
    "cuGetProcAddress_v2 of none": q("cuGetProcAddress_v2", b"cuNoSuchCall", c_void_p, 12000, 0, c_int),
    "cuGetProcAddress_v2 null": q("cuGetProcAddress_v2", None, c_void_p, 12000, 0, c_int),
    "cuGetProcAddress_v2 flags": q("cuGetProcAddress_v2", b"cuInit", c_void_p, 12000, 99, c_int),
    "cuInit flags": q("cuInit", 1),
}

CONTEXTS: dict[str, Question] = {
    "cuCtxSetCurrent wild": q("cuCtxSetCurrent", WILD),
    "cuCtxPushCurrent wild": q("cuCtxPushCurrent_v2", WILD),
    "cuCtxDestroy null": q("cuCtxDestroy_v2", None),
    "cuCtxDestroy primary": q("cuCtxDestroy_v2", "context"),
    "cuCtxGetApiVersion wild": q("cuCtxGetApiVersion", WILD, c_uint),
    "cuCtxGetApiVersion null": q("cuCtxGetApiVersion", "context", None),
    "cuCtxGetCurrent null": q("cuCtxGetCurrent", None),
    "cuCtxGetLimit null": q("cuCtxGetLimit", None, 0),
    "cuCtxGetLimit of none": q("cuCtxGetLimit", c_size_t, 99),
    "cuCtxSetLimit of none": q("cuCtxSetLimit", 99, 1),
    "cuCtxSetLimit stack of 2^40": q("cuCtxSetLimit", 0, 1 << 40),
    "cuCtxSetLimit stack of 0": q("cuCtxSetLimit", 0, 0),
    "cuCtxSetLimit fetch granularity of 256": q("cuCtxSetLimit", 5, 256),
    "cuCtxSetCacheConfig of none": q("cuCtxSetCacheConfig", 17),
    "cuCtxGetFlags null": q("cuCtxGetFlags", None),
    "cuCtxGetStreamPriorityRange null": q("cuCtxGetStreamPriorityRange", None, None),
    "cuCtxEnablePeerAccess itself": q("cuCtxEnablePeerAccess", "context", 0),
    "cuCtxEnablePeerAccess null": q("cuCtxEnablePeerAccess", None, 0),
    "cuCtxDisablePeerAccess itself": q("cuCtxDisablePeerAccess", "context"),
    "cuCtxCreate_v2 flags": q("cuCtxCreate_v2", c_void_p, 0xFFFF_0000, 0),
    "cuCtxCreate_v2 null": q("cuCtxCreate_v2", None, 0, 0),
    "cuCtxCreate_v2 device": q("cuCtxCreate_v2", c_void_p, 0, 99),
    "cuCtxAttach": q("cuCtxAttach", c_void_p, 0),
    "cuDevicePrimaryCtxRetain null": q("cuDevicePrimaryCtxRetain", None, 0),
    "cuDevicePrimaryCtxRetain device": q("cuDevicePrimaryCtxRetain", c_void_p, 99),
    "cuDevicePrimaryCtxSetFlags of none": q("cuDevicePrimaryCtxSetFlags_v2", 0, 0xFFFF_0000),
    "cuDevicePrimaryCtxSetFlags active": q("cuDevicePrimaryCtxSetFlags_v2", 0, 4),
    "cuDevicePrimaryCtxGetState null": q("cuDevicePrimaryCtxGetState", 0, None, None),
    "cuDevicePrimaryCtxGetState device": q("cuDevicePrimaryCtxGetState", 99, c_uint, c_int),
    "cuDeviceGet null": q("cuDeviceGet", None, 0),
    "cuDeviceGet 99": q("cuDeviceGet", c_int, 99),
    "cuDeviceGet -1": q("cuDeviceGet", c_int, -1),
    "cuDeviceGetName null": q("cuDeviceGetName", None, 10, 0),
    "cuDeviceGetName of 0": q("cuDeviceGetName", ZEROS, 0, 0),
    "cuDeviceGetName of 3": q("cuDeviceGetName", ZEROS, 3, 0),
    "cuDeviceGetName device": q("cuDeviceGetName", ZEROS, 10, 99),
    "cuDeviceGetAttribute null": q("cuDeviceGetAttribute", None, 16, 0),
    "cuDeviceGetAttribute of none": q("cuDeviceGetAttribute", c_int, 9999, 0),
    "cuDeviceGetAttribute of 0": q("cuDeviceGetAttribute", c_int, 0, 0),
    "cuDeviceGetAttribute device": q("cuDeviceGetAttribute", c_int, 16, 99),
    "cuDeviceTotalMem null": q("cuDeviceTotalMem_v2", None, 0),
    "cuDeviceGetUuid null": q("cuDeviceGetUuid_v2", None, 0),
    "cuDeviceGetP2PAttribute null": q("cuDeviceGetP2PAttribute", None, 1, 0, 0),
    "cuDeviceGetP2PAttribute null device": q("cuDeviceGetP2PAttribute", None, 1, 0, 99),
    "cuDeviceGetP2PAttribute itself": q("cuDeviceGetP2PAttribute", c_int, 1, 0, 0),
    "cuDeviceGetP2PAttribute of none": q("cuDeviceGetP2PAttribute", c_int, 99, 0, 0),
    "cuDeviceGetP2PAttribute device": q("cuDeviceGetP2PAttribute", c_int, 1, 0, 99),
    "cuDeviceCanAccessPeer null": q("cuDeviceCanAccessPeer", None, 0, 0),
    "cuDeviceCanAccessPeer device": q("cuDeviceCanAccessPeer", c_int, 0, 99),
    "cuDeviceGetPCIBusId null": q("cuDeviceGetPCIBusId", None, 20, 0),
    "cuDeviceGetPCIBusId of 4": q("cuDeviceGetPCIBusId", ZEROS, 4, 0),
    "cuDeviceGetByPCIBusId null": q("cuDeviceGetByPCIBusId", c_int, None),
    "cuDeviceGetByPCIBusId nonsense": q("cuDeviceGetByPCIBusId", c_int, b"nonsense"),
    "cuDeviceGetByPCIBusId none": q("cuDeviceGetByPCIBusId", c_int, b"00ff:ff:1f.7"),
}


def pop_to_the_end(state: State) -> tuple[str, ...]:
    answers = tuple(call("cuCtxPopCurrent_v2", byref(c_void_p())) for _ in range(2))
    must("cuCtxSetCurrent", state.context)
    return answers


def destroyed_context(state: State) -> tuple[str, ...]:
    made = got("cuCtxCreate_v2", 0, 0)
    answers = [call("cuCtxDestroy_v2", made), call("cuCtxDestroy_v2", made), call("cuCtxSetCurrent", made)]
    current = c_void_p()
    must("cuCtxGetCurrent", byref(current))
    answers.append("back" if current.value == state.context.value else "elsewhere")
    must("cuCtxSetCurrent", state.context)
    return tuple(answers)


def nested_contexts(state: State) -> tuple[object, ...]:
    """A new context pushes itself; one destroyed below the top of the stack is found when it comes
    up."""
    lower, upper = got("cuCtxCreate_v2", 0, 0), got("cuCtxCreate_v2", 0, 0)
    must("cuCtxDestroy_v2", lower)
    popped = c_void_p()
    answers: list[object] = [call("cuCtxPopCurrent_v2", byref(popped)), popped.value == upper.value]
    answers += [call("cuCtxSynchronize"), call("cuCtxPopCurrent_v2", byref(popped))]
    must("cuCtxSetCurrent", state.context)
    answers.append(call("cuCtxDestroy_v2", upper))
    must("cuCtxSetCurrent", state.context)
    return tuple(answers)


def released_too_often(state: State) -> tuple[str, ...]:
    return tuple(call("cuDevicePrimaryCtxRelease_v2", 0) for _ in range(3))


def after_release(state: State) -> str:
    return call("cuMemAlloc_v2", byref(c_uint64()), 64)


CONTEXTS |= {
    "pop twice": pop_to_the_end,
    "destroy twice": destroyed_context,
    "destroy under another": nested_contexts,
    "release three times": released_too_often,
    "allocate after release": after_release,
}

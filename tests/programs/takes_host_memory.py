"""Asks for more and more of the server's own memory, in the way named by the argument, until a call is refused;
gives it back, and shows that the session still works. Prints the refusal."""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint32, c_uint64, c_void_p
from typing import ClassVar

from cuda import call, kernels, made, must, primary_context

MIB = 1 << 20
WAIT_GREATER_OR_EQUAL = 0
LEVELS_MAX = 40
COPIES_MAX = 80
REGISTERED_BYTES = 1 << 30
# Once within the budget of the test, and twice beyond it.
WATCHED_BYTES = 40 * MIB
VARIABLE = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .global .align 4 .b8 large[1073741824];
"""
WORD = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry put(.param .u64 at) {
    .reg .b64 %at;
    ld.param.u64 %at, [at];
    st.global.u32 [%at], 7;
    ret;
}
"""
LOCAL = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry local() {
    .local .align 4 .b8 large[500000];
    .reg .b64 %address;
    mov.u64 %address, large;
    st.local.u32 [%address], 1;
    ret;
}
"""


class MemsetParams(ctypes.Structure):
    """`CUDA_MEMSET_NODE_PARAMS`"""

    _fields_: ClassVar = [
        ("dst", c_uint64),
        ("pitch", c_size_t),
        ("value", c_uint32),
        ("element_bytes", c_uint32),
        ("width", c_size_t),
        ("height", c_size_t),
    ]


def memory(size: int) -> c_uint64:
    address = c_uint64()
    must("cuMemAlloc_v2", byref(address), c_size_t(size))
    return address


def graphs(context: c_void_p) -> str:
    """Graphs of twice as many nodes each."""
    target, kept = memory(64), [made("cuGraphCreate", 0)]
    params = MemsetParams(target.value, 0, 1, 1, 64, 1)
    must("cuGraphAddMemsetNode", byref(c_void_p()), kept[0], None, c_size_t(0), byref(params), context)
    status = "CUDA_SUCCESS"
    while status == "CUDA_SUCCESS" and len(kept) < LEVELS_MAX:
        kept.append(c_void_p())
        status = call("cuGraphCreate", byref(kept[-1]), 0)
        for _ in range(2):
            if status == "CUDA_SUCCESS":
                node = c_void_p()
                status = call("cuGraphAddChildGraphNode", byref(node), kept[-1], None, c_size_t(0), kept[-2])
    for graph in filter(None, kept):
        must("cuGraphDestroy", graph)
    return status


def copies(_: c_void_p) -> str:
    """Copies in a stream that waits for a word."""
    word, target, stream = memory(4), memory(4 * MIB), made("cuStreamCreate", 1)
    source = ctypes.create_string_buffer(4 * MIB)
    must("cuMemsetD32_v2", word, 0, c_size_t(1))
    must("cuStreamWaitValue32_v2", stream, word, 1, WAIT_GREATER_OR_EQUAL)
    status, count = "CUDA_SUCCESS", 0
    while status == "CUDA_SUCCESS" and count < COPIES_MAX:
        status = call("cuMemcpyHtoDAsync_v2", target, source, c_size_t(4 * MIB), stream)
        count += 1
        if count % 16 == 0 and status == "CUDA_SUCCESS":
            status = call("cuStreamQuery", stream).replace("CUDA_ERROR_NOT_READY", "CUDA_SUCCESS")
    # Another stream's write ends the wait; a refusal that no call has told yet comes with the wait.
    other = made("cuStreamCreate", 1)
    must("cuStreamWriteValue32_v2", other, word, 1, 0)
    while (done := call("cuStreamSynchronize", stream)) != "CUDA_SUCCESS":
        assert done == "CUDA_ERROR_OUT_OF_MEMORY", done
        status = done
    return status


def registered(_: c_void_p) -> str:
    """Memory that kernels would read in place."""
    source = ctypes.create_string_buffer(REGISTERED_BYTES + 4096)
    start = (ctypes.addressof(source) + 4095) // 4096 * 4096
    status = call("cuMemHostRegister_v2", c_void_p(start), c_size_t(REGISTERED_BYTES), 2)
    if status != "CUDA_SUCCESS":
        return status
    status = call("cuMemHostGetDevicePointer_v2", byref(c_uint64()), c_void_p(start), 0)
    must("cuMemHostUnregister", c_void_p(start))
    return status


def watched(_: c_void_p) -> str:
    """Memory that kernels would read in place, for which the server's own memory has room, but not for what it would
    remember of it."""
    (put,) = kernels(WORD, "put")
    source = ctypes.create_string_buffer(WATCHED_BYTES + 4096)
    start = (ctypes.addressof(source) + 4095) // 4096 * 4096

    def launch() -> str:
        address, one = c_uint64(start), c_uint32(1)
        arguments = (c_void_p * 1)(ctypes.addressof(address))
        return call("cuLaunchKernel", put, one, one, one, one, one, one, c_uint32(0), None, arguments, None)

    must("cuMemHostRegister_v2", c_void_p(start), c_size_t(WATCHED_BYTES), 0)
    status = call("cuMemHostGetDevicePointer_v2", byref(c_uint64()), c_void_p(start), 0)
    assert launch() == status, "a launch that names it"
    # It was told, and nothing is left of it.
    must("cuCtxSynchronize")
    must("cuMemHostUnregister", c_void_p(start))
    must("cuMemHostRegister_v2", c_void_p(start), c_size_t(WATCHED_BYTES // 4), 2)
    assert launch() == "CUDA_SUCCESS"
    must("cuCtxSynchronize")
    assert c_uint32.from_address(start).value == 7
    must("cuMemHostUnregister", c_void_p(start))
    return status


def variables(_: c_void_p) -> str:
    """A module with a variable of a GiB."""
    return call("cuModuleLoadData", byref(c_void_p()), VARIABLE)


def threads(_: c_void_p) -> str:
    """A kernel of 500,000 bytes of local memory a thread, which every GPU allows."""
    (kernel,) = kernels(LOCAL, "local")
    one, wide = c_uint32(1), c_uint32(1024)
    status = call("cuLaunchKernel", kernel, one, one, one, wide, one, one, c_uint32(0), None, None, None)
    return status if status != "CUDA_SUCCESS" else call("cuCtxSynchronize")


def main() -> None:
    context = primary_context()
    print(globals()[sys.argv[1]](context), flush=True)
    # What follows needs little.
    first, address = c_ubyte(), memory(MIB)
    must("cuMemsetD8_v2", address, c_ubyte(7), c_size_t(MIB))
    must("cuMemcpyDtoH_v2", byref(first), address, c_size_t(1))
    must("cuCtxSynchronize")
    device = c_int()
    must("cuCtxGetDevice", byref(device))
    print("goes on", first.value, device.value)


main()

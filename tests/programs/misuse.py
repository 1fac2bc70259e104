"""Misuses of the driver API: run as `misuse.py CASE`. Prints the results."""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path

from cuda import call, made, must

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "crates" / "image" / "tests" / "data"
# `CU_MEMHOSTREGISTER_READ_ONLY`
READ_ONLY = 8

STORE = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry store(.param .u64 where)
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [where];
    mov.u32 %r1, 7;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""


def load(image: bytes) -> tuple[str, c_void_p, str]:
    """Loads an image; returns the status, the module and the JIT's log."""
    module, log = c_void_p(), ctypes.create_string_buffer(8192)
    options = (c_int * 2)(5, 6)  # error log buffer and its size
    values = (c_void_p * 2)(ctypes.cast(log, c_void_p), c_void_p(len(log)))
    return call("cuModuleLoadDataEx", byref(module), image, 2, options, values), module, log.value.decode()


def kernel() -> c_void_p:
    status, module, log = load(STORE)
    assert status == "CUDA_SUCCESS", log
    return made("cuModuleGetFunction", module, b"store")


def launch(function: c_void_p, arguments: object, threads: int = 1, extra: object = None) -> str:
    return call("cuLaunchKernel", function, 1, 1, 1, threads, 1, 1, 0, c_void_p(), arguments, extra)


def pointer_argument(address: int) -> object:
    value = c_uint64(address)
    arguments = (c_void_p * 1)(ctypes.cast(byref(value), c_void_p))
    arguments.keep = value  # type: ignore[attr-defined]
    return arguments


def unknown_instruction() -> None:
    status, _, log = load(STORE.replace(b"mov.u32 %r1, 7;", b"frobnicate.u32 %r1, 7;"))
    print(status, log)


def later_ptx() -> None:
    status, _, log = load(STORE.replace(b".version 7.0", b".version 10.1"))
    print(status, log)


def million_registers() -> None:
    status, _, log = load(STORE.replace(b".reg .b32 %r<2>;", b".reg .b32 %r<1000000>;"))
    print(status, log)


def nonsense() -> None:
    """Loads ten megabytes that begin like a kernel."""
    head = STORE[: STORE.index(b"ret;")]
    status, _, log = load(head + b'} { add.s32 [[ 0x ;; %% @ bra :: "\n' * (10 << 15))
    print(status, len(log) < 500, "line" in log)


def texture_instruction() -> None:
    texture = b"tex.2dms.v4.f32.s32 {%r1, %r1, %r1, %r1}, [%rd1, {%r1, %r1, %r1, %r1}];"
    status, _, log = load(STORE.replace(b"mov.u32 %r1, 7;", texture))
    print(status, log)


def stack_overflow() -> None:
    recursion = b"""
.func down(.param .b64 a) { .param .b64 b; .local .b8 l[256]; call down, (b); ret; }
.visible .entry store(.param .u64 where) { .param .b64 b; call down, (b); ret; }
"""
    status, module, log = load(STORE[: STORE.index(b".visible")] + recursion)
    assert status == "CUDA_SUCCESS", log
    function = c_void_p()
    must("cuModuleGetFunction", byref(function), module, b"store")
    print(launch(function, pointer_argument(0)), call("cuCtxSynchronize"), call("cuCtxSynchronize"))


def link(*inputs: bytes) -> None:
    """Links PTX, and prints the result."""
    state, image, size = c_void_p(), c_void_p(), c_size_t()
    log = ctypes.create_string_buffer(8192)
    options = (c_int * 2)(5, 6)
    values = (c_void_p * 2)(ctypes.cast(log, c_void_p), c_void_p(len(log)))
    must("cuLinkCreate_v2", 2, options, values, byref(state))
    for text in inputs:
        must("cuLinkAddData_v2", state, 1, text, len(text) + 1, b"input", 0, None, None)
    status = call("cuLinkComplete", state, byref(image), byref(size))
    print(status, log.value.decode())


def link_missing() -> None:
    link(
        STORE.replace(b"st.global.u32 [%rd1], %r1;", b"call nowhere;").replace(
            b".visible", b".extern .func nowhere();\n.visible"
        )
    )


def link_twice() -> None:
    link(STORE, STORE)


def cubin_only() -> None:
    status, _, log = load((IMAGES / "sm_90.cubin").read_bytes())
    print(status, log)


def refused_without_a_log() -> None:
    module = c_void_p()
    for _ in range(9):
        status = call("cuModuleLoadData", byref(module), (IMAGES / "sm_90.cubin").read_bytes())
    print(status)


def half_fatbin() -> None:
    image = (IMAGES / "none.fatbin").read_bytes()
    # The header still gives the whole length; the rest is whatever follows in memory.
    buffer = ctypes.create_string_buffer(image[: len(image) // 2] + bytes(len(image)), len(image) * 2)
    module = c_void_p()
    print(call("cuModuleLoadData", byref(module), buffer))


def empty_image() -> None:
    print(load(b"")[0], call("cuModuleLoadData", byref(c_void_p()), None))


def missing_arguments() -> None:
    print(launch(kernel(), None))


def short_buffer() -> None:
    buffer, size = c_uint64(), c_size_t(4)
    extra = (c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
    print(launch(kernel(), None, extra=extra), call("cuCtxSynchronize"))


def too_many_threads() -> None:
    print(launch(kernel(), pointer_argument(0), threads=1025))


def more_threads_than_compiled_for() -> None:
    status, module, log = load(STORE.replace(b"\n{", b"\n.maxntid 64, 1, 1\n{", 1))
    assert status == "CUDA_SUCCESS", log
    function = c_void_p()
    must("cuModuleGetFunction", byref(function), module, b"store")
    print(launch(function, pointer_argument(0), threads=65))


def wild_handles() -> None:
    wild = c_void_p(0xDEAD_BEEF_0000)
    print(
        call("cuStreamSynchronize", wild),
        call("cuEventRecord", wild, c_void_p()),
        launch(wild, None),
        call("cuModuleUnload", wild),
        call("cuGraphLaunch", wild, c_void_p()),
        call("cuCtxSetCurrent", wild),
        call("cuStreamDestroy_v2", wild),
    )


def destroyed_handles() -> None:
    stream = c_void_p()
    must("cuStreamCreate", byref(stream), 0)
    must("cuStreamDestroy_v2", stream)
    print(call("cuStreamSynchronize", stream), call("cuStreamDestroy_v2", stream))


def wild_pointer_in_copy() -> None:
    word = c_int()
    print(
        call("cuMemcpyHtoD_v2", c_uint64(0x2000_0000_1000), byref(word), c_size_t(4)),
        call("cuMemcpyDtoH_v2", byref(word), c_uint64(0x1234), c_size_t(4)),
        call("cuMemsetD8Async", c_uint64(0x2000_0000_1000), 0, c_size_t(4), c_void_p()),
        call("cuMemFree_v2", c_uint64(0x2000_0000_1000)),
    )


def past_the_end() -> None:
    data = c_uint64()
    must("cuMemAlloc_v2", byref(data), c_size_t(100))
    print(call("cuMemcpyHtoD_v2", data, bytes(200), c_size_t(200)))


def wild_pointer_in_kernel() -> None:
    function = kernel()
    launched = launch(function, pointer_argument(0x2000_0012_3450))
    print(launched, call("cuCtxSynchronize"), call("cuCtxSynchronize"), launch(function, pointer_argument(0)))


def ignores_errors() -> None:
    """Reports no error, however the first one reaches it: with a copy's reply, or with nothing that it waits for."""
    function, data = kernel(), made_memory()
    for _ in range(int(sys.argv[2])):
        launch(function, pointer_argument(0x2000_0812_3450))
    for _ in range(int(sys.argv[3])):
        call("cuMemcpyDtoH_v2", byref(c_uint64()), data, c_size_t(8))


def made_memory() -> c_uint64:
    data = c_uint64()
    must("cuMemAlloc_v2", byref(data), c_size_t(4096))
    return data


def out_of_memory() -> None:
    data, free, total = c_uint64(), c_size_t(), c_size_t()
    must("cuMemGetInfo_v2", byref(free), byref(total))
    too_much = call("cuMemAlloc_v2", byref(data), c_size_t(free.value + (4 << 20)))
    print(too_much, call("cuMemAlloc_v2", byref(data), c_size_t(1 << 20)), call("cuMemFree_v2", data))


def unsupported() -> None:
    print(call("cuMulticastCreate", byref(c_uint64()), byref(c_uint64())))


class IpcHandle(ctypes.Structure):
    """`CUipcEventHandle`, which is passed by value."""

    _fields_ = (("reserved", ctypes.c_ubyte * 64),)


def other_processes() -> None:
    """Invalid handles of memory and events; `peers.py` has valid ones."""
    data, event = c_uint64(), c_void_p()
    handle = ctypes.create_string_buffer(64)
    must("cuMemAlloc_v2", byref(data), c_size_t(64))
    must("cuEventCreate", byref(event), 2)
    handle.raw = b"x" * 64
    status = call("cuIpcGetEventHandle", handle, event)
    print(status, any(handle.raw), call("cuIpcOpenEventHandle", byref(event), IpcHandle()))
    print(call("cuIpcGetMemHandle", handle, c_uint64(64)), call("cuIpcCloseMemHandle", data))


def null_outputs() -> None:
    print(call("cuMemAlloc_v2", None, c_size_t(64)), call("cuDeviceGet", None, 0), call("cuStreamCreate", None, 0))


def copy_for_ever() -> None:
    """Copies until its test kills it."""
    data = c_uint64()
    must("cuMemAlloc_v2", byref(data), c_size_t(64 << 20))
    source = bytes(64 << 20)
    print("copying", flush=True)
    while True:
        must("cuMemcpyHtoD_v2", data, source, c_size_t(len(source)))
        must("cuMemcpyDtoH_v2", ctypes.create_string_buffer(1 << 20), data, c_size_t(1 << 20))


def copy_down_for_ever() -> None:
    """Copies from the device by two threads, of which one copies little, until its test kills it."""
    data, context = c_uint64(), c_void_p()
    must("cuMemAlloc_v2", byref(data), c_size_t(16 << 20))
    must("cuCtxGetCurrent", byref(context))

    def copy(length: int) -> None:
        must("cuCtxSetCurrent", context)
        to, stream = ctypes.create_string_buffer(length), c_void_p()
        must("cuStreamCreate", byref(stream), 1)
        while True:
            must("cuMemcpyDtoHAsync_v2", to, data, c_size_t(length), stream)
            must("cuStreamSynchronize", stream)

    threading.Thread(target=copy, args=[4], daemon=True).start()
    print("copying", flush=True)
    copy(16 << 20)


def long_registration() -> None:
    """Registers ranges that are longer than what is mapped, and one beyond all addresses."""
    region = mmap.mmap(-1, 1 << 16)
    address = ctypes.addressof(ctypes.c_char.from_buffer(region))
    lengths = [1 << 45, 1 << 63, (1 << 64) - address - 1, (1 << 64) - 1]
    print(*(call("cuMemHostRegister_v2", c_void_p(address), c_size_t(length), 0) for length in lengths))


def read_only_registration() -> None:
    """Registers memory that may only be read, and copies to it."""
    anonymous, read = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ
    libc = ctypes.CDLL(None)
    libc.mmap.restype = c_void_p
    size, data, word = 1 << 16, c_uint64(), c_int()
    memory, none = (c_void_p(libc.mmap(None, c_size_t(size), of, anonymous, -1, c_size_t())) for of in (read, 0))
    must("cuMemAlloc_v2", byref(data), c_size_t(size))
    must("cuMemsetD8_v2", data, 7, c_size_t(size))
    print(call("cuMemHostRegister_v2", none, c_size_t(size), READ_ONLY))
    print(call("cuMemHostRegister_v2", memory, c_size_t(size), 0))
    print(call("cuMemHostRegister_v2", memory, c_size_t(size), READ_ONLY))
    print(call("cuMemcpyDtoH_v2", memory, data, c_size_t(64)))
    print(call("cuMemcpyDtoHAsync_v2", memory, data, c_size_t(size), c_void_p()))
    print(call("cuMemcpyHtoD_v2", data, memory, c_size_t(4)), call("cuCtxSynchronize"))
    print(call("cuMemcpyDtoH_v2", byref(word), data, c_size_t(4)), word.value)


def loop_for_ever() -> None:
    status, module, log = load(STORE.replace(b"st.global.u32 [%rd1], %r1;", b"here: bra here;"))
    assert status == "CUDA_SUCCESS", log
    function = c_void_p()
    must("cuModuleGetFunction", byref(function), module, b"store")
    assert launch(function, pointer_argument(0), threads=256) == "CUDA_SUCCESS"
    print("looping", flush=True)
    print(call("cuCtxSynchronize"))


def launch_for_ever() -> None:
    """Launches kernels, and waits for none, until its test kills it."""
    status, module, log = load(STORE)
    assert status == "CUDA_SUCCESS", log
    function, data = c_void_p(), c_uint64()
    must("cuMemAlloc_v2", byref(data), c_size_t(64))
    must("cuModuleGetFunction", byref(function), module, b"store")
    print("launching", flush=True)
    while (status := launch(function, pointer_argument(data.value), threads=16)) == "CUDA_SUCCESS":
        pass
    print(status)


def wait_for_the_end() -> None:
    """Works until its server is gone, then prints the statuses of calls."""
    data, word = c_uint64(), c_int()
    must("cuMemAlloc_v2", byref(data), c_size_t(64))
    print("working", flush=True)
    while (status := call("cuMemcpyDtoH_v2", byref(word), data, c_size_t(4))) == "CUDA_SUCCESS":
        pass
    print(status, call("cuCtxSynchronize"), call("cuMemFree_v2", data), flush=True)


def main(case: str) -> None:
    context = c_void_p()
    must("cuInit", 0)
    must("cuDevicePrimaryCtxRetain", byref(context), 0)
    must("cuCtxSetCurrent", context)
    globals()[case]()


if __name__ == "__main__":
    main(sys.argv[1])

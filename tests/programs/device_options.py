"""Effects of the options of `outboard serve` and of `cuCtxSetLimit` on a program: run as
`device_options.py CASE`."""

from __future__ import annotations

import sys
from ctypes import byref, c_int, c_size_t, c_uint32, c_uint64, c_void_p

import misuse
from cuda import call, must
from misuse import STORE, load, pointer_argument

STACK_SIZE, PRINTF_FIFO_SIZE, MALLOC_HEAP_SIZE = 0, 1, 2

HEAD = b".version 7.0\n.target sm_80\n.address_size 64\n"

# Calls malloc for 4,096 bytes until it fails: counts the successes, and tries again after one free.
EXHAUST = (
    HEAD
    + b"""
.extern .func (.param .b64 r) malloc(.param .b64 a);
.extern .func free(.param .b64 a);
.visible .entry exhaust(.param .u64 out) {
    .reg .b64 %rd<6>; .reg .b32 %r<6>; .reg .pred %p<4>;
    .param .b64 a; .param .b64 r;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, 0;
    mov.u64 %rd3, 0;
again:
    st.param.b64 [a], 4096;
    call (r), malloc, (a);
    ld.param.b64 %rd2, [r];
    setp.eq.u64 %p1, %rd2, 0;
    @%p1 bra full;
    mov.u64 %rd3, %rd2;
    st.u32 [%rd2], %r1;
    st.u32 [%rd2+4092], %r1;
    add.u32 %r1, %r1, 1;
    bra again;
full:
    st.global.u32 [%rd1], %r1;
    setp.eq.u64 %p1, %rd3, 0;
    @%p1 ret;
    st.param.b64 [a], %rd3;
    call free, (a);
    st.param.b64 [a], 4096;
    call (r), malloc, (a);
    ld.param.b64 %rd2, [r];
    setp.eq.u64 %p2, %rd2, %rd3;
    selp.u32 %r2, 1, 0, %p2;
    st.global.u32 [%rd1+4], %r2;
    ret;
}
"""
)

# One message of 10 bytes for each number below a thousand.
PRINT = (
    HEAD
    + b"""
.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
.global .align 1 .b8 format[11] = {108, 105, 110, 101, 32, 37, 48, 52, 117, 10, 0};
.visible .entry print(.param .u64 out) {
    .local .align 8 .b8 args[8];
    .reg .b64 %rd<4>; .reg .b32 %r<3>; .reg .pred %p1;
    .param .b64 f; .param .b64 a; .param .b32 r;
    mov.u64 %rd1, args;
    cvta.local.u64 %rd2, %rd1;
    mov.u64 %rd3, format;
    cvta.global.u64 %rd3, %rd3;
    mov.u32 %r1, 0;
again:
    st.local.u32 [%rd1], %r1;
    st.param.b64 [f], %rd3;
    st.param.b64 [a], %rd2;
    call (r), vprintf, (f, a);
    add.u32 %r1, %r1, 1;
    setp.lt.u32 %p1, %r1, 1000;
    @%p1 bra again;
    ret;
}
"""
)

# Calls 50 deep, each with 256 bytes of its own, which must be unchanged on return.
RECURSE = (
    HEAD
    + b"""
.func (.reg .b32 sum) down(.reg .b32 depth) {
    .local .align 4 .b8 own[256];
    .reg .b32 %r<5>; .reg .pred %p1;
    st.local.u32 [own], depth;
    st.local.u32 [own+252], depth;
    mov.u32 sum, 0;
    setp.eq.u32 %p1, depth, 0;
    @%p1 ret;
    sub.u32 %r1, depth, 1;
    call (%r2), down, (%r1);
    ld.local.u32 %r3, [own];
    ld.local.u32 %r4, [own+252];
    add.u32 sum, %r2, %r3;
    add.u32 sum, sum, %r4;
    ret;
}
.visible .entry recurse(.param .u64 out) {
    .reg .b64 %rd1; .reg .b32 %r1;
    ld.param.u64 %rd1, [out];
    call (%r1), down, (50);
    st.global.u32 [%rd1], %r1;
    ret;
}
"""
)


def run(text: bytes, kernel: bytes) -> tuple[list[int], str]:
    """Runs a kernel of one thread; returns two words that it wrote, and the status of
    synchronising."""
    status, module, log = load(text)
    assert status == "CUDA_SUCCESS", log
    function, data, words = c_void_p(), c_uint64(), (c_uint32 * 2)()
    must("cuModuleGetFunction", byref(function), module, kernel)
    must("cuMemAlloc_v2", byref(data), c_size_t(8))
    must("cuMemsetD8_v2", data, 0, c_size_t(8))
    assert misuse.launch(function, pointer_argument(data.value)) == "CUDA_SUCCESS"
    status = call("cuCtxSynchronize")
    if status == "CUDA_SUCCESS":
        must("cuMemcpyDtoH_v2", words, data, c_size_t(8))
    return list(words), status


def attribute(number: int) -> int:
    value = c_int()
    must("cuDeviceGetAttribute", byref(value), number, 0)
    return value.value


def limit(which: int, value: int) -> str:
    return call("cuCtxSetLimit", which, c_size_t(value))


def capability() -> None:
    print(f"{attribute(75)}.{attribute(76)}")
    print("threads, blocks of a multiprocessor", attribute(39), attribute(106))
    print("shared memory", attribute(8), attribute(97), attribute(81))
    status, module, log = load(STORE.replace(b"sm_80", b"sm_75"))
    assert status == "CUDA_SUCCESS", log
    function = c_void_p()
    must("cuModuleGetFunction", byref(function), module, b"store")
    binary = c_int()
    must("cuFuncGetAttribute", byref(binary), 6, function)
    print("binary version", binary.value)
    for target in [b"sm_52", b"sm_75", b"sm_80", b"sm_86", b"sm_90", b"sm_90a", b"sm_120"]:
        status, _, log = load(STORE.replace(b"sm_80", target))
        print(target.decode(), status, log)
    status, _, log = load(
        STORE.replace(b"sm_80", b"sm_90").replace(b"mov.u32 %r1, 7;", b"barrier.cluster.arrive.aligned;")
    )
    print("clusters", status, log)


def memory() -> None:
    total, free, data = c_size_t(), c_size_t(), c_uint64()
    must("cuDeviceTotalMem_v2", byref(total), 0)
    print("total", total.value)
    must("cuMemGetInfo_v2", byref(free), byref(total))
    print("info", free.value, total.value)
    print(call("cuMemAlloc_v2", byref(data), c_size_t(total.value)))
    must("cuMemGetInfo_v2", byref(free), byref(total))
    print("left", free.value)
    print(call("cuMemAlloc_v2", byref(data), c_size_t(1)))


def heap() -> None:
    size = c_size_t()
    must("cuCtxGetLimit", byref(size), MALLOC_HEAP_SIZE)
    print("default", size.value)
    print(limit(MALLOC_HEAP_SIZE, 1 << 60), limit(MALLOC_HEAP_SIZE, 1 << 20))
    must("cuCtxGetLimit", byref(size), MALLOC_HEAP_SIZE)
    print("set", size.value)
    print(*run(EXHAUST, b"exhaust"))
    print(limit(MALLOC_HEAP_SIZE, 4 << 20))


def heap_default() -> None:
    print(*run(EXHAUST, b"exhaust"))


def heap_anew() -> None:
    """The heap belongs to the context: another context has another heap."""
    print(limit(MALLOC_HEAP_SIZE, 1 << 20), *run(EXHAUST, b"exhaust"))
    must("cuDevicePrimaryCtxReset_v2", 0)
    context = c_void_p()
    must("cuDevicePrimaryCtxRetain", byref(context), 0)
    must("cuCtxSetCurrent", context)
    print(limit(MALLOC_HEAP_SIZE, 2 << 20), *run(EXHAUST, b"exhaust"))


def heap_of_nothing() -> None:
    print(limit(MALLOC_HEAP_SIZE, 0), *run(EXHAUST, b"exhaust"))


def fifo() -> None:
    print(limit(PRINTF_FIFO_SIZE, 1000), flush=True)
    print(run(PRINT, b"print")[1], flush=True)


def fifo_default() -> None:
    print(run(PRINT, b"print")[1], flush=True)


def stack_default() -> None:
    print(*run(RECURSE, b"recurse"))


def stack_large() -> None:
    print(limit(STACK_SIZE, 50 * 300), *run(RECURSE, b"recurse"))


def stack_small() -> None:
    print(limit(STACK_SIZE, 50 * 200), *run(RECURSE, b"recurse"))


def stack_absurd() -> None:
    print(limit(STACK_SIZE, 1 << 30), limit(STACK_SIZE, 1 << 40))


if __name__ == "__main__":
    context = c_void_p()
    must("cuInit", 0)
    must("cuDevicePrimaryCtxRetain", byref(context), 0)
    must("cuCtxSetCurrent", context)
    globals()[sys.argv[1]]()

"""Uses variables of a module by addresses that a kernel handed out: run as `handed_out.py`.

The program never asks the driver for a variable by its name before it uses the address. Each line of its output
is an answer; a GPU's driver gives the same ones.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from typing import ClassVar

from cuda import call, made, must, primary_context, short

PTX = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .global .align 256 .b8 words[4096];
.visible .global .u32 other = 7;
.visible .const .u32 fixed = 5;
.extern .func (.param .b64 result) malloc (.param .b64 bytes);
.visible .entry give(.param .u64 where)
{
    .reg .b64 %rd<9>;
    ld.param.u64 %rd1, [where];
    mov.u64 %rd2, words;
    cvta.global.u64 %rd2, %rd2;
    st.global.u64 [%rd1], %rd2;
    mov.u64 %rd3, other;
    cvta.global.u64 %rd3, %rd3;
    st.global.u64 [%rd1+8], %rd3;
    mov.u64 %rd4, fixed;
    cvta.const.u64 %rd4, %rd4;
    st.global.u64 [%rd1+16], %rd4;
    mov.u64 %rd5, 64;
    {
    .param .b64 bytes;
    .param .b64 result;
    st.param.b64 [bytes], %rd5;
    call.uni (result), malloc, (bytes);
    ld.param.b64 %rd6, [result];
    }
    st.u32 [%rd6], 11;
    st.global.u64 [%rd1+24], %rd6;
    ret;
}
.visible .entry add(.param .u64 where, .param .u32 more)
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<3>;
    ld.param.u64 %rd1, [where];
    ld.param.u32 %r1, [more];
    ld.u32 %r2, [%rd1];
    add.u32 %r2, %r2, %r1;
    st.u32 [%rd1], %r2;
    ret;
}
"""
# A second module, whose unloading the first one's variables outlive.
SECOND = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .global .u32 gone = 9;
.visible .entry give(.param .u64 where)
{
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [where];
    mov.u64 %rd2, gone;
    cvta.global.u64 %rd2, %rd2;
    st.global.u64 [%rd1], %rd2;
    ret;
}
"""
NULL = c_void_p()
NO_STREAM = c_void_p()
HOST, DEVICE, UNIFIED = 1, 2, 4
MEMORY_TYPE, IS_MANAGED, ORDINAL, RANGE_START, RANGE_BYTES = 2, 8, 9, 11, 12


class Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D"""

    _fields_: ClassVar = [
        *[(name, c_size_t) for name in ("src_x", "src_y")],
        *[("src_type", c_uint32), ("src_host", c_uint64), ("src_device", c_uint64), ("src_array", c_uint64)],
        *[(name, c_size_t) for name in ("src_pitch", "dst_x", "dst_y")],
        *[("dst_type", c_uint32), ("dst_host", c_uint64), ("dst_device", c_uint64), ("dst_array", c_uint64)],
        *[(name, c_size_t) for name in ("dst_pitch", "width", "height")],
    ]


class Copy3D(ctypes.Structure):
    """CUDA_MEMCPY3D"""

    _fields_: ClassVar = [
        *[(name, c_size_t) for name in ("src_x", "src_y", "src_z", "src_lod")],
        *[("src_type", c_uint32), ("src_host", c_uint64), ("src_device", c_uint64), ("src_array", c_uint64)],
        *[(name, c_size_t) for name in ("reserved0", "src_pitch", "src_height")],
        *[(name, c_size_t) for name in ("dst_x", "dst_y", "dst_z", "dst_lod")],
        *[("dst_type", c_uint32), ("dst_host", c_uint64), ("dst_device", c_uint64), ("dst_array", c_uint64)],
        *[(name, c_size_t) for name in ("reserved1", "dst_pitch", "dst_height", "width", "height", "depth")],
    ]


def launch(kernel: c_void_p, *arguments: object) -> None:
    pointers = (c_void_p * len(arguments))(*[ctypes.cast(byref(a), c_void_p) for a in arguments])
    must("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, NO_STREAM, pointers, NULL)


def handed_out(module: c_void_p, count: int) -> list[int]:
    """Returns the addresses that the module's kernel hands out."""
    give = made("cuModuleGetFunction", module, b"give")
    device = c_uint64()
    must("cuMemAlloc_v2", byref(device), c_size_t(64))
    launch(give, device)
    addresses = (c_uint64 * count)()
    must("cuMemcpyDtoH_v2", addresses, device, c_size_t(8 * count))
    must("cuMemFree_v2", device)
    return list(addresses)


class Program:
    def __init__(self) -> None:
        primary_context()
        self.module = made("cuModuleLoadData", PTX)
        self.words, self.other, self.fixed, self.heap = handed_out(self.module, 4)
        self.stream = made("cuStreamCreate", 1)
        self.host = (c_uint32 * 1024)(*range(1024))
        self.back = (c_uint32 * 1024)()

    def fresh(self) -> None:
        """Loads the module again, so that no address in it is known."""
        must("cuModuleUnload", self.module)
        self.module = made("cuModuleLoadData", PTX)
        self.words, self.other, self.fixed, self.heap = handed_out(self.module, 4)
        ctypes.memset(self.back, 0, 4096)

    def fill(self) -> None:
        must("cuMemcpyHtoD_v2", c_uint64(self.words), self.host, c_size_t(4096))

    def seen(self, status: str) -> str:
        must("cuCtxSynchronize")
        return f"{short(status)} {self.back[0]} {self.back[1]} {self.back[1023]}"

    def to_device(self) -> str:
        status = call("cuMemcpyHtoD_v2", c_uint64(self.words), self.host, c_size_t(4096))
        must("cuMemcpyDtoH_v2", self.back, c_uint64(self.words), c_size_t(4096))
        return self.seen(status)

    def to_host(self) -> str:
        return self.seen(call("cuMemcpyDtoH_v2", self.back, c_uint64(self.other), c_size_t(4)))

    def unified(self) -> str:
        host, back = (c_uint64(ctypes.addressof(memory)) for memory in (self.host, self.back))
        first = call("cuMemcpy", c_uint64(self.words), host, c_size_t(4096))
        return f"{short(first)} {self.seen(call('cuMemcpy', back, c_uint64(self.words), c_size_t(4096)))}"

    def unified_on_stream(self) -> str:
        back = c_uint64(ctypes.addressof(self.back))
        return self.seen(call("cuMemcpyAsync", back, c_uint64(self.other), c_size_t(4), self.stream))

    def on_stream(self) -> str:
        words, bytes_ = c_uint64(self.words), c_size_t(4096)
        first = call("cuMemcpyHtoDAsync_v2", words, self.host, bytes_, self.stream)
        return f"{short(first)} {self.seen(call('cuMemcpyDtoHAsync_v2', self.back, words, bytes_, self.stream))}"

    def within_device(self) -> str:
        first = call("cuMemcpyDtoD_v2", c_uint64(self.words), c_uint64(self.other), c_size_t(4))
        return f"{short(first)} {self.seen(call('cuMemcpyDtoH_v2', self.back, c_uint64(self.words), c_size_t(4)))}"

    def set(self) -> str:
        first = call("cuMemsetD32_v2", c_uint64(self.words), 3, c_size_t(1024))
        second = call("cuMemsetD8Async", c_uint64(self.words + 4), 1, c_size_t(4), self.stream)
        must("cuCtxSynchronize")
        must("cuMemcpyDtoH_v2", self.back, c_uint64(self.words), c_size_t(4096))
        return self.seen(f"{short(first)} {short(second)}")

    def rows(self) -> str:
        copy = Copy2D(src_type=UNIFIED, src_device=self.words, src_pitch=64, dst_type=HOST)
        copy.dst_host, copy.dst_pitch, copy.width, copy.height = ctypes.addressof(self.back), 8, 8, 16
        self.fill()
        must("cuModuleUnload", made("cuModuleLoadData", SECOND))
        status = call("cuMemcpy2D_v2", byref(copy))
        return f"{self.seen(status)} {self.back[2]} {self.back[31]}"

    def rows_to_device(self) -> str:
        copy = Copy2D(src_type=HOST, src_host=ctypes.addressof(self.host), src_pitch=8, dst_type=DEVICE)
        copy.dst_device, copy.dst_pitch, copy.width, copy.height = self.words, 64, 8, 16
        status = call("cuMemcpy2DAsync_v2", byref(copy), self.stream)
        must("cuStreamSynchronize", self.stream)
        must("cuMemcpyDtoH_v2", self.back, c_uint64(self.words), c_size_t(4096))
        return f"{self.seen(status)} {self.back[16]} {self.back[17]}"

    def node(self) -> str:
        graph = made("cuGraphCreate", 0)
        copy = Copy3D(src_type=DEVICE, src_device=self.words, dst_type=HOST, dst_host=ctypes.addressof(self.back))
        copy.width, copy.height, copy.depth = 4096, 1, 1
        self.fill()
        must("cuModuleUnload", made("cuModuleLoadData", SECOND))
        context = c_void_p()
        must("cuCtxGetCurrent", byref(context))
        node = c_void_p()
        status = call("cuGraphAddMemcpyNode", byref(node), graph, NULL, c_size_t(0), byref(copy), context)
        made_exec = made("cuGraphInstantiateWithFlags", graph, c_uint64(0))
        must("cuGraphLaunch", made_exec, NO_STREAM)
        return self.seen(status)

    def captured(self) -> str:
        self.fill()
        must("cuModuleUnload", made("cuModuleLoadData", SECOND))
        must("cuStreamBeginCapture_v2", self.stream, 0)
        words, bytes_ = c_uint64(self.words), c_size_t(4096)
        status = call("cuMemcpyDtoHAsync_v2", self.back, words, bytes_, self.stream)
        graph = c_void_p()
        must("cuStreamEndCapture", self.stream, byref(graph))
        made_exec = made("cuGraphInstantiateWithFlags", graph, c_uint64(0))
        must("cuGraphLaunch", made_exec, NO_STREAM)
        return self.seen(status)

    def attributes(self) -> str:
        kind, managed, device = c_uint32(99), c_uint32(99), c_int(99)
        status = call("cuPointerGetAttribute", byref(kind), MEMORY_TYPE, c_uint64(self.words + 8))
        start, length = c_uint64(), c_size_t()
        which = (c_uint32 * 4)(IS_MANAGED, ORDINAL, RANGE_START, RANGE_BYTES)
        places = (c_void_p * 4)(*[ctypes.addressof(a) for a in (managed, device, start, length)])
        second = call("cuPointerGetAttributes", 4, which, places, c_uint64(self.words + 8))
        holds = start.value <= self.words and start.value + length.value >= self.words + 4096
        return f"{short(status)} {kind.value} {short(second)} {managed.value} {device.value} {holds}"

    def range(self) -> str:
        start, length = c_uint64(), c_size_t()
        status = call("cuMemGetAddressRange_v2", byref(start), byref(length), c_uint64(self.words + 8))
        return f"{short(status)} {start.value <= self.words and start.value + length.value >= self.words + 4096}"

    def word(self) -> str:
        first = call("cuStreamWriteValue32_v2", self.stream, c_uint64(self.other), 13, 0)
        must("cuStreamSynchronize", self.stream)
        return f"{short(first)} {self.to_host()}"

    def constant(self) -> str:
        status = call("cuMemcpyDtoH_v2", self.back, c_uint64(self.fixed), c_size_t(4))
        kind = c_uint32()
        second = call("cuPointerGetAttribute", byref(kind), MEMORY_TYPE, c_uint64(self.fixed))
        return f"{self.seen(status)} {short(second)} {kind.value}"

    def constant_attributes(self) -> str:
        kind = c_uint32()
        second = call("cuPointerGetAttribute", byref(kind), MEMORY_TYPE, c_uint64(self.fixed))
        return f"{short(second)} {kind.value}"

    def by_name_too(self) -> str:
        must("cuMemcpyDtoH_v2", self.back, c_uint64(self.words), c_size_t(4096))
        address, length = c_uint64(), c_size_t()
        must("cuModuleGetGlobal_v2", byref(address), byref(length), self.module, b"words")
        first = f"{address.value == self.words} {length.value}"
        return f"{first} {self.seen(call('cuMemcpyDtoH_v2', self.back, c_uint64(self.other), c_size_t(4)))}"

    def unloaded(self) -> str:
        second = made("cuModuleLoadData", SECOND)
        [gone] = handed_out(second, 1)
        first = self.seen(call("cuMemcpyDtoH_v2", self.back, c_uint64(gone), c_size_t(4)))
        must("cuModuleUnload", second)
        after = call("cuMemcpyDtoH_v2", self.back, c_uint64(gone), c_size_t(4))
        return f"{first} {'refused' if after != 'CUDA_SUCCESS' else 'taken'} {self.to_host()}"

    def of_heap(self) -> str:
        """Memory that a kernel allocated: copies by the host do not take it."""
        first = short(call("cuMemcpyDtoH_v2", self.back, c_uint64(self.heap), c_size_t(4)))
        kind = c_uint32()
        second = call("cuPointerGetAttribute", byref(kind), MEMORY_TYPE, c_uint64(self.heap))
        return f"{first} {short(second)} {kind.value}"

    def kernels_see_it(self) -> str:
        must("cuMemcpyHtoD_v2", c_uint64(self.words), self.host, c_size_t(4096))
        launch(made("cuModuleGetFunction", self.module, b"add"), c_uint64(self.words + 4), c_uint32(40))
        return self.seen(call("cuMemcpyDtoH_v2", self.back, c_uint64(self.words), c_size_t(4096)))


PARTS: list[Callable[[Program], str]] = [
    Program.to_device,
    Program.to_host,
    Program.unified,
    Program.unified_on_stream,
    Program.on_stream,
    Program.within_device,
    Program.set,
    Program.rows,
    Program.rows_to_device,
    Program.node,
    Program.captured,
    Program.attributes,
    Program.range,
    Program.word,
    Program.constant_attributes,
    Program.constant,
    Program.by_name_too,
    Program.unloaded,
    Program.of_heap,
    Program.kernels_see_it,
]


def main() -> None:
    program = Program()
    for part in PARTS:
        program.fresh()
        try:
            answer = part(program)
        except AssertionError as error:
            answer = str(error)
        print(f"{part.__name__}: {answer}", flush=True)


if __name__ == "__main__":
    main()

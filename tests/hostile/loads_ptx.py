"""Loads changed PTX texts, and runs a kernel of every text that is taken: `loads_ptx.py SEED COUNT FILE`.

Prints how many were refused, were taken, and ran with an error; the context of such a run is made again. A text may ask
for anything, so no result is judged; an unchanged text must give its own at the end."""

from __future__ import annotations

import ctypes
import random
import re
import sys
from collections import Counter
from ctypes import byref, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path

from cuda import lib, must, name, primary_context

KNOWN = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry writes(.param .u64 at) {
    .reg .u64 %p;
    ld.param.u64 %p, [at];
    cvta.to.global.u64 %p, %p;
    st.global.u32 [%p], 7;
    ret;
}
"""
CHANGED_MAX = 4


def changed(text: bytes, choice: random.Random) -> bytes:
    """Changes some bytes, words or lines of a text."""
    for _ in range(choice.randint(1, CHANGED_MAX)):
        way = choice.randrange(4)
        if way == 0:
            at = choice.randrange(len(text))
            text = text[:at] + bytes([choice.randrange(256)]) + text[at + 1 :]
        elif way == 1:
            lines = text.split(b"\n")
            from_line, to_line = choice.randrange(len(lines)), choice.randrange(len(lines))
            lines[to_line] = lines[from_line]
            text = b"\n".join(lines)
        elif way == 2:
            numbers = list(re.finditer(rb"\d+", text))
            number = choice.choice(numbers)
            new = choice.choice([b"0", b"4294967295", b"18446744073709551615", b"1", b"64", b"1000000"])
            text = text[: number.start()] + new + text[number.end() :]
        else:
            cut = choice.randrange(len(text))
            text = text[:cut] + text[cut + choice.randint(1, 40) :]
    return text


def run(module: c_void_p, names: list[str], memory: c_uint64) -> int:
    """Launches a kernel of a module with pointers to the same memory; returns the first error."""
    pointers = [c_uint64(memory.value) for _ in range(8)]
    arguments = (c_void_p * 8)(*[ctypes.addressof(pointer) for pointer in pointers])
    for kernel in names[:1]:
        function = c_void_p()
        if lib.cuModuleGetFunction(byref(function), module, kernel.encode()) != 0:
            continue
        one = [c_uint(1)] * 6
        status = lib.cuLaunchKernel(function, *one, c_uint(0), c_void_p(), arguments, c_void_p())
        status = status or lib.cuCtxSynchronize()
        if status:
            return int(status)
    return 0


def main(seed: int, count: int, path: Path) -> None:
    choice = random.Random(seed)
    texts = [KNOWN, *(b".version" + part for part in path.read_bytes().split(b".version")[1:])]
    primary_context()
    memory, word = c_uint64(), c_uint()
    must("cuMemAlloc_v2", byref(memory), c_size_t(1 << 20))
    seen: Counter[str] = Counter()
    for _ in range(count):
        text = changed(choice.choice(texts), choice)
        module = c_void_p()
        status = lib.cuModuleLoadData(byref(module), text + b"\0")
        if status:
            seen["refused"] += 1
            assert name(status) != "CUDA_ERROR_DEVICE_UNAVAILABLE", text.decode(errors="replace")
            continue
        kernels = re.findall(r"\.entry\s+(\w+)", text.decode(errors="replace"))
        # An endless loop would be one of the text's own: only texts without a branch run.
        if b"bra" in text or b"brx" in text or b"call" in text:
            seen["taken"] += 1
            must("cuModuleUnload", module)
            continue
        status = run(module, kernels, memory)
        seen["failed" if status else "ran"] += 1
        assert name(status) != "CUDA_ERROR_DEVICE_UNAVAILABLE", text.decode(errors="replace")
        if status:
            # What failed may have cost the context.
            lib.cuDevicePrimaryCtxReset_v2(0)
            primary_context()
            must("cuMemAlloc_v2", byref(memory), c_size_t(1 << 20))
        else:
            must("cuModuleUnload", module)
    module = c_void_p()
    must("cuModuleLoadData", byref(module), KNOWN + b"\0")
    assert run(module, ["writes"], memory) == 0
    must("cuMemcpyDtoH_v2", byref(word), memory, c_size_t(4))
    assert word.value == 7
    print(dict(seen))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))

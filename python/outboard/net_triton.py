"""Calls of net.cuh for kernels that Triton compiles.

    calls = net_triton.calls()                             # compiled by clang, once
    queue_there = net_triton.to_device(queue)

    @triton.jit
    def kernel(queue, to, to_key, at, key, size):
        said = calls.put(queue, to, to_key, at, key, size, 1_000_000)
        if said >> 63 == 0: ...                            # else FAILED, and below it what failed

    kernel[(1,)](queue_there, ..., extern_libs=calls.extern_libs)

A call is one operation of a whole program, which is a block of threads that make it together: so it takes scalars, and
no tensors. include/outboard/net_calls.cu says which calls there are, and explains them. All are unsigned numbers, and
are made so: 64 bits, and 32 of keys; a pointer is its address.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import triton.language as tl
from triton.language import core

from . import OutboardError
from ._net_calls import FAILED, PREFIX, compiled, declared
from .net import Queue

__all__ = ["FAILED", "calls", "to_device"]

# Of the calls those that a whole block makes.
_SUFFIX = "_block"
_KINDS = {64: tl.uint64, 32: tl.uint32}


def calls(bitcode: str | os.PathLike[str] | None = None, *, clang: str | os.PathLike[str] | None = None) -> ModuleType:
    """Declares the calls by their names, and `extern_libs`, which a launch takes. The bitcode is compiled by clang
    (that of the PATH, or OUTBOARD_CLANG), or given, with its PTX beside it."""
    library, ptx = (Path(bitcode), Path(bitcode).with_suffix(".ptx")) if bitcode is not None else compiled(clang)
    # Of a module's names Triton knows that they stay.
    module = ModuleType("outboard.net_calls")
    for name, bits in declared(ptx).items():
        if name.endswith(_SUFFIX):
            setattr(module, name.removesuffix(_SUFFIX), _declare(name, tuple(_KINDS[width] for width in bits)))
    module.extern_libs = {"outboard_net": os.fspath(library)}  # type: ignore[attr-defined]
    return module


def to_device(queue: Queue) -> Any:
    """Copies a queue's structure to the GPU: a tensor that kernels take for the queue."""
    import torch

    return torch.frombuffer(bytearray(queue.exported), dtype=torch.uint8).cuda()


def _declare(name: str, kinds: tuple[tl.dtype, ...]) -> Callable[..., Any]:
    def call(*args: Any, _semantic: Any = None) -> Any:
        if len(args) != len(kinds):
            raise OutboardError(f"{name.removesuffix(_SUFFIX)} takes {len(kinds)} arguments, and was given {len(args)}")
        values = [_semantic.to_tensor(arg) for arg in args]
        if any(value.type.is_block() for value in values):
            raise OutboardError(f"{name.removesuffix(_SUFFIX)} takes scalars: it is one operation of a whole program")
        values = [tl.cast(value, kind, _semantic=_semantic) for value, kind in zip(values, kinds, strict=True)]
        symbols = {kinds: (PREFIX + name, tl.uint64)}
        return core.extern_elementwise("outboard_net", "", values, symbols, is_pure=False, _semantic=_semantic)

    call.__name__ = name.removesuffix(_SUFFIX)
    return core.extern(call)

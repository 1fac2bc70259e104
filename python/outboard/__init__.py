"""Tells Outboard's recorder what a program is doing.

    import outboard

    for batch in batches:
        with outboard.mark("iteration"):
            train(batch)

The program runs as ever where nothing is recorded: all of this does nothing then. Ranges with `iteration` in their
name, or those named by `outboard run --record FILE --iterations NAME`, are what `outboard trace` takes as iterations.
"""

from __future__ import annotations

import ctypes
from types import TracebackType

__all__ = ["begin", "end", "mark"]

LIBRARY = "libcuda.so.1"


def _find() -> object | None:
    """Finds the recorder's function in the libcuda.so.1 that the program uses, if that is
    Outboard's."""
    try:
        function = ctypes.CDLL(LIBRARY).outboard_mark
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_char_p, ctypes.c_int]
    function.restype = None
    return function


_mark = _find()


def begin(name: str) -> None:
    """Begins the range `name` on this thread."""
    if _mark is not None:
        _mark(name.encode(errors="replace").replace(b"\\0", b"?"), 0)  # type: ignore[operator]


def end(name: str) -> None:
    """Ends the range `name` on this thread."""
    if _mark is not None:
        _mark(name.encode(errors="replace").replace(b"\\0", b"?"), 1)  # type: ignore[operator]


class mark:  # noqa: N801 - used like a function
    """A range: `with outboard.mark("iteration"):`"""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> mark:
        begin(self.name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end(self.name)

"""Uses the GPU of a server, and tells Outboard's recorder what a program is doing.

    import outboard

    outboard.use("tcp://gpu-box")        # before torch is imported
    import torch

    with outboard.session(None, "--device", "soft") as address:
        subprocess.run(["python", "train.py"])

    for batch in batches:
        with outboard.mark("iteration"):
            train(batch)

Marks do nothing where nothing is recorded. Ranges with `iteration` in their name, or those named by `outboard run
--record FILE --iterations NAME`, are what `outboard trace` takes as iterations.
"""

from __future__ import annotations

import ctypes
from types import TracebackType

from ._use import OutboardError, environment, session, use

__all__ = ["OutboardError", "begin", "end", "environment", "mark", "session", "use"]

LIBRARY = "libcuda.so.1"

# The recorder's function, once it was looked for: importing this module loads no driver.
_function: object | None = None
_is_found = False


def _mark(name: str, is_end: int) -> None:
    """Calls the recorder's function in the libcuda.so.1 that the program uses, if that is Outboard's."""
    global _function, _is_found
    if not _is_found:
        _is_found = True
        try:
            function = ctypes.CDLL(LIBRARY).outboard_mark
            function.argtypes = [ctypes.c_char_p, ctypes.c_int]
            function.restype = None
            _function = function
        except (OSError, AttributeError):
            _function = None
    if _function is not None:
        _function(name.encode(errors="replace").replace(b"\0", b"?"), is_end)  # type: ignore[operator]


def begin(name: str) -> None:
    """Begins the range `name` on this thread."""
    _mark(name, 0)


def end(name: str) -> None:
    """Ends the range `name` on this thread."""
    _mark(name, 1)


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

"""Endpoints whose queues a kernel posts to (docs/net.md): tensors in, a queue out.

    from outboard import net

    with net.Endpoint() as endpoint:
        queue = endpoint.queue()
        outbox = endpoint.register(torch.zeros(512).pin_memory())
        inbox = endpoint.register(torch.zeros(512).pin_memory(), net.REMOTE_WRITE)
        there = queue.meet("127.0.0.1:7000", listens=True, offers=inbox)
        launch(kernel, queue.exported, outbox.address, outbox.key, there.address, there.key)

The adapter is one in software in this process: it reads and writes host memory, so tensors are pinned or ordinary ones
of the host, and memory of a GPU is refused. Kernels reach what is pinned and mapped. Under `outboard run` over tcp or
rdma it is where the GPU is (`Endpoint.place`), and takes pinned memory, and of the software device a GPU's. With
`Endpoint(provider="nvlink")` kernels load and store themselves, and memory of a GPU is taken, too, as it is by RDMA
devices (`mlx5`, `proxy`).
"""

from __future__ import annotations

import ctypes
import os
import re
import weakref
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_int, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from ._use import OutboardError

__all__ = [
    "EXCLUSIVE",
    "LOCAL_WRITE",
    "PATIENT",
    "PLAIN",
    "REMOTE_ATOMIC",
    "REMOTE_READ",
    "REMOTE_WRITE",
    "UNRELIABLE",
    "Endpoint",
    "Exported",
    "Memory",
    "Queue",
    "Status",
    "Window",
    "span",
]

LIBRARY = "liboutboard_net.so"
# OUTBOARD_NET_VERSION of include/outboard/net.h.
VERSION = 2
# Flags of a queue, and what a key allows: include/outboard/net.h.
PLAIN, PATIENT, EXCLUSIVE, UNRELIABLE = 1, 2, 4, 32
LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC = 1, 2, 4, 8
EVERYTHING = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC
LISTENS, ANYWHERE = 1, 2
MEET_MS = 30_000
# cuMemHostAlloc's portable and mapped, and the question about an address.
HOST_FLAGS = 1 | 2
MEMORY_TYPE, OF_DEVICE = 2, 2
# CUDA_ERROR_NOT_INITIALIZED and CUDA_ERROR_INVALID_CONTEXT.
NO_CONTEXT = (3, 201)
DLPACK_HOST, DLPACK_GPU = (1, 3), (2, 13)  # kDLCPU, kDLCUDAHost; kDLCUDA, kDLCUDAManaged
DLPACK_VERSIONED, DLPACK_READ_ONLY = b"dltensor_versioned", 1
CONSTANT = "an array that may not be written: register it for reading alone, by access=net.REMOTE_READ"
# Bytes of an element, as the text of an array's type has them; of texts, characters of four bytes.
_TYPE = re.compile(r"[<>|=]([a-zA-Z])(\d+)(?:\[|$)")
TEXT_BYTES = 4
OF_GPU = "this tensor is in a GPU's memory, which the adapter in software does not reach: pin it"


class _Shown(ctypes.Structure):
    """A structure that prints as its fields."""

    _fields_: ClassVar = []

    def __repr__(self) -> str:
        of = ", ".join(f"{name}={getattr(self, name):#x}" for name, _ in self._fields_ if name != "reserved")
        return f"{type(self).__name__}({of})"


class Exported(_Shown):
    """`outboard_net_queue`: what a kernel takes by value."""

    _fields_: ClassVar = [
        *((name, c_uint64) for name in ("ring", "record", "doorbell", "completion", "counters", "filled", "scratch")),
        *((name, c_uint64) for name in ("receives", "receive_completions")),
        *((name, c_uint32) for name in ("scratch_key", "qpn", "log_blocks", "log_receives", "signal_every", "flags")),
    ]


class _QueueOptions(ctypes.Structure):
    _fields_: ClassVar = [
        *((name, c_uint32) for name in ("log_blocks", "log_receives", "signal_every", "flags")),
        ("counters", c_uint64),
    ]


class _Options(ctypes.Structure):
    _fields_: ClassVar = [
        *((name, c_uint64) for name in ("seed", "delay_ns_min", "delay_ns_max", "bytes_per_s")),
        *((name, c_uint32) for name in ("loss_ppm", "provider")),
    ]


class Status(_Shown):
    """`outboard_net_status`: counts since the last reset, and the entry that failed first."""

    _fields_: ClassVar = [
        *((name, c_uint64) for name in ("succeeded", "flushed", "retries")),
        *((name, c_uint32) for name in ("failed_index", "syndrome")),
    ]


class Window(_Shown):
    """`outboard_net_window`: memory that a process offers to the other."""

    _fields_: ClassVar = [("address", c_uint64), ("bytes", c_uint64), ("key", c_uint32), ("reserved", c_uint32)]


class _Layout(ctypes.Structure):
    """`outboard_net_layout`: what this module was written for."""

    _fields_: ClassVar = [
        (name, c_uint32)
        for name in ("version", "queue_bytes", "queue_options_bytes", "options_bytes", "status_bytes", "window_bytes")
    ]


@dataclass(frozen=True)
class Memory:
    """Registered memory, which stays as long as this does."""

    address: int
    bytes: int
    key: int
    of: object

    @property
    def window(self) -> Window:
        return Window(self.address, self.bytes, self.key, 0)


class Queue:
    """A queue of an endpoint. `exported` is for kernels, by value."""

    def __init__(self, endpoint: Endpoint, exported: Exported) -> None:
        self._endpoint = endpoint
        self.exported = exported
        # A program that launches kernels with it keeps the endpoint open.
        exported.endpoint = endpoint

    def connect(self, other: Queue) -> None:
        """Connects two queues of one endpoint."""
        if other._endpoint is not self._endpoint:
            raise OutboardError("the other queue is of another endpoint: use meet")
        self._endpoint._call("outboard_net_connect", c_uint32(self.exported.qpn), c_uint32(other.exported.qpn))

    def meet(
        self,
        address: str,
        *,
        listens: bool,
        offers: Memory | None = None,
        timeout_ms: int = MEET_MS,
        anywhere: bool = False,
    ) -> Window:
        """Connects the queue to one of another process; returns what that offers. One of the two listens at the
        address, `127.0.0.1:PORT`. Of `nvlink` both offer a GPU's memory, or nothing. With `anywhere` it may be of
        another machine: whoever reaches it can be the other."""
        mine = offers.window if offers else Window()
        theirs = Window()
        how = (LISTENS if listens else 0) | (ANYWHERE if anywhere else 0)
        arguments = (address.encode(), c_int(how), c_uint32(_fits(timeout_ms, 32)), byref(mine), byref(theirs))
        self._endpoint._call("outboard_net_meet", c_uint32(self.exported.qpn), *arguments)
        return theirs

    @property
    def way(self) -> str | None:
        """How entries reach the other process, `shm`, `tcp` or `verbs`; nothing before `meet`, and of `nvlink`."""
        said = self._endpoint._library.outboard_net_way_of
        said.restype = ctypes.c_char_p
        way: bytes | None = said(self._endpoint._adapter.net, c_uint32(self.exported.qpn))
        return way.decode() if way else None

    def rouse(self) -> None:
        """Wakes the adapter in software, or the proxy's thread, before a kernel posts, whose post wakes nobody."""
        self._endpoint._library.outboard_net_rouse(c_uint64(self.exported.doorbell))

    def reset(self) -> None:
        """Puts the queue back after a failure: tickets from before are stale, and it has to be connected again."""
        self._endpoint._call("outboard_net_reset", c_uint32(self.exported.qpn))

    def status(self) -> Status:
        status = Status()
        self._endpoint._call("outboard_net_status_of", c_uint32(self.exported.qpn), byref(status))
        return status


class _Adapter:
    """What an endpoint has open, which outlives it until it is closed: its thread reads memory that is kept here."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.net = c_void_p()
        self.free: list[Callable[[], None]] = []
        self.kept: list[object] = []
        self.process = os.getpid()

    def close(self) -> None:
        if os.getpid() != self.process:
            # A forked child has not the thread, and would wait for its end.
            return
        net, self.net = self.net, c_void_p()
        if net:
            self.library.outboard_net_close(net)
        while self.free:
            self.free.pop()()
        self.kept.clear()


class Endpoint:
    """Memory and queues of one provider: `auto`, or by name. Of `nic`, the adapter in software and its thread, loss,
    delay and bandwidth are those between the endpoint's own queues. Closed by `close`, with its block, or when nobody
    refers to it and to its queues any more, at the latest with the program."""

    def __init__(
        self,
        *,
        seed: int = 0,
        loss_ppm: int = 0,
        delay_ns: tuple[int, int] = (0, 0),
        bytes_per_s: int = 0,
        provider: str = "auto",
        library: str | os.PathLike[str] | None = None,
    ) -> None:
        if not isinstance(provider, str):
            raise TypeError(f"a provider is named by a text, as auto or nic, and not by {provider!r}")
        if "\0" in provider:
            raise ValueError(f"{provider!r} is no provider's name")
        self._library = _loaded(library)
        self._adapter = _Adapter(self._library)
        weakref.finalize(self, self._adapter.close)
        shortest, longest = delay_ns
        number = c_uint32()
        self._said(self._library.outboard_net_provider_named(provider.encode(), byref(number)))
        options = _filled(
            _Options,
            seed=seed,
            delay_ns_min=shortest,
            delay_ns_max=longest,
            bytes_per_s=bytes_per_s,
            loss_ppm=loss_ppm,
            provider=number.value,
        )
        layout = _Layout(VERSION, *map(ctypes.sizeof, (Exported, _QueueOptions, _Options, Status, Window)))
        self._said(self._library.outboard_net_open_as(byref(layout), byref(options), byref(self._adapter.net)))

    @property
    def provider(self) -> str:
        if not self._adapter.net:
            raise OutboardError("the endpoint is closed")
        return self._library.outboard_net_provider_of(self._adapter.net).decode()

    @property
    def place(self) -> str:
        """`server` if it is where the GPU is, of a program under `outboard run` over tcp or rdma, else `program`. Known
        from the first queue or registration on."""
        if not self._adapter.net:
            raise OutboardError("the endpoint is closed")
        return self._library.outboard_net_place_of(self._adapter.net).decode()

    def queue(
        self,
        log_entries: int = 6,
        log_receives: int = 0,
        *,
        signal_every: int = 1,
        flags: int = 0,
        memory: Any = None,
    ) -> Queue:
        """Makes a queue of 2^log_entries entries and, if that is not 0, 2^log_receives receives, in memory that is
        pinned and mapped: the driver's, or that of a tensor."""
        options = _filled(
            _QueueOptions, log_blocks=log_entries, log_receives=log_receives, signal_every=signal_every, flags=flags
        )
        needed = self._library.outboard_net_queue_bytes(byref(options))
        address, size = span(memory) if memory is not None else (self._pinned(needed), needed)
        exported = Exported()
        self._call("outboard_net_queue_create", c_void_p(address), c_uint64(size), byref(options), byref(exported))
        self._adapter.kept.append(memory)
        return Queue(self, exported)

    def register(self, of: Any, access: int = EVERYTHING) -> Memory:
        """Registers the memory of a tensor or an array, by `data_ptr()`, `__cuda_array_interface__`, DLPack or as a
        buffer. An array that may not be written is taken for reading alone: `net.REMOTE_READ`, or 0."""
        is_written = access & ~REMOTE_READ != 0
        address, size = span(of, of_gpu=True, is_written=is_written)
        key = c_uint32()
        numbers = (c_void_p(address), c_uint64(size), c_uint32(_fits(access, 32)), byref(key))
        try:
            self._call("outboard_net_register", *numbers)
        except OutboardError as error:
            if self.provider == "nic" and self.place == "program" and _is_of_device(address):
                raise OutboardError(OF_GPU) from error
            raise
        self._adapter.kept.append(of)
        return Memory(address, size, key.value, of)

    def close(self) -> None:
        """Stops the adapter. No kernel may use its queues any more."""
        self._adapter.close()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _pinned(self, size: int) -> int:
        try:
            driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise OutboardError(f"a queue lies in memory of the driver, or in that of memory=: {error}") from error
        at = c_void_p()
        status = driver.cuMemHostAlloc(byref(at), ctypes.c_size_t(size), c_uint32(HOST_FLAGS))
        if status in NO_CONTEXT:
            raise OutboardError(
                "a queue lies in memory that the driver pins, and this thread has no context of CUDA yet: make one "
                "first, as torch.ones(1).cuda() or numba.cuda.current_context() do, or give pinned memory=..."
            )
        if status != 0 or at.value is None:
            raise OutboardError(f"cuMemHostAlloc of {size} bytes for a queue: error {status}")
        ctypes.memset(at, 0, size)
        self._adapter.free.append(lambda: driver.cuMemFreeHost(at))
        return at.value

    def _call(self, function: str, *arguments: Any) -> None:
        if not self._adapter.net:
            raise OutboardError(f"{function}: the endpoint is closed")
        self._said(getattr(self._library, function)(self._adapter.net, *arguments))

    def _said(self, status: int) -> None:
        if status != 0:
            raise OutboardError(self._library.outboard_net_message().decode(errors="replace"))


def _fits(number: int, bits: int) -> int:
    """The number, which ctypes would cut down to its bits in silence."""
    if not 0 <= number < 1 << bits:
        raise ValueError(f"{number} is no unsigned number of {bits} bits")
    return number


def _filled(kind: type[ctypes.Structure], **fields: int) -> ctypes.Structure:
    sizes = {name: 8 * ctypes.sizeof(of) for name, of, *_ in kind._fields_}
    return kind(**{name: _fits(number, sizes[name]) for name, number in fields.items()})


def span(of: Any, *, of_gpu: bool = False, is_written: bool = True) -> tuple[int, int]:
    """The address and the bytes of a tensor's memory, which has to be in one piece, and of the host unless `of_gpu`.
    What may not be written is refused, unless nobody is to write it."""
    address, size = _span(of, of_gpu, is_written)
    if size > 0 and not of_gpu and _is_of_device(address):
        raise OutboardError(OF_GPU)
    return address, size


def _span(of: Any, of_gpu: bool, is_written: bool) -> tuple[int, int]:
    if hasattr(of, "data_ptr"):
        if not of.is_contiguous():
            raise ValueError("a tensor that is not contiguous")
        return of.data_ptr(), of.numel() * of.element_size()
    for name in ("__cuda_array_interface__", "__array_interface__"):
        if interface := getattr(of, name, None):
            return _span_of_array(interface, is_written)
    if hasattr(of, "__dlpack__"):
        return _span_of_dlpack(of, of_gpu, is_written)
    try:
        view = memoryview(of)
    except TypeError as error:
        kind = type(of).__name__
        raise TypeError(f"a {kind} is no tensor, array or buffer: its memory has no one place") from error
    if (view.readonly and is_written) or not view.c_contiguous:
        raise ValueError("a buffer that cannot be written, or is not contiguous")
    return _address_of_buffer(view), view.nbytes


class _Buffer(ctypes.Structure):
    """`Py_buffer`, whose later fields are not read."""

    _fields_: ClassVar = [("data", c_void_p), ("rest", c_void_p * 16)]


def _address_of_buffer(view: memoryview) -> int:
    buffer = _Buffer()
    get, release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
    get.argtypes, release.argtypes, release.restype = [ctypes.py_object, c_void_p, c_int], [c_void_p], None
    get(view, byref(buffer), 0)
    address = buffer.data or 0
    release(byref(buffer))
    return address


def _span_of_array(interface: dict[str, Any], is_written: bool) -> tuple[int, int]:
    found = _TYPE.match(interface["typestr"])
    if found is None or found[1] == "O":
        raise TypeError(f"an array of {interface['typestr']}, whose elements are objects of Python or have no size")
    address, is_constant = interface["data"]
    if is_constant and is_written:
        raise ValueError(CONSTANT)
    size = int(found[2]) * (TEXT_BYTES if found[1] == "U" else 1)
    expected = []
    for extent in reversed(interface["shape"]):
        expected.append(size)
        size *= extent
    strides = interface.get("strides")
    if strides is not None and size > 0 and tuple(strides) != tuple(reversed(expected)):
        raise ValueError("an array that is not contiguous")
    return address, size


class _DlTensor(ctypes.Structure):
    _fields_: ClassVar = [
        ("data", c_void_p),
        ("device_type", c_int),
        ("device_id", c_int),
        ("ndim", c_int),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", POINTER(ctypes.c_int64)),
        ("strides", POINTER(ctypes.c_int64)),
        ("byte_offset", c_uint64),
    ]


class _DlVersioned(ctypes.Structure):
    _fields_: ClassVar = [
        ("version", c_uint32 * 2),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _DlTensor),
    ]


def _dl_tensor(of: Any) -> tuple[Any, _DlTensor, bool]:
    """The capsule, which frees itself, since nobody takes it; its tensor, and whether that may not be written, which
    the older form does not say."""
    try:
        capsule = of.__dlpack__(max_version=(1, 0))
    except TypeError:
        capsule = of.__dlpack__()
    api = ctypes.pythonapi
    api.PyCapsule_IsValid.argtypes = [ctypes.py_object, c_char_p]
    pointer = api.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = c_void_p, [ctypes.py_object, c_char_p]
    if not api.PyCapsule_IsValid(capsule, DLPACK_VERSIONED):
        return capsule, _DlTensor.from_address(pointer(capsule, b"dltensor")), False
    versioned = _DlVersioned.from_address(pointer(capsule, DLPACK_VERSIONED))
    return capsule, versioned.tensor, versioned.flags & DLPACK_READ_ONLY != 0


def _span_of_dlpack(of: Any, of_gpu: bool, is_written: bool) -> tuple[int, int]:
    _capsule, tensor, is_constant = _dl_tensor(of)
    if is_constant and is_written:
        raise ValueError(CONSTANT)
    if tensor.device_type not in (*DLPACK_HOST, *(DLPACK_GPU if of_gpu else ())):
        raise OutboardError(OF_GPU)
    size = (tensor.bits * tensor.lanes + 7) // 8
    count = 1
    for axis in reversed(range(tensor.ndim)):
        if tensor.strides and tensor.shape[axis] > 1 and tensor.strides[axis] != count:
            raise ValueError("a tensor that is not contiguous")
        count *= tensor.shape[axis]
    return (tensor.data or 0) + tensor.byte_offset, count * size


def _is_of_device(address: int) -> bool:
    """Whether the driver of this process, if it has one, says that the memory is a GPU's."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    kind = c_uint32()
    status = driver.cuPointerGetAttribute(byref(kind), c_int(MEMORY_TYPE), c_uint64(address))
    return status == 0 and kind.value == OF_DEVICE


def _loaded(library: str | os.PathLike[str] | None) -> ctypes.CDLL:
    beside = Path(__file__).resolve().parent / "installed" / "lib" / "outboard" / LIBRARY
    path = library or os.environ.get("OUTBOARD_NET_LIBRARY") or (beside if beside.exists() else LIBRARY)
    try:
        loaded = ctypes.CDLL(os.fspath(path))
    except OSError as error:
        raise OutboardError(f"{error}; OUTBOARD_NET_LIBRARY names it: cargo build -p outboard-net") from error
    for name in ("outboard_net_message", "outboard_net_provider_of", "outboard_net_place_of"):
        getattr(loaded, name).restype = c_char_p
    loaded.outboard_net_close.restype = None
    for name in ("outboard_net_queue_bytes", "outboard_net_counters_bytes"):
        getattr(loaded, name).restype = c_uint64
    return loaded

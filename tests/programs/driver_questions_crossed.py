"""Questions of `driver_answers.py` about objects of a context that is not current."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p

from driver_asking import PTX, Question, State, call, got, must, q

# One thread, no shared memory.
ONE = (1, 1, 1, 1, 1, 1, 0)


class Crossed(State):
    """The objects of `State`, and a second context of the same device with its own; the second is
    current."""

    def __init__(self) -> None:
        super().__init__()
        self.library = got("cuLibraryLoadData", PTX + b"\0", None, None, 0, None, None, 0)
        self.kernel = got("cuLibraryGetKernel", self.library, b"nothing")
        node = c_void_p()
        params = (c_void_p * 8)(self.empty.value, *(0,) * 7)
        words = ctypes.cast(params, ctypes.POINTER(c_uint))
        for index in range(6):
            words[2 + index] = 1
        self.work = got("cuGraphCreate", 0)
        must("cuGraphAddKernelNode_v2", byref(node), self.work, None, 0, params)
        self.exec = got("cuGraphInstantiateWithFlags", self.work, 0)
        self.other = got("cuCtxCreate_v2", 0, 0)
        self.other_stream = got("cuStreamCreate", 1)
        self.other_event = got("cuEventCreate", 0)
        self.other_module = got("cuModuleLoadData", PTX + b"\0")
        self.other_empty = got("cuModuleGetFunction", self.other_module, b"nothing")
        self.other_memory = got("cuMemAlloc_v2", 4096)

    def settle(self) -> tuple[str, str]:
        """Waits for both contexts, and leaves the second current."""
        must("cuCtxSetCurrent", self.context)
        first = call("cuCtxSynchronize")
        must("cuCtxSetCurrent", self.other)
        return first, call("cuCtxSynchronize")


class NoneCurrent(Crossed):
    """The objects of `Crossed`, and no context is current."""

    def __init__(self) -> None:
        super().__init__()
        self.leave()

    def settle(self) -> tuple[str, str]:
        answers = super().settle()
        self.leave()
        return answers

    def leave(self) -> None:
        """Removes each context from the thread's stack."""
        current = c_void_p(1)
        while current.value:
            must("cuCtxSetCurrent", None)
            must("cuCtxGetCurrent", byref(current))


def then(question: Question) -> Question:
    """Asks, and tells the first status that is no success of the call and of both contexts."""

    def ask(state: Crossed) -> str:
        answers = [str(question(state)), *state.settle()]
        return next((answer for answer in answers if answer != "SUCCESS"), "SUCCESS")

    return ask


def works(function: str, *arguments: object) -> Question:
    return then(q(function, *arguments))


def captured(state: Crossed) -> tuple[str, ...]:
    graph = c_void_p()
    answers = [call("cuStreamBeginCapture_v2", state.stream, 0)]
    answers.append(call("cuLaunchKernel", state.empty, *ONE, state.stream, None, None))
    answers.append(call("cuStreamEndCapture", state.stream, byref(graph)))
    return tuple(answers)


def context_of(state: Crossed) -> tuple[str, bool]:
    found = c_void_p()
    answer = call("cuStreamGetCtx", state.stream, byref(found))
    return answer, found.value == state.context.value


def between(state: Crossed) -> str:
    """Times from an event of one context to an event of the other."""
    must("cuEventRecord", state.other_event, state.other_stream)
    must("cuStreamSynchronize", state.other_stream)
    must("cuCtxSetCurrent", state.context)
    must("cuEventRecord", state.event, state.stream)
    must("cuStreamSynchronize", state.stream)
    must("cuCtxSetCurrent", state.other)
    return call("cuEventElapsedTime", byref(c_float()), state.other_event, state.event)


def made_and_destroyed(make: str, flags: int, destroy: str) -> Question:
    """Destroys an object of the first context."""

    def ask(state: Crossed) -> str:
        must("cuCtxSetCurrent", state.context)
        made = got(make, flags)
        must("cuCtxSetCurrent", state.other)
        return call(destroy, made)

    return ask


NONE_CURRENT: dict[str, Question] = {
    "launch": works("cuLaunchKernel", "empty", *ONE, "stream", None, None),
    "launch on the default stream": works("cuLaunchKernel", "empty", *ONE, None, None, None),
    "launch of a library's kernel": works("cuLaunchKernel", "kernel", *ONE, "stream", None, None),
    "graph": works("cuGraphLaunch", "exec", "stream"),
    "copy": works("cuMemcpyDtoDAsync_v2", "memory", "memory", 8, "stream"),
    "copy and wait": works("cuMemcpyDtoD_v2", "memory", "memory", 8),
    "set": works("cuMemsetD32Async", "memory", 1, 8, "stream"),
    "record": works("cuEventRecord", "event", "stream"),
    "record on the default stream": works("cuEventRecord", "event", None),
    "wait": works("cuStreamWaitEvent", "stream", "event", 0),
    "stream query": q("cuStreamQuery", "stream"),
    "stream synchronize": q("cuStreamSynchronize", "stream"),
    "event query": q("cuEventQuery", "event"),
    "event synchronize": q("cuEventSynchronize", "event"),
    "allocate on a stream": q("cuMemAllocAsync", c_void_p, 4096, "stream"),
    "function of a module": q("cuModuleGetFunction", c_void_p, "module", b"store"),
    "variable of a module": q("cuModuleGetGlobal_v2", c_uint64, c_size_t, "module", b"word"),
    "attribute of a function": q("cuFuncGetAttribute", c_int, 0, "empty"),
    "parameter of a kernel": q("cuKernelGetParamInfo", "kernel", 0, c_size_t, c_size_t),
    "attribute of a pointer": q("cuPointerGetAttribute", c_uint64, 2, "memory"),
    "free": lambda state: call("cuMemFree_v2", state.other_memory),
    "capture": captured,
}
CROSSED: dict[str, Question] = {
    **NONE_CURRENT,
    "launch on a stream of the current context": works("cuLaunchKernel", "empty", *ONE, "other_stream", None, None),
    "launch of the current context's": works("cuLaunchKernel", "other_empty", *ONE, "stream", None, None),
    "launch of a library's kernel on the default stream": works("cuLaunchKernel", "kernel", *ONE, None, None, None),
    "launch of a library's kernel here": works("cuLaunchKernel", "kernel", *ONE, "other_stream", None, None),
    "graph on a stream of the current context": works("cuGraphLaunch", "exec", "other_stream"),
    "graph on the default stream": works("cuGraphLaunch", "exec", None),
    "copy on a stream of the current context": works("cuMemcpyDtoDAsync_v2", "memory", "memory", 8, "other_stream"),
    "copy to the current context": works("cuMemcpyDtoDAsync_v2", "other_memory", "memory", 8, "stream"),
    "record on a stream of the current context": works("cuEventRecord", "event", "other_stream"),
    "record the current context's": works("cuEventRecord", "other_event", "stream"),
    "wait for the current context's": works("cuStreamWaitEvent", "stream", "other_event", 0),
    "wait here": works("cuStreamWaitEvent", "other_stream", "event", 0),
    "write a word": works("cuStreamWriteValue32_v2", "stream", "memory", 1, 0),
    "elapsed between": between,
    "context of a stream": context_of,
    "blocks of a function": q("cuOccupancyMaxActiveBlocksPerMultiprocessor", c_int, "empty", 32, 0),
    "set an attribute of a function": q("cuFuncSetAttribute", "empty", 8, 1024),
    "destroy a stream": made_and_destroyed("cuStreamCreate", 1, "cuStreamDestroy_v2"),
    "destroy an event": made_and_destroyed("cuEventCreate", 0, "cuEventDestroy_v2"),
}

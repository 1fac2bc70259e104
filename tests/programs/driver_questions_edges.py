"""Questions of `driver_answers.py` about edges with data: programmatic launches in captures and graphs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p

from driver_asking import Question, State, call, got, must
from driver_questions_work import LaunchConfig

# Launch attributes.
SERIALIZATION, EVENT, PRIORITY, COMPLETION = 6, 7, 8, 12
# An edge's data: from_port, to_port, type. The first two are the ones that CUDA defines.
PROGRAMMATIC, AT_START = (1, 0, 1), (2, 0, 1)
PLAIN = (0, 0, 0)
DATA: dict[str, tuple[int, ...]] = {
    "plain": PLAIN,
    "programmatic": PROGRAMMATIC,
    "launch completion": AT_START,
    "programmatic, port 0": (0, 0, 1),
    "plain, port 1": (1, 0, 0),
    "plain, port 2": (2, 0, 0),
    "port 3": (3, 0, 1),
    "to port 1": (1, 1, 1),
    "type 2": (1, 0, 2),
    "reserved": (1, 0, 1, 0, 1),
}
ADD, SET = 0, 1
KINDS = ("kernel", "copy", "memset", "host", "child", "empty", "wait", "record")


def data(*edges: tuple[int, ...]) -> ctypes.Array[c_ubyte]:
    """Returns an array of `CUgraphEdgeData`."""
    every = [byte for edge in edges for byte in (*edge, *(0,) * (8 - len(edge)))]
    return (c_ubyte * len(every))(*every)


def told(edges: Sequence[int]) -> str:
    """Returns the data of edges, sorted: as ports and type."""
    every = [".".join(map(str, edges[at : at + 3])) for at in range(0, len(edges), 8)]
    return ",".join(sorted(every)) or "none"


class Graph:
    """A graph, and what the driver tells of it."""

    def __init__(self, handle: c_void_p) -> None:
        self.handle = handle

    def nodes(self) -> list[int]:
        count = c_size_t()
        must("cuGraphGetNodes", self.handle, None, byref(count))
        nodes = (c_uint64 * count.value)()
        if count.value:
            must("cuGraphGetNodes", self.handle, nodes, byref(count))
        return list(nodes)

    def edges(self) -> str:
        """Returns the edges with the kinds of their nodes, sorted."""
        count = c_size_t()
        answer = call("cuGraphGetEdges_v2", self.handle, None, None, None, byref(count))
        if answer != "SUCCESS" or not count.value:
            return answer if answer != "SUCCESS" else "no-edges"
        ends = [(c_uint64 * count.value)() for _ in range(2)]
        given = (c_ubyte * (8 * count.value))()
        must("cuGraphGetEdges_v2", self.handle, *ends, given, byref(count))
        each = [
            f"{kind(ends[0][at])}>{kind(ends[1][at])}:{told(given[8 * at : 8 * at + 8])}" for at in range(count.value)
        ]
        return ",".join(sorted(each))

    def lossy(self) -> str:
        """Asks for the edges without their data."""
        count, ends = c_size_t(16), [(c_uint64 * 16)() for _ in range(2)]
        return call("cuGraphGetEdges", self.handle, *ends, byref(count))

    def runs(self) -> str:
        """Instantiates the graph and launches it."""
        executable = c_void_p()
        answer = call("cuGraphInstantiateWithFlags", byref(executable), self.handle, 0)
        if answer != "SUCCESS":
            return answer
        stream = got("cuStreamCreate", 1)
        answers = [call("cuGraphLaunch", executable, stream), call("cuStreamSynchronize", stream)]
        must("cuStreamDestroy_v2", stream)
        must("cuGraphExecDestroy", executable)
        return "runs" if answers == ["SUCCESS"] * 2 else "/".join(answers)

    def summary(self) -> tuple[str, str, str]:
        found = self.edges(), self.lossy(), self.runs()
        must("cuGraphDestroy", self.handle)
        return found


def kind(node: int) -> str:
    which = c_int()
    must("cuGraphNodeGetType", node, byref(which))
    return KINDS[which.value] if which.value < len(KINDS) else str(which.value)


def launch(state: State, stream: c_void_p, *attributes: tuple[int, ...]) -> str:
    """Launches a kernel of one thread; an attribute is its number and the words of its value."""
    records = (c_uint * (18 * max(1, len(attributes))))()
    for at, (which, *words) in enumerate(attributes):
        records[18 * at] = which
        records[18 * at + 2 : 18 * at + 2 + len(words)] = words
    config = LaunchConfig((1,) * 6 + (0,), stream, ctypes.addressof(records), len(attributes))
    return call("cuLaunchKernelEx", byref(config), state.empty, None, None)


def about_event(which: int, event: c_void_p, *words: int) -> tuple[int, ...]:
    """Returns the attribute by which a launch records an event."""
    value = event.value or 0
    return which, value & 0xFFFF_FFFF, value >> 32, *words


def memset(state: State, stream: c_void_p) -> str:
    return call("cuMemsetD8Async", state.memory, 0, 64, stream)


def info(stream: c_void_p) -> str:
    """Returns what a stream's next node depends on, as the queries with and without edges tell it."""
    status, number, graph, nodes, edges, count = (
        c_int(),
        c_uint64(),
        c_void_p(),
        c_void_p(),
        c_void_p(),
        c_size_t(99),
    )
    places = [byref(each) for each in (status, number, graph, nodes, edges, count)]
    with_edges = call("cuStreamGetCaptureInfo_v3", stream, *places)
    found = "null"
    if with_edges == "SUCCESS" and edges.value and count.value < 99:
        found = told(ctypes.string_at(edges.value, 8 * count.value))
    without = call("cuStreamGetCaptureInfo_v2", stream, *places[:4], places[5])
    lossy = call("cuStreamGetCaptureInfo_v3", stream, *places[:4], None, places[5])
    counted = call("cuStreamGetCaptureInfo_v2", stream, *places[:3], None, places[5])
    both = f"{without}/{lossy}/{counted}" if without != lossy or counted != "SUCCESS" else without
    return f"[{with_edges} {found} {both}]"


def ended(stream: c_void_p, *more: c_void_p) -> tuple[str, ...]:
    """Ends a capture, and tells of its graph."""
    graph = c_void_p()
    answer = call("cuStreamEndCapture", stream, byref(graph))
    for each in (stream, *more):
        must("cuStreamDestroy_v2", each)
    return (answer, *(Graph(graph).summary() if graph else ()))


def captured_stream(mode: int = 2) -> c_void_p:
    stream = got("cuStreamCreate", 1)
    must("cuStreamBeginCapture_v2", stream, mode)
    return stream


def serialized(before: str, value: int = 1, then: str = "kernel") -> Question:
    """A launch that may begin before its stream's earlier work is done, after work of some kinds."""

    def ask(state: State) -> tuple[str, ...]:
        stream, side = captured_stream(), got("cuStreamCreate", 1)
        for work in before.split():
            if work == "kernel":
                must_be_done(launch(state, stream))
            elif work == "memset":
                must_be_done(memset(state, stream))
            elif work == "joined":
                must("cuEventRecord", state.untimed, stream)
                must("cuStreamWaitEvent", side, state.untimed, 0)
                must_be_done(launch(state, side))
                must("cuEventRecord", state.untimed, side)
                must_be_done(launch(state, stream))
                must("cuStreamWaitEvent", stream, state.untimed, 0)
            elif work == "joined-memset":
                must("cuEventRecord", state.untimed, stream)
                must("cuStreamWaitEvent", side, state.untimed, 0)
                must_be_done(memset(state, side))
                must("cuEventRecord", state.untimed, side)
                must_be_done(launch(state, stream))
                must("cuStreamWaitEvent", stream, state.untimed, 0)
        answers = [info(stream)]
        answers.append(launch(state, stream, (SERIALIZATION, value)))
        answers.append(info(stream))
        if then == "twice":
            answers.append(launch(state, stream, (SERIALIZATION, value)))
        elif then == "memset":
            answers.append(memset(state, stream))
        return (*answers, *ended(stream, side))

    return ask


def must_be_done(answer: str) -> None:
    assert answer == "SUCCESS", answer


def by_event(which: int, *words: int, then: str = "kernel", timed: bool = False) -> Question:
    """A launch records an event before it is done; another stream, or its own, waits for the event."""

    def ask(state: State) -> tuple[str, ...]:
        stream, side = captured_stream(), got("cuStreamCreate", 1)
        event = got("cuEventCreate", 0 if timed else 2)
        answers = [launch(state, stream, about_event(which, event, *words)), info(stream)]
        waiting = stream if then == "itself" else side
        answers += [call("cuStreamWaitEvent", waiting, event, 0), info(waiting)]
        if then == "kernel" or then == "itself":
            answers.append(launch(state, waiting))
        elif then == "serialized":
            answers.append(launch(state, waiting, (SERIALIZATION, 1)))
        elif then == "memset":
            answers.append(memset(state, waiting))
        elif then == "passed on":
            must("cuEventRecord", state.untimed, side)
            must("cuStreamWaitEvent", stream, state.untimed, 0)
        answers.append(info(waiting))
        if then not in ("itself", "passed on"):
            must("cuEventRecord", state.untimed, side)
            must("cuStreamWaitEvent", stream, state.untimed, 0)
        answers.append(info(stream))
        if then == "passed on":
            answers.append(launch(state, stream))
        answers += ended(stream, side)
        must("cuEventDestroy_v2", event)
        return tuple(answers)

    return ask


def outside(which: int, *words: int, flags: int = 2) -> Question:
    """A launch outside of captures that records an event."""

    def ask(state: State) -> tuple[str, ...]:
        event = got("cuEventCreate", flags)
        answers = [launch(state, state.stream, about_event(which, event, *words))]
        answers += [call("cuEventSynchronize", event), call("cuStreamSynchronize", state.stream)]
        answers += [call("cuEventQuery", event), call("cuStreamWaitEvent", state.stream, event, 0)]
        must("cuEventDestroy_v2", event)
        return tuple(answers)

    return ask


def behind(which: int, *words: int) -> Question:
    """A launch that records an event while its stream waits for a word: the event is not reached before that."""

    def ask(state: State) -> tuple[str, ...]:
        stream, other, event = got("cuStreamCreate", 1), got("cuStreamCreate", 1), got("cuEventCreate", 2)
        must("cuMemsetD32_v2", state.memory, 0, 1)
        must("cuStreamWaitValue32_v2", stream, state.memory, 1, 0)
        answers = [launch(state, stream, about_event(which, event, *words)), call("cuEventQuery", event)]
        must("cuStreamWriteValue32_v2", other, state.memory, 1, 0)
        answers += [call("cuEventSynchronize", event), call("cuEventQuery", event)]
        must("cuStreamSynchronize", stream)
        for each in (stream, other):
            must("cuStreamDestroy_v2", each)
        must("cuEventDestroy_v2", event)
        return tuple(answers)

    return ask


def updated(edge: tuple[int, ...], flags: int, before: str = "kernel", then: str = "kernel") -> Question:
    """The dependencies of a stream are set by a call that takes edges."""

    def ask(state: State) -> tuple[str, ...]:
        stream = captured_stream()
        must_be_done(launch(state, stream) if before == "kernel" else memset(state, stream))
        status, graph, nodes, count = c_int(), c_void_p(), c_void_p(), c_size_t()
        must("cuStreamGetCaptureInfo_v2", stream, byref(status), None, byref(graph), byref(nodes), byref(count))
        node = c_void_p.from_address(nodes.value or 0)
        given = c_void_p(node.value)
        answers = [call("cuStreamUpdateCaptureDependencies_v2", stream, byref(given), data(edge), 1, flags)]
        answers.append(info(stream))
        if answers[0] == "SUCCESS":
            answers.append(launch(state, stream) if then == "kernel" else memset(state, stream))
        return (*answers, *ended(stream))

    return ask


def updated_twice(state: State) -> tuple[str, ...]:
    """One node is named twice in a call, with differing edges."""
    stream = captured_stream()
    must_be_done(launch(state, stream))
    status, graph, nodes, count = c_int(), c_void_p(), c_void_p(), c_size_t()
    must("cuStreamGetCaptureInfo_v2", stream, byref(status), None, byref(graph), byref(nodes), byref(count))
    node = c_uint64.from_address(nodes.value or 0).value
    pair = (c_uint64 * 2)(node, node)
    answers = [call("cuStreamUpdateCaptureDependencies_v2", stream, pair, data(PLAIN, PROGRAMMATIC), 2, SET)]
    answers += [info(stream), launch(state, stream), *ended(stream)]
    return tuple(answers)


def two_kernels(state: State, first: str = "kernel", second: str = "kernel") -> tuple[c_void_p, list[int]]:
    """Returns a graph of two nodes without an edge."""
    graph = got("cuGraphCreate", 0)
    nodes = []
    for which in (first, second):
        if which == "kernel":
            params = (c_void_p * 9)(state.empty.value, *(0,) * 8)
            words = ctypes.cast(params, ctypes.POINTER(c_uint))
            for index in range(6):
                words[2 + index] = 1
            nodes.append(got("cuGraphAddKernelNode_v2", graph, None, 0, params).value or 0)
        elif which == "memset":
            setting = (c_uint64 * 5)(state.memory.value or 0, 64, 1 << 32, 64, 1)
            nodes.append(got("cuGraphAddMemsetNode", graph, None, 0, setting, state.context).value or 0)
        else:
            nodes.append(got("cuGraphAddEmptyNode", graph, None, 0).value or 0)
    return graph, nodes


def into(edge: tuple[int, ...], first: str = "kernel", then: str = "kernel") -> Question:
    """A capture into a graph, after a node by an edge with data."""

    def ask(state: State) -> tuple[str, ...]:
        graph, (node, _) = two_kernels(state, first, "empty")
        stream, place = got("cuStreamCreate", 1), c_uint64(node)
        answers = [call("cuStreamBeginCaptureToGraph", stream, graph, byref(place), data(edge), 1, 2)]
        if answers[0] == "SUCCESS":
            answers.append(info(stream))
            answers.append(launch(state, stream) if then == "kernel" else memset(state, stream))
            answers.append(call("cuStreamEndCapture", stream, byref(c_void_p())))
        must("cuStreamDestroy_v2", stream)
        return (*answers, *Graph(graph).summary())

    return ask


def added(edge: tuple[int, ...], first: str = "kernel", second: str = "kernel") -> Question:
    """An edge with data between two nodes of a graph; then it is removed without and with its data."""

    def ask(state: State) -> tuple[str, ...]:
        graph, (one, two) = two_kernels(state, first, second)
        ends = [byref(c_uint64(one)), byref(c_uint64(two))]
        answers = [call("cuGraphAddDependencies_v2", graph, *ends, data(edge), 1), Graph(graph).edges()]
        clone = got("cuGraphClone", graph)
        answers += Graph(clone).summary()
        if answers[0] == "SUCCESS":
            count, places = c_size_t(4), (c_uint64 * 4)()
            answers.append(call("cuGraphNodeGetDependencies", two, places, byref(count)))
            answers.append(call("cuGraphNodeGetDependentNodes", one, places, byref(count)))
            answers.append(call("cuGraphAddDependencies", graph, *ends, 1))
            answers.append(call("cuGraphRemoveDependencies", graph, *ends, 1))
            answers.append(call("cuGraphRemoveDependencies_v2", graph, *ends, data(edge), 1))
            answers.append(Graph(graph).edges())
        must("cuGraphDestroy", graph)
        return tuple(answers)

    return ask


def node_attribute(attribute: int, *words: int) -> Question:
    """An attribute of a kernel node is set and read."""

    def ask(state: State) -> tuple[str, ...]:
        graph, (one, _) = two_kernels(state)
        value, back = (c_uint * 16)(*words), (c_uint * 16)()
        answers = [
            call("cuGraphKernelNodeSetAttribute", one, attribute, value),
            call("cuGraphKernelNodeGetAttribute", one, attribute, back),
            str(back[0]),
        ]
        return (*answers, *Graph(graph).summary())

    return ask


def node_event(attribute: int, *words: int) -> Question:
    def ask(state: State) -> tuple[str, ...]:
        graph, (one, _) = two_kernels(state)
        value, back = (c_uint * 16)(*about_event(attribute, state.untimed, *words)[1:]), (c_uint * 16)()
        answers = [
            call("cuGraphKernelNodeSetAttribute", one, attribute, value),
            call("cuGraphKernelNodeGetAttribute", one, attribute, back),
            "same" if list(back[:4]) == list(value[:4]) else "differs",
        ]
        return (*answers, *Graph(graph).summary())

    return ask


def update_to(old: tuple[int, ...], new: tuple[int, ...]) -> Question:
    """An executable graph is updated to one whose edge has other data."""

    def ask(state: State) -> tuple[str, ...]:
        graphs = []
        for edge in (old, new):
            graph, (one, two) = two_kernels(state)
            must("cuGraphAddDependencies_v2", graph, byref(c_uint64(one)), byref(c_uint64(two)), data(edge), 1)
            graphs.append(graph)
        executable, info = c_void_p(), (c_uint64 * 4)()
        must("cuGraphInstantiateWithFlags", byref(executable), graphs[0], 0)
        answers = [call("cuGraphExecUpdate_v2", executable, graphs[1], info), str(info[0] & 0xFFFF_FFFF)]
        answers += [call("cuGraphLaunch", executable, state.stream), call("cuStreamSynchronize", state.stream)]
        must("cuGraphExecDestroy", executable)
        for graph in graphs:
            must("cuGraphDestroy", graph)
        return tuple(answers)

    return ask


def captured_attribute(state: State) -> tuple[str, ...]:
    """The attribute of a captured launch is read from its node."""
    stream = captured_stream()
    must_be_done(launch(state, stream))
    must_be_done(launch(state, stream, (SERIALIZATION, 1), (PRIORITY, 0)))
    graph = c_void_p()
    must("cuStreamEndCapture", stream, byref(graph))
    answers = []
    for node in Graph(graph).nodes():
        back = (c_uint * 16)()
        answers += [call("cuGraphKernelNodeGetAttribute", node, SERIALIZATION, back), str(back[0])]
    must("cuStreamDestroy_v2", stream)
    must("cuGraphDestroy", graph)
    return tuple(answers)


EDGES: dict[str, Question] = {
    "serialized, first": serialized(""),
    "serialized after a kernel": serialized("kernel"),
    "serialized twice": serialized("kernel", then="twice"),
    "serialized, then a memset": serialized("kernel", then="memset"),
    "serialized of 0": serialized("kernel", 0),
    "serialized after a memset": serialized("memset"),
    "serialized after two kernels": serialized("kernel joined"),
    "serialized after a kernel and a memset": serialized("kernel joined-memset"),
    "captured attribute": captured_attribute,
    "node attribute serialization": node_attribute(SERIALIZATION, 1),
    "updated twice": updated_twice,
    "executable updated to programmatic": update_to(PLAIN, PROGRAMMATIC),
    "executable updated to plain": update_to(PROGRAMMATIC, PLAIN),
    "executable updated to the same": update_to(PROGRAMMATIC, PROGRAMMATIC),
    "updated, then a memset": updated(PROGRAMMATIC, SET, then="memset"),
    "updated after a memset": updated(PROGRAMMATIC, SET, "memset"),
    "updated by adding": updated(PROGRAMMATIC, ADD),
    "updated by adding plain": updated(PLAIN, ADD),
    "into after a memset": into(PROGRAMMATIC, "memset"),
    "into, then a memset": into(PROGRAMMATIC, then="memset"),
    "added after a memset": added(PROGRAMMATIC, "memset"),
    "added before a memset": added(PROGRAMMATIC, "kernel", "memset"),
    "added after an empty node": added(PROGRAMMATIC, "empty"),
    "added before an empty node": added(PROGRAMMATIC, "kernel", "empty"),
}
for name, attribute, values in [
    ("programmatic event", EVENT, (0, 0)),
    ("programmatic event at start", EVENT, (0, 1)),
    ("launch completion event", COMPLETION, (0,)),
]:
    EDGES[f"{name} outside"] = outside(attribute, *values)
    EDGES[f"{name} outside, timed"] = outside(attribute, *values, flags=0)
    EDGES[f"{name} outside, of processes"] = outside(attribute, *values, flags=6)
    EDGES[f"{name} behind a word"] = behind(attribute, *values)
    EDGES[f"node attribute {name}"] = node_event(attribute, *values)
    EDGES[f"{name}, timed"] = by_event(attribute, *values, timed=True)
    for after in ("kernel", "serialized", "memset", "nothing", "itself", "passed on"):
        EDGES[f"{name}, {after}"] = by_event(attribute, *values, then=after)
for name, edge in DATA.items():
    EDGES[f"updated {name}"] = updated(edge, SET)
    EDGES[f"into {name}"] = into(edge)
    EDGES[f"added {name}"] = added(edge)

"""Generates random sequences of driver calls that are legal: what the host writes, no work under way
reads or writes."""

from __future__ import annotations

import random

from ordering_rules import BUFFERS, PARTS, Step

PART_WORDS = [16, 1024, 16 << 10, 64 << 10, 512 << 10]
STREAMS = ["default", "blocking0", "blocking1", "free0", "free1", "free2"]
EVENTS = 3
# The forms of a copy of a buffer's rows.
WAYS = ["plain", "plain", "plain", "2D", "3D"]
WAYS_HERE = [*WAYS, "peer"]
GRAPHS = ["plain", "plain", "clone", "twice", "update", "child"]

QUESTIONS = [
    "cuStreamGetFlags",
    "cuStreamGetPriority",
    "cuStreamIsCapturing",
    "cuStreamEndCapture",
    "cuStreamBeginCapture_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemFreeHost",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD32Async",
    "cuMemsetD8Async",
    "cuStreamWaitEvent",
    "cuEventRecord",
    "cuLaunchHostFunc",
    "cuGraphLaunch",
    "cuGraphDestroy",
    "cuGraphCreate",
    "cuGraphInstantiateWithFlags",
    "cuMemHostGetFlags",
    "cuMemHostRegister_v2",
    "cuMemFreeAsync",
    "cuLaunchKernel",
    "cuStreamGetCaptureInfo_v2",
    "cuStreamWaitValue32_v2",
]


def program(seed: int) -> list[Step]:
    """Generates a sequence of calls; the first entry is the length of a part of a buffer."""
    r = random.Random(seed)
    value = iter(range(1000, 10**9, 1000))

    def part() -> tuple[int, int]:
        first = r.choice([0, 0, 0, 1, 2])
        return first, r.randint(1, PARTS - first) if r.random() < 0.4 else PARTS - first

    def device() -> str:
        return r.choice(BUFFERS["device"][: r.choice([1, 2, 4])])

    def host() -> str:
        return r.choice(BUFFERS["host"])

    def stream() -> str:
        return r.choice(STREAMS)

    def captured() -> Step:
        call = work(r.choice(["copy_in", "copy_out", "copy_here", "set", "add", "add", "host"]))
        # A copy between peers cannot be captured.
        return [way if way != "peer" else "plain" for way in call]

    def work(kind: str) -> Step:
        first, parts = part()
        match kind:
            case "copy_in":
                return [kind, device(), host(), first, parts, r.choice(WAYS)]
            case "copy_out":
                return [kind, host(), device(), first, parts, r.choice(WAYS)]
            case "copy_here":
                to, source = r.sample(BUFFERS["device"], 2)
                return [kind, to, source, first, parts, r.choice(WAYS_HERE)]
            case "copy_host":
                to, source = r.sample(BUFFERS["host"], 2)
                return [kind, to, source, first, parts, r.choice(WAYS)]
            case "set":
                return [kind, device(), first, parts, next(value)]
            case "host":
                # A GPU's driver reads pageable memory when a copy is submitted, before host functions write it.
                return [kind, host().replace("H", "P"), first, parts, next(value)]
            case _:
                return ["add", device(), device(), first, parts, r.randint(1, 9)]

    def step() -> list[Step]:
        match r.choice("wwwwwwwwSSSSSbbbfflleEcsgggvqqhh"):
            case "w":
                kinds = ["copy_in", "copy_out", "copy_here", "copy_host", "set", "add", "add", "add", "host"]
                kind = r.choice(kinds)
                # Without a stream these two are asynchronous, too.
                is_plain = kind in ("copy_here", "set") and r.random() < 0.3
                return [[*work(kind), None if is_plain else stream()]]
            case "S":
                # A synchronous copy, after something slow, and a read of it.
                name, to = host(), device()
                fill = ["fill", name, 0, PARTS, next(value)]
                busy = [["busy", r.choice(STREAMS[:3])]] * r.choice([0, 1, 3])
                copy = ["copy_in", to, name, *part(), r.choice(WAYS), None]
                reads = ["copy_out", host(), to] if r.random() < 0.5 else ["add", device(), to]
                reads += [*part(), 3] if reads[0] == "add" else [*part(), r.choice(WAYS)]
                return [fill, *busy, copy, [*reads, r.choice(STREAMS[3:]) if r.random() < 0.7 else stream()]]
            case "h":
                # A copy between two places of the host, after slow work that wrote one.
                to, name = r.sample(BUFFERS["host"], 2)
                first, after = r.sample(STREAMS[:3], 2) if r.random() < 0.7 else [stream()] * 2
                written = ["copy_out", name, device(), 0, PARTS, "plain", first]
                return [["busy", first], written, ["copy_host", to, name, *part(), r.choice(WAYS), after], ["look", to]]
            case "b":
                return [["busy", stream()]]
            case "f":
                return [["fill", host(), *part(), next(value)]]
            case "l":
                return [["copy_out", name := host(), device(), *part(), r.choice(WAYS), None], ["look", name]]
            case "e":
                event = r.randrange(EVENTS)
                return [["record", event, stream()], ["wait", event, stream()]]
            case "E":
                event = r.randrange(EVENTS)
                return [["record", event, stream()], ["finish_event", event], ["look", host()]]
            case "c":
                return [["context"]]
            case "s":
                return [["finish_stream", stream()], ["look", host()]]
            case "v":
                return [["word_between", *r.sample(STREAMS, 2)]]
            case "q":
                return [["ask", r.choice(QUESTIONS), stream()]]
            case _:
                return [["graph", [captured() for _ in range(r.randint(1, 4))], r.choice(GRAPHS), stream()]]

    steps: list[Step] = [["words", r.choice(PART_WORDS)]]
    for _ in range(r.randint(8, 24)):
        steps += step()
    return steps

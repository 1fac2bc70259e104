"""Endpoints of python/outboard/net.py, with kernels whose PTX the first argument names.

endpoints.py PTX                                two queues of this process
endpoints.py PTX listen|connect 127.0.0.1:PORT  one in each of two processes

With the provider nvlink nothing is lost, and the inbox is in the GPU's memory; so it is with INBOX=gpu.
"""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import byref, c_uint32, c_uint64, c_void_p
from pathlib import Path

from outboard import OutboardError, net

import cuda

WORDS = 256
BYTES = WORDS * 8
ROUNDS = 5


class Words:
    """Words of the GPU, or pinned, as arrays tell of themselves."""

    def __init__(self, count: int, of_gpu: bool = False) -> None:
        self.at = c_void_p()
        if of_gpu:
            cuda.must("cuMemAlloc_v2", byref(self.at), ctypes.c_size_t(count * 8))
            cuda.must("cuMemsetD8_v2", self.at, ctypes.c_ubyte(0), ctypes.c_size_t(count * 8))
        else:
            cuda.must("cuMemHostAlloc", byref(self.at), ctypes.c_size_t(count * 8), c_uint32(3))
            self.words = (c_uint64 * count).from_address(self.at.value)
            ctypes.memset(self.at, 0, count * 8)
        self.__cuda_array_interface__ = {
            "shape": (count,),
            "typestr": "<u8",
            "data": (self.at.value, False),
            "strides": None,
            "version": 3,
        }


def launch(function: c_void_p, threads: int, *arguments: object) -> None:
    pointers = (c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
    one = c_uint32(1)
    cuda.must("cuLaunchKernel", function, one, one, one, c_uint32(threads), one, one, c_uint32(0), None, pointers, None)
    cuda.must("cuCtxSynchronize")


def refused(what: object) -> str:
    try:
        net.span(what)
    except (OutboardError, ValueError) as error:
        return str(error)
    raise AssertionError(f"{what} was taken")


def put(
    produce: c_void_p,
    queue: net.Queue,
    outbox: Words,
    answer: Words,
    number: int,
    sent: net.Memory,
    there: net.Window,
    failed: c_void_p,
) -> None:
    queue.rouse()
    target = (c_uint64(there.address), c_uint32(there.key), c_uint64(WORDS), c_uint64(number), failed)
    launch(produce, 32, queue.exported, outbox.at, c_uint32(sent.key), *target)
    assert answer.words[0] == 0 or number > ROUNDS, f"failure {answer.words[0]:#x}"


def main() -> None:
    ptx, *place = sys.argv[1:]
    with net.Endpoint() as early:
        try:
            early.queue()
        except OutboardError as error:
            assert "has no context of CUDA yet: make one first" in str(error), error
        else:
            raise AssertionError("a queue was made without a context")
    cuda.primary_context()
    produce, consume = cuda.kernels(Path(ptx).read_bytes(), "produce", "consume")
    is_direct = os.environ.get("OUTBOARD_NET_PROVIDER") == "nvlink"
    of_gpu = is_direct or os.environ.get("INBOX") == "gpu"
    outbox, inbox, answer = Words(WORDS), Words(WORDS + 1, of_gpu), Words(2)
    with net.Endpoint(seed=3, loss_ppm=0 if is_direct else 10_000) as endpoint:
        assert endpoint.provider == ("nvlink" if is_direct else "nic")
        queue = endpoint.queue(signal_every=4)
        assert queue.way is None
        sent, received = endpoint.register(outbox, 0), endpoint.register(inbox, net.REMOTE_WRITE)
        if place:
            there = queue.meet(place[1], listens=place[0] == "listen", offers=received)
            assert queue.way == (None if is_direct else "shm")
        else:
            other = endpoint.queue(memory=Words(4096))
            queue.connect(other)
            there = received.window
        failed, total = c_void_p(answer.at.value), c_void_p(answer.at.value + 8)
        arguments = (sent, there, failed)
        for number in range(1, ROUNDS + 1):
            # In turns, so that nothing arrives before the last was looked at.
            if place[:1] != ["connect"]:
                put(produce, queue, outbox, answer, number, *arguments)
            launch(consume, 1, inbox.at, c_uint64(WORDS), c_uint64(number), total)
            assert answer.words[1] == sum(number * WORDS + i for i in range(WORDS)), number
            answer.words[1] = 0
            # The other may be gone behind the last of these.
            assert queue.status().syndrome == 0
            if place[:1] == ["connect"]:
                put(produce, queue, outbox, answer, number, *arguments)
        # Who connects stays until the other has all its completions, and says so; it may then be gone.
        if place[:1] == ["listen"]:
            put(produce, queue, outbox, answer, ROUNDS + 1, *arguments)
        if place[:1] == ["connect"]:
            launch(consume, 1, inbox.at, c_uint64(WORDS), c_uint64(ROUNDS + 1), total)
    device = cuda.c_uint64()
    cuda.must("cuMemAlloc_v2", byref(device), ctypes.c_size_t(4096))
    of_gpu = Words(1)
    of_gpu.__cuda_array_interface__["data"] = (device.value, False)
    print(refused(of_gpu))
    outbox.__cuda_array_interface__["strides"] = (16,)
    print(refused(outbox))
    print(f"{ROUNDS} rounds are right")


main()

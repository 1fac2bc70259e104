"""Kernels that numba-cuda compiles post to the adapter in software; the first argument is the PTX of net_calls.cu."""

import sys
import warnings

import numpy as np
from numba import cuda, uint64
from outboard import net, net_numba

warnings.simplefilter("ignore")
calls = net_numba.calls(sys.argv[1])
WORDS = 256
NS = 30_000_000_000
# Cause of a failure.
TIMEOUT, INVALID = 1, 4


@cuda.jit
def produce(queue, outbox, at, key, there, there_key, number, failed):
    for i in range(cuda.threadIdx.x, WORDS, 32):
        outbox[i] = number * WORDS + i
    said = calls.put_warp(queue, there, there_key, at, key, uint64(WORDS * 8), uint64(NS))
    if said >> uint64(63) == 0:
        said = calls.signal_set_warp(queue, there + uint64(WORDS * 8), there_key, number, uint64(NS))
    if said >> uint64(63) == 0:
        said = calls.wait_warp(queue, said, uint64(NS))
    if cuda.threadIdx.x == 0:
        failed[0] = said


@cuda.jit
def consume(inbox, at, number, total):
    if calls.poll_slot(at + uint64(WORDS * 8), number, uint64(NS)) == 0:
        return
    found = uint64(0)
    for i in range(WORDS):
        found += inbox[i]
    total[0] = found


@cuda.jit
def find(at, seen, found):
    found[0] = calls.poll_slot_at_least(at, uint64(7), uint64(NS))
    found[1] = calls.poll_slot_at_least(at, uint64(9), uint64(1000))
    # Flags two words apart, from the second on: the first word is 8, the third 0.
    found[2] = calls.poll_any(at, uint64(2), uint64(2), seen, uint64(1), uint64(NS))
    found[3] = calls.poll_any(at, uint64(2), uint64(2), seen, uint64(1), uint64(1000))
    found[4] = calls.poll_any(at, uint64((1 << 32) + 1), uint64(2), seen, uint64(1), uint64(NS))


@cuda.jit
def add(queue, there, key, before, before_key, failed):
    said = calls.fetch_add(queue, there, key, uint64(3), before, before_key, uint64(NS))
    if said >> uint64(63) == 0:
        said = calls.wait(queue, said, uint64(NS))
    failed[0] = said


def mapped(words):
    array = cuda.mapped_array(words, dtype=np.uint64)
    array[:] = 0
    return array


def address(array):
    return np.uint64(array.__cuda_array_interface__["data"][0])


def main():
    outbox, inbox, failed, total = mapped(WORDS), mapped(WORDS + 1), mapped(1), mapped(1)
    with net.Endpoint(seed=5, loss_ppm=10_000) as endpoint:
        queue, other = endpoint.queue(), endpoint.queue()
        queue.connect(other)
        sent, received = endpoint.register(outbox), endpoint.register(inbox)
        here, there = (
            (np.uint64(sent.address), np.uint32(sent.key)),
            (np.uint64(received.address), np.uint32(received.key)),
        )
        of = net_numba.to_device(queue)
        for number in range(1, 6):
            queue.rouse()
            produce[1, 32](address(of), outbox, *here, *there, np.uint64(number), failed)
            cuda.synchronize()
            assert failed[0] == 0, hex(failed[0])
            consume[1, 1](inbox, there[0], np.uint64(number), total)
            cuda.synchronize()
            assert total[0] == sum(number * WORDS + i for i in range(WORDS)), number
        queue.rouse()
        add[1, 1](address(of), *there, *here, failed)
        cuda.synchronize()
        assert (int(failed[0]), int(outbox[0]), int(inbox[0])) == (0, 5 * WORDS, 5 * WORDS + 3)
        flags, seen, results = mapped(4), mapped(2), mapped(5)
        flags[0] = 8
        find[1, 1](address(flags), address(seen), results)
        cuda.synchronize()
        late, refused = net_numba.FAILED + 256 * TIMEOUT, net_numba.FAILED + 256 * INVALID
        assert [int(one) for one in results] == [1, 0, 0, late, refused], results
        assert int(seen[0]) == 8
        # A key that is nobody's: the syndrome of remote access, as an adapter says it.
        add[1, 1](address(of), there[0], np.uint32(7), *here, failed)
        cuda.synchronize()
        assert int(failed[0]) & 0xFF == 0x13, hex(failed[0])
        assert int(failed[0]) >= net_numba.FAILED
    print("right")


main()

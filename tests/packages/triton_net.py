"""Kernels that Triton compiles post to the adapter in software."""

import torch
import triton
import triton.language as tl
from outboard import OutboardError, net, net_triton

calls = net_triton.calls()
WORDS = 256
NS = tl.constexpr(30_000_000_000)
BLOCK = tl.constexpr(WORDS)
# Cause of a failure.
TIMEOUT = 1


@triton.jit
def produce(queue, outbox, at, key, there, there_key, number, failed):
    word = tl.arange(0, BLOCK)
    tl.store(outbox + word, number * BLOCK + word)
    said = calls.put(queue, there, there_key, at, key, BLOCK * 8, NS)
    if said >> 63 == 0:
        said = calls.signal_set(queue, there + BLOCK * 8, there_key, number, NS)
    if said >> 63 == 0:
        said = calls.wait(queue, said, NS)
    tl.store(failed, said.to(tl.int64))


@triton.jit
def consume(inbox, number, total):
    if calls.poll_slot(inbox + BLOCK, number, NS) == 1:
        tl.store(total, tl.sum(tl.load(inbox + tl.arange(0, BLOCK))))


@triton.jit
def find(flags, seen, found):
    tl.store(found, calls.poll_slot_at_least(flags, 7, NS).to(tl.int64))
    tl.store(found + 1, calls.poll_slot_at_least(flags, 9, 1000).to(tl.int64))
    # 40 flags two words apart, from the third on: word 78 is 8, the others 0.
    tl.store(found + 2, calls.poll_any(flags, 40, 2, seen, 2, NS).to(tl.int64))
    tl.store(found + 3, calls.poll_any(flags, 39, 2, seen, 2, 1000).to(tl.int64))


@triton.jit
def add(queue, there, key, before, before_key, failed):
    said = calls.fetch_add(queue, there, key, 3, before, before_key, NS)
    if said >> 63 == 0:
        said = calls.wait(queue, said, NS)
    tl.store(failed, said.to(tl.int64))


@triton.jit
def add_tensor(queue, there, key, failed):
    said = calls.signal_add(queue, there + tl.arange(0, BLOCK), key, 3, NS)
    tl.store(failed + tl.arange(0, BLOCK), said.to(tl.int64))


def mapped(words):
    return torch.zeros(words, dtype=torch.int64).pin_memory()


def launch(kernel, *args, warps=4):
    kernel[(1,)](*args, num_warps=warps, extern_libs=calls.extern_libs)
    torch.cuda.synchronize()


def main():
    outbox, inbox, failed, total = mapped(WORDS), mapped(WORDS + 1), mapped(1), mapped(1)
    with net.Endpoint(seed=5, loss_ppm=10_000) as endpoint:
        queue, other = endpoint.queue(), endpoint.queue()
        queue.connect(other)
        sent, received = endpoint.register(outbox), endpoint.register(inbox)
        here, there = (sent.address, sent.key), (received.address, received.key)
        of = net_triton.to_device(queue)
        for number, warps in enumerate((1, 8), 1):
            queue.rouse()
            launch(produce, of, outbox, *here, *there, number, failed, warps=warps)
            assert failed[0] == 0, hex(failed[0])
            launch(consume, inbox, number, total, warps=warps)
            assert total[0] == sum(number * WORDS + i for i in range(WORDS)), number
        flags, seen, results = mapped(80), mapped(40), mapped(4)
        flags[0] = flags[78] = seen[0] = 8
        launch(find, flags, seen, results, warps=8)
        assert [one % (1 << 64) for one in results.tolist()] == [1, 0, 39, net_triton.FAILED + 256 * TIMEOUT], results
        assert int(seen[39]) == 8
        queue.rouse()
        launch(add, of, *there, *here, failed)
        # All threads of the program have made one operation, and not each of them its own.
        assert (int(failed[0]), int(outbox[0]), int(inbox[0])) == (0, 2 * WORDS, 2 * WORDS + 3)
        # A key that is nobody's: the syndrome of remote access, as an adapter says it.
        launch(add, of, there[0], 7, *here, failed)
        said = int(failed[0]) % (1 << 64)
        assert said >= net_triton.FAILED and said & 0xFF == 0x13, hex(said)
        try:
            launch(add_tensor, of, *there, failed)
        except triton.CompilationError as error:
            assert isinstance(error.__cause__, OutboardError) and "takes scalars" in str(error.__cause__)
        else:
            raise AssertionError("a tensor of addresses was taken")
    print("right")


main()

// Kernels for Python: put an outbox of `words` to another, and a number behind it; and wait for a number.
#include "outboard/net.cuh"

using namespace outboard::net;

constexpr uint64_t PATIENCE_NS = 30000000000ull;

extern "C" __global__ void produce(const outboard_net_queue of, uint64_t *outbox, uint32_t key, uint64_t there, uint32_t there_key,
                                   uint64_t words, uint64_t number, uint64_t *failed)
{
    Queue queue(of);
    uint64_t ticket;
    for (uint64_t i = threadIdx.x; i < words; i += 32) outbox[i] = number * words + i;
    Failure failure = queue.put<Scope::warp>(Remote{there, there_key}, Local{(uint64_t)outbox, key}, words * 8, PATIENCE_NS, &ticket);
    if (!failure) failure = queue.signal_set<Scope::warp>(Remote{there + words * 8, there_key}, number, PATIENCE_NS, &ticket);
    if (!failure) failure = queue.wait<Scope::warp>(ticket, PATIENCE_NS);
    if (threadIdx.x == 0) *failed = (uint64_t)failure.cause << 8 | failure.syndrome;
}

extern "C" __global__ void consume(const uint64_t *inbox, uint64_t words, uint64_t number, uint64_t *sum)
{
    if (!poll_slot(inbox + words, number, PATIENCE_NS)) return;
    uint64_t total = 0;
    for (uint64_t i = 0; i < words; ++i) total += detail::load(inbox + i);
    *sum = total;
}

// The kernel of `outboard bench net`. net.ptx is what nvcc makes of it: `make net-ptx`.
#include "outboard/net.cuh"

using namespace outboard::net;

constexpr uint64_t PATIENCE_NS = 20000000000ull;
constexpr uint32_t QUEUES_MAX = 64;
// A put whose value travels in the entry, beside the numbers of operations.
constexpr uint32_t VALUE = 0x100 | detail::WRITE;

// `Work` of net.rs. Each poster has `operations` of `verb`, and waits after each `window`.
struct Work {
    outboard_net_queue queues[QUEUES_MAX];
    uint64_t from, to, bytes, wrong, began, ended, posting;
    uint32_t key, verb, scope, posters, queue_count, operations, window, stride;
};

// Warps and blocks have two verbs, so that the kernel stays small.
template <Scope scope>
__device__ Failure post(QueueOf<Providers::rings> &queue, uint32_t verb, uint64_t bytes, Remote to, Local from, uint64_t number,
                        uint64_t *ticket)
{
    if (verb == VALUE) return queue.put_value<scope>(to, number, PATIENCE_NS, ticket);
    if constexpr (scope == Scope::thread) {
        switch (verb) {
        case detail::READ: return queue.get(from, to, bytes, PATIENCE_NS, ticket);
        case detail::FETCH_ADD: return queue.fetch_add(to, 1, from, PATIENCE_NS, ticket);
        case detail::COMPARE_SWAP: return queue.compare_swap(to, number - 1, number, from, PATIENCE_NS, ticket);
        case detail::NOP: return queue.nop(PATIENCE_NS, ticket);
        }
    }
    return queue.put<scope>(to, from, bytes, PATIENCE_NS, ticket);
}

template <Scope scope> __device__ void run(const Work *work, uint32_t poster, bool leads)
{
    QueueOf<Providers::rings> queue(work->queues[poster % work->queue_count]);
    uint64_t at = (uint64_t)poster * work->stride, ticket = 0, posting = 0, began = detail::now_ns();
    Remote to{work->to + at, work->key};
    Local from{work->from + at, work->key};
    // In registers: they would be read from the host's memory again after each fence.
    uint32_t verb = work->verb, operations = work->operations, window = work->window;
    uint64_t bytes = work->bytes;
    for (uint32_t number = 1; number <= operations; ++number) {
        long long before = clock64();
        Failure failure = post<scope>(queue, verb, bytes, to, from, number, &ticket);
        posting += (uint64_t)(clock64() - before);
        if (!failure && (number % window == 0 || number == operations)) failure = queue.wait<scope>(ticket, PATIENCE_NS);
        if (failure) {
            if (leads) *(uint64_t *)work->wrong = (uint64_t)failure.cause << 8 | failure.syndrome;
            return;
        }
    }
    if (!leads) return;
    ((uint64_t *)work->began)[poster] = began;
    ((uint64_t *)work->ended)[poster] = detail::now_ns();
    ((uint64_t *)work->posting)[poster] = posting;
}

extern "C" __global__ void net(const Work *work)
{
    uint32_t thread = threadIdx.x;
    if (work->scope == 0) run<Scope::thread>(work, thread, true);
    if (work->scope == 1) run<Scope::warp>(work, thread / 32, thread % 32 == 0);
    if (work->scope == 2) run<Scope::block>(work, 0, thread == 0);
}

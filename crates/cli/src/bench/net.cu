// The kernels of `outboard bench net`. net.ptx is what nvcc makes of it: `make net-ptx`.
#include "outboard/net.cuh"

using namespace outboard::net;

constexpr uint64_t PATIENCE_NS = 20000000000ull;
constexpr uint32_t QUEUES_MAX = 64, RECEIVES = 64;
// A put whose value travels in the entry, beside the numbers of operations.
constexpr uint32_t VALUE = 0x100 | detail::WRITE;

// `Work` of net_worker.rs. Each poster has `operations` of `verb`, and waits after each `window`. Of a verb that takes
// receives a thread for each queue receives, from thread `receiver` of the block on.
struct Work {
    outboard_net_queue queues[QUEUES_MAX], peers[QUEUES_MAX];
    uint64_t from, to, bytes, wrong, began, ended, posting;
    uint32_t key, to_key, verb, scope, posters, queue_count, operations, window, stride, receiver;
};

// Warps and blocks have two verbs, so that the kernel stays small.
template <Scope scope, Providers providers>
__device__ Failure post(QueueOf<providers> &queue, uint32_t verb, uint64_t bytes, Remote to, Local from, uint64_t number,
                        uint64_t *ticket)
{
    if (verb == VALUE) return queue.template put_value<scope>(to, number, PATIENCE_NS, ticket);
    if constexpr (scope == Scope::thread) {
        switch (verb) {
        case detail::READ: return queue.get(from, to, bytes, PATIENCE_NS, ticket);
        case detail::FETCH_ADD: return queue.fetch_add(to, 1, from, PATIENCE_NS, ticket);
        case detail::COMPARE_SWAP: return queue.compare_swap(to, number - 1, number, from, PATIENCE_NS, ticket);
        case detail::SEND: return queue.send(from, bytes, PATIENCE_NS, ticket);
        case detail::WRITE_IMM: return queue.put_imm(to, from, bytes, (uint32_t)number, PATIENCE_NS, ticket);
        case detail::NOP: return queue.nop(PATIENCE_NS, ticket);
        }
    }
    return queue.template put<scope>(to, from, bytes, PATIENCE_NS, ticket);
}

__device__ void note(const Work *work, const Failure &failure)
{
    *(uint64_t *)work->wrong = (uint64_t)failure.cause << 8 | failure.syndrome;
}

template <Scope scope, Providers providers> __device__ void run(const Work *work, uint32_t poster, bool leads)
{
    QueueOf<providers> queue(work->queues[poster % work->queue_count]);
    uint64_t at = (uint64_t)poster * work->stride, ticket = 0, posting = 0, began = detail::now_ns();
    Remote to{work->to + at, work->to_key};
    Local from{work->from + at, work->key};
    // In registers: they would be read from the host's memory again after each fence.
    uint32_t verb = work->verb, operations = work->operations, window = work->window;
    uint64_t bytes = work->bytes;
    for (uint32_t number = 1; number <= operations; ++number) {
        long long before = clock64();
        Failure failure = post<scope>(queue, verb, bytes, to, from, number, &ticket);
        posting += (uint64_t)(clock64() - before);
        if (!failure && (number % window == 0 || number == operations)) failure = queue.template wait<scope>(ticket, PATIENCE_NS);
        if (failure) {
            if (leads) note(work, failure);
            return;
        }
    }
    if (!leads) return;
    ((uint64_t *)work->began)[poster] = began;
    ((uint64_t *)work->ended)[poster] = detail::now_ns();
    ((uint64_t *)work->posting)[poster] = posting;
}

// Receives what the posters of a queue send, into the memory of the first of them.
template <Providers providers> __device__ void receive(const Work *work, uint32_t of)
{
    QueueOf<providers> queue(work->peers[of]);
    uint32_t posters = (work->posters - of + work->queue_count - 1) / work->queue_count, posted = 0;
    uint64_t messages = (uint64_t)posters * work->operations, bytes = work->verb == detail::SEND ? work->bytes : 0, ticket;
    Local into{work->to + (uint64_t)of * work->stride, work->to_key};
    Failure failure{};
    for (uint64_t taken = 0; taken < messages && !failure; ++taken) {
        for (; posted < messages && posted - taken < RECEIVES && !failure; ++posted) {
            failure = queue.post_receive(into, bytes, PATIENCE_NS, &ticket);
        }
        Received received;
        if (!failure) failure = queue.receive(PATIENCE_NS, &received);
    }
    if (failure) note(work, failure);
}

template <Providers providers> __device__ void all(const Work *work)
{
    uint32_t thread = threadIdx.x;
    if (work->receiver != 0 && thread >= work->receiver) {
        if (thread - work->receiver < work->queue_count) receive<providers>(work, thread - work->receiver);
        return;
    }
    if (work->scope == 0 && thread < work->posters) run<Scope::thread, providers>(work, thread, true);
    if (work->scope == 1) run<Scope::warp, providers>(work, thread / 32, thread % 32 == 0);
    if (work->scope == 2) run<Scope::block, providers>(work, 0, thread == 0);
}

extern "C" __global__ void net(const Work *work) { all<Providers::rings>(work); }
extern "C" __global__ void net_nvlink(const Work *work) { all<Providers::nvlink>(work); }

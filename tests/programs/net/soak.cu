// Threads of a kernel, or of the CPU (compiled without nvcc), use one queue at once: every verb, checked.
//   soak THREADS ROUNDS LOG_BLOCKS LOSS_PPM SEED [host|gpu [FLAGS]]
// With gpu the posting queue's counters are in the GPU's memory; FLAGS are those of a queue.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "outboard/net.cuh"

using namespace outboard::net;

#ifndef PATIENCE_NS
#define PATIENCE_NS 60000000000ull
#endif
constexpr int WORDS = 32;  // of a message

// What a thread has: words to send, words that came back, results of atomics.
struct Slot {
    uint64_t source[WORDS], back[WORDS], before, flag;
};
struct Shared {
    uint64_t sum, highest, flag;
};

struct Work {
    outboard_net_queue queue;
    Slot *mine, *theirs;
    Shared *shared;
    uint64_t *seen;  // how often each value before an addition was seen
    uint64_t *wrong;
    uint32_t key, rounds, threads;
};

OUTBOARD_NET_CALL void complain(const Work &work, uint64_t what, Failure failure)
{
    detail::compare_exchange(work.wrong, 0, what | (uint64_t)failure.syndrome << 8 | (uint64_t)failure.cause << 16 | failure.entry << 24);
}

#define TRY(what, call) \
    do { \
        Failure failure = (call); \
        if (failure) return complain(work, what, failure); \
    } while (0)

template <Providers providers> OUTBOARD_NET_CALL void run(const Work &work, uint32_t thread)
{
    QueueOf<providers> queue(work.queue);
    Slot *mine = work.mine + thread, *theirs = work.theirs + thread;
    uint64_t ticket = 0;
    // Half of them, and one that is alone, ring for several entries at once.
    if ((work.threads + thread) % 2 == 1) queue.hold();
    for (uint32_t round = 1; round <= work.rounds; ++round) {
        uint32_t words = 1 + (thread * 7 + round * 13) % WORDS;
        for (uint32_t i = 0; i < words; ++i) detail::store(&mine->source[i], (uint64_t)round << 32 | thread << 8 | i);
        Remote there{(uint64_t)theirs->source, work.key}, flag{(uint64_t)&theirs->flag, work.key};
        Local here{(uint64_t)mine->source, work.key};
        if (round % 2 == 0) {
            TRY(1, queue.put(there, here, words * 8, PATIENCE_NS, &ticket));
            TRY(2, queue.signal_set(flag, round, PATIENCE_NS, &ticket));
        } else {
            TRY(3, queue.put_signal(there, here, words * 8, flag, round, PATIENCE_NS, &ticket));
        }
        queue.ring();
        if (!poll_slot(&theirs->flag, round, PATIENCE_NS)) return complain(work, 17, Failure{});
        for (uint32_t i = 0; i < words; ++i)
            if (detail::load(&theirs->source[i]) != ((uint64_t)round << 32 | thread << 8 | i)) return complain(work, 4, Failure{});
        TRY(5, queue.get(Local{(uint64_t)mine->back, work.key}, Remote{(uint64_t)theirs->source, work.key}, words * 8, PATIENCE_NS, &ticket));
        TRY(6, queue.wait(ticket, PATIENCE_NS));
        for (uint32_t i = 0; i < words; ++i)
            if (detail::load(&mine->back[i]) != ((uint64_t)round << 32 | thread << 8 | i)) return complain(work, 7, Failure{});
        Local before{(uint64_t)&mine->before, work.key};
        TRY(8, queue.fetch_add(Remote{(uint64_t)&work.shared->sum, work.key}, 1, before, PATIENCE_NS, &ticket));
        TRY(9, queue.wait(ticket, PATIENCE_NS));
        uint64_t was = detail::load(&mine->before);
        if (was >= (uint64_t)work.rounds * work.threads) return complain(work, 10, Failure{});
        if (detail::compare_exchange(&work.seen[was], 0, 1) != 0) return complain(work, 11, Failure{});
        uint64_t guess = detail::load(&work.shared->highest);
        TRY(12, queue.compare_swap(Remote{(uint64_t)&work.shared->highest, work.key}, guess, guess + 1, before, PATIENCE_NS, &ticket));
        TRY(13, queue.wait(ticket, PATIENCE_NS));
        if (detail::load(&mine->before) == guess)
            TRY(14, queue.signal_add(Remote{(uint64_t)&work.shared->flag, work.key}, 1, PATIENCE_NS, &ticket));
        TRY(15, queue.nop(PATIENCE_NS, &ticket));
    }
    TRY(16, queue.flush(PATIENCE_NS));
}

#ifdef __CUDACC__
#include <cuda_runtime.h>

__global__ void kernel(Work work) { run<Providers::all>(work, blockIdx.x * blockDim.x + threadIdx.x); }

static void *memory(size_t bytes)
{
    void *at = nullptr;
    cudaError_t status = cudaHostAlloc(&at, bytes, cudaHostAllocMapped | cudaHostAllocPortable);
    if (status != cudaSuccess) {
        std::printf("%s\n", cudaGetErrorString(status));
        std::exit(1);
    }
    std::memset(at, 0, bytes);
    return at;
}

static void *gpu_memory(size_t bytes)
{
    void *at = nullptr;
    cudaError_t status = cudaMalloc(&at, bytes);
    if (status == cudaSuccess) status = cudaMemset(at, 0, bytes);
    if (status != cudaSuccess) {
        std::printf("%s\n", cudaGetErrorString(status));
        std::exit(1);
    }
    return at;
}

static void go(const Work &work)
{
    kernel<<<(work.threads + 31) / 32, work.threads < 32 ? work.threads : 32>>>(work);
    cudaError_t status = cudaDeviceSynchronize();
    if (status != cudaSuccess) {
        std::printf("%s\n", cudaGetErrorString(status));
        std::exit(1);
    }
}
#else
static void *memory(size_t bytes)
{
    void *at = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    std::memset(at, 0, bytes);
    return at;
}

static void *gpu_memory(size_t bytes) { return memory(bytes); }

static void go(const Work &work)
{
    std::vector<std::thread> threads;
    // Every other thread has only the queue's own provider.
    auto its_own = (work.queue.flags & OUTBOARD_NET_DIRECT) != 0 ? run<Providers::nvlink> : run<Providers::rings>;
    for (uint32_t i = 0; i < work.threads; ++i) threads.emplace_back([=] { (i % 2 == 1 ? its_own : run<Providers::all>)(work, i); });
    for (std::thread &thread : threads) thread.join();
}
#endif

// Code for other providers refuses the queue, and leaves it as it is.
template <Providers others> static bool refuses(const outboard_net_queue &of)
{
    QueueOf<others> queue(of);
    uint64_t ticket = 0;
    Failure posted = queue.put(Remote{}, Local{}, 8, 0, &ticket), flushed = queue.flush(0);
    return posted.cause == Cause::unsupported && flushed.cause == Cause::unsupported;
}

#define DO(call) \
    if ((call) != 0) { \
        std::printf("%s: %s\n", #call, outboard_net_message()); \
        return 1; \
    }

int main(int count, char **values)
{
    if (count < 6 || count > 8) return 2;
    Work work = {};
    work.threads = (uint32_t)std::atoi(values[1]);
    work.rounds = (uint32_t)std::atoi(values[2]);
    outboard_net_queue_options shape = {(uint32_t)std::atoi(values[3]), 0, 0, count > 7 ? (uint32_t)std::atoi(values[7]) : 0, 0};
    outboard_net_options options = {};
    options.loss_ppm = (uint32_t)std::atoi(values[4]);
    options.seed = (uint64_t)std::atoi(values[5]);
    outboard_net *net = nullptr;
    DO(outboard_net_open(&options, &net));
    outboard_net_queue other;
    uint64_t bytes = outboard_net_queue_bytes(&shape);
    DO(outboard_net_queue_create(net, memory(bytes), bytes, &shape, &other));
    if (count > 6 && std::strcmp(values[6], "gpu") == 0) shape.counters = (uint64_t)gpu_memory(outboard_net_counters_bytes(&shape));
    DO(outboard_net_queue_create(net, memory(bytes), bytes, &shape, &work.queue));
    DO(outboard_net_connect(net, work.queue.qpn, other.qpn));
    uint64_t total = (uint64_t)work.threads * work.rounds;
    size_t slots = work.threads * sizeof(Slot), all = 2 * slots + sizeof(Shared);
    char *data = (char *)memory(all);
    work.mine = (Slot *)data;
    work.theirs = (Slot *)(data + slots);
    work.shared = (Shared *)(data + 2 * slots);
    work.seen = (uint64_t *)memory(total * 8);
    work.wrong = (uint64_t *)memory(8);
    DO(outboard_net_register(net, data, all, 15, &work.key));
    bool is_direct = (work.queue.flags & OUTBOARD_NET_DIRECT) != 0;
    if (!(is_direct ? refuses<Providers::rings>(work.queue) : refuses<Providers::nvlink>(work.queue))) {
        std::printf("code for other providers took the queue\n");
        return 1;
    }
    go(work);
    outboard_net_status status;
    DO(outboard_net_status_of(net, work.queue.qpn, &status));
    int failed = *work.wrong != 0;
    if (failed && (work.queue.flags & OUTBOARD_NET_OF_GPU) == 0) {
        const uint64_t *counters = (const uint64_t *)work.queue.counters;
        for (int counter : {detail::RESERVED, detail::USED, detail::RINGING, detail::RUNG, detail::DONE, detail::ERROR}) std::printf("%llu ", (unsigned long long)counters[counter]);
        std::printf("reserved, used, ringing, rung, done, error\n");
    }
    if (failed) std::printf("step %d, syndrome %#x, cause %d, entry %llu\n", (int)(*work.wrong & 0xff), (unsigned)(*work.wrong >> 8 & 0xff), (int)(*work.wrong >> 16 & 0xff), (unsigned long long)(*work.wrong >> 24));
    if (work.shared->sum != total || work.shared->highest != work.shared->flag) failed = 1;
    if ((status.retries > 0) != (options.loss_ppm > 0)) failed = 1;
    std::printf("sum %llu of %llu, highest %llu, flag %llu, %llu operations, %llu sent again: %s\n", (unsigned long long)work.shared->sum,
                (unsigned long long)total, (unsigned long long)work.shared->highest, (unsigned long long)work.shared->flag,
                (unsigned long long)status.succeeded, (unsigned long long)status.retries, failed ? "WRONG" : "right");
    outboard_net_close(net);
    return failed;
}

// Times what threads of a kernel, or of the CPU (compiled without nvcc), post to one queue or several: one line of JSON.
//   bench THREADS QUEUES BYTES OPERATIONS WINDOW FLAGS COUNTERS [HOW]
// Each thread puts OPERATIONS times BYTES, and waits after each WINDOW of them. FLAGS are those of a queue; COUNTERS is
// `host` or `gpu`, where the queues' counters are. HOW is `alone`; `hold`: the doorbell rings once for 16; or `each`: the
// threads of a warp, and of a queue, put together, and wait together.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "outboard/net.cuh"

using namespace outboard::net;

constexpr uint64_t PATIENCE_NS = 20000000000ull;
constexpr uint32_t QUEUES_MAX = 64;

// Providers that its queues are compiled for.
#ifndef BENCH_PROVIDERS
#define BENCH_PROVIDERS Providers::all
#endif

enum class How : uint32_t { alone, hold, each };
constexpr uint32_t HELD = 16;

struct Work {
    outboard_net_queue queues[QUEUES_MAX];
    char *from, *to;
    uint64_t *wrong, *began, *ended, *posting;
    uint64_t bytes;
    uint32_t key, threads, queue_count, operations, window;
    How how;
};

OUTBOARD_NET_CALL uint64_t ticks()
{
#ifdef __CUDA_ARCH__
    return (uint64_t)clock64();
#else
    return detail::now_ns();
#endif
}

OUTBOARD_NET_CALL void run(const Work &work, uint32_t thread)
{
    QueueOf<BENCH_PROVIDERS> queue(work.queues[(work.how == How::each ? thread / 32 : thread) % work.queue_count]);
    if (work.how == How::hold) queue.hold();
    uint64_t ticket = 0, posting = 0;
    // What a call is given is in registers: it would be read from the host's memory again after each fence.
    const uint64_t bytes = work.bytes;
    const Remote to{(uint64_t)work.to + thread * bytes, work.key};
    const Local from{(uint64_t)work.from + thread * bytes, work.key};
    const uint32_t operations = work.operations, window = work.window;
    const How how = work.how;
    work.began[thread] = detail::now_ns();
    for (uint32_t i = 1; i <= operations; ++i) {
        uint64_t before = ticks();
        Failure failure = how == How::each ? queue.put_each(to, from, bytes, PATIENCE_NS, &ticket)
                                           : queue.put(to, from, bytes, PATIENCE_NS, &ticket);
        if (how == How::hold && i % HELD == 0) queue.ring();
        posting += ticks() - before;
        if (!failure && (i % window == 0 || i == operations)) {
            failure = how == How::each ? queue.wait<Scope::warp>(ticket, PATIENCE_NS) : queue.wait(ticket, PATIENCE_NS);
        }
        if (failure) {
            *work.wrong = (uint64_t)failure.cause << 8 | failure.syndrome;
            return;
        }
    }
    work.ended[thread] = detail::now_ns();
    work.posting[thread] = posting;
}

#ifdef __CUDACC__
#include <cuda_runtime.h>

__global__ void kernel(const Work *work)
{
    uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
    if (thread < work->threads) run(*work, thread);
}

static void expect(cudaError_t status)
{
    if (status == cudaSuccess) return;
    std::printf("%s\n", cudaGetErrorString(status));
    std::exit(1);
}

static void *memory(size_t bytes)
{
    void *at = nullptr;
    // Whole pages, so that what is made after it begins at one, too.
    bytes = (bytes + 4095) / 4096 * 4096;
    expect(cudaHostAlloc(&at, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
    std::memset(at, 0, bytes);
    return at;
}

static void *gpu_memory(size_t bytes)
{
    void *at = nullptr;
    expect(cudaMalloc(&at, bytes));
    expect(cudaMemset(at, 0, bytes));
    return at;
}

static void go(Work *work)
{
    kernel<<<(work->threads + 31) / 32, work->threads < 32 ? work->threads : 32>>>(work);
    expect(cudaDeviceSynchronize());
}

// Ticks of clock64() a nanosecond.
static double ticks_per_ns()
{
    int khz = 0;
    expect(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0));
    return khz / 1e6;
}
#else
static void *memory(size_t bytes)
{
    void *at = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    std::memset(at, 0, bytes);
    return at;
}

static void *gpu_memory(size_t) { return nullptr; }

static void go(Work *work)
{
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < work->threads; ++i) threads.emplace_back([=] { run(*work, i); });
    for (std::thread &thread : threads) thread.join();
}

static double ticks_per_ns() { return 1; }
#endif

#define DO(call) \
    if ((call) != 0) { \
        std::printf("%s: %s\n", #call, outboard_net_message()); \
        return 1; \
    }

static int make_queue(outboard_net *net, uint32_t flags, bool of_gpu, outboard_net_queue *queue)
{
    outboard_net_queue_options shape = {10, 0, 0, flags, 0}, far = shape;
    if (of_gpu) shape.counters = (uint64_t)gpu_memory(outboard_net_counters_bytes(&shape));
    uint64_t bytes = outboard_net_queue_bytes(&shape);
    outboard_net_queue other;
    DO(outboard_net_queue_create(net, memory(bytes), bytes, &shape, queue));
    DO(outboard_net_queue_create(net, memory(bytes), bytes, &far, &other));
    DO(outboard_net_connect(net, queue->qpn, other.qpn));
    return 0;
}

int main(int count, char **values)
{
    if (count != 8 && count != 9) return 2;
    const char *how = count == 9 ? values[8] : "alone";
    Work *work = (Work *)memory(sizeof(Work));
    work->threads = (uint32_t)std::atoi(values[1]);
    work->queue_count = (uint32_t)std::atoi(values[2]);
    work->bytes = (uint64_t)std::atoll(values[3]);
    work->operations = (uint32_t)std::atoi(values[4]);
    work->window = (uint32_t)std::atoi(values[5]);
    work->how = std::strcmp(how, "hold") == 0 ? How::hold : std::strcmp(how, "each") == 0 ? How::each : How::alone;
    bool of_gpu = std::strcmp(values[7], "gpu") == 0;
    if (work->queue_count == 0 || work->queue_count > QUEUES_MAX || work->window == 0 || work->threads == 0) return 2;
    outboard_net *net = nullptr;
    DO(outboard_net_open(nullptr, &net));
    for (uint32_t i = 0; i < work->queue_count; ++i)
        if (make_queue(net, (uint32_t)std::atoi(values[6]), of_gpu, &work->queues[i])) return 1;
    size_t total = work->threads * work->bytes;
    work->from = (char *)memory(2 * total);
    work->to = work->from + total;
    for (size_t i = 0; i < total; ++i) work->from[i] = (char)(i * 7 + 1);
    work->wrong = (uint64_t *)memory((1 + 3 * work->threads) * 8);
    work->began = work->wrong + 1, work->ended = work->began + work->threads, work->posting = work->ended + work->threads;
    DO(outboard_net_register(net, work->from, 2 * total, 15, &work->key));
    go(work);
    bool right = *work->wrong == 0 && std::memcmp(work->from, work->to, total) == 0;
    uint64_t began = *std::min_element(work->began, work->began + work->threads), ended = *std::max_element(work->ended, work->ended + work->threads);
    double posting = 0, puts = (double)work->threads * work->operations, us = (double)(ended - began) / 1e3;
    for (uint32_t i = 0; i < work->threads; ++i) posting += (double)work->posting[i];
    std::printf("{\"us_each\": %.3f, \"post_us\": %.3f, \"million_a_second\": %.4f, \"gigabytes_a_second\": %.3f, \"syndrome\": %d, \"right\": %s}\n", us / work->operations,
                posting / puts / ticks_per_ns() / 1e3, puts / us, puts * (double)work->bytes / us / 1e3, (int)(*work->wrong & 0xff), right ? "true" : "false");
    outboard_net_close(net);
    return right ? 0 : 1;
}

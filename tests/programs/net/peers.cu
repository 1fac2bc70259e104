// Two GPUs of a program, or two blocks of one GPU, by the provider nvlink: one line of JSON.
//   peers latency SCOPE BYTES ROUNDS [together]
//                                         both put and signal in turns, or by put_signal: nanoseconds of one way
//   peers bandwidth BYTES ROUNDS BLOCKS   blocks of 512 threads put together, and wait: gigabytes a second
//   peers rate THREADS OPERATIONS         each thread writes words, and waits: operations a second
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "outboard/net.cuh"

using namespace outboard::net;

#ifndef PROVIDERS
#define PROVIDERS nvlink
#endif
using PeerQueue = QueueOf<Providers::PROVIDERS>;

constexpr uint64_t PATIENCE_NS = 20000000000ull;
constexpr uint32_t WARM_UP = 20, BLOCK = 512;

// A GPU's end: what it reads and where it writes, and the flag that the other sets.
struct End {
    outboard_net_queue queue;
    Local from;
    Remote to, flag;
    const uint64_t *mine;
    uint64_t *out;  // nanoseconds, failure
};
struct Both {
    End ends[2];
};

static void expect(cudaError_t status)
{
    if (status == cudaSuccess) return;
    std::printf("{\"failed\": \"%s\"}\n", cudaGetErrorString(status));
    std::exit(1);
}

#define DO(call) \
    if ((call) != 0) { \
        std::printf("{\"failed\": \"%s: %s\"}\n", #call, outboard_net_message()); \
        std::exit(1); \
    }

// Thread 0 of the group waits, and the others for it. False in that thread alone.
template <Scope scope> __device__ bool arrived(const uint64_t *flag, uint64_t generation)
{
    bool is = threadIdx.x != 0 || poll_slot(flag, generation, PATIENCE_NS);
    detail::enter<scope>();
    return is;
}

template <Scope scope, bool together> __global__ void __launch_bounds__(BLOCK) play(const Both both, int first, uint64_t bytes, uint64_t rounds)
{
    int side = first + blockIdx.x;
    const End &end = both.ends[side];
    PeerQueue queue(end.queue);
    uint64_t ticket, began = 0;
    for (uint64_t round = 1; round <= rounds + WARM_UP; ++round) {
        if (round == WARM_UP + 1) began = detail::now_ns();
        bool is_right = side == 0 || arrived<scope>(end.mine, round);
        Failure failure{};
        if constexpr (together) {
            failure = queue.put_signal<scope>(end.to, end.from, bytes, end.flag, round, PATIENCE_NS, &ticket);
        } else {
            failure = queue.put<scope>(end.to, end.from, bytes, PATIENCE_NS, &ticket);
            if (!failure) failure = queue.signal_set<scope>(end.flag, round, PATIENCE_NS, &ticket);
        }
        if (is_right && side == 0) is_right = arrived<scope>(end.mine, round);
        if (!is_right || failure) {
            end.out[1] = 1 + failure.syndrome;
            return;
        }
    }
    uint64_t ended = detail::now_ns();
    Failure failure = queue.flush<scope>(PATIENCE_NS);
    if (failure) end.out[1] = 1 + failure.syndrome;
    if (threadIdx.x == 0) end.out[0] = ended - began;
}

__global__ void __launch_bounds__(BLOCK) pour(const End *given, uint64_t bytes, uint64_t rounds)
{
    const End end = *given;
    PeerQueue queue(end.queue);
    uint64_t ticket, each = bytes / gridDim.x, at = each * blockIdx.x;
    Failure failure{};
    for (uint64_t round = 0; round < rounds && !failure; ++round)
        failure = queue.put<Scope::block>(Remote{end.to.address + at, end.to.key}, Local{end.from.address + at, end.from.key}, each, PATIENCE_NS, &ticket);
    if (!failure) failure = queue.flush<Scope::block>(PATIENCE_NS);
    if (failure) end.out[1] = 1 + failure.syndrome;
}

__global__ void words(const End *given, uint32_t operations)
{
    const End end = *given;
    PeerQueue queue(end.queue);
    uint64_t ticket, thread = blockIdx.x * blockDim.x + threadIdx.x;
    Remote to{end.to.address + thread * 8, end.to.key};
    Failure failure{};
    for (uint32_t i = 1; i <= operations && !failure; ++i) failure = queue.put_value(to, (uint64_t)i << 32 | thread, PATIENCE_NS, &ticket);
    if (!failure) failure = queue.flush(PATIENCE_NS);
    if (failure) end.out[1] = 1 + failure.syndrome;
}

struct Timer {
    cudaEvent_t began, ended;

    Timer()
    {
        expect(cudaEventCreate(&began));
        expect(cudaEventCreate(&ended));
        expect(cudaEventRecord(began));
    }

    double seconds()
    {
        float ms = 0;
        expect(cudaEventRecord(ended));
        expect(cudaEventSynchronize(ended));
        expect(cudaEventElapsedTime(&ms, began, ended));
        return ms / 1e3;
    }
};

static void *pinned(size_t bytes)
{
    void *at = nullptr;
    expect(cudaHostAlloc(&at, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
    return std::memset(at, 0, bytes);
}

// Endpoint, memory and queues of both: `bytes` to read, as many to write, and a flag, in each GPU's memory.
static Both opened(int gpus, uint64_t bytes)
{
    outboard_net_options options = {};
    options.provider = OUTBOARD_NET_NVLINK;
    outboard_net *net = nullptr;
    DO(outboard_net_open(&options, &net));
    outboard_net_queue_options shape = {6, 0, 0, 0, 0};
    uint64_t size = outboard_net_queue_bytes(&shape), all = 2 * bytes + 16;
    Both both = {};
    uint64_t memory[2];
    uint32_t keys[2];
    for (int side = 0; side < 2; ++side) {
        expect(cudaSetDevice(side % gpus));
        if (gpus > 1) expect(cudaDeviceEnablePeerAccess(1 - side, 0));
        void *at = nullptr;
        expect(cudaMalloc(&at, all));
        expect(cudaMemset(at, side + 1, all));
        expect(cudaMemset((char *)at + 2 * bytes, 0, 16));
        expect(cudaDeviceSynchronize());
        memory[side] = (uint64_t)at;
        DO(outboard_net_register(net, at, all, 15, &keys[side]));
        DO(outboard_net_queue_create(net, pinned(size), size, &shape, &both.ends[side].queue));
    }
    DO(outboard_net_connect(net, both.ends[0].queue.qpn, both.ends[1].queue.qpn));
    for (int side = 0; side < 2; ++side) {
        End &end = both.ends[side];
        int other = 1 - side;
        end.from = Local{memory[side], keys[side]};
        end.to = Remote{memory[other] + bytes, keys[other]};
        end.flag = Remote{memory[other] + 2 * bytes, keys[other]};
        end.mine = (const uint64_t *)(memory[side] + 2 * bytes);
        end.out = (uint64_t *)pinned(16);
    }
    return both;
}

// Whether the other end of a side has its bytes.
static bool has_come(const Both &both, int side, uint64_t bytes)
{
    char *copy = (char *)pinned(bytes);
    expect(cudaMemcpy(copy, (const void *)both.ends[side].to.address, bytes, cudaMemcpyDefault));
    for (uint64_t i = 0; i < bytes; ++i)
        if (copy[i] != side + 1) return false;
    return true;
}

template <Scope scope> static void latency(int gpus, uint64_t bytes, uint64_t rounds, bool together)
{
    Both both = opened(gpus, bytes);
    int threads = scope == Scope::thread ? 1 : scope == Scope::warp ? 32 : BLOCK;
    for (int side = 0; side < gpus; ++side) {
        expect(cudaSetDevice(side));
        if (together) play<scope, true><<<2 / gpus, threads>>>(both, side, bytes, rounds);
        else play<scope, false><<<2 / gpus, threads>>>(both, side, bytes, rounds);
        expect(cudaGetLastError());
    }
    for (int side = 0; side < gpus; ++side) {
        expect(cudaSetDevice(side));
        expect(cudaDeviceSynchronize());
    }
    bool right = both.ends[0].out[1] == 0 && both.ends[1].out[1] == 0 && has_come(both, 0, bytes) && has_come(both, 1, bytes);
    std::printf("{\"gpus\": %d, \"bytes\": %llu, \"one_way_ns\": %.1f, \"right\": %s}\n", gpus, (unsigned long long)bytes,
                (double)both.ends[0].out[0] / (2.0 * (double)rounds), right ? "true" : "false");
    std::exit(right ? 0 : 1);
}

int main(int count, char **values)
{
    if (count < 4) return 2;
    int gpus = 0;
    expect(cudaGetDeviceCount(&gpus));
    gpus = gpus > 2 ? 2 : gpus;
    auto number = [&](int at) { return at < count ? std::strtoull(values[at], nullptr, 10) : 0; };
    if (std::strcmp(values[1], "latency") == 0) {
        bool together = count > 5;
        switch (values[2][0]) {
        case 't': latency<Scope::thread>(gpus, number(3), number(4), together); break;
        case 'w': latency<Scope::warp>(gpus, number(3), number(4), together); break;
        default: latency<Scope::block>(gpus, number(3), number(4), together);
        }
    }
    bool pours = std::strcmp(values[1], "bandwidth") == 0;
    uint64_t threads = number(2), bytes = pours ? number(2) : threads * 8, rounds = number(3), blocks = number(4);
    Both both = opened(gpus, bytes);
    expect(cudaSetDevice(0));
    // In the GPU's memory, so that what each call takes is in registers.
    End *given = nullptr;
    expect(cudaMalloc(&given, sizeof *given));
    expect(cudaMemcpy(given, &both.ends[0], sizeof *given, cudaMemcpyHostToDevice));
    double seconds = 0;
    for (uint64_t some : {(uint64_t)WARM_UP, rounds}) {
        Timer timer;
        if (pours) pour<<<blocks, BLOCK>>>(given, bytes, some);
        else words<<<(threads + 255) / 256, threads < 256 ? threads : 256>>>(given, some);
        expect(cudaGetLastError());
        seconds = timer.seconds();
    }
    bool right = both.ends[0].out[1] == 0;
    if (pours) {
        right = right && has_come(both, 0, bytes / blocks * blocks);
        std::printf("{\"gpus\": %d, \"bytes\": %llu, \"blocks\": %llu, \"gigabytes_a_second\": %.2f, \"right\": %s}\n", gpus,
                    (unsigned long long)bytes, (unsigned long long)blocks, (double)(bytes * rounds) / seconds / 1e9, right ? "true" : "false");
    } else {
        std::printf("{\"gpus\": %d, \"threads\": %llu, \"operations_a_second\": %.0f, \"right\": %s}\n", gpus, (unsigned long long)threads,
                    (double)(threads * rounds) / seconds, right ? "true" : "false");
    }
    return right ? 0 : 1;
}

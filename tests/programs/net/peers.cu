// Two GPUs of a program, or two blocks of one GPU, by the provider nvlink: one line of JSON.
//   peers latency SCOPE BYTES ROUNDS [together]
//                                         both put and signal in turns, or by put_signal: nanoseconds of one way
//   peers bandwidth BYTES ROUNDS BLOCKS   blocks of 512 threads put together, and wait: gigabytes a second
//   peers rate THREADS OPERATIONS         each thread writes words, and waits: operations a second
#include "case.cuh"
#include "outboard/net.cuh"

using namespace outboard::net;

#ifndef PROVIDERS
#define PROVIDERS nvlink
#endif
using PeerQueue = QueueOf<Providers::PROVIDERS>;

constexpr uint64_t PATIENCE_NS = 20000000000ull;

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

#define DO(call) \
    if ((call) != 0) fail(#call, outboard_net_message())

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
    return has_come((const char *)both.ends[side].to.address, side + 1, bytes);
}

template <Scope scope> static int latency(int gpus, const Case &of)
{
    uint64_t bytes = of.bytes, rounds = of.rounds;
    Both both = opened(gpus, bytes);
    int threads = scope == Scope::thread ? 1 : scope == Scope::warp ? 32 : BLOCK;
    for (int side = 0; side < gpus; ++side) {
        expect(cudaSetDevice(side));
        if (of.together) play<scope, true><<<2 / gpus, threads>>>(both, side, bytes, rounds);
        else play<scope, false><<<2 / gpus, threads>>>(both, side, bytes, rounds);
        expect(cudaGetLastError());
    }
    for (int side = 0; side < gpus; ++side) {
        expect(cudaSetDevice(side));
        expect(cudaDeviceSynchronize());
    }
    bool right = both.ends[0].out[1] == 0 && both.ends[1].out[1] == 0 && has_come(both, 0, bytes) && has_come(both, 1, bytes);
    of.say(gpus, (double)both.ends[0].out[0], right);
    return right ? 0 : 1;
}

int main(int count, char **values)
{
    if (count < 4) return 2;
    int gpus = 0;
    expect(cudaGetDeviceCount(&gpus));
    gpus = gpus > 2 ? 2 : gpus;
    Case of(count, values);
    if (of.plays) {
        switch (of.scope) {
        case 't': return latency<Scope::thread>(gpus, of);
        case 'w': return latency<Scope::warp>(gpus, of);
        default: return latency<Scope::block>(gpus, of);
        }
    }
    Both both = opened(gpus, of.bytes);
    expect(cudaSetDevice(0));
    // In the GPU's memory, so that what each call takes is in registers.
    End *given = nullptr;
    expect(cudaMalloc(&given, sizeof *given));
    expect(cudaMemcpy(given, &both.ends[0], sizeof *given, cudaMemcpyHostToDevice));
    double took = of.seconds([&](uint64_t some) {
        if (of.pours) pour<<<of.blocks, BLOCK>>>(given, of.bytes, some);
        else words<<<of.words_grid(), of.words_block()>>>(given, some);
    });
    bool right = both.ends[0].out[1] == 0 && (!of.pours || has_come(both, 0, of.poured()));
    of.say(gpus, took, right);
    return right ? 0 : 1;
}

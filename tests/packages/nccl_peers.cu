// NCCL's loads and stores to a peer (LSA) beside tests/programs/net/peers.cu: two processes, one GPU each, with the same
// cases and the same line of JSON. NCCL gives the address of the other's window; kernels write there themselves.
//   nccl_peers latency SCOPE BYTES ROUNDS
//   nccl_peers bandwidth BYTES ROUNDS BLOCKS
//   nccl_peers rate THREADS OPERATIONS
#include <nccl.h>
#include <nccl_device.h>

#include <cuda/atomic>

#include "../programs/net/case.cuh"

static void expect(ncclResult_t status, const char *what)
{
    if (status == ncclSuccess) return;
    std::printf("{\"failed\": \"%s: %s: %s\"}\n", what, ncclGetErrorString(status), ncclGetLastError(nullptr));
    std::exit(1);
}
#define NCCL(call) expect(call, #call)

// Copies 16 bytes a thread, four of them under way at once, and the rest by bytes.
__device__ void copy(char *to, const char *from, uint64_t bytes, unsigned thread, unsigned threads)
{
    uint64_t wide = bytes / 16, at = thread;
    auto *into = (uint4 *)to;
    auto *of = (const uint4 *)from;
    for (; at + 3 * threads < wide; at += 4 * threads) {
        uint4 a = of[at], b = of[at + threads], c = of[at + 2 * threads], d = of[at + 3 * threads];
        into[at] = a;
        into[at + threads] = b;
        into[at + 2 * threads] = c;
        into[at + 3 * threads] = d;
    }
    for (; at < wide; at += threads) into[at] = of[at];
    for (uint64_t rest = wide * 16 + thread; rest < bytes; rest += threads) to[rest] = from[rest];
}

using Flag = cuda::atomic_ref<uint64_t, cuda::thread_scope_system>;

// Writes and sets the other's flag as one thread (0), a warp (1) or a block (2), in turns with the other.
template <int scope> __global__ void __launch_bounds__(BLOCK) play(ncclWindow_t window, int me, uint64_t bytes, uint64_t rounds, uint64_t *out)
{
    auto *mine = (char *)ncclGetLsaPointer(window, 0, me), *other = (char *)ncclGetLsaPointer(window, 0, 1 - me);
    Flag here(*(uint64_t *)mine), there(*(uint64_t *)other);
    uint64_t began = 0;
    for (uint64_t round = 1; round <= rounds + WARM_UP; ++round) {
        if (round == WARM_UP + 1) began = now_ns();
        for (int turn = 0; turn < 2; ++turn) {
            if (turn == me) {
                copy(other + inbox(bytes), mine + OUTBOX, bytes, threadIdx.x, blockDim.x);
                if constexpr (scope == 1) __syncwarp();
                if constexpr (scope == 2) __syncthreads();
                if (threadIdx.x == 0) there.store(round, cuda::memory_order_release);
            } else {
                if (threadIdx.x == 0)
                    while (here.load(cuda::memory_order_acquire) < round) {}
                if constexpr (scope == 1) __syncwarp();
                if constexpr (scope == 2) __syncthreads();
            }
        }
    }
    if (threadIdx.x == 0) *out = now_ns() - began;
}

__global__ void __launch_bounds__(BLOCK) pour(ncclWindow_t window, uint64_t bytes, uint64_t rounds)
{
    uint64_t each = bytes / gridDim.x, at = each * blockIdx.x;
    auto *from = (char *)ncclGetLsaPointer(window, OUTBOX + at, 0), *to = (char *)ncclGetLsaPointer(window, inbox(bytes) + at, 1);
    for (uint64_t round = 0; round < rounds; ++round) copy(to, from, each, threadIdx.x, blockDim.x);
    __threadfence_system();
}

__global__ void words(ncclWindow_t window, uint64_t bytes, uint32_t operations)
{
    uint64_t thread = blockIdx.x * blockDim.x + threadIdx.x;
    auto *to = (volatile uint64_t *)ncclGetLsaPointer(window, inbox(bytes) + 8 * thread, 1);
    for (uint32_t i = 1; i <= operations; ++i) *to = (uint64_t)i << 32 | thread;
    __threadfence_system();
}

// Both processes have come here.
static void meet(ncclComm_t comm, char *word)
{
    NCCL(ncclAllReduce(word, word, 1, ncclInt8, ncclSum, comm, nullptr));
    expect(cudaDeviceSynchronize());
}

static int run(int me, const Case &of, const ncclUniqueId &id)
{
    expect(cudaSetDevice(me));
    ncclComm_t comm;
    NCCL(ncclCommInitRank(&comm, 2, id, me));
    char *memory, *word;
    uint64_t *out = nullptr;
    uint64_t bytes = of.bytes, all = inbox(bytes) + bytes;
    NCCL(ncclMemAlloc((void **)&memory, all));
    ncclWindow_t window;
    NCCL(ncclCommWindowRegister(comm, memory, all, &window, NCCL_WIN_COLL_SYMMETRIC));
    expect(cudaHostAlloc((void **)&out, 8, cudaHostAllocMapped));
    expect(cudaMalloc((void **)&word, 1));
    expect(cudaMemset(memory, 0, OUTBOX));
    expect(cudaMemset(memory + OUTBOX, me + 1, bytes));
    meet(comm, word);
    bool right = true;
    char *to = memory + inbox(bytes);
    double took = 0;
    if (of.plays) {
        switch (of.scope) {
        case 't': play<0><<<1, 1>>>(window, me, bytes, of.rounds, out); break;
        case 'w': play<1><<<1, 32>>>(window, me, bytes, of.rounds, out); break;
        default: play<2><<<1, BLOCK>>>(window, me, bytes, of.rounds, out);
        }
        expect(cudaGetLastError());
        expect(cudaDeviceSynchronize());
        meet(comm, word);
        right = has_come(to, 2 - me, bytes);
        took = (double)*out;
    } else {
        auto launch = [&](uint64_t some) {
            if (of.pours) pour<<<of.blocks, BLOCK>>>(window, bytes, some);
            else words<<<of.words_grid(), of.words_block()>>>(window, bytes, some);
        };
        if (me == 0) took = of.seconds(launch);
        meet(comm, word);
        if (me == 1 && of.pours) right = has_come(to, 1, of.poured());
    }
    if (me == 0) of.say(2, took, right);
    NCCL(ncclCommWindowDeregister(comm, window));
    NCCL(ncclMemFree(memory));
    NCCL(ncclCommDestroy(comm));
    return right ? 0 : 1;
}

int main(int count, char **values)
{
    if (count < 4) return 2;
    auto make = [](ncclUniqueId &id) { NCCL(ncclGetUniqueId(&id)); };
    auto runs = [&](int me, const ncclUniqueId &id) { return run(me, Case(count, values), id); };
    return in_two_processes(ncclUniqueId(), make, runs);
}

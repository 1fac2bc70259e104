// NCCL's loads and stores to a peer (LSA) beside tests/programs/net/peers.cu: two processes, one GPU each, with the same
// cases and the same line of JSON. NCCL gives the address of the other's window; kernels write there themselves.
//   nccl_peers latency SCOPE BYTES ROUNDS
//   nccl_peers bandwidth BYTES ROUNDS BLOCKS
//   nccl_peers rate THREADS OPERATIONS
#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda/atomic>

constexpr uint64_t WARM_UP = 20;
constexpr unsigned BLOCK = 512;

static void expect(cudaError_t status)
{
    if (status == cudaSuccess) return;
    std::printf("{\"failed\": \"%s\"}\n", cudaGetErrorString(status));
    std::exit(1);
}

static void expect(ncclResult_t status, const char *what)
{
    if (status == ncclSuccess) return;
    std::printf("{\"failed\": \"%s: %s: %s\"}\n", what, ncclGetErrorString(status), ncclGetLastError(nullptr));
    std::exit(1);
}
#define NCCL(call) expect(call, #call)

__device__ uint64_t now_ns()
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

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

// Offset of the bytes that the other rank writes, in a window that begins with a flag and the bytes to send.
__host__ __device__ uint64_t inbox(uint64_t bytes)
{
    return 128 + (bytes + 127) / 128 * 128;
}

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
                copy(other + inbox(bytes), mine + 128, bytes, threadIdx.x, blockDim.x);
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
    auto *from = (char *)ncclGetLsaPointer(window, 128 + at, 0), *to = (char *)ncclGetLsaPointer(window, inbox(bytes) + at, 1);
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

static bool has_come(const char *at, int value, uint64_t bytes)
{
    char *copy = (char *)std::malloc(bytes);
    expect(cudaMemcpy(copy, at, bytes, cudaMemcpyDefault));
    for (uint64_t i = 0; i < bytes; ++i)
        if (copy[i] != value) return false;
    return true;
}

static float ms_of(cudaEvent_t began)
{
    cudaEvent_t ended;
    float ms = 0;
    expect(cudaEventCreate(&ended));
    expect(cudaEventRecord(ended));
    expect(cudaEventSynchronize(ended));
    expect(cudaEventElapsedTime(&ms, began, ended));
    return ms;
}

// Both processes have come here.
static void meet(ncclComm_t comm, char *word)
{
    NCCL(ncclAllReduce(word, word, 1, ncclInt8, ncclSum, comm, nullptr));
    expect(cudaDeviceSynchronize());
}

static int run(int me, int count, char **values, const ncclUniqueId &id)
{
    expect(cudaSetDevice(me));
    ncclComm_t comm;
    NCCL(ncclCommInitRank(&comm, 2, id, me));
    auto number = [&](int at) { return at < count ? std::strtoull(values[at], nullptr, 10) : 0; };
    bool plays = std::strcmp(values[1], "latency") == 0, pours = std::strcmp(values[1], "bandwidth") == 0;
    uint64_t bytes = plays ? number(3) : pours ? number(2) : number(2) * 8;
    char *memory, *word;
    uint64_t *out = nullptr;
    uint64_t all = inbox(bytes) + bytes;
    NCCL(ncclMemAlloc((void **)&memory, all));
    ncclWindow_t window;
    NCCL(ncclCommWindowRegister(comm, memory, all, &window, NCCL_WIN_COLL_SYMMETRIC));
    expect(cudaHostAlloc((void **)&out, 8, cudaHostAllocMapped));
    expect(cudaMalloc((void **)&word, 1));
    expect(cudaMemset(memory, 0, 128));
    expect(cudaMemset(memory + 128, me + 1, bytes));
    meet(comm, word);
    bool right = true;
    char *to = memory + inbox(bytes);
    if (plays) {
        switch (values[2][0]) {
        case 't': play<0><<<1, 1>>>(window, me, bytes, number(4), out); break;
        case 'w': play<1><<<1, 32>>>(window, me, bytes, number(4), out); break;
        default: play<2><<<1, BLOCK>>>(window, me, bytes, number(4), out);
        }
        expect(cudaGetLastError());
        expect(cudaDeviceSynchronize());
        meet(comm, word);
        right = has_come(to, 2 - me, bytes);
        if (me == 0)
            std::printf("{\"gpus\": 2, \"bytes\": %llu, \"one_way_ns\": %.1f, \"right\": %s}\n", (unsigned long long)bytes,
                        (double)*out / (2.0 * (double)number(4)), right ? "true" : "false");
    } else {
        float ms = 0;
        for (uint64_t some : {WARM_UP, (uint64_t)number(3)}) {
            if (me != 0) break;
            cudaEvent_t began;
            expect(cudaEventCreate(&began));
            expect(cudaEventRecord(began));
            uint64_t threads = number(2);
            if (pours) pour<<<number(4), BLOCK>>>(window, bytes, some);
            else words<<<(threads + 255) / 256, threads < 256 ? threads : 256>>>(window, bytes, some);
            expect(cudaGetLastError());
            ms = ms_of(began);
        }
        meet(comm, word);
        if (me == 1 && pours) right = has_come(to, 1, bytes / number(4) * number(4));
        double times = (double)number(3) / (ms / 1e3);
        if (me == 0 && pours)
            std::printf("{\"gpus\": 2, \"bytes\": %llu, \"blocks\": %llu, \"gigabytes_a_second\": %.2f, \"right\": true}\n",
                        (unsigned long long)bytes, (unsigned long long)number(4), (double)bytes * times / 1e9);
        if (me == 0 && !pours)
            std::printf("{\"gpus\": 2, \"threads\": %llu, \"operations_a_second\": %.0f, \"right\": true}\n", (unsigned long long)number(2),
                        (double)number(2) * times);
    }
    NCCL(ncclCommWindowDeregister(comm, window));
    NCCL(ncclMemFree(memory));
    NCCL(ncclCommDestroy(comm));
    return right ? 0 : 1;
}

int main(int count, char **values)
{
    if (count < 4) return 2;
    int ways[2];
    if (pipe(ways) != 0) return 3;
    // The first process makes the id; both begin to use CUDA after the fork.
    pid_t child = fork();
    ncclUniqueId id;
    if (child == 0) {
        if (read(ways[0], &id, sizeof id) != (ssize_t)sizeof id) return 3;
        return run(1, count, values, id);
    }
    NCCL(ncclGetUniqueId(&id));
    if (write(ways[1], &id, sizeof id) != (ssize_t)sizeof id) return 3;
    int ended = run(0, count, values, id), status = 0;
    std::fflush(stdout);
    waitpid(child, &status, 0);
    return ended != 0 ? ended : WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

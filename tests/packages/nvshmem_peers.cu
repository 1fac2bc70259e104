// NVSHMEM beside tests/programs/net/peers.cu: two processes, one GPU each, with the same cases and the same line of JSON.
//   nvshmem_peers latency SCOPE BYTES ROUNDS
//   nvshmem_peers bandwidth BYTES ROUNDS BLOCKS
//   nvshmem_peers rate THREADS OPERATIONS
#include <cuda_runtime.h>
#include <nvshmem.h>
#include <nvshmemx.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

constexpr uint64_t WARM_UP = 20;
constexpr unsigned BLOCK = 512;

static void expect(cudaError_t status)
{
    if (status == cudaSuccess) return;
    std::printf("{\"failed\": \"%s\"}\n", cudaGetErrorString(status));
    std::exit(1);
}

__device__ uint64_t now_ns()
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

// Puts and signals as one thread (0), a warp (1) or a block (2), in turns with the other.
template <int scope> __global__ void __launch_bounds__(BLOCK) play(int me, char *to, const char *from, uint64_t *flag, uint64_t bytes, uint64_t rounds, uint64_t *out)
{
    int other = 1 - me;
    uint64_t began = 0;
    for (uint64_t round = 1; round <= rounds + WARM_UP; ++round) {
        if (round == WARM_UP + 1) began = now_ns();
        for (int turn = 0; turn < 2; ++turn) {
            if (turn == me) {
                if constexpr (scope == 0) nvshmem_putmem_signal_nbi(to, from, bytes, flag, round, NVSHMEM_SIGNAL_SET, other);
                if constexpr (scope == 1) nvshmemx_putmem_signal_nbi_warp(to, from, bytes, flag, round, NVSHMEM_SIGNAL_SET, other);
                if constexpr (scope == 2) nvshmemx_putmem_signal_nbi_block(to, from, bytes, flag, round, NVSHMEM_SIGNAL_SET, other);
            } else {
                if (threadIdx.x == 0) nvshmem_signal_wait_until(flag, NVSHMEM_CMP_GE, round);
                if constexpr (scope == 1) __syncwarp();
                if constexpr (scope == 2) __syncthreads();
            }
        }
    }
    uint64_t ended = now_ns();
    nvshmem_quiet();
    if (threadIdx.x == 0) *out = ended - began;
}

__global__ void __launch_bounds__(BLOCK) pour(char *to, const char *from, uint64_t bytes, uint64_t rounds)
{
    uint64_t each = bytes / gridDim.x, at = each * blockIdx.x;
    for (uint64_t round = 0; round < rounds; ++round) nvshmemx_putmem_nbi_block(to + at, from + at, each, 1);
    nvshmem_quiet();
}

__global__ void words(uint64_t *to, uint32_t operations)
{
    uint64_t thread = blockIdx.x * blockDim.x + threadIdx.x;
    for (uint32_t i = 1; i <= operations; ++i) nvshmem_uint64_p(to + thread, (uint64_t)i << 32 | thread, 1);
    nvshmem_quiet();
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

static int run(int me, int count, char **values, const nvshmemx_uniqueid_t &id)
{
    expect(cudaSetDevice(me));
    nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
    nvshmemx_set_attr_uniqueid_args(me, 2, &id, &attributes);
    if (nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes) != 0) return 3;
    auto number = [&](int at) { return at < count ? std::strtoull(values[at], nullptr, 10) : 0; };
    bool plays = std::strcmp(values[1], "latency") == 0, pours = std::strcmp(values[1], "bandwidth") == 0;
    uint64_t bytes = plays ? number(3) : pours ? number(2) : number(2) * 8;
    char *from = (char *)nvshmem_malloc(bytes), *to = (char *)nvshmem_malloc(bytes);
    uint64_t *flag = (uint64_t *)nvshmem_malloc(16), *out = nullptr;
    expect(cudaHostAlloc((void **)&out, 8, cudaHostAllocMapped));
    expect(cudaMemset(from, me + 1, bytes));
    expect(cudaMemset(flag, 0, 16));
    expect(cudaDeviceSynchronize());
    nvshmem_barrier_all();
    bool right = true;
    if (plays) {
        switch (values[2][0]) {
        case 't': play<0><<<1, 1>>>(me, to, from, flag, bytes, number(4), out); break;
        case 'w': play<1><<<1, 32>>>(me, to, from, flag, bytes, number(4), out); break;
        default: play<2><<<1, BLOCK>>>(me, to, from, flag, bytes, number(4), out);
        }
        expect(cudaGetLastError());
        expect(cudaDeviceSynchronize());
        nvshmem_barrier_all();
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
            if (pours) pour<<<number(4), BLOCK>>>(to, from, bytes, some);
            else words<<<(threads + 255) / 256, threads < 256 ? threads : 256>>>((uint64_t *)to, some);
            expect(cudaGetLastError());
            ms = ms_of(began);
        }
        nvshmem_barrier_all();
        if (me == 1 && pours) right = has_come(to, 1, bytes / number(4) * number(4));
        double times = (double)number(3) / (ms / 1e3);
        if (me == 0 && pours)
            std::printf("{\"gpus\": 2, \"bytes\": %llu, \"blocks\": %llu, \"gigabytes_a_second\": %.2f, \"right\": true}\n",
                        (unsigned long long)bytes, (unsigned long long)number(4), (double)bytes * times / 1e9);
        if (me == 0 && !pours)
            std::printf("{\"gpus\": 2, \"threads\": %llu, \"operations_a_second\": %.0f, \"right\": true}\n", (unsigned long long)number(2),
                        (double)number(2) * times);
    }
    nvshmem_finalize();
    return right ? 0 : 1;
}

int main(int count, char **values)
{
    if (count < 4) return 2;
    int ways[2];
    if (pipe(ways) != 0) return 3;
    // The first process makes the id; both begin to use CUDA after the fork.
    pid_t child = fork();
    nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
    if (child == 0) {
        if (read(ways[0], &id, sizeof id) != (ssize_t)sizeof id) return 3;
        return run(1, count, values, id);
    }
    if (nvshmemx_get_uniqueid(&id) != 0 || write(ways[1], &id, sizeof id) != (ssize_t)sizeof id) return 3;
    int ended = run(0, count, values, id), status = 0;
    std::fflush(stdout);
    waitpid(child, &status, 0);
    return ended != 0 ? ended : WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

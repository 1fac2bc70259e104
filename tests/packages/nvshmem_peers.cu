// NVSHMEM beside tests/programs/net/peers.cu: two processes, one GPU each, with the same cases and the same line of JSON.
//   nvshmem_peers latency SCOPE BYTES ROUNDS
//   nvshmem_peers bandwidth BYTES ROUNDS BLOCKS
//   nvshmem_peers rate THREADS OPERATIONS
#include <nvshmem.h>
#include <nvshmemx.h>

#include "../programs/net/case.cuh"

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

static int run(int me, const Case &of, const nvshmemx_uniqueid_t &id)
{
    expect(cudaSetDevice(me));
    nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
    nvshmemx_set_attr_uniqueid_args(me, 2, &id, &attributes);
    if (nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes) != 0) return 3;
    uint64_t bytes = of.bytes;
    char *from = (char *)nvshmem_malloc(bytes), *to = (char *)nvshmem_malloc(bytes);
    uint64_t *flag = (uint64_t *)nvshmem_malloc(16), *out = nullptr;
    expect(cudaHostAlloc((void **)&out, 8, cudaHostAllocMapped));
    expect(cudaMemset(from, me + 1, bytes));
    expect(cudaMemset(flag, 0, 16));
    expect(cudaDeviceSynchronize());
    nvshmem_barrier_all();
    bool right = true;
    double took = 0;
    if (of.plays) {
        switch (of.scope) {
        case 't': play<0><<<1, 1>>>(me, to, from, flag, bytes, of.rounds, out); break;
        case 'w': play<1><<<1, 32>>>(me, to, from, flag, bytes, of.rounds, out); break;
        default: play<2><<<1, BLOCK>>>(me, to, from, flag, bytes, of.rounds, out);
        }
        expect(cudaGetLastError());
        expect(cudaDeviceSynchronize());
        nvshmem_barrier_all();
        right = has_come(to, 2 - me, bytes);
        took = (double)*out;
    } else {
        auto launch = [&](uint64_t some) {
            if (of.pours) pour<<<of.blocks, BLOCK>>>(to, from, bytes, some);
            else words<<<of.words_grid(), of.words_block()>>>((uint64_t *)to, some);
        };
        if (me == 0) took = of.seconds(launch);
        nvshmem_barrier_all();
        if (me == 1 && of.pours) right = has_come(to, 1, of.poured());
    }
    if (me == 0) of.say(2, took, right);
    nvshmem_finalize();
    return right ? 0 : 1;
}

int main(int count, char **values)
{
    if (count < 4) return 2;
    auto make = [](nvshmemx_uniqueid_t &id) {
        if (nvshmemx_get_uniqueid(&id) != 0) fail("nvshmemx_get_uniqueid", "no id");
    };
    auto runs = [&](int me, const nvshmemx_uniqueid_t &id) { return run(me, Case(count, values), id); };
    return in_two_processes(nvshmemx_uniqueid_t NVSHMEMX_UNIQUEID_INITIALIZER, make, runs);
}

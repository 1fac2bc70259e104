// Copies to shared memory that run beside the computation: a pipeline of stages, and barriers that count arrivals.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>
#include <cuda_pipeline.h>

#include "check.h"

constexpr int THREADS = 128, TILES = 10, STAGES = 3;

// Each tile is summed while the next ones are on their way.
__global__ void sums_by_pipeline(const int4* tiles, int* sums)
{
    __shared__ int4 stage[STAGES][THREADS];
    __shared__ int total;
    int i = threadIdx.x;
    auto fetch = [&](int tile) {
        if (tile < TILES) __pipeline_memcpy_async(&stage[tile % STAGES][i], &tiles[tile * THREADS + i], sizeof(int4));
        __pipeline_commit();
    };
    for (int tile = 0; tile < STAGES - 1; ++tile) fetch(tile);
    for (int tile = 0; tile < TILES; ++tile) {
        fetch(tile + STAGES - 1);
        __pipeline_wait_prior(STAGES - 1);
        if (i == 0) total = 0;
        __syncthreads();
        // A neighbour's element: the copies of all threads must be there.
        int4 value = stage[tile % STAGES][(i + 1) % THREADS];
        atomicAdd(&total, value.x + value.y + value.z + value.w);
        __syncthreads();
        if (i == 0) sums[tile] = total;
    }
}

// The first 6 bytes of each 8 are copied, the rest is zero.
__global__ void copies_in_part(const int2* in, int2* out)
{
    __shared__ int2 stage[THREADS];
    int i = threadIdx.x;
    stage[i] = make_int2(-1, -1);
    __pipeline_memcpy_async(&stage[i], &in[i], sizeof(int2), 2);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[i] = stage[i];
}

// Half of the threads produce, the other half consume what all of them made; the barrier is reused for every round.
__global__ void rounds_of_a_barrier(int rounds, int* out)
{
    __shared__ cuda::barrier<cuda::thread_scope_block> ready;
    __shared__ int data[THREADS];
    int i = threadIdx.x;
    if (i == 0) init(&ready, THREADS);
    __syncthreads();
    int sum = 0;
    for (int round = 0; round < rounds; ++round) {
        data[i] = i * (round + 1);
        auto token = ready.arrive();
        ready.wait(std::move(token));
        sum += data[(i + round + 1) % THREADS];
        ready.arrive_and_wait();
    }
    out[i] = sum;
}

// Whoever waits at the barrier waits for the copies, too.
__global__ void copies_into_a_barrier(const int* in, int* out)
{
    __shared__ cuda::barrier<cuda::thread_scope_block> ready;
    __shared__ int data[THREADS];
    auto block = cooperative_groups::this_thread_block();
    int i = threadIdx.x;
    if (i == 0) init(&ready, THREADS);
    block.sync();
    cuda::memcpy_async(&data[i], &in[i], sizeof(int), ready);
    ready.arrive_and_wait();
    out[i] = data[THREADS - 1 - i];
    block.sync();
    // All threads together copy the block's part.
    cooperative_groups::memcpy_async(block, data, in + THREADS, sizeof data);
    cooperative_groups::wait(block);
    out[THREADS + i] = data[THREADS - 1 - i];
}

int main()
{
    std::printf("async_copies: pipelines and barriers in shared memory\n");
    std::vector<int4> tiles(TILES * THREADS);
    std::vector<int> sums(TILES);
    Random random(3);
    for (size_t i = 0; i < tiles.size(); ++i) {
        tiles[i] = make_int4((int)random.below(1000), (int)random.below(1000), (int)random.below(1000), (int)random.below(1000));
        sums[i / THREADS] += tiles[i].x + tiles[i].y + tiles[i].z + tiles[i].w;
    }
    DeviceBuffer<int4> device_tiles(tiles);
    DeviceBuffer<int> device_sums(TILES);
    sums_by_pipeline<<<1, THREADS>>>(device_tiles.data(), device_sums.data());
    CHECK_LAUNCH();
    expect_equal(device_sums.download(), sums, "sums of tiles fetched three stages ahead");

    std::vector<int> words(2 * THREADS), parts(2 * THREADS), reversed(2 * THREADS);
    for (int i = 0; i < 2 * THREADS; ++i) words[i] = (int)random.bits() * 257 + 1;
    for (int i = 0; i < 2 * THREADS; ++i) {
        parts[i] = i % 2 == 0 ? words[i] : words[i] & 0xffff;
        reversed[i] = words[i / THREADS * THREADS + THREADS - 1 - i % THREADS];
    }
    DeviceBuffer<int> in(words), out(2 * THREADS);
    copies_in_part<<<1, THREADS>>>((const int2*)in.data(), (int2*)out.data());
    CHECK_LAUNCH();
    expect_equal(out.download(), parts, "copies filled up with zeros");
    copies_into_a_barrier<<<1, THREADS>>>(in.data(), out.data());
    CHECK_LAUNCH();
    expect_equal(out.download(), reversed, "copies that a barrier waits for, and those of a group");

    const int rounds = 5;
    std::vector<int> want(THREADS);
    for (int i = 0; i < THREADS; ++i)
        for (int round = 0; round < rounds; ++round) want[i] += (i + round + 1) % THREADS * (round + 1);
    DeviceBuffer<int> totals(THREADS);
    rounds_of_a_barrier<<<1, THREADS>>>(rounds, totals.data());
    CHECK_LAUNCH();
    expect_equal(totals.download(), want, "rounds of one barrier");
    return verdict("async_copies");
}

// Cooperative groups: blocks, tiles of a warp, partitions by a condition, and the whole grid.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

#include "check.h"

namespace cg = cooperative_groups;

constexpr int THREADS = 128;

// Rows: 0 sum within tiles of 8, 1 prefix sum within warps, 2 rank in the block, 3 maximum within tiles of 4,
// 4 how many lanes of the warp hold a value of the same parity.
__global__ void groups(const int* values, int* rows)
{
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    cg::thread_block_tile<8> eight = cg::tiled_partition<8>(warp);
    cg::thread_block_tile<4> four = cg::tiled_partition<4>(block);
    int i = block.thread_rank(), value = values[i];

    int sum = value;
    for (int distance = eight.size() / 2; distance > 0; distance /= 2) sum += eight.shfl_xor(sum, distance);
    rows[0 * THREADS + i] = sum;
    rows[1 * THREADS + i] = cg::inclusive_scan(warp, value);
    rows[2 * THREADS + i] = warp.meta_group_rank() * 1000 + eight.meta_group_rank() * 100 + eight.thread_rank();
    rows[3 * THREADS + i] = cg::reduce(four, value, cg::greater<int>());
    rows[4 * THREADS + i] = (int)cg::binary_partition(warp, value % 2 != 0).size();
    block.sync();
}

// Three phases with a barrier of the whole grid between them; `partial` has one element a block.
__global__ void sum_of_grid(const int* values, int count, int* partial, int* out)
{
    cg::grid_group grid = cg::this_grid();
    __shared__ int block_sum;
    if (threadIdx.x == 0) block_sum = 0;
    __syncthreads();
    int sum = 0;
    for (unsigned long long i = grid.thread_rank(); i < (unsigned long long)count; i += grid.size()) sum += values[i];
    atomicAdd(&block_sum, sum);
    __syncthreads();
    if (threadIdx.x == 0) partial[blockIdx.x] = block_sum;
    grid.sync();
    if (grid.thread_rank() == 0) {
        int total = 0;
        for (unsigned block = 0; block < gridDim.x; ++block) total += partial[block];
        *out = total;
    }
    grid.sync();
    if (threadIdx.x == 0) partial[blockIdx.x] = *out + (int)blockIdx.x;
}

static void check_groups()
{
    Random random(17);
    std::vector<int> values(THREADS), want(5 * THREADS);
    for (int& value : values) value = (int)random.below(1000);
    for (int i = 0; i < THREADS; ++i) {
        int first = i / 8 * 8, sum = 0, prefix = 0, odd = 0, largest = 0;
        for (int k = first; k < first + 8; ++k) sum += values[k];
        for (int k = i / 32 * 32; k <= i; ++k) prefix += values[k];
        for (int k = i / 32 * 32; k < i / 32 * 32 + 32; ++k) odd += values[k] % 2;
        for (int k = i / 4 * 4; k < i / 4 * 4 + 4; ++k) largest = values[k] > largest ? values[k] : largest;
        want[0 * THREADS + i] = sum;
        want[1 * THREADS + i] = prefix;
        want[2 * THREADS + i] = i / 32 * 1000 + i % 32 / 8 * 100 + i % 8;
        want[3 * THREADS + i] = largest;
        want[4 * THREADS + i] = values[i] % 2 != 0 ? odd : 32 - odd;
    }
    DeviceBuffer<int> device_values(values), device_rows(5 * THREADS);
    groups<<<1, THREADS>>>(device_values.data(), device_rows.data());
    CHECK_LAUNCH();
    expect_equal(device_rows.download(), want, "tiles, scans, ranks, reductions, partitions");
}

static void check_grid()
{
    int cooperative = 0, multiprocessors = 0, resident = 0;
    CHECK(cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, 0));
    if (!cooperative) {
        std::printf("  skipped: the device cannot launch cooperatively\n");
        return;
    }
    CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, sum_of_grid, THREADS, 0));
    const int blocks_max = multiprocessors * resident, blocks = blocks_max < 6 ? blocks_max : 6;
    std::printf("# %d blocks can be resident, %d are launched\n", blocks_max, blocks);

    int count = 9999, sum = 0;
    std::vector<int> values(count), want(blocks);
    for (int i = 0; i < count; ++i) sum += values[i] = i % 101;
    for (int block = 0; block < blocks; ++block) want[block] = sum + block;
    DeviceBuffer<int> device_values(values), partial(blocks), out(1);
    const int* in_argument = device_values.data();
    int *partial_argument = partial.data(), *out_argument = out.data();
    void* arguments[] = {&in_argument, &count, &partial_argument, &out_argument};
    CHECK(cudaLaunchCooperativeKernel((const void*)sum_of_grid, dim3(blocks), dim3(THREADS), arguments, 0, nullptr));
    CHECK(cudaDeviceSynchronize());
    expect(partial.download() == want, "every block saw the sum %d of the whole grid", sum);
    EXPECT_ERROR(cudaErrorCooperativeLaunchTooLarge,
                 cudaLaunchCooperativeKernel((const void*)sum_of_grid, dim3(blocks_max + 1), dim3(THREADS), arguments, 0, nullptr));
}

int main()
{
    std::printf("cooperative: cooperative groups up to the whole grid\n");
    check_groups();
    check_grid();
    return verdict("cooperative");
}

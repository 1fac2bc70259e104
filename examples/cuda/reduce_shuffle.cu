// Reductions inside a warp without shared memory: shuffles down, butterfly and by index, and redux.
#include "check.h"

#include <algorithm>

constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr int WARP = 32;
constexpr int THREADS = 256;

__device__ float warp_sum(float value)
{
    for (int distance = WARP / 2; distance > 0; distance /= 2) value += __shfl_down_sync(ALL_LANES, value, distance);
    return value;  // the whole sum in lane 0
}

__device__ int warp_max(int value)
{
    for (int mask = WARP / 2; mask > 0; mask /= 2) value = max(value, __shfl_xor_sync(ALL_LANES, value, mask));
    return value;  // the maximum in every lane
}

// One value a block: grid-stride over the input, warp by shuffles, warps through shared memory.
__global__ void block_sums(const float* values, int count, float* sums)
{
    __shared__ float warp_sums[THREADS / WARP];
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) sum += values[i];
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) warp_sums[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (threadIdx.x < WARP) {
        sum = threadIdx.x < THREADS / WARP ? warp_sums[threadIdx.x] : 0.0f;
        sum = warp_sum(sum);
        if (threadIdx.x == 0) sums[blockIdx.x] = sum;
    }
}

__global__ void maximum(const int* values, int count, int* result)
{
    int best = INT32_MIN;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) best = max(best, values[i]);
    best = warp_max(best);
    if (threadIdx.x % WARP == 0) atomicMax(result, best);
}

// Rows: 0 broadcast from lane 5, 1 inclusive prefix sum by shuffle up, 2 segments of 8 lanes, 3 redux add, 4 redux or, 5 a double.
__global__ void one_warp(const int* values, int* rows, double* doubles)
{
    int lane = threadIdx.x;
    int value = values[lane];
    rows[0 * WARP + lane] = __shfl_sync(ALL_LANES, value, 5);
    int prefix = value;
    for (int distance = 1; distance < WARP; distance *= 2) {
        int left = __shfl_up_sync(ALL_LANES, prefix, distance);
        if (lane >= distance) prefix += left;
    }
    rows[1 * WARP + lane] = prefix;
    rows[2 * WARP + lane] = __shfl_down_sync(ALL_LANES, value, 3, 8);  // beyond its segment a lane keeps its own value
    rows[3 * WARP + lane] = __reduce_add_sync(ALL_LANES, value);
    rows[4 * WARP + lane] = (int)__reduce_or_sync(ALL_LANES, (unsigned)value);
    doubles[lane] = __shfl_xor_sync(ALL_LANES, value * 0.5, 1);  // 64 bits travel as two shuffles
}

int main()
{
    const int count = 50'001;
    const unsigned blocks = 24;
    std::printf("reduce_shuffle: sums and maxima of %d values by warp shuffles\n", count);

    std::vector<float> values = random_floats(count, 5);
    DeviceBuffer<float> device_values(values), device_sums(blocks);
    block_sums<<<blocks, THREADS>>>(device_values.data(), count, device_sums.data());
    CHECK_LAUNCH();
    double got = 0, want = 0;
    for (float sum : device_sums.download()) got += sum;
    for (float value : values) want += value;
    // Each thread adds about 9 values below 1, then 8 halving steps follow: well below 1e-7 a value on average.
    expect_close<double>({got}, {want}, count * 1e-7, 0, "sum");

    Random random(6);
    std::vector<int> integers(count);
    for (int& value : integers) value = (int)random.bits() - (1 << 23);
    std::vector<int> lowest(1, INT32_MIN);
    DeviceBuffer<int> device_integers(integers), device_maximum(lowest);
    maximum<<<blocks, THREADS>>>(device_integers.data(), count, device_maximum.data());
    CHECK_LAUNCH();
    expect_equal(device_maximum.download(), {*std::max_element(integers.begin(), integers.end())}, "maximum");

    DeviceBuffer<int> device_rows(5 * WARP);
    DeviceBuffer<double> device_doubles(WARP);
    one_warp<<<1, WARP>>>(device_integers.data(), device_rows.data(), device_doubles.data());
    CHECK_LAUNCH();
    std::vector<int> rows(5 * WARP);
    std::vector<double> doubles(WARP);
    int sum = 0, bits = 0;
    for (int lane = 0; lane < WARP; ++lane) sum += integers[lane], bits |= integers[lane];
    for (int lane = 0, prefix = 0; lane < WARP; ++lane) {
        rows[0 * WARP + lane] = integers[5];
        rows[1 * WARP + lane] = prefix += integers[lane];
        rows[2 * WARP + lane] = lane % 8 + 3 < 8 ? integers[lane + 3] : integers[lane];
        rows[3 * WARP + lane] = sum;
        rows[4 * WARP + lane] = bits;
        doubles[lane] = integers[lane ^ 1] * 0.5;
    }
    expect_equal(device_rows.download(), rows, "broadcast, prefix sum, segments, redux");
    expect_equal(device_doubles.download(), doubles, "butterfly of doubles");
    return verdict("reduce_shuffle");
}

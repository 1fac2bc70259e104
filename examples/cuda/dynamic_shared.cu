// Shared memory whose size the launch decides, also beyond the 48 KiB that need no permission.
#include "check.h"

constexpr unsigned THREADS = 256;
constexpr size_t DEFAULT_BYTES_MAX = 48 << 10;

// Every block reverses its own part of `count` values through dynamic shared memory.
__global__ void reverse(const int* in, int* out, int count)
{
    extern __shared__ int part[];
    const int* first = in + (size_t)blockIdx.x * count;
    for (int i = threadIdx.x; i < count; i += blockDim.x) part[i] = first[i];
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += blockDim.x) out[(size_t)blockIdx.x * count + i] = part[count - 1 - i];
}

// Static and dynamic shared memory in one kernel, the dynamic part cut into arrays of different types.
__global__ void mixed(const float* values, float* sums, int* counts)
{
    __shared__ float total;
    extern __shared__ double pool[];
    double* doubles = pool;
    int* integers = (int*)(doubles + blockDim.x);
    if (threadIdx.x == 0) total = 0;
    doubles[threadIdx.x] = values[threadIdx.x];
    integers[threadIdx.x] = values[threadIdx.x] > 0;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            doubles[threadIdx.x] += doubles[threadIdx.x + half];
            integers[threadIdx.x] += integers[threadIdx.x + half];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        total = (float)doubles[0];
        *sums = total;
        *counts = integers[0];
    }
}

static void reverse_parts(int count, int blocks)
{
    std::vector<int> values((size_t)count * blocks), want(values.size());
    for (size_t i = 0; i < values.size(); ++i) values[i] = (int)(i * 2654435761u);
    for (int block = 0; block < blocks; ++block)
        for (int i = 0; i < count; ++i) want[(size_t)block * count + i] = values[(size_t)block * count + count - 1 - i];
    DeviceBuffer<int> in(values), out(values.size());
    reverse<<<blocks, THREADS, count * sizeof(int)>>>(in.data(), out.data(), count);
    CHECK_LAUNCH();
    char what[64];
    std::snprintf(what, sizeof what, "%zu bytes of shared memory", count * sizeof(int));
    expect_equal(out.download(), want, what);
}

int main()
{
    std::printf("dynamic_shared: shared memory sized at the launch\n");
    reverse_parts(100, 3);
    reverse_parts(DEFAULT_BYTES_MAX / sizeof(int), 2);

    const int large = (64 << 10) / sizeof(int);
    reverse<<<1, THREADS, large * sizeof(int)>>>(nullptr, nullptr, 0);
    EXPECT_ERROR(cudaErrorInvalidValue, cudaGetLastError());  // 64 KiB were not asked for yet
    CHECK(cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, large * sizeof(int)));
    reverse_parts(large, 3);

    int optin_bytes_max = 0;
    CHECK(cudaDeviceGetAttribute(&optin_bytes_max, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    std::printf("# a block can have up to %d bytes\n", optin_bytes_max);
    expect(optin_bytes_max > 64 << 10, "the device allows more than 64 KiB a block");
    EXPECT_ERROR(cudaErrorInvalidValue,
                 cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, optin_bytes_max + 1));
    CHECK(cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, optin_bytes_max));
    cudaFuncAttributes attributes;
    CHECK(cudaFuncGetAttributes(&attributes, reverse));
    expect(attributes.maxDynamicSharedSizeBytes == optin_bytes_max, "the function remembers its limit");

    std::vector<float> values = random_floats(THREADS, 11);
    double sum = 0;
    int positive = 0;
    for (float value : values) sum += value, positive += value > 0;
    DeviceBuffer<float> device_values(values), device_sum(1);
    DeviceBuffer<int> device_count(1);
    mixed<<<1, THREADS, THREADS * (sizeof(double) + sizeof(int))>>>(device_values.data(), device_sum.data(), device_count.data());
    CHECK_LAUNCH();
    expect_close(device_sum.download(), {(float)sum}, 1e-6, 1e-6, "sum in doubles");  // rounded to float once
    expect_equal(device_count.download(), {positive}, "count in integers");
    return verdict("dynamic_shared");
}

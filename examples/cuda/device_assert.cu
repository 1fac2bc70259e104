// A failed assert in a kernel: the message comes out on standard error, the error at the synchronisation, and it stays.
#undef NDEBUG
#include <cassert>

#include "check.h"

__global__ void positive_only(const int* values, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) assert(values[i] > 0);
}

__global__ void touch(int* value) { *value += 1; }

int main()
{
    std::printf("device_assert: an assert that holds, and one that fails\n");
    const int count = 100;
    std::vector<int> values(count, 1);
    int* device = nullptr;
    CHECK(cudaMalloc(&device, count * sizeof(int)));
    CHECK(cudaMemcpy(device, values.data(), count * sizeof(int), cudaMemcpyHostToDevice));
    positive_only<<<4, 32>>>(device, count);
    CHECK_LAUNCH();
    CHECK(cudaDeviceSynchronize());
    expect(true, "no value is negative: nothing happens");

    values[70] = -1;  // block 2, thread 6
    CHECK(cudaMemcpy(device, values.data(), count * sizeof(int), cudaMemcpyHostToDevice));
    positive_only<<<4, 32>>>(device, count);
    CHECK_LAUNCH();  // the launch itself is in order
    EXPECT_ERROR(cudaErrorAssert, cudaDeviceSynchronize());

    // The context is lost: every later call says so.
    EXPECT_ERROR(cudaErrorAssert, cudaDeviceSynchronize());
    EXPECT_ERROR(cudaErrorAssert, cudaMemcpy(values.data(), device, sizeof(int), cudaMemcpyDeviceToHost));
    touch<<<1, 1>>>(device);
    EXPECT_ERROR(cudaErrorAssert, cudaGetLastError());
    void* more = nullptr;
    EXPECT_ERROR(cudaErrorAssert, cudaMalloc(&more, 1024));
    return verdict("device_assert");
}

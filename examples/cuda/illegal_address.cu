// A kernel writes through a wild pointer: the error comes with the synchronisation, and it stays.
#include "check.h"

__global__ void store(int* where, int value) { where[threadIdx.x] = value; }

int main()
{
    std::printf("illegal_address: a kernel with a wild pointer\n");
    int* device = nullptr;
    CHECK(cudaMalloc(&device, 32 * sizeof(int)));
    store<<<1, 32>>>(device, 5);
    CHECK_LAUNCH();
    CHECK(cudaDeviceSynchronize());
    std::vector<int> values(32);
    CHECK(cudaMemcpy(values.data(), device, 32 * sizeof(int), cudaMemcpyDeviceToHost));
    expect_equal(values, std::vector<int>(32, 5), "a kernel with a good pointer");

    store<<<1, 32>>>((int*)256, 6);
    CHECK_LAUNCH();  // nobody can know yet
    EXPECT_ERROR(cudaErrorIllegalAddress, cudaDeviceSynchronize());

    // The context is lost: every later call says so.
    EXPECT_ERROR(cudaErrorIllegalAddress, cudaDeviceSynchronize());
    EXPECT_ERROR(cudaErrorIllegalAddress, cudaMemcpy(values.data(), device, 32 * sizeof(int), cudaMemcpyDeviceToHost));
    store<<<1, 32>>>(device, 7);
    EXPECT_ERROR(cudaErrorIllegalAddress, cudaGetLastError());
    void* more = nullptr;
    EXPECT_ERROR(cudaErrorIllegalAddress, cudaMalloc(&more, 1024));
    return verdict("illegal_address");
}

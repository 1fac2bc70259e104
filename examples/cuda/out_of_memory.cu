// More memory than there is: the allocation fails where it is made, and the program goes on.
#include "check.h"

__global__ void fill(int* values, int count, int value)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) values[i] = value + i;
}

static void use(int* device, int count, const char* what)
{
    fill<<<blocks_for(count, 128), 128>>>(device, count, 9);
    CHECK_LAUNCH();
    std::vector<int> got(count), want(count);
    CHECK(cudaMemcpy(got.data(), device, count * sizeof(int), cudaMemcpyDeviceToHost));
    for (int i = 0; i < count; ++i) want[i] = 9 + i;
    expect_equal(got, want, what);
}

int main()
{
    std::printf("out_of_memory: allocations beyond the memory\n");
    size_t free_bytes = 0, total_bytes = 0;
    CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    std::printf("# %zu of %zu MiB free\n", free_bytes >> 20, total_bytes >> 20);

    DeviceBuffer<int> small(1000);
    void* impossible = nullptr;
    cudaError_t status = cudaMalloc(&impossible, total_bytes + (1 << 20));
    expect(status == cudaErrorMemoryAllocation, "more than the whole memory: %s", cudaGetErrorName(status));
    expect(cudaGetLastError() == cudaErrorMemoryAllocation, "it is the last error");
    expect(cudaGetLastError() == cudaSuccess, "asking for it clears it");
    EXPECT_ERROR(cudaErrorMemoryAllocation, cudaMalloc(&impossible, SIZE_MAX / 2));
    use(small.data(), 1000, "memory allocated before still works");

    // Quarters of the free memory until there is no more: the fifth cannot fit.
    const size_t part_bytes = free_bytes / 4 & ~(size_t)0xfffff;
    const int parts_max = 5;
    std::vector<void*> parts;
    void* part = nullptr;
    while ((int)parts.size() < parts_max && (status = cudaMalloc(&part, part_bytes)) == cudaSuccess) parts.push_back(part);
    std::printf("# %zu parts of %zu MiB fit\n", parts.size(), part_bytes >> 20);
    expect(parts.size() >= 1 && (int)parts.size() < parts_max && status == cudaErrorMemoryAllocation, "the memory can be used up");
    (void)cudaGetLastError();
    size_t left_bytes = 0;
    CHECK(cudaMemGetInfo(&left_bytes, &total_bytes));
    expect(left_bytes < free_bytes, "less is free than before");
    for (void* freed : parts) CHECK(cudaFree(freed));

    CHECK(cudaMalloc(&part, part_bytes));
    use((int*)part, 1000, "after the frees there is room again");
    CHECK(cudaFree(part));
    return verdict("out_of_memory");
}

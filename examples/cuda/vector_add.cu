// The first CUDA program: c = a + b. With a number of seconds it adds again and again for so long.
#include <chrono>

#include "check.h"

__global__ void add(const float* a, const float* b, float* c, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) c[i] = a[i] + b[i];
}

int main(int argc, char** argv)
{
    using Clock = std::chrono::steady_clock;
    const Clock::time_point end = Clock::now() + std::chrono::seconds(argc > 1 ? std::atoi(argv[1]) : 0);
    const int count = 100'003;  // no multiple of the block size
    const unsigned threads = 256;
    std::printf("vector_add: %d floats\n", count);

    std::vector<float> a = random_floats(count, 1), b = random_floats(count, 2);
    DeviceBuffer<float> device_a(a), device_b(b), device_c(count);
    add<<<blocks_for(count, threads), threads>>>(device_a.data(), device_b.data(), device_c.data(), count);
    CHECK_LAUNCH();
    CHECK(cudaDeviceSynchronize());

    std::vector<float> want(count);
    for (int i = 0; i < count; ++i) want[i] = a[i] + b[i];
    expect_equal(device_c.download(), want, "a + b");  // one IEEE addition: exact

    bool same = true;
    while (same && Clock::now() < end) {
        add<<<blocks_for(count, threads), threads>>>(device_a.data(), device_b.data(), device_c.data(), count);
        same = device_c.download() == want;
    }
    if (!same) expect_equal(device_c.download(), want, "a + b, again");

    CHECK(cudaMemset(device_c.data(), 0, device_c.bytes()));
    expect_equal(device_c.download(), std::vector<float>(count, 0.0f), "memset");
    return verdict("vector_add");
}

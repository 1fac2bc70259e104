// A histogram of bytes: once with atomics on global memory, once with a private copy in shared memory a block.
#include "check.h"

constexpr int BINS = 256;
constexpr unsigned THREADS = 256;
constexpr unsigned BLOCKS = 16;

__global__ void histogram_global(const unsigned char* bytes, int count, unsigned* bins)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) atomicAdd(&bins[bytes[i]], 1u);
}

__global__ void histogram_shared(const unsigned char* bytes, int count, unsigned* bins)
{
    __shared__ unsigned block_bins[BINS];
    for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x) block_bins[bin] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) atomicAdd(&block_bins[bytes[i]], 1u);
    __syncthreads();
    for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x)
        if (block_bins[bin] != 0) atomicAdd(&bins[bin], block_bins[bin]);
}

int main()
{
    const int count = 70'001;
    std::printf("histogram_atomics: %d bytes into %d bins\n", count, BINS);

    Random random(7);
    std::vector<unsigned char> bytes(count);
    for (unsigned char& byte : bytes) {
        // The product of two draws: uneven bins, so that many threads meet in the low ones.
        unsigned first = random.below(16), second = random.below(17);
        byte = (unsigned char)(first * second);
    }
    std::vector<unsigned> want(BINS, 0);
    for (unsigned char byte : bytes) ++want[byte];

    DeviceBuffer<unsigned char> device_bytes(bytes);
    DeviceBuffer<unsigned> device_bins(BINS);
    CHECK(cudaMemset(device_bins.data(), 0, device_bins.bytes()));
    histogram_global<<<BLOCKS, THREADS>>>(device_bytes.data(), count, device_bins.data());
    CHECK_LAUNCH();
    expect_equal(device_bins.download(), want, "atomics on global memory");

    CHECK(cudaMemset(device_bins.data(), 0, device_bins.bytes()));
    histogram_shared<<<BLOCKS, THREADS>>>(device_bytes.data(), count, device_bins.data());
    CHECK_LAUNCH();
    expect_equal(device_bins.download(), want, "atomics on shared memory");
    std::printf("  bin 0 holds %u, bin 15 holds %u, bin 240 holds %u\n", want[0], want[15], want[240]);
    return verdict("histogram_atomics");
}

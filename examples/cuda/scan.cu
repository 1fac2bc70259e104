// Exclusive prefix sum of any length: blocks scan their part, the block totals are scanned the same way, then added.
#include "check.h"

constexpr int THREADS = 128;

// Scans a part of THREADS values in shared memory by doubling distances (Hillis and Steele), with two buffers.
__global__ void scan_blocks(const unsigned* values, unsigned* scanned, unsigned* totals, int count)
{
    __shared__ unsigned buffers[2][THREADS];
    int i = blockIdx.x * THREADS + threadIdx.x;
    unsigned value = i < count ? values[i] : 0;
    int current = 0;
    buffers[current][threadIdx.x] = value;
    __syncthreads();
    for (int distance = 1; distance < THREADS; distance *= 2) {
        unsigned sum = buffers[current][threadIdx.x];
        if (threadIdx.x >= distance) sum += buffers[current][threadIdx.x - distance];
        current ^= 1;
        buffers[current][threadIdx.x] = sum;
        __syncthreads();
    }
    unsigned inclusive = buffers[current][threadIdx.x];
    if (i < count) scanned[i] = inclusive - value;
    if (threadIdx.x == THREADS - 1) totals[blockIdx.x] = inclusive;
}

__global__ void add_offsets(unsigned* scanned, const unsigned* offsets, int count)
{
    int i = blockIdx.x * THREADS + threadIdx.x;
    if (i < count) scanned[i] += offsets[blockIdx.x];
}

static void scan(const unsigned* values, unsigned* scanned, int count)
{
    unsigned blocks = blocks_for(count, THREADS);
    DeviceBuffer<unsigned> totals(blocks);
    scan_blocks<<<blocks, THREADS>>>(values, scanned, totals.data(), count);
    CHECK_LAUNCH();
    if (blocks == 1) return;
    DeviceBuffer<unsigned> offsets(blocks);
    scan(totals.data(), offsets.data(), (int)blocks);
    add_offsets<<<blocks, THREADS>>>(scanned, offsets.data(), count);
    CHECK_LAUNCH();
}

int main()
{
    std::printf("scan: exclusive prefix sums, %d values a block\n", THREADS);
    for (int count : {1, 127, 128, 129, 20'000}) {  // 20 000 needs three levels
        Random random(8);
        std::vector<unsigned> values(count), want(count);
        unsigned sum = 0;
        for (int i = 0; i < count; ++i) {
            values[i] = random.bits() << 4;  // large enough to wrap around, which must be exact too
            want[i] = sum;
            sum += values[i];
        }
        DeviceBuffer<unsigned> device_values(values), device_scanned(count);
        scan(device_values.data(), device_scanned.data(), count);
        expect_equal(device_scanned.download(), want, "prefix sum");
    }
    return verdict("scan");
}

// Memory allocated and freed in stream order, from the default pool and from a pool of our own.
#include "check.h"

constexpr unsigned THREADS = 128;

__global__ void fill(int* values, int count, int start)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) values[i] = start + i;
}

__global__ void add_into(int* sum, const int* values, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) sum[i] += values[i];
}

// Temporary buffers of many sizes come and go in the stream; the host never waits in between.
static void temporaries(cudaStream_t stream)
{
    const int count = 3000, rounds = 30;
    int* sum = nullptr;
    CHECK(cudaMallocAsync(&sum, count * sizeof(int), stream));
    CHECK(cudaMemsetAsync(sum, 0, count * sizeof(int), stream));
    std::vector<int> want(count, 0), got(count);
    for (int round = 0; round < rounds; ++round) {
        int used = count - round * 37;
        int* temporary = nullptr;
        CHECK(cudaMallocAsync(&temporary, used * sizeof(int), stream));
        fill<<<blocks_for(used, THREADS), THREADS, 0, stream>>>(temporary, used, round);
        add_into<<<blocks_for(used, THREADS), THREADS, 0, stream>>>(sum, temporary, used);
        CHECK_LAUNCH();
        CHECK(cudaFreeAsync(temporary, stream));
        for (int i = 0; i < used; ++i) want[i] += round + i;
    }
    CHECK(cudaMemcpyAsync(got.data(), sum, count * sizeof(int), cudaMemcpyDeviceToHost, stream));
    CHECK(cudaFreeAsync(sum, stream));
    CHECK(cudaStreamSynchronize(stream));
    expect_equal(got, want, "30 temporary buffers in stream order");
}

// Allocated in one stream, used in another behind an event, freed in the other.
static void handed_over(cudaStream_t producer, cudaStream_t consumer)
{
    const int count = 1000;
    cudaEvent_t ready;
    CHECK(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
    int* values = nullptr;
    CHECK(cudaMallocAsync(&values, count * sizeof(int), producer));
    fill<<<blocks_for(count, THREADS), THREADS, 0, producer>>>(values, count, 500);
    CHECK_LAUNCH();
    CHECK(cudaEventRecord(ready, producer));
    CHECK(cudaStreamWaitEvent(consumer, ready, 0));
    std::vector<int> got(count), want(count);
    for (int i = 0; i < count; ++i) want[i] = 500 + i;
    CHECK(cudaMemcpyAsync(got.data(), values, count * sizeof(int), cudaMemcpyDeviceToHost, consumer));
    CHECK(cudaFreeAsync(values, consumer));
    CHECK(cudaStreamSynchronize(consumer));
    expect_equal(got, want, "allocated in one stream, used and freed in another");
    CHECK(cudaEventDestroy(ready));
}

static uint64_t pool_attribute(cudaMemPool_t pool, cudaMemPoolAttr attribute)
{
    uint64_t value = 0;
    CHECK(cudaMemPoolGetAttribute(pool, attribute, &value));
    return value;
}

static void own_pool(cudaStream_t stream)
{
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.handleTypes = cudaMemHandleTypeNone;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = 0;
    cudaMemPool_t pool = nullptr;
    CHECK(cudaMemPoolCreate(&pool, &properties));
    uint64_t keep_all = UINT64_MAX;
    CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep_all));
    expect(pool_attribute(pool, cudaMemPoolAttrReleaseThreshold) == keep_all, "the pool remembers its release threshold");

    const size_t bytes = 8 << 20;
    int* values = nullptr;
    CHECK(cudaMallocFromPoolAsync(&values, bytes, pool, stream));
    fill<<<8, THREADS, 0, stream>>>(values, 8 * THREADS, 3);
    CHECK_LAUNCH();
    std::vector<int> got(8 * THREADS), want(8 * THREADS);
    for (size_t i = 0; i < want.size(); ++i) want[i] = 3 + (int)i;
    CHECK(cudaMemcpyAsync(got.data(), values, got.size() * sizeof(int), cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    expect_equal(got, want, "memory of an own pool");
    expect(pool_attribute(pool, cudaMemPoolAttrUsedMemCurrent) >= bytes, "the pool counts what is in use");
    CHECK(cudaFreeAsync(values, stream));
    CHECK(cudaStreamSynchronize(stream));
    expect(pool_attribute(pool, cudaMemPoolAttrUsedMemCurrent) == 0, "after the free nothing is in use");
    CHECK(cudaMemPoolTrimTo(pool, 0));
    expect(pool_attribute(pool, cudaMemPoolAttrReservedMemCurrent) == 0, "after trimming nothing is reserved");
    CHECK(cudaMemPoolDestroy(pool));

    // Memory comes in pieces of 2 MiB, so a smaller limit still allows one.
    properties.maxSize = 2048;
    CHECK(cudaMemPoolCreate(&pool, &properties));
    CHECK(cudaMallocFromPoolAsync(&values, 64, pool, stream));
    CHECK(cudaFreeAsync(values, stream));
    CHECK(cudaMemPoolDestroy(pool));
}

int main()
{
    std::printf("malloc_async: stream-ordered allocation\n");
    int supported = 0;
    CHECK(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, 0));
    if (!expect(supported == 1, "the device supports memory pools")) return verdict("malloc_async");
    cudaMemPool_t pool = nullptr, current = nullptr;
    CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
    CHECK(cudaDeviceGetMemPool(&current, 0));
    expect(pool != nullptr && pool == current, "the default pool is the current one");

    cudaStream_t first, second;
    CHECK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    temporaries(first);
    handed_over(first, second);
    own_pool(first);
    CHECK(cudaStreamDestroy(first));
    CHECK(cudaStreamDestroy(second));
    return verdict("malloc_async");
}

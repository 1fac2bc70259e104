// Host memory that the GPU uses in place: allocated mapped, registered later, and pinned for asynchronous copies.
#include "check.h"

#include <cstring>

constexpr unsigned THREADS = 128;
constexpr size_t PAGE_BYTES = 4096;

__global__ void square(const int* in, int* out, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = in[i] * in[i];
}

// Kernels read and write host memory directly; the host changes it between two launches.
static void zero_copy(const char* what, int* host_in, int* host_out, int count)
{
    int *in = nullptr, *out = nullptr;
    CHECK(cudaHostGetDevicePointer(&in, host_in, 0));
    CHECK(cudaHostGetDevicePointer(&out, host_out, 0));
    std::vector<int> want(count);
    for (int round = 1; round <= 3; ++round) {
        for (int i = 0; i < count; ++i) {
            int value = i % 1000 * round;
            host_in[i] = value;
            want[i] = value * value;
        }
        square<<<blocks_for(count, THREADS), THREADS>>>(in, out, count);
        CHECK_LAUNCH();
        CHECK(cudaDeviceSynchronize());
        expect_equal(std::vector<int>(host_out, host_out + count), want, what);
    }
    // A pointer into the middle of an allocation is as good as its start.
    int* middle = nullptr;
    CHECK(cudaHostGetDevicePointer(&middle, host_out + count / 2, 0));
    expect(middle == out + count / 2, "%s: the device pointer of an inner address", what);
}

static void allocated()
{
    const int count = 5000;
    int *in = nullptr, *out = nullptr;
    CHECK(cudaHostAlloc(&in, count * sizeof(int), cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined));
    CHECK(cudaHostAlloc(&out, count * sizeof(int), cudaHostAllocPortable | cudaHostAllocMapped));
    unsigned flags = 0;
    CHECK(cudaHostGetFlags(&flags, out));
    expect((flags & cudaHostAllocMapped) && (flags & cudaHostAllocPortable), "the flags say mapped and portable");
    zero_copy("allocated", in, out, count);
    CHECK(cudaFreeHost(in));
    CHECK(cudaFreeHost(out));
}

static void registered()
{
    const int count = 5 * (int)(PAGE_BYTES / sizeof(int));
    int* in = (int*)std::aligned_alloc(PAGE_BYTES, count * sizeof(int));
    int* out = (int*)std::aligned_alloc(PAGE_BYTES, count * sizeof(int));
    CHECK(cudaHostRegister(in, count * sizeof(int), cudaHostRegisterMapped));
    CHECK(cudaHostRegister(out, count * sizeof(int), cudaHostRegisterMapped | cudaHostRegisterPortable));
    EXPECT_ERROR(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(out, count * sizeof(int), cudaHostRegisterMapped));
    zero_copy("registered", in, out, count);
    CHECK(cudaHostUnregister(in));
    CHECK(cudaHostUnregister(out));
    EXPECT_ERROR(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(out));
    std::free(in);
    std::free(out);
}

// Pinned memory as source and destination of asynchronous copies: the host may touch it again after the synchronisation.
static void asynchronous_copies()
{
    const size_t bytes = 1 << 20;
    unsigned char *up = nullptr, *down = nullptr, *device = nullptr;
    cudaStream_t stream;
    CHECK(cudaMallocHost(&up, bytes));
    CHECK(cudaMallocHost(&down, bytes));
    CHECK(cudaMalloc(&device, bytes));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    bool same = true;
    for (int round = 0; round < 4; ++round) {
        Random random(10 + round);
        for (size_t i = 0; i < bytes; ++i) up[i] = (unsigned char)random.bits();
        std::memset(down, 0, bytes);
        CHECK(cudaMemcpyAsync(device, up, bytes, cudaMemcpyHostToDevice, stream));
        CHECK(cudaMemcpyAsync(down, device, bytes, cudaMemcpyDefault, stream));  // the direction from the addresses
        CHECK(cudaStreamSynchronize(stream));
        same = same && std::memcmp(up, down, bytes) == 0;
    }
    expect(same, "4 rounds of 1 MiB up and down");
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(device));
    CHECK(cudaFreeHost(up));
    CHECK(cudaFreeHost(down));
}

int main()
{
    std::printf("pinned_mapped: host memory read and written by kernels in place\n");
    int can_map = 0;
    CHECK(cudaDeviceGetAttribute(&can_map, cudaDevAttrCanMapHostMemory, 0));
    expect(can_map == 1, "the device can map host memory");
    allocated();
    registered();
    asynchronous_copies();
    return verdict("pinned_mapped");
}

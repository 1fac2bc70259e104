// What the runtime says about the device, functions and pointers, and that the answers agree with each other.
#include "check.h"

__global__ void plain(int* out) { out[blockIdx.x * blockDim.x + threadIdx.x] = 1; }

__global__ void __launch_bounds__(128) with_shared(int* out)
{
    __shared__ int values[1024];
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) values[i] = i;
    __syncthreads();
    out[threadIdx.x] = values[1023 - threadIdx.x];
}

static int attribute(cudaDeviceAttr which)
{
    int value = -1;
    CHECK(cudaDeviceGetAttribute(&value, which, 0));
    return value;
}

static void device()
{
    int count = 0, current = -1, driver = 0, runtime = 0;
    CHECK(cudaGetDeviceCount(&count));
    expect(count >= 1, "there is a device");
    CHECK(cudaSetDevice(count - 1));
    CHECK(cudaGetDevice(&current));
    expect(current == count - 1, "the device that was set is the current one");
    CHECK(cudaSetDevice(0));
    EXPECT_ERROR(cudaErrorInvalidDevice, cudaSetDevice(count));
    CHECK(cudaDriverGetVersion(&driver));
    CHECK(cudaRuntimeGetVersion(&runtime));
    std::printf("# %d devices, driver %d, runtime %d\n", count, driver, runtime);
    expect(driver / 1000 >= runtime / 1000, "the driver is not older than the runtime");

    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    std::printf("# %s, compute capability %d.%d, %d multiprocessors, %zu MiB\n", properties.name, properties.major, properties.minor,
                properties.multiProcessorCount, properties.totalGlobalMem >> 20);
    std::printf("# a block: %zu KiB of shared memory, %zu KiB if asked for, %d registers\n", properties.sharedMemPerBlock >> 10,
                properties.sharedMemPerBlockOptin >> 10, properties.regsPerBlock);
    expect(properties.name[0] != 0 && properties.major >= 8, "it has a name and compute capability 8.0 or later");
    expect(properties.warpSize == 32 && properties.maxThreadsPerBlock == 1024, "warps of 32, blocks of up to 1024");
    expect(properties.maxThreadsDim[0] == 1024 && properties.maxThreadsDim[2] == 64 && properties.maxGridSize[0] == INT32_MAX,
           "the largest block and grid");
    expect(properties.multiProcessorCount == attribute(cudaDevAttrMultiProcessorCount)
               && properties.major == attribute(cudaDevAttrComputeCapabilityMajor)
               && properties.minor == attribute(cudaDevAttrComputeCapabilityMinor)
               && (int)properties.sharedMemPerBlock == attribute(cudaDevAttrMaxSharedMemoryPerBlock)
               && (int)properties.sharedMemPerBlockOptin == attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)
               && properties.l2CacheSize == attribute(cudaDevAttrL2CacheSize) && properties.unifiedAddressing == 1
               && attribute(cudaDevAttrUnifiedAddressing) == 1,
           "properties and attributes agree");
    size_t free_bytes = 0, total_bytes = 0;
    CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    expect(free_bytes <= total_bytes && total_bytes <= properties.totalGlobalMem, "memory sizes agree");
    char bus_id[32] = "";
    int by_bus_id = -1;
    CHECK(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, 0));
    CHECK(cudaDeviceGetByPCIBusId(&by_bus_id, bus_id));
    expect(by_bus_id == 0, "the device is found by its PCI bus id");
}

static void functions()
{
    cudaFuncAttributes attributes;
    CHECK(cudaFuncGetAttributes(&attributes, with_shared));
    std::printf("# with_shared: %d registers, PTX %d, machine code %d\n", attributes.numRegs, attributes.ptxVersion, attributes.binaryVersion);
    expect(attributes.sharedSizeBytes == 4096, "a function knows its static shared memory");
    expect(attributes.maxThreadsPerBlock == 128, "and its launch bounds");

    int threads_per_multiprocessor = attribute(cudaDevAttrMaxThreadsPerMultiProcessor), blocks = 0, more_shared = 0;
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, plain, 256, 0));
    std::printf("# plain: %d blocks of 256 threads on a multiprocessor\n", blocks);
    expect(blocks >= 1 && blocks * 256 <= threads_per_multiprocessor, "blocks that fit a multiprocessor");
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&more_shared, plain, 256, 40 << 10));
    expect(more_shared >= 1 && more_shared <= blocks, "no more of them with 40 KiB of shared memory each");
    int grid = 0, block = 0;
    CHECK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, plain, 0, 0));
    std::printf("# plain: best with %d blocks of %d threads\n", grid, block);
    expect(grid >= 1 && block >= 32 && block <= 1024 && block % 32 == 0, "a launch suggested for the best occupancy");
    size_t available = 0;
    CHECK(cudaOccupancyAvailableDynamicSMemPerBlock(&available, plain, 1, 128));
    expect(available > 0, "shared memory left for one block");

    DeviceBuffer<int> out(1024);
    with_shared<<<1, 256>>>(out.data());
    cudaError_t too_many = cudaGetLastError();
    expect(too_many != cudaSuccess, "a launch beyond the launch bounds is refused");
    plain<<<1, 1025>>>(out.data());
    EXPECT_ERROR(cudaErrorInvalidValue, cudaGetLastError());
    with_shared<<<1, 128>>>(out.data());
    CHECK_LAUNCH();
    CHECK(cudaDeviceSynchronize());
    std::vector<int> got = out.download();
    expect(got[0] == 1023 && got[127] == 896, "a launch within the bounds works");
}

static void pointers()
{
    cudaPointerAttributes attributes;
    char *device = nullptr, *pinned = nullptr, pageable[16];
    CHECK(cudaMalloc(&device, 4096));
    CHECK(cudaMallocHost(&pinned, 4096));
    CHECK(cudaPointerGetAttributes(&attributes, device + 100));
    expect(attributes.type == cudaMemoryTypeDevice && attributes.device == 0 && attributes.devicePointer == device + 100,
           "an address inside device memory");
    CHECK(cudaPointerGetAttributes(&attributes, pinned + 100));
    expect(attributes.type == cudaMemoryTypeHost && attributes.hostPointer == pinned + 100 && attributes.devicePointer != nullptr,
           "an address inside pinned memory");
    CHECK(cudaPointerGetAttributes(&attributes, pageable));
    expect(attributes.type == cudaMemoryTypeUnregistered, "an address CUDA does not know");
    CHECK(cudaFree(device));
    CHECK(cudaFreeHost(pinned));
}

int main()
{
    std::printf("device_query: what CUDA says about device, functions and pointers\n");
    device();
    functions();
    pointers();
    return verdict("device_query");
}

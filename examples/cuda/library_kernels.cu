// Kernels of a library loaded at run time, found by name, and launches with attributes, by the runtime API.
#include <string>

#include "check.h"

__global__ void offset(int* values, int amount) { values[blockIdx.x * blockDim.x + threadIdx.x] += amount; }

// A library as it may come from a file: two kernels and a variable.
static const char LIBRARY_PTX[] = R"ptx(
.version 7.0
.target sm_80
.address_size 64

.visible .global .align 4 .u32 factor = 3;

.visible .entry scale(.param .u64 values)
{
    .reg .b32 %index, %block, %size, %thread, %value, %factor;
    .reg .b64 %address, %offset;

    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.s32 %index, %block, %size, %thread;
    ld.param.u64 %address, [values];
    cvta.to.global.u64 %address, %address;
    mul.wide.u32 %offset, %index, 4;
    add.s64 %address, %address, %offset;
    ld.global.u32 %value, [%address];
    ld.global.u32 %factor, [factor];
    mul.lo.u32 %value, %value, %factor;
    st.global.u32 [%address], %value;
    ret;
}

.visible .entry nothing()
{
    ret;
}
)ptx";

int main()
{
    std::printf("library_kernels: kernels found by name, launches with attributes\n");
    cudaLibrary_t library;
    cudaKernel_t scale, missing;
    unsigned kernels = 0;
    CHECK(cudaLibraryLoadData(&library, LIBRARY_PTX, nullptr, nullptr, 0, nullptr, nullptr, 0));
    CHECK(cudaLibraryGetKernelCount(&kernels, library));
    expect(kernels == 2, "the library has two kernels");
    CHECK(cudaLibraryGetKernel(&scale, library, "scale"));
    EXPECT_ERROR(cudaErrorSymbolNotFound, cudaLibraryGetKernel(&missing, library, "no_such_kernel"));

    const int blocks = 7, threads = 96;
    std::vector<int> values(blocks * threads), want(values.size());
    for (size_t i = 0; i < values.size(); ++i) values[i] = (int)i - 100;
    DeviceBuffer<int> device(values);
    int* pointer = device.data();
    void* arguments[] = {&pointer};
    CHECK(cudaLaunchKernel((const void*)scale, dim3(blocks), dim3(threads), arguments, 0, nullptr));
    CHECK_LAUNCH();
    for (size_t i = 0; i < values.size(); ++i) want[i] = values[i] * 3;
    expect_equal(device.download(), want, "a kernel of the library");

    int* factor = nullptr;
    size_t bytes = 0;
    CHECK(cudaLibraryGetGlobal((void**)&factor, &bytes, library, "factor"));
    const int five = 5;
    CHECK(cudaMemcpy(factor, &five, sizeof five, cudaMemcpyHostToDevice));
    CHECK(cudaLaunchKernel((const void*)scale, dim3(blocks), dim3(threads), arguments, 0, nullptr));
    CHECK_LAUNCH();
    for (int& value : want) value *= 5;
    expect_equal(device.download(), want, "a variable of the library");
    expect(bytes == 4, "the variable's size");

    // A launch described by a structure, with attributes.
    int least = 0, greatest = 0;
    CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    cudaLaunchAttribute attributes[1];
    attributes[0].id = cudaLaunchAttributePriority;
    attributes[0].val.priority = greatest;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 1;
    CHECK(cudaLaunchKernelEx(&config, offset, pointer, 1000));
    CHECK(cudaStreamSynchronize(stream));
    for (int& value : want) value += 1000;
    expect_equal(device.download(), want, "a launch with attributes");

    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaLibraryUnload(library));
    return verdict("library_kernels");
}

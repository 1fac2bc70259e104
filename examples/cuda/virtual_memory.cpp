// Virtual memory management: a range of addresses first, physical memory for parts of it later, as growing buffers use it.
#include <cuda.h>

#include <cstring>
#include <string>

#include "expect.h"

#define CHECK(call)                                                                        \
    do {                                                                                   \
        CUresult check_result = (call);                                                    \
        if (check_result != CUDA_SUCCESS) {                                                \
            const char* name = "unknown error";                                            \
            (void)cuGetErrorName(check_result, &name);                                     \
            std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, name);              \
            std::exit(1);                                                                  \
        }                                                                                  \
    } while (0)

// values[i] += amount, one thread an element, blocks of 256.
static const char MODULE_PTX[] = R"ptx(
.version 7.0
.target sm_80
.address_size 64

.visible .entry add(.param .u64 values, .param .u32 amount)
{
    .reg .b32 %index, %block, %thread, %value, %amount;
    .reg .b64 %address, %offset;

    mov.u32 %block, %ctaid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.s32 %index, %block, 256, %thread;
    ld.param.u64 %address, [values];
    ld.param.u32 %amount, [amount];
    cvta.to.global.u64 %address, %address;
    mul.wide.u32 %offset, %index, 4;
    add.s64 %address, %address, %offset;
    ld.global.u32 %value, [%address];
    add.u32 %value, %value, %amount;
    st.global.u32 [%address], %value;
    ret;
}
)ptx";

static void add(CUfunction function, CUdeviceptr values, size_t count, unsigned amount)
{
    void* arguments[] = {&values, &amount};
    CHECK(cuLaunchKernel(function, (unsigned)(count / 256), 1, 1, 256, 1, 1, 0, nullptr, arguments, nullptr));
}

static std::vector<unsigned> download(CUdeviceptr from, size_t count)
{
    std::vector<unsigned> values(count);
    CHECK(cuMemcpyDtoH(values.data(), from, count * sizeof(unsigned)));
    return values;
}

int main()
{
    std::printf("virtual_memory: a buffer that grows without moving\n");
    CHECK(cuInit(0));
    CUdevice device;
    CUcontext context;
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    int supported = 0;
    CHECK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device));
    if (!expect(supported == 1, "the device manages virtual memory")) return verdict("virtual_memory");
    CUmodule module;
    CUfunction function;
    CHECK(cuModuleLoadData(&module, MODULE_PTX));
    CHECK(cuModuleGetFunction(&function, module, "add"));

    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    size_t granularity = 0;
    CHECK(cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    std::printf("# granularity %zu KiB\n", granularity >> 10);
    expect(granularity > 0 && granularity % 4096 == 0, "the granularity is a number of pages");

    // Four parts of addresses, two of them with memory.
    const int parts = 4;
    const size_t count = granularity / sizeof(unsigned);  // elements a part
    CUdeviceptr base = 0;
    CUmemGenericAllocationHandle memory[parts];
    CUmemAccessDesc access = {};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CHECK(cuMemAddressReserve(&base, parts * granularity, 0, 0, 0));
    auto map = [&](int part, CUmemGenericAllocationHandle handle) {
        CHECK(cuMemMap(base + part * granularity, granularity, 0, handle, 0));
        CHECK(cuMemSetAccess(base + part * granularity, granularity, &access, 1));
    };
    for (int part = 0; part < 2; ++part) {
        CHECK(cuMemCreate(&memory[part], granularity, &properties, 0));
        map(part, memory[part]);
    }
    CHECK(cuMemsetD32(base, 100, 2 * count));
    add(function, base, 2 * count, 11);
    expect_equal(download(base, 2 * count), std::vector<unsigned>(2 * count, 111), "two parts used as one buffer");

    // Growth: the addresses and the contents of the first parts stay.
    for (int part = 2; part < parts; ++part) {
        CHECK(cuMemCreate(&memory[part], granularity, &properties, 0));
        map(part, memory[part]);
    }
    CHECK(cuMemsetD32(base + 2 * granularity, 200, 2 * count));
    add(function, base, parts * count, 22);
    std::vector<unsigned> want(parts * count, 133);
    for (size_t i = 2 * count; i < want.size(); ++i) want[i] = 222;
    expect_equal(download(base, parts * count), want, "four parts used as one buffer");

    // The physical memory of part 1 moves to the addresses of part 3, contents and all.
    CHECK(cuCtxSynchronize());
    CHECK(cuMemUnmap(base + 3 * granularity, granularity));
    CHECK(cuMemRelease(memory[3]));
    CHECK(cuMemUnmap(base + granularity, granularity));
    map(3, memory[1]);
    expect_equal(download(base + 3 * granularity, count), std::vector<unsigned>(count, 133), "memory moved to other addresses");

    for (int part : {0, 2, 3}) CHECK(cuMemUnmap(base + part * granularity, granularity));
    for (int part : {0, 1, 2}) CHECK(cuMemRelease(memory[part]));
    CHECK(cuMemAddressFree(base, parts * granularity));
    CHECK(cuModuleUnload(module));
    CHECK(cuDevicePrimaryCtxRelease(device));
    return verdict("virtual_memory");
}

// A program on the driver API alone: contexts, a module from PTX text, two ways to pass arguments, copies, error codes.
#include <cuda.h>

#include <cstring>
#include <string>

#include "expect.h"

// Ends the program when a driver call fails, naming the call and the place.
#define CHECK(call)                                                                               \
    do {                                                                                          \
        CUresult check_result = (call);                                                           \
        if (check_result != CUDA_SUCCESS) {                                                       \
            std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, error_name(check_result)); \
            std::exit(1);                                                                         \
        }                                                                                         \
    } while (0)

#define EXPECT_ERROR(expected, call)                                                      \
    do {                                                                                  \
        CUresult expect_result = (call);                                                  \
        expect(expect_result == (expected), "%s returns %s", #call, #expected);           \
        if (expect_result != (expected)) std::printf("  got %s\n", error_name(expect_result)); \
    } while (0)

static const char* error_name(CUresult result)
{
    const char* name = nullptr;
    return cuGetErrorName(result, &name) == CUDA_SUCCESS && name != nullptr ? name : "unknown error";
}

// saxpy: y = a * x + y. fill: writes value + index + bias through a structure passed by value, and counts its threads.
static const char MODULE_PTX[] = R"ptx(
.version 7.0
.target sm_80
.address_size 64

.visible .global .align 4 .u32 threads_run = 0;
.visible .const .align 4 .u32 bias = 1000;

.visible .entry saxpy(.param .u64 x, .param .u64 y, .param .f32 a, .param .u32 count)
{
    .reg .pred %outside;
    .reg .b32 %index, %block, %size, %thread, %count;
    .reg .b64 %x, %y, %offset;
    .reg .f32 %a, %vx, %vy;

    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.s32 %index, %block, %size, %thread;
    ld.param.u32 %count, [count];
    setp.ge.u32 %outside, %index, %count;
    @%outside bra done;
    ld.param.u64 %x, [x];
    ld.param.u64 %y, [y];
    ld.param.f32 %a, [a];
    cvta.to.global.u64 %x, %x;
    cvta.to.global.u64 %y, %y;
    mul.wide.u32 %offset, %index, 4;
    add.s64 %x, %x, %offset;
    add.s64 %y, %y, %offset;
    ld.global.f32 %vx, [%x];
    ld.global.f32 %vy, [%y];
    fma.rn.f32 %vy, %a, %vx, %vy;
    st.global.f32 [%y], %vy;
done:
    ret;
}

.visible .entry fill(.param .align 8 .b8 arguments[16])
{
    .reg .pred %outside;
    .reg .b32 %index, %block, %size, %thread, %count, %value, %bias, %before;
    .reg .b64 %out, %offset;

    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.s32 %index, %block, %size, %thread;
    ld.param.u32 %count, [arguments+12];
    setp.ge.u32 %outside, %index, %count;
    @%outside bra done;
    ld.param.u64 %out, [arguments];
    ld.param.u32 %value, [arguments+8];
    ld.const.u32 %bias, [bias];
    add.u32 %value, %value, %index;
    add.u32 %value, %value, %bias;
    cvta.to.global.u64 %out, %out;
    mul.wide.u32 %offset, %index, 4;
    add.s64 %out, %out, %offset;
    st.global.u32 [%out], %value;
    atom.global.add.u32 %before, [threads_run], 1;
done:
    ret;
}
)ptx";

struct FillArguments {
    CUdeviceptr out;
    unsigned value;
    unsigned count;
};

static void before_anything()
{
    CUdeviceptr pointer = 0;
    int count = 0;
    EXPECT_ERROR(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&count));
    EXPECT_ERROR(CUDA_ERROR_INVALID_VALUE, cuInit(1));
    CHECK(cuInit(0));
    EXPECT_ERROR(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&pointer, 4096));
    CUdevice device = 0;
    EXPECT_ERROR(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, 99));
    const char* text = nullptr;
    EXPECT_ERROR(CUDA_ERROR_INVALID_VALUE, cuGetErrorName((CUresult)54321, &text));
    CHECK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
    expect(std::string(text) == "CUDA_ERROR_OUT_OF_MEMORY", "errors have names");
    CHECK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
    expect(std::string(text) == "out of memory", "errors have descriptions");
}

static void describe(CUdevice device)
{
    char name[128] = "";
    int version = 0, major = 0, minor = 0;
    size_t total = 0;
    CHECK(cuDeviceGetName(name, sizeof name, device));
    CHECK(cuDriverGetVersion(&version));
    CHECK(cuDeviceTotalMem(&total, device));
    CHECK(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
    CHECK(cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device));
    std::printf("# %s, compute capability %d.%d, %zu MiB, driver %d\n", name, major, minor, total >> 20, version);
    expect(major >= 8 && total > 0 && version >= 11000 && std::strlen(name) > 0, "the device describes itself");
}

// The primary context and one of our own on this thread's stack of contexts.
static CUcontext contexts(CUdevice device)
{
    CUcontext current = nullptr, primary = nullptr, own = nullptr, popped = nullptr;
    CHECK(cuCtxGetCurrent(&current));
    expect(current == nullptr, "a new thread has no context");
    CHECK(cuDevicePrimaryCtxRetain(&primary, device));
    CHECK(cuCtxCreate(&own, nullptr, CU_CTX_SCHED_AUTO, device));
    CHECK(cuCtxGetCurrent(&current));
    expect(current == own && own != primary, "a created context is current");
    CHECK(cuCtxPushCurrent(primary));
    CHECK(cuCtxGetCurrent(&current));
    expect(current == primary, "a pushed context is current");
    CHECK(cuCtxPopCurrent(&popped));
    CHECK(cuCtxGetCurrent(&current));
    expect(popped == primary && current == own, "after the pop the one below is current again");
    CUdevice of_context = -1;
    CHECK(cuCtxGetDevice(&of_context));
    expect(of_context == device, "a context knows its device");
    unsigned flags = 0;
    int active = 0;
    CHECK(cuDevicePrimaryCtxGetState(device, &flags, &active));
    expect(active == 1, "the primary context is active");
    CHECK(cuDevicePrimaryCtxRelease(device));
    return own;
}

static void launches(CUmodule module)
{
    const unsigned count = 5000, threads = 128, blocks = (count + threads - 1) / threads;
    CUfunction saxpy, fill, missing;
    CHECK(cuModuleGetFunction(&saxpy, module, "saxpy"));
    CHECK(cuModuleGetFunction(&fill, module, "fill"));
    EXPECT_ERROR(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&missing, module, "no_such_kernel"));
    int threads_max = 0;
    CHECK(cuFuncGetAttribute(&threads_max, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, saxpy));
    expect(threads_max >= (int)threads && threads_max <= 1024, "the function says how many threads it allows");

    // Arguments as an array of pointers.
    std::vector<float> x = random_floats(count, 12), y = random_floats(count, 13), got(count), want(count);
    CUdeviceptr device_x, device_y;
    CHECK(cuMemAlloc(&device_x, count * sizeof(float)));
    CHECK(cuMemAlloc(&device_y, count * sizeof(float)));
    CHECK(cuMemcpyHtoD(device_x, x.data(), count * sizeof(float)));
    CHECK(cuMemcpyHtoD(device_y, y.data(), count * sizeof(float)));
    float a = 1.5f;
    unsigned argument_count = count;
    void* arguments[] = {&device_x, &device_y, &a, &argument_count};
    CUstream stream;
    CHECK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    CHECK(cuLaunchKernel(saxpy, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr));
    a = -100;  // the launch has copied its arguments
    CHECK(cuMemcpyDtoHAsync(got.data(), device_y, count * sizeof(float), stream));
    CHECK(cuStreamSynchronize(stream));
    for (unsigned i = 0; i < count; ++i) want[i] = std::fmaf(1.5f, x[i], y[i]);
    expect_equal(got, want, "saxpy, arguments by kernelParams");

    // Arguments packed into one buffer.
    FillArguments packed = {device_x, 70, count};
    size_t packed_bytes = sizeof packed;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &packed_bytes, CU_LAUNCH_PARAM_END};
    CHECK(cuLaunchKernel(fill, blocks, 1, 1, threads, 1, 1, 0, stream, nullptr, extra));
    CHECK(cuCtxSynchronize());
    std::vector<unsigned> filled(count), want_filled(count);
    CHECK(cuMemcpyDtoH(filled.data(), device_x, count * sizeof(unsigned)));
    for (unsigned i = 0; i < count; ++i) want_filled[i] = 70 + i + 1000;
    expect_equal(filled, want_filled, "a structure by value, arguments by the extra buffer");

    CUdeviceptr threads_run, bias;
    size_t bytes = 0;
    CHECK(cuModuleGetGlobal(&threads_run, &bytes, module, "threads_run"));
    unsigned ran = 0, new_bias = 5;
    CHECK(cuMemcpyDtoH(&ran, threads_run, sizeof ran));
    expect(bytes == 4 && ran == count, "a global of the module counted %u threads", ran);
    CHECK(cuModuleGetGlobal(&bias, nullptr, module, "bias"));
    CHECK(cuMemcpyHtoD(bias, &new_bias, sizeof new_bias));
    CHECK(cuLaunchKernel(fill, blocks, 1, 1, threads, 1, 1, 0, nullptr, nullptr, extra));
    CHECK(cuMemcpyDtoH(filled.data(), device_x, count * sizeof(unsigned)));
    for (unsigned i = 0; i < count; ++i) want_filled[i] = 70 + i + 5;
    expect_equal(filled, want_filled, "a constant of the module set by its address");

    EXPECT_ERROR(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(saxpy, 1, 1, 1, 2048, 1, 1, 0, stream, arguments, nullptr));
    EXPECT_ERROR(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(saxpy, 0, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr));
    CHECK(cuStreamDestroy(stream));
    CHECK(cuMemFree(device_x));
    CHECK(cuMemFree(device_y));
}

static void memory()
{
    size_t free_bytes = 0, total_bytes = 0;
    CHECK(cuMemGetInfo(&free_bytes, &total_bytes));
    std::printf("# %zu of %zu MiB free\n", free_bytes >> 20, total_bytes >> 20);
    expect(free_bytes > 0 && free_bytes <= total_bytes, "free and total memory are plausible");

    const size_t count = 1024;
    CUdeviceptr a, b;
    CHECK(cuMemAlloc(&a, count * 4));
    CHECK(cuMemAlloc(&b, count * 4));
    CHECK(cuMemsetD32(a, 0x01020304, count));
    CHECK(cuMemsetD16(a + 100, 0xabcd, 10));
    CHECK(cuMemsetD8(a + 401, 0x77, 3));
    CHECK(cuMemcpyDtoD(b, a, count * 4));
    CHECK(cuMemcpyDtoD(b + 2048, b, 1024));
    std::vector<unsigned char> got(count * 4), want(count * 4);
    CHECK(cuMemcpyDtoH(got.data(), b, got.size()));
    for (size_t i = 0; i < want.size(); ++i) want[i] = (unsigned char)(4 - i % 4);
    for (size_t i = 0; i < 10; ++i) want[100 + 2 * i] = 0xcd, want[101 + 2 * i] = 0xab;
    for (size_t i = 0; i < 3; ++i) want[401 + i] = 0x77;
    std::memcpy(want.data() + 2048, want.data(), 1024);
    expect_equal(got, want, "memsets of 8, 16 and 32 bits and copies on the device");

    CUdeviceptr base = 0;
    size_t size = 0;
    CHECK(cuMemGetAddressRange(&base, &size, a + 1234));
    expect(base == a && size == count * 4, "an inner address leads to its allocation");
    EXPECT_ERROR(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&base, 0));
    EXPECT_ERROR(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&base, (size_t)1 << 46));
    CHECK(cuMemFree(a));
    CHECK(cuMemFree(b));
    EXPECT_ERROR(CUDA_ERROR_INVALID_VALUE, cuMemFree(b));
}

// The compiler in the driver explains what it does not like.
static void broken_module()
{
    char log[2048] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void* values[] = {log, (void*)sizeof log};
    CUmodule module = nullptr;
    const char* broken = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k() {\n  frobnicate.u32 %r1;\n  ret;\n}\n";
    EXPECT_ERROR(CUDA_ERROR_INVALID_PTX, cuModuleLoadDataEx(&module, broken, 2, options, values));
    std::printf("# %s\n", std::string(log).substr(0, std::string(log).find('\n')).c_str());
    expect(std::strlen(log) > 0, "the error log says what is wrong");
}

int main()
{
    std::printf("driver_api: contexts, modules, launches and memory by cu* calls alone\n");
    before_anything();
    CUdevice device = 0;
    CHECK(cuDeviceGet(&device, 0));
    describe(device);
    CUcontext context = contexts(device);
    CUmodule module = nullptr;
    CHECK(cuModuleLoadData(&module, MODULE_PTX));
    launches(module);
    memory();
    broken_module();
    CHECK(cuModuleUnload(module));
    CHECK(cuCtxDestroy(context));
    return verdict("driver_api");
}

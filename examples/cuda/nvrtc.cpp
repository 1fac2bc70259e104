// A kernel compiled while the program runs: NVRTC makes PTX, the driver loads it, the runtime API owns the memory.
#include <cuda.h>
#include <nvrtc.h>

#include <cstring>
#include <string>

#include "check.h"

#define CHECK_NVRTC(call)                                                                                      \
    do {                                                                                                       \
        nvrtcResult check_result = (call);                                                                     \
        if (check_result != NVRTC_SUCCESS) {                                                                   \
            std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, nvrtcGetErrorString(check_result));     \
            std::exit(1);                                                                                      \
        }                                                                                                      \
    } while (0)

#define CHECK_DRIVER(call)                                                                    \
    do {                                                                                      \
        CUresult check_result = (call);                                                       \
        if (check_result != CUDA_SUCCESS) {                                                   \
            const char* name = "unknown error";                                               \
            (void)cuGetErrorName(check_result, &name);                                        \
            std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, name);                 \
            std::exit(1);                                                                     \
        }                                                                                     \
    } while (0)

static const char SOURCE[] = R"cuda(
template <class T, int STEPS>
__global__ void iterate(T* values, T factor, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    T value = values[i];
    for (int step = 0; step < STEPS; ++step) value = value * factor + (T)step;
    values[i] = value;
}

extern "C" __global__ void negate(double* values, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) values[i] = SIGN values[i];
}
)cuda";

struct Compiled {
    std::string ptx;
    std::string iterate_int, iterate_double;  // mangled names of the instances
};

static Compiled compile()
{
    nvrtcProgram program;
    CHECK_NVRTC(nvrtcCreateProgram(&program, SOURCE, "iterate.cu", 0, nullptr, nullptr));
    CHECK_NVRTC(nvrtcAddNameExpression(program, "iterate<int, 5>"));
    CHECK_NVRTC(nvrtcAddNameExpression(program, "iterate<double, 3>"));
    const char* options[] = {"--gpu-architecture=compute_80", "--std=c++17", "-DSIGN=-", "--fmad=false"};
    nvrtcResult result = nvrtcCompileProgram(program, 4, options);
    size_t bytes = 0;
    CHECK_NVRTC(nvrtcGetProgramLogSize(program, &bytes));
    std::string log(bytes, 0);
    CHECK_NVRTC(nvrtcGetProgramLog(program, &log[0]));
    if (result != NVRTC_SUCCESS) std::printf("%s\n", log.c_str());
    CHECK_NVRTC(result);

    Compiled compiled;
    CHECK_NVRTC(nvrtcGetPTXSize(program, &bytes));
    compiled.ptx.resize(bytes);
    CHECK_NVRTC(nvrtcGetPTX(program, &compiled.ptx[0]));
    const char* name = nullptr;
    CHECK_NVRTC(nvrtcGetLoweredName(program, "iterate<int, 5>", &name));
    compiled.iterate_int = name;
    CHECK_NVRTC(nvrtcGetLoweredName(program, "iterate<double, 3>", &name));
    compiled.iterate_double = name;
    CHECK_NVRTC(nvrtcDestroyProgram(&program));
    return compiled;
}

static void compile_error()
{
    nvrtcProgram program;
    CHECK_NVRTC(nvrtcCreateProgram(&program, "__global__ void k() {\n  undeclared = 1;\n}\n", "broken.cu", 0, nullptr, nullptr));
    nvrtcResult result = nvrtcCompileProgram(program, 0, nullptr);
    char log[4096] = "";
    size_t bytes = 0;
    CHECK_NVRTC(nvrtcGetProgramLogSize(program, &bytes));
    if (bytes <= sizeof log) CHECK_NVRTC(nvrtcGetProgramLog(program, log));
    expect(result == NVRTC_ERROR_COMPILATION && std::strstr(log, "broken.cu(2)") != nullptr, "an error is reported with its line");
    CHECK_NVRTC(nvrtcDestroyProgram(&program));
}

template <class T>
static std::vector<T> launched(CUfunction function, const std::vector<T>& values, T factor)
{
    DeviceBuffer<T> device(values);
    T* pointer = device.data();
    int count = (int)values.size();
    void* arguments[] = {&pointer, &factor, &count};
    CHECK_DRIVER(cuLaunchKernel(function, blocks_for(values.size(), 64), 1, 1, 64, 1, 1, 0, nullptr, arguments, nullptr));
    return device.download();
}

int main()
{
    std::printf("nvrtc: kernels compiled at run time\n");
    Compiled compiled = compile();
    expect(compiled.ptx.find(compiled.iterate_int) != std::string::npos, "the PTX holds the instance of the template");
    compile_error();

    CHECK(cudaFree(nullptr));  // the runtime makes the device's primary context current, the driver API uses it too
    CUmodule module;
    CUfunction iterate_int, iterate_double, negate;
    CHECK_DRIVER(cuModuleLoadData(&module, compiled.ptx.c_str()));
    CHECK_DRIVER(cuModuleGetFunction(&iterate_int, module, compiled.iterate_int.c_str()));
    CHECK_DRIVER(cuModuleGetFunction(&iterate_double, module, compiled.iterate_double.c_str()));
    CHECK_DRIVER(cuModuleGetFunction(&negate, module, "negate"));

    const int count = 1000;
    std::vector<int> integers(count), want_integers(count);
    std::vector<double> doubles(count), want_doubles(count);
    for (int i = 0; i < count; ++i) {
        integers[i] = want_integers[i] = i - 300;
        doubles[i] = want_doubles[i] = i * 0.125;
        for (int step = 0; step < 5; ++step) want_integers[i] = want_integers[i] * 3 + step;
        for (int step = 0; step < 3; ++step) want_doubles[i] = want_doubles[i] * 0.5 + step;
    }
    expect_equal(launched<int>(iterate_int, integers, 3), want_integers, "integers");
    expect_equal(launched<double>(iterate_double, doubles, 0.5), want_doubles, "doubles");

    DeviceBuffer<double> device(doubles);
    double* pointer = device.data();
    int size = count;
    void* arguments[] = {&pointer, &size};
    CHECK_DRIVER(cuLaunchKernel(negate, blocks_for(count, 256), 1, 1, 256, 1, 1, 0, nullptr, arguments, nullptr));
    for (double& value : doubles) value = -value;
    expect_equal(device.download(), doubles, "a macro set at run time");
    CHECK_DRIVER(cuModuleUnload(module));
    return verdict("nvrtc");
}

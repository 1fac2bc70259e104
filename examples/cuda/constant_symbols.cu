// Variables that live in the module: __constant__ and __device__, reached from the host by their names.
#include "check.h"

#include <cstring>

struct Polynomial {
    float coefficients[4];
    int degree;
};

__constant__ Polynomial polynomial = {{1.0f, 2.0f, 3.0f, 0.0f}, 2};  // has a value before the host sets one
__constant__ int table[64];
__device__ int counter = 41;
__device__ float results[256];
__device__ int* hook;  // a pointer in device memory to other device memory

__global__ void evaluate(int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float x = (float)(i % 16), value = 0;
    for (int power = polynomial.degree; power >= 0; --power) value = value * x + polynomial.coefficients[power];
    results[i] = value;  // small integers: exact
}

__global__ void count_and_look_up(int* out)
{
    atomicAdd(&counter, table[threadIdx.x]);
    hook[threadIdx.x] = table[63 - threadIdx.x];
    if (threadIdx.x == 0) *out = (int)sizeof(Polynomial);
}

static std::vector<float> evaluated(const Polynomial& wanted)
{
    std::vector<float> values(256);
    for (int i = 0; i < 256; ++i) {
        float x = (float)(i % 16), value = 0;
        for (int power = wanted.degree; power >= 0; --power) value = value * x + wanted.coefficients[power];
        values[i] = value;
    }
    return values;
}

int main()
{
    std::printf("constant_symbols: module variables set, used by kernels and read back\n");

    std::vector<float> got(256);
    evaluate<<<2, 128>>>(256);
    CHECK_LAUNCH();
    CHECK(cudaMemcpyFromSymbol(got.data(), results, sizeof results));
    expect_equal(got, evaluated({{1, 2, 3, 0}, 2}), "a constant with its initial value");

    Polynomial cubic = {{-1, 0, 2, 5}, 3};
    CHECK(cudaMemcpyToSymbol(polynomial, &cubic, sizeof cubic));
    evaluate<<<2, 128>>>(256);
    CHECK_LAUNCH();
    CHECK(cudaMemcpyFromSymbol(got.data(), results, sizeof results));
    expect_equal(got, evaluated(cubic), "a constant set by the host");

    // Part of a symbol, with an offset; and asynchronously in a stream.
    float slope = 7;
    CHECK(cudaMemcpyToSymbol(polynomial, &slope, sizeof slope, sizeof(float)));
    cubic.coefficients[1] = slope;
    Polynomial back;
    std::memset(&back, 0, sizeof back);
    CHECK(cudaMemcpyFromSymbol(&back, polynomial, sizeof back));
    expect(std::memcmp(&back, &cubic, sizeof back) == 0, "one field changed through an offset");

    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    std::vector<int> numbers(64);
    for (int i = 0; i < 64; ++i) numbers[i] = i * i;
    CHECK(cudaMemcpyToSymbolAsync(table, numbers.data(), sizeof table, 0, cudaMemcpyHostToDevice, stream));

    DeviceBuffer<int> hooked(64), size(1);
    int* hooked_address = hooked.data();
    CHECK(cudaMemcpyToSymbolAsync(hook, &hooked_address, sizeof hooked_address, 0, cudaMemcpyHostToDevice, stream));
    count_and_look_up<<<1, 64, 0, stream>>>(size.data());
    CHECK_LAUNCH();
    int counted = 0;
    CHECK(cudaMemcpyFromSymbolAsync(&counted, counter, sizeof counted, 0, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    int want = 41;
    std::vector<int> reversed(64);
    for (int i = 0; i < 64; ++i) want += numbers[i], reversed[i] = numbers[63 - i];
    expect(counted == want, "a __device__ variable counts to %d", want);
    expect_equal(hooked.download(), reversed, "memory reached through a pointer in a __device__ variable");
    expect_equal(size.download(), {(int)sizeof(Polynomial)}, "host and device agree on the structure's size");

    // The address of a symbol is ordinary device memory.
    void* address = nullptr;
    size_t bytes = 0;
    CHECK(cudaGetSymbolAddress(&address, counter));
    CHECK(cudaGetSymbolSize(&bytes, results));
    expect(bytes == sizeof results, "the size of a symbol is %zu", sizeof results);
    int seven = 7;
    CHECK(cudaMemcpy(address, &seven, sizeof seven, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpyFromSymbol(&counted, counter, sizeof counted));
    expect(counted == 7, "written by address, read by name");
    EXPECT_ERROR(cudaErrorInvalidSymbol, cudaMemcpyToSymbol(numbers, &seven, sizeof seven));
    CHECK(cudaStreamDestroy(stream));
    return verdict("constant_symbols");
}

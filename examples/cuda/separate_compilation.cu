// A program of two compilation units on the device (nvcc -rdc=true): functions, variables and constants of the other unit,
// names that both have for themselves, and a pointer to a function from there.
#include "check.h"

// In separate_compilation/other.cu.
extern __device__ int calls;
extern __constant__ int factor;
__device__ int transformed(int value);
using Operation = int (*)(int);
extern __device__ Operation operation;

// The other unit has a function and a variable of these names, too.
static __device__ int offset = 5;
static __device__ __noinline__ int hidden(int value) { return value + offset; }

__global__ void transform(const int* values, int* out, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = hidden(transformed(values[i])) * factor + operation(i);
}

int main()
{
    std::printf("separate_compilation: two units linked on the device\n");
    const int count = 1000;
    std::vector<int> values(count), want(count);
    for (int i = 0; i < count; ++i) {
        values[i] = i * 7 % 1000;
        want[i] = (values[i] * 2 - 40 + 5) * 3 + (i ^ 0x55);
    }
    DeviceBuffer<int> in(values), out(count);
    transform<<<blocks_for(count, 128), 128>>>(in.data(), out.data(), count);
    CHECK_LAUNCH();
    expect_equal(out.download(), want, "results through both units");
    int seen = 0;
    CHECK(cudaMemcpyFromSymbol(&seen, calls, sizeof seen));
    expect(seen == 100 + count, "the other unit's counter stands at %d", 100 + count);
    const int other_factor = 10;
    CHECK(cudaMemcpyToSymbol(factor, &other_factor, sizeof other_factor));
    transform<<<blocks_for(count, 128), 128>>>(in.data(), out.data(), count);
    CHECK_LAUNCH();
    for (int i = 0; i < count; ++i) want[i] = (values[i] * 2 - 40 + 5) * 10 + (i ^ 0x55);
    expect_equal(out.download(), want, "results with the other unit's constant changed");
    return verdict("separate_compilation");
}

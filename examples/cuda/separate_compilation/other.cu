// The other unit of separate_compilation.
__device__ int calls = 100;
__constant__ int factor = 3;

static __device__ int offset = -40;
static __device__ __noinline__ int hidden(int value) { return value * 2 + offset; }

__device__ int transformed(int value)
{
    atomicAdd(&calls, 1);
    return hidden(value);
}

static __device__ int mixed(int value) { return value ^ 0x55; }
using Operation = int (*)(int);
__device__ Operation operation = mixed;

// Calls, stacks, memory spaces with initialisers, and the device runtime.
#include <cstdio>
#include <cassert>
#include <cstdlib>

__constant__ float coefficients[4] = {1.0f, -2.0f, 0.5f, 3.0f};
__constant__ int offsets[8];
__device__ int counter = 41;
__device__ int table[4] = {10, 20, 30, 40};
__device__ int* table_end = table + 3;

extern "C" __global__ void polynomial(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float v = 0;
  for (int k = 0; k < 4; ++k) v = v * x[i] + coefficients[k];
  y[i] = v + offsets[i & 7];
}

extern "C" __global__ void globals(int* out) {
  out[0] = atomicAdd(&counter, 1);
  out[1] = *table_end;
  table_end = &table[1];
  out[2] = *table_end;
}

extern "C" __global__ void local_array(const int* in, int* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int ring[16];
  for (int k = 0; k < 16; ++k) ring[k] = in[(i + k) % n];
  // Insertion sort through run-time indices keeps the array in local memory.
  for (int k = 1; k < 16; ++k) {
    int v = ring[k], j = k - 1;
    while (j >= 0 && ring[j] > v) { ring[j + 1] = ring[j]; --j; }
    ring[j + 1] = v;
  }
  out[i] = ring[i & 15];
}

__device__ __noinline__ unsigned fibonacci(unsigned n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

extern "C" __global__ void recursion(unsigned* out) { out[threadIdx.x] = fibonacci(threadIdx.x % 15); }

struct Pair { int a; double b; short c; };
__device__ __noinline__ Pair make_pair_of(int x) { Pair p{x, x * 0.5, (short)-x}; return p; }
__device__ __noinline__ double use_pair(Pair p, float f) { return p.a + p.b * f + p.c; }

extern "C" __global__ void aggregates(double* out) {
  Pair p = make_pair_of(threadIdx.x + 1);
  out[threadIdx.x] = use_pair(p, 2.0f);
}

typedef int (*Operation)(int, int);
__device__ __noinline__ int op_add(int a, int b) { return a + b; }
__device__ __noinline__ int op_mul(int a, int b) { return a * b; }
__device__ __noinline__ int op_sub(int a, int b) { return a - b; }
__device__ Operation operations[3] = {op_add, op_mul, op_sub};

extern "C" __global__ void pointers(int* out, int a) {
  int t = threadIdx.x;
  out[t] = operations[t % 3](t, a);
}

struct Shape { __device__ virtual float area() const = 0; };
struct Square : Shape { float s; __device__ Square(float s) : s(s) {} __device__ float area() const override { return s * s; } };
struct Disc : Shape { float r; __device__ Disc(float r) : r(r) {} __device__ float area() const override { return 3.0f * r * r; } };

extern "C" __global__ void virtuals(float* out) {
  Square s(threadIdx.x); Disc d(threadIdx.x);
  Shape* shapes[2] = {&s, &d};
  out[threadIdx.x] = shapes[threadIdx.x & 1]->area();
}

extern "C" __global__ void say(const char* name, int n) {
  if (threadIdx.x < n) printf("[%d] %s %5.2f %-4u| %lld %c %#x %%\n", threadIdx.x, name, threadIdx.x * 1.5, threadIdx.x * 7u, -5000000000ll * threadIdx.x, 'a' + threadIdx.x, threadIdx.x);
}

extern "C" __global__ void check(const int* in) { assert(in[threadIdx.x] >= 0); }

extern "C" __global__ void lists(int* out) {
  int* p = (int*)malloc(4 * (threadIdx.x + 1));
  if (!p) { out[threadIdx.x] = -1; return; }
  for (int i = 0; i <= threadIdx.x; ++i) p[i] = i;
  int s = 0;
  for (int i = 0; i <= threadIdx.x; ++i) s += p[i];
  free(p);
  out[threadIdx.x] = s;
}

extern "C" __global__ void trap_if(const int* in) { if (in[threadIdx.x] < 0) __trap(); }

extern "C" __global__ void forever(volatile int* flag) { while (!*flag) {} }

extern "C" __global__ void wild(int* p, long offset) { p[offset + threadIdx.x] = 1; }

extern "C" __global__ void endless_recursion(int* out) {
  struct F { static __device__ __noinline__ int f(int n, volatile int* o) { int a[16]; for (int i = 0; i < 16; ++i) a[i] = n + *o; return n ? f(n + 1, o) + a[n & 15] : 0; } };
  out[0] = F::f(1, out);
}

// Tensor cores as matrix products use them: fragments are loaded, multiplied into eight tiles of sums, again and again.
#include <cuda_runtime.h>

template <int Kind>
__device__ void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  if (Kind == 0)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ void multiply(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <typename Sum, typename F>
__device__ void product(const unsigned* in, Sum* out, int steps, F multiply) {
  __shared__ __align__(16) unsigned tile[1024];
  int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
  Sum d[8][4] = {};
  for (int step = 0; step < steps; step++) {
    for (int j = threadIdx.x; j < 1024; j += blockDim.x) tile[j] = in[step * 1024 + j];
    __syncthreads();
    unsigned a[4];
    unsigned row = (unsigned)__cvta_generic_to_shared(tile + lane % 16 * 8 + lane / 16 * 4);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(row));
#pragma unroll
    for (int t = 0; t < 8; t++) {
      unsigned b[2] = {tile[t * 64 + lane], tile[t * 64 + 32 + lane]};
      multiply(d[t], a, b);
    }
    __syncthreads();
  }
  for (int t = 0; t < 8; t++)
    for (int j = 0; j < 4; j++) out[(t * 4 + j) * gridDim.x * blockDim.x + i] = d[t][j];
}

extern "C" __global__ void mma_f16(const unsigned* in, float* out, int steps) {
  product<float>(in, out, steps, [](float(&d)[4], const unsigned(&a)[4], const unsigned(&b)[2]) { multiply<0>(d, a, b); });
}

extern "C" __global__ void mma_tf32(const unsigned* in, float* out, int steps) {
  product<float>(in, out, steps, [](float(&d)[4], const unsigned(&a)[4], const unsigned(&b)[2]) { multiply<1>(d, a, b); });
}

extern "C" __global__ void mma_s8(const unsigned* in, int* out, int steps) {
  product<int>(in, out, steps, [](int(&d)[4], const unsigned(&a)[4], const unsigned(&b)[2]) { multiply(d, a, b); });
}

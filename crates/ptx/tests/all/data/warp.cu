// Work inside a warp and between threads: shuffles, votes, atomics, divergence, locks.

__device__ float warp_sum(float v) {
  for (int o = 16; o; o >>= 1) v += __shfl_down_sync(0xffffffffu, v, o);
  return v;
}

extern "C" __global__ void reduce_sum(const float* in, float* out, int n) {
  __shared__ float part[32];
  float v = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += in[i];
  v = warp_sum(v);
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
  __syncthreads();
  if (threadIdx.x < 32) {
    v = threadIdx.x < (blockDim.x >> 5) ? part[threadIdx.x] : 0.0f;
    v = warp_sum(v);
    if (threadIdx.x == 0) atomicAdd(out, v);
  }
}

extern "C" __global__ void histogram(const unsigned char* in, unsigned* bins, int n) {
  __shared__ unsigned local[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&local[in[i]], 1u);
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x) if (local[i]) atomicAdd(&bins[i], local[i]);
}

// Inclusive scan of one block: within warps by shuffles, then over the warps' totals.
extern "C" __global__ void scan_block(const int* in, int* out, int n) {
  __shared__ int totals[32];
  int i = threadIdx.x, lane = i & 31, warp = i >> 5;
  int v = i < n ? in[i] : 0;
  for (int o = 1; o < 32; o <<= 1) {
    int u = __shfl_up_sync(0xffffffffu, v, o);
    if (lane >= o) v += u;
  }
  if (lane == 31) totals[warp] = v;
  __syncthreads();
  if (warp == 0) {
    int t = lane < (blockDim.x >> 5) ? totals[lane] : 0;
    for (int o = 1; o < 32; o <<= 1) {
      int u = __shfl_up_sync(0xffffffffu, t, o);
      if (lane >= o) t += u;
    }
    totals[lane] = t;
  }
  __syncthreads();
  if (warp) v += totals[warp - 1];
  if (i < n) out[i] = v;
}

extern "C" __global__ void votes(const int* in, unsigned* out) {
  int v = in[threadIdx.x];
  unsigned full = 0xffffffffu, *o = out + threadIdx.x * 16;
  o[0] = __ballot_sync(full, v & 1);
  o[1] = __any_sync(full, v == 7);
  o[2] = __all_sync(full, v < 1000);
  o[3] = __match_any_sync(full, v);
  int all; o[4] = __match_all_sync(full, v & 0, &all); o[5] = all;
  o[6] = __reduce_add_sync(full, v);
  o[7] = __reduce_min_sync(full, v);
  o[8] = __reduce_xor_sync(full, (unsigned)v);
  o[9] = __shfl_xor_sync(full, v, 5);
  o[10] = __shfl_sync(full, v, 3, 8);
  o[11] = v & 1 ? __activemask() : 0;
  o[12] = __popc(v) + __clz(v) * 100 + __ffs(v) * 10000;
  o[13] = __brev(v) ^ __byte_perm(v, ~v, 0x5410);
  o[14] = __funnelshift_l(v, v * 3, 7) + __sad(v, 9, 1u);
  o[15] = (threadIdx.x & 16) ? __shfl_down_sync(0xffff0000u, v, 1) : __shfl_up_sync(0x0000ffffu, v, 2);
}

extern "C" __global__ void atomics(int* i, unsigned* u, unsigned long long* l, float* f, double* d) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(&i[0], t); atomicSub(&i[1], t); atomicMin(&i[2], -t); atomicMax(&i[3], t);
  atomicAnd(&u[0], ~(1u << (t & 15))); atomicOr(&u[1], 1u << (t & 31)); atomicXor(&u[2], (unsigned)t * 2654435761u);
  atomicInc(&u[3], 9); atomicDec(&u[4], 6); atomicExch(&u[5], 77u);
  atomicAdd(&l[0], (unsigned long long)t << 33); atomicMax(&l[1], (unsigned long long)t << 20); atomicMin((long long*)&l[2], -(long long)t);
  atomicAdd(f, 0.5f); atomicAdd(d, 0.25);
  unsigned seen = u[6], want;
  do { want = seen; seen = atomicCAS(&u[6], want, want * 3 + 1); } while (seen != want);
}

// A lock taken by every lane of a warp in turn: needs progress of diverged lanes.
extern "C" __global__ void spin_lock(int* lock, int* counter, int rounds) {
  for (int r = 0; r < rounds; ++r) {
    while (atomicCAS(lock, 0, 1) != 0) {}
    __threadfence();
    *(volatile int*)counter = *(volatile int*)counter + 1;
    __threadfence();
    atomicExch(lock, 0);
  }
}

// Block b waits for block b - 1 through global memory.
extern "C" __global__ void chain(volatile int* flags, int* sum) {
  if (threadIdx.x == 0) {
    if (blockIdx.x) while (!flags[blockIdx.x - 1]) {}
    sum[blockIdx.x] = (blockIdx.x ? *(volatile int*)&sum[blockIdx.x - 1] : 0) + blockIdx.x;
    __threadfence();
    flags[blockIdx.x] = 1;
  }
}

extern "C" __global__ void collatz(const unsigned* in, unsigned* steps, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned long long v = in[i]; unsigned s = 0;
  while (v != 1) { v = v & 1 ? 3 * v + 1 : v >> 1; ++s; }
  steps[i] = s;
}

extern "C" __global__ void barrier_counts(int* out) {
  int c = __syncthreads_count(threadIdx.x % 3 == 0);
  int a = __syncthreads_and(threadIdx.x < 1000), o = __syncthreads_or(threadIdx.x == 17);
  out[threadIdx.x] = c * 4 + a * 2 + o;
}

// Threads leave before the barrier that the rest waits at.
extern "C" __global__ void early_exit(int* out, int keep) {
  __shared__ int n;
  if (threadIdx.x == 0) n = 0;
  __syncthreads();
  if (threadIdx.x >= keep) return;
  atomicAdd(&n, 1);
  __syncthreads();
  out[threadIdx.x] = n;
}

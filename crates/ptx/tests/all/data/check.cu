// Programs with one mistake each, and their corrections: for the checkers of a watched launch.
extern "C" __global__ void neighbours(int* out, int correct) {
  __shared__ int s[64];
  s[threadIdx.x] = threadIdx.x;
  if (correct) __syncthreads();
  out[threadIdx.x] = s[(threadIdx.x + 1) % 64];
}

// Lanes of one warp are not in step unless they are told to be.
extern "C" __global__ void warp_neighbours(int* out, int correct) {
  __shared__ int s[32];
  volatile int* out_v = out;
  s[threadIdx.x] = threadIdx.x;
  if (correct) __syncwarp();
  out_v[threadIdx.x] = s[31 - threadIdx.x];
}

extern "C" __global__ void lost_update(int* counter, int correct) {
  for (int i = 0; i < 4; ++i) {
    if (correct) atomicAdd(counter, 1);
    else *counter = *counter + 1;
  }
}

// All threads write the same value: harmless.
extern "C" __global__ void same_flag(int* flag) { *flag = 1; }

// The last block adds up what the others left.
extern "C" __global__ void last_block(int* parts, unsigned* arrived, int* sum, int correct) {
  __shared__ bool last;
  parts[blockIdx.x * blockDim.x + threadIdx.x] = threadIdx.x;
  if (correct) __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(arrived, 1u) == gridDim.x - 1;
  __syncthreads();
  if (last && threadIdx.x == 0) {
    int s = 0;
    for (int i = 0; i < gridDim.x * blockDim.x; ++i) s += parts[i];
    *sum = s;
  }
}

extern "C" __global__ void copy_ints(const int* in, int* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = in[i];
}

extern "C" __global__ void shared_hole(int* out, int correct) {
  __shared__ int s[64];
  if (correct || threadIdx.x != 7) s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = s[63 - threadIdx.x];
}

extern "C" __global__ void two_barriers(int* out, int correct) {
  if (correct || threadIdx.x < 32) {
    out[threadIdx.x] = 1;
    asm volatile("bar.sync 0;" ::: "memory");
  } else {
    asm volatile("bar.sync 0;" ::: "memory");
    out[threadIdx.x] = 2;
  }
}

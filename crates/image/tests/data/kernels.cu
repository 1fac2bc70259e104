// Kernels whose parameter lists and attributes the tests check. `build.sh` compiles them; its outputs are committed.

struct Tile { double scale; short rows; char tag; };
struct __align__(16) Vec { float x, y, z, w; };
struct Wide { unsigned char bytes[5000]; };

__constant__ float coefficients[16] = {1, 2, 3};
__device__ int counter;
__device__ unsigned long long table[32] = {7, 8, 9};
__managed__ int managed;

extern "C" __global__ void no_params() { counter = 1; }

extern "C" __global__ void mixed(char a, const float *in, short b, Tile tile, Vec vec, bool flag, double *out) {
  out[threadIdx.x] = in[a] * tile.scale + tile.rows + tile.tag + b + vec.x + vec.w + flag + coefficients[threadIdx.x & 15];
}

extern "C" __global__ void __launch_bounds__(128, 2) bounded(int *out, int n) {
  __shared__ int partial[64];
  partial[threadIdx.x & 63] = n + managed;
  __syncthreads();
  out[threadIdx.x] = partial[(threadIdx.x + 1) & 63];
}

extern "C" __global__ void __maxnreg__(40) dynamic_shared(float *out, int n) {
  extern __shared__ float scratch[];
  scratch[threadIdx.x] = n;
  __syncthreads();
  out[threadIdx.x] = scratch[n] + static_cast<float>(table[n & 31]);
}

extern "C" __global__ void frame(int *out, int n) {
  volatile int local[10];
#pragma unroll 1
  for (int i = 0; i < 10; ++i) local[i] = i * n;
  out[0] = local[n];
}

namespace space {
template <typename T, int N>
__global__ void mangled(T *data, T value) { data[threadIdx.x] = value * N; }
template __global__ void mangled<float, 3>(float *, float);
template __global__ void mangled<long long, 4>(long long *, long long);
}

// More than 4 KB of parameters.
extern "C" __global__ void wide(int *out, Wide wide, int last) { out[0] = wide.bytes[last]; }

#if __CUDA_ARCH__ >= 900
extern "C" __global__ void __cluster_dims__(2, 1, 1) clustered(int *out) { out[blockIdx.x] = 1; }
extern "C" __global__ void __launch_bounds__(96, 1, 4) ranked(int *out) { out[blockIdx.x] = 2; }
#endif

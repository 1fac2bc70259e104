// Rows of a matrix to probabilities: the maximum, the sum of exponentials, the quotients; a warp for each row.
extern "C" __global__ void softmax_rows(const float* in, float* out, int rows, int width) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  const float* x = in + (long long)row * width;
  float* y = out + (long long)row * width;
  float top = -INFINITY;
  for (int i = lane; i < width; i += 32) top = fmaxf(top, x[i]);
  for (int d = 16; d; d >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
  float sum = 0;
  for (int i = lane; i < width; i += 32) sum += __expf(x[i] - top);
  for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(~0u, sum, d);
  for (int i = lane; i < width; i += 32) y[i] = __expf(x[i] - top) / sum;
}

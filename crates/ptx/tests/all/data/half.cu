#include <cuda_fp16.h>
#include <cuda_bf16.h>

extern "C" __global__ void half_ops(const float* in, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  __half h = __float2half(in[i]), k = __float2half(0.75f);
  __half2 h2 = __halves2half2(h, k);
  float* o = out + i * 12;
  o[0] = __half2float(__hadd(h, k));
  o[1] = __half2float(__hmul(h, h));
  o[2] = __half2float(__hfma(h, h, k));
  o[3] = __half2float(__hdiv(h, k));
  o[4] = __half2float(__hmax(h, k));
  o[5] = __high2float(__hadd2(h2, h2));
  o[6] = __low2float(__hmul2(h2, h2));
  o[7] = __hlt(h, k) ? 1.0f : 0.0f;
  o[8] = __half2float(__int2half_rn(i * 33));
  o[9] = (float)__half2int_rz(h);
  o[10] = __half2float(__habs(__hneg(h)));
  o[11] = __half2float(hexp(h));
}

extern "C" __global__ void bf16_ops(const float* in, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  __nv_bfloat16 h = __float2bfloat16(in[i]), k = __float2bfloat16(0.75f);
  float* o = out + i * 6;
  o[0] = __bfloat162float(__hadd(h, k));
  o[1] = __bfloat162float(__hmul(h, h));
  o[2] = __bfloat162float(__hfma(h, h, k));
  o[3] = __bfloat162float(__hmax(h, k));
  o[4] = __hlt(h, k) ? 1.0f : 0.0f;
  o[5] = __bfloat162float(__hneg(h));
}

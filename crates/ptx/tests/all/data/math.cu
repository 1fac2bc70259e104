// One kernel applies a numbered function to every element.
#include <math.h>

extern "C" __global__ void math_f32(const float* in, float* out, int n, int which) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float x = in[i], y;
  switch (which) {
    case 0: y = sinf(x); break;
    case 1: y = cosf(x); break;
    case 2: y = tanf(x); break;
    case 3: y = expf(x); break;
    case 4: y = logf(fabsf(x)); break;
    case 5: y = powf(fabsf(x), 1.7f); break;
    case 6: y = sqrtf(fabsf(x)); break;
    case 7: y = tanhf(x); break;
    case 8: y = erff(x); break;
    case 9: y = rsqrtf(fabsf(x)); break;
    case 10: y = 1.0f / x; break;
    case 11: y = x / 3.1f; break;
    case 12: y = exp2f(x); break;
    case 13: y = log2f(fabsf(x)); break;
    case 14: y = cbrtf(x); break;
    case 15: y = floorf(x) + ceilf(x) * 2 + truncf(x) * 4 + rintf(x) * 8; break;
    case 16: y = fmodf(x, 0.7f); break;
    case 17: y = atan2f(x, 0.5f); break;
    case 18: y = fminf(x, 0.25f) - fmaxf(x, -0.5f); break;
    case 19: y = copysignf(2.0f, x); break;
    case 20: y = lgammaf(fabsf(x) + 0.5f); break;
    case 21: y = (float)(int)(x * 100) + (float)(unsigned)(fabsf(x) * 100); break;
    case 22: y = ldexpf(x, 3); break;
    case 23: y = asinf(x * 0.01f); break;
    case 24: y = sinhf(x); break;
    case 25: y = fmaf(x, x, 1.0f); break;
    default: y = __fadd_rz(x, 1e-8f) + __fmul_rd(x, 1.1f) + __frcp_ru(x); break;
  }
  out[i] = y;
}

extern "C" __global__ void math_f64(const double* in, double* out, int n, int which) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  double x = in[i], y;
  switch (which) {
    case 0: y = sin(x); break;
    case 1: y = cos(x); break;
    case 2: y = exp(x); break;
    case 3: y = log(fabs(x)); break;
    case 4: y = pow(fabs(x), 1.7); break;
    case 5: y = sqrt(fabs(x)); break;
    case 6: y = tanh(x); break;
    case 7: y = erf(x); break;
    case 8: y = 1.0 / x; break;
    case 9: y = x / 3.1; break;
    case 10: y = rsqrt(fabs(x)); break;
    case 11: y = floor(x) + ceil(x) * 2 + trunc(x) * 4 + rint(x) * 8; break;
    case 12: y = (double)(long long)(x * 1e6) + (double)(float)x; break;
    case 13: y = fma(x, x, 1.0); break;
    case 14: y = atan(x); break;
    default: y = fmin(x, 0.25) - fmax(x, -0.5); break;
  }
  out[i] = y;
}

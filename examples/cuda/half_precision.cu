// Arithmetic in fp16 and bf16: single values and pairs, fused, clamped, converted, compared, and atomics on them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "check.h"

constexpr int COUNT = 1024;

// Rows of results: sum, product, fused, clamped sum, minimum, absolute difference, whether a < b.
constexpr int ROWS = 7;

template <class T>
__global__ void values_of(const float* a, const float* b, float* rows)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    T x = (T)a[i], y = (T)b[i];
    rows[0 * COUNT + i] = (float)(x + y);
    rows[1 * COUNT + i] = (float)(x * y);
    rows[2 * COUNT + i] = (float)__hfma(x, y, (T)0.5f);
    rows[3 * COUNT + i] = (float)__hadd_sat(x, y);
    rows[4 * COUNT + i] = (float)__hmin(x, y);
    rows[5 * COUNT + i] = (float)__habs(x - y);
    rows[6 * COUNT + i] = x < y ? 1.0f : 0.0f;
}

// Pairs: the same sums and products, two at a time; the last row counts equal pairs.
__global__ void pairs_of_half(const float2* a, const float2* b, float2* rows, int* equal)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    __half2 x = __float22half2_rn(a[i]), y = __float22half2_rn(b[i]);
    rows[0 * COUNT / 2 + i] = __half22float2(__hadd2(x, y));
    rows[1 * COUNT / 2 + i] = __half22float2(__hfma2(x, y, __float2half2_rn(0.25f)));
    rows[2 * COUNT / 2 + i] = __half22float2(__lowhigh2highlow(x));
    if (__hbeq2(x, y)) atomicAdd(equal, 1);
}

template <class T, class T2>
__global__ void sums_by_atomics(T* single, T2* pair)
{
    // Small whole numbers: every order gives the same sum, in halves too.
    atomicAdd(single, (T)1.0f);
    atomicAdd(pair, T2{(T)1.0f, (T)0.5f});
}

// The nearest number that T has, by the host's conversions.
template <class T>
static float rounded(double value)
{
    return (float)(T)value;
}

// In halves all results here are exact in a double before they are rounded once.
template <class T>
static void check_values(const char* name)
{
    std::vector<float> a = random_floats(COUNT, 5, -4.0f, 4.0f), b = random_floats(COUNT, 6, -4.0f, 4.0f);
    for (int i = 0; i < COUNT; ++i) {
        a[i] = rounded<T>(a[i]);
        b[i] = i % 8 == 0 ? a[i] : rounded<T>(b[i]);
    }
    std::vector<float> want(ROWS * COUNT);
    for (int i = 0; i < COUNT; ++i) {
        double x = a[i], y = b[i], clamped = std::fmin(std::fmax(x + y, 0.0), 1.0);
        want[0 * COUNT + i] = rounded<T>(x + y);
        want[1 * COUNT + i] = rounded<T>(x * y);
        want[2 * COUNT + i] = rounded<T>(x * y + 0.5);
        want[3 * COUNT + i] = rounded<T>(clamped);
        want[4 * COUNT + i] = (float)std::fmin(x, y);
        want[5 * COUNT + i] = std::fabs(rounded<T>(x - y));
        want[6 * COUNT + i] = x < y ? 1.0f : 0.0f;
    }
    DeviceBuffer<float> device_a(a), device_b(b), rows(ROWS * COUNT);
    values_of<T><<<COUNT / 128, 128>>>(device_a.data(), device_b.data(), rows.data());
    CHECK_LAUNCH();
    expect_equal(rows.download(), want, name);
}

static void check_pairs()
{
    std::vector<float2> a(COUNT / 2), b(COUNT / 2), want(3 * COUNT / 2);
    Random random(9);
    int equal = 0;
    for (int i = 0; i < COUNT / 2; ++i) {
        a[i] = {random.below(64) / 16.0f, random.below(64) / 16.0f};
        b[i] = i % 5 == 0 ? a[i] : float2{random.below(64) / 16.0f, random.below(64) / 16.0f};
        equal += a[i].x == b[i].x && a[i].y == b[i].y;
        want[0 * COUNT / 2 + i] = {a[i].x + b[i].x, a[i].y + b[i].y};
        want[1 * COUNT / 2 + i] = {rounded<__half>(a[i].x * b[i].x + 0.25), rounded<__half>(a[i].y * b[i].y + 0.25)};
        want[2 * COUNT / 2 + i] = {a[i].y, a[i].x};
    }
    DeviceBuffer<float2> device_a(a), device_b(b), rows(3 * COUNT / 2);
    DeviceBuffer<int> counter(std::vector<int>{0});
    pairs_of_half<<<COUNT / 256, 128>>>(device_a.data(), device_b.data(), rows.data(), counter.data());
    CHECK_LAUNCH();
    std::vector<float2> got = rows.download();
    int wrong = 0;
    for (size_t i = 0; i < got.size(); ++i) wrong += got[i].x != want[i].x || got[i].y != want[i].y;
    expect(wrong == 0, "%zu pairs of halves exact", got.size());
    expect(counter.download()[0] == equal, "%d pairs are equal", equal);
}

template <class T, class T2>
static void check_atomics(const char* name)
{
    DeviceBuffer<T> single(1);
    DeviceBuffer<T2> pair(1);
    CHECK(cudaMemset(single.data(), 0, sizeof(T)));
    CHECK(cudaMemset(pair.data(), 0, sizeof(T2)));
    sums_by_atomics<<<4, 32>>>(single.data(), pair.data());
    CHECK_LAUNCH();
    float sum = (float)single.download()[0];
    T2 both = pair.download()[0];
    expect(sum == 128.0f && (float)both.x == 128.0f && (float)both.y == 64.0f, "128 threads add to %s: %g, (%g, %g)", name, sum,
           (float)both.x, (float)both.y);
}

int main()
{
    std::printf("half_precision: fp16 and bf16, single and in pairs\n");
    check_values<__half>("fp16");
    check_values<__nv_bfloat16>("bf16");
    check_pairs();
    check_atomics<__half, __half2>("fp16");
    check_atomics<__nv_bfloat16, __nv_bfloat162>("bf16");
    return verdict("half_precision");
}

// Double precision and the math library, against the host's: errors in units in the last place.
#include "check.h"

#include <algorithm>

// One function for host and device, with the largest difference allowed: the maximum error of the CUDA C++ Programming
// Guide plus that of the host's library (the GNU C library states 4 ulp for cbrt, 2 for tanh and log10, 1 for the others).
#define FUNCTION(Name, expression, ulps)                                                   \
    struct Name {                                                                          \
        static const char* text() { return #expression; }                                  \
        static double ulps_max() { return ulps; }                                          \
        __host__ __device__ static double of(double x, double y) { return expression; }    \
    }

FUNCTION(Sine, sin(x), 3);
FUNCTION(Cosine, cos(x), 3);
FUNCTION(Tangent, tan(x), 3);
FUNCTION(ArcSine, asin(x / 20), 3);
FUNCTION(ArcTangent, atan2(x, y), 3);
FUNCTION(Exponential, exp(x), 2);
FUNCTION(PowerOfTwo, exp2(x), 2);
FUNCTION(ExponentialMinusOne, expm1(x), 2);
FUNCTION(Logarithm, log(fabs(x)), 2);
FUNCTION(DecimalLogarithm, log10(fabs(x)), 3);
FUNCTION(LogarithmPlusOne, log1p(fabs(x)), 2);
FUNCTION(Power, pow(fabs(x), y), 3);
FUNCTION(Root, sqrt(fabs(x)), 0);
FUNCTION(CubeRoot, cbrt(x), 5);
FUNCTION(Hypotenuse, hypot(x, y), 3);
FUNCTION(HyperbolicTangent, tanh(x), 3);
FUNCTION(ErrorFunction, erf(x), 3);
FUNCTION(Remainder, fmod(x, y), 0);
FUNCTION(FusedMultiplyAdd, fma(x, y, x), 0);
FUNCTION(Division, x / y, 0);
FUNCTION(Roundings, rint(x) + floor(y) + trunc(x) + ceil(y), 0);

template <class Function>
__global__ void apply(const double* xs, const double* ys, double* out, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = Function::of(xs[i], ys[i]);
}

// Single precision and the fast intrinsics that trade accuracy for speed, in rows of the output.
__global__ void singles(const float* xs, float* out, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float x = xs[i];
    out[0 * count + i] = sinf(x);
    out[1 * count + i] = expf(x);
    out[2 * count + i] = logf(fabsf(x));
    out[3 * count + i] = rsqrtf(fabsf(x));
    out[4 * count + i] = powf(fabsf(x), 1.5f);
    out[5 * count + i] = __sinf(x);
    out[6 * count + i] = __expf(x);
    out[7 * count + i] = __fdividef(1.0f, x);
}

__global__ void conversions(const double* xs, double zero, long long* out, int count)
{
    int i = threadIdx.x;
    double x = xs[i];
    out[0 * count + i] = (long long)(int)x;
    out[1 * count + i] = __double2int_rn(x);
    out[2 * count + i] = __double2ll_rd(x * 1e9);
    out[3 * count + i] = __double_as_longlong(x);
    out[4 * count + i] = (long long)__float_as_int((float)x);
    out[5 * count + i] = (isnan(sqrt(-fabs(x))) ? 1 : 0) + (isinf(x / zero) ? 2 : 0) + (fmax(x, nan("")) == x ? 4 : 0);
}

static double ulp_of(double value)
{
    double magnitude = std::fabs(value);
    return std::nextafter(magnitude, INFINITY) - magnitude;
}

struct Points {
    std::vector<double> xs, ys;
};

template <class Function>
static void check_function(const Points& points, DeviceBuffer<double>& xs, DeviceBuffer<double>& ys)
{
    int count = (int)points.xs.size();
    DeviceBuffer<double> out(count);
    apply<Function><<<blocks_for(count, 128), 128>>>(xs.data(), ys.data(), out.data(), count);
    CHECK_LAUNCH();
    std::vector<double> got = out.download();
    double worst = 0;
    int wrong = 0;
    for (int i = 0; i < count; ++i) {
        double want = Function::of(points.xs[i], points.ys[i]);
        if (std::isnan(want) ? std::isnan(got[i]) : got[i] == want) continue;
        double error = std::fabs(got[i] - want) / ulp_of(want);
        if (!(error <= Function::ulps_max()) && ++wrong <= 3)
            std::printf("  x = %.17g, y = %.17g: got %.17g, want %.17g\n", points.xs[i], points.ys[i], got[i], want);
        if (error > worst) worst = error;
    }
    std::printf("# %s: at most %.3g ulp\n", Function::text(), worst);
    expect(wrong == 0, "%s within %g ulp", Function::text(), Function::ulps_max());
}

template <class... Functions>
static void check_functions(const Points& points)
{
    DeviceBuffer<double> xs(points.xs), ys(points.ys);
    (check_function<Functions>(points, xs, ys), ...);
}

static Points points_to_try()
{
    const int count = 1500;
    Random random(15);
    Points points;
    for (int i = 0; i < count; ++i) {
        points.xs.push_back(random.between(-10, 10) + 1e-9 * i);
        points.ys.push_back(random.between(0.5f, 4) + 1e-9 * i);
    }
    points.xs[0] = 1e6;  // sines of large numbers take another path, exponentials overflow, the arc sine is not a number
    points.xs[1] = 1e-8;
    points.xs[2] = 15;
    return points;
}

static void check_singles()
{
    const int count = 1000, rows = 8;
    std::vector<float> xs = random_floats(count, 16, -3.14f, 3.14f), want(rows * count), got;
    for (int i = 0; i < count; ++i)
        if (std::fabs(xs[i]) < 0.01f) xs[i] = 0.01f;  // keeps relative errors meaningful
    for (int i = 0; i < count; ++i) {
        double x = xs[i];
        double values[rows] = {sin(x), exp(x), log(fabs(x)), 1 / sqrt(fabs(x)), pow(fabs(x), 1.5), sin(x), exp(x), 1 / x};
        for (int row = 0; row < rows; ++row) want[row * count + i] = (float)values[row];
    }
    DeviceBuffer<float> device_xs(xs), device_out((size_t)rows * count);
    singles<<<blocks_for(count, 128), 128>>>(device_xs.data(), device_out.data(), count);
    CHECK_LAUNCH();
    got = device_out.download();
    auto part = [](const std::vector<float>& all, int first, int last) { return std::vector<float>(all.begin() + first * 1000, all.begin() + last * 1000); };
    expect_close(part(got, 0, 5), part(want, 0, 5), 1e-7, 8 * 0x1p-24, "sinf, expf, logf, rsqrtf, powf");
    expect_close(part(got, 5, 6), part(want, 5, 6), 0x1p-21, 0, "__sinf");  // guide: 2^-21.41 in [-pi, pi]
    expect_close(part(got, 6, 8), part(want, 6, 8), 0, 8 * 0x1p-23, "__expf, __fdividef");
}

static void check_conversions()
{
    const int count = 64, rows = 6;
    std::vector<double> xs(count);
    for (int i = 0; i < count; ++i) xs[i] = (i - 32) * 0.75 + (i % 2 ? 0.001 : 0.0) + 1e-3;
    std::vector<long long> want(rows * count);
    for (int i = 0; i < count; ++i) {
        double x = xs[i];
        float narrow = (float)x;
        int bits;
        static_assert(sizeof bits == sizeof narrow, "float has 32 bits");
        std::copy((char*)&narrow, (char*)(&narrow + 1), (char*)&bits);
        want[0 * count + i] = (int)x;
        want[1 * count + i] = (int)std::nearbyint(x);
        want[2 * count + i] = (long long)std::floor(x * 1e9);
        std::copy((char*)&x, (char*)(&x + 1), (char*)&want[3 * count + i]);
        want[4 * count + i] = bits;
        want[5 * count + i] = 7;
    }
    DeviceBuffer<double> device_xs(xs);
    DeviceBuffer<long long> device_out((size_t)rows * count);
    conversions<<<1, count>>>(device_xs.data(), 0.0, device_out.data(), count);
    CHECK_LAUNCH();
    expect_equal(device_out.download(), want, "conversions, bit patterns, NaN and infinity");
}

int main()
{
    std::printf("fp64_math: double precision and the math library\n");
    check_functions<Sine, Cosine, Tangent, ArcSine, ArcTangent, Exponential, PowerOfTwo, ExponentialMinusOne, Logarithm,
                    DecimalLogarithm, LogarithmPlusOne, Power, Root, CubeRoot, Hypotenuse, HyperbolicTangent, ErrorFunction,
                    Remainder, FusedMultiplyAdd, Division, Roundings>(points_to_try());
    check_singles();
    check_conversions();
    return verdict("fp64_math");
}

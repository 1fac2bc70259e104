// What every example shares: expectations, reproducible input and comparison with a tolerance.
//
// Output is meant to be compared between two runs (one on a local GPU, one on a remote one): whatever may differ
// from run to run or from device to device (times, names, rounding errors) goes on lines that start with "# ".
#pragma once

#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

inline int failures = 0;

// Records and prints one expectation; the program goes on, so that one run shows everything that is wrong.
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
inline bool expect(bool holds, const char* format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    std::printf(holds ? "  ok: " : "  WRONG: ");
    std::vprintf(format, arguments);
    std::printf("\n");
    va_end(arguments);
    if (!holds) ++failures;
    return holds;
}

// Prints what CUDA leaves open: drivers may differ, and no answer is wrong.
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
inline void observe(bool holds, const char* format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    std::printf(holds ? "# seen: " : "# not seen: ");
    std::vprintf(format, arguments);
    std::printf("\n");
    va_end(arguments);
}

// The last line of every example and its exit code.
inline int verdict(const char* name)
{
    if (failures == 0) std::printf("%s: every result is right\n", name);
    else std::printf("%s: %d results are WRONG\n", name, failures);
    return failures == 0 ? 0 : 1;
}

// A small generator with the same numbers everywhere (constants: Numerical Recipes, ranqd1).
class Random {
public:
    explicit Random(uint32_t seed) : state_(seed) {}

    uint32_t bits()
    {
        state_ = state_ * 1664525u + 1013904223u;
        return state_ >> 8;  // 24 bits: the low bits of such a generator have short periods
    }
    uint32_t below(uint32_t bound) { return bits() % bound; }
    float between(float low, float high) { return low + (high - low) * (float)bits() / 16777216.0f; }

private:
    uint32_t state_;
};

inline std::vector<float> random_floats(size_t count, uint32_t seed, float low = -1.0f, float high = 1.0f)
{
    Random random(seed);
    std::vector<float> values(count);
    for (float& value : values) value = random.between(low, high);
    return values;
}

// Expects every |got - want| <= absolute + relative * |want|; NaN is never close to anything.
template <class T>
bool expect_close(const std::vector<T>& got, const std::vector<T>& want, double absolute, double relative, const char* what)
{
    double worst = 0;
    size_t wrong = got.size() == want.size() ? 0 : 1;
    for (size_t i = 0; i < got.size() && i < want.size(); ++i) {
        double error = std::fabs((double)got[i] - (double)want[i]);
        if (!(error <= absolute + relative * std::fabs((double)want[i]))) {
            if (++wrong <= 3) std::printf("  element %zu: got %.17g, want %.17g\n", i, (double)got[i], (double)want[i]);
        }
        if (error > worst) worst = error;
    }
    std::printf("# %s: largest error %.3g\n", what, worst);
    return expect(wrong == 0, "%s: %zu values within %g + %g * |value|", what, want.size(), absolute, relative);
}

// Expects all elements to be the same.
template <class T>
bool expect_equal(const std::vector<T>& got, const std::vector<T>& want, const char* what)
{
    size_t wrong = got.size() == want.size() ? 0 : 1;
    for (size_t i = 0; i < got.size() && i < want.size(); ++i) {
        if (!(got[i] == want[i])) {
            if (++wrong <= 3) std::printf("  element %zu: got %.17g, want %.17g\n", i, (double)got[i], (double)want[i]);
        }
    }
    return expect(wrong == 0, "%s: %zu values exact", what, want.size());
}

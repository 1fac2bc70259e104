// CUB's device-wide algorithms, as Thrust and PyTorch use them: blocks hand partial results on to each other while they run.
#include "check.h"

#include <algorithm>
#include <cub/cub.cuh>
#include <functional>
#include <iterator>
#include <numeric>

constexpr int COUNT = 150'000, ROUNDS = 3;

// CUB asks each algorithm twice: how much memory it needs, then to run.
template <class Algorithm>
static void run(Algorithm algorithm)
{
    size_t bytes = 0;
    CHECK(algorithm(nullptr, bytes));
    DeviceBuffer<char> scratch(std::max<size_t>(bytes, 1));
    CHECK(algorithm(scratch.data(), bytes));
}

struct IsOdd {
    __host__ __device__ bool operator()(int value) const { return value % 2 != 0; }
};

int main()
{
    std::printf("cub_algorithms: %d values\n", COUNT);
    Random random(35);
    std::vector<int> values(COUNT);
    // With many neighbours that are the same.
    for (int i = 0; i < COUNT; ++i) values[i] = i % 3 && i ? values[i - 1] : (int)random.below(50'000);
    DeviceBuffer<int> in(values), out(COUNT), count(1);

    // What blocks find depends on each other's progress: more than once.
    for (int round = 0; round < ROUNDS; ++round) {
        std::vector<long long> sums(COUNT);
        std::inclusive_scan(values.begin(), values.end(), sums.begin(), std::plus<>(), 0LL);
        DeviceBuffer<long long> scanned(COUNT);
        run([&](void* scratch, size_t& bytes) {
            return cub::DeviceScan::InclusiveScanInit(scratch, bytes, in.data(), scanned.data(), cuda::std::plus<long long>(), 0LL, COUNT);
        });
        expect_equal(scanned.download(), sums, "prefix sums of 64 bits");

        std::vector<int> chosen;
        std::copy_if(values.begin(), values.end(), std::back_inserter(chosen), IsOdd());
        run([&](void* scratch, size_t& bytes) {
            return cub::DeviceSelect::If(scratch, bytes, in.data(), out.data(), count.data(), COUNT, IsOdd());
        });
        std::vector<int> got = out.download();
        got.resize(std::min<size_t>(got.size(), (size_t)count.download()[0]));
        expect_equal(got, chosen, "odd numbers");

        std::vector<int> distinct = values;
        distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
        run([&](void* scratch, size_t& bytes) {
            return cub::DeviceSelect::Unique(scratch, bytes, in.data(), out.data(), count.data(), COUNT);
        });
        got = out.download();
        got.resize(std::min<size_t>(got.size(), (size_t)count.download()[0]));
        expect_equal(got, distinct, "runs");
    }

    std::vector<int> places(COUNT), sorted_places(COUNT);
    std::iota(places.begin(), places.end(), 0);
    std::vector<int> sorted = values, order = places;
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return values[a] < values[b]; });
    std::sort(sorted.begin(), sorted.end());
    DeviceBuffer<int> from(places), to(COUNT);
    run([&](void* scratch, size_t& bytes) {
        return cub::DeviceRadixSort::SortPairs(scratch, bytes, in.data(), out.data(), from.data(), to.data(), COUNT);
    });
    expect_equal(out.download(), sorted, "sorted");
    expect_equal(to.download(), order, "where each was");

    DeviceBuffer<int> most(1);
    run([&](void* scratch, size_t& bytes) { return cub::DeviceReduce::Max(scratch, bytes, in.data(), most.data(), COUNT); });
    expect(most.download()[0] == sorted.back(), "the largest");

    constexpr int BINS = 64;
    std::vector<int> histogram(BINS);
    for (int value : values) ++histogram[value * BINS / 50'000];
    DeviceBuffer<int> bins(BINS);
    run([&](void* scratch, size_t& bytes) {
        return cub::DeviceHistogram::HistogramEven(scratch, bytes, in.data(), bins.data(), BINS + 1, 0, 50'000, COUNT);
    });
    expect_equal(bins.download(), histogram, "histogram");
    return verdict("cub_algorithms");
}

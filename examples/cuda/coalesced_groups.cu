// Groups of the lanes that happen to be together: coalesced threads in branches, partitions by a label and by a predicate,
// reductions and scans over them and over tiles of every size.
#include "check.h"

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

#include <algorithm>

namespace cg = cooperative_groups;

constexpr int THREADS = 256, BLOCKS = 5, COUNT = THREADS * BLOCKS, WARP = 32;

// One atomic addition for all lanes that want a place.
__device__ int place_in(int* counter)
{
    cg::coalesced_group active = cg::coalesced_threads();
    int first = 0;
    if (active.thread_rank() == 0) first = atomicAdd(counter, (int)active.num_threads());
    return active.shfl(first, 0) + (int)active.thread_rank();
}

__global__ void filter(const int* values, int count, int* kept, int* kept_count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count && values[i] % 3 == 0) kept[place_in(kept_count)] = values[i];
}

struct Ranks {
    int size, rank, meta_size, next, first, sum, largest, before, upto, ballot, any, all;
};

// What a lane learns of the lanes that took its branch.
__global__ void branches(const int* values, Ranks* out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int value = values[i];
    if (value % 5 == 0) return;
    Ranks r = {};
    if (value % 2 == 0) {
        cg::coalesced_group active = cg::coalesced_threads();
        r.size = (int)active.size();
        r.rank = (int)active.thread_rank();
        r.meta_size = (int)active.meta_group_size();
        r.next = active.shfl_down(value, 1);
        r.first = active.shfl(value, 0);
        r.sum = cg::reduce(active, value, cg::plus<int>());
        r.largest = cg::reduce(active, value, cg::greater<int>());
        r.before = cg::exclusive_scan(active, value);
        r.upto = cg::inclusive_scan(active, value, cg::plus<int>());
        r.ballot = (int)active.ballot(value % 4 == 0);
        r.any = active.any(value > 900);
        r.all = active.all(value > 100);
    }
    out[i] = r;
}

struct Parts {
    int size, rank, sum, smallest, scan;
};

__global__ void by_label(const int* labels, const int* values, Parts* out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    cg::thread_block_tile<WARP> warp = cg::tiled_partition<WARP>(cg::this_thread_block());
    cg::coalesced_group same = cg::labeled_partition(warp, labels[i]);
    out[i] = {(int)same.size(), (int)same.thread_rank(), cg::reduce(same, values[i], cg::plus<int>()),
              cg::reduce(same, values[i], cg::less<int>()), cg::inclusive_scan(same, values[i])};
}

__global__ void by_predicate(const int* values, Parts* out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    cg::thread_block_tile<16> tile = cg::tiled_partition<16>(cg::this_thread_block());
    cg::coalesced_group same = cg::binary_partition(tile, values[i] % 2 == 1);
    out[i] = {(int)same.size(), (int)same.thread_rank(), cg::reduce(same, values[i], cg::plus<int>()),
              cg::reduce(same, values[i], cg::less<int>()), cg::exclusive_scan(same, values[i])};
}

// A label among those that took a branch.
__global__ void labels_in_a_branch(const int* labels, const int* values, Parts* out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (values[i] % 3 == 1) {
        cg::coalesced_group same = cg::labeled_partition(cg::coalesced_threads(), labels[i]);
        out[i] = {(int)same.size(), (int)same.thread_rank(), cg::reduce(same, values[i], cg::plus<int>()),
                  cg::reduce(same, values[i], cg::bit_xor<int>()), cg::exclusive_scan(same, values[i], cg::plus<int>())};
    }
}

struct Tiles {
    int sum, both, either, odd;
    long long wide;
    float largest;
    double scan;
};

template <int SIZE>
__global__ void tiles(const int* values, Tiles* out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    cg::thread_block_tile<SIZE> tile = cg::tiled_partition<SIZE>(cg::this_thread_block());
    int value = values[i];
    out[i] = {cg::reduce(tile, value, cg::plus<int>()),
              cg::reduce(tile, value, cg::bit_and<int>()),
              cg::reduce(tile, value, cg::bit_or<int>()),
              cg::reduce(tile, value, cg::bit_xor<int>()),
              cg::reduce(tile, (long long)value << 33, cg::plus<long long>()),
              cg::reduce(tile, (float)value / 2, cg::greater<float>()),
              cg::inclusive_scan(tile, value * 0.25, cg::plus<double>())};
}

// Tells members of a record apart; padding does not count.
template <class T, class F>
static void expect_fields(const std::vector<T>& got, const std::vector<T>& want, F fields, const char* what)
{
    size_t wrong = 0;
    for (size_t i = 0; i < want.size(); ++i)
        if (fields(got[i]) != fields(want[i])) ++wrong;
    expect(wrong == 0, "%s: %zu lanes exact", what, want.size());
}

static std::vector<double> fields(const Ranks& r)
{
    return {(double)r.size, (double)r.rank, (double)r.meta_size, (double)r.next, (double)r.first, (double)r.sum, (double)r.largest,
            (double)r.before, (double)r.upto, (double)r.ballot, (double)r.any, (double)r.all};
}

static std::vector<double> part_fields(const Parts& p)
{
    return {(double)p.size, (double)p.rank, (double)p.sum, (double)p.smallest, (double)p.scan};
}

static std::vector<double> tile_fields(const Tiles& t)
{
    return {(double)t.sum, (double)t.both, (double)t.either, (double)t.odd, (double)t.wide, t.largest, t.scan};
}

// Lanes of one group of `size` neighbours, by what `label` says of each; negative: in none.
template <class L, class W>
static void each_group(int size, L label, W with)
{
    for (int begin = 0; begin < COUNT; begin += size)
        for (int i = begin; i < begin + size; ++i) {
            if (label(i) < 0) continue;
            std::vector<int> lanes;
            for (int j = begin; j < begin + size; ++j)
                if (label(j) == label(i)) lanes.push_back(j);
            if (lanes[0] == i) with(lanes);
        }
}

template <int SIZE>
static void check_tiles(const std::vector<int>& values, DeviceBuffer<int>& device)
{
    DeviceBuffer<Tiles> out(COUNT);
    tiles<SIZE><<<BLOCKS, THREADS>>>(device.data(), out.data());
    CHECK_LAUNCH();
    std::vector<Tiles> want(COUNT);
    each_group(SIZE, [](int) { return 0; }, [&](const std::vector<int>& lanes) {
        Tiles all = {0, -1, 0, 0, 0, -1e30f, 0};
        for (int i : lanes) {
            all.sum += values[i];
            all.both &= values[i];
            all.either |= values[i];
            all.odd ^= values[i];
            all.wide += (long long)values[i] << 33;
            all.largest = std::max(all.largest, (float)values[i] / 2);
            all.scan += values[i] * 0.25;
            want[i].scan = all.scan;
        }
        for (int i : lanes) {
            double scan = want[i].scan;
            want[i] = all;
            want[i].scan = scan;
        }
    });
    char what[64];
    std::snprintf(what, sizeof what, "tiles of %d", SIZE);
    expect_fields(out.download(), want, tile_fields, what);
}

int main()
{
    std::printf("coalesced_groups: groups of the lanes that are together\n");
    Random random(41);
    std::vector<int> values(COUNT), labels(COUNT);
    for (int& value : values) value = (int)random.below(1000);
    for (int& label : labels) label = (int)random.below(6) - 2;
    DeviceBuffer<int> device(values), device_labels(labels), kept(COUNT), kept_count(1);

    CHECK(cudaMemset(kept_count.data(), 0, sizeof(int)));
    filter<<<BLOCKS + 1, THREADS>>>(device.data(), COUNT, kept.data(), kept_count.data());
    CHECK_LAUNCH();
    std::vector<int> want_kept, got_kept = kept.download();
    for (int value : values)
        if (value % 3 == 0) want_kept.push_back(value);
    got_kept.resize(kept_count.download()[0]);
    std::sort(want_kept.begin(), want_kept.end());
    std::sort(got_kept.begin(), got_kept.end());
    expect_equal(got_kept, want_kept, "a filter with one atomic addition a group");

    DeviceBuffer<Ranks> ranks(COUNT);
    CHECK(cudaMemset(ranks.data(), 0, ranks.bytes()));
    branches<<<BLOCKS, THREADS>>>(device.data(), ranks.data());
    CHECK_LAUNCH();
    std::vector<Ranks> want_ranks(COUNT);
    each_group(WARP, [&](int i) { return values[i] % 5 != 0 && values[i] % 2 == 0 ? 0 : -1; }, [&](const std::vector<int>& lanes) {
        const int size = (int)lanes.size();
        Ranks all = {};
        all.size = size;
        all.meta_size = 1;
        all.first = values[lanes[0]];
        all.all = 1;
        for (int k = 0; k < size; ++k) {
            int value = values[lanes[k]];
            all.sum += value;
            all.largest = std::max(all.largest, value);
            all.ballot |= (value % 4 == 0) << k;
            all.any |= value > 900;
            all.all &= value > 100;
        }
        int sum = 0;
        for (int k = 0; k < size; ++k) {
            Ranks& r = want_ranks[lanes[k]] = all;
            r.rank = k;
            r.next = values[lanes[std::min(k + 1, size - 1)]];
            r.before = sum;
            sum += values[lanes[k]];
            r.upto = sum;
        }
    });
    expect_fields(ranks.download(), want_ranks, fields, "lanes that took a branch");

    auto want_parts = [&](int size, auto label, bool smallest, bool inclusive) {
        std::vector<Parts> want(COUNT);
        each_group(size, label, [&](const std::vector<int>& lanes) {
            Parts all = {(int)lanes.size(), 0, 0, smallest ? 1 << 30 : 0, 0};
            for (int i : lanes) {
                all.sum += values[i];
                all.smallest = smallest ? std::min(all.smallest, values[i]) : all.smallest ^ values[i];
            }
            int sum = 0, rank = 0;
            for (int i : lanes) {
                want[i] = all;
                want[i].rank = rank++;
                want[i].scan = inclusive ? sum + values[i] : sum;
                sum += values[i];
            }
        });
        return want;
    };
    DeviceBuffer<Parts> parts(COUNT);
    by_label<<<BLOCKS, THREADS>>>(device_labels.data(), device.data(), parts.data());
    CHECK_LAUNCH();
    expect_fields(parts.download(), want_parts(WARP, [&](int i) { return labels[i] + 2; }, true, true), part_fields, "labelled partitions of a warp");
    by_predicate<<<BLOCKS, THREADS>>>(device.data(), parts.data());
    CHECK_LAUNCH();
    expect_fields(parts.download(), want_parts(16, [&](int i) { return values[i] % 2; }, true, false), part_fields, "binary partitions of tiles of 16");
    CHECK(cudaMemset(parts.data(), 0, parts.bytes()));
    labels_in_a_branch<<<BLOCKS, THREADS>>>(device_labels.data(), device.data(), parts.data());
    CHECK_LAUNCH();
    expect_fields(parts.download(), want_parts(WARP, [&](int i) { return values[i] % 3 == 1 ? labels[i] + 2 : -1; }, false, false), part_fields,
                  "labelled partitions of the lanes in a branch");

    check_tiles<1>(values, device);
    check_tiles<2>(values, device);
    check_tiles<4>(values, device);
    check_tiles<8>(values, device);
    check_tiles<16>(values, device);
    check_tiles<32>(values, device);
    return verdict("coalesced_groups");
}

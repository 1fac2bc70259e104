// Atomics of every kind, votes and matches within a warp, and locks made of compare-and-swap.
#include "check.h"

constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr int WARP = 32;

struct Totals {
    int sum, minimum, maximum;
    unsigned bits_and, bits_or, bits_xor, wrapped_up, wrapped_down, exchanged;
    unsigned long long sum64, maximum64, swapped64;
    float sum_float;
    double sum_double;
};

__global__ void every_kind(Totals* totals)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&totals->sum, i);
    atomicSub(&totals->sum, 1);
    atomicMin(&totals->minimum, 1000 - i);
    atomicMax(&totals->maximum, i - 1000);
    atomicAnd(&totals->bits_and, ~(1u << i % 5));
    atomicOr(&totals->bits_or, 1u << i % 32);
    atomicXor(&totals->bits_xor, (unsigned)i);
    atomicInc(&totals->wrapped_up, 99);    // counts 0 .. 99 and starts again
    atomicDec(&totals->wrapped_down, 99);  // counts down to 0 and starts again at 99
    atomicAdd(&totals->sum64, 1ull << 33);
    atomicMax(&totals->maximum64, (unsigned long long)i << 32);
    atomicAdd(&totals->sum_float, 0.5f);   // exact in any order
    atomicAdd(&totals->sum_double, 0.25);
    if (i == 77) atomicExch(&totals->exchanged, 77u);
    // A 64-bit read-modify-write out of compare-and-swap.
    unsigned long long seen = totals->swapped64, assumed;
    do {
        assumed = seen;
        seen = atomicCAS(&totals->swapped64, assumed, assumed + 3);
    } while (seen != assumed);
}

static void check_every_kind()
{
    const int count = 4 * 128;
    Totals start = {};
    start.minimum = 5000, start.maximum = -5000, start.bits_and = ~0u;
    DeviceBuffer<Totals> totals(std::vector<Totals>{start});
    every_kind<<<4, 128>>>(totals.data());
    CHECK_LAUNCH();
    Totals got = totals.download()[0];
    unsigned bits_xor = 0;
    for (int i = 0; i < count; ++i) bits_xor ^= (unsigned)i;
    expect(got.sum == count * (count - 1) / 2 - count, "add and sub: %d", got.sum);
    expect(got.minimum == 1000 - (count - 1) && got.maximum == count - 1 - 1000, "min %d, max %d", got.minimum, got.maximum);
    expect(got.bits_and == ~0x1fu && got.bits_or == ~0u && got.bits_xor == bits_xor, "and, or, xor");
    expect(got.wrapped_up == count % 100, "inc wraps around to %u", got.wrapped_up);
    expect(got.wrapped_down == (100 - count % 100) % 100, "dec wraps around to %u", got.wrapped_down);
    expect(got.exchanged == 77, "exchange");
    expect(got.sum64 == (unsigned long long)count << 33, "64-bit add");
    expect(got.maximum64 == (unsigned long long)(count - 1) << 32, "64-bit max");
    expect(got.swapped64 == 3ull * count, "64-bit compare-and-swap");
    expect(got.sum_float == count * 0.5f && got.sum_double == count * 0.25, "float and double add");
}

// Rows: 0 ballot of odd values, 1 any and all, 2 match any, 3 match all, 4 lanes of the diverged half, 5 leader and popcount.
__global__ void votes(const int* values, unsigned* rows)
{
    int lane = threadIdx.x, value = values[lane];
    rows[0 * WARP + lane] = __ballot_sync(ALL_LANES, value & 1);
    rows[1 * WARP + lane] = (__any_sync(ALL_LANES, value == 3) != 0) * 4 + (__all_sync(ALL_LANES, value >= 0) != 0) * 2
                            + (__all_sync(ALL_LANES, value == 3) != 0);
    rows[2 * WARP + lane] = __match_any_sync(ALL_LANES, value);
    int same = 0;
    rows[3 * WARP + lane] = __match_all_sync(ALL_LANES, value / 100, &same) - (unsigned)same;
    rows[3 * WARP + lane] ^= __match_all_sync(ALL_LANES, value, &same) + (unsigned)same;  // no match: both are 0
    if (lane % 2 == 0) rows[4 * WARP + lane] = __ballot_sync(0x55555555u, value >= 4);
    else rows[4 * WARP + lane] = __ballot_sync(0xaaaaaaaau, value < 4);
    __syncwarp();
    unsigned peers = __match_any_sync(ALL_LANES, value);
    rows[5 * WARP + lane] = (unsigned)(__ffs((int)peers) - 1) * 100 + (unsigned)__popc(peers);
}

static void check_votes()
{
    std::vector<int> values(WARP);
    for (int lane = 0; lane < WARP; ++lane) values[lane] = lane * 5 % 7;
    std::vector<unsigned> want(6 * WARP, 0);
    unsigned odd = 0, even_lanes_high = 0, odd_lanes_low = 0;
    for (int lane = 0; lane < WARP; ++lane) {
        unsigned bit = 1u << lane;
        if (values[lane] & 1) odd |= bit;
        if (lane % 2 == 0 && values[lane] >= 4) even_lanes_high |= bit;
        if (lane % 2 == 1 && values[lane] < 4) odd_lanes_low |= bit;
    }
    for (int lane = 0; lane < WARP; ++lane) {
        unsigned peers = 0, first = WARP, members = 0;
        for (unsigned other = 0; other < WARP; ++other)
            if (values[other] == values[lane]) {
                peers |= 1u << other;
                if (first == WARP) first = other;
                ++members;
            }
        want[0 * WARP + lane] = odd;
        want[1 * WARP + lane] = 4 + 2;
        want[2 * WARP + lane] = peers;
        want[3 * WARP + lane] = ALL_LANES - 1;
        want[4 * WARP + lane] = lane % 2 == 0 ? even_lanes_high : odd_lanes_low;
        want[5 * WARP + lane] = first * 100 + members;
    }
    DeviceBuffer<int> device_values(values);
    DeviceBuffer<unsigned> device_rows(6 * WARP);
    votes<<<1, WARP>>>(device_values.data(), device_rows.data());
    CHECK_LAUNCH();
    expect_equal(device_rows.download(), want, "votes and matches");
}

// A spin lock taken by every thread, lanes of one warp against each other too: legal since threads of a warp are
// scheduled independently. The count is updated without atomics, so that only the lock keeps it right.
__global__ void with_lock(int* lock, volatile int* count, volatile int* last_seen)
{
    bool done = false;
    while (!done) {
        if (atomicCAS(lock, 0, 1) == 0) {
            __threadfence();
            int seen = *count;
            *last_seen = seen;
            *count = seen + 1;
            __threadfence();
            atomicExch(lock, 0);
            done = true;
        }
    }
}

// The same with a waiting loop that only compares and swaps; one thread a warp.
__global__ void with_waiting_lock(int* lock, volatile int* count)
{
    if (threadIdx.x % WARP != 0) return;
    while (atomicCAS(lock, 0, 1) != 0) {
    }
    __threadfence();
    *count = *count + 1;
    __threadfence();
    atomicExch(lock, 0);
}

static void check_locks()
{
    std::vector<int> zero(1, 0);
    DeviceBuffer<int> lock(zero), count(zero), last_seen(zero);
    with_lock<<<3, 64>>>(lock.data(), count.data(), last_seen.data());
    CHECK_LAUNCH();
    expect_equal(count.download(), {3 * 64}, "a lock taken by every thread");
    expect_equal(last_seen.download(), {3 * 64 - 1}, "the last thread saw all others");
    with_waiting_lock<<<4, 128>>>(lock.data(), count.data());
    CHECK_LAUNCH();
    expect_equal(count.download(), {3 * 64 + 4 * 4}, "a lock taken by one thread a warp");
    expect_equal(lock.download(), {0}, "the lock is free again");
}

int main()
{
    std::printf("atomics_warp: atomics, votes, matches and locks\n");
    check_every_kind();
    check_votes();
    check_locks();
    return verdict("atomics_warp");
}

// The kernel that is the adapter, in slices: one runs until it is told to stop, has looked for long enough without work, or
// has had its time. Then the host changes tables, or starts the next. Compiled by `make net-ptx`.
//
//   tables, pinned      what the host and the blocks have in common: a block copies them when they are of a new generation,
//                       and writes back what is of its group at the end of a slice
//   region, of a block  its copy, in the GPU's memory
//   control, pinned     word 0: 1 stops all blocks; of block b, at 64 (1 + b): the last slice that it has ended, and the
//                       work that it did in that
#include "adapter.cuh"

using namespace outboard::net;
using namespace outboard::net::adapter;

namespace {

constexpr uint64_t LINE_BYTES = 64;

// Copies bytes, all threads together, past caches.
__device__ __noinline__ void copy_together(uint64_t to, uint64_t from, uint64_t bytes)
{
    detail::copy(to, from, bytes, threadIdx.x, blockDim.x, true);
}

// Copies structs between tables and region.
__device__ void move(uint64_t to, uint64_t from, uint64_t at, uint64_t bytes) { copy_together(to + at, from + at, bytes); }

__device__ void fetch_tables(uint64_t region, uint64_t tables)
{
    const Head *there = (const Head *)tables;
    bool is_new = detail::load(&((Head *)region)->generation) != detail::load(&there->generation);
    __syncthreads();
    if (!is_new) return;
    move(region, tables, 0, sizeof(Head));
    __syncthreads();
    const Head *head = (const Head *)region;
    move(region, tables, PAIRS_AT, head->pair_count * sizeof(Pair));
    move(region, tables, COMPLETIONS_AT, head->completion_count * sizeof(Completions));
    move(region, tables, KEYS_AT, head->key_count * sizeof(Key));
    __syncthreads();
}

__device__ void bring_back(uint64_t region, uint64_t tables)
{
    const Head *head = (const Head *)region;
    for (uint32_t i = 0; i < head->pair_count; ++i) {
        uint64_t at = PAIRS_AT + i * sizeof(Pair);
        if (((const Pair *)(region + at))->group == blockIdx.x) move(tables, region, at, sizeof(Pair));
    }
    for (uint32_t i = 0; i < head->completion_count; ++i) {
        uint64_t at = COMPLETIONS_AT + i * sizeof(Completions);
        if (((const Completions *)(region + at))->group == blockIdx.x) move(tables, region, at, sizeof(Completions));
    }
    __syncthreads();
}

// What the leader of a block remembers between two copies.
struct Round {
    uint64_t control, ends_at, idle_ns, idle_at, done;
    uint32_t number, done_in_round;
};

// Serves the queues until copies are to be made. Returns false at the end of the slice.
__device__ bool next(Engine &engine, Round &round)
{
    bool is_ended = engine.is_under_way();
    if (is_ended) engine.finish();
    if (!is_ended || !engine.has_turns()) ++round.number;
    for (;;) {
        if (round.number >= engine.pair_count()) {
            // On its way while the doorbells are.
            uint64_t stop = detail::load((const uint64_t *)round.control), now = detail::now_ns();
            if (round.done_in_round > 0) round.idle_at = now + round.idle_ns;
            else detail::pause();
            round.done += round.done_in_round;
            round.number = round.done_in_round = 0;
            if (stop != 0 || now >= round.ends_at || now >= round.idle_at) return false;
            if (engine.pair_count() == 0) continue;
        }
        engine.set_time(detail::now_ns());
        round.done_in_round += engine.serve(round.number);
        if (engine.is_under_way()) return true;
        ++round.number;
    }
}

} // namespace

extern "C" __global__ void outboard_net_adapter(uint64_t tables, uint64_t regions, uint64_t control, uint64_t slice, uint64_t idle_ns, uint64_t slice_ns)
{
    __shared__ Turn turn;
    __shared__ uint32_t goes_on;
    uint64_t region = regions + blockIdx.x * (uint64_t)TABLES_BYTES;
    bool leads = threadIdx.x == 0;
    fetch_tables(region, tables);
    Engine engine(region, &turn, blockIdx.x);
    uint64_t now = detail::now_ns();
    Round round{control, now + slice_ns, idle_ns, now + idle_ns, 0, 0xffffffffu, 0};
    for (;;) {
        if (leads) goes_on = next(engine, round);
        __syncthreads();
        if (goes_on == 0) break;
        for (uint32_t i = 0; i < turn.copy_count; ++i) {
            const Copy &one = turn.copies[i];
            copy_together(one.to, one.from, one.bytes);
        }
        __syncthreads();
    }
    bring_back(region, tables);
    if (leads) {
        uint64_t *mine = (uint64_t *)(control + (1 + blockIdx.x) * LINE_BYTES);
        detail::store(mine + 1, round.done);
        detail::store_release(mine, slice);
    }
}

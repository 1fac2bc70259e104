// The kernel that is the adapter, in slices: one runs until it is told to stop, has looked for long enough without work, or
// has had its time. Then the host changes tables, or starts the next. Compiled by `make net-ptx`.
//
//   tables, pinned      what the host and the blocks have in common: a block copies them when they are of a new generation,
//                       and writes back what is of its group at the end of a slice
//   region, of a block  its copy, in the GPU's memory
//   control, pinned     word 0: 1 stops all blocks; of block b, at 64 (1 + b): the last slice that it has ended, the work
//                       that it did in that, the queue at which the next one goes on, and, if that is not what it was told,
//                       the size of its tables: then it does nothing
#include "adapter.cuh"

using namespace outboard::net;
using namespace outboard::net::adapter;

namespace {

constexpr uint64_t LINE_BYTES = 64;

// Time between two looks at the word that stops, while entries are executed.
constexpr uint64_t LOOK_NS = 20000;

// What the leader of a block remembers between two copies.
struct Round {
    uint64_t control, ends_at, look_at, idle_ns, idle_at, done;
    // The queue whose turn it is, those that had one in this slice, and entries since the last look.
    uint32_t number, looked, recent;
};

// Looks at what ends a slice: at once the word that stops, and at its time or without work for long what comes when each
// queue was looked at, or another slice follows at once since this one has done something. Returns true at the end.
__device__ bool has_ended(Round &round, uint32_t pair_count, uint64_t now)
{
    uint64_t stop = detail::load((const uint64_t *)round.control);
    if (round.recent > 0) round.idle_at = now + round.idle_ns;
    round.done += round.recent;
    round.recent = 0;
    round.look_at = now + LOOK_NS;
    bool may_end = round.done > 0 || round.looked >= pair_count;
    return stop != 0 || (may_end && (now >= round.ends_at || now >= round.idle_at));
}

// Serves the queues until copies are to be made. Returns false at the end of the slice.
__device__ bool next(Engine &engine, Round &round)
{
    if (engine.is_under_way()) {
        engine.finish();
        if (!engine.has_turns()) {
            ++round.number;
            ++round.looked;
        }
    }
    for (;;) {
        uint64_t now = detail::now_ns();
        bool is_round = round.number >= engine.pair_count();
        if (is_round || now >= round.look_at) {
            if (is_round) round.number = 0;
            if (is_round && round.recent == 0) detail::pause();
            if (has_ended(round, engine.pair_count(), now)) return false;
            if (engine.pair_count() == 0) continue;
        }
        engine.set_time(now);
        round.recent += engine.serve(round.number);
        if (engine.is_under_way()) return true;
        ++round.number;
        ++round.looked;
    }
}

} // namespace

extern "C" __global__ void outboard_net_adapter(uint64_t tables, uint64_t regions, uint64_t control, uint64_t slice, uint64_t idle_ns, uint64_t slice_ns,
                                                uint64_t tables_bytes)
{
    __shared__ Turn turn;
    __shared__ uint32_t goes_on;
    uint64_t region = regions + blockIdx.x * (uint64_t)TABLES_BYTES;
    uint64_t *mine = (uint64_t *)(control + (1 + blockIdx.x) * LINE_BYTES);
    bool leads = threadIdx.x == 0;
    if (tables_bytes != TABLES_BYTES) {
        if (leads) detail::store(mine + 3, (uint64_t)TABLES_BYTES);
        return;
    }
    const Threads all{threadIdx.x, blockDim.x};
    uint32_t number = leads ? (uint32_t)detail::load(mine + 2) : 0;
    fetch_tables(all, region, tables);
    Engine engine(region, &turn, blockIdx.x);
    uint64_t now = detail::now_ns();
    // The first look is before the first queue: a slice that began too late for its host uses nothing of the program's.
    Round round{control, now + slice_ns, 0, idle_ns, now + idle_ns, 0, number, 0, 0};
    for (;;) {
        if (leads) goes_on = next(engine, round);
        all.meet();
        if (goes_on == 0) break;
        for (uint32_t i = 0; i < turn.copy_count; ++i) {
            const Copy &one = turn.copies[i];
            all.copy(one.to, one.from, one.bytes);
        }
        all.meet();
    }
    bring_back(all, region, tables, blockIdx.x);
    if (leads) {
        detail::store(mine + 1, round.done);
        detail::store(mine + 2, (uint64_t)round.number);
        detail::store_release(mine, slice);
    }
}

// The adapter's code for a GPU, as functions of one thread of the CPU: slices of one round.
#include "../../device/adapter.cuh"

using namespace outboard::net;
using namespace outboard::net::adapter;

namespace {

uint32_t serve(uint64_t region, uint32_t group, uint64_t now_ns)
{
    Turn turn;
    uint32_t done = 0;
    Engine engine(region, &turn, group);
    engine.set_time(now_ns);
    for (uint32_t number = 0; number < engine.pair_count();) {
        done += engine.serve(number);
        bool is_under_way = engine.is_under_way();
        if (is_under_way) {
            for (uint32_t i = 0; i < turn.copy_count; ++i) Threads{0, 1}.copy(turn.copies[i].to, turn.copies[i].from, turn.copies[i].bytes);
            engine.finish();
        }
        if (!is_under_way || !engine.has_turns()) ++number;
    }
    return done;
}

} // namespace

// Gives each queue a turn. Each group has a region of its own, which it fetches before any other has done something, as
// blocks of a GPU do. Returns the number of entries that were served.
extern "C" uint32_t outboard_net_adapter_poll(uint64_t tables, uint64_t regions, uint32_t groups, uint64_t now_ns)
{
    const Threads all{0, 1};
    uint32_t done = 0;
    for (uint32_t group = 0; group < groups; ++group) fetch_tables(all, regions + group * (uint64_t)TABLES_BYTES, tables);
    for (uint32_t group = 0; group < groups; ++group) done += serve(regions + group * (uint64_t)TABLES_BYTES, group, now_ns);
    for (uint32_t group = 0; group < groups; ++group) bring_back(all, regions + group * (uint64_t)TABLES_BYTES, tables, group);
    return done;
}

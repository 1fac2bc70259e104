// The adapter's code for a GPU, as a function of one thread of the CPU.
#include "../../device/adapter.cuh"

using namespace outboard::net;
using namespace outboard::net::adapter;

// Serves all queues once. Returns the number of entries that were served.
extern "C" uint32_t outboard_net_adapter_poll(uint64_t tables, uint64_t now_ns)
{
    Turn turn;
    uint32_t done = 0;
    for (uint32_t group = 0; group < GROUPS_MAX; ++group) {
        Engine engine(tables, &turn, group);
        engine.set_time(now_ns);
        for (uint32_t number = 0; number < engine.pair_count();) {
            done += engine.serve(number);
            bool is_under_way = engine.is_under_way();
            if (is_under_way) {
                for (uint32_t i = 0; i < turn.copy_count; ++i) detail::copy(turn.copies[i].to, turn.copies[i].from, turn.copies[i].bytes, 0, 1, true);
                engine.finish();
            }
            if (!is_under_way || !engine.has_turns()) ++number;
        }
    }
    return done;
}

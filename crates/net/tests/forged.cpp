// A process whose entries travel by verbs, and which meets one that may say anything, again and again. It says for each
// meeting why it has not come about, or with which syndrome a put has ended. A put is posted before the first, and after a
// meeting that has failed it meets again as it is.
//   forged PORT MEETINGS
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "outboard/net.cuh"

using namespace outboard::net;

constexpr uint64_t PATIENCE_NS = 60000000000;

int main(int, char **values)
{
    std::string address = std::string("127.0.0.1:") + values[1];
    outboard_net_queue_options options = {6, 0, 1, 0, 0};
    uint64_t bytes = outboard_net_queue_bytes(&options);
    void *memory = std::aligned_alloc(4096, bytes), *area = std::memset(std::aligned_alloc(4096, 4096), 0, 4096);
    outboard_net *net;
    outboard_net_queue of;
    outboard_net_window mine = {(uint64_t)area, 4096, 0, 0}, theirs;
    if (outboard_net_open(nullptr, &net) != 0 || outboard_net_register(net, area, 4096, 15, &mine.key) != 0 ||
        outboard_net_queue_create(net, memory, bytes, &options, &of) != 0) {
        std::printf("%s\n", outboard_net_message());
        return 1;
    }
    uint64_t early = 0;
    if (Queue(of).put_value(Remote{0x1000, 0x77}, 1, PATIENCE_NS, &early)) return 1;
    for (int meeting = 0; meeting < std::atoi(values[2]); ++meeting) {
        if (outboard_net_meet(net, of.qpn, address.c_str(), 1, 2000, &mine, &theirs) != 0) {
            std::printf("%s\n", outboard_net_message());
            std::fflush(stdout);
            continue;
        } else {
            Queue queue(of);
            uint64_t ticket = 0;
            Failure failure = queue.put_value(Remote{theirs.address, theirs.key}, 1, PATIENCE_NS, &ticket);
            if (!failure) failure = queue.wait(ticket, PATIENCE_NS);
            std::printf("syndrome %02x\n", failure.cause == Cause::completion ? failure.syndrome : 0);
        }
        std::fflush(stdout);
        if (outboard_net_reset(net, of.qpn) != 0) return 1;
    }
    outboard_net_close(net);
    return 0;
}

// An entry with a wrong key fails; waits say which, with which syndrome; after a reset the queue works again.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "outboard/net.cuh"

using namespace outboard::net;

constexpr uint64_t SECOND_NS = 1000000000;

#define EXPECT(what) \
    if (!(what)) { \
        std::printf("line %d: %s\n", __LINE__, #what); \
        return 1; \
    }

int main()
{
    static_assert(sizeof(outboard_net_queue) == 64 && sizeof(outboard_net_options) == 40 && sizeof(outboard_net_status) == 32, "as in capi.rs");
    outboard_net *net = nullptr;
    outboard_net_queue one, two;
    EXPECT(outboard_net_open(nullptr, &net) == 0);
    uint64_t bytes = outboard_net_queue_bytes(5);
    void *memory[3] = {std::aligned_alloc(4096, 16384), std::aligned_alloc(4096, 16384), std::aligned_alloc(4096, 4096)};
    std::memset(memory[2], 0, 4096);
    EXPECT(outboard_net_queue_create(net, memory[0], bytes, 5, &one) == 0);
    EXPECT(outboard_net_queue_create(net, memory[1], bytes, 5, &two) == 0);
    EXPECT(outboard_net_queue_create(net, nullptr, bytes, 5, &two) == -1);
    EXPECT(outboard_net_connect(net, one.qpn, two.qpn) == 0);
    uint64_t *data = (uint64_t *)memory[2];
    uint32_t key = 0;
    EXPECT(outboard_net_register(net, data, 4096, 15, &key) == 0);
    for (int round = 0; round < 3; ++round) {
        Queue queue(one);
        uint64_t good = 0, bad = 0, behind = 0;
        EXPECT(!queue.put_value(Remote{(uint64_t)data, key}, 7 + round, SECOND_NS, &good));
        EXPECT(!queue.wait(good, SECOND_NS) && data[0] == 7u + round);
        EXPECT(!queue.put(Remote{(uint64_t)data, key + 1}, Local{(uint64_t)data, key}, 8, SECOND_NS, &bad));
        Failure failure = queue.wait(bad, SECOND_NS);
        EXPECT(failure.cause == Cause::completion && failure.syndrome == 0x13 && failure.entry == bad && failure.qpn == one.qpn);
        failure = queue.nop(SECOND_NS, &behind);
        EXPECT(failure.cause == Cause::completion && failure.syndrome == 0x13);
        EXPECT(!queue.wait(good, SECOND_NS));
        outboard_net_status status;
        EXPECT(outboard_net_status_of(net, one.qpn, &status) == 0);
        EXPECT(status.succeeded == 1 && status.failed_index == 1 && status.syndrome == 0x13);
        EXPECT(outboard_net_reset(net, one.qpn) == 0 && outboard_net_reset(net, two.qpn) == 0);
        EXPECT(queue.wait(good, SECOND_NS).cause == Cause::stale);
        EXPECT(queue.nop(SECOND_NS, &behind).cause == Cause::completion);
        EXPECT(outboard_net_connect(net, one.qpn, two.qpn) == 0);
    }
    outboard_net_close(net);
    return 0;
}

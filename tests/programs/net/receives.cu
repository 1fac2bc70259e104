// A thread of the CPU sends messages to itself, with receives left over at each reset.
//   receives ROUNDS [plain]
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "outboard/net.cuh"

using namespace outboard::net;

constexpr uint64_t PATIENCE_NS = 20000000000ull, WORDS = 40;
constexpr uint64_t RECEIVES = 7, MESSAGES = 5;

struct Memory {
    uint64_t from[WORDS], into[RECEIVES][WORDS];
};

#define EXPECT(what) \
    if (!(what)) { \
        std::printf("line %d, round %llu: %s; %s\n", __LINE__, (unsigned long long)round, #what, outboard_net_message()); \
        return false; \
    }

template <class Type> static Type *pinned(size_t bytes)
{
    void *at = nullptr;
    if (cudaHostAlloc(&at, bytes, cudaHostAllocMapped) != cudaSuccess) std::exit(3);
    return static_cast<Type *>(std::memset(at, 0, bytes));
}

static bool exchange(outboard_net *net, const outboard_net_queue (&of)[2], Memory *memory, uint32_t key, uint64_t round)
{
    EXPECT(outboard_net_connect(net, of[0].qpn, of[1].qpn) == 0);
    Queue sender(of[0]), receiver(of[1]);
    uint64_t ticket;
    for (auto &into : memory->into) EXPECT(!receiver.post_receive(Local{(uint64_t)into, key}, sizeof into, PATIENCE_NS, &ticket));
    for (uint64_t message = 0; message < MESSAGES; ++message) {
        for (uint64_t i = 0; i < WORDS; ++i) memory->from[i] = round << 32 | message << 16 | i;
        EXPECT(!sender.send(Local{(uint64_t)memory->from, key}, sizeof memory->from, PATIENCE_NS, &ticket));
        EXPECT(!sender.wait(ticket, PATIENCE_NS));
        Received received;
        EXPECT(!receiver.receive(PATIENCE_NS, &received));
        outboard_net_look();
        EXPECT(received.bytes == sizeof memory->from && std::memcmp((void *)received.address, memory->from, sizeof memory->from) == 0);
    }
    // In every second round the queue fails before it is put back.
    if (round % 2 == 1) {
        EXPECT(!sender.send(Local{(uint64_t)memory->from, key + 1}, 8, PATIENCE_NS, &ticket));
        EXPECT(sender.wait(ticket, PATIENCE_NS).syndrome == 0x04);
    }
    for (auto &queue : of) EXPECT(outboard_net_reset(net, queue.qpn) == 0);
    return true;
}

// All receives, which a thread at a server may not have seen yet when they are flushed.
static bool reset_at_once(outboard_net *net, const outboard_net_queue (&of)[2], Memory *memory, uint32_t key, uint64_t round)
{
    EXPECT(outboard_net_connect(net, of[0].qpn, of[1].qpn) == 0);
    Queue receiver(of[1]);
    uint64_t ticket;
    for (uint64_t i = 0; i < 8; ++i) EXPECT(!receiver.post_receive(Local{(uint64_t)memory->into, key}, 8, PATIENCE_NS, &ticket));
    for (auto &queue : of) EXPECT(outboard_net_reset(net, queue.qpn) == 0);
    return true;
}

int main(int count, char **values)
{
    if (count < 2) return 2;
    outboard_net *net;
    if (outboard_net_open(nullptr, &net) != 0) return 1;
    uint32_t flags = count > 2 ? OUTBOARD_NET_PLAIN : 0;
    outboard_net_queue_options options = {5, 3, 1, flags, 0};
    uint64_t bytes = outboard_net_queue_bytes(&options);
    outboard_net_queue queues[2];
    for (auto &queue : queues) {
        if (outboard_net_queue_create(net, pinned<void>(bytes), bytes, &options, &queue) != 0) {
            std::printf("%s\n", outboard_net_message());
            return 1;
        }
    }
    Memory *memory = pinned<Memory>(sizeof(Memory));
    uint32_t key;
    if (outboard_net_register(net, memory, sizeof *memory, OUTBOARD_NET_LOCAL_WRITE, &key) != 0) return 1;
    bool right = true;
    uint64_t rounds = std::strtoull(values[1], nullptr, 10);
    for (uint64_t round = 0; round < rounds && right; ++round) right = exchange(net, queues, memory, key, round);
    for (uint64_t round = 0; round < 10 * rounds && right; ++round) right = reset_at_once(net, queues, memory, key, round);
    right = right && exchange(net, queues, memory, key, rounds);
    outboard_net_close(net);
    if (right) std::printf("%s rounds: right\n", values[1]);
    return !right;
}

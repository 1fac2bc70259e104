// A thread of the CPU posts to a queue, and polls for what adapters and a running kernel have put: also where the endpoint
// is at a server, and the program's memory a copy. Memory that is not pinned, a wrong key and a reset are tried, too.
//   host PLACE         program or server: where the endpoint has to be
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "outboard/net.cuh"

using namespace outboard::net;

constexpr uint64_t PATIENCE_NS = 60000000000ull;
constexpr int WORDS = 300, ROUNDS = 5;

struct Box {
    uint64_t words[WORDS], flag, words_behind[WORDS];
};

// Puts its words, and the flag after them, when the CPU has told it the round.
__global__ void produce(outboard_net_queue of, uint64_t *words, uint32_t key, Box *box, uint32_t box_key, uint64_t round, uint64_t *failed)
{
    Queue queue(of);
    uint64_t ticket;
    for (int i = 0; i < WORDS; ++i) words[i] = round << 32 | (uint64_t)i;
    Failure failure = queue.put(Remote{(uint64_t)box->words, box_key}, Local{(uint64_t)words, key}, WORDS * 8, PATIENCE_NS, &ticket);
    if (!failure) failure = queue.put(Remote{(uint64_t)box->words_behind, box_key}, Local{(uint64_t)words, key}, WORDS * 8, PATIENCE_NS, &ticket);
    if (!failure) failure = queue.signal_set(Remote{(uint64_t)&box->flag, box_key}, round, PATIENCE_NS, &ticket);
    if (!failure) failure = queue.wait(ticket, PATIENCE_NS);
    if (failure) *failed = failure.syndrome | 0x100;
}

#define EXPECT(what) \
    if (!(what)) { \
        std::printf("line %d: %s; %s\n", __LINE__, #what, outboard_net_message()); \
        return 1; \
    }

template <class Type> static Type *pinned(size_t bytes)
{
    void *at = nullptr;
    if (cudaHostAlloc(&at, bytes, cudaHostAllocMapped | cudaHostAllocPortable) != cudaSuccess) std::exit(3);
    std::memset(at, 0x5a, bytes);
    return (Type *)at;
}

static bool is_right(const Box *box, uint64_t round)
{
    for (int i = 0; i < WORDS; ++i)
        if (box->words[i] != (round << 32 | (uint64_t)i) || box->words_behind[i] != box->words[i]) return false;
    return true;
}

int main(int count, char **values)
{
    EXPECT(count == 2);
    outboard_net *net;
    EXPECT(outboard_net_open(nullptr, &net) == 0);
    outboard_net_queue_options options = {5, 0, 1, 0, 0};
    uint64_t bytes = outboard_net_queue_bytes(&options);
    outboard_net_queue one, other;
    // Old bytes of the memory are lost, and are not brought back.
    EXPECT(outboard_net_queue_create(net, pinned<void>(bytes), bytes, &options, &one) == 0);
    EXPECT(outboard_net_queue_create(net, pinned<void>(bytes), bytes, &options, &other) == 0);
    EXPECT(std::strcmp(outboard_net_place_of(net), values[1]) == 0);
    Box *box = pinned<Box>(sizeof(Box));
    uint64_t *words = pinned<uint64_t>(WORDS * 8), *failed = pinned<uint64_t>(8), ordinary = 0;
    box->flag = 0, *failed = 0;
    uint32_t key, box_key, none;
    EXPECT(outboard_net_register(net, words, WORDS * 8, OUTBOARD_NET_LOCAL_WRITE, &key) == 0);
    EXPECT(outboard_net_register(net, box, sizeof *box, 15, &box_key) == 0);
    bool is_here = std::strcmp(values[1], "program") == 0;
    EXPECT((outboard_net_register(net, &ordinary, 8, 15, &none) == 0) == is_here);
    EXPECT(outboard_net_connect(net, one.qpn, other.qpn) == 0);

    Queue queue(one);
    uint64_t ticket, round = 0;
    for (int i = 0; i < ROUNDS; ++i) {
        // Posted by the CPU.
        ++round;
        for (int word = 0; word < WORDS; ++word) words[word] = round << 32 | (uint64_t)word;
        EXPECT(!queue.put(Remote{(uint64_t)box->words, box_key}, Local{(uint64_t)words, key}, WORDS * 8, PATIENCE_NS, &ticket));
        EXPECT(!queue.put(Remote{(uint64_t)box->words_behind, box_key}, Local{(uint64_t)words, key}, WORDS * 8, PATIENCE_NS, &ticket));
        EXPECT(!queue.signal_set(Remote{(uint64_t)&box->flag, box_key}, round, PATIENCE_NS, &ticket));
        EXPECT(poll_slot(&box->flag, round, PATIENCE_NS) && is_right(box, round));
        EXPECT(!queue.wait(ticket, PATIENCE_NS));
        // Read back, and added to.
        std::memset(words, 0, WORDS * 8);
        EXPECT(!queue.get(Local{(uint64_t)words, key}, Remote{(uint64_t)box->words, box_key}, WORDS * 8, PATIENCE_NS, &ticket));
        EXPECT(!queue.wait(ticket, PATIENCE_NS) && words[WORDS - 1] == (round << 32 | (uint64_t)(WORDS - 1)));
        // Posted by a kernel to the other queue, and seen while it may still run.
        ++round;
        produce<<<1, 1>>>(other, words, key, box, box_key, round, failed);
        EXPECT(poll_slot(&box->flag, round, PATIENCE_NS) && is_right(box, round));
        EXPECT(cudaDeviceSynchronize() == cudaSuccess && *failed == 0);
    }
    // A wrong key: the syndrome reaches the waiting thread and the host, which puts both ends back.
    EXPECT(!queue.put_value(Remote{(uint64_t)box->words, box_key + 1}, 1, PATIENCE_NS, &ticket));
    Failure failure = queue.wait(ticket, PATIENCE_NS);
    outboard_net_status status;
    EXPECT(failure.syndrome == 0x13 && outboard_net_status_of(net, one.qpn, &status) == 0 && status.syndrome == 0x13);
    EXPECT(outboard_net_reset(net, one.qpn) == 0 && outboard_net_reset(net, other.qpn) == 0);
    EXPECT(outboard_net_connect(net, one.qpn, other.qpn) == 0);
    EXPECT(!queue.put_value(Remote{(uint64_t)box->words, box_key}, 77, PATIENCE_NS, &ticket));
    EXPECT(!queue.wait(ticket, PATIENCE_NS) && detail::load(box->words) == 77);
    outboard_net_close(net);
    std::printf("%d rounds: right\n", ROUNDS);
    return 0;
}

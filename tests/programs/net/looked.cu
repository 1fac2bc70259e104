// A thread of the CPU posts to an endpoint where the GPU is while other threads look for what adapters have written.
//   looked ROUNDS LOOKING
#include <cuda_runtime.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "outboard/net.cuh"

using namespace outboard::net;

constexpr int WORDS = 512;
constexpr uint64_t PATIENCE_NS = 20000000000ull;

struct Memory {
    uint64_t outbox[WORDS], inbox[WORDS], flag;
};

#define NET(call) \
    if ((call) != 0) { \
        std::printf("%s: %s\n", #call, outboard_net_message()); \
        std::exit(1); \
    }

template <class Type> static Type *pinned(size_t bytes)
{
    void *at = nullptr;
    if (cudaHostAlloc(&at, bytes, cudaHostAllocMapped) != cudaSuccess) std::exit(1);
    return static_cast<Type *>(std::memset(at, 0, bytes));
}

// One round: words and a flag, put to memory of the same endpoint by its other queue.
static bool is_right(Queue &queue, Memory *memory, uint32_t key, uint64_t round)
{
    for (uint64_t i = 0; i < WORDS; ++i) memory->outbox[i] = round << 16 | i;
    uint64_t ticket;
    Remote to{(uint64_t)memory->inbox, key}, flag{(uint64_t)&memory->flag, key};
    Failure failure = queue.put(to, Local{(uint64_t)memory->outbox, key}, sizeof memory->outbox, PATIENCE_NS, &ticket);
    if (!failure) failure = queue.signal_set(flag, round, PATIENCE_NS, &ticket);
    if (!failure) failure = queue.wait(ticket, PATIENCE_NS);
    if (failure) {
        std::printf("round %llu: cause %d, syndrome %#x\n", (unsigned long long)round, (int)failure.cause, failure.syndrome);
        return false;
    }
    // The completion may be of another thread's look, which has not brought all yet.
    outboard_net_look();
    bool same = detail::load(&memory->flag) == round;
    for (uint64_t i = 0; i < WORDS; ++i) same &= detail::load(&memory->inbox[i]) == (round << 16 | i);
    if (!same) std::printf("round %llu: other words came\n", (unsigned long long)round);
    return same;
}

int main(int count, char **values)
{
    if (count != 3) return 2;
    outboard_net *net;
    NET(outboard_net_open(nullptr, &net));
    outboard_net_queue_options options = {6, 0, 1, 0, 0};
    uint64_t bytes = outboard_net_queue_bytes(&options);
    outboard_net_queue queues[2];
    for (auto &queue : queues) NET(outboard_net_queue_create(net, pinned<void>(bytes), bytes, &options, &queue));
    NET(outboard_net_connect(net, queues[0].qpn, queues[1].qpn));
    auto *memory = pinned<Memory>(sizeof(Memory));
    uint32_t key;
    NET(outboard_net_register(net, memory, sizeof *memory, OUTBOARD_NET_REMOTE_WRITE, &key));
    std::atomic<bool> is_over{false};
    std::vector<std::thread> looking;
    for (int i = 0; i < std::atoi(values[2]); ++i)
        looking.emplace_back([&] {
            while (!is_over) outboard_net_look();
        });
    Queue queue(queues[0]);
    bool right = true;
    uint64_t rounds = std::strtoull(values[1], nullptr, 10);
    for (uint64_t round = 1; round <= rounds && right; ++round) right = is_right(queue, memory, key, round);
    is_over = true;
    for (auto &thread : looking) thread.join();
    outboard_net_close(net);
    if (right) std::printf("%s: right\n", values[1]);
    return !right;
}

// Threads of the CPU wait, without an end, for an endpoint where the GPU is, whose session is lost meanwhile.
//   lost               says "waiting", and then how each wait ended
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "outboard/net.cuh"

using namespace outboard::net;

constexpr uint64_t NEVER = UINT64_MAX, PATIENCE_NS = 20000000000ull;

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

static void say(const char *what, Failure failure)
{
    std::printf("%s: cause %d, syndrome %#x, entry %llu\n", what, (int)failure.cause, failure.syndrome, (unsigned long long)failure.entry);
}

// A queue of each kind that has put once, and then sends what nobody receives.
struct Case {
    const char *name;
    uint32_t flags;
    outboard_net_queue queue;
    uint64_t done, pending;
};

int main()
{
    outboard_net *net;
    NET(outboard_net_open(nullptr, &net));
    auto *words = pinned<uint64_t>(64);
    uint32_t key;
    NET(outboard_net_register(net, words, 64, OUTBOARD_NET_REMOTE_WRITE, &key));
    Local from{(uint64_t)words, key};
    Case cases[] = {{"shared", 0, {}, 0, 0}, {"plain", OUTBOARD_NET_PLAIN, {}, 0, 0}, {"exclusive", OUTBOARD_NET_EXCLUSIVE, {}, 0, 0}};
    outboard_net_queue other{};
    for (auto &one : cases) {
        outboard_net_queue_options options = {5, 2, 1, one.flags | OUTBOARD_NET_PATIENT, 0};
        uint64_t bytes = outboard_net_queue_bytes(&options);
        NET(outboard_net_queue_create(net, pinned<void>(bytes), bytes, &options, &one.queue));
        NET(outboard_net_queue_create(net, pinned<void>(bytes), bytes, &options, &other));
        NET(outboard_net_connect(net, one.queue.qpn, other.qpn));
        Queue queue(one.queue);
        Failure failure = queue.put(Remote{(uint64_t)(words + 1), key}, from, 8, PATIENCE_NS, &one.done);
        if (!failure) failure = queue.wait(one.done, PATIENCE_NS);
        if (!failure) failure = queue.send(from, 8, PATIENCE_NS, &one.pending);
        if (failure) return say(one.name, failure), 1;
    }
    std::vector<std::thread> waiting;
    for (auto &one : cases)
        waiting.emplace_back([&one] { say(one.name, Queue(one.queue).wait(one.pending, NEVER)); });
    uint64_t posted;
    Failure failure = Queue(cases[0].queue).post_receive(from, 8, PATIENCE_NS, &posted);
    if (failure) return say("post receive", failure), 1;
    for (const outboard_net_queue &of : {cases[0].queue, other})
        waiting.emplace_back([of] {
            Received received;
            say("receive", Queue(of).receive(NEVER, &received));
        });
    waiting.emplace_back([&] { std::printf("poll: %d\n", (int)poll_slot(words + 2, 1, NEVER)); });
    waiting.emplace_back([&] {
        uint64_t seen[2] = {};
        std::printf("poll any: %d\n", poll_any(words + 3, 2, 1, seen, 0, NEVER));
    });
    std::printf("waiting\n");
    std::fflush(stdout);
    for (auto &thread : waiting) thread.join();
    for (auto &one : cases) {
        uint64_t ticket;
        say("done", Queue(one.queue).wait(one.done, NEVER));
        say("post", Queue(one.queue).put(Remote{(uint64_t)(words + 1), key}, from, 8, NEVER, &ticket));
    }
    int looked = outboard_net_look();
    std::printf("look: %d, %s\n", looked, outboard_net_message());
    outboard_net_close(net);
    return 0;
}

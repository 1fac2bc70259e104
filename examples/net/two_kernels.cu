// Two processes, each with a kernel: the kernels exchange data, and no CPU thread posts or waits for them.
//   two_kernels listen 127.0.0.1:PORT ROUNDS      in one process
//   two_kernels connect 127.0.0.1:PORT ROUNDS     in another one
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "outboard/net.cuh"

using namespace outboard::net;

constexpr uint64_t PATIENCE_NS = 30000000000ull;
constexpr int WORDS = 512;

// What a process offers to the other, twice: a message, and the round in which it arrived. The other writes the next round
// while this one is read; it writes the one after that when it has got the answer to the next.
struct Inbox {
    uint64_t words[WORDS], round;
};

// Words of a round, from the process that listens (0) or connects (1).
__device__ uint64_t word(int side, uint64_t round, int i) { return (uint64_t)side << 56 | round << 16 | (uint64_t)i; }

// A warp writes its words to the other's inbox, and the round behind them; then it waits for the other's.
__global__ void exchange(outboard_net_queue of, Inbox *inbox, uint64_t *outbox, uint32_t key, outboard_net_window there,
                         int side, uint64_t rounds, Failure *failure, uint64_t *right)
{
    Queue queue(of);
    for (uint64_t round = 1; round <= rounds; ++round) {
        uint64_t ticket, to = there.address + round % 2 * sizeof(Inbox);
        const Inbox *from = inbox + round % 2;
        for (int i = threadIdx.x; i < WORDS; i += 32) outbox[i] = word(side, round, i);
        *failure = queue.put<Scope::warp>(Remote{to, there.key}, Local{(uint64_t)outbox, key}, WORDS * 8, PATIENCE_NS, &ticket);
        if (*failure) return;
        *failure = queue.signal_set<Scope::warp>(Remote{to + WORDS * 8, there.key}, round, PATIENCE_NS, &ticket);
        if (*failure || !poll_slot(&from->round, round, PATIENCE_NS)) return;
        int same = 0;
        for (int i = threadIdx.x; i < WORDS; i += 32) same += detail::load(&from->words[i]) == word(1 - side, round, i);
        if (__reduce_add_sync(0xffffffffu, same) == WORDS && threadIdx.x == 0) *right += 1;
        // The message has left: the outbox may be written again.
        *failure = queue.wait<Scope::warp>(ticket, PATIENCE_NS);
        if (*failure) return;
    }
    // Neither process ends before the other has all its answers: each says that it has. That this has no answer means that
    // the other has got it, and has ended.
    uint64_t ticket, end = rounds + 1, to = there.address + end % 2 * sizeof(Inbox) + WORDS * 8;
    *failure = queue.signal_set<Scope::warp>(Remote{to, there.key}, end, PATIENCE_NS, &ticket);
    if (!*failure && poll_slot(&inbox[end % 2].round, end, PATIENCE_NS)) queue.wait<Scope::warp>(ticket, PATIENCE_NS);
}

#define CUDA(call) \
    if (cudaError_t status = (call)) { \
        std::printf("%s: %s\n", #call, cudaGetErrorString(status)); \
        return 1; \
    }
#define NET(call) \
    if ((call) != 0) { \
        std::printf("%s: %s\n", #call, outboard_net_message()); \
        return 1; \
    }

template <class Type> static cudaError_t pinned(Type **out, size_t bytes)
{
    cudaError_t status = cudaHostAlloc((void **)out, bytes, cudaHostAllocMapped | cudaHostAllocPortable);
    if (status == cudaSuccess) std::memset(*out, 0, bytes);
    return status;
}

int main(int count, char **values)
{
    int side = count != 4 ? -1 : std::strcmp(values[1], "listen") == 0 ? 0 : std::strcmp(values[1], "connect") == 0 ? 1 : -1;
    uint64_t rounds = count == 4 ? std::strtoull(values[3], nullptr, 10) : 0;
    if (side < 0 || rounds == 0) {
        std::printf("two_kernels listen|connect IP:PORT ROUNDS\n");
        return 2;
    }
    outboard_net *net;
    NET(outboard_net_open(nullptr, &net));
    outboard_net_queue_options options = {6, 0, 1, 0, 0};
    uint64_t bytes = outboard_net_queue_bytes(&options);
    void *memory;
    CUDA(pinned(&memory, bytes));
    outboard_net_queue queue;
    NET(outboard_net_queue_create(net, memory, bytes, &options, &queue));
    Inbox *inbox;
    uint64_t *outbox, *right;
    Failure *failure;
    CUDA(pinned(&inbox, 2 * sizeof *inbox));
    CUDA(pinned(&outbox, WORDS * 8));
    CUDA(pinned(&right, sizeof *right));
    CUDA(pinned(&failure, sizeof *failure));
    uint32_t key;
    outboard_net_window mine = {(uint64_t)inbox, 2 * sizeof *inbox, 0, 0}, theirs;
    NET(outboard_net_register(net, inbox, 2 * sizeof *inbox, OUTBOARD_NET_REMOTE_WRITE, &mine.key));
    NET(outboard_net_register(net, outbox, WORDS * 8, 0, &key));
    NET(outboard_net_meet(net, queue.qpn, values[2], side == 0, 30000, &mine, &theirs));
    exchange<<<1, 32>>>(queue, inbox, outbox, key, theirs, side, rounds, failure, right);
    CUDA(cudaDeviceSynchronize());
    if (*failure) std::printf("queue %#x, entry %llu: syndrome %#x\n", failure->qpn, (unsigned long long)failure->entry, failure->syndrome);
    std::printf("%llu of %llu rounds are right\n", (unsigned long long)*right, (unsigned long long)rounds);
    outboard_net_close(net);
    return *right != rounds;
}

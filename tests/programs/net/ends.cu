// A kernel of each of two processes exchanges words with the other's until it has done its rounds, or the other is gone.
//   ends listen|connect ADDRESS ROUNDS [gpu]
// With gpu what it sends, and what it receives, is in the GPU's memory. Says "met", then how it ended.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "outboard/net.cuh"

using namespace outboard::net;

// Time after which a kernel that hears nothing asks whether its peer is there, and until which it gets an answer.
constexpr uint64_t SILENCE_NS = 1000000000ull, PATIENCE_NS = 30000000000ull;
constexpr int WORDS = 300;

struct Inbox {
    uint64_t words[WORDS], round;
};
struct Outbox {
    uint64_t words[WORDS], probe;
};
struct Result {
    uint64_t right, syndrome, cause;
};

__device__ uint64_t word(int side, uint64_t round, int i) { return (uint64_t)side << 56 | round << 16 | (uint64_t)i; }

// Waits for a round. A peer that is silent is asked for.
__device__ Failure hear(Queue &queue, const uint64_t *flag, uint64_t round, Remote there, Local probe)
{
    for (;;) {
        if (poll_slot(flag, round, SILENCE_NS)) return Failure{};
        uint64_t ticket;
        Failure failure = queue.put(there, probe, 0, PATIENCE_NS, &ticket);
        if (!failure) failure = queue.wait(ticket, PATIENCE_NS);
        if (failure) return failure;
    }
}

__global__ void exchange(outboard_net_queue of, Inbox *inbox, Outbox *outbox, uint32_t key, outboard_net_window there, int side, uint64_t rounds,
                         Result *result)
{
    Queue queue(of);
    Failure failure{};
    for (uint64_t round = 1; round <= rounds + 1 && !failure; ++round) {
        uint64_t ticket, to = there.address + round % 2 * sizeof(Inbox);
        const Inbox *from = inbox + round % 2;
        Remote flag{to + WORDS * 8, there.key};
        for (int i = 0; i < WORDS; ++i) outbox->words[i] = word(side, round, i);
        failure = queue.put_signal(Remote{to, there.key}, Local{(uint64_t)outbox, key}, WORDS * 8, flag, round, PATIENCE_NS, &ticket);
        if (!failure) failure = hear(queue, &from->round, round, flag, Local{(uint64_t)&outbox->probe, key});
        // The answer to the last has no answer: the other may be gone.
        if (failure || round > rounds) break;
        int same = 0;
        for (int i = 0; i < WORDS; ++i) same += detail::load(&from->words[i]) == word(1 - side, round, i);
        if (same != WORDS) break;
        result->right = round;
        failure = queue.wait(ticket, PATIENCE_NS);
    }
    if (result->right < rounds) result->syndrome = failure.syndrome, result->cause = (uint64_t)failure.cause;
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

template <class Type> static cudaError_t take(Type **out, size_t bytes, bool of_gpu)
{
    cudaError_t status = of_gpu ? cudaMalloc((void **)out, bytes) : cudaHostAlloc((void **)out, bytes, cudaHostAllocMapped);
    return status == cudaSuccess ? cudaMemset(*out, 0, bytes) : status;
}

int main(int count, char **values)
{
    bool of_gpu = count == 5 && std::strcmp(values[4], "gpu") == 0, listens = count > 3 && std::strcmp(values[1], "listen") == 0;
    if (count < 4 || (count == 5 && !of_gpu)) return 2;
    uint64_t rounds = std::strtoull(values[3], nullptr, 10);
    outboard_net *net;
    NET(outboard_net_open(nullptr, &net));
    outboard_net_queue_options options = {5, 0, 1, 0, 0};
    uint64_t bytes = outboard_net_queue_bytes(&options);
    void *memory;
    CUDA(take(&memory, bytes, false));
    Inbox *inbox;
    Outbox *outbox;
    Result *result;
    CUDA(take(&inbox, 2 * sizeof *inbox, of_gpu));
    CUDA(take(&outbox, sizeof *outbox, of_gpu));
    CUDA(take(&result, sizeof *result, false));
    CUDA(cudaDeviceSynchronize());
    outboard_net_queue queue;
    NET(outboard_net_queue_create(net, memory, bytes, &options, &queue));
    uint32_t key;
    outboard_net_window mine = {(uint64_t)inbox, 2 * sizeof *inbox, 0, 0}, theirs;
    NET(outboard_net_register(net, inbox, 2 * sizeof *inbox, OUTBOARD_NET_REMOTE_WRITE, &mine.key));
    NET(outboard_net_register(net, outbox, sizeof *outbox, 0, &key));
    NET(outboard_net_meet(net, queue.qpn, values[2], listens ? OUTBOARD_NET_LISTENS : 0, 30000, &mine, &theirs));
    std::printf("met by %s\n", outboard_net_place_of(net));
    std::fflush(stdout);
    exchange<<<1, 1>>>(queue, inbox, outbox, key, theirs, listens ? 0 : 1, rounds, result);
    CUDA(cudaDeviceSynchronize());
    if (result->right != rounds) std::printf("after %llu rounds: cause %llu, syndrome %#llx\n", (unsigned long long)result->right,
                                             (unsigned long long)result->cause, (unsigned long long)result->syndrome);
    else std::printf("%llu rounds: right\n", (unsigned long long)result->right);
    outboard_net_close(net);
    return result->right != rounds;
}

// The adapter is a kernel of the GPU (OUTBOARD_NET_ENGINE=gpu): memory of the GPU as payload, keys and queues that are made
// while kernels post, errors, a reset, and what is refused.
//   adapter          ends in "right"
//   adapter others   two processes: one puts into the GPU's memory of the other
//   adapter linger   says "under way", and posts until it is killed
#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "outboard/net.cuh"

using namespace outboard::net;

constexpr uint64_t PATIENCE_NS = 60000000000ull;
constexpr int WORDS = 500;

// Of the host's and the kernel's: what the kernel has reached, and the key that the host has made meanwhile.
struct Talk {
    uint64_t reached, key, syndrome, rounds, sum;
};

#define TRY(call) \
    do { \
        Failure failure = (call); \
        if (failure) { \
            talk->syndrome = failure.syndrome | 0x100; \
            return; \
        } \
    } while (0)

// Puts words of the GPU's memory there and gets them back, adds, and then uses a key that it is told while it runs.
__global__ void post(outboard_net_queue of, uint64_t *mine, uint64_t *theirs, uint32_t key, uint64_t *later, Talk *talk)
{
    QueueOf<Providers::rings> queue(of);
    uint64_t ticket;
    for (int i = 0; i < WORDS; ++i) mine[i] = 7000u + (uint64_t)i;
    TRY(queue.put(Remote{(uint64_t)theirs, key}, Local{(uint64_t)mine, key}, WORDS * 8, PATIENCE_NS, &ticket));
    TRY(queue.wait(ticket, PATIENCE_NS));
    TRY(queue.get(Local{(uint64_t)(mine + WORDS), key}, Remote{(uint64_t)theirs, key}, WORDS * 8, PATIENCE_NS, &ticket));
    TRY(queue.fetch_add(Remote{(uint64_t)(theirs + WORDS), key}, 5, Local{(uint64_t)(mine + 2 * WORDS), key}, PATIENCE_NS, &ticket));
    TRY(queue.wait(ticket, PATIENCE_NS));
    for (int i = 0; i < WORDS; ++i) talk->sum += detail::load(mine + WORDS + i) - 7000u - (uint64_t)i;
    detail::store_release(&talk->reached, 1);
    if (!poll_slot(&talk->reached, 2, PATIENCE_NS)) return;
    Remote there{(uint64_t)later, (uint32_t)detail::load(&talk->key)};
    TRY(queue.put_value(there, 77, PATIENCE_NS, &ticket));
    TRY(queue.wait(ticket, PATIENCE_NS));
    talk->rounds = 1;
}

__global__ void linger(outboard_net_queue of, uint64_t *theirs, uint32_t key, Talk *talk)
{
    QueueOf<Providers::rings> queue(of);
    for (uint64_t round = 1;; ++round) {
        uint64_t ticket;
        TRY(queue.put_value(Remote{(uint64_t)theirs, key}, round, PATIENCE_NS, &ticket));
        TRY(queue.wait(ticket, PATIENCE_NS));
        detail::store(&talk->rounds, round);
    }
}

#define EXPECT(what) \
    if (!(what)) { \
        std::printf("line %d: %s; %s; syndrome %#x\n", __LINE__, #what, outboard_net_message(), talk == nullptr ? 0 : (unsigned)talk->syndrome); \
        return 1; \
    }

template <class Type> static Type *pinned(size_t bytes)
{
    void *at = nullptr;
    if (cudaHostAlloc(&at, bytes, cudaHostAllocMapped | cudaHostAllocPortable) != cudaSuccess) std::exit(3);
    std::memset(at, 0, bytes);
    return (Type *)at;
}

// Puts a value, and waits for it.
__global__ void put(outboard_net_queue of, uint64_t *there, uint32_t key, uint64_t value, Talk *talk)
{
    QueueOf<Providers::rings> queue(of);
    uint64_t ticket;
    TRY(queue.put_value(Remote{(uint64_t)there, key}, value, PATIENCE_NS, &ticket));
    TRY(queue.wait(ticket, PATIENCE_NS));
}

// The process whose memory it is: gives a handle, and looks when the other has put.
static int others_memory(int to, int from)
{
    Talk *talk = nullptr;
    uint64_t *mine = nullptr, seen = 0;
    cudaIpcMemHandle_t handle;
    char done = 0;
    EXPECT(cudaMalloc(&mine, 4096) == cudaSuccess && cudaMemset(mine, 0, 4096) == cudaSuccess);
    EXPECT(cudaIpcGetMemHandle(&handle, mine) == cudaSuccess && write(to, &handle, sizeof handle) == (ssize_t)sizeof handle);
    EXPECT(read(from, &done, 1) == 1);
    EXPECT(cudaMemcpy(&seen, mine + 8, 8, cudaMemcpyDeviceToHost) == cudaSuccess && seen == 4711);
    return 0;
}

static int others()
{
    int to[2], from[2], status = 0;
    Talk *talk = nullptr;
    EXPECT(pipe(to) == 0 && pipe(from) == 0);
    pid_t child = fork();
    if (child == 0) std::_Exit(others_memory(from[1], to[0]));
    cudaIpcMemHandle_t handle;
    uint64_t *theirs = nullptr;
    EXPECT(read(from[0], &handle, sizeof handle) == (ssize_t)sizeof handle);
    EXPECT(cudaIpcOpenMemHandle((void **)&theirs, handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess);
    outboard_net *net;
    outboard_net_queue_options options = {5, 0, 1, 0, 0};
    uint64_t bytes = outboard_net_queue_bytes(&options);
    outboard_net_queue queue;
    uint32_t key;
    EXPECT(outboard_net_open(nullptr, &net) == 0);
    EXPECT(outboard_net_queue_create(net, pinned<void>(bytes), bytes, &options, &queue) == 0);
    EXPECT(outboard_net_connect(net, queue.qpn, queue.qpn) == 0 && outboard_net_register(net, theirs, 4096, 15, &key) == 0);
    talk = pinned<Talk>(sizeof(Talk));
    put<<<1, 1>>>(queue, theirs + 8, key, 4711, talk);
    EXPECT(cudaDeviceSynchronize() == cudaSuccess && talk->syndrome == 0);
    EXPECT(write(to[1], "", 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
    outboard_net_close(net);
    std::printf("right\n");
    return 0;
}

int main(int count, char **values)
{
    if (count > 1 && std::strcmp(values[1], "others") == 0) return others();
    Talk *talk = nullptr;
    outboard_net *net;
    EXPECT(outboard_net_open(nullptr, &net) == 0);
    outboard_net_queue_options options = {5, 0, 1, 0, 0};
    uint64_t bytes = outboard_net_queue_bytes(&options);
    outboard_net_queue one, other, third;
    EXPECT(outboard_net_queue_create(net, pinned<void>(bytes), bytes, &options, &other) == 0);
    talk = pinned<Talk>(sizeof(Talk));
    uint64_t *of_gpu = nullptr, *later = pinned<uint64_t>(8), *ordinary = (uint64_t *)std::calloc(1, 4096);
    size_t all = 8 * 4 * WORDS * sizeof(uint64_t);
    EXPECT(cudaMalloc(&of_gpu, all) == cudaSuccess && cudaMemset(of_gpu, 0, all) == cudaSuccess);
    uint64_t counters = 0;
    EXPECT(cudaMalloc((void **)&counters, outboard_net_counters_bytes(&options)) == cudaSuccess);
    EXPECT(cudaMemset((void *)counters, 0, outboard_net_counters_bytes(&options)) == cudaSuccess);
    options.counters = count > 1 ? counters : 0;
    EXPECT(outboard_net_queue_create(net, pinned<void>(bytes), bytes, &options, &one) == 0);
    options.counters = 0;
    EXPECT(outboard_net_connect(net, one.qpn, other.qpn) == 0);
    uint32_t key, later_key, none;
    EXPECT(outboard_net_register(net, of_gpu, all, 15, &key) == 0);
    uint64_t *theirs = of_gpu + 3 * WORDS;
    if (count > 1) {
        linger<<<1, 1>>>(one, theirs, key, talk);
        while (detail::load(&talk->rounds) < 3 && talk->syndrome == 0) detail::pause();
        std::printf(talk->syndrome == 0 ? "under way\n" : "failed\n");
        std::fflush(stdout);
        cudaDeviceSynchronize();
        return 1;
    }
    EXPECT(outboard_net_register(net, ordinary, 4096, 15, &none) != 0 && std::strstr(outboard_net_message(), "kernel reaches"));
    EXPECT(outboard_net_register(net, of_gpu, all + (1 << 30), 15, &none) != 0 && std::strstr(outboard_net_message(), "kernel reaches"));
    outboard_net_window window = {};
    EXPECT(outboard_net_meet(net, one.qpn, "127.0.0.1:1", OUTBOARD_NET_CONNECTS, 1, &window, &window) != 0 && std::strstr(outboard_net_message(), "OUTBOARD_NET_ENGINE"));

    post<<<1, 1>>>(one, of_gpu, theirs, key, later, talk);
    while (detail::load_acquire(&talk->reached) != 1 && cudaStreamQuery(nullptr) == cudaErrorNotReady) detail::pause();
    EXPECT(talk->reached == 1 && talk->sum == 0);
    // The kernel waits, and the adapter goes on with one more queue and one more key.
    EXPECT(outboard_net_queue_create(net, pinned<void>(bytes), bytes, &options, &third) == 0);
    EXPECT(outboard_net_connect(net, third.qpn, third.qpn) == 0);
    EXPECT(outboard_net_register(net, later, 8, OUTBOARD_NET_REMOTE_WRITE, &later_key) == 0);
    talk->key = later_key;
    detail::store_release(&talk->reached, 2);
    EXPECT(cudaDeviceSynchronize() == cudaSuccess && talk->syndrome == 0 && talk->rounds == 1 && *later == 77);
    uint64_t seen[WORDS + 1];
    EXPECT(cudaMemcpy(seen, theirs, sizeof(seen), cudaMemcpyDeviceToHost) == cudaSuccess && seen[0] == 7000 && seen[WORDS - 1] == 7000 + WORDS - 1 && seen[WORDS] == 5);

    put<<<1, 1>>>(one, theirs, key + 1, 1, talk);
    outboard_net_status status;
    EXPECT(cudaDeviceSynchronize() == cudaSuccess && talk->syndrome == 0x113);
    EXPECT(outboard_net_status_of(net, one.qpn, &status) == 0 && status.syndrome == 0x13);
    EXPECT(outboard_net_reset(net, one.qpn) == 0 && outboard_net_reset(net, other.qpn) == 0);
    EXPECT(outboard_net_connect(net, one.qpn, other.qpn) == 0);
    // A thread of the CPU posts as kernels do.
    Queue queue(one);
    uint64_t ticket;
    EXPECT(!queue.put_value(Remote{(uint64_t)later, later_key}, 78, PATIENCE_NS, &ticket));
    EXPECT(!queue.wait(ticket, PATIENCE_NS) && detail::load(later) == 78);
    outboard_net_close(net);
    std::printf("right\n");
    return 0;
}

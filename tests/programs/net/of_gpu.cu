// An endpoint at a server, whose RDMA device has memory of the GPU: until it is freed, and as much as a session may have.
//   of_gpu           says "right", and before it what a registration too many was told
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "outboard/net.cuh"

using namespace outboard::net;

constexpr uint64_t PATIENCE_NS = 20000000000ull, GIB = 1ull << 30;
constexpr int WORDS = 4096;
constexpr size_t BYTES = 4 << 20;

#define EXPECT(what) \
    if (!(what)) { \
        std::printf("line %d: %s; %s\n", __LINE__, #what, outboard_net_message()); \
        std::exit(1); \
    }

struct Pinned {
    uint64_t out[WORDS], in[WORDS];
};

static outboard_net *net;
static outboard_net_queue queues[2];
static Pinned *pinned;
static uint32_t pinned_key;

static uint32_t syndrome_of(Failure failure) { return failure.cause == Cause::completion ? failure.syndrome : failure ? 0x100 : 0; }

// Executes an operation from pinned memory to the GPU's, or back; what fails is put right for the next one.
static uint32_t moved(bool is_put, const void *at, uint32_t key)
{
    Queue queue(queues[0]);
    uint64_t ticket;
    Remote there{(uint64_t)at, key};
    Failure failure = is_put ? queue.put(there, Local{(uint64_t)pinned->out, pinned_key}, sizeof pinned->out, PATIENCE_NS, &ticket)
                             : queue.get(Local{(uint64_t)pinned->in, pinned_key}, there, sizeof pinned->in, PATIENCE_NS, &ticket);
    if (!failure) failure = queue.wait(ticket, PATIENCE_NS);
    if (failure) {
        for (auto &one : queues) EXPECT(outboard_net_reset(net, one.qpn) == 0);
        EXPECT(outboard_net_connect(net, queues[0].qpn, queues[1].qpn) == 0);
    }
    return syndrome_of(failure);
}

// Sends from the GPU's memory by its key here.
static uint32_t moved_from(const void *at, uint32_t key)
{
    Queue queue(queues[0]);
    uint64_t ticket;
    Failure failure = queue.put(Remote{(uint64_t)pinned->in, pinned_key}, Local{(uint64_t)at, key}, sizeof pinned->in, PATIENCE_NS, &ticket);
    if (!failure) failure = queue.wait(ticket, PATIENCE_NS);
    if (failure) {
        for (auto &one : queues) EXPECT(outboard_net_reset(net, one.qpn) == 0);
        EXPECT(outboard_net_connect(net, queues[0].qpn, queues[1].qpn) == 0);
    }
    return syndrome_of(failure);
}

static bool is_right(uint64_t first)
{
    outboard_net_look();
    for (uint64_t i = 0; i < WORDS; ++i)
        if (detail::load(&pinned->in[i]) != first + i) return false;
    return true;
}

__global__ void add(uint64_t *words, uint64_t more)
{
    for (int i = threadIdx.x; i < WORDS; i += blockDim.x) words[i] += more;
}

static uint64_t *of_gpu(size_t bytes)
{
    void *at = nullptr;
    EXPECT(cudaMalloc(&at, bytes) == cudaSuccess && cudaMemset(at, 0, 4096) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess);
    return static_cast<uint64_t *>(at);
}

int main()
{
    EXPECT(outboard_net_open(nullptr, &net) == 0);
    outboard_net_queue_options options = {5, 0, 1, 0, 0};
    uint64_t bytes = outboard_net_queue_bytes(&options);
    void *at;
    for (auto &queue : queues) {
        EXPECT(cudaHostAlloc(&at, bytes, cudaHostAllocMapped) == cudaSuccess);
        EXPECT(outboard_net_queue_create(net, at, bytes, &options, &queue) == 0);
    }
    EXPECT(std::strcmp(outboard_net_place_of(net), "server") == 0);
    EXPECT(outboard_net_connect(net, queues[0].qpn, queues[1].qpn) == 0);
    EXPECT(cudaHostAlloc((void **)&pinned, sizeof *pinned, cudaHostAllocMapped) == cudaSuccess);
    EXPECT(outboard_net_register(net, pinned, sizeof *pinned, OUTBOARD_NET_LOCAL_WRITE | OUTBOARD_NET_REMOTE_WRITE, &pinned_key) == 0);
    for (uint64_t i = 0; i < WORDS; ++i) pinned->out[i] = 1000 + i;

    uint64_t *first = of_gpu(BYTES), *second = of_gpu(BYTES);
    uint32_t first_key, second_key, read_only, beyond;
    EXPECT(outboard_net_register(net, first, BYTES, 15, &first_key) == 0);
    EXPECT(outboard_net_register(net, second, BYTES, 15, &second_key) == 0);
    EXPECT(outboard_net_register(net, first, BYTES, OUTBOARD_NET_REMOTE_READ, &read_only) == 0);
    // Of memory that ends before the range does.
    EXPECT(outboard_net_register(net, (char *)second + BYTES - 4096, 64 * BYTES, 15, &beyond) != 0);
    EXPECT(moved(true, first, first_key) == 0 && moved(true, second + WORDS, second_key) == 0);
    add<<<1, 64>>>(first, 5);
    EXPECT(cudaDeviceSynchronize() == cudaSuccess);
    EXPECT(moved(false, first, first_key) == 0 && is_right(1005));
    EXPECT(moved_from(second + WORDS, second_key) == 0 && is_right(1000));
    EXPECT(moved(true, first, read_only) == 0x13 && moved(true, second + BYTES / 8 - 1, second_key) == 0x13);

    // Freed memory, which no other allocation shares, is reached by no key, nor is what comes in its place; other memory is.
    EXPECT(cudaFree(first) == cudaSuccess);
    uint64_t *again = of_gpu(BYTES);
    std::printf("%s\n", again == first ? "in its place" : "elsewhere");
    EXPECT(moved(true, first, first_key) == 0x13 && moved(false, first, read_only) == 0x13 && moved_from(first, first_key) == 0x04);
    uint64_t word = 1;
    EXPECT(cudaMemcpy(&word, again, sizeof word, cudaMemcpyDeviceToHost) == cudaSuccess && word == 0);
    EXPECT(moved(false, second + WORDS, second_key) == 0 && is_right(1000));
    uint32_t key;
    EXPECT(outboard_net_register(net, again, BYTES, 15, &key) == 0);
    EXPECT(moved(true, again, key) == 0 && moved(true, again, first_key) == 0x13);

    // As much as a session may have.
    uint64_t *large = of_gpu(2 * GIB);
    int count = 0;
    while (count < 100 && outboard_net_register(net, large, 2 * GIB, 15, &key) == 0) ++count;
    std::printf("%d of 2 GiB: %s\n", count, outboard_net_message());
    EXPECT(cudaFree(large) == cudaSuccess);
    large = of_gpu(GIB);
    EXPECT(outboard_net_register(net, large, GIB, 15, &key) == 0);
    EXPECT(moved(true, large + GIB / 8 - WORDS, key) == 0);
    outboard_net_close(net);
    std::printf("right\n");
    return 0;
}

// Times what one thread of a kernel posts to a ring in host memory: by GPUNetIO's device headers, and by net.cuh on a queue
// of the same shape. One line of JSON.
//   gpunetio_bench WHO BYTES OPERATIONS WINDOW
// WHO is `gpunetio`, `outboard`, or `rings`, ours compiled for providers with rings alone. All counters of the poster are in the GPU's memory. Completions are a ring for GPUNetIO,
// whose poller is for those, and written over one another for ours.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <cuda_runtime.h>
#include <endian.h>

#include "doca_gpunetio_device.h"
#include "outboard/net.cuh"

using Pair = doca_gpu_dev_verbs_qp;
using Address = doca_gpu_dev_verbs_addr;

constexpr auto ONE = DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_EXCLUSIVE;
constexpr uint64_t PATIENCE_NS = 20000000000ull;
constexpr uint32_t LOG_BLOCKS = 10;

struct Work {
    Pair *pair;
    outboard_net_queue queue;
    char *from, *to;
    uint64_t *answer;  // nanoseconds, ticks of posting, 1 if it is wrong
    uint64_t bytes;
    uint32_t key, operations, window;
    __be32 their_key;
};

static void expect(cudaError_t status)
{
    if (status == cudaSuccess) return;
    std::printf("%s\n", cudaGetErrorString(status));
    std::exit(1);
}

static void expect(int status)
{
    if (status == 0) return;
    std::printf("%s\n", outboard_net_message());
    std::exit(1);
}

static void *pinned(size_t bytes)
{
    void *at = nullptr;
    bytes = (bytes + 4095) / 4096 * 4096;
    expect(cudaHostAlloc(&at, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
    std::memset(at, 0, bytes);
    return at;
}

static void *of_gpu(size_t bytes)
{
    void *at = nullptr;
    expect(cudaMalloc(&at, bytes));
    expect(cudaMemset(at, 0, bytes));
    return at;
}

__global__ void by_gpunetio(Work work)
{
    doca_gpu_dev_verbs_ticket_t ticket;
    Address from{(uint64_t)work.from, work.their_key}, to{(uint64_t)work.to, work.their_key};
    uint64_t began = outboard::net::detail::now_ns(), posting = 0;
    for (uint32_t i = 1; i <= work.operations; ++i) {
        long long before = clock64();
        doca_gpu_dev_verbs_put<ONE>(work.pair, to, from, work.bytes, &ticket);
        posting += (uint64_t)(clock64() - before);
        if (i % work.window == 0 && doca_gpu_dev_verbs_poll_cq_at<ONE>(&work.pair->cq_sq, ticket) != 0) work.answer[2] = 1;
    }
    work.answer[0] = outboard::net::detail::now_ns() - began;
    work.answer[1] = posting;
}

template <outboard::net::Providers providers> __global__ void by_outboard(Work work)
{
    using namespace outboard::net;
    QueueOf<providers> queue(work.queue);
    uint64_t ticket, began = detail::now_ns(), posting = 0;
    for (uint32_t i = 1; i <= work.operations; ++i) {
        long long before = clock64();
        Failure failure = queue.put(Remote{(uint64_t)work.to, work.key}, Local{(uint64_t)work.from, work.key}, work.bytes, PATIENCE_NS, &ticket);
        posting += (uint64_t)(clock64() - before);
        if (!failure && i % work.window == 0) failure = queue.wait(ticket, PATIENCE_NS);
        if (failure) work.answer[2] = 1;
    }
    work.answer[0] = detail::now_ns() - began;
    work.answer[1] = posting;
}

// What GPUNetIO's host library fills in, from a queue of the adapter.
static Pair *pair_of(const outboard_net_queue &queue)
{
    Pair pair = {};
    uint32_t blocks = 1u << queue.log_blocks, number = queue.qpn << 8;
    pair.sq_num = queue.qpn;
    pair.sq_num_shift8 = number;
    pair.sq_num_shift8_be = htobe32(number);
    pair.sq_num_shift8_be_1ds = htobe32(number | 1);
    pair.sq_num_shift8_be_2ds = htobe32(number | 2);
    pair.sq_num_shift8_be_3ds = htobe32(number | 3);
    pair.sq_num_shift8_be_4ds = htobe32(number | 4);
    pair.sq_num_shift8_be_5ds = htobe32(number | 5);
    pair.sq_wqe_num = (uint16_t)blocks;
    pair.sq_wqe_mask = (uint16_t)(blocks - 1);
    pair.sq_wqe_daddr = (uint8_t *)queue.ring;
    pair.sq_dbrec = (__be32 *)queue.record + DOCA_GPUNETIO_IB_MLX5_SND_DBR;
    pair.sq_db = (uint64_t *)queue.doorbell;
    pair.cq_sq.cqe_daddr = (uint8_t *)queue.completion;
    pair.cq_sq.cqe_num = blocks;
    pair.cq_sq.cqe_mask = blocks - 1;
    pair.cq_sq.cqe_size = 64;
    pair.nic_handler = DOCA_GPUNETIO_VERBS_NIC_HANDLER_GPU_SM_DB;
    pair.mem_type = DOCA_GPUNETIO_VERBS_MEM_TYPE_GPU;
    Pair *there = (Pair *)of_gpu(sizeof(Pair));
    expect(cudaMemcpy(there, &pair, sizeof pair, cudaMemcpyHostToDevice));
    return there;
}

static outboard_net_queue queue_of(outboard_net *net, bool is_counted_there)
{
    uint32_t flags = OUTBOARD_NET_EXCLUSIVE | (is_counted_there ? 0 : OUTBOARD_NET_PLAIN);
    outboard_net_queue_options shape = {LOG_BLOCKS, 0, 0, flags, 0};
    if (is_counted_there) shape.counters = (uint64_t)of_gpu(outboard_net_counters_bytes(&shape));
    outboard_net_queue queue;
    uint64_t bytes = outboard_net_queue_bytes(&shape);
    expect(outboard_net_queue_create(net, pinned(bytes), bytes, &shape, &queue));
    return queue;
}

int main(int count, char **values)
{
    if (count != 5) return 2;
    bool is_theirs = std::strcmp(values[1], "gpunetio") == 0, is_rings = std::strcmp(values[1], "rings") == 0;
    Work work = {};
    work.bytes = (uint64_t)std::atoll(values[2]);
    work.operations = (uint32_t)std::atoi(values[3]);
    work.window = (uint32_t)std::atoi(values[4]);
    if (work.window == 0 || work.operations % work.window != 0) return 2;
    outboard_net *net = nullptr;
    expect(outboard_net_open(nullptr, &net));
    work.queue = queue_of(net, !is_theirs);
    expect(outboard_net_connect(net, work.queue.qpn, queue_of(net, false).qpn));
    work.from = (char *)pinned(2 * work.bytes);
    work.to = work.from + work.bytes;
    for (uint64_t i = 0; i < work.bytes; ++i) work.from[i] = (char)(i * 7 + 1);
    expect(outboard_net_register(net, work.from, 2 * work.bytes, 15, &work.key));
#if DOCA_GPUNETIO_VERBS_MKEY_SWAPPED == 1
    work.their_key = htobe32(work.key);
#else
    work.their_key = work.key;
#endif
    work.answer = (uint64_t *)pinned(24);
    if (is_theirs) {
        work.pair = pair_of(work.queue);
        by_gpunetio<<<1, 1>>>(work);
    } else {
        auto kernel = is_rings ? by_outboard<outboard::net::Providers::rings> : by_outboard<outboard::net::Providers::all>;
        kernel<<<1, 1>>>(work);
    }
    expect(cudaDeviceSynchronize());
    int khz = 0;
    expect(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0));
    bool right = work.answer[2] == 0 && std::memcmp(work.from, work.to, work.bytes) == 0;
    double us = (double)work.answer[0] / 1e3 / work.operations;
    std::printf("{\"us_each\": %.3f, \"post_us\": %.3f, \"gigabytes_a_second\": %.3f, \"right\": %s}\n", us,
                (double)work.answer[1] / work.operations / khz * 1e3, (double)work.bytes / us / 1e3, right ? "true" : "false");
    outboard_net_close(net);
    return right ? 0 : 1;
}

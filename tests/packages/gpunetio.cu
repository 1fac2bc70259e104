// Kernels of GPUNetIO's device headers, as NVIDIA's packages bring them, post to queues of the software adapter and poll
// its completions. Nothing of net.cuh takes part but the host's calls; the last part compares entries, byte by byte.
//   gpunetio THREADS ROUNDS LOG_BLOCKS
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <cuda_runtime.h>
#include <endian.h>

#include "doca_gpunetio_device.h"
#include "outboard/net.cuh"

using Pair = doca_gpu_dev_verbs_qp;
using Address = doca_gpu_dev_verbs_addr;

constexpr uint64_t PATIENCE_NS = 60000000000ull;
constexpr int WORDS = 16;  // of a message
constexpr uint32_t LOG_COLLAPSED = 10, WRAPS = 66000;  // entries beyond the 16 bits of their index

constexpr auto ONE = DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_EXCLUSIVE;
constexpr auto BLOCK = DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_CTA;
constexpr auto GPU = DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_GPU;

struct Slot {
    uint64_t source[WORDS], back[WORDS], arrived[WORDS], before, flag, small;
};

// Of a kernel: a queue, and slots of which the peer's half is behind the poster's.
struct Work {
    Pair *pair;
    Slot *mine, *theirs;
    uint64_t *wrong, *sum;
    __be32 key, nobodys;
    uint32_t rounds;
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

template <class T> static T *memory(size_t count)
{
    void *at = nullptr;
    expect(cudaHostAlloc(&at, count * sizeof(T), cudaHostAllocMapped | cudaHostAllocPortable));
    std::memset(at, 0, count * sizeof(T));
    return (T *)at;
}

#define CHECK(what, is) \
    if (!(is)) { \
        atomicCAS((unsigned long long *)work.wrong, 0ull, (unsigned long long)(what)); \
        return; \
    }

__device__ uint64_t word(uint32_t thread, uint32_t round, uint32_t i) { return (uint64_t)round << 32 | thread << 8 | i; }
__device__ uint64_t seen(const uint64_t *at) { return *(const volatile uint64_t *)at; }

template <doca_gpu_dev_verbs_resource_sharing_mode mode> __global__ void post(Work work)
{
    uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
    Slot *mine = work.mine + thread, *theirs = work.theirs + thread;
    Pair *pair = work.pair;
    doca_gpu_dev_verbs_ticket_t ticket;
    for (uint32_t round = 1; round <= work.rounds; ++round) {
        uint32_t words = 1 + (thread * 5 + round * 3) % WORDS;
        for (uint32_t i = 0; i < words; ++i) mine->source[i] = word(thread, round, i);
        Address from{(uint64_t)mine->source, work.key}, to{(uint64_t)theirs->arrived, work.key};
        doca_gpu_dev_verbs_put<mode>(pair, to, from, words * 8, &ticket);
        CHECK(1, doca_gpu_dev_verbs_poll_cq_at<mode>(&pair->cq_sq, ticket) == 0);
        for (uint32_t i = 0; i < words; ++i) CHECK(2, seen(&theirs->arrived[i]) == word(thread, round, i));
        Address back{(uint64_t)mine->back, work.key};
        doca_gpu_dev_verbs_get<mode>(pair, to, back, words * 8, Address{}, &ticket);
        doca_gpu_dev_verbs_get_wait<mode>(pair, Address{}, ticket);
        for (uint32_t i = 0; i < words; ++i) CHECK(3, seen(&mine->back[i]) == word(thread, round, i));
        doca_gpu_dev_verbs_p<uint64_t, mode>(pair, Address{(uint64_t)&theirs->flag, work.key}, word(thread, round, 0x55), &ticket);
        doca_gpu_dev_verbs_wait<mode>(pair, ticket);
        CHECK(4, seen(&theirs->flag) == word(thread, round, 0x55));
        doca_gpu_dev_verbs_p<uint16_t, mode>(pair, Address{(uint64_t)&theirs->small + 2, work.key}, (uint16_t)(round + thread), &ticket);
        doca_gpu_dev_verbs_wait<mode>(pair, ticket);
        CHECK(5, seen(&theirs->small) == (uint64_t)(uint16_t)(round + thread) << 16);
        Address sum{(uint64_t)work.sum, work.key}, before{(uint64_t)&mine->before, work.key};
        doca_gpu_dev_verbs_put_signal<DOCA_GPUNETIO_VERBS_SIGNAL_OP_ADD, mode>(pair, to, from, round % 4 ? 8 : 0, sum, before, thread + 1, &ticket);
        doca_gpu_dev_verbs_wait<mode>(pair, ticket);
        CHECK(6, seen(&mine->before) < seen(work.sum));
        doca_gpu_dev_verbs_signal<DOCA_GPUNETIO_VERBS_SIGNAL_OP_ADD, mode>(pair, sum, before, 1, &ticket);
    }
    doca_gpu_dev_verbs_wait<mode>(pair, ticket);
}

// A whole warp makes one call: each of its threads puts its own bytes.
__global__ void post_by_warp(Work work)
{
    Slot *mine = work.mine + threadIdx.x, *theirs = work.theirs + threadIdx.x;
    doca_gpu_dev_verbs_ticket_t ticket;
    for (uint32_t round = 1; round <= work.rounds; ++round) {
        mine->source[0] = word(threadIdx.x, round, 7);
        Address from{(uint64_t)mine->source, work.key}, to{(uint64_t)theirs->arrived, work.key};
        doca_gpu_dev_verbs_put<GPU, DOCA_GPUNETIO_VERBS_NIC_HANDLER_AUTO, DOCA_GPUNETIO_VERBS_EXEC_SCOPE_WARP>(work.pair, to, from, 8, &ticket);
        CHECK(7, doca_gpu_dev_verbs_poll_cq_at<GPU>(&work.pair->cq_sq, ticket) == 0);
        CHECK(8, seen(&theirs->arrived[0]) == word(threadIdx.x, round, 7));
    }
}

// A completion that is written over the last one, beyond the 16 bits of its counter.
__global__ void poll_collapsed(Work work)
{
    doca_gpu_dev_verbs_ticket_t ticket;
    for (uint32_t round = 1; round <= WRAPS; ++round) {
        doca_gpu_dev_verbs_p_thread<uint64_t, ONE>(work.pair, Address{(uint64_t)&work.theirs->flag, work.key}, round, &ticket,
                                                   DOCA_GPUNETIO_VERBS_GPU_CODE_OPT_SKIP_AVAILABILITY_CHECK);
        if (round % (1u << (LOG_COLLAPSED - 1)) != 0 && round != WRAPS) continue;
        // As NVSHMEM calls it: by the number of entries, where the other pollers take an entry's own.
        CHECK(9, doca_gpu_dev_verbs_poll_cq_collapsed_at<ONE>(work.pair, ticket + 1) == 0);
        CHECK(10, seen(&work.theirs->flag) == round);
    }
}

// A key that opens nothing: the poller is told, for this entry and for the one behind it.
__global__ void fail(Work work)
{
    doca_gpu_dev_verbs_ticket_t ticket, behind;
    Address from{(uint64_t)work.mine->source, work.key}, to{(uint64_t)work.theirs->arrived, work.key};
    doca_gpu_dev_verbs_put<ONE>(work.pair, Address{to.addr, work.nobodys}, from, 8, &ticket);
    doca_gpu_dev_verbs_put<ONE>(work.pair, to, from, 8, &behind);
    CHECK(11, doca_gpu_dev_verbs_poll_cq_at<ONE>(&work.pair->cq_sq, ticket) == -EIO);
    CHECK(12, doca_gpu_dev_verbs_poll_cq_at<ONE>(&work.pair->cq_sq, behind) == -EIO);
}

// What GPUNetIO's host library fills in, from a queue of the adapter.
static Pair *pair_of(const outboard_net_queue &queue)
{
    Pair *pair = memory<Pair>(1);
    uint32_t blocks = 1u << queue.log_blocks, number = queue.qpn << 8;
    pair->sq_num = queue.qpn;
    pair->sq_num_shift8 = number;
    pair->sq_num_shift8_be = htobe32(number);
    pair->sq_num_shift8_be_1ds = htobe32(number | 1);
    pair->sq_num_shift8_be_2ds = htobe32(number | 2);
    pair->sq_num_shift8_be_3ds = htobe32(number | 3);
    pair->sq_num_shift8_be_4ds = htobe32(number | 4);
    pair->sq_num_shift8_be_5ds = htobe32(number | 5);
    pair->sq_wqe_num = (uint16_t)blocks;
    pair->sq_wqe_mask = (uint16_t)(blocks - 1);
    pair->sq_wqe_daddr = (uint8_t *)queue.ring;
    pair->sq_dbrec = (__be32 *)queue.record + DOCA_GPUNETIO_IB_MLX5_SND_DBR;
    pair->sq_db = (uint64_t *)queue.doorbell;
    pair->cq_sq.cqe_daddr = (uint8_t *)queue.completion;
    pair->cq_sq.cqe_num = blocks;
    pair->cq_sq.cqe_mask = blocks - 1;
    pair->cq_sq.cqe_size = 64;
    pair->nic_handler = DOCA_GPUNETIO_VERBS_NIC_HANDLER_GPU_SM_DB;
    pair->mem_type = DOCA_GPUNETIO_VERBS_MEM_TYPE_GPU;
    return pair;
}

static outboard_net_queue queue_of(outboard_net *net, uint32_t log_blocks, uint32_t flags)
{
    outboard_net_queue_options shape = {log_blocks, 0, 0, flags, 0};
    outboard_net_queue queue;
    uint64_t bytes = outboard_net_queue_bytes(&shape);
    expect(outboard_net_queue_create(net, memory<char>(bytes), bytes, &shape, &queue));
    return queue;
}

static outboard_net_queue connected(outboard_net *net, uint32_t log_blocks, uint32_t flags)
{
    outboard_net_queue queue = queue_of(net, log_blocks, flags), peer = queue_of(net, 5, 0);
    expect(outboard_net_connect(net, queue.qpn, peer.qpn));
    return queue;
}

static void finish(const char *what, const Work &work, uint64_t sum)
{
    expect(cudaDeviceSynchronize());
    if (*work.wrong != 0 || *work.sum != sum) {
        std::printf("%s: step %llu is wrong, the sum is %llu of %llu\n", what, (unsigned long long)*work.wrong, (unsigned long long)*work.sum, (unsigned long long)sum);
        std::exit(1);
    }
    std::printf("%s\n", what);
    *work.sum = 0;
}

// Fields of an entry.
struct Fields {
    uint64_t remote, local, add, compare;
    uint32_t rkey, lkey, bytes, imm;
};
constexpr int KINDS = 6, ENTRIES = 32 / KINDS * KINDS;

__global__ void prepare(Pair *pair, const Fields *all, doca_gpu_dev_verbs_wqe *entries)
{
    for (uint32_t i = 0; i < ENTRIES; ++i) {
        const Fields &of = all[i];
        doca_gpu_dev_verbs_wqe *at = entries + i;
        auto flags = DOCA_GPUNETIO_IB_MLX5_WQE_CTRL_CQ_UPDATE;
#if DOCA_GPUNETIO_VERBS_MKEY_SWAPPED == 1
        uint32_t rkey = doca_gpu_dev_verbs_bswap32(of.rkey), lkey = doca_gpu_dev_verbs_bswap32(of.lkey);
#else
        uint32_t rkey = of.rkey, lkey = of.lkey;
#endif
        switch (i % KINDS) {
        case 0: doca_gpu_dev_verbs_wqe_prepare_write(pair, at, i, DOCA_GPUNETIO_IB_MLX5_OPCODE_RDMA_WRITE, flags, 0, of.remote, rkey, of.local, lkey, of.bytes); break;
        case 1: doca_gpu_dev_verbs_wqe_prepare_write(pair, at, i, DOCA_GPUNETIO_IB_MLX5_OPCODE_RDMA_WRITE_IMM, flags, doca_gpu_dev_verbs_bswap32(of.imm), of.remote, rkey, of.local, lkey, of.bytes); break;
        case 2: doca_gpu_dev_verbs_wqe_prepare_read(pair, at, i, flags, of.remote, rkey, of.local, lkey, of.bytes); break;
        case 3: doca_gpu_dev_verbs_wqe_prepare_atomic(pair, at, i, DOCA_GPUNETIO_IB_MLX5_OPCODE_ATOMIC_CS, flags, of.remote, rkey, of.local, lkey, 8, of.compare, of.add); break;
        case 4: doca_gpu_dev_verbs_wqe_prepare_write_inl(pair, at, i, flags, of.remote, rkey, (uint64_t)&of.add, 8); break;
        default: doca_gpu_dev_verbs_wqe_prepare_nop(pair, at, i, flags);
        }
    }
}

__global__ void prepare_own(outboard_net_queue of_queue, const Fields *all, uint64_t *wrong)
{
    using namespace outboard::net;
    Queue queue(of_queue);
    uint64_t ticket;
    for (uint32_t i = 0; i < ENTRIES; ++i) {
        const Fields &of = all[i];
        Remote remote{of.remote, of.rkey};
        Local local{of.local, of.lkey};
        Failure failure{};
        switch (i % KINDS) {
        case 0: failure = queue.put(remote, local, of.bytes, PATIENCE_NS, &ticket); break;
        case 1: failure = queue.put_imm(remote, local, of.bytes, of.imm, PATIENCE_NS, &ticket); break;
        case 2: failure = queue.get(local, remote, of.bytes, PATIENCE_NS, &ticket); break;
        case 3: failure = queue.compare_swap(remote, of.compare, of.add, local, PATIENCE_NS, &ticket); break;
        case 4: failure = queue.put_value(remote, of.add, PATIENCE_NS, &ticket); break;
        default: failure = queue.nop(PATIENCE_NS, &ticket);
        }
        if (failure || ticket != i) *wrong = i + 1;
    }
}

// Entries of both, of random fields. Nobody fetches them: the queue is not connected.
static void compare_entries(outboard_net *net, uint64_t *wrong)
{
    uint64_t state = 19;
    auto next = [&state] { return state = state * 6364136223846793005u + 1442695040888963407u, state ^ state >> 29; };
    Fields *fields = memory<Fields>(ENTRIES);
    auto *theirs = memory<doca_gpu_dev_verbs_wqe>(ENTRIES);
    for (int round = 0; round < 20; ++round) {
        for (int i = 0; i < ENTRIES; ++i) {
            uint32_t bytes = 1 + (uint32_t)next() % 0x7fffffff;
            fields[i] = Fields{next(), next(), next(), next(), (uint32_t)next(), (uint32_t)next(), bytes, (uint32_t)next()};
        }
        outboard_net_queue queue = queue_of(net, 5, 0);
        queue.qpn = (uint32_t)next() & 0xffffff;
        std::memset(theirs, 0, ENTRIES * 64);
        prepare<<<1, 1>>>(pair_of(queue), fields, theirs);
        prepare_own<<<1, 1>>>(queue, fields, wrong);
        expect(cudaDeviceSynchronize());
        for (int i = 0; i < ENTRIES; ++i) {
            const uint8_t *ours = (const uint8_t *)queue.ring + i * 64, *their = (const uint8_t *)(theirs + i);
            int kind = i % KINDS, end = (their[7] & 63) * 16;
            for (int at = 0; at < end; ++at) {
                // GPUNetIO leaves signature and stream as they were, the immediate of most, and what is reserved.
                bool unset = (at >= 8 && at < 11) || (at >= 12 && at < 16 && kind > 1) || (at >= 28 && at < 32) || (kind == 4 && at >= 44);
                if (unset || ours[at] == their[at]) continue;
                std::printf("kind %d, byte %d: %02x, of GPUNetIO %02x\n", kind, at, ours[at], their[at]);
                std::exit(1);
            }
        }
    }
    if (*wrong) std::exit(1);
    std::printf("entries\n");
}

int main(int count, char **values)
{
    if (count != 4) return 2;
    uint32_t threads = (uint32_t)std::atoi(values[1]), log_blocks = (uint32_t)std::atoi(values[3]);
    outboard_net *net = nullptr;
    expect(outboard_net_open(nullptr, &net));
    size_t slots = threads < 32 ? 32 : threads;
    char *data = memory<char>(2 * slots * sizeof(Slot) + 8);
    uint32_t key;
    expect(outboard_net_register(net, data, 2 * slots * sizeof(Slot) + 8, 15, &key));
    Work work = {};
    work.mine = (Slot *)data;
    work.theirs = work.mine + slots;
    work.sum = (uint64_t *)(work.theirs + slots);
    work.wrong = memory<uint64_t>(1);
    work.rounds = (uint32_t)std::atoi(values[2]);
#if DOCA_GPUNETIO_VERBS_MKEY_SWAPPED == 1
    work.key = htobe32(key), work.nobodys = htobe32(key + 0x100000);
#else
    work.key = key, work.nobodys = key + 0x100000;
#endif
    auto plain = [&] { return pair_of(connected(net, log_blocks, OUTBOARD_NET_PLAIN)); };
    uint64_t sum = 0;
    for (uint64_t i = 0; i < threads; ++i) sum += (i + 2) * work.rounds;

    work.pair = plain();
    post<GPU><<<(threads + 31) / 32, threads < 32 ? threads : 32>>>(work);
    finish("gpu", work, sum);
    work.pair = plain();
    post<BLOCK><<<1, threads>>>(work);
    finish("block", work, sum);
    work.pair = plain();
    post<ONE><<<1, 1>>>(work);
    finish("one", work, 2 * (uint64_t)work.rounds);
    work.pair = plain();
    post_by_warp<<<1, 32>>>(work);
    finish("warp", work, 0);
    work.pair = plain();
    fail<<<1, 1>>>(work);
    finish("errors", work, 0);
    work.pair = pair_of(connected(net, LOG_COLLAPSED, 0));
    poll_collapsed<<<1, 1>>>(work);
    finish("collapsed", work, 0);
    compare_entries(net, work.wrong);
    outboard_net_close(net);
    return 0;
}

// Two processes, whose kernels put and signal in turns by the provider of OUTBOARD_NET_PROVIDER: one line of JSON with the
// nanoseconds of one way.
//   turns RANK IP:PORT BYTES ROUNDS gpu|host      0 listens; both use the first GPU, and memory of it or of the host
#include "case.cuh"
#include "outboard/net.cuh"

using namespace outboard::net;

constexpr uint64_t PATIENCE_NS = 20000000000ull;

struct Player {
    outboard_net_queue queue;
    Local from;
    Remote to, flag;
    const uint64_t *mine;
    uint64_t *out;  // nanoseconds, failure
    int rank;
};

#define DO(call) \
    if ((call) != 0) fail(#call, outboard_net_message())

__global__ void play(const Player *given, uint64_t bytes, uint64_t rounds)
{
    const Player side = *given;
    QueueOf<Providers::rings> queue(side.queue);
    uint64_t ticket, began = 0;
    Failure failure{};
    side.out[1] = 1;
    for (uint64_t round = 1; round <= rounds + WARM_UP; ++round) {
        if (round == WARM_UP + 1) began = detail::now_ns();
        if (side.rank != 0 && !poll_slot(side.mine, round, PATIENCE_NS)) return;
        failure = queue.put_signal(side.to, side.from, bytes, side.flag, round, PATIENCE_NS, &ticket);
        if (failure) {
            side.out[1] = 2 + failure.syndrome;
            return;
        }
        if (side.rank == 0 && !poll_slot(side.mine, round, PATIENCE_NS)) return;
    }
    side.out[0] = detail::now_ns() - began;
    // The other's adapter has answered before this process ends; that it has ended is no failure.
    queue.flush(PATIENCE_NS);
    side.out[1] = 0;
}

static void *allocated(size_t bytes, bool of_gpu)
{
    void *at = nullptr;
    // Adapters take whole pages.
    bytes = (bytes + 65535) / 65536 * 65536;
    if (of_gpu) expect(cudaMalloc(&at, bytes));
    else expect(cudaHostAlloc(&at, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
    expect(cudaMemset(at, 0, bytes));
    expect(cudaDeviceSynchronize());
    return at;
}

int main(int count, char **values)
{
    if (count != 6) {
        std::printf("turns RANK IP:PORT BYTES ROUNDS gpu|host\n");
        return 2;
    }
    int rank = std::atoi(values[1]);
    uint64_t bytes = std::strtoull(values[3], nullptr, 10), rounds = std::strtoull(values[4], nullptr, 10);
    bool of_gpu = std::strcmp(values[5], "gpu") == 0;
    uint64_t at = inbox(bytes), all = (at + bytes + 65535) / 65536 * 65536;
    char *memory = (char *)allocated(all, of_gpu);
    expect(cudaMemset(memory + OUTBOX, rank + 1, bytes));
    expect(cudaDeviceSynchronize());
    outboard_net *net = nullptr;
    DO(outboard_net_open(nullptr, &net));
    outboard_net_queue_options shape = {6, 0, 1, OUTBOARD_NET_EXCLUSIVE, 0};
    shape.counters = (uint64_t)allocated(outboard_net_counters_bytes(&shape), true);
    uint64_t size = outboard_net_queue_bytes(&shape);
    auto *side = (Player *)allocated(sizeof(Player), false);
    DO(outboard_net_queue_create(net, allocated(size, false), size, &shape, &side->queue));
    outboard_net_window mine = {(uint64_t)memory, all, 0, 0}, theirs;
    DO(outboard_net_register(net, memory, all, 15, &mine.key));
    DO(outboard_net_meet(net, side->queue.qpn, values[2], rank == 0 ? OUTBOARD_NET_LISTENS : 0, 30000, &mine, &theirs));
    side->from = Local{(uint64_t)memory + OUTBOX, mine.key};
    side->to = Remote{theirs.address + at, theirs.key};
    side->flag = Remote{theirs.address, theirs.key};
    side->mine = (const uint64_t *)memory;
    side->out = (uint64_t *)allocated(16, false);
    side->rank = rank;
    play<<<1, 1>>>(side, bytes, rounds);
    expect(cudaGetLastError());
    expect(cudaDeviceSynchronize());
    bool right = has_come(memory + at, 2 - rank, bytes) && side->out[1] == 0;
    std::printf("{\"bytes\": %llu, \"rounds\": %llu, \"one_way_ns\": %.1f, \"right\": %s, \"syndrome\": %llu}\n", (unsigned long long)bytes,
                (unsigned long long)rounds, (double)side->out[0] / (2.0 * (double)rounds), right ? "true" : "false",
                (unsigned long long)side->out[1]);
    std::fflush(stdout);
    outboard_net_close(net);
    return right ? 0 : 1;
}

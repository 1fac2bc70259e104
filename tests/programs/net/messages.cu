// Groups of threads of a kernel, or threads of the CPU, send messages by one queue to others that take them from
// another: sends, sends with a number, and writes with a number, checked and counted one by one. Then a warp waits for
// many flags, and for a sum and a counter that pass by what it waits for.
//   messages SCOPE SENDERS RECEIVERS ROUNDS LOG_BLOCKS LOG_RECEIVES SIGNAL_EVERY FLAGS LOSS_PPM SEED
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "outboard/net.cuh"

using namespace outboard::net;

constexpr uint64_t PATIENCE_NS = 60000000000ull;
constexpr uint32_t WORDS = 40;   // of the longest message
constexpr uint32_t WINDOW = 4;   // messages of a sender that are not known to have arrived
constexpr uint32_t FLAGS = 70;   // that one warp looks at: three times around
constexpr uint32_t STEPS = 8;    // of a sum, 3 each, and of a counter, which nobody answers
// Entries that set them: a warp posts one for each of its threads.
#ifdef __CUDACC__
constexpr uint32_t SETS = (FLAGS + 31) / 32 * 32 + 2 * STEPS;
#else
constexpr uint32_t SETS = FLAGS + 2 * STEPS;
#endif

struct Message {
    uint64_t words[WORDS];
};
struct Shared {
    uint64_t claimed, wrong, flags[FLAGS * 2], seen[FLAGS], flagged, sum, counter;
};

struct Work {
    outboard_net_queue from, to;
    Message *sources, *windows, *receives;  // WINDOW a sender; as many; one a receive
    uint64_t *counts;                       // how often a message was taken
    Shared *shared;
    uint32_t key, rounds, senders, receivers;
};

// Threads that act as one: their number in the group, and the group's size.
struct Group {
    uint32_t number, rank, size;
};

template <Scope scope> OUTBOARD_NET_CALL void together()
{
#ifdef __CUDA_ARCH__
    if (scope == Scope::warp) __syncwarp();
    if (scope == Scope::block) __syncthreads();
#endif
}

OUTBOARD_NET_CALL void complain(const Work &work, uint64_t step, Failure failure)
{
    detail::compare_exchange(&work.shared->wrong, 0, step | (uint64_t)failure.syndrome << 8 | (uint64_t)failure.cause << 16 |
                                                         (uint64_t)failure.side << 20 | failure.entry << 24);
}

#define TRY(step, call) \
    do { \
        Failure failure = (call); \
        if (failure) return complain(work, step, failure); \
    } while (0)
#define CHECK(step, what) \
    if (!(what)) return complain(work, step, Failure{})

OUTBOARD_NET_CALL uint32_t length(uint32_t number) { return number % 9 == 0 ? 0 : 1 + number * 7 % WORDS; }
OUTBOARD_NET_CALL uint64_t word(uint32_t number, uint32_t i) { return (uint64_t)number << 32 | (i * 2654435761u + number); }

// Message `number` of all: a send carries its number in the first word, the others as their immediate.
template <Scope scope> OUTBOARD_NET_CALL void send(const Work &work, Group group)
{
    Queue queue(work.from);
    uint64_t tickets[WINDOW] = {};
    for (uint32_t round = 0; round < work.rounds; ++round) {
        uint32_t number = group.number * work.rounds + round, words = length(number), at = group.number * WINDOW + round % WINDOW;
        if (round >= WINDOW) {
            TRY(1, queue.wait<scope>(tickets[round % WINDOW], PATIENCE_NS));
            CHECK(2, poll_slot(&work.counts[number - WINDOW], 1, PATIENCE_NS));
        }
        Message *source = work.sources + at;
        bool plain = number % 3 == 0 && words > 0;
        for (uint32_t i = group.rank; i < words; i += group.size) detail::store(&source->words[i], word(number, i));
        Local from{(uint64_t)source, work.key};
        uint64_t *ticket = &tickets[round % WINDOW];
        if (plain) {
            TRY(3, queue.send<scope>(from, words * 8, PATIENCE_NS, ticket));
        } else if (number % 3 == 1) {
            TRY(4, queue.send_imm<scope>(from, words * 8, number, PATIENCE_NS, ticket));
        } else {
            Remote window{(uint64_t)(work.windows + at), work.key};
            TRY(5, queue.put_imm<scope>(window, from, words * 8, number, PATIENCE_NS, ticket));
        }
    }
    TRY(6, queue.flush<scope>(PATIENCE_NS));
}

template <Scope scope> OUTBOARD_NET_CALL void receive(const Work &work, Group group)
{
    Queue queue(work.to);
    uint32_t total = work.senders * work.rounds, mask = (1u << work.to.log_receives) - 1;
    uint64_t ticket = 0;
    // The host has posted the first half.
    if (group.number == 0)
        for (uint32_t i = (mask + 1) / 2; i <= mask; ++i) {
            TRY(11, queue.post_receive<scope>(Local{(uint64_t)(work.receives + i), work.key}, sizeof(Message), PATIENCE_NS, &ticket));
            CHECK(12, ticket >= (mask + 1) / 2);
        }
    for (;;) {
        together<scope>();
        uint64_t claim = 0;
        if (group.rank == 0) {
            do claim = detail::load(&work.shared->claimed);
            while (detail::compare_exchange(&work.shared->claimed, claim, claim + 1) != claim);
        }
        detail::share<scope>(claim, group.rank == 0);
        if (claim >= total) return;
        Received received;
        TRY(13, queue.receive<scope>(PATIENCE_NS, &received));
        Message *into = (Message *)received.address;
        uint32_t number = received.kind == Arrival::send ? (uint32_t)(detail::load(into->words) >> 32) : received.imm;
        CHECK(14, number < total);
        uint32_t words = length(number);
        bool plain = number % 3 == 0 && words > 0;
        CHECK(15, received.bytes == words * 8);
        CHECK(16, received.kind == (plain ? Arrival::send : number % 3 == 1 ? Arrival::send_imm : Arrival::write_imm));
        if (received.kind == Arrival::write_imm) into = work.windows + number / work.rounds * WINDOW + number % work.rounds % WINDOW;
        for (uint32_t i = group.rank; i < words; i += group.size) CHECK(17, detail::load(&into->words[i]) == word(number, i));
        together<scope>();
        if (group.rank == 0) {
            detail::fence();
            CHECK(18, detail::compare_exchange(&work.counts[number], 0, 1) == 0);
        }
        Local again{received.address, work.key};
        TRY(19, queue.post_receive<scope>(again, sizeof(Message), PATIENCE_NS, &ticket));
    }
}

template <Scope scope> OUTBOARD_NET_CALL void run(const Work &work, Group group)
{
    if (group.number < work.senders) {
        send<scope>(work, group);
    } else {
        group.number -= work.senders;
        receive<scope>(work, group);
    }
}

// Every flag is set by the adapter, in an order of its own: one by each thread of a warp at a time. Threads that have none
// left put nothing.
OUTBOARD_NET_CALL void set_flags(const Work &work)
{
    Queue queue(work.from);
    uint64_t ticket = 0;
    uint32_t lane = (uint32_t)detail::lane(), lanes = (uint32_t)detail::lanes();
    for (uint32_t first = 0; first < FLAGS; first += lanes) {
        uint32_t i = first + lane, flag = i * 37 % FLAGS;
        Remote to{(uint64_t)&work.shared->flags[flag * 2], work.key};
        if (first + lanes <= FLAGS) {
            TRY(21, queue.put_value_each(to, 1000 + flag, PATIENCE_NS, &ticket));
            continue;
        }
        uint64_t *source = work.sources->words + lane;
        detail::store(source, 1000 + flag);
        TRY(22, queue.put_each(to, Local{(uint64_t)source, work.key}, i < FLAGS ? 8 : 0, PATIENCE_NS, &ticket));
    }
    for (uint32_t step = 1; step <= STEPS; ++step) {
        TRY(27, queue.signal_add<Scope::warp>(Remote{(uint64_t)&work.shared->sum, work.key}, 3, PATIENCE_NS, &ticket));
        Remote counter{(uint64_t)&work.shared->counter, work.key};
        TRY(28, queue.signal_set<Scope::warp>(counter, step, PATIENCE_NS, &ticket));
    }
    TRY(26, queue.wait<Scope::warp>(ticket, PATIENCE_NS));
}

OUTBOARD_NET_CALL void take_flags(const Work &work)
{
    uint64_t found = 0;
    int last = FLAGS - 1;
    for (uint32_t i = 0; i < FLAGS; ++i) {
        last = poll_any(work.shared->flags, FLAGS, 2, work.shared->seen, last + 1, PATIENCE_NS);
        CHECK(23, last >= 0 && last < (int)FLAGS);
        CHECK(24, detail::load(&work.shared->seen[last]) == 1000u + last);
        found += last + 1;
    }
    CHECK(25, poll_any(work.shared->flags, FLAGS, 2, work.shared->seen, 0, 1000000) == -1);
    // The sum is never 10, and the counter may be beyond a step before anybody looks for it.
    for (uint32_t step = 1; step <= STEPS; ++step) {
        CHECK(29, poll_slot_at_least(&work.shared->counter, step, PATIENCE_NS));
        CHECK(30, detail::load(&work.shared->sum) >= 3 * step);
    }
    CHECK(31, poll_slot_at_least(&work.shared->sum, 10, PATIENCE_NS));
    CHECK(32, !poll_slot(&work.shared->sum, 10, 1000000));
    CHECK(33, !poll_slot_at_least(&work.shared->sum, 3 * STEPS + 1, 1000000));
    CHECK(34, poll_slot(&work.shared->sum, 3 * STEPS, PATIENCE_NS));
    detail::store(&work.shared->flagged, found);
}

static void *memory(size_t bytes);

#ifdef __CUDACC__
#include <cuda_runtime.h>

template <Scope scope> __global__ void kernel(Work work)
{
    uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t size = scope == Scope::thread ? 1 : scope == Scope::warp ? 32 : blockDim.x;
    run<scope>(work, Group{thread / size, thread % size, size});
}

__global__ void flags(Work work)
{
    if (threadIdx.x < 32) take_flags(work);
    if (threadIdx.x >= 32) set_flags(work);
}

static void expect(cudaError_t status)
{
    if (status == cudaSuccess) return;
    std::printf("%s\n", cudaGetErrorString(status));
    std::exit(1);
}

static void *memory(size_t bytes)
{
    void *at = nullptr;
    expect(cudaHostAlloc(&at, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
    std::memset(at, 0, bytes);
    return at;
}

static void go(const Work &work, const char *scope)
{
    uint32_t groups = work.senders + work.receivers;
    switch (scope[0]) {
    case 't': kernel<Scope::thread><<<groups / 32, 32>>>(work); break;
    case 'w': kernel<Scope::warp><<<1, groups * 32>>>(work); break;
    default: kernel<Scope::block><<<groups, 64>>>(work);
    }
    expect(cudaDeviceSynchronize());
    flags<<<1, 64>>>(work);
    expect(cudaDeviceSynchronize());
}
#else
static void *memory(size_t bytes)
{
    void *at = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    std::memset(at, 0, bytes);
    return at;
}

static void go(const Work &work, const char *)
{
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < work.senders + work.receivers; ++i) threads.emplace_back([=] { run<Scope::warp>(work, Group{i, 0, 1}); });
    for (std::thread &thread : threads) thread.join();
    std::thread setter([=] { set_flags(work); });
    take_flags(work);
    setter.join();
}
#endif

#define DO(call) \
    if ((call) != 0) { \
        std::printf("%s: %s\n", #call, outboard_net_message()); \
        return 1; \
    }

int main(int count, char **values)
{
    if (count != 11) return 2;
    uint32_t numbers[11];
    for (int i = 2; i < count; ++i) numbers[i] = (uint32_t)std::atoi(values[i]);
    Work work = {};
    work.senders = numbers[2], work.receivers = numbers[3], work.rounds = numbers[4];
    outboard_net_queue_options shape = {numbers[5], numbers[6], numbers[7], numbers[8] | OUTBOARD_NET_PATIENT, 0};
    outboard_net_options options = {};
    options.loss_ppm = numbers[9];
    options.seed = numbers[10];
    outboard_net *net = nullptr;
    DO(outboard_net_open(&options, &net));
    uint64_t bytes = outboard_net_queue_bytes(&shape);
    DO(outboard_net_queue_create(net, memory(bytes), bytes, &shape, &work.from));
    DO(outboard_net_queue_create(net, memory(bytes), bytes, &shape, &work.to));
    uint32_t total = work.senders * work.rounds, receives = 1u << shape.log_receives;
    size_t all = (work.senders * WINDOW * 2 + receives) * sizeof(Message) + sizeof(Shared);
    work.sources = (Message *)memory(all);
    work.windows = work.sources + work.senders * WINDOW;
    work.receives = work.windows + work.senders * WINDOW;
    work.shared = (Shared *)(work.receives + receives);
    work.counts = (uint64_t *)memory(total * 8);
    DO(outboard_net_register(net, work.sources, all, 15, &work.key));
    Queue to(work.to);
    uint64_t ticket = 0;
    for (uint32_t i = 0; i < receives / 2; ++i)
        if (to.post_receive(Local{(uint64_t)(work.receives + i), work.key}, sizeof(Message), PATIENCE_NS, &ticket) || ticket != i) return 3;
    DO(outboard_net_connect(net, work.from.qpn, work.to.qpn));
    go(work, values[1]);
    outboard_net_status status;
    DO(outboard_net_status_of(net, work.from.qpn, &status));
    const uint64_t *counters = (const uint64_t *)work.from.counters;
    uint64_t taken = 0, wrong = work.shared->wrong, entries = counters[detail::RESERVED], completions = counters[detail::CONSUMED];
    for (uint32_t i = 0; i < total; ++i) taken += work.counts[i];
    uint64_t nops = entries == 0 ? 0 : entries - total - SETS, by_count = entries / work.from.signal_every;
    // Threads of nvlink have no entries that anybody could count.
    bool is_counted = (work.from.flags & OUTBOARD_NET_DIRECT) == 0;
    bool failed = wrong != 0 || taken != total || status.flushed != 0 || (is_counted && status.succeeded != entries);
    if (wrong) std::printf("step %d, syndrome %#x, cause %d, side %d, entry %llu\n", (int)(wrong & 0xff), (unsigned)(wrong >> 8 & 0xff), (int)(wrong >> 16 & 15), (int)(wrong >> 20 & 1), (unsigned long long)(wrong >> 24));
    // Completions of a ring are counted one by one: those by count, and those that waits have asked for.
    if (is_counted && (shape.flags & OUTBOARD_NET_PLAIN)) failed |= completions < by_count || completions > by_count + nops;
    if (is_counted && work.from.signal_every == 1 && nops != 0) failed = true;
    if (work.shared->flagged != FLAGS * (FLAGS + 1) / 2 || (status.retries > 0) < (options.loss_ppm > 0)) failed = true;
    std::printf("%llu of %u messages, %llu entries, %llu nops, %llu completions, %llu sent again: %s\n", (unsigned long long)taken, total,
                (unsigned long long)entries, (unsigned long long)nops, (unsigned long long)completions, (unsigned long long)status.retries, failed ? "WRONG" : "right");
    outboard_net_close(net);
    return failed;
}

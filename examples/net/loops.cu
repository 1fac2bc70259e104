// A server whose GPU answers requests, in seven loops, and its client, in two processes that meet at a loopback address.
//   loops serve LOOP 127.0.0.1:PORT [REPORT_MS]     until SIGINT or SIGTERM, or until the peer is gone
//   loops ask 127.0.0.1:PORT REQUESTS [STAY_MS]     needs no GPU; stays so long afterwards
//   loops alone LOOP REQUESTS [IDLE_MS [EVERY [synchronise]]]
//                                                   asks itself, in one process over one adapter, and is idle afterwards;
//                                                   one of EVERY entries has a completion; the CPU waits for the GPU in
//                                                   cudaStreamSynchronize, in place of a sleep
// LOOP is one of
//   a  the CPU receives, copies, launches, copies and posts       b  the GPU receives and posts, the CPU launches
//   c  the same as a graph, which the CPU launches                d  a graph that launches itself again
//   e  a graph with a WHILE node                                  f  a kernel that stays and fires a graph for each request
//   g  a kernel that stays
#include <cuda_runtime.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "outboard/loops.cuh"
#include "outboard/net.cuh"

using namespace outboard::net;
namespace loops = outboard::loops;

constexpr uint64_t PATIENCE_NS = 10000000000ull;
// How long a kernel waits for a request before its loop goes round.
constexpr uint64_t ROUND_NS = 100000000;
// How long a server hears nothing before it asks whether its peer is there.
constexpr uint64_t SILENCE_NS = 1000000000;
#ifndef LOOPS_WORDS
#define LOOPS_WORDS 512
#endif
constexpr int WORDS = LOOPS_WORDS, STEPS = (WORDS + 31) / 32;
// Rounds that the CPU launches before it sleeps.
constexpr unsigned AHEAD = 8;
#ifdef LOOPS_TIMED
constexpr uint64_t ROUNDS_TIMED = 4096;
constexpr int MARKS = 8;
#endif

// A message: words, their sum, and behind them its number, which is written last. The sum has the number in it: who reads all
// at once sees by it whether they are of one message.
struct Message {
    uint64_t words[WORDS], sum, number;
};

// What rounds leave for those after them, in memory of who posts.
struct State {
    uint64_t found, fired, served, rounds, heard_at;
};

// The way to the other. Kernels have it as an argument: each look at host memory takes a microsecond.
struct Way {
    outboard_net_queue queue;
    outboard_net_window there;
    State *state;
    uint32_t key;
};

// What a process offers to the other, and what it needs to answer.
struct Party {
    loops::Control control;
    Message inbox, outbox;
    Failure failure;
    Way way;
    State of_cpu;
#ifdef LOOPS_TIMED
    uint64_t marks[ROUNDS_TIMED][MARKS];
#endif
};

// With LOOPS_TIMED, notes the time of a step of a request, and prints the steps' medians at the end.
OUTBOARD_NET_CALL void mark(Party *side, uint64_t number, int step)
{
#ifdef LOOPS_TIMED
    if (number < ROUNDS_TIMED) detail::store(&side->marks[number][step], detail::now_ns());
#endif
    (void)side, (void)number, (void)step;
}

OUTBOARD_NET_CALL uint64_t asked(uint64_t number, int i) { return number << 20 | (uint64_t)i; }
OUTBOARD_NET_CALL uint64_t answered(uint64_t word) { return word * 3 + 1; }
OUTBOARD_NET_CALL uint64_t checked(uint64_t sum, uint64_t number) { return sum + number * 0x9e3779b97f4a7c15u; }

OUTBOARD_NET_CALL bool is_there(const Party *side, uint64_t number)
{
    return detail::load_acquire(&side->inbox.number) == number;
}

// Posts the outbox and its number, for which the doorbell rings once. The number travels in its entry.
template <Scope scope> OUTBOARD_NET_CALL Failure post(Queue &queue, Party *side, const Way &way, uint64_t number, uint64_t *ticket)
{
    constexpr uint64_t BYTES = WORDS * 8 + 8;
    Remote to{way.there.address, way.there.key}, flag{to.address + BYTES, to.key};
    return queue.put_signal<scope>(to, Local{(uint64_t)&side->outbox, way.key}, BYTES, flag, number, PATIENCE_NS, ticket);
}

// Notes that request `number` is answered, or why it is not. `release` orders it behind the answer, for who asks for that.
OUTBOARD_NET_CALL void note(Party *side, const Way &way, const Failure &failure, uint64_t number, bool release)
{
    way.state->heard_at = detail::now_ns();
    if (failure) {
        side->failure = failure;
        return detail::store_release(&side->control.failed, 1);
    }
    way.state->served = number;
    if (release) detail::store_release(&side->control.served, number);
    else detail::store(&side->control.served, number);
}

// After a silence, writes nothing to the peer, which fails if it is gone.
OUTBOARD_NET_CALL void beat(Party *side, const Way &way)
{
    if (detail::now_ns() - way.state->heard_at < SILENCE_NS) return;
    Queue queue(way.queue);
    uint64_t ticket;
    Failure failure = queue.put(Remote{way.there.address, way.there.key}, Local{0, 0}, 0, PATIENCE_NS, &ticket);
    if (!failure) failure = queue.wait(ticket, PATIENCE_NS);
    if (failure) return note(side, way, failure, 0, true);
    way.state->heard_at = detail::now_ns();
}

OUTBOARD_NET_CALL void count_round(Party *side, const Way &way) { detail::store(&side->control.rounds, ++way.state->rounds); }

enum class Seen : uint32_t { nothing, request, end };

// Waits for request `number`, and until all before it are answered: a while, or until the loop is to end.
OUTBOARD_NET_CALL Seen waits(const Party *side, uint64_t number)
{
    const loops::Control &control = side->control;
    detail::Deadline round(ROUND_NS);
    do {
        // All are on their way at once, so that a look takes one way to the host.
        uint64_t stop = detail::load(&control.stop), failed = detail::load(&control.failed), served = detail::load(&control.served);
        if (is_there(side, number) && served + 1 == number) return Seen::request;
        if (stop != 0 || failed != 0) return Seen::end;
    } while (!round.passed());
    return Seen::nothing;
}

// Words of a request that are small enough to be seen by the look for it: lanes of a warp have words, sum, number, and the
// last two whether the loop is to end.
constexpr bool IS_SMALL = WORDS + 4 <= 32;
constexpr int NUMBER = IS_SMALL ? WORDS + 1 : 0, STOP = 30, FAILED = 31;

// One look of a warp at all that ends its waiting, in one way to the host.
__device__ Seen look(const Party *side, uint64_t number, uint64_t *word)
{
    constexpr unsigned ALL = 0xffffffffu;
    int lane = (int)threadIdx.x;
    const uint64_t *at = lane == STOP ? &side->control.stop : lane == FAILED ? &side->control.failed : &side->inbox.number;
    if (IS_SMALL && lane < NUMBER) at = (const uint64_t *)&side->inbox + lane;
    *word = detail::load_acquire(at);
    uint64_t sum = lane < WORDS ? *word : 0;
    bool is_it = __shfl_sync(ALL, *word, NUMBER) == number;
    if (IS_SMALL && is_it) {
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(ALL, sum, step);
        is_it = checked(sum, number) == __shfl_sync(ALL, *word, NUMBER - 1);
    }
    // Also orders what one has acquired before what the others read.
    __syncwarp();
    if (is_it) return Seen::request;
    return __any_sync(ALL, lane >= STOP && *word != 0) ? Seen::end : Seen::nothing;
}

// Looks for a while. Counts the looks.
__device__ Seen looks(const Party *side, uint64_t number, uint64_t *word, uint32_t *count)
{
    detail::Deadline round(ROUND_NS);
    for (*count = 1;; ++*count) {
        Seen seen = look(side, number, word);
        if (seen != Seen::nothing) return seen;
        // The clock takes a tenth of a look.
        if (*count % 16 == 0 && __any_sync(0xffffffffu, round.passed())) return seen;
    }
}

// A rest between an answer and the first look for the next request. A look takes a microsecond, and sees what was there in
// the midst of it: of a client that asks when it has its answer a request came just after a look, each time, or just before.
// So the rest becomes longer while the first look comes too early, and shorter while it does not.
class Rest {
public:
    __device__ void rest() const
    {
        if (ns_ != 0) __nanosleep(ns_);
    }

    __device__ void learn(uint32_t looks)
    {
        if (looks == 1) ns_ -= ns_ < SHORTER_NS ? ns_ : SHORTER_NS;
        // Nobody asks so soon: the next looks are soon enough.
        else ns_ = looks > LOOKS_MAX || ns_ > NS_MAX ? 0 : ns_ + LONGER_NS;
    }

private:
    static constexpr uint32_t SHORTER_NS = 24, LONGER_NS = 72, NS_MAX = 4000, LOOKS_MAX = 4;
    uint32_t ns_ = 0;
};

// Answers by the threads of a warp with the words that it has.
__device__ void compute_small(uint64_t word, uint64_t number, Message &answer)
{
    int lane = (int)threadIdx.x;
    uint64_t sum = lane < WORDS ? answered(word) : 0;
    if (lane < WORDS) answer.words[lane] = sum;
    for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
    if (lane == 0) answer.sum = checked(sum, number);
    __syncwarp();
}

// Answers by the threads of a warp. All words are on their way at once.
__device__ void compute(const Message &request, uint64_t number, Message &answer)
{
    uint64_t sum = 0, words[STEPS];
    int lane = (int)threadIdx.x;
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        int i = step * 32 + lane;
        words[step] = i < WORDS ? detail::load(&request.words[i]) : 0;
    }
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        int i = step * 32 + lane;
        if (i >= WORDS) continue;
        uint64_t word = answered(words[step]);
        answer.words[i] = word;
        sum += word;
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
    if (lane == 0) answer.sum = checked(sum, number);
    __syncwarp();
}

__global__ void wait_for_request(Party *side, Way way)
{
    uint64_t number = way.state->served + 1;
    mark(side, number, 0);
    way.state->found = waits(side, number) == Seen::request;
    mark(side, number, 1);
    count_round(side, way);
}

__global__ void answer(Party *side, Way way)
{
    uint64_t number = way.state->served + 1;
    if (threadIdx.x == 0) mark(side, number, 2);
    if (way.state->found) compute(side->inbox, number, side->outbox);
    if (threadIdx.x == 0) mark(side, number, 3);
}

// Does not wait until the answer has left: the next request comes after it.
__global__ void reply(Party *side, Way way)
{
    if (!way.state->found) return beat(side, way);
    way.state->found = 0;
    uint64_t number = way.state->served + 1, ticket;
    mark(side, number, 4);
    Queue queue(way.queue);
    Failure failure = post<Scope::thread>(queue, side, way, number, &ticket);
    mark(side, number, 5);
    note(side, way, failure, number, true);
    mark(side, number, 6);
}

__global__ void answer_copy(const Message *request, Message *answer) { compute(*request, request->number, *answer); }

// One kernel for all requests. More warps that look would see them no sooner: looks at one line that are on their way at once
// are one.
__global__ void stay(Party *side, Way way)
{
    uint64_t number = way.state->served + 1;
    Queue queue(way.queue);
    Rest rest;
    for (;;) {
        uint64_t word, ticket;
        uint32_t count;
        rest.rest();
        Seen seen = looks(side, number, &word, &count);
        if (seen == Seen::end) return;
        rest.learn(count);
        if (seen == Seen::nothing) {
            if (threadIdx.x == 0) beat(side, way);
        } else {
            if (threadIdx.x == 0) mark(side, number, 1);
            if (IS_SMALL) {
                compute_small(word, number, side->outbox);
            } else {
                compute(side->inbox, number, side->outbox);
            }
            if (threadIdx.x == 0) mark(side, number, 2);
            Failure failure = post<Scope::warp>(queue, side, way, number, &ticket);
            if (threadIdx.x == 0) mark(side, number, 3);
            if (threadIdx.x == 0) note(side, way, failure, number, false);
            if (threadIdx.x == 0) mark(side, number, 4);
            ++number;
        }
        if (threadIdx.x == 0) count_round(side, way);
        __syncwarp();
    }
}

// For a kernel that fires a graph for each request: not twice for one.
struct Waits {
    Party *side;
    Way way;
    __device__ bool operator()(loops::Control *) const
    {
        bool found = waits(side, way.state->fired + 1) == Seen::request;
        count_round(side, way);
        if (!found) {
            // The queue is for one at a time: not while a graph may still post.
            if (detail::load_acquire(&side->control.served) == way.state->fired) beat(side, way);
            return false;
        }
        ++way.state->fired;
        way.state->found = 1;
        // The graph's kernels see it.
        __threadfence();
        return true;
    }
};

// Whether the CPU waits for the GPU in a call of CUDA's, which looks all the time.
static bool is_synchronous = false;
static volatile sig_atomic_t stop = 0;
static volatile uint64_t stopped_at = 0;
static loops::Bell *bell = nullptr;

static void on_signal(int)
{
    if (!stop) stopped_at = loops::monotonic_ns();
    stop = 1;
    bell->ring();
}

static void round_of(Party *side, cudaStream_t stream)
{
    wait_for_request<<<1, 1, 0, stream>>>(side, side->way);
    answer<<<1, 32, 0, stream>>>(side, side->way);
    reply<<<1, 1, 0, stream>>>(side, side->way);
}

static cudaError_t start_and_wait(cudaStream_t stream, const loops::Watch &watch, loops::Control *control,
                           const std::function<cudaError_t()> &start)
{
    if (!is_synchronous) return loops::started(stream, watch, control, start);
    cudaError_t status = start();
    return status != cudaSuccess ? status : cudaStreamSynchronize(stream);
}

static cudaError_t launch_and_wait(cudaStream_t stream, const loops::Watch &watch, loops::Control *control,
                            const std::function<cudaError_t()> &round)
{
    if (!is_synchronous) return loops::launched(stream, watch, control, AHEAD, round);
    cudaError_t status = cudaSuccess;
    while (status == cudaSuccess && loops::goes_on(control)) {
        for (unsigned i = 0; status == cudaSuccess && i < AHEAD; ++i) status = round();
        if (status == cudaSuccess) status = cudaStreamSynchronize(stream);
    }
    return status;
}

static cudaError_t cpu_loop(Party *side, cudaStream_t stream, const loops::Watch &watch)
{
    Message *request, *computed;
    cudaError_t status = cudaMalloc(&request, sizeof *request);
    if (status == cudaSuccess) status = cudaMalloc(&computed, sizeof *computed);
    loops::Reports reports(watch);
    while (status == cudaSuccess && loops::goes_on(&side->control)) {
        uint64_t number = side->control.served + 1;
        auto is_here = [&] {
            beat(side, side->way);
            return is_there(side, number) || !loops::goes_on(&side->control);
        };
        if (!loops::looked_for(watch, reports, is_here) || !loops::goes_on(&side->control)) break;
        ++side->control.rounds;
        status = cudaMemcpyAsync(request, &side->inbox, sizeof *request, cudaMemcpyHostToDevice, stream);
        if (status != cudaSuccess) break;
        answer_copy<<<1, 32, 0, stream>>>(request, computed);
        status = cudaGetLastError();
        if (status == cudaSuccess) status = cudaMemcpyAsync(&side->outbox, computed, WORDS * 8 + 8, cudaMemcpyDeviceToHost, stream);
        if (status == cudaSuccess) status = cudaStreamSynchronize(stream);
        if (status != cudaSuccess) break;
        Queue queue(side->way.queue);
        uint64_t ticket;
        note(side, side->way, post<Scope::thread>(queue, side, side->way, number, &ticket), number, true);
    }
    cudaFree(request);
    cudaFree(computed);
    return status;
}

static cudaError_t fired_loop(Party *side, cudaStream_t stream, const loops::Watch &watch)
{
    loops::Control *control = &side->control;
    cudaGraphExec_t graph;
    loops::Spares spares;
    auto request = [=](cudaStream_t on) {
        answer<<<1, 32, 0, on>>>(side, side->way);
        reply<<<1, 1, 0, on>>>(side, side->way);
    };
    cudaError_t status = loops::firing(&graph, &spares, stream, control, Waits{side, side->way}, request);
    if (status != cudaSuccess) return status;
    return start_and_wait(stream, watch, control, [&] { return cudaGraphLaunch(graph, stream); });
}

static cudaError_t serve(char loop, Party *side, cudaStream_t stream, const loops::Watch &watch)
{
    loops::Control *control = &side->control;
    auto round = [=](cudaStream_t on) { round_of(side, on); };
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    auto launch = [&] { return cudaGraphLaunch(executable, stream); };
    cudaError_t status = cudaSuccess;
    switch (loop) {
    case 'a': return cpu_loop(side, stream, watch);
    case 'b':
        return launch_and_wait(stream, watch, control, [&] {
            round_of(side, stream);
            return cudaGetLastError();
        });
    case 'c':
        status = loops::recorded(&graph, round);
        if (status == cudaSuccess) status = cudaGraphInstantiate(&executable, graph, 0);
        return status != cudaSuccess ? status : launch_and_wait(stream, watch, control, launch);
    case 'd':
        status = loops::relaunching(&executable, control, round);
        return status != cudaSuccess ? status : start_and_wait(stream, watch, control, launch);
    case 'e':
        status = loops::repeating(&executable, control, round);
        return status != cudaSuccess ? status : start_and_wait(stream, watch, control, launch);
    case 'f': return fired_loop(side, stream, watch);
    case 'g':
        return start_and_wait(stream, watch, control, [&] {
            stay<<<1, 32, 0, stream>>>(side, side->way);
            return cudaGetLastError();
        });
    default: return cudaErrorInvalidValue;
    }
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

// Makes the queue of a party, and what it offers to the other.
static int offer(Party *side, outboard_net *net, void *memory, const outboard_net_queue_options &options, outboard_net_window *mine)
{
    NET(outboard_net_queue_create(net, memory, outboard_net_queue_bytes(&options), &options, &side->way.queue));
    *mine = {(uint64_t)&side->inbox, sizeof side->inbox, 0, 0};
    NET(outboard_net_register(net, &side->inbox, sizeof side->inbox, OUTBOARD_NET_REMOTE_WRITE, &mine->key));
    NET(outboard_net_register(net, &side->outbox, sizeof side->outbox, 0, &side->way.key));
    return 0;
}

static int meet(Party *side, outboard_net *net, void *memory, const outboard_net_queue_options &options, const char *address,
                bool listens)
{
    outboard_net_window mine;
    if (offer(side, net, memory, options, &mine)) return 1;
    int how = listens ? OUTBOARD_NET_LISTENS : OUTBOARD_NET_CONNECTS;
    NET(outboard_net_meet(net, side->way.queue.qpn, address, how, 60000, &mine, &side->way.there));
    return 0;
}

static uint64_t cpu_ns(clockid_t of)
{
    timespec used;
    clock_gettime(of, &used);
    return (uint64_t)used.tv_sec * 1000000000 + (uint64_t)used.tv_nsec;
}

// Prints the medians of a request's steps, and of the time from its last to the next one's first.
static void print_marks(const Party *side)
{
#ifdef LOOPS_TIMED
    std::printf("steps, ns:");
    for (int step = 0, last = -1; step <= MARKS; ++step) {
        std::vector<uint64_t> times;
        for (uint64_t i = 65; i < ROUNDS_TIMED; ++i) {
            const uint64_t *marks = side->marks[i - 1];
            int first = 0;
            while (first < MARKS && marks[first] == 0) ++first;
            uint64_t until = step < MARKS ? marks[step] : first < MARKS ? side->marks[i][first] : 0;
            if (until != 0 && last >= 0 && marks[last] != 0) times.push_back(until - marks[last]);
        }
        std::sort(times.begin(), times.end());
        if (!times.empty()) std::printf(" %d-%d %llu", last, step == MARKS ? 0 : step, (unsigned long long)times[times.size() / 2]);
        if (step < MARKS && side->marks[64][step] != 0) last = step;
    }
    std::printf("\n");
#endif
    (void)side;
}

// Pinned memory of zeros: whole pages, so that what is made after it begins at one, too.
static cudaError_t pinned(void **at, uint64_t bytes)
{
    bytes = (bytes + 4095) / 4096 * 4096;
    cudaError_t status = cudaHostAlloc(at, bytes, cudaHostAllocMapped | cudaHostAllocPortable);
    if (status == cudaSuccess) std::memset(*at, 0, bytes);
    return status;
}

// Memory, queue and stream of a server. Kernels alone post to its queue but in loop a, so that the queue's counters are
// theirs.
struct Server {
    outboard_net *net = nullptr;
    outboard_net_queue_options options = {6, 0, 1, OUTBOARD_NET_EXCLUSIVE, 0};
    void *memory = nullptr;
    Party *side = nullptr;
    State *state = nullptr;
    cudaStream_t stream = nullptr;

    int open(char loop)
    {
        NET(outboard_net_open(nullptr, &net));
        uint64_t bytes = outboard_net_counters_bytes(&options);
        if (loop != 'a') {
            CUDA(cudaMalloc((void **)&options.counters, bytes));
            CUDA(cudaMemset((void *)options.counters, 0, bytes));
            CUDA(cudaMalloc((void **)&state, sizeof *state));
            CUDA(cudaMemset(state, 0, sizeof *state));
        }
        bytes = outboard_net_queue_bytes(&options);
        CUDA(pinned(&memory, bytes));
        CUDA(pinned((void **)&side, sizeof *side));
        side->way.state = loop == 'a' ? &side->of_cpu : state;
        CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        return 0;
    }

    // Serves until it is told to stop, and says how it was.
    int run(char loop, loops::Bell *alarm, uint64_t report_ms)
    {
        auto report = [this, alarm] {
            std::printf("{\"served\": %llu, \"rounds\": %llu, \"wakes\": %llu}\n", (unsigned long long)detail::load(&side->control.served),
                        (unsigned long long)detail::load(&side->control.rounds), (unsigned long long)alarm->wakes());
            std::fflush(stdout);
        };
        report();
        uint64_t began = loops::monotonic_ns(), used = cpu_ns(CLOCK_THREAD_CPUTIME_ID), all = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
        cudaError_t status = serve(loop, side, stream, loops::Watch{alarm, &stop, report_ms * 1000000, report});
        uint64_t ended = loops::monotonic_ns();
        used = cpu_ns(CLOCK_THREAD_CPUTIME_ID) - used;
        all = cpu_ns(CLOCK_PROCESS_CPUTIME_ID) - all;
        double took = (double)(ended - began);
        if (status != cudaSuccess) std::printf("loop %c: %s\n", loop, cudaGetErrorString(status));
        if (side->failure)
            std::printf("queue %#x, entry %llu: syndrome %#x\n", side->failure.qpn, (unsigned long long)side->failure.entry, side->failure.syndrome);
        else if (side->control.failed)
            std::printf("loop %c: error %llu on the GPU\n", loop, (unsigned long long)side->control.failed);
        std::printf("{\"loop\": \"%c\", \"served\": %llu, \"rounds\": %llu, \"wakes\": %llu, \"cpu_percent\": %.3f, \"process_percent\": %.3f, \"stop_us\": %.1f}\n", loop,
                    (unsigned long long)side->control.served, (unsigned long long)side->control.rounds, (unsigned long long)alarm->wakes(),
                    100.0 * (double)used / took, 100.0 * (double)all / took, stop ? (double)(ended - stopped_at) / 1e3 : -1.0);
        print_marks(side);
        std::fflush(stdout);
        return status != cudaSuccess || side->control.failed != 0;
    }
};

static int server(char loop, const char *address, uint64_t report_ms)
{
    loops::Bell alarm;
    bell = &alarm;
    Server server;
    if (server.open(loop) || meet(server.side, server.net, server.memory, server.options, address, true)) return 1;
    // Until somebody has come a signal ends the program.
    struct sigaction action = {};
    action.sa_handler = on_signal;
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
    int failed = server.run(loop, &alarm, report_ms);
    outboard_net_close(server.net);
    return failed;
}

static void *zeroed(uint64_t bytes)
{
    bytes = (bytes + 4095) / 4096 * 4096;
    void *at = std::aligned_alloc(4096, bytes);
    return at ? std::memset(at, 0, bytes) : nullptr;
}

// Asks, looks at the answers, and says how long they took. Returns how many are right.
static uint64_t ask(Party *side, uint64_t requests)
{
    std::vector<double> times;
    uint64_t right = 0;
    Queue queue(side->way.queue);
    for (uint64_t number = 1; number <= requests; ++number) {
        uint64_t sum = 0;
        for (int i = 0; i < WORDS; ++i) sum += side->outbox.words[i] = asked(number, i);
        side->outbox.sum = checked(sum, number);
        sum = 0;
        uint64_t began = loops::monotonic_ns();
        uint64_t ticket;
        side->failure = post<Scope::thread>(queue, side, side->way, number, &ticket);
        if (side->failure || !poll_slot(&side->inbox.number, number, PATIENCE_NS)) break;
        times.push_back((double)(loops::monotonic_ns() - began) / 1e3);
        int same = 0;
        for (int i = 0; i < WORDS; ++i) {
            same += side->inbox.words[i] == answered(asked(number, i));
            sum += side->inbox.words[i];
        }
        right += same == WORDS && checked(sum, number) == side->inbox.sum;
        // Its answer is here, so that it has left long ago.
        side->failure = queue.wait(ticket, PATIENCE_NS);
        if (side->failure) break;
    }
    if (side->failure) std::printf("queue %#x: syndrome %#x\n", side->failure.qpn, side->failure.syndrome);
    std::sort(times.begin(), times.end());
    if (!times.empty()) std::printf("median %.2f us, 99 %% below %.2f us\n", times[times.size() / 2], times[times.size() * 99 / 100]);
    std::printf("%llu of %llu answers are right\n", (unsigned long long)right, (unsigned long long)requests);
    std::fflush(stdout);
    return right;
}

static int client(const char *address, uint64_t requests, uint64_t stay_ms)
{
    outboard_net *net;
    NET(outboard_net_open(nullptr, &net));
    outboard_net_queue_options options = {6, 0, 1, OUTBOARD_NET_EXCLUSIVE, 0};
    void *memory = zeroed(outboard_net_queue_bytes(&options));
    Party *side = (Party *)zeroed(sizeof(Party));
    if (!memory || !side || meet(side, net, memory, options, address, false)) return 1;
    uint64_t right = ask(side, requests);
    // The server still gets the completion of its last answer.
    loops::Bell().sleep(stay_ms * 1000000);
    outboard_net_close(net);
    return right != requests;
}

// Server and client with one adapter: what a request takes without a way between processes.
static int alone(char loop, uint64_t requests, uint64_t idle_ms, uint32_t every)
{
    loops::Bell alarm;
    bell = &alarm;
    Server server;
    server.options.signal_every = every;
    if (server.open(loop)) return 1;
    outboard_net_queue_options options = {6, 0, 1, OUTBOARD_NET_EXCLUSIVE, 0};
    void *memory = nullptr;
    Party *side = nullptr;
    // Pinned, since a GPU of nvlink writes to it itself.
    CUDA(pinned(&memory, outboard_net_queue_bytes(&options)));
    CUDA(pinned((void **)&side, sizeof *side));
    outboard_net_window served, asked;
    if (offer(server.side, server.net, server.memory, server.options, &served) || offer(side, server.net, memory, options, &asked)) return 1;
    server.side->way.there = asked;
    side->way.there = served;
    NET(outboard_net_connect(server.net, side->way.queue.qpn, server.side->way.queue.qpn));
    uint64_t right = 0;
    std::thread asks([&] {
        right = ask(side, requests);
        loops::Bell().sleep(idle_ms * 1000000);
        on_signal(0);
        // Of a CPU that synchronises nobody else tells the GPU.
        if (is_synchronous) detail::store_release(&server.side->control.stop, 1);
    });
    int failed = server.run(loop, &alarm, 1000);
    asks.join();
    outboard_net_close(server.net);
    return failed || right != requests;
}

static bool is_loop(const char *name)
{
    return name[0] >= 'a' && name[0] <= 'g' && name[1] == 0;
}

int main(int count, char **values)
{
    if (count >= 4 && std::strcmp(values[1], "serve") == 0 && is_loop(values[2]))
        return server(values[2][0], values[3], count > 4 ? std::strtoull(values[4], nullptr, 10) : 1000);
    if (count >= 4 && std::strcmp(values[1], "ask") == 0)
        return client(values[2], std::strtoull(values[3], nullptr, 10), count > 4 ? std::strtoull(values[4], nullptr, 10) : 200);
    if (count >= 4 && std::strcmp(values[1], "alone") == 0 && is_loop(values[2])) {
        is_synchronous = count > 6 && std::strcmp(values[6], "synchronise") == 0;
        return alone(values[2][0], std::strtoull(values[3], nullptr, 10), count > 4 ? std::strtoull(values[4], nullptr, 10) : 0,
                     count > 5 ? (uint32_t)std::strtoul(values[5], nullptr, 10) : 1);
    }
    std::printf("loops serve a..g ADDRESS [REPORT_MS], loops ask ADDRESS REQUESTS [STAY_MS], or loops alone a..g REQUESTS [IDLE_MS [EVERY [synchronise]]]\n");
    return 2;
}

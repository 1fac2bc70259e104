// A server whose GPU answers requests, in seven loops, and its client, in two processes that meet at a loopback address.
//   loops serve LOOP 127.0.0.1:PORT [REPORT_MS]     until SIGINT or SIGTERM, or until the peer is gone
//   loops ask 127.0.0.1:PORT REQUESTS [STAY_MS]     needs no GPU; stays so long afterwards
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
constexpr int WORDS = 512;
// Rounds that the CPU launches before it sleeps.
constexpr unsigned AHEAD = 8;

// A message: words, their sum, and behind them its number, which is written last.
struct Message {
    uint64_t words[WORDS], sum, number;
};

// What a process offers to the other, and what it needs to answer.
struct Party {
    loops::Control control;
    Message inbox, outbox;
    uint64_t found, fired, heard_at;
    outboard_net_queue queue;
    outboard_net_window there;
    Failure failure;
    uint32_t key;
};

OUTBOARD_NET_CALL uint64_t asked(uint64_t number, int i) { return number << 20 | (uint64_t)i; }
OUTBOARD_NET_CALL uint64_t answered(uint64_t word) { return word * 3 + 1; }

OUTBOARD_NET_CALL bool is_there(const Party *side, uint64_t number)
{
    return detail::load_acquire(&side->inbox.number) == number;
}

// Posts the outbox and its number, and waits until it has left, so that it may be written again. The number travels in its
// entry: if it fails, the next post says so.
template <Scope scope> OUTBOARD_NET_CALL Failure post(Party *side, uint64_t number)
{
    Queue queue(side->queue);
    uint64_t ticket, bytes = WORDS * 8 + 8;
    Remote to{side->there.address, side->there.key};
    Failure failure = queue.put<scope>(to, Local{(uint64_t)&side->outbox, side->key}, bytes, PATIENCE_NS, &ticket);
    uint64_t behind = ticket;
    if (!failure) failure = queue.signal_set<scope>(Remote{to.address + bytes, to.key}, number, PATIENCE_NS, &behind);
    if (!failure) failure = queue.wait<scope>(ticket, PATIENCE_NS);
    return failure;
}

OUTBOARD_NET_CALL void note(Party *side, const Failure &failure)
{
    side->heard_at = detail::now_ns();
    if (!failure) return loops::count(&side->control.served);
    side->failure = failure;
    detail::store_release(&side->control.failed, 1);
}

// After a silence, writes nothing to the peer, which fails if it is gone.
OUTBOARD_NET_CALL void beat(Party *side)
{
    if (detail::now_ns() - side->heard_at < SILENCE_NS) return;
    Queue queue(side->queue);
    uint64_t ticket;
    Failure failure = queue.put(Remote{side->there.address, side->there.key}, Local{0, 0}, 0, PATIENCE_NS, &ticket);
    if (!failure) failure = queue.wait(ticket, PATIENCE_NS);
    if (failure) return note(side, failure);
    side->heard_at = detail::now_ns();
}

// Waits for request `number`, and until all before it are answered; false if there is none for a while, or the loop is to
// end.
OUTBOARD_NET_CALL bool waits(const Party *side, uint64_t number)
{
    for (uint64_t deadline = detail::now_ns() + ROUND_NS; detail::now_ns() < deadline; detail::pause()) {
        if (is_there(side, number) && detail::load_acquire(&side->control.served) + 1 == number) return true;
        if (!loops::goes_on(&side->control)) return false;
    }
    return false;
}

// Answers by the threads of a warp.
__device__ void compute(const Message &request, Message &answer)
{
    uint64_t sum = 0;
    for (int i = threadIdx.x; i < WORDS; i += 32) {
        uint64_t word = answered(detail::load(&request.words[i]));
        answer.words[i] = word;
        sum += word;
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
    if (threadIdx.x == 0) answer.sum = sum;
    __syncwarp();
}

__global__ void wait_for_request(Party *side)
{
    side->found = waits(side, detail::load(&side->control.served) + 1);
    loops::count(&side->control.rounds);
}

__global__ void answer(Party *side)
{
    if (side->found) compute(side->inbox, side->outbox);
}

__global__ void reply(Party *side)
{
    if (!side->found) return beat(side);
    side->found = 0;
    note(side, post<Scope::thread>(side, detail::load(&side->control.served) + 1));
}

__global__ void answer_copy(const Message *request, Message *answer) { compute(*request, *answer); }

__global__ void stay(Party *side)
{
    while (loops::goes_on(&side->control)) {
        uint64_t number = detail::load(&side->control.served) + 1;
        bool found = threadIdx.x == 0 && waits(side, number);
        // Also orders what lane 0 has acquired before what the others read.
        found = __shfl_sync(0xffffffffu, found, 0);
        __syncwarp();
        if (threadIdx.x == 0) loops::count(&side->control.rounds);
        if (!found) {
            if (threadIdx.x == 0) beat(side);
            __syncwarp();
            continue;
        }
        compute(side->inbox, side->outbox);
        Failure failure = post<Scope::warp>(side, number);
        if (threadIdx.x == 0) note(side, failure);
        __syncwarp();
    }
}

// For a kernel that fires a graph for each request: not twice for one.
struct Waits {
    Party *side;
    __device__ bool operator()(loops::Control *control) const
    {
        bool found = waits(side, side->fired + 1);
        loops::count(&control->rounds);
        if (!found) {
            // The queue is for one at a time: not while a graph may still post.
            if (detail::load_acquire(&control->served) == side->fired) beat(side);
            return false;
        }
        ++side->fired;
        side->found = 1;
        // The graph's kernels see it.
        __threadfence();
        return true;
    }
};

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
    wait_for_request<<<1, 1, 0, stream>>>(side);
    answer<<<1, 32, 0, stream>>>(side);
    reply<<<1, 1, 0, stream>>>(side);
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
            beat(side);
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
        if (status == cudaSuccess) note(side, post<Scope::thread>(side, number));
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
        answer<<<1, 32, 0, on>>>(side);
        reply<<<1, 1, 0, on>>>(side);
    };
    cudaError_t status = loops::firing(&graph, &spares, stream, control, Waits{side}, request);
    if (status != cudaSuccess) return status;
    return loops::started(stream, watch, control, [&] { return cudaGraphLaunch(graph, stream); });
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
        return loops::launched(stream, watch, control, AHEAD, [&] {
            round_of(side, stream);
            return cudaGetLastError();
        });
    case 'c':
        status = loops::recorded(&graph, round);
        if (status == cudaSuccess) status = cudaGraphInstantiate(&executable, graph, 0);
        return status != cudaSuccess ? status : loops::launched(stream, watch, control, AHEAD, launch);
    case 'd':
        status = loops::relaunching(&executable, control, round);
        return status != cudaSuccess ? status : loops::started(stream, watch, control, launch);
    case 'e':
        status = loops::repeating(&executable, control, round);
        return status != cudaSuccess ? status : loops::started(stream, watch, control, launch);
    case 'f': return fired_loop(side, stream, watch);
    case 'g':
        return loops::started(stream, watch, control, [&] {
            stay<<<1, 32, 0, stream>>>(side);
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

// Makes the queue of a party and meets the other.
static int meet(Party *side, outboard_net *net, void *memory, const outboard_net_queue_options &options, const char *address,
                bool listens)
{
    NET(outboard_net_queue_create(net, memory, outboard_net_queue_bytes(&options), &options, &side->queue));
    outboard_net_window mine = {(uint64_t)&side->inbox, sizeof side->inbox, 0, 0};
    NET(outboard_net_register(net, &side->inbox, sizeof side->inbox, OUTBOARD_NET_REMOTE_WRITE, &mine.key));
    NET(outboard_net_register(net, &side->outbox, sizeof side->outbox, 0, &side->key));
    NET(outboard_net_meet(net, side->queue.qpn, address, listens, 60000, &mine, &side->there));
    return 0;
}

static uint64_t cpu_ns()
{
    timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * 1000000000 + (uint64_t)used.tv_nsec;
}

static int server(char loop, const char *address, uint64_t report_ms)
{
    loops::Bell alarm;
    bell = &alarm;
    struct sigaction action = {};
    action.sa_handler = on_signal;
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
    outboard_net *net;
    NET(outboard_net_open(nullptr, &net));
    outboard_net_queue_options options = {6, 0, 1, OUTBOARD_NET_EXCLUSIVE, 0};
    void *memory;
    Party *side;
    cudaStream_t stream;
    CUDA(cudaHostAlloc(&memory, outboard_net_queue_bytes(&options), cudaHostAllocMapped | cudaHostAllocPortable));
    CUDA(cudaHostAlloc((void **)&side, sizeof *side, cudaHostAllocMapped | cudaHostAllocPortable));
    std::memset(memory, 0, outboard_net_queue_bytes(&options));
    std::memset((void *)side, 0, sizeof *side);
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    if (meet(side, net, memory, options, address, true)) return 1;
    auto report = [&] {
        std::printf("{\"served\": %llu, \"rounds\": %llu, \"wakes\": %llu}\n", (unsigned long long)detail::load(&side->control.served),
                    (unsigned long long)detail::load(&side->control.rounds), (unsigned long long)alarm.wakes());
        std::fflush(stdout);
    };
    side->heard_at = detail::now_ns();
    report();
    uint64_t began = loops::monotonic_ns(), used = cpu_ns();
    cudaError_t status = serve(loop, side, stream, loops::Watch{&alarm, &stop, report_ms * 1000000, report});
    uint64_t ended = loops::monotonic_ns();
    used = cpu_ns() - used;
    if (status != cudaSuccess) std::printf("loop %c: %s\n", loop, cudaGetErrorString(status));
    if (side->failure)
        std::printf("queue %#x, entry %llu: syndrome %#x\n", side->failure.qpn, (unsigned long long)side->failure.entry, side->failure.syndrome);
    else if (side->control.failed)
        std::printf("loop %c: error %llu on the GPU\n", loop, (unsigned long long)side->control.failed);
    std::printf("{\"loop\": \"%c\", \"served\": %llu, \"rounds\": %llu, \"wakes\": %llu, \"cpu_percent\": %.3f, \"stop_us\": %.1f}\n", loop,
                (unsigned long long)side->control.served, (unsigned long long)side->control.rounds, (unsigned long long)alarm.wakes(),
                100.0 * (double)used / (double)(ended - began), stop ? (double)(ended - stopped_at) / 1e3 : -1.0);
    outboard_net_close(net);
    return status != cudaSuccess || side->control.failed != 0;
}

static int client(const char *address, uint64_t requests, uint64_t stay_ms)
{
    outboard_net *net;
    NET(outboard_net_open(nullptr, &net));
    outboard_net_queue_options options = {6, 0, 1, OUTBOARD_NET_EXCLUSIVE, 0};
    uint64_t bytes = (outboard_net_queue_bytes(&options) + 4095) / 4096 * 4096, own = (sizeof(Party) + 4095) / 4096 * 4096;
    void *memory = std::aligned_alloc(4096, bytes);
    Party *side = (Party *)std::aligned_alloc(4096, own);
    if (!memory || !side) return 1;
    std::memset(memory, 0, bytes);
    std::memset((void *)side, 0, own);
    if (meet(side, net, memory, options, address, false)) return 1;
    std::vector<double> times;
    uint64_t right = 0;
    for (uint64_t number = 1; number <= requests; ++number) {
        uint64_t sum = 0;
        for (int i = 0; i < WORDS; ++i) side->outbox.words[i] = asked(number, i);
        uint64_t began = loops::monotonic_ns();
        side->failure = post<Scope::thread>(side, number);
        if (side->failure || !poll_slot(&side->inbox.number, number, PATIENCE_NS)) break;
        times.push_back((double)(loops::monotonic_ns() - began) / 1e3);
        int same = 0;
        for (int i = 0; i < WORDS; ++i) {
            same += side->inbox.words[i] == answered(asked(number, i));
            sum += side->inbox.words[i];
        }
        right += same == WORDS && sum == side->inbox.sum;
    }
    if (side->failure) std::printf("queue %#x: syndrome %#x\n", side->failure.qpn, side->failure.syndrome);
    std::sort(times.begin(), times.end());
    if (!times.empty()) std::printf("median %.1f us, 99 %% below %.1f us\n", times[times.size() / 2], times[times.size() * 99 / 100]);
    std::printf("%llu of %llu answers are right\n", (unsigned long long)right, (unsigned long long)requests);
    std::fflush(stdout);
    // The server still gets the completion of its last answer.
    loops::Bell().sleep(stay_ms * 1000000);
    outboard_net_close(net);
    return right != requests;
}

int main(int count, char **values)
{
    if (count >= 4 && std::strcmp(values[1], "serve") == 0 && values[2][0] >= 'a' && values[2][0] <= 'g')
        return server(values[2][0], values[3], count > 4 ? std::strtoull(values[4], nullptr, 10) : 1000);
    if (count >= 4 && std::strcmp(values[1], "ask") == 0)
        return client(values[2], std::strtoull(values[3], nullptr, 10), count > 4 ? std::strtoull(values[4], nullptr, 10) : 200);
    std::printf("loops serve a..g ADDRESS [REPORT_MS], or loops ask ADDRESS REQUESTS [STAY_MS]\n");
    return 2;
}

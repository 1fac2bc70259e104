// Loops in which a GPU serves requests, from one that the CPU drives to one that it only starts and stops; and a sleep
// for the CPU meanwhile, which a signal, the GPU or a timer ends. Header-only; needs nvcc -rdc=true, Linux, CUDA 12.4.
//
//   looked_for()     the CPU looks for a request, for loops in which it does all but the computing
//   launched()       the CPU launches each round                 kernels, or a graph
//   started()        the CPU starts the loop and sleeps          one of the three that follow, or a kernel that stays
//   relaunching()    a graph whose last kernel launches it again
//   repeating()      a graph with a WHILE node
//   firing()         a kernel that stays and launches a graph for each request
//
// A round waits for a request itself, at most for as long as it likes, and looks at `stop`. The words of Control lie in
// mapped host memory: the CPU reads the counts when it likes, and is not woken for them.
#pragma once

#include <cuda_runtime.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <functional>

#include "net_order.cuh"

namespace outboard {
namespace loops {

struct Control {
    uint64_t stop;    // written by the CPU, once
    uint64_t failed;  // why the GPU gave up; its loop then ends, too
    uint64_t served;  // requests
    uint64_t rounds;  // of a loop that goes round without a request, too
};

OUTBOARD_NET_CALL bool goes_on(const Control *control)
{
    // Both are on their way at once.
    uint64_t stop = net::detail::load(&control->stop), failed = net::detail::load_acquire(&control->failed);
    return stop == 0 && failed == 0;
}

// Adds to a word that only the caller writes.
OUTBOARD_NET_CALL void count(uint64_t *word) { net::detail::store_release(word, net::detail::load(word) + 1); }

// A sleep that others end: ring() from any thread, signal handler or host function.
class Bell {
public:
    Bell() : events_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
    ~Bell() { close(events_); }
    Bell(const Bell &) = delete;
    Bell &operator=(const Bell &) = delete;

    bool exists() const { return events_ >= 0; }

    void ring() const
    {
        uint64_t one = 1;
        int before = errno;
        // Full is rung, too.
        ssize_t written = write(events_, &one, sizeof one);
        (void)written;
        errno = before;
    }

    // Sleeps until it is rung, or for so long. True if it was rung.
    bool sleep(uint64_t ns)
    {
        timespec time = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
        pollfd of = {events_, POLLIN, 0};
        int ready = ppoll(&of, 1, &time, nullptr);
        ++wakes_;
        uint64_t rings = 0;
        return ready > 0 && read(events_, &rings, sizeof rings) == sizeof rings;
    }

    // How often the sleeper has woken.
    uint64_t wakes() const { return wakes_; }

private:
    int events_;
    uint64_t wakes_ = 0;
};

// What a loop says from time to time, and how it is told to stop.
struct Watch {
    Bell *bell;
    const volatile sig_atomic_t *stop;  // set before the bell is rung
    uint64_t every_ns;                  // between reports
    std::function<void()> report;
};

inline uint64_t monotonic_ns()
{
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

// Reports when it is time. Returns the time until the next report.
class Reports {
public:
    explicit Reports(const Watch &watch) : watch_(watch), next_(monotonic_ns() + watch.every_ns) {}

    uint64_t until_next()
    {
        uint64_t now = monotonic_ns();
        if (now >= next_) {
            if (watch_.report) watch_.report();
            next_ = now + watch_.every_ns;
        }
        return next_ - now;
    }

private:
    const Watch &watch_;
    uint64_t next_;
};

// Tells the GPU to stop, once. The store is seen by kernels that run.
inline void pass_stop(const Watch &watch, Control *control)
{
    if (*watch.stop && net::detail::load(&control->stop) == 0) net::detail::store_release(&control->stop, 1);
}

inline void ring_bell(void *bell) { ((const Bell *)bell)->ring(); }

// Sleeps until what the stream has now is done. Tells the GPU to stop if it is to.
inline cudaError_t sleep_until_done(cudaStream_t stream, const Watch &watch, Reports &reports, Control *control)
{
    // The event and not the stream is asked for: a stream is not done before the function that rings has returned, and
    // whoever it woke would look too early.
    cudaEvent_t done;
    cudaError_t status = cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
    if (status != cudaSuccess) return status;
    status = cudaEventRecord(done, stream);
    if (status == cudaSuccess) status = cudaLaunchHostFunc(stream, ring_bell, watch.bell);
    while (status == cudaSuccess) {
        pass_stop(watch, control);
        status = cudaEventQuery(done);
        if (status != cudaErrorNotReady) break;
        watch.bell->sleep(reports.until_next());
        status = cudaSuccess;
    }
    cudaEventDestroy(done);
    // The function is to have returned before the bell goes.
    cudaError_t end = cudaStreamSynchronize(stream);
    return status != cudaSuccess ? status : end;
}

// Sleeps until `is_there()`: at first it looks without a pause, then at growing intervals. False when it is to stop.
inline bool looked_for(const Watch &watch, Reports &reports, const std::function<bool()> &is_there)
{
    constexpr uint64_t LOOKS_NS = 50000, PAUSE_NS_MAX = 1000000;
    uint64_t began = monotonic_ns(), pause = 0;
    while (!*watch.stop) {
        if (is_there()) return true;
        if (monotonic_ns() - began < LOOKS_NS) {
            net::detail::pause();
            continue;
        }
        pause = pause * 2 < 20000 ? 20000 : pause * 2 > PAUSE_NS_MAX ? PAUSE_NS_MAX : pause * 2;
        uint64_t until_next = reports.until_next();
        watch.bell->sleep(pause < until_next ? pause : until_next);
    }
    return false;
}

// The CPU launches rounds, `ahead` of them before it sleeps until they are done: it wakes once for so many.
inline cudaError_t launched(cudaStream_t stream, const Watch &watch, Control *control, unsigned ahead,
                            const std::function<cudaError_t()> &round)
{
    Reports reports(watch);
    while (!*watch.stop && goes_on(control)) {
        for (unsigned i = 0; i < ahead; ++i) {
            cudaError_t status = round();
            if (status != cudaSuccess) return status;
        }
        cudaError_t status = sleep_until_done(stream, watch, reports, control);
        if (status != cudaSuccess) return status;
    }
    return cudaStreamSynchronize(stream);
}

// Starts a loop that stays on the GPU until `stop`, or until it fails, and sleeps meanwhile.
inline cudaError_t started(cudaStream_t stream, const Watch &watch, Control *control,
                           const std::function<cudaError_t()> &start)
{
    Reports reports(watch);
    cudaError_t status = start();
    return status != cudaSuccess ? status : sleep_until_done(stream, watch, reports, control);
}

using Round = std::function<void(cudaStream_t)>;

// Records what `round` submits.
inline cudaError_t recorded(cudaGraph_t *graph, const Round &round)
{
    cudaStream_t stream;
    cudaError_t status = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (status != cudaSuccess) return status;
    status = cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    if (status == cudaSuccess) {
        round(stream);
        cudaError_t launch = cudaGetLastError();
        status = cudaStreamEndCapture(stream, graph);
        if (launch != cudaSuccess) status = launch;
    }
    cudaStreamDestroy(stream);
    return status;
}

#ifdef __CUDACC__
__global__ void relaunch(Control *control)
{
    if (!goes_on(control)) return;
    cudaError_t status = cudaGraphLaunch(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch);
    if (status != cudaSuccess) net::detail::store_release(&control->failed, (uint64_t)status);
}

__global__ void repeat(cudaGraphConditionalHandle again, Control *control)
{
    cudaGraphSetConditional(again, goes_on(control));
}
#endif

// A graph of a round that launches itself again until `stop`.
inline cudaError_t relaunching(cudaGraphExec_t *out, Control *control, const Round &round)
{
    cudaGraph_t graph;
    cudaError_t status = recorded(&graph, [&](cudaStream_t stream) {
        round(stream);
        relaunch<<<1, 1, 0, stream>>>(control);
    });
    if (status != cudaSuccess) return status;
    status = cudaGraphInstantiate(out, graph, cudaGraphInstantiateFlagDeviceLaunch);
    cudaGraphDestroy(graph);
    return status;
}

// A graph that repeats a round until `stop`.
inline cudaError_t repeating(cudaGraphExec_t *out, Control *control, const Round &round)
{
    cudaGraph_t graph;
    cudaError_t status = cudaGraphCreate(&graph, 0);
    if (status != cudaSuccess) return status;
    cudaGraphConditionalHandle again;
    cudaGraphNodeParams params = {};
    cudaGraphNode_t node;
    status = cudaGraphConditionalHandleCreate(&again, graph, 1, cudaGraphCondAssignDefault);
    if (status == cudaSuccess) {
        params.type = cudaGraphNodeTypeConditional;
        params.conditional.handle = again;
        params.conditional.type = cudaGraphCondTypeWhile;
        params.conditional.size = 1;
#if CUDART_VERSION >= 13000
        status = cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &params);
#else
        status = cudaGraphAddNode(&node, graph, nullptr, 0, &params);
#endif
    }
    cudaStream_t stream = nullptr;
    if (status == cudaSuccess) status = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (status == cudaSuccess) {
        cudaGraph_t body = params.conditional.phGraph_out[0];
        status = cudaStreamBeginCaptureToGraph(stream, body, nullptr, nullptr, 0, cudaStreamCaptureModeRelaxed);
        if (status == cudaSuccess) {
            round(stream);
            repeat<<<1, 1, 0, stream>>>(again, control);
            cudaError_t launch = cudaGetLastError();
            status = cudaStreamEndCapture(stream, &body);
            if (launch != cudaSuccess) status = launch;
        }
    }
    if (stream) cudaStreamDestroy(stream);
    if (status == cudaSuccess) status = cudaGraphInstantiate(out, graph, 0);
    cudaGraphDestroy(graph);
    return status;
}

// Graphs of a request, and how many a kernel may fire before its own graph starts anew: CUDA allows 120.
constexpr unsigned SPARES = 4, FIRES = 100;
struct Spares {
    cudaGraphExec_t of[SPARES];
};

#ifdef __CUDACC__
// Waits for requests by `waits(control)`, true if there is one, and fires a graph for each. A graph that still runs cannot
// be fired: then the next is.
template <class Waits> __global__ void fire(Control *control, Spares spares, Waits waits)
{
    unsigned next = 0;
    for (unsigned fired = 0; fired < FIRES && goes_on(control);) {
        if (!waits(control)) continue;
        cudaError_t status = cudaSuccess;
        for (unsigned tries = 0; tries < SPARES; ++tries) {
            status = cudaGraphLaunch(spares.of[next++ % SPARES], cudaStreamGraphFireAndForget);
            if (status == cudaSuccess) break;
        }
        if (status != cudaSuccess) {
            net::detail::store_release(&control->failed, (uint64_t)status);
            return;
        }
        ++fired;
    }
    if (!goes_on(control)) return;
    cudaError_t status = cudaGraphLaunch(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch);
    if (status != cudaSuccess) net::detail::store_release(&control->failed, (uint64_t)status);
}
#endif

// A graph of one kernel that stays, and fires a graph of `answer` for each request, which counts it in `served`. `waits`
// must not be true again for a request that was fired.
template <class Waits>
cudaError_t firing(cudaGraphExec_t *out, Spares *spares, cudaStream_t stream, Control *control, const Waits &waits,
                   const Round &answer)
{
    cudaGraph_t graph;
    cudaError_t status = recorded(&graph, answer);
    for (unsigned i = 0; status == cudaSuccess && i < SPARES; ++i) {
        status = cudaGraphInstantiate(&spares->of[i], graph, cudaGraphInstantiateFlagDeviceLaunch);
        if (status == cudaSuccess) status = cudaGraphUpload(spares->of[i], stream);
    }
    if (status != cudaSuccess) return status;
    cudaGraphDestroy(graph);
    status = recorded(&graph, [&](cudaStream_t on) { fire<<<1, 1, 0, on>>>(control, *spares, waits); });
    if (status == cudaSuccess) status = cudaGraphInstantiate(out, graph, cudaGraphInstantiateFlagDeviceLaunch);
    if (status == cudaSuccess) cudaGraphDestroy(graph);
    return status;
}

} // namespace loops
} // namespace outboard

// Calls of net.cuh in C's convention, for kernels that other compilers than nvcc make: numba, Triton. Compiled to PTX,
// which their linker adds to the kernel:
//
//   nvcc -std=c++17 -O2 -rdc=true -arch=compute_80 -ptx -Iinclude include/outboard/net_calls.cu -o net_calls.ptx
//
// A queue is given by its address: an outboard_net_queue that the kernel can read. Keys and addresses are those of Local
// and Remote, and times nanoseconds. What posts returns a ticket, or what failed: FAILED and, below it, 256 times the cause
// (Cause of net_order.cuh) and the syndrome. What waits returns 0 or that. Names that end in _warp and _block are one
// operation of a whole warp or block, whose threads call them together.
#include "net.cuh"

using namespace outboard::net;

namespace {

constexpr uint64_t FAILED = 1ull << 63;

__device__ uint64_t said(const Failure &failure, uint64_t otherwise)
{
    return failure ? FAILED | (uint64_t)failure.cause << 8 | failure.syndrome : otherwise;
}

} // namespace

#define OUTBOARD_NET_CALLS(name, scope)                                                                                    \
    extern "C" __device__ uint64_t outboard_net_put##name(const outboard_net_queue *of, uint64_t to, uint32_t to_key,      \
                                                          uint64_t from, uint32_t from_key, uint64_t bytes, uint64_t ns)   \
    {                                                                                                                      \
        uint64_t ticket = 0;                                                                                               \
        Failure failure = Queue(*of).put<scope>(Remote{to, to_key}, Local{from, from_key}, bytes, ns, &ticket);            \
        return said(failure, ticket);                                                                                      \
    }                                                                                                                      \
    extern "C" __device__ uint64_t outboard_net_get##name(const outboard_net_queue *of, uint64_t to, uint32_t to_key,      \
                                                          uint64_t from, uint32_t from_key, uint64_t bytes, uint64_t ns)   \
    {                                                                                                                      \
        uint64_t ticket = 0;                                                                                               \
        Failure failure = Queue(*of).get<scope>(Local{to, to_key}, Remote{from, from_key}, bytes, ns, &ticket);            \
        return said(failure, ticket);                                                                                      \
    }                                                                                                                      \
    extern "C" __device__ uint64_t outboard_net_put_value##name(const outboard_net_queue *of, uint64_t to,                 \
                                                                uint32_t to_key, uint64_t value, uint64_t ns)              \
    {                                                                                                                      \
        uint64_t ticket = 0;                                                                                               \
        Failure failure = Queue(*of).put_value<scope>(Remote{to, to_key}, value, ns, &ticket);                             \
        return said(failure, ticket);                                                                                      \
    }                                                                                                                      \
    extern "C" __device__ uint64_t outboard_net_signal_set##name(const outboard_net_queue *of, uint64_t flag,              \
                                                                 uint32_t flag_key, uint64_t generation, uint64_t ns)      \
    {                                                                                                                      \
        uint64_t ticket = 0;                                                                                               \
        Failure failure = Queue(*of).signal_set<scope>(Remote{flag, flag_key}, generation, ns, &ticket);                   \
        return said(failure, ticket);                                                                                      \
    }                                                                                                                      \
    extern "C" __device__ uint64_t outboard_net_signal_add##name(const outboard_net_queue *of, uint64_t flag,              \
                                                                 uint32_t flag_key, uint64_t add, uint64_t ns)             \
    {                                                                                                                      \
        uint64_t ticket = 0;                                                                                               \
        Failure failure = Queue(*of).signal_add<scope>(Remote{flag, flag_key}, add, ns, &ticket);                          \
        return said(failure, ticket);                                                                                      \
    }                                                                                                                      \
    extern "C" __device__ uint64_t outboard_net_wait##name(const outboard_net_queue *of, uint64_t ticket, uint64_t ns)     \
    {                                                                                                                      \
        return said(Queue(*of).wait<scope>(ticket, ns), 0);                                                                \
    }

OUTBOARD_NET_CALLS(, Scope::thread)
OUTBOARD_NET_CALLS(_warp, Scope::warp)
OUTBOARD_NET_CALLS(_block, Scope::block)

extern "C" __device__ uint64_t outboard_net_fetch_add(const outboard_net_queue *of, uint64_t to, uint32_t to_key, uint64_t add,
                                                      uint64_t before, uint32_t before_key, uint64_t ns)
{
    uint64_t ticket = 0;
    Failure failure = Queue(*of).fetch_add(Remote{to, to_key}, add, Local{before, before_key}, ns, &ticket);
    return said(failure, ticket);
}

extern "C" __device__ uint64_t outboard_net_compare_swap(const outboard_net_queue *of, uint64_t to, uint32_t to_key,
                                                         uint64_t expected, uint64_t value, uint64_t before,
                                                         uint32_t before_key, uint64_t ns)
{
    uint64_t ticket = 0;
    Failure failure =
        Queue(*of).compare_swap(Remote{to, to_key}, expected, value, Local{before, before_key}, ns, &ticket);
    return said(failure, ticket);
}

// Waits until a flag has a generation. Returns 1, or 0 if it has not come in time.
extern "C" __device__ uint64_t outboard_net_poll_slot(const uint64_t *flag, uint64_t generation, uint64_t ns)
{
    return poll_slot(flag, generation, ns) ? 1 : 0;
}

// Calls of net.cuh in C's convention, for kernels that other compilers than nvcc make. Compiled to PTX for numba, whose
// linker adds it to the kernel, and to LLVM's bitcode for Triton, which net_clang.cuh explains:
//
//   nvcc -std=c++17 -O2 -rdc=true -arch=compute_80 -ptx -Iinclude include/outboard/net_calls.cu -o net_calls.ptx
//
// All are unsigned numbers. A queue is given by its address: an outboard_net_queue that the kernel can read. Keys and
// addresses are those of Local and Remote, and times nanoseconds. What posts returns a ticket, or what failed: FAILED and,
// below it, 256 times the cause (Cause of net_order.cuh) and the syndrome. What waits returns 0 or that. Names that end in
// _warp and _block are one operation of a whole warp or block, whose threads call them together.
#include "net.cuh"

using namespace outboard::net;

namespace {

constexpr uint64_t FAILED = 1ull << 63;
// Most flags of a search, and words between two of them.
constexpr uint64_t FLAGS_MAX = 1 << 30;

__device__ uint64_t said(const Failure &failure, uint64_t otherwise)
{
    return failure ? FAILED | (uint64_t)failure.cause << 8 | failure.syndrome : otherwise;
}

__device__ Queue queue_at(uint64_t queue) { return Queue(*(const outboard_net_queue *)queue); }

} // namespace

#define OUTBOARD_NET_CALLS(name, scope)                                                                                    \
    extern "C" __device__ uint64_t outboard_net_put##name(uint64_t queue, uint64_t to, uint32_t to_key, uint64_t from,     \
                                                          uint32_t from_key, uint64_t bytes, uint64_t ns)                  \
    {                                                                                                                      \
        uint64_t ticket = 0;                                                                                               \
        Failure failure = queue_at(queue).put<scope>(Remote{to, to_key}, Local{from, from_key}, bytes, ns, &ticket);       \
        return said(failure, ticket);                                                                                      \
    }                                                                                                                      \
    extern "C" __device__ uint64_t outboard_net_get##name(uint64_t queue, uint64_t to, uint32_t to_key, uint64_t from,     \
                                                          uint32_t from_key, uint64_t bytes, uint64_t ns)                  \
    {                                                                                                                      \
        uint64_t ticket = 0;                                                                                               \
        Failure failure = queue_at(queue).get<scope>(Local{to, to_key}, Remote{from, from_key}, bytes, ns, &ticket);       \
        return said(failure, ticket);                                                                                      \
    }                                                                                                                      \
    extern "C" __device__ uint64_t outboard_net_put_value##name(uint64_t queue, uint64_t to, uint32_t to_key,              \
                                                                uint64_t value, uint64_t ns)                               \
    {                                                                                                                      \
        uint64_t ticket = 0;                                                                                               \
        Failure failure = queue_at(queue).put_value<scope>(Remote{to, to_key}, value, ns, &ticket);                        \
        return said(failure, ticket);                                                                                      \
    }                                                                                                                      \
    extern "C" __device__ uint64_t outboard_net_put_signal##name(uint64_t queue, uint64_t to, uint32_t to_key,             \
                                                                 uint64_t from, uint32_t from_key, uint64_t bytes,         \
                                                                 uint64_t flag, uint32_t flag_key,                         \
                                                                 uint64_t generation, uint64_t ns)                         \
    {                                                                                                                      \
        uint64_t ticket = 0;                                                                                               \
        Failure failure =                                                                                                  \
            queue_at(queue).put_signal<scope>(Remote{to, to_key}, Local{from, from_key}, bytes,                            \
                                              Remote{flag, flag_key}, generation, ns, &ticket);                            \
        return said(failure, ticket);                                                                                      \
    }                                                                                                                      \
    extern "C" __device__ uint64_t outboard_net_signal_set##name(uint64_t queue, uint64_t flag, uint32_t flag_key,         \
                                                                 uint64_t generation, uint64_t ns)                         \
    {                                                                                                                      \
        uint64_t ticket = 0;                                                                                               \
        Failure failure = queue_at(queue).signal_set<scope>(Remote{flag, flag_key}, generation, ns, &ticket);              \
        return said(failure, ticket);                                                                                      \
    }                                                                                                                      \
    extern "C" __device__ uint64_t outboard_net_signal_add##name(uint64_t queue, uint64_t flag, uint32_t flag_key,         \
                                                                 uint64_t add, uint64_t ns)                                \
    {                                                                                                                      \
        uint64_t ticket = 0;                                                                                               \
        Failure failure = queue_at(queue).signal_add<scope>(Remote{flag, flag_key}, add, ns, &ticket);                     \
        return said(failure, ticket);                                                                                      \
    }                                                                                                                      \
    extern "C" __device__ uint64_t outboard_net_fetch_add##name(uint64_t queue, uint64_t to, uint32_t to_key,              \
                                                                uint64_t add, uint64_t before, uint32_t before_key,        \
                                                                uint64_t ns)                                               \
    {                                                                                                                      \
        uint64_t ticket = 0;                                                                                               \
        Failure failure =                                                                                                  \
            queue_at(queue).fetch_add<scope>(Remote{to, to_key}, add, Local{before, before_key}, ns, &ticket);             \
        return said(failure, ticket);                                                                                      \
    }                                                                                                                      \
    extern "C" __device__ uint64_t outboard_net_compare_swap##name(uint64_t queue, uint64_t to, uint32_t to_key,           \
                                                                   uint64_t expected, uint64_t value, uint64_t before,     \
                                                                   uint32_t before_key, uint64_t ns)                       \
    {                                                                                                                      \
        uint64_t ticket = 0;                                                                                               \
        Failure failure =                                                                                                  \
            queue_at(queue).compare_swap<scope>(Remote{to, to_key}, expected, value,                                       \
                                                Local{before, before_key}, ns, &ticket);                                   \
        return said(failure, ticket);                                                                                      \
    }                                                                                                                      \
    extern "C" __device__ uint64_t outboard_net_wait##name(uint64_t queue, uint64_t ticket, uint64_t ns)                   \
    {                                                                                                                      \
        return said(queue_at(queue).wait<scope>(ticket, ns), 0);                                                           \
    }                                                                                                                      \
    extern "C" __device__ uint64_t outboard_net_flush##name(uint64_t queue, uint64_t ns)                                   \
    {                                                                                                                      \
        return said(queue_at(queue).flush<scope>(ns), 0);                                                                  \
    }                                                                                                                      \
    /* Waits until a flag has a generation. Returns 1, or 0 if it has not come in time. */                                 \
    extern "C" __device__ uint64_t outboard_net_poll_slot##name(uint64_t flag, uint64_t generation, uint64_t ns)           \
    {                                                                                                                      \
        bool leads = detail::enter<scope>();                                                                               \
        uint64_t came = leads && poll_slot((const uint64_t *)flag, generation, ns) ? 1 : 0;                                \
        detail::share<scope>(came, leads);                                                                                 \
        return came;                                                                                                       \
    }                                                                                                                      \
    /* Waits until a flag has a generation or a later one. */                                                              \
    extern "C" __device__ uint64_t outboard_net_poll_slot_at_least##name(uint64_t flag, uint64_t generation, uint64_t ns)  \
    {                                                                                                                      \
        bool leads = detail::enter<scope>();                                                                               \
        uint64_t came = leads && poll_slot_at_least((const uint64_t *)flag, generation, ns) ? 1 : 0;                       \
        detail::share<scope>(came, leads);                                                                                 \
        return came;                                                                                                       \
    }                                                                                                                      \
    /* Waits until one of `count` flags, `stride` words apart, has another generation than the word of `seen` that is its  \
       own, where the new one is noted; the search begins at `from`. Returns the flag's number, or a failure in time, at   \
       once for more than FLAGS_MAX. */                                                                                    \
    extern "C" __device__ uint64_t outboard_net_poll_any##name(uint64_t flags, uint64_t count, uint64_t stride,            \
                                                               uint64_t seen, uint64_t from, uint64_t ns)                  \
    {                                                                                                                      \
        if (count > FLAGS_MAX || stride > FLAGS_MAX) return FAILED | (uint64_t)Cause::invalid << 8;                        \
        int first = count > 0 ? (int)(from % count) : 0;                                                                   \
        int found = poll_any<scope>((const uint64_t *)flags, (int)count, (int)stride, (uint64_t *)seen, first, ns);        \
        return found < 0 ? FAILED | (uint64_t)Cause::timeout << 8 : (uint64_t)found;                                       \
    }

OUTBOARD_NET_CALLS(, Scope::thread)
OUTBOARD_NET_CALLS(_warp, Scope::warp)
OUTBOARD_NET_CALLS(_block, Scope::block)

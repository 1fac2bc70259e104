// What the calls of all providers share: results, memory, a queue's counters, and threads that act as one. Used by net.cuh.
#pragma once

#include <stdint.h>
#include <string.h>

#include "net.h"
#include "net_order.cuh"

namespace outboard {
namespace net {

enum class Cause : uint32_t {
    none = 0,
    timeout,    // the deadline passed; the operation may still complete
    completion, // an entry failed: see syndrome
    stale,      // the queue was reset after the ticket was given, or while a receive was waited for
    invalid,    // more than 2 GiB, or receives of a queue without any: nothing was posted
    unsupported, // a message to a peer whose receives this provider does not reach, or a queue of a provider that this
                 // code was compiled without: nothing was posted
};

enum class Side : uint32_t { send = 0, receive };

// Why a call failed: which queue, which entry, with which syndrome of the adapter (docs/net.md says what to do).
struct Failure {
    Cause cause;
    uint32_t qpn;
    uint64_t entry;
    uint32_t syndrome;
    Side side;

    OUTBOARD_NET_CALL explicit operator bool() const { return cause != Cause::none; }
};

// Memory of this side, and of the other.
struct Local {
    uint64_t address;
    uint32_t key;
};
struct Remote {
    uint64_t address;
    uint32_t key;
};

// Threads that make a call together.
enum class Scope { thread, warp, block };

// What arrived: the ticket and the memory of its receive, the bytes in that memory or those that put_imm() has written
// elsewhere, and the sender's number.
enum class Arrival : uint32_t { write_imm = 1, send = 2, send_imm = 3 };
struct Received {
    uint64_t ticket, address;
    Arrival kind;
    uint32_t bytes, imm;
};

namespace detail {

constexpr uint32_t NOP = 0x00, WRITE = 0x08, WRITE_IMM = 0x09, SEND = 0x0a, SEND_IMM = 0x0b, READ = 0x10,
                   COMPARE_SWAP = 0x11, FETCH_ADD = 0x12;
constexpr uint32_t SIGNALLED = 0x08;
constexpr uint32_t INLINE = 0x80000000u;
constexpr uint64_t BYTES_MAX = 0x80000000u;
constexpr uint32_t NO_MEMORY = 0x100;
// Of nvlink alone: an addition whose result nobody wants, a value after all that was put, and a value.
constexpr uint32_t SIGNAL_ADD = 0xf0, SIGNAL_SET = 0xf1, VALUE = 0xf2;
constexpr uint32_t RESPONDER_ERROR = 14;
constexpr uint64_t ALL = UINT64_MAX >> 8;
// Time beyond its deadline that a receive waits for the threads before it: what it has reserved cannot be given back.
constexpr uint64_t LOST_NS = 1000000000;
// Syndrome of an operation that nobody answers.
constexpr uint32_t GONE = 0x15;
// Numbers from here on are given while the host puts the queue back: nothing is posted by them.
constexpr uint64_t CLOSED = (uint64_t)1 << 62;
// Counters of a queue, a line each. USED are entries of the ring that are not complete, and those that threads try for. FORCED is behind the last nop that was posted for those who wait.
enum Counter {
    RESERVED = 0, USED = 8, RINGING = 16, RUNG = 24, DONE = 32, ERROR = 40, BASE = 48, FORCED = 56,
    CONSUMED = 64, RECEIVES_RESERVED = 72, RECEIVES_READY = 80, RECEIVES_CONSUMED = 88, FORCING = 96,
    TAKEN = 104, // receives of the peer that messages have taken, of nvlink
    ASLEEP = 112, // 1 while an adapter in software sleeps, which a thread of the CPU can wake
};

OUTBOARD_NET_CALL uint64_t big(uint64_t value)
{
#ifdef __CUDA_ARCH__
    uint32_t low = __byte_perm((uint32_t)value, 0, 0x0123), high = __byte_perm((uint32_t)(value >> 32), 0, 0x0123);
    return (uint64_t)low << 32 | high;
#else
    return __builtin_bswap64(value);
#endif
}

// Number of the first bit that is 1; there is one.
OUTBOARD_NET_CALL uint32_t trailing_zeros(uint64_t bits)
{
#ifdef __CUDA_ARCH__
    return (uint32_t)__ffsll((long long)bits) - 1;
#else
    return (uint32_t)__builtin_ctzll(bits);
#endif
}

OUTBOARD_NET_CALL uint64_t pair(uint32_t first, uint32_t second) { return big((uint64_t)first << 32 | second); }

#ifdef __CUDACC__
// Number of this thread in its block, and the threads of its warp that exist.
__device__ inline unsigned thread_in_block()
{
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

__device__ inline unsigned warp_mask()
{
    unsigned first = thread_in_block() & ~31u, count = blockDim.x * blockDim.y * blockDim.z - first;
    return count >= 32 ? 0xffffffffu : (1u << count) - 1;
}

// Waits for the other threads of the warp. A mask that the compiler knows costs less than one that it does not.
__device__ inline void sync_warp()
{
    unsigned warp = warp_mask();
    if (warp == 0xffffffffu) __syncwarp();
    else __syncwarp(warp);
}

// Words of the result that one thread of a block gives the others. Barriers around it keep calls apart.
__device__ inline void share_in_block(uint64_t *words, int count, bool leads)
{
    __shared__ uint64_t shared[8];
    if (leads)
        for (int word = 0; word < count; ++word) shared[word] = words[word];
    __syncthreads();
    for (int word = 0; word < count; ++word) words[word] = shared[word];
    __syncthreads();
}
#endif

// Number of this thread among the threads of its warp, and how many there are.
OUTBOARD_NET_CALL uint64_t lane()
{
#ifdef __CUDA_ARCH__
    return thread_in_block() & 31;
#else
    return 0;
#endif
}

OUTBOARD_NET_CALL uint64_t lanes()
{
#ifdef __CUDA_ARCH__
    return (uint64_t)__popc(warp_mask());
#else
    return 1;
#endif
}

OUTBOARD_NET_CALL bool any_of_warp(bool is)
{
#ifdef __CUDA_ARCH__
    return __any_sync(warp_mask(), is);
#else
    return is;
#endif
}

// Waits for the other threads of the group: what they wrote is seen. True in the one thread that acts for all.
template <Scope scope> OUTBOARD_NET_CALL bool enter()
{
#ifdef __CUDA_ARCH__
    if constexpr (scope == Scope::warp) {
        sync_warp();
        return (thread_in_block() & 31) == 0;
    }
    if constexpr (scope == Scope::block) {
        __syncthreads();
        return thread_in_block() == 0;
    }
#endif
    return true;
}

// Waits as enter() does, and says to all threads of the group whether all of them have `is`.
template <Scope scope> OUTBOARD_NET_CALL bool agree(bool is)
{
#ifdef __CUDA_ARCH__
    if constexpr (scope == Scope::warp) {
        sync_warp();
        unsigned warp = warp_mask();
        return warp == 0xffffffffu ? __all_sync(0xffffffffu, is) : __all_sync(warp, is);
    }
    if constexpr (scope == Scope::block) return __syncthreads_and(is) != 0;
#endif
    return is;
}

// Number of this thread in its group, and the group's threads.
template <Scope scope> OUTBOARD_NET_CALL uint64_t rank()
{
#ifdef __CUDA_ARCH__
    if constexpr (scope == Scope::warp) return thread_in_block() & 31;
    if constexpr (scope == Scope::block) return thread_in_block();
#endif
    return 0;
}

template <Scope scope> OUTBOARD_NET_CALL uint64_t members()
{
#ifdef __CUDA_ARCH__
    if constexpr (scope == Scope::warp) return __popc(warp_mask());
    if constexpr (scope == Scope::block) return blockDim.x * blockDim.y * blockDim.z;
#endif
    return 1;
}

// Gives the result of that thread, and all that it has acquired, to the others.
template <Scope scope, class Result> OUTBOARD_NET_CALL void share(Result &result, bool leads)
{
    static_assert(sizeof(Result) % 8 == 0 && sizeof(Result) <= 64, "words");
#ifdef __CUDA_ARCH__
    if constexpr (scope != Scope::thread) {
        uint64_t words[sizeof(Result) / 8];
        memcpy(words, &result, sizeof result);
        if constexpr (scope == Scope::warp) {
            for (uint64_t &word : words) word = __shfl_sync(warp_mask(), (unsigned long long)word, 0);
            sync_warp();
        } else {
            share_in_block(words, sizeof(Result) / 8, leads);
        }
        memcpy(&result, words, sizeof result);
    }
#endif
    (void)result;
    (void)leads;
}

} // namespace detail
} // namespace net
} // namespace outboard

// RDMA operations that threads of a kernel post themselves, to queues of mlx5's format. Header-only; C++17, sm_70 and
// later, plain PTX. The same source compiles for threads of the CPU.
//
//   Failure put(...)     posts, and stores a ticket      in many threads at once, to one queue or several
//   Failure wait(...)    until the ticket is complete    nobody waits beyond a deadline
//
// Order. An entry sees all that its thread wrote before the call. After wait() succeeded, what the operation wrote
// here may be read, and what it read may be overwritten. Entries of one queue are executed in the order of their
// tickets, so a signal arrives after the data that was put before it, and poll_slot() acquires: what was put before
// the signal may be read after it. Nothing is promised between two queues.
//
// Posting: reserve (compare-and-swap, if there is room), fill, ready in order (release), then whoever finds nobody
// ringing rings once for all that is ready. Threads of a warp that post together to one queue reserve once and ring once.
#pragma once

#include <stdint.h>

#include "net.h"

#if defined(__CUDACC__)
#define OUTBOARD_NET_CALL __host__ __device__ inline
#else
#include <sched.h>
#include <time.h>
#define OUTBOARD_NET_CALL inline
#endif
#if defined(__CUDACC__) && !defined(__CUDA_ARCH__)
#include <sched.h>
#include <time.h>
#endif

namespace outboard {
namespace net {

enum class Cause : uint32_t {
    none = 0,
    timeout,    // the deadline passed; the operation may still complete
    completion, // an entry failed: see syndrome
    stale,      // the queue was reset after the ticket was given
};

// Why a call failed: which queue, which entry, with which syndrome of the adapter (docs/net.md says what to do).
struct Failure {
    Cause cause;
    uint32_t qpn;
    uint64_t entry;
    uint32_t syndrome;

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

namespace detail {

constexpr uint32_t NOP = 0x00, WRITE = 0x08, READ = 0x10, COMPARE_SWAP = 0x11, FETCH_ADD = 0x12;
constexpr uint32_t SIGNALLED = 0x08;
constexpr uint32_t INLINE = 0x80000000u;
enum Counter { RESERVED = 0, READY = 8, RINGING = 16, RUNG = 24, DONE = 32, ERROR = 40, BASE = 48 };

OUTBOARD_NET_CALL uint64_t now_ns()
{
#ifdef __CUDA_ARCH__
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
#else
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
#endif
}

OUTBOARD_NET_CALL void pause()
{
#ifdef __CUDA_ARCH__
    asm volatile("nanosleep.u32 100;");
#else
    sched_yield();
#endif
}

// Relaxed, of system scope.
OUTBOARD_NET_CALL uint64_t load(const uint64_t *at)
{
#ifdef __CUDA_ARCH__
    uint64_t value;
    asm volatile("ld.relaxed.sys.b64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
#else
    return __atomic_load_n(at, __ATOMIC_RELAXED);
#endif
}

OUTBOARD_NET_CALL uint64_t load_acquire(const uint64_t *at)
{
#ifdef __CUDA_ARCH__
    uint64_t value;
    asm volatile("ld.acquire.sys.b64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
#else
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
#endif
}

OUTBOARD_NET_CALL void store(uint64_t *at, uint64_t value)
{
#ifdef __CUDA_ARCH__
    asm volatile("st.relaxed.sys.b64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
#else
    __atomic_store_n(at, value, __ATOMIC_RELAXED);
#endif
}

OUTBOARD_NET_CALL void store32(uint32_t *at, uint32_t value)
{
#ifdef __CUDA_ARCH__
    asm volatile("st.relaxed.sys.b32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
#else
    __atomic_store_n(at, value, __ATOMIC_RELAXED);
#endif
}

OUTBOARD_NET_CALL void store_release(uint64_t *at, uint64_t value)
{
#ifdef __CUDA_ARCH__
    asm volatile("st.release.sys.b64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
#else
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
#endif
}

// Orders what is before it with what is after it, for the adapter and all threads.
OUTBOARD_NET_CALL void fence()
{
#ifdef __CUDA_ARCH__
    asm volatile("fence.sc.sys;" ::: "memory");
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

OUTBOARD_NET_CALL uint64_t compare_exchange(uint64_t *at, uint64_t expected, uint64_t value)
{
#ifdef __CUDA_ARCH__
    uint64_t old;
    asm volatile("atom.acq_rel.sys.cas.b64 %0, [%1], %2, %3;" : "=l"(old) : "l"(at), "l"(expected), "l"(value) : "memory");
    return old;
#else
    __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return expected;
#endif
}

OUTBOARD_NET_CALL void raise(uint64_t *at, uint64_t value)
{
#ifdef __CUDA_ARCH__
    asm volatile("{ .reg .b64 old; atom.acq_rel.sys.max.u64 old, [%0], %1; }" ::"l"(at), "l"(value) : "memory");
#else
    uint64_t old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (old < value && !__atomic_compare_exchange_n(at, &old, value, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
    }
#endif
}

OUTBOARD_NET_CALL uint64_t big(uint64_t value)
{
#ifdef __CUDA_ARCH__
    uint32_t low = __byte_perm((uint32_t)value, 0, 0x0123), high = __byte_perm((uint32_t)(value >> 32), 0, 0x0123);
    return (uint64_t)low << 32 | high;
#else
    return __builtin_bswap64(value);
#endif
}

// Eight words of an entry, as they lie in memory.
struct Block {
    uint64_t words[8];
};

OUTBOARD_NET_CALL uint64_t pair(uint32_t first, uint32_t second) { return big((uint64_t)first << 32 | second); }

} // namespace detail

// A queue as one thread uses it. Copies are the same queue.
class Queue {
public:
    OUTBOARD_NET_CALL explicit Queue(const outboard_net_queue &of) : of_(of) {}

    // Writes bytes from here to there.
    OUTBOARD_NET_CALL Failure put(Remote to, Local from, uint32_t bytes, uint64_t timeout_ns, uint64_t *ticket)
    {
        return one_sided(detail::WRITE, to, from, bytes, timeout_ns, ticket);
    }

    // Reads bytes from there to here.
    OUTBOARD_NET_CALL Failure get(Local to, Remote from, uint32_t bytes, uint64_t timeout_ns, uint64_t *ticket)
    {
        return one_sided(detail::READ, from, to, bytes, timeout_ns, ticket);
    }

    // Writes the value, which travels in the entry: no memory of this side is read.
    OUTBOARD_NET_CALL Failure put_value(Remote to, uint64_t value, uint64_t timeout_ns, uint64_t *ticket)
    {
        detail::Block block = begin(3);
        remote(block, to);
        // The bytes of the value follow its length, in the order of this machine.
        uint32_t low = (uint32_t)value, high = (uint32_t)(value >> 32);
        block.words[4] = (detail::big(detail::INLINE | 8) >> 32) | (uint64_t)low << 32;
        block.words[5] = high;
        return post(block, detail::WRITE, timeout_ns, ticket);
    }

    // Adds to an aligned word there; the value before is written here.
    OUTBOARD_NET_CALL Failure fetch_add(Remote to, uint64_t add, Local before, uint64_t timeout_ns, uint64_t *ticket)
    {
        return atomic(detail::FETCH_ADD, to, add, 0, before, timeout_ns, ticket);
    }

    // Replaces an aligned word there if it has the expected value; the value before is written here.
    OUTBOARD_NET_CALL Failure compare_swap(Remote to, uint64_t expected, uint64_t value, Local before, uint64_t timeout_ns,
                                           uint64_t *ticket)
    {
        return atomic(detail::COMPARE_SWAP, to, value, expected, before, timeout_ns, ticket);
    }

    // Sets a flag after all that was put before: a generation, never the same value twice.
    OUTBOARD_NET_CALL Failure signal_set(Remote flag, uint64_t generation, uint64_t timeout_ns, uint64_t *ticket)
    {
        return put_value(flag, generation, timeout_ns, ticket);
    }

    // Adds to a flag after all that was put before.
    OUTBOARD_NET_CALL Failure signal_add(Remote flag, uint64_t add, uint64_t timeout_ns, uint64_t *ticket)
    {
        return fetch_add(flag, add, Local{of_.scratch, of_.scratch_key}, timeout_ns, ticket);
    }

    OUTBOARD_NET_CALL Failure nop(uint64_t timeout_ns, uint64_t *ticket)
    {
        return post(begin(1), detail::NOP, timeout_ns, ticket);
    }

    // Waits until an operation is complete. Acquires: what it wrote here may be read.
    OUTBOARD_NET_CALL Failure wait(uint64_t ticket, uint64_t timeout_ns)
    {
        uint64_t deadline = detail::now_ns() + timeout_ns;
        for (;;) {
            if (ticket < detail::load_acquire(counter(detail::BASE))) return fail(Cause::stale, ticket, 0);
            if (detail::load_acquire(counter(detail::DONE)) > ticket) return Failure{};
            uint64_t error = failed();
            if (error != 0 && ticket >= error >> 8) {
                return fail(Cause::completion, error >> 8, (uint32_t)(error & 0xff));
            }
            poll();
            if (detail::load_acquire(counter(detail::DONE)) > ticket) continue;
            if (detail::now_ns() > deadline) return fail(Cause::timeout, ticket, 0);
            detail::pause();
        }
    }

    // Whether an operation is complete, or has failed, without waiting.
    OUTBOARD_NET_CALL bool test(uint64_t ticket, Failure *failure)
    {
        *failure = wait(ticket, 0);
        return failure->cause != Cause::timeout;
    }

    // Waits for all that was posted before, by all threads.
    OUTBOARD_NET_CALL Failure flush(uint64_t timeout_ns)
    {
        uint64_t reserved = detail::load_acquire(counter(detail::RESERVED));
        if (reserved == detail::load_acquire(counter(detail::BASE))) return Failure{};
        return wait(reserved - 1, timeout_ns);
    }

private:
    OUTBOARD_NET_CALL uint64_t *counter(detail::Counter which) const { return (uint64_t *)of_.counters + which; }

    OUTBOARD_NET_CALL Failure fail(Cause cause, uint64_t entry, uint32_t syndrome) const
    {
        return Failure{cause, of_.qpn, entry, syndrome};
    }

    // The first failure since the last reset: entry and syndrome, or 0.
    OUTBOARD_NET_CALL uint64_t failed() const
    {
        uint64_t error = detail::load_acquire(counter(detail::ERROR));
        return error >> 8 >= detail::load_acquire(counter(detail::BASE)) ? error : 0;
    }

    OUTBOARD_NET_CALL detail::Block begin(uint32_t segments) const
    {
        detail::Block block = {};
        block.words[0] = of_.qpn << 8 | segments;
        block.words[1] = detail::pair(detail::SIGNALLED, 0);
        return block;
    }

    OUTBOARD_NET_CALL static void remote(detail::Block &block, Remote to)
    {
        block.words[2] = detail::big(to.address);
        block.words[3] = detail::pair(to.key, 0);
    }

    OUTBOARD_NET_CALL static void local(detail::Block &block, int word, Local of, uint32_t bytes)
    {
        block.words[word] = detail::pair(bytes, of.key);
        block.words[word + 1] = detail::big(of.address);
    }

    OUTBOARD_NET_CALL Failure one_sided(uint32_t opcode, Remote there, Local here, uint32_t bytes, uint64_t timeout_ns,
                                        uint64_t *ticket)
    {
        // A segment of length 0 would be one of 2 GiB, so an empty operation has none.
        detail::Block block = begin(bytes == 0 ? 2 : 3);
        remote(block, there);
        if (bytes != 0) local(block, 4, here, bytes);
        return post(block, opcode, timeout_ns, ticket);
    }

    OUTBOARD_NET_CALL Failure atomic(uint32_t opcode, Remote to, uint64_t first, uint64_t second, Local before,
                                     uint64_t timeout_ns, uint64_t *ticket)
    {
        detail::Block block = begin(4);
        remote(block, to);
        block.words[4] = detail::big(first);
        block.words[5] = detail::big(second);
        local(block, 6, before, 8);
        return post(block, opcode, timeout_ns, ticket);
    }

    // Takes a completion. The counter is read before it: a completion is never older than what is known.
    OUTBOARD_NET_CALL void poll()
    {
        uint64_t done = detail::load_acquire(counter(detail::DONE));
        const uint64_t *completion = (const uint64_t *)of_.completion;
        uint64_t last = detail::load_acquire(completion + 7);
        uint32_t kind = (uint32_t)(last >> 60);
        if (kind == 15) return;
        uint16_t index = (uint16_t)((last >> 32 & 0xff) << 8 | (last >> 40 & 0xff));
        uint16_t ahead = (uint16_t)(index - (uint16_t)done);
        if (ahead >= 0x8000) return;
        uint64_t entry = done + ahead;
        if (kind == 0) {
            detail::raise(counter(detail::DONE), entry + 1);
            return;
        }
        uint64_t syndrome = detail::load(completion + 6) >> 56;
        detail::raise(counter(detail::DONE), entry);
        uint64_t old = detail::load_acquire(counter(detail::ERROR));
        if (old >> 8 < detail::load_acquire(counter(detail::BASE)) || old == 0) {
            detail::compare_exchange(counter(detail::ERROR), old, entry << 8 | syndrome);
        }
    }

    // Reserves entries, if there is room or comes to be in time.
    OUTBOARD_NET_CALL Failure reserve(uint64_t count, uint64_t deadline, uint64_t *first)
    {
        for (;;) {
            uint64_t reserved = detail::load_acquire(counter(detail::RESERVED));
            uint64_t error = failed();
            if (error != 0) return fail(Cause::completion, error >> 8, (uint32_t)(error & 0xff));
            if (reserved + count - detail::load_acquire(counter(detail::DONE)) <= (uint64_t)1 << of_.log_blocks) {
                if (detail::compare_exchange(counter(detail::RESERVED), reserved, reserved + count) == reserved) {
                    *first = reserved;
                    return Failure{};
                }
                continue;
            }
            poll();
            if (detail::now_ns() > deadline) return fail(Cause::timeout, reserved, 0);
            detail::pause();
        }
    }

    OUTBOARD_NET_CALL void fill(uint64_t entry, detail::Block &block, uint32_t opcode)
    {
        uint32_t second = (uint32_t)block.words[0];
        block.words[0] = detail::pair((uint32_t)(entry & 0xffff) << 8 | opcode, second);
        uint64_t *slot = (uint64_t *)of_.ring + (entry & (((uint64_t)1 << of_.log_blocks) - 1)) * 8;
        for (int word = 0; word < 8; ++word) detail::store(slot + word, block.words[word]);
    }

    // Makes entries ready in their order. A thread that was ended before this ends the queue by the deadline.
    OUTBOARD_NET_CALL Failure publish(uint64_t first, uint64_t count, uint64_t deadline)
    {
        while (detail::load_acquire(counter(detail::READY)) != first) {
            if (detail::now_ns() > deadline) {
                detail::compare_exchange(counter(detail::ERROR), 0, first << 8 | 0x02);
                return fail(Cause::timeout, first, 0);
            }
            detail::pause();
        }
        detail::fence();
        detail::store_release(counter(detail::READY), first + count);
        ring();
        return Failure{};
    }

    // Rings for all that is ready, unless another thread does: it looks again after it has rung.
    OUTBOARD_NET_CALL void ring()
    {
        detail::fence();
        while (detail::compare_exchange(counter(detail::RINGING), 0, 1) == 0) {
            uint64_t ready = detail::load_acquire(counter(detail::READY));
            if (ready != detail::load(counter(detail::RUNG))) {
                uint32_t index = (uint32_t)(ready & 0xffff);
                detail::fence();
                detail::store32((uint32_t *)of_.record + 1, (uint32_t)(detail::big(index) >> 32));
                detail::fence();
                detail::store((uint64_t *)of_.doorbell, detail::pair(index << 8, of_.qpn << 8));
                detail::store(counter(detail::RUNG), ready);
            }
            detail::store_release(counter(detail::RINGING), 0);
            detail::fence();
            if (detail::load_acquire(counter(detail::READY)) == ready) return;
        }
    }

    OUTBOARD_NET_CALL Failure post_alone(detail::Block &block, uint32_t opcode, uint64_t deadline, uint64_t *ticket)
    {
        uint64_t first = 0;
        Failure failure = reserve(1, deadline, &first);
        if (failure) return failure;
        *ticket = first;
        fill(first, block, opcode);
        return publish(first, 1, deadline);
    }

    OUTBOARD_NET_CALL Failure post(detail::Block block, uint32_t opcode, uint64_t timeout_ns, uint64_t *ticket)
    {
        uint64_t deadline = detail::now_ns() + timeout_ns;
#ifdef __CUDA_ARCH__
        unsigned group = __match_any_sync(__activemask(), (unsigned long long)of_.counters);
        unsigned lane;
        asm("mov.u32 %0, %%laneid;" : "=r"(lane));
        // A ring has at least 32 entries, so that a whole warp finds room.
        return post_together(block, opcode, deadline, ticket, group, lane, __popc(group));
#else
        return post_alone(block, opcode, deadline, ticket);
#endif
    }

#ifdef __CUDACC__
    __device__ Failure post_together(detail::Block &block, uint32_t opcode, uint64_t deadline, uint64_t *ticket,
                                     unsigned group, unsigned lane, unsigned count)
    {
        int leader = __ffs((int)group) - 1;
        uint64_t first = 0;
        Failure failure{};
        if ((int)lane == leader) failure = reserve(count, deadline, &first);
        failure.cause = (Cause)__shfl_sync(group, (unsigned)failure.cause, leader);
        failure.syndrome = __shfl_sync(group, failure.syndrome, leader);
        failure.entry = __shfl_sync(group, (unsigned long long)failure.entry, leader);
        failure.qpn = of_.qpn;
        first = __shfl_sync(group, (unsigned long long)first, leader);
        if (failure) return failure;
        *ticket = first + __popc(group & ((1u << lane) - 1));
        fill(*ticket, block, opcode);
        detail::fence();
        __syncwarp(group);
        if ((int)lane == leader) failure = publish(first, count, deadline);
        failure.cause = (Cause)__shfl_sync(group, (unsigned)failure.cause, leader);
        return failure;
    }
#endif

    outboard_net_queue of_;
};

// Waits until a flag has this generation. Acquires: what was put before the flag may be read. False at the deadline.
OUTBOARD_NET_CALL bool poll_slot(const uint64_t *flag, uint64_t generation, uint64_t timeout_ns)
{
    uint64_t deadline = detail::now_ns() + timeout_ns;
    while (detail::load_acquire(flag) != generation) {
        if (detail::now_ns() > deadline) return false;
        detail::pause();
    }
    return true;
}

#ifdef __CUDACC__
// Waits, with all 32 threads of a warp, until one of the flags has this generation. Flags are `stride` words apart.
// Returns the number of the first such flag to all threads, or -1 at the deadline.
__device__ inline int poll_any(const uint64_t *flags, int count, int stride, uint64_t generation, uint64_t timeout_ns)
{
    uint64_t deadline = detail::now_ns() + timeout_ns;
    unsigned lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    for (;;) {
        for (int first = 0; first < count; first += 32) {
            int at = first + (int)lane;
            bool here = at < count && detail::load_acquire(flags + (long)at * stride) == generation;
            unsigned found = __ballot_sync(0xffffffffu, here);
            if (found) return first + __ffs((int)found) - 1;
        }
        if (__any_sync(0xffffffffu, detail::now_ns() > deadline)) return -1;
        detail::pause();
    }
}
#endif

} // namespace net
} // namespace outboard

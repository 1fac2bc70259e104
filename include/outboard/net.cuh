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
//
// Scopes. With Scope::warp or Scope::block, put<Scope::warp>(...), all threads of the warp or block make the call
// together with the same arguments: it is one operation, which sees what all of them wrote before, and all get its
// result. On the CPU every thread is a group of its own.
//
// Signalling. Of a queue with signal_every N, the entries N-1, 2N-1, ... complete, and with each of them all before it.
// wait() posts a signalled nop if no entry that completes has been posted since the ticket's; test() does not.
#pragma once

#include <stdint.h>
#include <string.h>

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
    stale,      // the queue was reset after the ticket was given, or while a receive was waited for
    invalid,    // more than 2 GiB, or receives of a queue without any: nothing was posted
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
constexpr uint64_t ALL = UINT64_MAX >> 8;
// Time beyond its deadline that a post waits for the threads before it: what it has reserved cannot be given back.
constexpr uint64_t LOST_NS = 1000000000;
// Counters of a queue, a line each. FORCED is behind the last nop that was posted for those who wait.
enum Counter {
    RESERVED = 0, READY = 8, RINGING = 16, RUNG = 24, DONE = 32, ERROR = 40, BASE = 48, FORCED = 56,
    CONSUMED = 64, RECEIVES_RESERVED = 72, RECEIVES_READY = 80, RECEIVES_CONSUMED = 88, FORCING = 96,
};

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

// Waits for the other threads of the group: what they wrote is seen. True in the one thread that acts for all.
template <Scope scope> OUTBOARD_NET_CALL bool enter()
{
#ifdef __CUDA_ARCH__
    if constexpr (scope == Scope::warp) {
        __syncwarp(warp_mask());
        return (thread_in_block() & 31) == 0;
    }
    if constexpr (scope == Scope::block) {
        __syncthreads();
        return thread_in_block() == 0;
    }
#endif
    return true;
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
            __syncwarp(warp_mask());
        } else {
            share_in_block(words, sizeof(Result) / 8, leads);
        }
        memcpy(&result, words, sizeof result);
    }
#endif
    (void)result;
    (void)leads;
}

// A completion of a ring, whose owner bit says in which round it was written.
struct Taken {
    uint32_t kind, syndrome, bytes, imm;
    uint16_t index;
};

// Reads completion `number`. The caller has to see that nobody has consumed it before it believes the result.
OUTBOARD_NET_CALL bool read_completion(uint64_t at, uint64_t number, uint32_t log, Taken *taken)
{
    const uint64_t *completion = (const uint64_t *)at + (number & (((uint64_t)1 << log) - 1)) * 8;
    uint64_t last = load_acquire(completion + 7);
    taken->kind = (uint32_t)(last >> 60);
    if (taken->kind == 15 || (last >> 56 & 1) != (number >> log & 1)) return false;
    taken->index = (uint16_t)((last >> 32 & 0xff) << 8 | (last >> 40 & 0xff));
    taken->syndrome = taken->kind >= 13 ? (uint32_t)(load(completion + 6) >> 56) : 0;
    taken->imm = (uint32_t)(big(load(completion + 4)));
    taken->bytes = (uint32_t)(big(load(completion + 5)));
    return true;
}

} // namespace detail

// A queue as one thread uses it. Copies are the same queue.
class Queue {
public:
    OUTBOARD_NET_CALL explicit Queue(const outboard_net_queue &of) : of_(of) {}

    // Writes bytes from here to there: 2 GiB at most.
    template <Scope scope = Scope::thread>
    OUTBOARD_NET_CALL Failure put(Remote to, Local from, uint64_t bytes, uint64_t timeout_ns, uint64_t *ticket)
    {
        return one_sided<scope>(detail::WRITE, to, from, bytes, 0, timeout_ns, ticket);
    }

    // Writes bytes, and takes a receive of the peer, which gets the number. It may be waited for by receive() there.
    template <Scope scope = Scope::thread>
    OUTBOARD_NET_CALL Failure put_imm(Remote to, Local from, uint64_t bytes, uint32_t imm, uint64_t timeout_ns,
                                      uint64_t *ticket)
    {
        return one_sided<scope>(detail::WRITE_IMM, to, from, bytes, imm, timeout_ns, ticket);
    }

    // Reads bytes from there to here: 2 GiB at most.
    template <Scope scope = Scope::thread>
    OUTBOARD_NET_CALL Failure get(Local to, Remote from, uint64_t bytes, uint64_t timeout_ns, uint64_t *ticket)
    {
        return one_sided<scope>(detail::READ, from, to, bytes, 0, timeout_ns, ticket);
    }

    // Sends bytes to the memory of the peer's next receive.
    template <Scope scope = Scope::thread>
    OUTBOARD_NET_CALL Failure send(Local from, uint64_t bytes, uint64_t timeout_ns, uint64_t *ticket)
    {
        return message<scope>(detail::SEND, from, bytes, 0, timeout_ns, ticket);
    }

    // Sends bytes and a number.
    template <Scope scope = Scope::thread>
    OUTBOARD_NET_CALL Failure send_imm(Local from, uint64_t bytes, uint32_t imm, uint64_t timeout_ns, uint64_t *ticket)
    {
        return message<scope>(detail::SEND_IMM, from, bytes, imm, timeout_ns, ticket);
    }

    // Writes the value, which travels in the entry: no memory of this side is read.
    template <Scope scope = Scope::thread>
    OUTBOARD_NET_CALL Failure put_value(Remote to, uint64_t value, uint64_t timeout_ns, uint64_t *ticket)
    {
        detail::Block block = begin(3);
        remote(block, to);
        // The bytes of the value follow its length, in the order of this machine.
        uint32_t low = (uint32_t)value, high = (uint32_t)(value >> 32);
        block.words[4] = (detail::big(detail::INLINE | 8) >> 32) | (uint64_t)low << 32;
        block.words[5] = high;
        return post<scope>(block, detail::WRITE, timeout_ns, ticket);
    }

    // Adds to an aligned word there; the value before is written here.
    template <Scope scope = Scope::thread>
    OUTBOARD_NET_CALL Failure fetch_add(Remote to, uint64_t add, Local before, uint64_t timeout_ns, uint64_t *ticket)
    {
        return atomic<scope>(detail::FETCH_ADD, to, add, 0, before, timeout_ns, ticket);
    }

    // Replaces an aligned word there if it has the expected value; the value before is written here.
    template <Scope scope = Scope::thread>
    OUTBOARD_NET_CALL Failure compare_swap(Remote to, uint64_t expected, uint64_t value, Local before, uint64_t timeout_ns,
                                           uint64_t *ticket)
    {
        return atomic<scope>(detail::COMPARE_SWAP, to, value, expected, before, timeout_ns, ticket);
    }

    // Sets a flag after all that was put before: a generation, never the same value twice.
    template <Scope scope = Scope::thread>
    OUTBOARD_NET_CALL Failure signal_set(Remote flag, uint64_t generation, uint64_t timeout_ns, uint64_t *ticket)
    {
        return put_value<scope>(flag, generation, timeout_ns, ticket);
    }

    // Adds to a flag after all that was put before.
    template <Scope scope = Scope::thread>
    OUTBOARD_NET_CALL Failure signal_add(Remote flag, uint64_t add, uint64_t timeout_ns, uint64_t *ticket)
    {
        return fetch_add<scope>(flag, add, Local{of_.scratch, of_.scratch_key}, timeout_ns, ticket);
    }

    template <Scope scope = Scope::thread> OUTBOARD_NET_CALL Failure nop(uint64_t timeout_ns, uint64_t *ticket)
    {
        return post<scope>(begin(1), detail::NOP, timeout_ns, ticket);
    }

    // Waits until an operation is complete. Acquires: what it wrote here may be read.
    template <Scope scope = Scope::thread> OUTBOARD_NET_CALL Failure wait(uint64_t ticket, uint64_t timeout_ns)
    {
        bool leads = detail::enter<scope>();
        Failure failure{};
        if (leads) failure = wait_alone(ticket, detail::now_ns() + timeout_ns, true);
        detail::share<scope>(failure, leads);
        return failure;
    }

    // Whether an operation is complete, or has failed, without waiting.
    OUTBOARD_NET_CALL bool test(uint64_t ticket, Failure *failure)
    {
        *failure = wait_alone(ticket, 0, false);
        return failure->cause != Cause::timeout;
    }

    // Waits for all that was posted before, by all threads.
    template <Scope scope = Scope::thread> OUTBOARD_NET_CALL Failure flush(uint64_t timeout_ns)
    {
        bool leads = detail::enter<scope>();
        Failure failure{};
        if (leads) {
            uint64_t reserved = detail::load_acquire(counter(detail::RESERVED));
            bool posted = reserved != detail::load_acquire(counter(detail::BASE));
            if (posted) failure = wait_alone(reserved - 1, detail::now_ns() + timeout_ns, true);
        }
        detail::share<scope>(failure, leads);
        return failure;
    }

    // Posts memory for a message of the peer's; of 0 bytes for a put_imm or an empty send. Messages take receives in the
    // order of their tickets. Waits for room, which receive() makes.
    template <Scope scope = Scope::thread>
    OUTBOARD_NET_CALL Failure post_receive(Local into, uint64_t bytes, uint64_t timeout_ns, uint64_t *ticket)
    {
        bool leads = detail::enter<scope>();
        Answer answer{};
        if (leads) answer.failure = receive_into(into, bytes, detail::now_ns() + timeout_ns, &answer.ticket);
        detail::share<scope>(answer, leads);
        *ticket = answer.ticket;
        return answer.failure;
    }

    // Waits for a message. Acquires: what arrived may be read. Each message is given to one caller; a receive that
    // failed, too, as the failure of its ticket.
    template <Scope scope = Scope::thread> OUTBOARD_NET_CALL Failure receive(uint64_t timeout_ns, Received *received)
    {
        bool leads = detail::enter<scope>();
        Arrived answer{};
        if (leads) answer.failure = receive_alone(detail::now_ns() + timeout_ns, &answer.received);
        detail::share<scope>(answer, leads);
        *received = answer.received;
        return answer.failure;
    }

private:
    struct Answer {
        Failure failure;
        uint64_t ticket;
    };
    struct Arrived {
        Failure failure;
        Received received;
    };

    OUTBOARD_NET_CALL uint64_t *counter(detail::Counter which) const { return (uint64_t *)of_.counters + which; }

    OUTBOARD_NET_CALL Failure fail(Cause cause, uint64_t entry, uint32_t syndrome, Side side = Side::send) const
    {
        return Failure{cause, of_.qpn, entry, syndrome, side};
    }

    OUTBOARD_NET_CALL static bool later(uint64_t deadline)
    {
        if (detail::now_ns() > deadline) return true;
        detail::pause();
        return false;
    }

    OUTBOARD_NET_CALL bool signals(uint64_t entry) const
    {
        return of_.signal_every == 1 || (entry + 1) % of_.signal_every == 0;
    }

    // Time at which the threads before this one are lost: they have reserved, and do not become ready.
    OUTBOARD_NET_CALL static uint64_t lost(uint64_t deadline)
    {
        uint64_t now = detail::now_ns();
        return (deadline > now ? deadline : now) + detail::LOST_NS;
    }

    OUTBOARD_NET_CALL Failure wait_alone(uint64_t ticket, uint64_t deadline, bool may_post)
    {
        // The first entry at or after the ticket's that completes by itself.
        uint64_t covers = of_.signal_every == 1 ? ticket : (ticket / of_.signal_every + 1) * of_.signal_every - 1;
        for (;;) {
            if (ticket < detail::load_acquire(counter(detail::BASE))) return fail(Cause::stale, ticket, 0);
            if (detail::load_acquire(counter(detail::DONE)) > ticket) return Failure{};
            uint64_t error = failed();
            if (error != 0 && ticket >= error >> 8) {
                return fail(Cause::completion, error >> 8, (uint32_t)(error & 0xff));
            }
            poll();
            if (detail::load_acquire(counter(detail::DONE)) > ticket) continue;
            if (may_post && detail::load_acquire(counter(detail::RESERVED)) <= covers) force(ticket, deadline);
            if (later(deadline)) return fail(Cause::timeout, ticket, 0);
        }
    }

    // Posts a nop that completes, unless another thread has done so, or does.
    OUTBOARD_NET_CALL void force(uint64_t ticket, uint64_t deadline)
    {
        if (detail::load_acquire(counter(detail::FORCED)) > ticket || failed() != 0) return;
        if (detail::compare_exchange(counter(detail::FORCING), 0, 1) != 0) return;
        if (detail::load_acquire(counter(detail::FORCED)) <= ticket) {
            detail::Block block = begin(1);
            block.words[1] = detail::pair(detail::SIGNALLED, 0);
            uint64_t nop = 0;
            if (!post_alone(block, detail::NOP, deadline, &nop)) detail::raise(counter(detail::FORCED), nop + 1);
        }
        detail::store_release(counter(detail::FORCING), 0);
    }

    // The first failure since the last reset: entry and syndrome, or 0.
    OUTBOARD_NET_CALL uint64_t failed() const
    {
        uint64_t error = detail::load_acquire(counter(detail::ERROR));
        return error >> 8 >= detail::load_acquire(counter(detail::BASE)) ? error : 0;
    }

    OUTBOARD_NET_CALL detail::Block begin(uint32_t segments, uint32_t imm = 0) const
    {
        detail::Block block = {};
        block.words[0] = of_.qpn << 8 | segments;
        block.words[1] = detail::pair(0, imm);
        return block;
    }

    OUTBOARD_NET_CALL static void remote(detail::Block &block, Remote to)
    {
        block.words[2] = detail::big(to.address);
        block.words[3] = detail::pair(to.key, 0);
    }

    // Of a length of 2 GiB the field is 0: its first bit says that bytes follow inline.
    OUTBOARD_NET_CALL static void local(detail::Block &block, int word, Local of, uint64_t bytes)
    {
        block.words[word] = detail::pair((uint32_t)(bytes & (detail::BYTES_MAX - 1)), of.key);
        block.words[word + 1] = detail::big(of.address);
    }

    template <Scope scope>
    OUTBOARD_NET_CALL Failure one_sided(uint32_t opcode, Remote there, Local here, uint64_t bytes, uint32_t imm,
                                        uint64_t timeout_ns, uint64_t *ticket)
    {
        if (bytes > detail::BYTES_MAX) return fail(Cause::invalid, 0, 0);
        // A segment of length 0 would be one of 2 GiB, so an empty operation has none.
        detail::Block block = begin(bytes == 0 ? 2 : 3, imm);
        remote(block, there);
        if (bytes != 0) local(block, 4, here, bytes);
        return post<scope>(block, opcode, timeout_ns, ticket);
    }

    template <Scope scope>
    OUTBOARD_NET_CALL Failure message(uint32_t opcode, Local from, uint64_t bytes, uint32_t imm, uint64_t timeout_ns,
                                      uint64_t *ticket)
    {
        if (bytes > detail::BYTES_MAX) return fail(Cause::invalid, 0, 0);
        detail::Block block = begin(bytes == 0 ? 1 : 2, imm);
        if (bytes != 0) local(block, 2, from, bytes);
        return post<scope>(block, opcode, timeout_ns, ticket);
    }

    template <Scope scope>
    OUTBOARD_NET_CALL Failure atomic(uint32_t opcode, Remote to, uint64_t first, uint64_t second, Local before,
                                     uint64_t timeout_ns, uint64_t *ticket)
    {
        detail::Block block = begin(4);
        remote(block, to);
        block.words[4] = detail::big(first);
        block.words[5] = detail::big(second);
        local(block, 6, before, 8);
        return post<scope>(block, opcode, timeout_ns, ticket);
    }

    OUTBOARD_NET_CALL void poll()
    {
        if (of_.flags & OUTBOARD_NET_PLAIN) {
            poll_plain();
        } else {
            poll_collapsed();
        }
    }

    // Notes the first failure since the reset.
    OUTBOARD_NET_CALL void note_failure(uint64_t entry, uint64_t syndrome)
    {
        detail::raise(counter(detail::DONE), entry);
        uint64_t old = detail::load_acquire(counter(detail::ERROR));
        if (old >> 8 < detail::load_acquire(counter(detail::BASE)) || old == 0) {
            detail::compare_exchange(counter(detail::ERROR), old, entry << 8 | syndrome);
        }
    }

    // Takes the next completion of the ring. A failure is noted before the completion counts as consumed, so that
    // nobody takes what was flushed behind it for the first failure.
    OUTBOARD_NET_CALL void poll_plain()
    {
        uint64_t done = detail::load_acquire(counter(detail::DONE));
        uint64_t number = detail::load_acquire(counter(detail::CONSUMED));
        detail::Taken taken;
        if (!detail::read_completion(of_.completion, number, of_.log_blocks, &taken)) return;
        // Loads before are not made again after this one: the completion was this one if nobody has consumed it.
        detail::fence();
        if (detail::load_acquire(counter(detail::CONSUMED)) != number) return;
        uint64_t entry = done + (uint16_t)(taken.index - (uint16_t)done);
        if (taken.kind != 0 && failed() == 0) note_failure(entry, taken.syndrome);
        if (detail::compare_exchange(counter(detail::CONSUMED), number, number + 1) != number) return;
        if (taken.kind == 0) detail::raise(counter(detail::DONE), entry + 1);
    }

    // Takes a completion. The counter is read before it: a completion is never older than what is known.
    OUTBOARD_NET_CALL void poll_collapsed()
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
        note_failure(entry, detail::load(completion + 6) >> 56);
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
            if (later(deadline)) return fail(Cause::timeout, reserved, 0);
        }
    }

    OUTBOARD_NET_CALL void fill(uint64_t entry, detail::Block &block, uint32_t opcode)
    {
        uint32_t second = (uint32_t)block.words[0];
        block.words[0] = detail::pair((uint32_t)(entry & 0xffff) << 8 | opcode, second);
        if (signals(entry)) block.words[1] |= detail::pair(detail::SIGNALLED, 0);
        uint64_t *slot = (uint64_t *)of_.ring + (entry & (((uint64_t)1 << of_.log_blocks) - 1)) * 8;
        for (int word = 0; word < 8; ++word) detail::store(slot + word, block.words[word]);
    }

    // Makes entries ready in their order. A thread that was ended before this ends the queue, by lost().
    OUTBOARD_NET_CALL Failure publish(uint64_t first, uint64_t count, uint64_t deadline)
    {
        uint64_t lost_at = lost(deadline);
        while (detail::load_acquire(counter(detail::READY)) != first) {
            if (later(lost_at)) {
                detail::compare_exchange(counter(detail::ERROR), 0, first << 8 | 0x02);
                return fail(Cause::timeout, first, 0);
            }
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

    template <Scope scope>
    OUTBOARD_NET_CALL Failure post(detail::Block block, uint32_t opcode, uint64_t timeout_ns, uint64_t *ticket)
    {
        uint64_t deadline = detail::now_ns() + timeout_ns;
        if constexpr (scope != Scope::thread) {
            bool leads = detail::enter<scope>();
            Answer answer{};
            if (leads) answer.failure = post_alone(block, opcode, deadline, &answer.ticket);
            detail::share<scope>(answer, leads);
            *ticket = answer.ticket;
            return answer.failure;
        }
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

    // Posts a receive: reserve, fill, and in order the record and the counter, which have one writer at a time.
    OUTBOARD_NET_CALL Failure receive_into(Local into, uint64_t bytes, uint64_t deadline, uint64_t *ticket)
    {
        if (of_.log_receives == 0 || bytes > detail::BYTES_MAX) return fail(Cause::invalid, 0, 0, Side::receive);
        uint64_t count = (uint64_t)1 << of_.log_receives, number = 0;
        for (;;) {
            number = detail::load_acquire(counter(detail::RECEIVES_RESERVED));
            uint64_t error = failed();
            if (error != 0) return fail(Cause::completion, error >> 8, (uint32_t)(error & 0xff));
            if (number - detail::load_acquire(counter(detail::RECEIVES_CONSUMED)) >= count) {
                if (later(deadline)) return fail(Cause::timeout, number, 0, Side::receive);
            } else if (detail::compare_exchange(counter(detail::RECEIVES_RESERVED), number, number + 1) == number) {
                break;
            }
        }
        *ticket = number;
        uint64_t *slot = (uint64_t *)of_.receives + (number & (count - 1)) * 2;
        uint32_t length = (uint32_t)(bytes & (detail::BYTES_MAX - 1));
        detail::store(slot, detail::pair(length, bytes == 0 ? detail::NO_MEMORY : into.key));
        detail::store(slot + 1, detail::big(into.address));
        uint64_t lost_at = lost(deadline);
        while (detail::load_acquire(counter(detail::RECEIVES_READY)) != number) {
            if (later(lost_at)) {
                detail::compare_exchange(counter(detail::ERROR), 0, detail::load(counter(detail::DONE)) << 8 | 0x02);
                return fail(Cause::timeout, number, 0, Side::receive);
            }
        }
        detail::fence();
        detail::store32((uint32_t *)of_.record, (uint32_t)(detail::big((number + 1) & 0xffff) >> 32));
        detail::store_release(counter(detail::RECEIVES_READY), number + 1);
        return Failure{};
    }

    OUTBOARD_NET_CALL Failure receive_alone(uint64_t deadline, Received *received)
    {
        if (of_.log_receives == 0) return fail(Cause::invalid, 0, 0, Side::receive);
        for (;;) {
            uint64_t number = detail::load_acquire(counter(detail::RECEIVES_CONSUMED));
            uint64_t error = detail::load_acquire(counter(detail::ERROR));
            if (error >> 8 == detail::ALL) return fail(Cause::stale, number, 0, Side::receive);
            detail::Taken taken;
            // Receives complete in their order, so a completion's number is its receive's.
            if (detail::read_completion(of_.receive_completions, number, of_.log_receives, &taken)) {
                // Nobody posts another receive to this slot before this one is consumed.
                uint64_t slot = of_.receives + (number & (((uint64_t)1 << of_.log_receives) - 1)) * 16;
                uint64_t address = detail::big(detail::load((const uint64_t *)slot + 1));
                if (detail::compare_exchange(counter(detail::RECEIVES_CONSUMED), number, number + 1) != number) continue;
                if (taken.kind >= 13) return fail(Cause::completion, number, taken.syndrome, Side::receive);
                *received = Received{number, address, (Arrival)taken.kind, taken.bytes, taken.imm};
                return Failure{};
            }
            poll();
            error = failed();
            if (error != 0 && detail::load_acquire(counter(detail::RECEIVES_READY)) == number) {
                return fail(Cause::completion, error >> 8, (uint32_t)(error & 0xff));
            }
            if (later(deadline)) return fail(Cause::timeout, number, 0, Side::receive);
        }
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

// Waits, with all threads of a warp, until one of the flags has another generation than `seen` has of it; notes the new
// one there, and returns the flag's number to all threads, or -1 at the deadline. Flags are `stride` words apart. The
// search begins at `from`: after the last one found, no flag is left out. Acquires as poll_slot() does.
OUTBOARD_NET_CALL int poll_any(const uint64_t *flags, int count, int stride, uint64_t *seen, int from, uint64_t timeout_ns)
{
    uint64_t deadline = detail::now_ns() + timeout_ns;
#ifdef __CUDA_ARCH__
    unsigned warp = detail::warp_mask();
    int lane = (int)(detail::thread_in_block() & 31), lanes = __popc(warp);
#else
    int lane = 0, lanes = 1;
#endif
    for (;;) {
        for (int first = 0; first < count; first += lanes) {
            int at = (int)(((unsigned)from + (unsigned)(first + lane)) % (unsigned)count);
            uint64_t generation = first + lane < count ? detail::load_acquire(flags + (long)at * stride) : 0;
            bool here = first + lane < count && generation != detail::load(seen + at);
#ifdef __CUDA_ARCH__
            unsigned found = __ballot_sync(warp, here);
            if (found == 0) continue;
            int finder = __ffs((int)found) - 1;
            if (lane == finder) detail::store(seen + at, generation);
            at = __shfl_sync(warp, at, finder);
            __syncwarp(warp);
            return at;
#else
            if (!here) continue;
            detail::store(seen + at, generation);
            return at;
#endif
        }
        bool late = detail::now_ns() > deadline;
#ifdef __CUDA_ARCH__
        late = __any_sync(warp, late);
#endif
        if (late) return -1;
        detail::pause();
    }
}

} // namespace net
} // namespace outboard

// Words that threads and the adapter share: loads, stores, fences and atomics by scope, in PTX and on the CPU.
//
// Of system scope is what the adapter reads or writes: ring, record, doorbell, completions. Words in the memory of the
// GPU that posts are shared by its threads alone: there the scope of that GPU is enough, and costs no way to the host.
#pragma once

#include <stdint.h>

#if defined(__CUDACC__)
#define OUTBOARD_NET_CALL __host__ __device__ inline
// Of what is rare. A GPU fetches instructions a few hundred at a time: what is rare and long lies elsewhere than what is not.
#define OUTBOARD_NET_RARE __host__ __device__ __noinline__ inline
#else
#define OUTBOARD_NET_CALL inline
#define OUTBOARD_NET_RARE __attribute__((noinline)) inline
#endif
// Fences of one direction: PTX 8.6, sm_90.
#if defined(__CUDA_ARCH__) && defined(__CUDACC_VER_MAJOR__)
#define OUTBOARD_NET_HALF_FENCES (__CUDA_ARCH__ >= 900 && __CUDACC_VER_MAJOR__ >= 13)
#else
#define OUTBOARD_NET_HALF_FENCES 0
#endif
#if !defined(__CUDA_ARCH__)
#include <sched.h>
#include <time.h>

extern "C" int outboard_net_look(void) __attribute__((weak));
#endif

namespace outboard {
namespace net {
namespace detail {

// Keeps what is rare out of the way of the code that is not.
OUTBOARD_NET_CALL bool is_likely(bool is) { return __builtin_expect(is, true); }

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

// On the CPU, where the program's memory is a copy of what the adapter has: brings both up to date. After a look, all has
// come that was written before what was seen. False if nothing comes any more: the session with the server is lost.
OUTBOARD_NET_CALL bool look()
{
#ifndef __CUDA_ARCH__
    if (outboard_net_look) return outboard_net_look() == 0;
#endif
    return true;
}

// False as look() is.
OUTBOARD_NET_CALL bool pause()
{
#ifdef __CUDA_ARCH__
    // A look at what is waited for takes about a microsecond where it is in host memory: that is rest enough.
    asm volatile("nanosleep.u32 0;");
    return true;
#else
    sched_yield();
    return look();
#endif
}

// Looks at a word between two rests, which take a GPU longer: of 16 looks at its own memory the last is about as late as what
// another GPU answers.
#ifdef __CUDA_ARCH__
constexpr int LOOKS = 64;
#else
constexpr int LOOKS = 1;
#endif

// Rests after the doorbell rang. A look takes as long as the way to the adapter and back: one that leaves at once comes too
// early, and the next one too late. Of 0 to 800 ns this was best for 8 bytes on an H100.
#ifndef OUTBOARD_NET_REST_NS
#define OUTBOARD_NET_REST_NS 800
#endif
OUTBOARD_NET_CALL void rest()
{
#ifdef __CUDA_ARCH__
    asm volatile("nanosleep.u32 %0;" ::"n"(OUTBOARD_NET_REST_NS));
#endif
}

// A time after which nobody waits. It begins when it is first asked for, since reading the clock costs time itself.
class Deadline {
public:
    OUTBOARD_NET_CALL explicit Deadline(uint64_t within_ns) : within_ns_(within_ns), at_(0) {}

    // True after that time; a short rest otherwise.
    OUTBOARD_NET_CALL bool passed()
    {
        uint64_t now = now_ns();
        if (at_ == 0) at_ = within_ns_ > UINT64_MAX - now ? UINT64_MAX : now + within_ns_;
        if (now >= at_) return true;
        // If nothing comes any more, what has come is looked at once more.
        if (!pause()) at_ = LOST;
        return false;
    }

    // True if it passed because the session with the server is lost.
    OUTBOARD_NET_CALL bool is_lost() const
    {
#ifdef __CUDA_ARCH__
        return false;
#else
        return at_ == LOST;
#endif
    }

private:
    // No time of a clock's: all are after it.
    static constexpr uint64_t LOST = 1;
    uint64_t within_ns_, at_;
};

// Relaxed, of system scope, which costs a load no more than the GPU's.
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

// Stores the eight words of an entry, at a multiple of their bytes.
OUTBOARD_NET_CALL void store_block(uint64_t *at, const uint64_t *words)
{
#ifdef __CUDA_ARCH__
    for (int word = 0; word < 8; word += 2) {
        asm volatile("st.relaxed.sys.v2.b64 [%0], {%1, %2};" ::"l"(at + word), "l"(words[word]), "l"(words[word + 1]) : "memory");
    }
#else
    for (int word = 0; word < 8; ++word) store(at + word, words[word]);
#endif
}

// Stores after all that this thread has done and seen, for the adapter.
OUTBOARD_NET_CALL void store_release(uint64_t *at, uint64_t value)
{
#ifdef __CUDA_ARCH__
    asm volatile("st.release.sys.b64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
#else
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
#endif
}

// Orders what this thread has done and seen before it with its stores after it, for the adapter. Of a fence for both ways
// the other half makes the caches forget what they have.
OUTBOARD_NET_CALL void fence_release()
{
#if defined(__CUDA_ARCH__) && OUTBOARD_NET_HALF_FENCES
    asm volatile("fence.release.sys;" ::: "memory");
#elif defined(__CUDA_ARCH__)
    asm volatile("fence.acq_rel.sys;" ::: "memory");
#else
    __atomic_thread_fence(__ATOMIC_RELEASE);
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
    asm volatile("atom.acq_rel.sys.global.cas.b64 %0, [%1], %2, %3;" : "=l"(old) : "l"(at), "l"(expected), "l"(value) : "memory");
    return old;
#else
    __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return expected;
#endif
}

// Words that threads of one GPU share if `of_gpu`: of its scope then, and else of the system's. Functions, and no struct
// with a word and a scope: nvcc 13.0 makes of one, in a kernel with a struct for a parameter, loads from a wrong address.
OUTBOARD_NET_CALL uint64_t load_acquire(bool of_gpu, const uint64_t *at)
{
#ifdef __CUDA_ARCH__
    if (of_gpu) {
        uint64_t value;
        asm volatile("ld.acquire.gpu.b64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
        return value;
    }
#endif
    (void)of_gpu;
    return load_acquire(at);
}

OUTBOARD_NET_CALL void store_release(bool of_gpu, uint64_t *at, uint64_t value)
{
#ifdef __CUDA_ARCH__
    if (of_gpu) {
        asm volatile("st.release.gpu.b64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
        return;
    }
#endif
    (void)of_gpu;
    store_release(at, value);
}

OUTBOARD_NET_CALL uint64_t compare_exchange(bool of_gpu, uint64_t *at, uint64_t expected, uint64_t value)
{
#ifdef __CUDA_ARCH__
    if (of_gpu) {
        uint64_t old;
        asm volatile("atom.acq_rel.gpu.global.cas.b64 %0, [%1], %2, %3;"
                     : "=l"(old)
                     : "l"(at), "l"(expected), "l"(value)
                     : "memory");
        return old;
    }
#endif
    (void)of_gpu;
    return compare_exchange(at, expected, value);
}

// Stores the value unless a higher one is there. Returns what was there.
OUTBOARD_NET_CALL uint64_t raise(bool of_gpu, uint64_t *at, uint64_t value)
{
#ifdef __CUDA_ARCH__
    uint64_t old;
    if (of_gpu) {
        asm volatile("atom.acq_rel.gpu.global.max.u64 %0, [%1], %2;" : "=l"(old) : "l"(at), "l"(value) : "memory");
    } else {
        asm volatile("atom.acq_rel.sys.global.max.u64 %0, [%1], %2;" : "=l"(old) : "l"(at), "l"(value) : "memory");
    }
    return old;
#else
    (void)of_gpu;
    uint64_t old = __atomic_load_n(at, __ATOMIC_ACQUIRE);
    while (old < value && !__atomic_compare_exchange_n(at, &old, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    }
    return old;
#endif
}

// Adds, and orders nothing. Returns what was there.
OUTBOARD_NET_CALL uint64_t add(bool of_gpu, uint64_t *at, uint64_t value)
{
#ifdef __CUDA_ARCH__
    uint64_t old;
    if (of_gpu) {
        asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(at), "l"(value) : "memory");
    } else {
        asm volatile("atom.relaxed.sys.global.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(at), "l"(value) : "memory");
    }
    return old;
#else
    (void)of_gpu;
    return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
#endif
}

// Adds, and sees what those had done who gave what is taken. Returns what was there.
OUTBOARD_NET_CALL uint64_t take(bool of_gpu, uint64_t *at, uint64_t count)
{
#ifdef __CUDA_ARCH__
    uint64_t old;
    if (of_gpu) {
        asm volatile("atom.acquire.gpu.global.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(at), "l"(count) : "memory");
    } else {
        asm volatile("atom.acquire.sys.global.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(at), "l"(count) : "memory");
    }
    return old;
#else
    (void)of_gpu;
    return __atomic_fetch_add(at, count, __ATOMIC_ACQUIRE);
#endif
}

// Subtracts, after all that this thread has done and seen.
OUTBOARD_NET_CALL void give(bool of_gpu, uint64_t *at, uint64_t count)
{
    uint64_t value = (uint64_t)0 - count;
#ifdef __CUDA_ARCH__
    if (of_gpu) {
        asm volatile("{ .reg .b64 old; atom.release.gpu.global.add.u64 old, [%0], %1; }" ::"l"(at), "l"(value) : "memory");
    } else {
        asm volatile("{ .reg .b64 old; atom.release.sys.global.add.u64 old, [%0], %1; }" ::"l"(at), "l"(value) : "memory");
    }
#else
    (void)of_gpu;
    __atomic_fetch_add(at, value, __ATOMIC_RELEASE);
#endif
}

// Changes bits after all that this thread has done and seen.
OUTBOARD_NET_CALL void flip(bool of_gpu, uint64_t *at, uint64_t bits)
{
#ifdef __CUDA_ARCH__
    if (of_gpu) {
        asm volatile("{ .reg .b64 old; atom.release.gpu.global.xor.b64 old, [%0], %1; }" ::"l"(at), "l"(bits) : "memory");
    } else {
        asm volatile("{ .reg .b64 old; atom.release.sys.global.xor.b64 old, [%0], %1; }" ::"l"(at), "l"(bits) : "memory");
    }
#else
    (void)of_gpu;
    __atomic_fetch_xor(at, bits, __ATOMIC_RELEASE);
#endif
}

// Orders what is before it with what is after it, for all who share the words.
OUTBOARD_NET_CALL void fence(bool of_gpu)
{
#ifdef __CUDA_ARCH__
    if (of_gpu) {
        asm volatile("fence.sc.gpu;" ::: "memory");
        return;
    }
#endif
    (void)of_gpu;
    fence();
}

} // namespace detail
} // namespace net
} // namespace outboard

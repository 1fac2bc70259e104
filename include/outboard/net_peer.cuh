// Peers' memory, reached by loads and stores of the threads that post (the provider nvlink): keys and ranges, copies by
// scope, completions of the peer's receives. Used by net.cuh.
#pragma once

#include "net_order.cuh"

namespace outboard {
namespace net {

namespace detail {

// Words of a queue's page, as crates/net/src/nvlink/queue.rs says: what its peer is, and where it receives. CONNECTED is 0
// without a peer, PEER_RECEIVES if the peer's receives cannot be reached from here; the first of them is PEER_FIRST.
enum Page { CONNECTED = 0, PEER_KEYS, PEER_RECEIVES, PEER_COMPLETIONS, PEER_READY, PEER_LOG_RECEIVES, PEER_FIRST };
// This side's keys follow the page: four words each.
constexpr uint64_t KEYS_AT = 512;
constexpr uint32_t KEYS_MAX = 56;
constexpr uint32_t LOCAL_WRITE = 1, REMOTE_WRITE = 2, REMOTE_READ = 4, REMOTE_ATOMIC = 8;
// Tickets of a queue's generation begin at a multiple of 2^GENERATION_BITS.
constexpr int GENERATION_BITS = 36;

// Memory that a key opens.
struct Reach {
    uint64_t from, until;
    uint32_t key, access;
};

// Finds a key in a table, which another processor may be adding to.
OUTBOARD_NET_CALL bool look_up(uint64_t table, uint32_t key, Reach *reach)
{
    uint32_t slot = (key >> 8) - 1;
    if (slot >= KEYS_MAX) return false;
    const uint64_t *entry = (const uint64_t *)table + slot * 4;
    uint64_t last = load_acquire(entry + 2);
    if ((uint32_t)last != key) return false;
    *reach = Reach{load(entry), load(entry + 1), key, (uint32_t)(last >> 32)};
    return true;
}

OUTBOARD_NET_CALL bool is_within(const Reach &reach, uint64_t address, uint64_t bytes, uint32_t access)
{
    return (reach.access & access) == access && address >= reach.from && address <= reach.until && bytes <= reach.until - address;
}

struct Sixteen {
    uint64_t low, high;
};

// Loads 16 aligned bytes; what a peer has, past caches that do not see its writes.
OUTBOARD_NET_CALL Sixteen load16(bool of_peer, uint64_t at)
{
    Sixteen value;
#ifdef __CUDA_ARCH__
    if (of_peer) {
        asm volatile("ld.relaxed.sys.v2.b64 {%0, %1}, [%2];" : "=l"(value.low), "=l"(value.high) : "l"(at) : "memory");
    } else {
        asm volatile("ld.v2.b64 {%0, %1}, [%2];" : "=l"(value.low), "=l"(value.high) : "l"(at) : "memory");
    }
#else
    (void)of_peer;
    value.low = load((const uint64_t *)at);
    value.high = load((const uint64_t *)at + 1);
#endif
    return value;
}

OUTBOARD_NET_CALL void store16(uint64_t at, Sixteen value)
{
#ifdef __CUDA_ARCH__
    asm volatile("st.v2.b64 [%0], {%1, %2};" ::"l"(at), "l"(value.low), "l"(value.high) : "memory");
#else
    store((uint64_t *)at, value.low);
    store((uint64_t *)at + 1, value.high);
#endif
}

OUTBOARD_NET_CALL uint64_t load64(bool of_peer, uint64_t at)
{
#ifdef __CUDA_ARCH__
    if (!of_peer) {
        uint64_t value;
        asm volatile("ld.b64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
        return value;
    }
#endif
    (void)of_peer;
    return load((const uint64_t *)at);
}

OUTBOARD_NET_CALL uint8_t load8(uint64_t at)
{
#ifdef __CUDA_ARCH__
    uint32_t value;
    asm volatile("ld.volatile.u8 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return (uint8_t)value;
#else
    return __atomic_load_n((const uint8_t *)at, __ATOMIC_RELAXED);
#endif
}

OUTBOARD_NET_CALL void store8(uint64_t at, uint8_t value)
{
#ifdef __CUDA_ARCH__
    asm volatile("st.volatile.u8 [%0], %1;" ::"l"(at), "r"((uint32_t)value) : "memory");
#else
    __atomic_store_n((uint8_t *)at, value, __ATOMIC_RELAXED);
#endif
}

// Copies words of 16 bytes, `step` threads together of which this is number `rank`. Several loads are on their way before
// the first store waits for its own.
OUTBOARD_NET_CALL void copy16(uint64_t to, uint64_t from, uint64_t words, uint64_t rank, uint64_t step, bool from_peer)
{
    constexpr int TOGETHER = 4;
    uint64_t i = rank;
    for (; i + (TOGETHER - 1) * step < words; i += TOGETHER * step) {
        Sixteen values[TOGETHER];
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
        for (int k = 0; k < TOGETHER; ++k) values[k] = load16(from_peer, from + (i + k * step) * 16);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
        for (int k = 0; k < TOGETHER; ++k) store16(to + (i + k * step) * 16, values[k]);
    }
    if (i >= words) return;
    Sixteen values[TOGETHER];
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int k = 0; k < TOGETHER - 1; ++k)
        if (i + k * step < words) values[k] = load16(from_peer, from + (i + k * step) * 16);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int k = 0; k < TOGETHER - 1; ++k)
        if (i + k * step < words) store16(to + (i + k * step) * 16, values[k]);
}

// Copies bytes: words of 16 and 8 where both sides have such alignment, each aligned word whole.
OUTBOARD_NET_CALL void copy(uint64_t to, uint64_t from, uint64_t bytes, uint64_t rank, uint64_t step, bool from_peer)
{
    if (bytes == 8 && (to | from) % 8 == 0) {
        if (rank == 0) store((uint64_t *)to, load64(from_peer, from));
        return;
    }
    uint64_t apart = to ^ from, done = 0, words = 0;
    if (apart % 8 == 0) {
        done = (0 - to) % 8;
        if (done > bytes) done = bytes;
        for (uint64_t i = rank; i < done; i += step) store8(to + i, load8(from + i));
        words = (bytes - done) / 8;
    }
    if (apart % 16 == 0) {
        if (words > 0 && (to + done) % 16 != 0) {
            if (rank == 0) store((uint64_t *)(to + done), load64(from_peer, from + done));
            done += 8;
            --words;
        }
        copy16(to + done, from + done, words / 2, rank, step, from_peer);
        done += words / 2 * 16;
        words %= 2;
    }
    for (uint64_t i = rank; i < words; i += step) store((uint64_t *)(to + done) + i, load64(from_peer, from + done + i * 8));
    for (uint64_t i = done + words * 8 + rank; i < bytes; i += step) store8(to + i, load8(from + i));
}

// Adds to a word of a peer, after all that this thread has done and seen. Returns what was there.
OUTBOARD_NET_CALL uint64_t add_there(uint64_t at, uint64_t value)
{
#ifdef __CUDA_ARCH__
    uint64_t old;
    asm volatile("atom.acq_rel.sys.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(at), "l"(value) : "memory");
    return old;
#else
    return __atomic_fetch_add((uint64_t *)at, value, __ATOMIC_ACQ_REL);
#endif
}

} // namespace detail
} // namespace net
} // namespace outboard

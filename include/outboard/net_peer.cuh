// Peers' memory, reached by loads and stores of the threads that post (the provider nvlink): keys and ranges, copies by
// scope, completions of the peer's receives. Used by net.cuh.
#pragma once

#include "net_shared.cuh"

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

// Loads a word that the host has written, by a plain load: threads of a warp that look at once go one way to it together.
// What a cache had before the host wrote is seen past caches only.
OUTBOARD_NET_CALL uint64_t peek(bool past_caches, uint64_t at)
{
#ifdef __CUDA_ARCH__
    if (!past_caches) {
        uint64_t value;
        asm volatile("ld.b64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
        return value;
    }
#endif
    (void)past_caches;
    return load_acquire((const uint64_t *)at);
}

// Finds a key in a table. Without it nothing is reached.
OUTBOARD_NET_CALL Reach look_up(bool past_caches, uint64_t table, uint32_t key)
{
    uint32_t slot = (key >> 8) - 1;
    if (slot >= KEYS_MAX) return Reach{};
    uint64_t entry = table + slot * 32, last = peek(past_caches, entry + 16);
    uint64_t from = peek(past_caches, entry), until = peek(past_caches, entry + 8);
    return (uint32_t)last == key ? Reach{from, until, key, (uint32_t)(last >> 32)} : Reach{};
}

// Whether a key opens bytes, 2 GiB at most, for an access of one bit or none. Posts do little else, so that nothing here
// waits for another test. Memory is below 2^63: an address that is not is less than any as a signed number, and others
// have an end.
OUTBOARD_NET_CALL bool opens(const Reach &reach, uint32_t key, uint64_t address, uint64_t bytes, uint32_t access)
{
    bool begins = (int64_t)address >= (int64_t)reach.from, ends = address + bytes <= reach.until;
    return (reach.key == key) & begins & ends & (access == 0 || (reach.access & access) != 0);
}

// The first failure that a queue knows of, entry and syndrome, and where its tickets begin.
struct State {
    uint64_t error, base;
};

OUTBOARD_NET_CALL State state_of(bool past_caches, uint64_t counters)
{
    return State{peek(past_caches, counters + ERROR * 8), peek(past_caches, counters + BASE * 8)};
}

// Notes that an entry failed: the queue keeps the one with the lowest ticket. Caches forget what was there before.
OUTBOARD_NET_RARE void note(uint64_t counters, bool of_gpu, uint64_t entry, uint32_t syndrome)
{
    uint64_t *error = (uint64_t *)counters + ERROR;
    State state = state_of(true, counters);
    for (;;) {
        uint64_t old = state.error;
        bool is_noted = old != 0 && old >> 8 >= state.base && (old >> 8 <= entry || old >> 8 == ALL);
        if (is_noted || entry < state.base) break;
        state.error = compare_exchange(of_gpu, error, old, entry << 8 | syndrome);
        if (state.error == old) break;
    }
    fence_release();
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

// Stores a word: plain, so that the GPU may send several together.
OUTBOARD_NET_CALL void store64(uint64_t at, uint64_t value)
{
#ifdef __CUDA_ARCH__
    asm volatile("st.b64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
#else
    store((uint64_t *)at, value);
#endif
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

// Stores a word that is not aligned.
OUTBOARD_NET_RARE void store_bytes(uint64_t at, uint64_t value)
{
    for (int i = 0; i < 8; ++i) store8(at + i, (uint8_t)(value >> 8 * i));
}

// Words of 16 bytes that a thread has on their way before it waits for the first.
constexpr uint32_t TOGETHER = 4;

// Copies words of 16 bytes, `step` threads together of which this is number `rank`.
OUTBOARD_NET_CALL void copy16(uint64_t to, uint64_t from, uint32_t words, uint32_t rank, uint32_t step, bool from_peer)
{
    uint32_t i = rank;
    for (; i + (TOGETHER - 1) * step < words; i += TOGETHER * step) {
        Sixteen values[TOGETHER];
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
        for (uint32_t k = 0; k < TOGETHER; ++k) values[k] = load16(from_peer, from + (uint64_t)(i + k * step) * 16);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
        for (uint32_t k = 0; k < TOGETHER; ++k) store16(to + (uint64_t)(i + k * step) * 16, values[k]);
    }
    if (i >= words) return;
    Sixteen values[TOGETHER] = {};
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (uint32_t k = 0; k < TOGETHER - 1; ++k)
        if (i + k * step < words) values[k] = load16(from_peer, from + (uint64_t)(i + k * step) * 16);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (uint32_t k = 0; k < TOGETHER - 1; ++k)
        if (i + k * step < words) store16(to + (uint64_t)(i + k * step) * 16, values[k]);
}

// Copies bytes of any alignment: words of 16 and 8 where both sides are aligned alike, each aligned word whole.
OUTBOARD_NET_RARE void copy_any(uint64_t to, uint64_t from, uint64_t bytes, uint32_t rank, uint32_t step, bool from_peer)
{
    uint64_t apart = to ^ from, head = (0 - to) % 8, lead = (to + head) % 16 / 8, eights = 0;
    if (head > bytes) head = bytes;
    if (apart % 8 == 0) eights = (bytes - head) / 8;
    uint64_t words = apart % 16 == 0 && eights > lead ? (eights - lead) / 2 : 0;
    for (uint64_t i = rank; i < bytes - eights * 8; i += step) {
        uint64_t at = i < head ? i : i + eights * 8;
        store8(to + at, load8(from + at));
    }
    for (uint64_t i = rank; i < eights - words * 2; i += step) {
        uint64_t at = head + (i < lead ? i : i + words * 2) * 8;
        store64(to + at, load64(from_peer, from + at));
    }
    copy16(to + head + lead * 8, from + head + lead * 8, (uint32_t)words, rank, step, from_peer);
}

// Copies bytes, 2 GiB at most.
OUTBOARD_NET_CALL void copy(uint64_t to, uint64_t from, uint64_t bytes, uint32_t rank, uint32_t step, bool from_peer)
{
    if (((to | from | bytes) & 15) == 0) {
        copy16(to, from, (uint32_t)(bytes / 16), rank, step, from_peer);
    } else if (bytes != 8 || ((to | from) & 7) != 0) {
        copy_any(to, from, bytes, rank, step, from_peer);
    } else if (rank == 0) {
        store64(to, load64(from_peer, from));
    }
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

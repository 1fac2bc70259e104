// Operations of a queue of nvlink, executed by the threads that post them. Used by net.cuh.
//
// A post checks keys and ranges, then loads and stores. What is wrong is noted in the queue's counters as an adapter's
// failure is, and returned by the next wait; from then on posts return it. An object remembers what it has looked up, so
// that a post of a good one reads no memory but its data: it learns of another thread's failure by its next wait.
#pragma once

#include "net_peer.cuh"
#include "net_shared.cuh"

namespace outboard {
namespace net {
namespace detail {

class Direct {
public:
    OUTBOARD_NET_CALL Direct() : base_(0), posted_(0), is_fine_(false), mine_(), near_(), far_() {}

    // Executes an operation on `bytes` of the peer.
    template <Scope scope, uint32_t opcode>
    OUTBOARD_NET_CALL Failure run(const outboard_net_queue &of, Remote there, Local here, uint64_t bytes, uint64_t first,
                                  uint64_t second, uint64_t *ticket)
    {
        bool leads = enter<scope>();
        Started started{};
        if (leads) {
            started.failure = ready(of);
            if (!started.failure) started.goes_on = is_good(of, next(&started.ticket), check<opcode>(of, there, here, bytes));
        }
        share<scope>(started, leads);
        *ticket = started.ticket;
        if (started.goes_on) move<scope, opcode>(there.address, here.address, bytes, first, second);
        enter<scope>();
        return started.failure;
    }

    // Writes bytes, or a value, of each thread of a warp. All get one ticket.
    template <uint32_t opcode>
    OUTBOARD_NET_CALL Failure each(const outboard_net_queue &of, Remote there, Local here, uint64_t bytes, uint64_t value,
                                   uint64_t *ticket)
    {
        bool leads = enter<Scope::warp>();
        Started started{};
        if (leads) {
            started.failure = ready(of);
            if (!started.failure) next(&started.ticket);
        }
        share<Scope::warp>(started, leads);
        *ticket = started.ticket;
        if (!started.failure) {
            begin(started.ticket >> GENERATION_BITS << GENERATION_BITS);
            uint32_t syndrome = check<opcode>(of, there, here, bytes);
            if (is_good(of, started.ticket, syndrome)) move<Scope::thread, opcode>(there.address, here.address, bytes, value, 0);
        }
        enter<Scope::warp>();
        return started.failure;
    }

    // Takes a receive of the peer, and completes it after bytes were written to its memory, or to `there`.
    template <Scope scope>
    OUTBOARD_NET_CALL Failure message(const outboard_net_queue &of, Arrival kind, Remote there, Local from, uint64_t bytes,
                                      uint32_t imm, uint64_t timeout_ns, uint64_t *ticket)
    {
        bool leads = enter<scope>();
        Started started{};
        if (leads) started = taken(of, kind, there, from, bytes, timeout_ns);
        share<scope>(started, leads);
        *ticket = started.ticket;
        if (started.goes_on) move<scope, WRITE>(started.to, from.address, bytes, 0, 0);
        enter<scope>();
        if (started.goes_on && leads) complete(of, started.receive, (uint32_t)kind, (uint32_t)bytes, imm, 0);
        return started.failure;
    }

    // Waits for all stores of this thread, and of those that it has waited for. Returns the first failure of the queue.
    OUTBOARD_NET_CALL Failure settled(const outboard_net_queue &of)
    {
        fence_release();
        return ready(of, true);
    }

    OUTBOARD_NET_CALL Failure settled(const outboard_net_queue &of, uint64_t ticket)
    {
        Failure failure = settled(of);
        if (ticket < base_) return Failure{Cause::stale, of.qpn, ticket, 0, Side::send};
        return failure.entry > ticket ? Failure{} : failure;
    }

private:
    struct Started {
        Failure failure;
        uint64_t ticket, goes_on, to, receive;
    };

    OUTBOARD_NET_CALL static bool of_gpu(const outboard_net_queue &of) { return (of.flags & OUTBOARD_NET_OF_GPU) != 0; }

    OUTBOARD_NET_CALL static uint64_t *counter(const outboard_net_queue &of, Counter which)
    {
        return (uint64_t *)of.counters + which;
    }

    OUTBOARD_NET_CALL static uint64_t page(const outboard_net_queue &of, Page which)
    {
        return load_acquire((const uint64_t *)of.ring + which);
    }

    // Looks at the queue's state unless it was fine at the last look.
    OUTBOARD_NET_CALL Failure ready(const outboard_net_queue &of, bool looks = false)
    {
        if (is_fine_ && !looks) return Failure{};
        uint64_t error = load_acquire(of_gpu(of), counter(of, ERROR)), base = load_acquire(of_gpu(of), counter(of, BASE));
        begin(base);
        is_fine_ = error == 0 || error >> 8 < base;
        if (is_fine_) return Failure{};
        return Failure{Cause::completion, of.qpn, error >> 8, (uint32_t)(error & 0xff), Side::send};
    }

    // Forgets what it knows of an earlier generation of the queue.
    OUTBOARD_NET_CALL void begin(uint64_t base)
    {
        if (base == base_) return;
        base_ = base;
        posted_ = 0;
        mine_ = near_ = far_ = Reach{};
    }

    OUTBOARD_NET_CALL uint64_t next(uint64_t *ticket) { return *ticket = base_ + posted_++; }

    // Notes that an entry failed if there is a syndrome: the queue keeps the one with the lowest ticket.
    OUTBOARD_NET_CALL bool is_good(const outboard_net_queue &of, uint64_t entry, uint32_t syndrome)
    {
        if (syndrome == 0) return true;
        is_fine_ = false;
        uint64_t base = load_acquire(of_gpu(of), counter(of, BASE)), old = load_acquire(of_gpu(of), counter(of, ERROR));
        for (;;) {
            bool is_noted = old != 0 && old >> 8 >= base && (old >> 8 <= entry || old >> 8 == ALL);
            if (is_noted || entry < base) return false;
            uint64_t seen = compare_exchange(of_gpu(of), counter(of, ERROR), old, entry << 8 | syndrome);
            if (seen == old) return false;
            old = seen;
        }
    }

    OUTBOARD_NET_CALL uint32_t check_local(const outboard_net_queue &of, Local here, uint64_t bytes, uint32_t access)
    {
        if (mine_.key == here.key && is_within(mine_, here.address, bytes, access)) return 0;
        if (!look_up(of.ring + KEYS_AT, here.key, &mine_)) return 0x04;
        return is_within(mine_, here.address, bytes, access) ? 0 : 0x04;
    }

    OUTBOARD_NET_CALL uint32_t check_remote(const outboard_net_queue &of, Remote there, uint64_t bytes, uint32_t access)
    {
        if (near_.key == there.key && is_within(near_, there.address, bytes, access)) return 0;
        if (far_.key == there.key && is_within(far_, there.address, bytes, access)) return 0;
        if (page(of, CONNECTED) == 0) return 0x15;
        far_ = near_;
        if (!look_up(page(of, PEER_KEYS), there.key, &near_)) return 0x13;
        return is_within(near_, there.address, bytes, access) ? 0 : 0x13;
    }

    template <uint32_t opcode>
    OUTBOARD_NET_CALL uint32_t check(const outboard_net_queue &of, Remote there, Local here, uint64_t bytes)
    {
        constexpr bool is_atomic = opcode == FETCH_ADD || opcode == COMPARE_SWAP || opcode == SIGNAL_ADD;
        constexpr bool has_local = opcode == WRITE || opcode == READ || opcode == FETCH_ADD || opcode == COMPARE_SWAP;
        constexpr uint32_t access = is_atomic ? REMOTE_ATOMIC : opcode == READ ? REMOTE_READ : REMOTE_WRITE;
        if (opcode == NOP || bytes == 0) return page(of, CONNECTED) == 0 ? 0x15 : 0;
        uint32_t local = has_local ? check_local(of, here, bytes, opcode == WRITE ? 0 : LOCAL_WRITE) : 0;
        if (local != 0) return local;
        if (is_atomic && there.address % 8 != 0) return 0x12;
        return check_remote(of, there, bytes, access);
    }

    // Loads and stores. Values and atomics are those of the thread that acts for all.
    template <Scope scope, uint32_t opcode>
    OUTBOARD_NET_CALL static void move(uint64_t there, uint64_t here, uint64_t bytes, uint64_t first, uint64_t second)
    {
        if constexpr (opcode == WRITE) copy(there, here, bytes, rank<scope>(), members<scope>(), false);
        if constexpr (opcode == READ) copy(here, there, bytes, rank<scope>(), members<scope>(), true);
        if (rank<scope>() != 0) return;
        if constexpr (opcode == SIGNAL_SET) fence_release();
        if constexpr (opcode == SIGNAL_SET || opcode == VALUE) store_value(there, first);
        if constexpr (opcode == SIGNAL_ADD) add_there(there, first);
        if constexpr (opcode == FETCH_ADD) store_value(here, add_there(there, first));
        if constexpr (opcode == COMPARE_SWAP) store_value(here, compare_exchange((uint64_t *)there, first, second));
    }

    OUTBOARD_NET_CALL static void store_value(uint64_t at, uint64_t value)
    {
        if (at % 8 == 0) return store((uint64_t *)at, value);
        for (int i = 0; i < 8; ++i) store8(at + i, (uint8_t)(value >> 8 * i));
    }

    // Checks a message, and takes the receive that it needs.
    OUTBOARD_NET_CALL Started taken(const outboard_net_queue &of, Arrival kind, Remote there, Local from, uint64_t bytes,
                                    uint64_t timeout_ns)
    {
        Started started{};
        started.failure = ready(of);
        if (started.failure) return started;
        bool is_write = kind == Arrival::write_imm;
        uint32_t syndrome = page(of, CONNECTED) == 0 ? 0x15 : 0;
        if (syndrome == 0 && page(of, PEER_RECEIVES) == 0) {
            started.failure = Failure{Cause::unsupported, of.qpn, 0, 0, Side::send};
            return started;
        }
        if (syndrome == 0 && bytes != 0) syndrome = check_local(of, from, bytes, 0);
        if (syndrome == 0 && bytes != 0 && is_write) syndrome = check_remote(of, there, bytes, REMOTE_WRITE);
        if (syndrome == 0) {
            started.failure = take(of, timeout_ns, &started.receive);
            if (started.failure) return started;
            started.to = there.address;
            if (!is_write) syndrome = place(of, started.receive, bytes, &started.to);
        }
        started.goes_on = is_good(of, next(&started.ticket), syndrome);
        return started;
    }

    // Takes the next receive that the peer has posted, in time.
    OUTBOARD_NET_CALL Failure take(const outboard_net_queue &of, uint64_t timeout_ns, uint64_t *receive)
    {
        Deadline deadline(timeout_ns);
        while (!take_posted(of, receive)) {
            Failure failure = ready(of, true);
            if (failure) return failure;
            if (deadline.passed()) return Failure{Cause::timeout, of.qpn, base_ + posted_, 0, Side::send};
        }
        return Failure{};
    }

    OUTBOARD_NET_CALL bool take_posted(const outboard_net_queue &of, uint64_t *receive)
    {
        uint64_t taken = load_acquire(of_gpu(of), counter(of, TAKEN));
        uint64_t posted = load_acquire((const uint64_t *)page(of, PEER_READY));
        *receive = page(of, PEER_FIRST) + taken;
        return (int64_t)(posted - *receive) > 0 && compare_exchange(of_gpu(of), counter(of, TAKEN), taken, taken + 1) == taken;
    }

    // Finds the memory of a receive. If it is not fit for the message, that is a failure of both sides, and the receives
    // behind it are flushed.
    OUTBOARD_NET_CALL uint32_t place(const outboard_net_queue &of, uint64_t receive, uint64_t bytes, uint64_t *to)
    {
        uint64_t mask = ((uint64_t)1 << page(of, PEER_LOG_RECEIVES)) - 1;
        const uint64_t *slot = (const uint64_t *)page(of, PEER_RECEIVES) + (receive & mask) * 2;
        uint64_t first = big(load(slot)), room = first >> 32;
        uint32_t key = (uint32_t)first;
        if (key == NO_MEMORY) room = 0;
        else if (room == 0) room = BYTES_MAX;
        *to = big(load(slot + 1));
        Reach reach{};
        bool is_known = bytes == 0 || (look_up(page(of, PEER_KEYS), key, &reach) && is_within(reach, *to, bytes, LOCAL_WRITE));
        if (bytes <= room && is_known) return 0;
        complete(of, receive, RESPONDER_ERROR, 0, 0, bytes > room ? 0x01 : 0x04);
        while (take_posted(of, &receive)) complete(of, receive, RESPONDER_ERROR, 0, 0, 0x05);
        return bytes > room ? 0x12 : 0x14;
    }

    // Writes a completion of the peer's receive, after all that this thread has done and seen.
    OUTBOARD_NET_CALL static void complete(const outboard_net_queue &of, uint64_t receive, uint32_t kind, uint32_t bytes,
                                           uint32_t imm, uint32_t syndrome)
    {
        uint64_t log = page(of, PEER_LOG_RECEIVES), index = receive & 0xffff;
        uint64_t *at = (uint64_t *)page(of, PEER_COMPLETIONS) + (receive & (((uint64_t)1 << log) - 1)) * 8;
        store(at + 4, pair(0, imm));
        store(at + 5, pair(0, bytes));
        store(at + 6, (uint64_t)syndrome << 56);
        fence_release();
        store(at + 7, (uint64_t)kind << 60 | (receive >> log & 1) << 56 | (index & 0xff) << 40 | (index >> 8) << 32);
    }

    uint64_t base_, posted_;
    bool is_fine_;
    Reach mine_, near_, far_;
};

} // namespace detail
} // namespace net
} // namespace outboard

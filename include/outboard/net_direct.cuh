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

// Tickets of the generation of this one begin here.
OUTBOARD_NET_CALL uint64_t base_of(uint64_t ticket) { return ticket >> GENERATION_BITS << GENERATION_BITS; }

// What an object knows of its queue: its next ticket, and keys that were found: of this side, of data there, and of flags
// there or of data before. While it knows a key the queue was fine at the last look.
struct Known {
    uint64_t next;
    Reach mine, near, far;

    OUTBOARD_NET_CALL bool any() const { return (mine.key | near.key | far.key) != 0; }

    // Makes the next post look at the queue's state, and look its keys up.
    OUTBOARD_NET_CALL void forget() { mine = near = far = Reach{}; }

    // Forgets what it knows of an earlier generation of the queue.
    OUTBOARD_NET_CALL void begin(uint64_t base)
    {
        if (next != UNKNOWN && base == base_of(next)) return;
        next = base;
        forget();
    }

    // The next ticket of an object that has not looked at its queue.
    static constexpr uint64_t UNKNOWN = UINT64_MAX;
};

// An operation whose keys are not known: the queue's memory and number, and what it needs. Without bytes it needs a peer.
struct Asked {
    uint64_t ring, counters, there, here, bytes;
    uint32_t there_key, here_key, local_access, remote_access, qpn, flags;
    bool is_flag;
};
constexpr uint32_t NOTHING = UINT32_MAX;

// What came of it: the ticket, and whether the operation is right.
struct Found {
    Failure failure;
    uint64_t ticket, goes_on;
};

// Looks at a queue, and returns its first failure.
OUTBOARD_NET_CALL Failure failure_of(bool past_caches, uint64_t counters, uint32_t qpn, uint32_t flags, Known *known)
{
    if ((flags & OUTBOARD_NET_DIRECT) == 0) return Failure{Cause::unsupported, qpn, 0, 0, Side::send};
    State state = state_of(past_caches, counters);
    known->begin(state.base);
    if (state.error == 0 || state.error >> 8 < state.base) return Failure{};
    return Failure{Cause::completion, qpn, state.error >> 8, (uint32_t)(state.error & 0xff), Side::send};
}

// Looks keys up, and returns the syndrome of an operation that is wrong by them.
OUTBOARD_NET_CALL uint32_t look(bool past_caches, const Asked &asked, Known *known)
{
    bool has_local = asked.bytes != 0 && asked.local_access != NOTHING;
    bool has_remote = asked.bytes != 0 && asked.remote_access != NOTHING;
    // All are on their way at once.
    uint64_t connected = peek(past_caches, asked.ring + CONNECTED * 8), keys = peek(past_caches, asked.ring + PEER_KEYS * 8);
    if (has_local && !opens(known->mine, asked.here_key, asked.here, asked.bytes, asked.local_access)) {
        known->mine = look_up(past_caches, asked.ring + KEYS_AT, asked.here_key);
        if (!opens(known->mine, asked.here_key, asked.here, asked.bytes, asked.local_access)) return 0x04;
    }
    if (has_remote && asked.remote_access == REMOTE_ATOMIC && asked.there % 8 != 0) return 0x12;
    Reach there = asked.is_flag ? known->near : known->far;
    if (!has_remote || !opens(there, asked.there_key, asked.there, asked.bytes, asked.remote_access)) {
        if (connected == 0) return 0x15;
        if (!has_remote) return 0;
        there = look_up(past_caches, keys, asked.there_key);
        if (!opens(there, asked.there_key, asked.there, asked.bytes, asked.remote_access)) return 0x13;
    }
    if (asked.is_flag) {
        known->far = there;
    } else {
        if (known->near.key != 0) known->far = known->near;
        known->near = there;
    }
    return 0;
}

// Returns that syndrome, not by what a cache had.
OUTBOARD_NET_CALL uint32_t check(const Asked &asked, Known *known)
{
    uint32_t syndrome = 0;
    for (int again = 0; again < 2; ++again) {
        syndrome = look(again == 1, asked, known);
        if (syndrome == 0) break;
    }
    return syndrome;
}

// Gives an operation its ticket after looks at the queue and at keys, and notes what is wrong.
OUTBOARD_NET_CALL Found find_alone(const Asked &asked, Known *known)
{
    Found found{};
    if (!known->any()) found.failure = failure_of(false, asked.counters, asked.qpn, asked.flags, known);
    found.ticket = known->next;
    if (found.failure) return found;
    uint32_t syndrome = check(asked, known);
    ++known->next;
    found.goes_on = syndrome == 0;
    if (syndrome == 0) return found;
    note(asked.counters, (asked.flags & OUTBOARD_NET_OF_GPU) != 0, found.ticket, syndrome);
    known->forget();
    return found;
}

// The first thread of a group does so, and all get its answer. The others know no keys.
template <Scope scope> OUTBOARD_NET_RARE void find(const Asked &asked, Known *known, Found *found)
{
    bool leads = rank<scope>() == 0;
    Found answer{};
    if (leads) answer = find_alone(asked, known);
    share<scope>(answer, leads);
    if (!leads && !answer.failure) {
        known->begin(base_of(answer.ticket));
        if (known->next <= answer.ticket) known->next = answer.ticket + 1;
    }
    *found = answer;
}

class Direct {
public:
    OUTBOARD_NET_CALL Direct() : known_{Known::UNKNOWN, {}, {}, {}} {}

    // Executes an operation on `bytes` of the peer.
    template <Scope scope, uint32_t opcode>
    OUTBOARD_NET_CALL Failure run(const outboard_net_queue &of, Remote there, Local here, uint64_t bytes, uint64_t first,
                                  uint64_t second, uint64_t *ticket)
    {
        if (is_likely(agree<scope>(follows<scope>() || knows<opcode>(there, here, bytes)))) {
            *ticket = known_.next++;
        } else {
            bool goes_on = false;
            Failure failure = learn<scope, opcode>(of, there, here, bytes, ticket, &goes_on);
            if (failure || !goes_on) return failure;
            if (is_value<opcode>() && there.address % 8 != 0) {
                if (rank<scope>() == 0) set_bytes(there.address, first);
                enter<scope>();
                return Failure{};
            }
        }
        move<scope, opcode>(there.address, here.address, bytes, first, second);
        enter<scope>();
        return Failure{};
    }

    // Writes bytes, and sets a flag after them: two operations.
    template <Scope scope>
    OUTBOARD_NET_CALL Failure put_signal(const outboard_net_queue &of, Remote there, Local here, uint64_t bytes, Remote flag,
                                         uint64_t generation, uint64_t *ticket)
    {
        bool aligned = true;
        bool knows_both = knows<WRITE>(there, here, bytes) & knows<SIGNAL_SET>(flag, Local{}, 8);
        if (is_likely(agree<scope>(follows<scope>() || knows_both))) {
            known_.next += 2;
            *ticket = known_.next - 1;
        } else {
            bool goes_on = false;
            Failure failure = learn<scope, WRITE>(of, there, here, bytes, ticket, &goes_on);
            if (!failure && goes_on) failure = learn<scope, SIGNAL_SET>(of, flag, Local{}, 8, ticket, &goes_on);
            if (failure || !goes_on) return failure;
            aligned = flag.address % 8 == 0;
        }
        move<scope, WRITE>(there.address, here.address, bytes, 0, 0);
        enter<scope>();
        if (is_likely(aligned)) move<scope, SIGNAL_SET>(flag.address, 0, 8, generation, 0);
        else if (rank<scope>() == 0) set_bytes(flag.address, generation);
        enter<scope>();
        return Failure{};
    }

    // Writes bytes, or a value, of each thread of a warp. All get one ticket.
    template <uint32_t opcode>
    OUTBOARD_NET_CALL Failure each(const outboard_net_queue &of, Remote there, Local here, uint64_t bytes, uint64_t value,
                                   uint64_t *ticket)
    {
        bool goes_on = true;
        if (is_likely(agree<Scope::warp>(knows<opcode>(there, here, bytes)))) {
            *ticket = known_.next++;
        } else {
            Failure failure = learn<Scope::warp, NOP>(of, Remote{}, Local{}, 0, ticket, &goes_on);
            if (failure) return failure;
            goes_on = is_good(of, *ticket, check_own<opcode>(of, there, here, bytes));
            if (goes_on && is_value<opcode>() && there.address % 8 != 0) {
                set_bytes(there.address, value);
                goes_on = false;
            }
        }
        if (goes_on) move<Scope::thread, opcode>(there.address, here.address, bytes, value, 0);
        enter<Scope::warp>();
        return Failure{};
    }

    // Takes a receive of the peer, and completes it after bytes were written to its memory, or to `there`.
    template <Scope scope>
    OUTBOARD_NET_CALL Failure message(const outboard_net_queue &of, Arrival kind, Remote there, Local from, uint64_t bytes,
                                      uint32_t imm, uint64_t timeout_ns, uint64_t *ticket)
    {
        bool leads = enter<scope>();
        Taken started{};
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
        if (failure.cause == Cause::unsupported) return failure;
        if (ticket < base_of(known_.next)) return Failure{Cause::stale, of.qpn, ticket, 0, Side::send};
        return failure.entry > ticket ? Failure{} : failure;
    }

    // The next ticket, for the other threads of a group whose first one has waited.
    OUTBOARD_NET_CALL uint64_t next() const { return known_.next; }

    OUTBOARD_NET_CALL void follow(uint64_t next) 
    {
        if (next != Known::UNKNOWN) known_.begin(base_of(next));
    }

private:
    struct Taken {
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

    // Looks at the queue's state, unless it was fine at the last look: then there are keys that this object knows.
    OUTBOARD_NET_CALL Failure ready(const outboard_net_queue &of, bool looks = false)
    {
        if (!looks && known_.any()) return Failure{};
        Failure failure = failure_of(looks, of.counters, of.qpn, of.flags, &known_);
        if (failure) known_.forget();
        return failure;
    }

    // Notes that an entry failed if there is a syndrome.
    OUTBOARD_NET_CALL bool is_good(const outboard_net_queue &of, uint64_t entry, uint32_t syndrome)
    {
        if (syndrome == 0) return true;
        known_.forget();
        note(of.counters, of_gpu(of), entry, syndrome);
        return false;
    }

    template <uint32_t opcode> OUTBOARD_NET_CALL static constexpr bool is_atomic()
    {
        return opcode == FETCH_ADD || opcode == COMPARE_SWAP || opcode == SIGNAL_ADD;
    }

    template <uint32_t opcode> OUTBOARD_NET_CALL static constexpr bool is_value()
    {
        return opcode == VALUE || opcode == SIGNAL_SET;
    }

    template <uint32_t opcode> OUTBOARD_NET_CALL static constexpr bool has_local()
    {
        return opcode == WRITE || opcode == READ || opcode == FETCH_ADD || opcode == COMPARE_SWAP;
    }

    template <uint32_t opcode> OUTBOARD_NET_CALL static constexpr uint32_t local_access()
    {
        return opcode == WRITE ? 0 : LOCAL_WRITE;
    }

    template <uint32_t opcode> OUTBOARD_NET_CALL static constexpr uint32_t remote_access()
    {
        return is_atomic<opcode>() ? REMOTE_ATOMIC : opcode == READ ? REMOTE_READ : REMOTE_WRITE;
    }

    // True in the threads of a group that leave it to the first one to know keys.
    template <Scope scope> OUTBOARD_NET_CALL bool follows() const
    {
        if constexpr (scope == Scope::thread) return false;
        return known_.next != Known::UNKNOWN && rank<scope>() != 0;
    }

    // True if an operation is right by what was looked up before.
    template <uint32_t opcode> OUTBOARD_NET_CALL bool knows(Remote there, Local here, uint64_t bytes) const
    {
        if (opcode == NOP) return false;
        bool local = !has_local<opcode>() || opens(known_.mine, here.key, here.address, bytes, local_access<opcode>());
        bool aligned = !(is_atomic<opcode>() || is_value<opcode>()) || there.address % 8 == 0;
        const Reach &reach = is_flag<opcode>() ? known_.far : known_.near;
        return local & aligned & opens(reach, there.key, there.address, bytes, remote_access<opcode>());
    }

    template <uint32_t opcode> OUTBOARD_NET_CALL static constexpr bool is_flag()
    {
        return opcode == SIGNAL_SET || opcode == SIGNAL_ADD;
    }

    template <uint32_t opcode>
    OUTBOARD_NET_CALL static Asked asked(const outboard_net_queue &of, Remote there, Local here, uint64_t bytes)
    {
        return Asked{of.ring,
                     of.counters,
                     there.address,
                     here.address,
                     bytes,
                     there.key,
                     here.key,
                     has_local<opcode>() ? local_access<opcode>() : NOTHING,
                     opcode == NOP ? NOTHING : remote_access<opcode>(),
                     of.qpn,
                     of.flags,
                     is_flag<opcode>()};
    }

    // Finds what an operation needs. All threads of a group get one answer.
    template <Scope scope, uint32_t opcode>
    OUTBOARD_NET_CALL Failure learn(const outboard_net_queue &of, Remote there, Local here, uint64_t bytes, uint64_t *ticket,
                                    bool *goes_on)
    {
        // A copy, so that what is known stays in registers.
        Known known = known_;
        Found found;
        find<scope>(asked<opcode>(of, there, here, bytes), &known, &found);
        known_ = known;
        *ticket = found.ticket;
        *goes_on = found.goes_on != 0;
        return found.failure;
    }

    template <uint32_t opcode>
    OUTBOARD_NET_CALL uint32_t check_own(const outboard_net_queue &of, Remote there, Local here, uint64_t bytes)
    {
        Known known = known_;
        uint32_t syndrome = check(asked<opcode>(of, there, here, bytes), &known);
        known_ = known;
        return syndrome;
    }

    // Writes a value that is not aligned, after all that was put before.
    OUTBOARD_NET_CALL static void set_bytes(uint64_t there, uint64_t value)
    {
        fence_release();
        store_bytes(there, value);
    }

    // Loads and stores. Values and atomics are those of the thread that acts for all.
    template <Scope scope, uint32_t opcode>
    OUTBOARD_NET_CALL static void move(uint64_t there, uint64_t here, uint64_t bytes, uint64_t first, uint64_t second)
    {
        if constexpr (opcode == WRITE) copy(there, here, bytes, (uint32_t)rank<scope>(), (uint32_t)members<scope>(), false);
        if constexpr (opcode == READ) copy(here, there, bytes, (uint32_t)rank<scope>(), (uint32_t)members<scope>(), true);
        if (rank<scope>() != 0) return;
        if constexpr (opcode == SIGNAL_SET) store_release((uint64_t *)there, first);
        if constexpr (opcode == VALUE) store64(there, first);
        if constexpr (opcode == SIGNAL_ADD) add_there(there, first);
        if constexpr (opcode == FETCH_ADD) store_value(here, add_there(there, first));
        if constexpr (opcode == COMPARE_SWAP) store_value(here, compare_exchange((uint64_t *)there, first, second));
    }

    OUTBOARD_NET_CALL static void store_value(uint64_t at, uint64_t value)
    {
        if (at % 8 == 0) return store((uint64_t *)at, value);
        store_bytes(at, value);
    }

    // Checks a message, and takes the receive that it needs.
    OUTBOARD_NET_CALL Taken taken(const outboard_net_queue &of, Arrival kind, Remote there, Local from, uint64_t bytes,
                                    uint64_t timeout_ns)
    {
        Taken started{};
        started.failure = ready(of);
        if (started.failure) return started;
        bool is_write = kind == Arrival::write_imm;
        uint32_t syndrome = page(of, CONNECTED) == 0 ? 0x15 : 0;
        if (syndrome == 0 && page(of, PEER_RECEIVES) == 0) {
            started.failure = Failure{Cause::unsupported, of.qpn, 0, 0, Side::send};
            return started;
        }
        if (syndrome == 0 && bytes != 0 && !(opens(known_.mine, from.key, from.address, bytes, 0) && !is_write)) {
            Asked operation = asked<WRITE>(of, there, from, bytes);
            if (!is_write) operation.remote_access = NOTHING;
            syndrome = check(operation, &known_);
        }
        if (syndrome == 0) {
            started.failure = take(of, timeout_ns, &started.receive);
            if (started.failure) return started;
            started.to = there.address;
            if (!is_write) syndrome = place(of, started.receive, bytes, &started.to);
        }
        started.ticket = known_.next++;
        started.goes_on = is_good(of, started.ticket, syndrome);
        return started;
    }

    // Takes the next receive that the peer has posted, in time.
    OUTBOARD_NET_CALL Failure take(const outboard_net_queue &of, uint64_t timeout_ns, uint64_t *receive)
    {
        Deadline deadline(timeout_ns);
        while (!take_posted(of, receive)) {
            Failure failure = ready(of, true);
            if (failure) return failure;
            if (deadline.passed()) return Failure{Cause::timeout, of.qpn, known_.next, 0, Side::send};
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
        bool is_known = bytes == 0 || opens(look_up(true, page(of, PEER_KEYS), key), key, *to, bytes, LOCAL_WRITE);
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

    Known known_;
};

} // namespace detail
} // namespace net
} // namespace outboard

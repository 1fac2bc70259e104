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
// Posting: take one of the ring's credits, reserve a number, fill the entry, say that it is filled; then whoever finds
// nobody ringing rings once for all that are filled without a gap. No thread waits for another that posts. To a queue that
// is OUTBOARD_NET_EXCLUSIVE one thread, warp or block posts at a time: then all of this are plain stores.
//
// Scopes. With Scope::warp or Scope::block, put<Scope::warp>(...), all threads of the warp or block make the call
// together with the same arguments: it is one operation, which sees what all of them wrote before, and all get its
// result. On the CPU every thread is a group of its own.
//
// Providers. A queue of nvlink executes operations within the call, by loads and stores of the threads that make it: a
// wait is a fence. Signals, atomics and messages come after all that was put before them; writes among themselves have no
// order. Its tickets count the posts of one object. QueueOf<Providers::nvlink> and QueueOf<Providers::rings> have only the
// code that they need: fewer registers, and less to fetch.
//
// Signalling. Of a queue with signal_every N, the entries N-1, 2N-1, ... complete, and with each of them all before it.
// wait() posts a signalled nop if no entry that completes has been posted since the ticket's; test() does not.
#pragma once

#include "net_direct.cuh"
#include "net_shared.cuh"

namespace outboard {
namespace net {

namespace detail {

// Eight words of an entry, as they lie in memory.
struct Block {
    uint64_t words[8];
};

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

// Providers that code is compiled for: all; those whose queues are rings, which are mlx5, nic and proxy; or nvlink.
enum class Providers { all, rings, nvlink };

// A queue as one thread uses it. Copies are the same queue. Calls for a queue of a provider that this is not compiled for
// are `unsupported`: nothing is posted.
template <Providers providers> class QueueOf {
public:
    OUTBOARD_NET_CALL explicit QueueOf(const outboard_net_queue &of) : of_(of), is_held_(false), has_rung_(false), direct_() {}

    // Posts of this object are executed from the next ring() on, or from its next wait() or flush() on: several entries
    // for the price of one way to the adapter. A post to a full ring rings, too.
    OUTBOARD_NET_CALL void hold() { is_held_ = true; }

    // Rings for all that was posted by this thread, and goes on holding if it did.
    OUTBOARD_NET_CALL void ring()
    {
        if (is_direct() || is_foreign()) return;
        if (!is_exclusive()) return ring_ready();
        uint64_t ready = read(detail::RESERVED);
        if (ready != read(detail::RUNG)) ring_until(ready);
    }

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
        if (is_direct()) return direct_.run<scope, detail::VALUE>(of_, to, Local{}, 8, value, 0, ticket);
        return post<scope>(with_value(to, value), detail::WRITE, timeout_ns, ticket);
    }

    // Writes bytes of each thread of a warp, which makes the call together: one reservation and one way to the adapter for
    // all. The ticket is of the last of these operations, so that wait<Scope::warp>() waits for all. They fail together if
    // they cannot be posted.
    OUTBOARD_NET_CALL Failure put_each(Remote to, Local from, uint64_t bytes, uint64_t timeout_ns, uint64_t *ticket)
    {
        if (detail::any_of_warp(bytes > detail::BYTES_MAX)) return fail(Cause::invalid, 0, 0);
        if (is_direct()) return direct_.each<detail::WRITE>(of_, to, from, bytes, 0, ticket);
        detail::Block block = with_memory(to, from, bytes);
        return post_each(block, detail::WRITE, timeout_ns, ticket);
    }

    // Writes a value of each thread of a warp, as put_each() does.
    OUTBOARD_NET_CALL Failure put_value_each(Remote to, uint64_t value, uint64_t timeout_ns, uint64_t *ticket)
    {
        if (is_direct()) return direct_.each<detail::VALUE>(of_, to, Local{}, 8, value, ticket);
        detail::Block block = with_value(to, value);
        return post_each(block, detail::WRITE, timeout_ns, ticket);
    }

    // Adds to an aligned word there; the value before is written here.
    template <Scope scope = Scope::thread>
    OUTBOARD_NET_CALL Failure fetch_add(Remote to, uint64_t add, Local before, uint64_t timeout_ns, uint64_t *ticket)
    {
        if (is_direct()) return direct_.run<scope, detail::FETCH_ADD>(of_, to, before, 8, add, 0, ticket);
        return atomic<scope>(detail::FETCH_ADD, to, add, 0, before, timeout_ns, ticket);
    }

    // Replaces an aligned word there if it has the expected value; the value before is written here.
    template <Scope scope = Scope::thread>
    OUTBOARD_NET_CALL Failure compare_swap(Remote to, uint64_t expected, uint64_t value, Local before, uint64_t timeout_ns,
                                           uint64_t *ticket)
    {
        if (is_direct()) return direct_.run<scope, detail::COMPARE_SWAP>(of_, to, before, 8, expected, value, ticket);
        return atomic<scope>(detail::COMPARE_SWAP, to, value, expected, before, timeout_ns, ticket);
    }

    // Sets a flag after all that was put before: a generation, never the same value twice.
    template <Scope scope = Scope::thread>
    OUTBOARD_NET_CALL Failure signal_set(Remote flag, uint64_t generation, uint64_t timeout_ns, uint64_t *ticket)
    {
        if (is_direct()) return direct_.run<scope, detail::SIGNAL_SET>(of_, flag, Local{}, 8, generation, 0, ticket);
        return put_value<scope>(flag, generation, timeout_ns, ticket);
    }

    // Writes bytes, and sets a flag after them: put() and signal_set() in one call, for the price of one way to the adapter.
    // The ticket is of the flag.
    template <Scope scope = Scope::thread>
    OUTBOARD_NET_CALL Failure put_signal(Remote to, Local from, uint64_t bytes, Remote flag, uint64_t generation,
                                         uint64_t timeout_ns, uint64_t *ticket)
    {
        if (bytes > detail::BYTES_MAX) return fail(Cause::invalid, 0, 0);
        if (is_direct()) return direct_.put_signal<scope>(of_, to, from, bytes, flag, generation, ticket);
        bool leads = detail::enter<scope>();
        Answer answer{};
        if (leads) {
            answer.failure = post_both(with_memory(to, from, bytes), with_value(flag, generation), timeout_ns, &answer.ticket);
        }
        detail::share<scope>(answer, leads);
        *ticket = answer.ticket;
        return answer.failure;
    }

    // Adds to a flag after all that was put before.
    template <Scope scope = Scope::thread>
    OUTBOARD_NET_CALL Failure signal_add(Remote flag, uint64_t add, uint64_t timeout_ns, uint64_t *ticket)
    {
        if (is_direct()) return direct_.run<scope, detail::SIGNAL_ADD>(of_, flag, Local{}, 8, add, 0, ticket);
        return fetch_add<scope>(flag, add, Local{of_.scratch, of_.scratch_key}, timeout_ns, ticket);
    }

    template <Scope scope = Scope::thread> OUTBOARD_NET_CALL Failure nop(uint64_t timeout_ns, uint64_t *ticket)
    {
        if (is_direct()) return direct_.run<scope, detail::NOP>(of_, Remote{}, Local{}, 0, 0, 0, ticket);
        return post<scope>(begin(1), detail::NOP, timeout_ns, ticket);
    }

    // Waits until an operation is complete. Acquires: what it wrote here may be read.
    template <Scope scope = Scope::thread> OUTBOARD_NET_CALL Failure wait(uint64_t ticket, uint64_t timeout_ns)
    {
        bool leads = detail::enter<scope>();
        Answer answer{};
        if (leads) answer.failure = wait_alone(ticket, timeout_ns, true);
        look();
        return told<scope>(answer, leads);
    }

    // Whether an operation is complete, or has failed, without waiting.
    OUTBOARD_NET_CALL bool test(uint64_t ticket, Failure *failure)
    {
        look();
        *failure = wait_alone(ticket, 0, false);
        look();
        return failure->cause != Cause::timeout;
    }

    // Waits for all that was posted before, by all threads.
    template <Scope scope = Scope::thread> OUTBOARD_NET_CALL Failure flush(uint64_t timeout_ns)
    {
        bool leads = detail::enter<scope>();
        Answer answer{};
        if (leads && is_direct()) {
            answer.failure = direct_.settled(of_);
        } else if (leads && is_foreign()) {
            answer.failure = fail(Cause::unsupported, 0, 0);
        } else if (leads) {
            uint64_t reserved = acquire(detail::RESERVED);
            bool posted = reserved != acquire(detail::BASE);
            if (posted) answer.failure = wait_alone(reserved - 1, timeout_ns, true);
        }
        look();
        return told<scope>(answer, leads);
    }

    // Posts memory for a message of the peer's; of 0 bytes for a put_imm or an empty send. Messages take receives in the
    // order of their tickets. Waits for room, which receive() makes.
    template <Scope scope = Scope::thread>
    OUTBOARD_NET_CALL Failure post_receive(Local into, uint64_t bytes, uint64_t timeout_ns, uint64_t *ticket)
    {
        bool leads = detail::enter<scope>();
        Answer answer{};
        if (leads) answer.failure = receive_into(into, bytes, timeout_ns, &answer.ticket);
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
        if (leads) answer.failure = receive_alone(timeout_ns, &answer.received);
        look();
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

    // Of a queue at a server, for threads of the CPU: what came before a completion is here after it.
    OUTBOARD_NET_CALL void look() const
    {
#ifndef __CUDA_ARCH__
        if ((of_.flags & OUTBOARD_NET_REMOTE) != 0) detail::look();
#endif
    }

    // Gives what a group's first thread has waited for to the others, and of nvlink the generation that it saw.
    template <Scope scope> OUTBOARD_NET_CALL Failure told(Answer answer, bool leads)
    {
        if (leads && is_direct()) answer.ticket = direct_.next();
        detail::share<scope>(answer, leads);
        if (!leads && is_direct()) direct_.follow(answer.ticket);
        return answer.failure;
    }

    OUTBOARD_NET_CALL uint64_t *counter(detail::Counter which) const { return (uint64_t *)of_.counters + which; }

    OUTBOARD_NET_CALL bool of_gpu() const { return (of_.flags & OUTBOARD_NET_OF_GPU) != 0; }

    OUTBOARD_NET_CALL uint64_t read(detail::Counter which) const { return detail::load(counter(which)); }

    OUTBOARD_NET_CALL uint64_t acquire(detail::Counter which) const
    {
        return detail::load_acquire(of_gpu(), counter(which));
    }

    OUTBOARD_NET_CALL void write(detail::Counter which, uint64_t value) const { detail::store(counter(which), value); }

    OUTBOARD_NET_CALL void release(detail::Counter which, uint64_t value) const
    {
        detail::store_release(of_gpu(), counter(which), value);
    }

    OUTBOARD_NET_CALL uint64_t exchange(detail::Counter which, uint64_t expected, uint64_t value) const
    {
        return detail::compare_exchange(of_gpu(), counter(which), expected, value);
    }

    OUTBOARD_NET_CALL uint64_t raise(detail::Counter which, uint64_t value) const
    {
        return detail::raise(of_gpu(), counter(which), value);
    }

    OUTBOARD_NET_CALL uint64_t size() const { return (uint64_t)1 << of_.log_blocks; }

    // All before `done` are complete: gives back their entries of the ring, once, whoever says so first.
    OUTBOARD_NET_CALL void complete(uint64_t done) const
    {
        uint64_t before = raise(detail::DONE, done);
        if (before < done && !is_exclusive()) detail::give(of_gpu(), counter(detail::USED), done - before);
    }

    OUTBOARD_NET_CALL bool is_exclusive() const { return (of_.flags & OUTBOARD_NET_EXCLUSIVE) != 0; }

    OUTBOARD_NET_CALL bool is_direct() const
    {
        if constexpr (providers == Providers::all) return (of_.flags & OUTBOARD_NET_DIRECT) != 0;
        return providers == Providers::nvlink;
    }

    // Whether the queue is of a provider that this is not compiled for.
    OUTBOARD_NET_CALL bool is_foreign() const { return is_direct() != ((of_.flags & OUTBOARD_NET_DIRECT) != 0); }

    OUTBOARD_NET_CALL Failure fail(Cause cause, uint64_t entry, uint32_t syndrome, Side side = Side::send) const
    {
        return Failure{cause, of_.qpn, entry, syndrome, side};
    }

    OUTBOARD_NET_CALL bool signals(uint64_t entry) const
    {
        return detail::is_likely(of_.signal_every == 1) || is_signalled(entry, of_.signal_every);
    }

    OUTBOARD_NET_RARE static bool is_signalled(uint64_t entry, uint32_t every) { return (entry + 1) % every == 0; }

    OUTBOARD_NET_CALL bool is_plain() const { return (of_.flags & OUTBOARD_NET_PLAIN) != 0; }

    OUTBOARD_NET_CALL Failure stale_or_done(uint64_t ticket) const
    {
        return ticket < read(detail::BASE) ? fail(Cause::stale, ticket, 0) : Failure{};
    }

    OUTBOARD_NET_CALL Failure wait_alone(uint64_t ticket, uint64_t timeout_ns, bool may_post)
    {
        if (is_direct()) return direct_.settled(of_, ticket);
        if (is_foreign()) return fail(Cause::unsupported, 0, 0);
        if (may_post && is_held_) ring();
        detail::Deadline deadline(timeout_ns);
        if (has_rung_ && may_post) detail::rest();
        has_rung_ = false;
        for (;;) {
            // All are on their way at once, so that one way to memory is waited for, and not four.
            uint64_t error = read(detail::ERROR), base = read(detail::BASE), done = read(detail::DONE);
            uint64_t last = is_plain() ? 0 : detail::load_acquire((const uint64_t *)of_.completion + 7);
            if (done > ticket) {
                // A reset writes DONE last: who sees its DONE sees its BASE.
                acquire(detail::DONE);
                return stale_or_done(ticket);
            }
            if (ticket < base) return fail(Cause::stale, ticket, 0);
            if (error != 0 && error >> 8 >= base && ticket >= error >> 8) {
                return fail(Cause::completion, error >> 8, (uint32_t)(error & 0xff));
            }
            if (is_plain()) {
                if (poll_ring(of_)) continue;
            } else if (uint64_t until = completed_until(done, last)) {
                // To an exclusive queue the completion itself is enough. DONE follows when the ring is full.
                if (!is_exclusive()) complete(until);
                // Who sees a completion from after a reset sees its BASE. Beside a GPU's counters there is none.
                if (until > ticket) return of_gpu() ? Failure{} : stale_or_done(ticket);
                if (!is_exclusive()) continue;
            }
            if (may_post && of_.signal_every != 1) force_after(of_, is_held_, ticket, timeout_ns);
            if (deadline.passed()) return fail(Cause::timeout, ticket, 0);
        }
    }

    // Posts a nop that completes if no entry at or after the ticket's does by itself.
    OUTBOARD_NET_CALL static void force_after(outboard_net_queue of, bool is_held, uint64_t ticket, uint64_t timeout_ns)
    {
        QueueOf queue(of);
        queue.is_held_ = is_held;
        uint64_t covers = (ticket / of.signal_every + 1) * of.signal_every - 1;
        if (queue.acquire(detail::RESERVED) <= covers) queue.force(ticket, timeout_ns);
    }

    // Posts a nop that completes, unless another thread has done so, or does.
    OUTBOARD_NET_CALL void force(uint64_t ticket, uint64_t timeout_ns)
    {
        if (acquire(detail::FORCED) > ticket || failed() != 0) return;
        if (exchange(detail::FORCING, 0, 1) != 0) return;
        if (acquire(detail::FORCED) <= ticket) {
            detail::Block block = begin(1);
            block.words[1] = detail::pair(detail::SIGNALLED, 0);
            uint64_t nop = 0;
            if (!post_alone(block, detail::NOP, timeout_ns, &nop)) raise(detail::FORCED, nop + 1);
            if (is_held_) ring();
        }
        release(detail::FORCING, 0);
    }

    // The first failure since the last reset: entry and syndrome, or 0.
    OUTBOARD_NET_CALL uint64_t failed() const
    {
        uint64_t error = read(detail::ERROR);
        return error >> 8 >= read(detail::BASE) ? error : 0;
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

    OUTBOARD_NET_CALL detail::Block with_value(Remote to, uint64_t value) const
    {
        detail::Block block = begin(3);
        remote(block, to);
        // The bytes of the value follow its length, in the order of this machine.
        uint32_t low = (uint32_t)value, high = (uint32_t)(value >> 32);
        block.words[4] = (detail::big(detail::INLINE | 8) >> 32) | (uint64_t)low << 32;
        block.words[5] = high;
        return block;
    }

    // A segment of length 0 would be one of 2 GiB, so an empty operation has none.
    OUTBOARD_NET_CALL detail::Block with_memory(Remote there, Local here, uint64_t bytes, uint32_t imm = 0) const
    {
        detail::Block block = begin(bytes == 0 ? 2 : 3, imm);
        remote(block, there);
        if (bytes != 0) local(block, 4, here, bytes);
        return block;
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
        if (is_direct()) {
            if (opcode == detail::WRITE) return direct_.run<scope, detail::WRITE>(of_, there, here, bytes, 0, 0, ticket);
            if (opcode == detail::READ) return direct_.run<scope, detail::READ>(of_, there, here, bytes, 0, 0, ticket);
            return direct_.message<scope>(of_, Arrival::write_imm, there, here, bytes, imm, timeout_ns, ticket);
        }
        return post<scope>(with_memory(there, here, bytes, imm), opcode, timeout_ns, ticket);
    }

    template <Scope scope>
    OUTBOARD_NET_CALL Failure message(uint32_t opcode, Local from, uint64_t bytes, uint32_t imm, uint64_t timeout_ns,
                                      uint64_t *ticket)
    {
        if (bytes > detail::BYTES_MAX) return fail(Cause::invalid, 0, 0);
        if (is_direct()) {
            Arrival kind = opcode == detail::SEND ? Arrival::send : Arrival::send_imm;
            return direct_.message<scope>(of_, kind, Remote{}, from, bytes, imm, timeout_ns, ticket);
        }
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

    // Takes a completion; false if there was none.
    OUTBOARD_NET_CALL bool poll() { return is_plain() ? poll_plain() : poll_collapsed(); }

    OUTBOARD_NET_CALL static bool poll_ring(outboard_net_queue of) { return QueueOf(of).poll_plain(); }

    // Notes the first failure since the reset.
    OUTBOARD_NET_CALL void note_failure(uint64_t entry, uint64_t syndrome)
    {
        complete(entry);
        uint64_t old = acquire(detail::ERROR);
        if (old >> 8 < acquire(detail::BASE) || old == 0) {
            exchange(detail::ERROR, old, entry << 8 | syndrome);
        }
    }

    // Takes the next completion of the ring. A failure is noted before the completion counts as consumed, so that
    // nobody takes what was flushed behind it for the first failure.
    OUTBOARD_NET_CALL bool poll_plain()
    {
        uint64_t done = acquire(detail::DONE);
        uint64_t number = acquire(detail::CONSUMED);
        detail::Taken taken;
        if (!detail::read_completion(of_.completion, number, of_.log_blocks, &taken)) return false;
        // Loads before are not made again after this one: the completion was this one if nobody has consumed it.
        detail::fence();
        if (acquire(detail::CONSUMED) != number) return true;
        uint64_t entry = done + (uint16_t)(taken.index - (uint16_t)done);
        if (taken.kind != 0 && failed() == 0) note_failure(entry, taken.syndrome);
        if (exchange(detail::CONSUMED, number, number + 1) != number) return true;
        if (taken.kind == 0) complete(entry + 1);
        return true;
    }

    // Takes a completion. The counter is read before it: a completion is never older than what is known.
    OUTBOARD_NET_CALL bool poll_collapsed()
    {
        uint64_t done = acquire(detail::DONE);
        uint64_t until = completed_until(done, detail::load_acquire((const uint64_t *)of_.completion + 7));
        if (until == 0) return false;
        complete(until);
        return true;
    }

    // All before this entry are complete, says the last word of the collapsed completion; 0 if it says no more than DONE,
    // or a failure, which is noted.
    OUTBOARD_NET_CALL uint64_t completed_until(uint64_t done, uint64_t last)
    {
        uint32_t kind = (uint32_t)(last >> 60);
        if (kind == 15) return 0;
        uint16_t index = (uint16_t)((last >> 32 & 0xff) << 8 | (last >> 40 & 0xff));
        uint16_t ahead = (uint16_t)(index - (uint16_t)done);
        if (ahead >= 0x8000) return 0;
        if (kind == 0) return done + ahead + 1;
        note_collapsed(of_, done + ahead);
        return 0;
    }

    OUTBOARD_NET_CALL static void note_collapsed(outboard_net_queue of, uint64_t entry)
    {
        QueueOf(of).note_failure(entry, detail::load((const uint64_t *)of.completion + 6) >> 56);
    }

    // Reserves entries that follow one another, if there is room or comes to be in time.
    OUTBOARD_NET_CALL Failure reserve(uint64_t count, uint64_t timeout_ns, uint64_t *entry)
    {
        Failure failure{};
        if (is_foreign()) return fail(Cause::unsupported, 0, 0);
        if (detail::is_likely(has_room(count, entry, &failure))) return failure;
        uint64_t late = 0;
        failure = reserve_late(of_, is_held_, count, timeout_ns, &late);
        *entry = late;
        return failure;
    }

    // Reserves them if there is room now, or says why nothing is posted; false if there is none.
    OUTBOARD_NET_CALL bool has_room(uint64_t count, uint64_t *entry, Failure *failure)
    {
        // All are on their way at once: nothing is looked at before the last one has left.
        uint64_t error, base, next = 0, done = 0;
        if (is_exclusive()) {
            error = read(detail::ERROR), base = read(detail::BASE), next = read(detail::RESERVED), done = acquire(detail::DONE);
        } else {
            error = read(detail::ERROR), base = read(detail::BASE);
        }
        if (!detail::is_likely(error == 0 || error >> 8 < base)) {
            *failure = fail(Cause::completion, error >> 8, (uint32_t)(error & 0xff));
            return true;
        }
        if (!is_exclusive()) return reserve_among_many(count, entry);
        if (next + count - done > size()) return false;
        write(detail::RESERVED, next + count);
        *entry = next;
        return true;
    }

    // Reserves in a ring that is full, when there is room.
    OUTBOARD_NET_CALL static Failure reserve_late(outboard_net_queue of, bool is_held, uint64_t count, uint64_t timeout_ns,
                                                  uint64_t *entry)
    {
        QueueOf queue(of);
        detail::Deadline deadline(timeout_ns);
        Failure failure{};
        for (;;) {
            if (is_held) queue.ring();
            if (!queue.poll() && deadline.passed()) return queue.fail(Cause::timeout, queue.read(detail::RESERVED), 0);
            if (queue.has_room(count, entry, &failure)) return failure;
        }
    }

    // Credits are tried for, and given back if there are too few, so that numbers are only taken for entries that have room.
    OUTBOARD_NET_CALL bool reserve_among_many(uint64_t count, uint64_t *entry)
    {
        if (detail::take(of_gpu(), counter(detail::USED), count) + count <= size()) {
            *entry = detail::add(of_gpu(), counter(detail::RESERVED), count);
            if (*entry < detail::CLOSED) return true;
        }
        detail::give(of_gpu(), counter(detail::USED), count);
        return false;
    }

    OUTBOARD_NET_CALL void fill(uint64_t entry, detail::Block &block, uint32_t opcode)
    {
        uint32_t second = (uint32_t)block.words[0];
        block.words[0] = detail::pair((uint32_t)(entry & 0xffff) << 8 | opcode, second);
        if (signals(entry)) block.words[1] |= detail::pair(detail::SIGNALLED, 0);
        uint64_t *slot = (uint64_t *)of_.ring + (entry & (size() - 1)) * 8;
        detail::store_block(slot, block.words);
    }

    // Says that entries are filled: their bits change, once in each round of the ring.
    OUTBOARD_NET_CALL void publish(uint64_t entry, uint64_t count)
    {
        if (is_exclusive()) {
            if (!is_held_) ring_until(entry + count);
            return;
        }
        while (count > 0) {
            uint64_t at = entry & (size() - 1), left = (size() < 64 ? size() : 64) - (at & 63), now = count < left ? count : left;
            uint64_t bits = now == 64 ? ~(uint64_t)0 : ((uint64_t)1 << now) - 1;
            detail::flip(of_gpu(), (uint64_t *)of_.filled + at / 64, bits << (at & 63));
            entry += now;
            count -= now;
        }
        if (!is_held_) ring_ready();
    }

    // The first entry from `from` on that is not filled.
    OUTBOARD_NET_CALL uint64_t filled_until(uint64_t from) const
    {
        uint64_t word_size = size() < 64 ? size() : 64;
        for (;;) {
            uint64_t at = from & (size() - 1);
            uint64_t filled = detail::load_acquire(of_gpu(), (const uint64_t *)of_.filled + at / 64);
            // Bits of even rounds are filled if they are 1, those of odd ones if they are 0.
            uint64_t open = (from >> of_.log_blocks & 1 ? filled : ~filled) >> (at & 63);
            uint64_t left = word_size - (at & 63), run = open == 0 ? 64 : detail::trailing_zeros(open);
            if (run < left) return from + run;
            from += left;
        }
    }

    // Rings for all that are filled, unless another thread does: it looks again after it has rung.
    OUTBOARD_NET_CALL void ring_ready()
    {
        detail::fence(of_gpu());
        while (exchange(detail::RINGING, 0, 1) == 0) {
            uint64_t rung = read(detail::RUNG), ready = filled_until(rung);
            if (ready != rung) ring_until(ready);
            release(detail::RINGING, 0);
            detail::fence(of_gpu());
            if (filled_until(ready) == ready) return;
        }
    }

    // Rings for the entries before `ready`: the entries, then the record and the doorbell, in any order, since an adapter
    // that is rung looks at the record until it has what the doorbell said. A second fence would cost a way to the host.
    OUTBOARD_NET_CALL void ring_until(uint64_t ready)
    {
        uint32_t index = (uint32_t)(ready & 0xffff);
        detail::fence_release();
        detail::store32((uint32_t *)of_.record + 1, (uint32_t)(detail::big(index) >> 32));
        detail::store((uint64_t *)of_.doorbell, detail::pair(index << 8, of_.qpn << 8));
        write(detail::RUNG, ready);
        has_rung_ = true;
#ifndef __CUDA_ARCH__
        if ((of_.flags & OUTBOARD_NET_REMOTE) != 0 || read(detail::ASLEEP) != 0) outboard_net_rouse(of_.doorbell);
#endif
    }

    OUTBOARD_NET_CALL Failure post_alone(detail::Block &block, uint32_t opcode, uint64_t timeout_ns, uint64_t *ticket)
    {
        Failure failure = reserve(1, timeout_ns, ticket);
        if (failure) return failure;
        fill(*ticket, block, opcode);
        publish(*ticket, 1);
        return Failure{};
    }

    // Posts two writes that ring once. In a ring of one entry they follow one another.
    OUTBOARD_NET_CALL Failure post_both(detail::Block first, detail::Block second, uint64_t timeout_ns, uint64_t *ticket)
    {
        if (size() == 1) {
            Failure failure = post_alone(first, detail::WRITE, timeout_ns, ticket);
            return failure ? failure : post_alone(second, detail::WRITE, timeout_ns, ticket);
        }
        Failure failure = reserve(2, timeout_ns, ticket);
        if (failure) return failure;
        fill(*ticket, first, detail::WRITE);
        fill(*ticket + 1, second, detail::WRITE);
        publish(*ticket, 2);
        ++*ticket;
        return Failure{};
    }

    // Posts an entry of each thread of a warp. The ticket is that of the last of them.
    OUTBOARD_NET_CALL Failure post_each(detail::Block &block, uint32_t opcode, uint64_t timeout_ns, uint64_t *ticket)
    {
        bool leads = detail::enter<Scope::warp>();
        uint64_t lane = detail::lane(), count = detail::lanes();
        Answer answer{};
        if (leads) answer.failure = reserve(count, timeout_ns, &answer.ticket);
        detail::share<Scope::warp>(answer, leads);
        *ticket = answer.ticket + count - 1;
        if (answer.failure) return answer.failure;
        fill(answer.ticket + lane, block, opcode);
        // All have filled theirs before one says so.
        detail::enter<Scope::warp>();
        if (leads) publish(answer.ticket, count);
        return Failure{};
    }

    template <Scope scope>
    OUTBOARD_NET_CALL Failure post(detail::Block block, uint32_t opcode, uint64_t timeout_ns, uint64_t *ticket)
    {
        bool leads = detail::enter<scope>();
        Answer answer{};
        if (leads) answer.failure = post_alone(block, opcode, timeout_ns, &answer.ticket);
        detail::share<scope>(answer, leads);
        *ticket = answer.ticket;
        return answer.failure;
    }

    // Posts a receive: reserve, fill, and in order the record and the counter, which have one writer at a time.
    OUTBOARD_NET_CALL Failure receive_into(Local into, uint64_t bytes, uint64_t timeout_ns, uint64_t *ticket)
    {
        detail::Deadline deadline(timeout_ns);
        if (is_foreign()) return fail(Cause::unsupported, 0, 0, Side::receive);
        if (of_.log_receives == 0 || bytes > detail::BYTES_MAX) return fail(Cause::invalid, 0, 0, Side::receive);
        uint64_t count = (uint64_t)1 << of_.log_receives, number = 0;
        for (;;) {
            number = acquire(detail::RECEIVES_RESERVED);
            uint64_t error = failed();
            if (error != 0) return fail(Cause::completion, error >> 8, (uint32_t)(error & 0xff));
            if (number - acquire(detail::RECEIVES_CONSUMED) >= count) {
                if (deadline.passed()) return fail(Cause::timeout, number, 0, Side::receive);
            } else if (exchange(detail::RECEIVES_RESERVED, number, number + 1) == number) {
                break;
            }
        }
        *ticket = number;
        uint64_t *slot = (uint64_t *)of_.receives + (number & (count - 1)) * 2;
        uint32_t length = (uint32_t)(bytes & (detail::BYTES_MAX - 1));
        detail::store(slot, detail::pair(length, bytes == 0 ? detail::NO_MEMORY : into.key));
        detail::store(slot + 1, detail::big(into.address));
        // After that time the threads before this one are lost: they have reserved a receive, and do not become ready.
        detail::Deadline lost(timeout_ns > UINT64_MAX - detail::LOST_NS ? UINT64_MAX : timeout_ns + detail::LOST_NS);
        while (acquire(detail::RECEIVES_READY) != number) {
            if (lost.passed()) {
                exchange(detail::ERROR, 0, read(detail::DONE) << 8 | 0x02);
                return fail(Cause::timeout, number, 0, Side::receive);
            }
        }
        detail::fence_release();
        detail::store32((uint32_t *)of_.record, (uint32_t)(detail::big((number + 1) & 0xffff) >> 32));
        release(detail::RECEIVES_READY, number + 1);
        return Failure{};
    }

    OUTBOARD_NET_CALL Failure receive_alone(uint64_t timeout_ns, Received *received)
    {
        detail::Deadline deadline(timeout_ns);
        if (is_foreign()) return fail(Cause::unsupported, 0, 0, Side::receive);
        if (of_.log_receives == 0) return fail(Cause::invalid, 0, 0, Side::receive);
        for (;;) {
            uint64_t number = acquire(detail::RECEIVES_CONSUMED);
            uint64_t error = acquire(detail::ERROR);
            if (error >> 8 == detail::ALL) return fail(Cause::stale, number, 0, Side::receive);
            detail::Taken taken;
            // Receives complete in their order, so a completion's number is its receive's.
            if (detail::read_completion(of_.receive_completions, number, of_.log_receives, &taken)) {
                // Nobody posts another receive to this slot before this one is consumed.
                uint64_t slot = of_.receives + (number & (((uint64_t)1 << of_.log_receives) - 1)) * 16;
                uint64_t address = detail::big(detail::load((const uint64_t *)slot + 1));
                if (exchange(detail::RECEIVES_CONSUMED, number, number + 1) != number) continue;
                if (taken.kind >= 13) return fail(Cause::completion, number, taken.syndrome, Side::receive);
                *received = Received{number, address, (Arrival)taken.kind, taken.bytes, taken.imm};
                return Failure{};
            }
            if (!is_direct()) poll();
            error = failed();
            if (error != 0 && acquire(detail::RECEIVES_READY) == number) {
                return fail(Cause::completion, error >> 8, (uint32_t)(error & 0xff));
            }
            if (deadline.passed()) {
                // Nobody completes the receives of a session that is lost.
                if (deadline.is_lost()) return fail(Cause::completion, number, detail::GONE, Side::receive);
                return fail(Cause::timeout, number, 0, Side::receive);
            }
        }
    }

    outboard_net_queue of_;
    bool is_held_, has_rung_;
    detail::Direct direct_;
};

using Queue = QueueOf<Providers::all>;

namespace detail {

// Looks at a flag until it has the generation, or a later one if that is enough.
template <bool or_later> OUTBOARD_NET_CALL bool poll_flag(const uint64_t *flag, uint64_t generation, uint64_t timeout_ns)
{
    Deadline deadline(timeout_ns);
    for (;;) {
        // Looks between two at the clock, which takes a GPU as long as a look at its own memory.
        for (int at = 0; at < LOOKS; ++at) {
            uint64_t value = load_acquire(flag);
            if (or_later ? value >= generation : value == generation) {
                look();
                return true;
            }
        }
        if (deadline.passed()) return false;
    }
}

// One look at all flags, by `lanes` threads of a warp. Returns the number of one that has another generation than was
// seen, or -1.
OUTBOARD_NET_CALL int find_flag(const uint64_t *flags, int count, int stride, uint64_t *seen, int from, int lane,
                                int lanes)
{
    for (int first = 0; first < count; first += lanes) {
        int at = (int)(((unsigned)from + (unsigned)(first + lane)) % (unsigned)count);
        uint64_t generation = first + lane < count ? load_acquire(flags + (long)at * stride) : 0;
        bool here = first + lane < count && generation != load(seen + at);
#ifdef __CUDA_ARCH__
        if (lanes > 1) {
            unsigned warp = warp_mask(), found = __ballot_sync(warp, here);
            if (found == 0) continue;
            int finder = __ffs((int)found) - 1;
            if (lane == finder) store(seen + at, generation);
            at = __shfl_sync(warp, at, finder);
            __syncwarp(warp);
            return at;
        }
#endif
        if (!here) continue;
        store(seen + at, generation);
        look();
        return at;
    }
    return -1;
}

} // namespace detail

// Waits until a flag has this generation. Acquires: what was put before the flag may be read. False at the deadline.
OUTBOARD_NET_CALL bool poll_slot(const uint64_t *flag, uint64_t generation, uint64_t timeout_ns)
{
    return detail::poll_flag<false>(flag, generation, timeout_ns);
}

// Waits until a flag has this generation or a later one, which is a larger number without a sign: for senders that do not
// wait for an answer, and for sums of signal_add(), which may pass by any one number. Acquires as poll_slot() does.
OUTBOARD_NET_CALL bool poll_slot_at_least(const uint64_t *flag, uint64_t generation, uint64_t timeout_ns)
{
    return detail::poll_flag<true>(flag, generation, timeout_ns);
}

// Waits, with all threads of a warp or of the given scope, until one of the flags has another generation than `seen` has
// of it; notes the new one there, and returns the flag's number to all threads, or -1 at the deadline. Flags are `stride`
// words apart. The search begins at `from`: after the last one found, no flag is left out. Of a block the first warp
// looks. Acquires as poll_slot() does.
template <Scope scope = Scope::warp>
OUTBOARD_NET_CALL int poll_any(const uint64_t *flags, int count, int stride, uint64_t *seen, int from, uint64_t timeout_ns)
{
    if constexpr (scope == Scope::block) {
        bool leads = detail::enter<scope>();
        uint64_t found = 0;
        if (detail::rank<scope>() < 32)
            found = (uint64_t)poll_any<Scope::warp>(flags, count, stride, seen, from, timeout_ns);
        detail::share<scope>(found, leads);
        return (int)found;
    } else {
        constexpr bool is_warp = scope == Scope::warp;
        int lane = is_warp ? (int)detail::lane() : 0, lanes = is_warp ? (int)detail::lanes() : 1;
        detail::Deadline deadline(timeout_ns);
        for (;;) {
            int found = detail::find_flag(flags, count, stride, seen, from, lane, lanes);
            if (found >= 0) return found;
            bool late = deadline.passed();
            if (lanes > 1 ? detail::any_of_warp(late) : late) return -1;
        }
    }
}

} // namespace net
} // namespace outboard

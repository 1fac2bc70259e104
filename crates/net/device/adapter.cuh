// The adapter in software as threads of a GPU: reads send rings, records and doorbells, checks each entry as hardware does,
// executes it by loads and stores, and writes completions. src/adapter/ is the same for threads of the CPU; both pass the
// tests of tests/adapter/. Compiles for the CPU, too, where one thread is all.
//
//   one thread, the leader                          all threads of the block
//     look at doorbell and record                     wait
//     read and check an entry, plan its copies ─────► copy
//     fence; completion, if one is asked for ◄──────  done
//
// A block serves the queues of its group alone, so that no two threads change a queue, its completions or its peer: what
// is connected, or completes to one queue, is of one group. Of other groups a block knows what was so when it last copied
// the tables: it waits for none of their completions. What the host changes, it changes while no block runs.
#pragma once

#include "outboard/net_peer.cuh"
#include "tables.h"

namespace outboard {
namespace net {
namespace adapter {

using detail::big;

#ifdef __CUDACC__
#define OUTBOARD_NET_APART __host__ __device__ __noinline__
#else
#define OUTBOARD_NET_APART
#endif

constexpr uint32_t SEGMENT_BYTES = 16, BLOCK_BYTES = 64, SEGMENTS_MAX = 63, INLINE_BYTES_MAX = 256;
constexpr uint32_t SNAPSHOT_WORDS = 128, COPIES_MAX = 62, CQE_BYTES = 64, CQN_FIRST = 0x40;
constexpr uint32_t WAIT = 0x0f, DUMP = 0x23, MASKED_COMPARE_SWAP = 0x14, MASKED_FETCH_ADD = 0x15;
constexpr uint32_t REQUESTER = 0, RECEIVED_WRITE_IMM = 1, RECEIVED = 2, RECEIVED_IMM = 3, REQUESTER_ERROR = 13,
                   RESPONDER_ERROR = 14;
constexpr uint32_t LOCAL_LENGTH = 0x01, LOCAL_OPERATION = 0x02, LOCAL_PROTECTION = 0x04, FLUSHED = 0x05,
                   REMOTE_INVALID_REQUEST = 0x12, REMOTE_ACCESS = 0x13, REMOTE_OPERATION = 0x14, RETRIES_EXCEEDED = 0x15,
                   RECEIVER_NOT_READY = 0x16;
constexpr uint32_t NOT_READY_WITHOUT_END = 7;
// Entries of one queue, and bytes after which none is begun, before the next has its turn.
constexpr uint32_t TURN_MAX = 16;
constexpr uint64_t TURN_BYTES_MAX = 16 << 20;
constexpr uint32_t NOTHING_RUNG = 0x10000;

struct Copy {
    uint64_t to, from, bytes;
};

// An entry under way, which all threads of a block see.
struct Turn {
    uint64_t entry[SNAPSHOT_WORDS];
    Copy copies[COPIES_MAX];
    uint32_t copy_count;
};

// All threads of a block, each of which makes the calls; on the CPU one.
struct Threads {
    uint32_t rank, count;

    // Copies bytes past caches.
    OUTBOARD_NET_APART void copy(uint64_t to, uint64_t from, uint64_t bytes) const
    {
        detail::copy(to, from, bytes, rank, count, true);
    }
    OUTBOARD_NET_CALL void meet() const
    {
#ifdef __CUDA_ARCH__
        __syncthreads();
#endif
    }
    // Copies structs between tables and region.
    OUTBOARD_NET_CALL void move(uint64_t to, uint64_t from, uint64_t at, uint64_t bytes) const { copy(to + at, from + at, bytes); }
};

// Copies the tables to a block's region if the host has changed them.
OUTBOARD_NET_CALL void fetch_tables(const Threads &all, uint64_t region, uint64_t tables)
{
    const Head *there = (const Head *)tables;
    bool is_new = detail::load(&((Head *)region)->generation) != detail::load(&there->generation);
    all.meet();
    if (!is_new) return;
    all.move(region, tables, 0, sizeof(Head));
    all.meet();
    const Head *head = (const Head *)region;
    all.move(region, tables, PAIRS_AT, head->pair_count * sizeof(Pair));
    all.move(region, tables, COMPLETIONS_AT, head->completion_count * sizeof(Completions));
    all.move(region, tables, KEYS_AT, head->key_count * sizeof(Key));
    all.meet();
}

// Copies what is of a group back to the tables.
OUTBOARD_NET_CALL void bring_back(const Threads &all, uint64_t region, uint64_t tables, uint32_t group)
{
    const Head *head = (const Head *)region;
    for (uint32_t i = 0; i < head->pair_count; ++i) {
        uint64_t at = PAIRS_AT + i * sizeof(Pair);
        if (((const Pair *)(region + at))->group == group) all.move(tables, region, at, sizeof(Pair));
    }
    for (uint32_t i = 0; i < head->completion_count; ++i) {
        uint64_t at = COMPLETIONS_AT + i * sizeof(Completions);
        if (((const Completions *)(region + at))->group == group) all.move(tables, region, at, sizeof(Completions));
    }
    all.meet();
}

OUTBOARD_NET_CALL uint32_t load32(uint64_t at)
{
#ifdef __CUDA_ARCH__
    uint32_t value;
    asm volatile("ld.relaxed.sys.b32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
#else
    return __atomic_load_n((const uint32_t *)at, __ATOMIC_RELAXED);
#endif
}

OUTBOARD_NET_CALL uint32_t compare_exchange32(uint64_t at, uint32_t expected, uint32_t value)
{
#ifdef __CUDA_ARCH__
    uint32_t old;
    asm volatile("atom.acq_rel.sys.global.cas.b32 %0, [%1], %2, %3;" : "=r"(old) : "l"(at), "r"(expected), "r"(value) : "memory");
    return old;
#else
    __atomic_compare_exchange_n((uint32_t *)at, &expected, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return expected;
#endif
}

// Orders what was seen before it with what is read after it.
OUTBOARD_NET_CALL void fence_acquire()
{
#ifdef __CUDA_ARCH__
    asm volatile("fence.acq_rel.sys;" ::: "memory");
#else
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
#endif
}

// Stores a word of 4 or 8 bytes, whole where it is aligned.
OUTBOARD_NET_CALL void store_word(uint64_t at, uint64_t value, uint32_t bytes)
{
    if (at % bytes == 0) {
        if (bytes == 8) detail::store((uint64_t *)at, value);
        else detail::store32((uint32_t *)at, (uint32_t)value);
    } else {
        for (uint32_t i = 0; i < bytes; ++i) detail::store8(at + i, (uint8_t)(value >> 8 * i));
    }
}

// Reads the segments of an entry, big-endian. What is not there is a wrong number of segments.
struct Reader {
    const uint64_t *words;
    uint32_t at, end;
    bool is_short;

    OUTBOARD_NET_CALL uint32_t u32()
    {
        if (at + 4 > end) {
            is_short = true;
            return 0;
        }
        uint64_t word = big(words[at / 8]);
        uint32_t value = at % 8 == 0 ? (uint32_t)(word >> 32) : (uint32_t)word;
        at += 4;
        return value;
    }
    OUTBOARD_NET_CALL uint64_t u64()
    {
        uint64_t high = u32();
        return high << 32 | u32();
    }
};

struct Segment {
    uint64_t address, bytes;
    uint32_t key;
};

OUTBOARD_NET_CALL Segment read_segment(Reader &from)
{
    uint32_t length = from.u32(), key = from.u32();
    uint64_t address = from.u64();
    return Segment{address, length == 0 ? detail::BYTES_MAX : length, key};
}

// An entry as its segments say. Segments and inline bytes stay where they are in the snapshot.
struct Entry {
    uint32_t opcode, flags, imm, index, blocks, rkey, word_bytes;
    bool is_inline;
    uint32_t data_at, data_end;
    uint64_t remote, bytes, operands[4];

    OUTBOARD_NET_CALL bool is_atomic() const
    {
        return opcode == detail::COMPARE_SWAP || opcode == detail::FETCH_ADD || opcode == MASKED_COMPARE_SWAP ||
               opcode == MASKED_FETCH_ADD;
    }
    OUTBOARD_NET_CALL bool reads() const { return opcode == detail::READ || is_atomic(); }
    OUTBOARD_NET_CALL bool is_write() const { return opcode == detail::WRITE || opcode == detail::WRITE_IMM; }
    OUTBOARD_NET_CALL bool is_send() const { return opcode == detail::SEND || opcode == detail::SEND_IMM; }
    OUTBOARD_NET_CALL bool is_signalled() const { return (flags >> 2 & 3) >= 2; }
    // Access that the entry needs at the peer, and here.
    OUTBOARD_NET_CALL uint32_t remote_access() const
    {
        if (is_write()) return detail::REMOTE_WRITE;
        if (opcode == detail::READ) return detail::REMOTE_READ;
        return is_atomic() ? detail::REMOTE_ATOMIC : 0;
    }
    OUTBOARD_NET_CALL uint32_t local_access() const { return reads() ? detail::LOCAL_WRITE : 0; }
};

OUTBOARD_NET_CALL void read_remote(Reader &from, Entry &entry)
{
    entry.remote = from.u64();
    entry.rkey = from.u32();
    from.u32();
}

// The rest of an entry are segments.
OUTBOARD_NET_CALL void read_gather(Reader &from, Entry &entry)
{
    entry.data_at = from.at;
    entry.data_end = from.end;
    for (Reader segments = from; segments.at < segments.end;) entry.bytes += read_segment(segments).bytes;
    from.at = from.end;
}

// Reads segments, or bytes in the entry. Returns a syndrome.
OUTBOARD_NET_CALL uint32_t read_data(Reader &from, Entry &entry)
{
    Reader first = from;
    uint32_t length = first.u32();
    if (first.is_short || (length & detail::INLINE) == 0) {
        read_gather(from, entry);
        return 0;
    }
    length &= ~detail::INLINE;
    if (length > INLINE_BYTES_MAX) return LOCAL_LENGTH;
    uint32_t end = from.at + (4 + length + SEGMENT_BYTES - 1) / SEGMENT_BYTES * SEGMENT_BYTES;
    if (end > from.end) return LOCAL_OPERATION;
    entry.is_inline = true;
    entry.data_at = from.at + 4;
    entry.bytes = length;
    from.at = end;
    return 0;
}

OUTBOARD_NET_CALL uint32_t read_atomic(Reader &from, uint32_t modifier, Entry &entry)
{
    read_remote(from, entry);
    bool is_masked = entry.opcode == MASKED_COMPARE_SWAP || entry.opcode == MASKED_FETCH_ADD;
    entry.word_bytes = is_masked && modifier == 0x08 ? 4 : 8;
    if (is_masked && modifier != 0x08 && modifier != 0x09) return LOCAL_OPERATION;
    bool has_two = !is_masked || (entry.opcode == MASKED_FETCH_ADD && entry.word_bytes == 8);
    for (int i = 0; i < (has_two ? 2 : 4); ++i) entry.operands[i] = entry.word_bytes == 4 ? from.u32() : from.u64();
    entry.data_at = from.at;
    Segment into = read_segment(from);
    entry.data_end = from.at;
    entry.bytes = entry.word_bytes;
    if (from.is_short) return LOCAL_OPERATION;
    return into.bytes == entry.word_bytes ? 0 : LOCAL_LENGTH;
}

// Reads the entry that a queue has at `index`. Returns a syndrome, of which an atomic's LOCAL_LENGTH is one only if the
// rest is right.
OUTBOARD_NET_CALL uint32_t parse(const uint64_t *words, uint32_t index, uint32_t qpn, Entry &entry)
{
    Reader from{words, 0, SEGMENT_BYTES, false};
    uint32_t first = from.u32(), second = from.u32(), flags = from.u32(), modifier = first >> 24;
    entry = Entry{};
    entry.opcode = first & 0xff;
    entry.flags = flags & 0xff;
    entry.imm = from.u32();
    entry.index = first >> 8 & 0xffff;
    from.end = (second & 0x3f) * SEGMENT_BYTES;
    bool is_masked = entry.opcode == MASKED_COMPARE_SWAP || entry.opcode == MASKED_FETCH_ADD;
    if (from.end == 0 || entry.index != index || second >> 8 != qpn || (modifier != 0) != is_masked) return LOCAL_OPERATION;
    uint32_t syndrome = 0;
    if (entry.opcode == detail::NOP) {
        // It may have segments, which mean nothing: NVSHMEM's has one.
        from.at = from.end;
    } else if (entry.is_write()) {
        read_remote(from, entry);
        syndrome = from.is_short ? LOCAL_OPERATION : read_data(from, entry);
    } else if (entry.is_send()) {
        syndrome = read_data(from, entry);
    } else if (entry.opcode == detail::READ) {
        read_remote(from, entry);
        if (!from.is_short) read_gather(from, entry);
    } else if (entry.is_atomic()) {
        syndrome = read_atomic(from, modifier, entry);
    } else if (entry.opcode == DUMP) {
        read_gather(from, entry);
    } else if (entry.opcode == WAIT) {
        from.u64();
        entry.operands[0] = from.u32();
        entry.operands[1] = from.u32();
    } else {
        return LOCAL_OPERATION;
    }
    bool is_wrong = from.is_short || (syndrome != LOCAL_OPERATION && from.at != from.end);
    // Of bytes in the entry the length is looked at before what follows them.
    if (syndrome == LOCAL_LENGTH && !entry.is_atomic()) return syndrome;
    return is_wrong ? LOCAL_OPERATION : syndrome;
}

// Changes a word as an atomic says. Returns false if it stays.
OUTBOARD_NET_CALL bool changed(const Entry &entry, uint64_t old, uint64_t &now)
{
    const uint64_t *of = entry.operands;
    switch (entry.opcode) {
    case detail::FETCH_ADD: now = old + of[0]; return true;
    case detail::COMPARE_SWAP: now = of[0]; return old == of[1];
    case MASKED_FETCH_ADD:
        // No bit is carried out of a field, whose highest bit is that of the boundary.
        now = ((old & ~of[1]) + (of[0] & ~of[1])) ^ ((old ^ of[0]) & of[1]);
        return true;
    default:
        now = (old & ~of[2]) | (of[0] & of[2]);
        return ((old ^ of[1]) & of[3]) == 0;
    }
}

// Executes an atomic. Returns what was there.
OUTBOARD_NET_CALL uint64_t change(const Entry &entry, uint64_t at)
{
    uint64_t old = entry.word_bytes == 8 ? detail::load((const uint64_t *)at) : load32(at);
    for (;;) {
        uint64_t now = 0, seen;
        if (!changed(entry, old, now)) return old;
        if (entry.word_bytes == 8) seen = detail::compare_exchange((uint64_t *)at, old, now);
        else seen = compare_exchange32(at, (uint32_t)old, (uint32_t)now);
        if (seen == old) return old;
        old = seen;
    }
}

enum class Answer : uint32_t { none, done, not_ready, failed };

// Serves the queues of one group, of tables that nobody else changes meanwhile.
class Engine {
public:
    OUTBOARD_NET_CALL Engine(uint64_t tables, Turn *turn, uint32_t group)
        : head_((Head *)tables), pairs_((Pair *)(tables + PAIRS_AT)), completions_((Completions *)(tables + COMPLETIONS_AT)),
          keys_((Key *)(tables + KEYS_AT)), turn_(turn), entry_{}, answer_(Answer::none), syndrome_(0), now_(0), moved_(0),
          group_(group), number_(0), turns_(0), receive_(0), is_under_way_(false), has_receive_(false)
    {
    }

    OUTBOARD_NET_CALL uint32_t pair_count() const { return head_->pair_count; }
    OUTBOARD_NET_CALL void set_time(uint64_t now_ns) { now_ = now_ns; }

    // Serves a queue. Returns the number of entries that it has completed, flushed, or begun; the copies of the last one
    // are still to be made, and finish() to be called, if is_under_way().
    OUTBOARD_NET_CALL uint32_t serve(uint32_t number)
    {
        Pair &pair = pairs_[number];
        if (pair.qpn == 0 || pair.group != group_) return 0;
        if (number != number_ || !has_turns()) turns_ = moved_ = 0;
        number_ = number;
        if (pair.state == STATE_READY && (completions_[pair.send_completions].flags & COMPLETIONS_OVERRUN) != 0) {
            pair.state = STATE_ERROR;
            return 0;
        }
        if (pair.state == STATE_ERROR) return flush(pair);
        if (pair.state != STATE_READY) return 0;
        uint32_t done = 0;
        while (turns_ < TURN_MAX && pair.state == STATE_READY && begin(pair)) {
            ++turns_;
            ++done;
            if (turn_->copy_count > 0) {
                is_under_way_ = true;
                moved_ += entry_.bytes;
                return done;
            }
            finish(pair);
        }
        return done;
    }

    OUTBOARD_NET_CALL bool is_under_way() const { return is_under_way_; }
    // The queue that was served last may have more in this turn.
    OUTBOARD_NET_CALL bool has_turns() const { return turns_ > 0 && turns_ < TURN_MAX && moved_ < TURN_BYTES_MAX; }

    // Ends an entry whose copies are made.
    OUTBOARD_NET_CALL void finish()
    {
        is_under_way_ = false;
        finish(pairs_[number_]);
    }

private:
    // Reads doorbell and record. Returns how many blocks are posted and not fetched. Of a doorbell that several queue
    // pairs ring the record alone counts: one's word may be over another's, and be the same as before.
    OUTBOARD_NET_CALL uint32_t look(Pair &pair)
    {
        bool is_shared = (pair.flags & PAIR_SHARES_DOORBELL) != 0;
        uint64_t rung = detail::load((const uint64_t *)pair.doorbell);
        uint32_t record = (uint32_t)big(detail::load((const uint64_t *)pair.record)) & 0xffff;
        bool is_new = rung != pair.doorbell_seen;
        if (is_new && is_shared) {
            // Another's doorbell, over this queue's, may be newer than the record that was read beside it.
            fence_acquire();
            record = (uint32_t)big(detail::load((const uint64_t *)pair.record)) & 0xffff;
        }
        if (is_new) {
            pair.doorbell_seen = rung;
            uint64_t word = big(rung);
            if (((uint32_t)word >> 8) == pair.qpn) pair.rung = (uint32_t)(word >> 40) & 0xffff;
            else if (!is_shared) ++pair.foreign_doorbells;
        }
        if (pair.rung != NOTHING_RUNG || is_shared) {
            pair.target = record;
            // A doorbell may come before its record, which is then looked at again.
            uint32_t ahead = (pair.rung - record) & 0xffff;
            if (pair.rung != NOTHING_RUNG && (ahead == 0 || ahead > 1u << pair.log_blocks)) pair.rung = NOTHING_RUNG;
            fence_acquire();
        }
        return (pair.target - pair.consumer) & 0xffff;
    }

    OUTBOARD_NET_CALL void read_block(const Pair &pair, uint32_t index, uint32_t block)
    {
        uint64_t at = pair.ring + (index & ((1u << pair.log_blocks) - 1)) * BLOCK_BYTES;
        for (uint32_t word = 0; word < 8; word += 2) {
            detail::Sixteen both = detail::load16(true, at + word * 8);
            turn_->entry[block * 8 + word] = both.low;
            turn_->entry[block * 8 + word + 1] = both.high;
        }
    }

    OUTBOARD_NET_CALL static uint32_t blocks_of(uint64_t first_word)
    {
        uint32_t segments = (uint32_t)big(first_word) & 0x3f;
        uint32_t blocks = (segments * SEGMENT_BYTES + BLOCK_BYTES - 1) / BLOCK_BYTES;
        return blocks == 0 ? 1 : blocks;
    }

    // Reads the next entry. Returns a syndrome.
    OUTBOARD_NET_CALL uint32_t fetch(const Pair &pair, uint32_t posted)
    {
        entry_ = Entry{};
        if (posted > 1u << pair.log_blocks) return LOCAL_OPERATION;
        read_block(pair, pair.consumer, 0);
        uint32_t opcode = (uint32_t)(big(turn_->entry[0]) >> 32) & 0xff, blocks = blocks_of(turn_->entry[0]);
        uint32_t syndrome = LOCAL_OPERATION;
        if (blocks <= posted) {
            for (uint32_t block = 1; block < blocks; ++block) read_block(pair, pair.consumer + block, block);
            syndrome = parse(turn_->entry, pair.consumer, pair.qpn, entry_);
        }
        entry_.opcode = opcode;
        entry_.blocks = blocks;
        if (syndrome != 0 && syndrome != LOCAL_LENGTH) return syndrome;
        return entry_.reads() && (pair.flags & PAIR_UNRELIABLE) != 0 ? LOCAL_OPERATION : syndrome;
    }

    // Finds bytes by their key, if it is of the domain and permits the access.
    OUTBOARD_NET_CALL bool opens(uint32_t domain, uint32_t key, uint64_t address, uint64_t bytes, uint32_t access) const
    {
        uint32_t slot = (key >> 8) - 1;
        if (slot >= head_->key_count) return false;
        const Key &of = keys_[slot];
        return of.key == key && of.domain == domain && (of.access & access) == access && address >= of.from &&
               address <= of.until && bytes <= of.until - address;
    }

    OUTBOARD_NET_CALL Reader data() const { return Reader{turn_->entry, entry_.data_at, entry_.data_end, false}; }

    // Makes the checks of the requester's side. Returns a syndrome.
    OUTBOARD_NET_CALL uint32_t check_local(const Pair &pair) const
    {
        if (entry_.bytes > detail::BYTES_MAX) return LOCAL_LENGTH;
        if (entry_.opcode == WAIT && !has_completions((uint32_t)entry_.operands[1])) return LOCAL_OPERATION;
        if (entry_.is_inline) return 0;
        for (Reader from = data(); from.at < from.end;) {
            Segment one = read_segment(from);
            if (!opens(pair.domain, one.key, one.address, one.bytes, entry_.local_access())) return LOCAL_PROTECTION;
        }
        return 0;
    }

    // Returns true if a completion queue is there, and of this group: of another's nothing is seen to be produced.
    OUTBOARD_NET_CALL bool has_completions(uint32_t number) const
    {
        uint32_t at = number - CQN_FIRST;
        return at < head_->completion_count && (completions_[at].flags & COMPLETIONS_THERE) != 0 &&
               completions_[at].group == group_;
    }

    // Returns the peer, if it is connected to this queue and alive.
    OUTBOARD_NET_CALL Pair *reach(const Pair &pair) const
    {
        uint32_t number = pair.peer_qpn - head_->qpn_first;
        if ((pair.flags & PAIR_UNREACHABLE) != 0 || number >= head_->pair_count) return nullptr;
        Pair &peer = pairs_[number];
        bool is_it = peer.qpn == pair.peer_qpn && peer.state == STATE_READY && peer.epoch == pair.peer_epoch &&
                     (peer.flags & PAIR_UNREACHABLE) == 0 && peer.peer_qpn == pair.qpn && peer.peer_epoch == pair.epoch &&
                     peer.group == group_;
        return is_it ? &peer : nullptr;
    }

    OUTBOARD_NET_CALL void say(Answer answer, uint32_t syndrome = 0)
    {
        answer_ = answer;
        syndrome_ = syndrome;
    }

    // Begins the next entry. Returns true if it has an answer, once its copies are made.
    OUTBOARD_NET_CALL bool begin(Pair &pair)
    {
        turn_->copy_count = 0;
        has_receive_ = false;
        if ((pair.flags & PAIR_WAITS) != 0) {
            if (now_ - pair.progress_at_ns <= pair.timeout_ns || now_ < pair.progress_at_ns) return false;
            pair.progress_at_ns = now_;
            pair.flags &= ~PAIR_WAITS;
            if (++pair.timeouts <= pair.count_max) ++pair.retries;
        }
        if (now_ < pair.resume_at_ns) return false;
        uint32_t posted = (pair.target - pair.consumer) & 0xffff;
        if (posted == 0) posted = look(pair);
        if (posted == 0) return false;
        uint32_t syndrome = fetch(pair, posted);
        // What a queue may not do comes before lengths, as lengths do before keys.
        if (syndrome == 0) syndrome = check_local(pair);
        if (syndrome != 0) {
            // A wrong entry is as long as it says, if it has its index.
            bool is_entry = posted <= 1u << pair.log_blocks && ((uint32_t)(big(turn_->entry[0]) >> 40) & 0xffff) == pair.consumer;
            entry_.blocks = !is_entry ? 1 : entry_.blocks < posted ? entry_.blocks : posted;
            entry_.index = pair.consumer;
            say(Answer::failed, syndrome);
            return true;
        }
        if ((pair.flags & PAIR_BEGUN) == 0) pair.progress_at_ns = now_;
        pair.flags |= PAIR_BEGUN;
        if (pair.timeouts > pair.count_max) {
            say(Answer::failed, RETRIES_EXCEEDED);
            return true;
        }
        execute(pair);
        return is_answered(pair);
    }

    OUTBOARD_NET_CALL bool is_answered(Pair &pair)
    {
        if (answer_ == Answer::none) return false;
        if (answer_ != Answer::not_ready) return true;
        pair.progress_at_ns = now_;
        ++pair.not_ready;
        if (pair.not_ready_count_max != NOT_READY_WITHOUT_END && pair.not_ready > pair.not_ready_count_max) {
            say(Answer::failed, RECEIVER_NOT_READY);
            return true;
        }
        pair.resume_at_ns = now_ + pair.not_ready_ns;
        ++pair.retries;
        return false;
    }

    OUTBOARD_NET_CALL void execute(Pair &pair)
    {
        if (entry_.opcode == WAIT) {
            const Completions &of = completions_[entry_.operands[1] - CQN_FIRST];
            if ((int32_t)((uint32_t)of.produced - (uint32_t)entry_.operands[0]) <= 0) return say(Answer::none);
        }
        Pair *peer = reach(pair);
        bool is_unreliable = (pair.flags & PAIR_UNRELIABLE) != 0;
        if (peer == nullptr) {
            if (!is_unreliable) pair.flags |= PAIR_WAITS;
            return say(is_unreliable ? Answer::done : Answer::none);
        }
        if (is_unreliable ? pair.sequence < peer->expected : pair.sequence != peer->expected) {
            return again(pair, *peer, is_unreliable);
        }
        execute_at(pair, *peer);
        if (is_unreliable) {
            peer->expected = pair.sequence + 1;
            // Its receive has failed.
            if (answer_ == Answer::failed && syndrome_ == REMOTE_OPERATION) peer->state = STATE_ERROR;
            if (answer_ != Answer::done) say(Answer::done);
        } else if (answer_ == Answer::done) {
            ++peer->expected;
        } else if (answer_ == Answer::failed && syndrome_ != LOCAL_PROTECTION) {
            peer->state = STATE_ERROR;
        }
    }

    // Answers an entry that is not the one that the peer expects, since one of both was reset alone: one from before is
    // done, or reads again, and one from after is not answered.
    OUTBOARD_NET_CALL void again(Pair &pair, Pair &peer, bool is_unreliable)
    {
        bool is_before = pair.sequence < peer.expected;
        if (is_before && entry_.opcode == detail::READ) return read(pair, peer);
        if (is_before && !entry_.is_atomic()) return say(Answer::done);
        if (!is_unreliable) pair.flags |= PAIR_WAITS;
        say(Answer::none);
    }

    OUTBOARD_NET_CALL void execute_at(Pair &pair, Pair &peer)
    {
        uint32_t access = entry_.remote_access();
        if ((peer.access & access) != access) return say(Answer::failed, REMOTE_INVALID_REQUEST);
        if (entry_.is_write()) return write(peer);
        if (entry_.is_send()) return deliver(peer, (pair.flags & PAIR_UNRELIABLE) != 0);
        if (entry_.opcode == detail::READ) return read(pair, peer);
        if (entry_.is_atomic()) return change_word(peer);
        say(Answer::done);
    }

    OUTBOARD_NET_CALL void write(Pair &peer)
    {
        uint32_t index = 0;
        Segment into;
        bool is_empty;
        if (entry_.opcode == detail::WRITE_IMM && !next_receive(peer, index, into, is_empty)) return say(Answer::not_ready);
        if (entry_.bytes > 0) {
            if (!opens(peer.domain, entry_.rkey, entry_.remote, entry_.bytes, detail::REMOTE_WRITE)) {
                return say(Answer::failed, REMOTE_ACCESS);
            }
            fill(entry_.remote);
        }
        if (entry_.opcode == detail::WRITE_IMM) takes(index);
        say(Answer::done);
    }

    OUTBOARD_NET_CALL void deliver(Pair &peer, bool is_unreliable)
    {
        uint32_t index, there = 0;
        Segment into;
        bool is_empty;
        if (!next_receive(peer, index, into, is_empty)) return say(Answer::not_ready);
        uint32_t here = 0;
        if (entry_.bytes > (is_empty ? 0 : into.bytes)) {
            here = REMOTE_INVALID_REQUEST;
            there = LOCAL_LENGTH;
        } else if (entry_.bytes > 0 && !opens(peer.domain, into.key, into.address, entry_.bytes, detail::LOCAL_WRITE)) {
            here = REMOTE_OPERATION;
            there = LOCAL_PROTECTION;
        }
        if (here == 0) {
            if (entry_.bytes > 0) fill(into.address);
            takes(index);
            return say(Answer::done);
        }
        // A message that is too long for its receive is lost, and the receive is the next one's.
        if (!is_unreliable || there != LOCAL_LENGTH) {
            peer.receives_consumer = (peer.receives_consumer + 1) & 0xffff;
            complete_error(peer.receive_completions, RESPONDER_ERROR, peer.qpn, 0, index, there);
        }
        say(Answer::failed, here);
    }

    // Notes the receive that the message takes when it has arrived.
    OUTBOARD_NET_CALL void takes(uint32_t index)
    {
        has_receive_ = true;
        receive_ = index;
    }

    // Plans the copies of a message to its place. Bytes of the entry are stored at once.
    OUTBOARD_NET_CALL void fill(uint64_t to)
    {
        if (entry_.is_inline) return fill_inline(to);
        for (Reader from = data(); from.at < from.end;) {
            Segment one = read_segment(from);
            turn_->copies[turn_->copy_count++] = Copy{to, one.address, one.bytes};
            to += one.bytes;
        }
    }

    OUTBOARD_NET_CALL uint8_t inline_byte(uint32_t at) const
    {
        at += entry_.data_at;
        return (uint8_t)(turn_->entry[at / 8] >> at % 8 * 8);
    }

    OUTBOARD_NET_CALL void fill_inline(uint64_t to)
    {
        uint32_t at = 0, bytes = (uint32_t)entry_.bytes;
        // Whole words where they are aligned there.
        for (; to % 8 == 0 && at + 8 <= bytes; at += 8, to += 8) {
            uint64_t word = 0;
            for (uint32_t i = 0; i < 8; ++i) word |= (uint64_t)inline_byte(at + i) << 8 * i;
            detail::store((uint64_t *)to, word);
        }
        for (; at < bytes; ++at, ++to) detail::store8(to, inline_byte(at));
    }

    OUTBOARD_NET_CALL void read(Pair &, Pair &peer)
    {
        if (entry_.bytes > 0 && !opens(peer.domain, entry_.rkey, entry_.remote, entry_.bytes, detail::REMOTE_READ)) {
            return say(Answer::failed, REMOTE_ACCESS);
        }
        uint64_t from = entry_.remote;
        for (Reader into = data(); into.at < into.end;) {
            Segment one = read_segment(into);
            turn_->copies[turn_->copy_count++] = Copy{one.address, from, one.bytes};
            from += one.bytes;
        }
        say(Answer::done);
    }

    OUTBOARD_NET_CALL void change_word(Pair &peer)
    {
        if (entry_.remote % entry_.word_bytes != 0) return say(Answer::failed, REMOTE_INVALID_REQUEST);
        if (!opens(peer.domain, entry_.rkey, entry_.remote, entry_.word_bytes, detail::REMOTE_ATOMIC)) {
            return say(Answer::failed, REMOTE_ACCESS);
        }
        uint64_t old = change(entry_, entry_.remote);
        Reader from = data();
        store_word(read_segment(from).address, old, entry_.word_bytes);
        say(Answer::done);
    }

    // Finds the peer's next receive that is posted.
    OUTBOARD_NET_CALL bool next_receive(const Pair &pair, uint32_t &index, Segment &into, bool &is_empty) const
    {
        if (pair.receives == 0) return false;
        uint32_t posted = (uint32_t)(big(detail::load((const uint64_t *)pair.record)) >> 32) & 0xffff;
        uint32_t count = (posted - pair.receives_consumer) & 0xffff;
        if (count == 0 || count > 1u << pair.log_receives) return false;
        fence_acquire();
        index = pair.receives_consumer;
        uint64_t at = pair.receives + (index & ((1u << pair.log_receives) - 1)) * SEGMENT_BYTES;
        uint64_t words[2] = {detail::load((const uint64_t *)at), detail::load((const uint64_t *)(at + 8))};
        is_empty = big(words[0]) == detail::NO_MEMORY;
        Reader from{words, 0, SEGMENT_BYTES, false};
        into = read_segment(from);
        return true;
    }

    // Completes the entry, and takes the receive that it has filled.
    OUTBOARD_NET_CALL void finish(Pair &pair)
    {
        // What was written comes before what is written next, and before what says so.
        if (entry_.opcode != detail::NOP) detail::fence_release();
        pair.consumer = (pair.consumer + entry_.blocks) & 0xffff;
        pair.flags &= ~PAIR_BEGUN;
        pair.not_ready = pair.timeouts = 0;
        pair.progress_at_ns = now_;
        if (answer_ == Answer::failed) return fail(pair);
        if (has_receive_) received(pair);
        ++pair.sequence;
        ++pair.succeeded;
        if (entry_.is_signalled()) {
            complete(pair.send_completions, REQUESTER, pair.qpn, entry_.opcode, entry_.index, 0, (uint32_t)entry_.bytes, 0);
        }
    }

    OUTBOARD_NET_CALL void received(const Pair &pair)
    {
        Pair *peer = reach(pair);
        if (peer == nullptr) return;
        peer->receives_consumer = (receive_ + 1) & 0xffff;
        bool has_imm = entry_.opcode != detail::SEND;
        uint32_t kind = entry_.opcode == detail::WRITE_IMM ? RECEIVED_WRITE_IMM : has_imm ? RECEIVED_IMM : RECEIVED;
        complete(peer->receive_completions, kind, peer->qpn, 0, receive_, has_imm ? entry_.imm : 0, (uint32_t)entry_.bytes, 0);
    }

    OUTBOARD_NET_CALL void fail(Pair &pair)
    {
        pair.failure = FAILED | syndrome_ << 16 | entry_.index;
        complete_error(pair.send_completions, REQUESTER_ERROR, pair.qpn, entry_.opcode, entry_.index, syndrome_);
        pair.state = STATE_ERROR;
        flush(pair);
    }

    // Completes all that is posted as flushed, receives too. Returns how many.
    OUTBOARD_NET_CALL uint32_t flush(Pair &pair)
    {
        uint32_t done = 0;
        for (;; ++done) {
            uint32_t posted = look(pair);
            if (posted == 0 || posted > 1u << pair.log_blocks) break;
            uint32_t index = pair.consumer;
            uint64_t first = detail::load((const uint64_t *)(pair.ring + (index & ((1u << pair.log_blocks) - 1)) * BLOCK_BYTES));
            uint32_t control = (uint32_t)(big(first) >> 32), blocks = blocks_of(first);
            bool is_entry = (control >> 8 & 0xffff) == index;
            if (!is_entry) blocks = 1;
            pair.consumer = (index + (blocks < posted ? blocks : posted)) & 0xffff;
            complete_error(pair.send_completions, REQUESTER_ERROR, pair.qpn, is_entry ? control & 0xff : 0, index, FLUSHED);
        }
        pair.flushed += done;
        uint32_t index;
        Segment into;
        bool is_empty;
        for (; next_receive(pair, index, into, is_empty); ++done) {
            pair.receives_consumer = (index + 1) & 0xffff;
            complete_error(pair.receive_completions, RESPONDER_ERROR, pair.qpn, 0, index, FLUSHED);
        }
        return done;
    }

    OUTBOARD_NET_CALL void complete_error(uint32_t number, uint32_t kind, uint32_t qpn, uint32_t opcode, uint32_t index, uint32_t syndrome)
    {
        complete(number, kind, qpn, opcode, index, 0, 0, syndrome);
    }

    OUTBOARD_NET_CALL bool is_full(const Completions &of) const
    {
        if (of.record == 0) return false;
        uint32_t consumed = (uint32_t)(big((uint64_t)load32(of.record)) >> 32);
        return (((uint32_t)of.produced - consumed) & 0x00ffffff) >= 1u << of.log_entries;
    }

    // Writes a completion: the word with its opcode and owner last. After an error that stays, completions are only counted.
    OUTBOARD_NET_CALL void complete(uint32_t number, uint32_t kind, uint32_t qpn, uint32_t opcode, uint32_t index, uint32_t imm, uint32_t bytes, uint32_t syndrome)
    {
        Completions &of = completions_[number];
        if ((of.flags & COMPLETIONS_THERE) == 0) return;
        if ((of.flags & COMPLETIONS_HOLDS_ERROR) != 0) {
            ++of.produced;
            return;
        }
        if ((of.flags & COMPLETIONS_OVERRUN) != 0) return;
        bool is_collapsed = (of.flags & COMPLETIONS_COLLAPSED) != 0;
        if (!is_collapsed && is_full(of)) {
            of.flags |= COMPLETIONS_OVERRUN;
            return;
        }
        uint64_t slot = is_collapsed ? 0 : of.produced & ((1u << of.log_entries) - 1);
        uint64_t owner = is_collapsed ? 0 : of.produced >> of.log_entries & 1;
        bool is_error = kind == REQUESTER_ERROR || kind == RESPONDER_ERROR;
        uint64_t *at = (uint64_t *)(of.entries + slot * CQE_BYTES);
        detail::store(at + 4, big(imm));
        detail::store(at + 5, big(bytes));
        detail::store(at + 6, big(is_error ? syndrome : now_));
        uint64_t last = (uint64_t)(opcode << 24 | (qpn & 0x00ffffff)) << 32 | index << 16 | kind << 4 | owner;
        detail::store_release(at + 7, big(last));
        ++of.produced;
        if (is_collapsed && is_error) of.flags |= COMPLETIONS_HOLDS_ERROR;
    }

    Head *head_;
    Pair *pairs_;
    Completions *completions_;
    Key *keys_;
    Turn *turn_;
    Entry entry_;
    Answer answer_;
    uint32_t syndrome_;
    uint64_t now_, moved_;
    uint32_t group_, number_, turns_, receive_;
    bool is_under_way_, has_receive_;
};

} // namespace adapter
} // namespace net
} // namespace outboard

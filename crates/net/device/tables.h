// Tables of the adapter that a kernel is, made from crates/net/src/kernel/tables.rs by its test with
// OUTBOARD_WRITE_TABLES=1 in the environment.
#pragma once

#include <stdint.h>

namespace outboard {
namespace net {
namespace adapter {

constexpr uint32_t STATE_RESET = 0;
constexpr uint32_t STATE_READY = 1;
constexpr uint32_t STATE_ERROR = 2;
constexpr uint32_t PAIR_WAITS = 1;
constexpr uint32_t PAIR_BEGUN = 2;
constexpr uint32_t PAIR_UNREACHABLE = 4;
constexpr uint32_t PAIR_UNRELIABLE = 8;
constexpr uint32_t PAIR_SHARES_DOORBELL = 16;
constexpr uint32_t COMPLETIONS_THERE = 1;
constexpr uint32_t COMPLETIONS_COLLAPSED = 2;
constexpr uint32_t COMPLETIONS_HOLDS_ERROR = 4;
constexpr uint32_t COMPLETIONS_OVERRUN = 8;
constexpr uint32_t FAILED = 16777216;
constexpr uint32_t GROUPS_MAX = 8;
constexpr uint32_t PAIRS_AT = 64;
constexpr uint32_t COMPLETIONS_AT = 53312;
constexpr uint32_t KEYS_AT = 77888;
constexpr uint32_t TABLES_BYTES = 110656;

struct Head {
    uint64_t generation;
    uint32_t pair_count;
    uint32_t completion_count;
    uint32_t key_count;
    uint32_t qpn_first;
    uint64_t reserved;
};
static_assert(sizeof(Head) == 32, "Head");

struct Pair {
    uint64_t ring;
    uint64_t record;
    uint64_t doorbell;
    uint64_t receives;
    uint64_t doorbell_seen;
    uint64_t resume_at_ns;
    uint64_t progress_at_ns;
    uint64_t timeout_ns;
    uint64_t not_ready_ns;
    uint64_t sequence;
    uint64_t expected;
    uint64_t succeeded;
    uint64_t flushed;
    uint64_t retries;
    uint64_t foreign_doorbells;
    uint32_t qpn;
    uint32_t domain;
    uint32_t epoch;
    uint32_t state;
    uint32_t peer_qpn;
    uint32_t peer_epoch;
    uint32_t flags;
    uint32_t access;
    uint32_t send_completions;
    uint32_t receive_completions;
    uint32_t log_blocks;
    uint32_t log_receives;
    uint32_t count_max;
    uint32_t not_ready_count_max;
    uint32_t timeouts;
    uint32_t not_ready;
    uint32_t consumer;
    uint32_t target;
    uint32_t rung;
    uint32_t receives_consumer;
    uint32_t failure;
    uint32_t group;
};
static_assert(sizeof(Pair) == 208, "Pair");

struct Completions {
    uint64_t entries;
    uint64_t record;
    uint64_t produced;
    uint32_t log_entries;
    uint32_t flags;
    uint32_t group;
    uint32_t reserved;
    uint64_t padding;
};
static_assert(sizeof(Completions) == 48, "Completions");

struct Key {
    uint64_t from;
    uint64_t until;
    uint32_t key;
    uint32_t domain;
    uint32_t access;
    uint32_t reserved;
};
static_assert(sizeof(Key) == 32, "Key");

} // namespace adapter
} // namespace net
} // namespace outboard

//! A table made for many keys at a time.
//!
//! Each key has two buckets of seven entries. For IPv4 a bucket is two cache lines side by side:
//!
//! ```text
//!  byte 0        7  8           24               63  64          76             128
//!      ┌──────────┬─┬────────────┬────────────────┬─┬───────────┬────────────────┐
//!      │ 7 tags   │o│ number 0-3 │ key 0, 1, 2    │o│ number 4-6│ key 3, 4, 5, 6 │
//!      └──────────┴─┴────────────┴────────────────┴─┴───────────┴────────────────┘
//! ```
//!
//! A tag is eight bits of the hash, 0 if the entry is free. The two bytes `o` are four counters:
//! of the keys whose first bucket this is and which are stored in their second, the hash names the
//! counter to increase. A key whose tag is absent and whose counter is 0 is not in the table, and
//! one cache line has told so. Because the counters also go down, a removed entry leaves nothing
//! behind.
//!
//! A bucket fills from its first slot, so the line of the tags has most keys of a bucket that is
//! not full: one line answers for half of the keys of a table that is three quarters full.
//!
//! A batch is looked up in stages: hash and prefetch the tags; match tags and prefetch the key, or
//! the second bucket's tags; compare. Groups of 16 keys follow each other through the stages, so
//! that lines of one group are on their way while others are computed with. An insertion into two
//! full buckets searches breadth first for entries that can move to their other bucket, looks at a
//! bounded number of buckets, and moves nothing before it has found the whole way.

mod bucket;
mod displace;
mod growing;
mod table;

pub use growing::Growing;
pub use table::{BATCH_MAX, Batched};

//! A table made for many keys at a time.
//!
//! Each key has two buckets of seven entries. For IPv4 a bucket is two cache lines side by side:
//!
//! ```text
//!  byte 0        7  8            36    37    63 64                            128
//!      ┌──────────┬─┬──────────────┬─┬─────────┬───────────────────────────────┐
//!      │ 7 tags   │o│ 7 numbers    │o│ key 0,1 │ key 2 ... 6, 13 bytes each    │
//!      └──────────┴─┴──────────────┴─┴─────────┴───────────────────────────────┘
//! ```
//!
//! A tag is eight bits of the hash, 0 if the entry is free. The two bytes `o` are four counters:
//! of the keys whose first bucket this is and which are stored in their second, the hash names the
//! counter to increase. A key whose tag is absent and whose counter is 0 is not in the table, and
//! one cache line has told so. Because the counters also go down, a removed entry leaves nothing
//! behind.
//!
//! A batch is looked up in stages, each for all keys, so that up to 64 cache lines are on their way
//! at a time: hash and prefetch the tags; match tags and prefetch the key, or the second bucket's
//! tags; compare. An insertion into two full buckets searches breadth first for entries that can
//! move to their other bucket, looks at a bounded number of buckets, and moves nothing before it
//! has found the whole way.

mod bucket;
mod displace;
mod growing;
mod table;

pub use growing::Growing;
pub use table::{BATCH_MAX, Batched};

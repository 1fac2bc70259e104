//! Limits of recordings.

/// Size of a block of records before compression, about.
pub const BLOCK_BYTES: usize = 128 << 10;
/// Largest decompressed block: a reader allocates this before it has checked anything.
pub const BLOCK_BYTES_MAX: usize = 1 << 20;
/// Longest name, after which it is cut; the symbols of templates are long.
pub const NAME_BYTES_MAX: usize = 16 << 10;
/// Different names, at most; further ones are called `(too many names)`.
pub const NAMES_MAX: usize = 1 << 20;
/// Records in a file, at most.
pub const RECORDS_MAX: usize = 1 << 28;
/// Records of one thread of the program that are not on their way to the file yet, at most;
/// fewer under Miri, which is slow.
pub const RING_RECORDS: usize = if cfg!(miri) { 128 } else { 32 << 10 };
/// Records taken out of a ring at once.
pub(crate) const TAKEN_RECORDS: usize = 1 << 10;
/// Threads with a ring of their own at the same time, at most. Other threads share one buffer,
/// which also takes records that are not calls.
pub const RINGS_MAX: usize = 16;
pub const SHARED_RECORDS_MAX: usize = 32 << 10;
/// Error of the calls' times against the kernel's clock after which they are steered back, and
/// least time between two steerings.
pub(crate) const LINE_ERROR_NS_MAX: f64 = 200.0;
pub(crate) const LINE_NS_MIN: f64 = 50e6;
/// Steerings that are remembered, at most.
pub(crate) const LINES_MAX: usize = 4096;
/// A program that is killed loses its records of at most the last 100 ms.
pub const FLUSH_MS: u64 = 100;
/// Time that the end of a program waits for its recording to be written.
pub const FINISH_MS_MAX: u64 = 5_000;
/// Files of one program with several processes, at most, if their names exist already.
pub const PLACES_MAX: u32 = 1_000;
/// Time that the GPU's records wait for room in memory if they come faster than they are written.
pub const ROOM_MS_MAX: u64 = 500;

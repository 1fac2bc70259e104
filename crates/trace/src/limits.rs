//! How much of anything there may be.

/// Records are packed into blocks of about this size, before compression.
pub const BLOCK_BYTES: usize = 128 << 10;
/// No block unpacks to more: what a reader sets aside before it has checked anything.
pub const BLOCK_BYTES_MAX: usize = 1 << 20;
/// A name is cut here; the symbols of templates are long.
pub const NAME_BYTES_MAX: usize = 16 << 10;
/// Different names; more are called `(too many names)`.
pub const NAMES_MAX: usize = 1 << 20;
/// Records in a file.
pub const RECORDS_MAX: usize = 1 << 28;
/// What a thread of the program may have put down that is not on its way to the file yet.
pub const RING_RECORDS: usize = 32 << 10;
/// Taken out of a ring at once.
pub(crate) const TAKEN_RECORDS: usize = 1 << 10;
/// So many threads have a ring of their own at the same time; others share one buffer, as what is no call does.
pub const RINGS_MAX: usize = 16;
pub const SHARED_RECORDS_MAX: usize = 32 << 10;
/// How far the times of calls may be from the kernel's clock before they are steered back, and how often that is.
pub(crate) const LINE_ERROR_NS_MAX: f64 = 200.0;
pub(crate) const LINE_NS_MIN: f64 = 50e6;
/// How often it was steered is remembered.
pub(crate) const LINES_MAX: usize = 4096;
/// A program that is killed loses what it did so long before.
pub const FLUSH_MS: u64 = 100;
/// How long the end of a program waits for its recording to be written.
pub const FINISH_MS_MAX: u64 = 5_000;
/// Files of one program with several processes, where their names are taken.
pub const PLACES_MAX: u32 = 1_000;
/// How long the GPU's times wait to be put down where records come faster than they are written.
pub const ROOM_MS_MAX: u64 = 500;

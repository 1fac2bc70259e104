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
/// What a program's threads may have written that is not on its way to the file yet: for some threads each.
pub const SHARD_RECORDS_MAX: usize = 32 << 10;
/// Threads of the program write to so many buffers.
pub const SHARDS: usize = 8;
/// A program that is killed loses what it did so long before.
pub const FLUSH_MS: u64 = 100;
/// How long the end of a program waits for its recording to be written.
pub const FINISH_MS_MAX: u64 = 5_000;
/// Files of one program with several processes, where their names are taken.
pub const PLACES_MAX: u32 = 1_000;
/// How long the GPU's times wait to be put down where records come faster than they are written.
pub const ROOM_MS_MAX: u64 = 500;

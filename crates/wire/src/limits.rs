//! Every limit of the protocol, in one place, units last.

/// The longest frame, header included, that either side sends or accepts.
pub const FRAME_BYTES_MAX: usize = (1 << 20) + 4096;
/// The bytes of bulk data that one frame carries at most; longer copies travel as several frames.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;
/// Capacity of one shared-memory ring, one for each direction.
pub const RING_BYTES: usize = 8 << 20;
/// How long either side waits for the other during the handshake.
pub const HANDSHAKE_MS_MAX: u64 = 5_000;

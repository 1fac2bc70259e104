//! Layout of frames in a ring: shared by short frames (`ring.rs`) and long ones (`long.rs`).

pub(super) const HEADER_BYTES: usize = 16;
/// Positions and lengths in the ring are multiples of this.
pub(super) const ALIGN: usize = 16;
/// Longest frame that is sent by one write; a longer one takes two.
pub(super) const CHECKED_BYTES_MAX: usize = 1024;

/// Values in place of a length: the rest of the ring is empty; no frame follows.
pub(super) const SKIP: u32 = 0;
pub(super) const END: u32 = u32::MAX;

/// Flag in a length: the frame's data is not in the ring, and 16 bytes about it come first.
pub(super) const SEPARATE: u32 = 1 << 30;
pub(super) const SEPARATE_BYTES: usize = 16;

/// Data that belongs to a frame and was written outside the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SeparateData {
    pub(super) len: usize,
    /// True if it is in the oldest granted memory, false if it is where this side asked for it.
    pub(super) is_granted: bool,
}

//! Linkers, with the images that they returned.

use super::jit::Jit;

/// A linker between `cuLinkCreate` and `cuLinkDestroy`.
pub(crate) struct Linker {
    /// Log buffers of the program.
    pub(crate) jit: Jit,
    /// The image that `cuLinkComplete` returned a pointer to, with a NUL.
    pub(crate) image: Option<Box<[u8]>>,
}

// SAFETY: the log buffers are the program's. `cuLinkCreate` requires them to be valid for as long
// as the linker; they are only written under the lock of the table.
unsafe impl Send for Linker {}

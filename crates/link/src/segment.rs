//! Memory of the caller into which long frames are received directly.

use std::any::Any;

use outboard_verbs::Lasting;

/// Memory that receives the end of a long frame. It outlives the frame for as long as its owner
/// wants.
pub trait Segment: Any + Send + Sync {
    /// All of the memory, to be filled.
    fn room(&mut self) -> &mut [u8];
    /// All of the memory, once filled.
    fn bytes(&self) -> &[u8];
    /// Limits the content to the first `len` bytes.
    fn truncate(&mut self, len: usize);
    /// The range that contains this memory, if that range outlives every link and so may be
    /// registered with an adapter.
    fn lasting(&self) -> Option<Lasting> {
        None
    }
}

/// Data that is sent in place: it does not move or change while this object lives.
pub trait Payload: Send {
    fn bytes(&self) -> &[u8];
}

/// Destination of a frame: the first `skip` bytes go to the link's buffer, all others to `memory`,
/// whose length is exactly theirs.
pub struct Destination {
    pub skip: usize,
    pub memory: Box<dyn Segment>,
}

/// Chooses a frame's destination by its first bytes,
/// [`PLACED_HEAD_BYTES`](outboard_wire::limits::PLACED_HEAD_BYTES) or more, and its length. `None`
/// is the link's buffer.
///
/// If the peer goes away in the middle of the frame, the memory is dropped unfilled.
pub type ChooseDestination<'p> = dyn FnMut(&[u8], usize) -> Option<Destination> + 'p;

/// A frame: whole in `head`, or with its end in memory that the [`ChooseDestination`] chose.
pub struct Frame<'a> {
    pub head: &'a [u8],
    pub tail: Option<Box<dyn Segment>>,
}

impl Frame<'_> {
    /// Length of the whole frame.
    pub fn bytes(&self) -> usize {
        self.head.len() + self.tail.as_ref().map_or(0, |tail| tail.bytes().len())
    }
}

//! Memory of the caller into which long frames are received directly.

use std::any::Any;

use outboard_verbs::Lasting;

/// Memory that receives the end of a long frame, and that only this process writes. It outlives the
/// frame for as long as its owner wants.
pub trait Segment: Any + Send + Sync {
    /// All of the memory, to be filled.
    fn room(&mut self) -> &mut [u8];
    /// All of the memory, once filled.
    fn bytes(&self) -> &[u8];
}

/// Memory that the peer's adapter may write. It keeps the key after a frame has arrived there, so
/// the bytes may change at any time: no reference to them exists, they are only copied.
#[allow(clippy::len_without_is_empty)]
pub trait Granted: Any + Send + Sync {
    /// The range that contains this memory, at its start. It outlives every link.
    fn lasting(&self) -> Option<Lasting>;
    /// Length of the memory, or of its content once that is known.
    fn len(&self) -> usize;
    /// Limits the content to the first `len` bytes.
    fn truncate(&mut self, len: usize);
    /// Returns a copy of the content.
    fn copied(&self) -> Vec<u8>;
}

/// The end of a long frame, in other memory than its head.
pub enum Tail {
    /// The memory that the [`ChooseDestination`] chose, or the link's.
    Own(Box<dyn Segment>),
    /// Memory that was granted to the peer.
    Granted(Box<dyn Granted>),
}

impl Tail {
    /// Number of its bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        match self {
            Tail::Own(memory) => memory.bytes().len(),
            Tail::Granted(memory) => memory.len(),
        }
    }

    /// Returns a copy of its bytes.
    pub fn copied(&self) -> Vec<u8> {
        match self {
            Tail::Own(memory) => memory.bytes().to_vec(),
            Tail::Granted(memory) => memory.copied(),
        }
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

/// A frame: whole in `head`, or with its end in other memory.
pub struct Frame<'a> {
    pub head: &'a [u8],
    pub tail: Option<Tail>,
}

impl Frame<'_> {
    /// Length of the whole frame.
    pub fn bytes(&self) -> usize {
        self.head.len() + self.tail.as_ref().map_or(0, Tail::len)
    }
}

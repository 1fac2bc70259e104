//! Long frames received straight into memory of the caller's.

use std::{any::Any, os::fd::OwnedFd};

/// Memory that the end of a long frame is received into. It outlives the frame for as long as its owner wants.
pub trait Segment: Any + Send + Sync {
    /// All of it, to be filled.
    fn room(&mut self) -> &mut [u8];
    /// All of it, once filled.
    fn bytes(&self) -> &[u8];
    /// From now on only the first `len` bytes count.
    fn truncate(&mut self, len: usize);
    /// The memory that it is part of, if that is there for longer than any link and so may be registered with an adapter.
    fn lasting(&self) -> Option<Lasting> {
        None
    }
}

/// Memory that is mapped until whoever registered it says that it is not, or the link ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lasting {
    pub(crate) address: u64,
    pub(crate) len: usize,
}

impl Lasting {
    /// # Safety
    ///
    /// That is so, and if it is registered as a [`RdmaUse::Target`](crate::RdmaUse::Target) nobody minds its bytes changing.
    pub unsafe fn new(address: u64, len: usize) -> Self {
        Self { address, len }
    }
}

/// Memory of a GPU that adapters are let at. Nothing here looks at its bytes.
#[derive(Debug)]
pub struct DeviceMemory {
    pub(crate) address: u64,
    pub(crate) len: usize,
    pub(crate) reach: Reach,
}

/// What an adapter's driver finds memory of a GPU by.
#[derive(Debug)]
pub enum Reach {
    /// Its address: that of mapped memory, or one that a kernel module of the GPU's driver makes out.
    Address,
    /// A dma-buf of just this memory.
    DmaBuf(OwnedFd),
}

impl DeviceMemory {
    /// # Safety
    ///
    /// Until its registration is dropped the memory is what it is now, and nobody minds its bytes changing.
    pub unsafe fn new(address: u64, len: usize, reach: Reach) -> Self {
        Self {
            address,
            len,
            reach,
        }
    }
}

/// Data that is sent from where it lies, where it stays and does not change.
pub trait Payload: Send {
    fn bytes(&self) -> &[u8];
}

/// Where a frame goes: its first `skip` bytes into the link's buffer, all others into `memory`, which has room for just
/// those.
pub struct Place {
    pub skip: usize,
    pub memory: Box<dyn Segment>,
}

/// Decides about a frame by its first bytes, [`PLACED_HEAD_BYTES`](outboard_wire::limits::PLACED_HEAD_BYTES) or more of
/// them, and its length. `None`: into the link's buffer.
///
/// A peer that goes away in the middle of the frame lets the memory be dropped unfilled.
pub type Placer<'p> = dyn FnMut(&[u8], usize) -> Option<Place> + 'p;

/// A frame: all of it in `head`, or the rest in memory that the [`Placer`] gave.
pub struct Frame<'a> {
    pub head: &'a [u8],
    pub tail: Option<Box<dyn Segment>>,
}

impl Frame<'_> {
    /// The length of the whole.
    pub fn bytes(&self) -> usize {
        self.head.len() + self.tail.as_ref().map_or(0, |tail| tail.bytes().len())
    }
}

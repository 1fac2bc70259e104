//! Registered memory: of this process, or reached by calls alone, as that of a GPU is.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
};

use crate::memory::Mapped;

/// Bytes that a copy moves at a time if it takes two calls.
const PIECE_BYTES: usize = 1 << 20;
const WORD_BYTES: usize = 8;

/// Memory that loads and stores do not reach. Offsets count from the registration's first byte, and
/// are within it.
pub trait Distant: fmt::Debug + Send + Sync {
    /// Reads all of the bytes, or fails.
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), Gone>;

    /// Writes all of the bytes, or fails; then some may be written.
    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Gone>;
}

/// The memory is not there any more, or is not aligned for this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// The side of a copy that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Source,
    Destination,
}

/// A piece of memory to be registered, at an address by which programs know it.
#[derive(Clone, Debug)]
pub enum Registered {
    Mapped(Mapped),
    Distant {
        address: u64,
        bytes: usize,
        at: Arc<dyn Distant>,
    },
}

impl From<Mapped> for Registered {
    fn from(memory: Mapped) -> Registered {
        Registered::Mapped(memory)
    }
}

impl Registered {
    /// Returns the offset of the bytes that programs know by this address, if all are here.
    pub(crate) fn offset_of(&self, wanted: u64, count: u64) -> Option<usize> {
        match self {
            Registered::Mapped(memory) => memory.offset_of(wanted, count),
            Registered::Distant { address, bytes, .. } => {
                let offset = wanted.checked_sub(*address)?;
                let end = offset.checked_add(count)?;
                (end <= *bytes as u64).then_some(offset as usize)
            }
        }
    }

    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), Gone> {
        match self {
            Registered::Mapped(memory) => memory.read(offset, into),
            Registered::Distant { at, .. } => return at.read(offset, into),
        }
        Ok(())
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Gone> {
        match self {
            Registered::Mapped(memory) => memory.write(offset, bytes),
            Registered::Distant { at, .. } => return at.write(offset, bytes),
        }
        Ok(())
    }

    /// Copies bytes from other memory, which may be the same.
    pub(crate) fn copy(
        &self,
        offset: usize,
        from: &Registered,
        from_offset: usize,
        bytes: usize,
    ) -> Result<(), Side> {
        if let (Registered::Mapped(to), Registered::Mapped(from)) = (self, from) {
            to.copy(offset, from, from_offset, bytes);
            return Ok(());
        }
        let mut piece = vec![0; bytes.min(PIECE_BYTES)];
        for at in (0..bytes).step_by(PIECE_BYTES) {
            let piece = &mut piece[..(bytes - at).min(PIECE_BYTES)];
            let read = from.read(from_offset + at, piece);
            read.map_err(|Gone| Side::Source)?;
            let written = self.write(offset + at, piece);
            written.map_err(|Gone| Side::Destination)?;
        }
        Ok(())
    }

    /// Changes a word, and returns the one before. Of distant memory it is atomic among the
    /// operations of this adapter alone.
    pub(crate) fn fetch_update(
        &self,
        offset: usize,
        change: impl Fn(u64) -> Option<u64>,
    ) -> Result<u64, Gone> {
        if let Registered::Mapped(memory) = self {
            let word = memory.part(offset, WORD_BYTES).ok_or(Gone)?;
            if !word.is_aligned(WORD_BYTES) {
                return Err(Gone);
            }
            let word = word.u64(0);
            let changed = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
            return Ok(changed.unwrap_or_else(|old| old));
        }
        let mut word = [0; WORD_BYTES];
        self.read(offset, &mut word)?;
        let old = u64::from_ne_bytes(word);
        if let Some(new) = change(old) {
            self.write(offset, &new.to_ne_bytes())?;
        }
        Ok(old)
    }
}

//! Registered memory: of this process, or reached by calls alone, as that of a GPU is.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
};

use outboard_verbs::DeviceMemory;

use crate::memory::Mapped;

/// Bytes that a copy moves at a time if it takes two calls.
const PIECE_BYTES: usize = 1 << 20;
const WORD_BYTES: usize = 8;
const HALF_BYTES: usize = 4;

/// Memory that loads and stores do not reach. Offsets count from the registration's first byte, and
/// are within it.
pub trait Distant: fmt::Debug + Send + Sync {
    /// Reads all of the bytes, or fails.
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), Gone>;

    /// Writes all of the bytes, or fails; then some may be written.
    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Gone>;

    /// Returns all of the memory as RDMA devices find it, once: by each way that may do, the best
    /// first.
    fn reach(&self) -> Result<Vec<DeviceMemory>, String> {
        Err("it is not of one allocation, or not there yet: wait for the work before".into())
    }
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

/// A part of distant memory.
#[derive(Debug)]
struct Part {
    of: Arc<dyn Distant>,
    begins: usize,
}

impl Distant for Part {
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), Gone> {
        self.of.read(self.begins + offset, into)
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Gone> {
        self.of.write(self.begins + offset, bytes)
    }
}

impl Registered {
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Registered::Mapped(memory) => memory.len(),
            Registered::Distant { bytes, .. } => *bytes,
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the memory, if it is of this process.
    #[must_use]
    pub fn mapped(&self) -> Option<&Mapped> {
        match self {
            Registered::Mapped(memory) => Some(memory),
            Registered::Distant { .. } => None,
        }
    }

    /// Address by which programs know the first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        match self {
            Registered::Mapped(memory) => memory.address(),
            Registered::Distant { address, .. } => *address,
        }
    }

    /// Returns the part at this offset; `None` if it is not within the memory.
    #[must_use]
    pub fn part(&self, offset: usize, bytes: usize) -> Option<Registered> {
        match self {
            Registered::Mapped(memory) => memory.part(offset, bytes).map(Registered::Mapped),
            Registered::Distant {
                address,
                bytes: all,
                at,
            } => {
                let end = offset.checked_add(bytes)?;
                (end <= *all).then(|| Registered::Distant {
                    address: address + offset as u64,
                    bytes,
                    at: Arc::new(Part {
                        of: at.clone(),
                        begins: offset,
                    }),
                })
            }
        }
    }

    /// Returns true if the first byte is aligned, for this process and for programs.
    pub(crate) fn is_aligned(&self, alignment: usize) -> bool {
        match self {
            Registered::Mapped(memory) => memory.is_aligned(alignment),
            Registered::Distant { address, .. } => address.is_multiple_of(alignment as u64),
        }
    }

    /// Reads an aligned word, big-endian, that the program stores before what it announces.
    pub(crate) fn announced(&self, offset: usize) -> Result<u32, Gone> {
        match self {
            Registered::Mapped(memory) => {
                Ok(u32::from_be(memory.u32(offset).load(Ordering::Acquire)))
            }
            Registered::Distant { at, .. } => {
                let mut word = [0; HALF_BYTES];
                at.read(offset, &mut word)?;
                Ok(u32::from_be_bytes(word))
            }
        }
    }

    /// Stores an aligned word after all that it announces.
    pub(crate) fn announce(&self, offset: usize, word: u64) -> Result<(), Gone> {
        match self {
            Registered::Mapped(memory) => {
                memory.u64(offset).store(word, Ordering::Release);
                Ok(())
            }
            Registered::Distant { at, .. } => at.write(offset, &word.to_ne_bytes()),
        }
    }

    /// Returns the offset of the bytes that programs know by this address, if all are here.
    #[must_use]
    pub fn offset_of(&self, wanted: u64, count: u64) -> Option<usize> {
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
        bytes: usize,
        change: impl Fn(u64) -> Option<u64>,
    ) -> Result<u64, Gone> {
        if let Registered::Mapped(memory) = self {
            let word = memory.part(offset, bytes).ok_or(Gone)?;
            if !word.is_aligned(bytes) {
                return Err(Gone);
            }
            if bytes == HALF_BYTES {
                let change = |old: u32| change(old.into()).map(|new| new as u32);
                let changed = word
                    .u32(0)
                    .fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
                return Ok(changed.unwrap_or_else(|old| old).into());
            }
            let changed = word
                .u64(0)
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
            return Ok(changed.unwrap_or_else(|old| old));
        }
        let mut word = [0; WORD_BYTES];
        let used = bytes.min(WORD_BYTES);
        self.read(offset, &mut word[..used])?;
        let old = u64::from_le_bytes(word);
        if let Some(new) = change(old) {
            self.write(offset, &new.to_le_bytes()[..used])?;
        }
        Ok(old)
    }
}

//! The heap of device-side `malloc` and `free`: one mapped range, first fit.

use std::collections::BTreeMap;

use outboard_budget::{Charge, reserve};
use parking_lot::Mutex;

use crate::memory::{Memory, MemoryError};

/// Alignment that device `malloc` promises.
const ALIGN: u64 = 16;
/// Memory of a used block's entry, at least.
const ENTRY_BYTES: u64 = 64;

/// The heap of a device. Blocks outlive kernels, as in CUDA.
#[derive(Debug)]
pub struct Heap {
    memory: Memory,
    base: u64,
    bytes: u64,
    /// The heap's part of this process's memory.
    _charge: Charge,
    /// Used blocks: offset to size.
    used: Mutex<BTreeMap<u64, u64>>,
}

impl Heap {
    /// Maps `bytes` in the internal area of `memory`.
    pub fn new(memory: &Memory, bytes: u64) -> Result<Self, MemoryError> {
        let charge = Charge::take(bytes).map_err(|_| MemoryError::OutOfMemory { bytes })?;
        let base = memory.allocate_internal(bytes, ALIGN)?;
        Ok(Heap {
            memory: memory.clone(),
            base,
            bytes,
            _charge: charge,
            used: Mutex::default(),
        })
    }

    /// Returns first address and size.
    pub(crate) fn range(&self) -> (u64, u64) {
        (self.base, self.bytes)
    }

    /// Returns the address of a new block, or 0 if there is no room.
    pub(crate) fn allocate(&self, bytes: u64) -> u64 {
        let Some(bytes) = bytes.max(1).checked_next_multiple_of(ALIGN) else {
            return 0;
        };
        let mut used = self.used.lock();
        let mut start = 0;
        for (&offset, &len) in used.iter() {
            if offset - start >= bytes {
                break;
            }
            start = offset + len;
        }
        if self
            .bytes
            .checked_sub(start)
            .is_none_or(|room| room < bytes)
            || reserve(ENTRY_BYTES).is_err()
        {
            return 0;
        }
        used.insert(start, bytes);
        self.base + start
    }

    /// Frees a block; returns false if the address is no block of this heap.
    pub(crate) fn free(&self, address: u64) -> bool {
        address == 0
            || address
                .checked_sub(self.base)
                .is_some_and(|offset| self.used.lock().remove(&offset).is_some())
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        self.memory.free_internal(self.base);
    }
}

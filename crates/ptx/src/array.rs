//! Memory of CUDA arrays, which texture and surface objects read.

use crate::memory::{Memory, MemoryError};

/// Alignment of surfaces on a GPU, in bytes.
const ALIGN: u64 = 512;

/// Memory of an array. Dropping it frees the memory; later reads of it fault.
#[derive(Debug)]
pub struct Array {
    memory: Memory,
    address: u64,
}

impl Array {
    /// Allocates zeroed memory.
    pub fn new(memory: &Memory, bytes: u64) -> Result<Array, MemoryError> {
        Ok(Array {
            address: memory.allocate_internal(bytes, ALIGN)?,
            memory: memory.clone(),
        })
    }

    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        self.memory.free_internal(self.address);
    }
}

//! A GPU's memory, as adapters in software use it: looked up at each use, since the client may free
//! it at any time.

use std::sync::Arc;

use outboard_net::{Distant, Gone, Registered};
use outboard_ptx::memory::Memory;

/// Memory that begins at an address of the GPU's.
#[derive(Clone)]
pub(super) struct Lent {
    memory: Memory,
    address: u64,
}

impl std::fmt::Debug for Lent {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let address = self.address;
        to.debug_struct("Lent")
            .field("address", &address)
            .finish_non_exhaustive()
    }
}

/// Returns true if these bytes are of one allocation: the window has no host memory.
fn is_of_device(memory: &Memory, address: u64, bytes: u64) -> bool {
    let (base, _) = memory.window();
    let is_within = (base..base + memory.mappable_bytes()).contains(&address);
    is_within && memory.is_mapped(address, bytes)
}

impl Lent {
    /// Returns these bytes, if all are a GPU's memory now.
    pub(super) fn of(memory: &Memory, address: u64, len: u64) -> Option<Registered> {
        if !is_of_device(memory, address, len) {
            return None;
        }
        let memory = memory.clone();
        Some(Registered::Distant {
            address,
            bytes: usize::try_from(len).ok()?,
            at: Arc::new(Lent { memory, address }),
        })
    }

    /// Returns the address of an offset, if it is the GPU's memory still: not host memory that the
    /// client has mapped in its place.
    fn at(&self, offset: usize, bytes: usize) -> Result<u64, Gone> {
        let address = self.address + offset as u64;
        match is_of_device(&self.memory, address, bytes as u64) {
            true => Ok(address),
            false => Err(Gone),
        }
    }
}

impl Distant for Lent {
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), Gone> {
        let address = self.at(offset, into.len())?;
        self.memory.read(address, into).map_err(|_| Gone)
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Gone> {
        let address = self.at(offset, bytes.len())?;
        self.memory.write(address, bytes).map_err(|_| Gone)
    }
}

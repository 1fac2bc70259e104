//! Memory of other owners, with their promise that it may be registered.

use std::os::fd::OwnedFd;

/// Memory that stays mapped until its registration is given up or the link ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lasting {
    pub(crate) address: u64,
    pub(crate) len: usize,
}

impl Lasting {
    /// # Safety
    ///
    /// The range must stay mapped until its registration is given up or the link ends. If the peer
    /// may write it, or a request reads into it, nothing may rely on its contents.
    pub unsafe fn new(address: u64, len: usize) -> Self {
        Self { address, len }
    }

    pub fn address(self) -> u64 {
        self.address
    }

    /// Returns the length. A range of 0 bytes is registered by no device.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(self) -> usize {
        self.len
    }
}

/// GPU memory that adapters may access. The processor never reads its bytes.
#[derive(Debug)]
pub struct DeviceMemory {
    pub(crate) address: u64,
    pub(crate) len: usize,
    pub(crate) reach: Reach,
}

/// Means by which an adapter's driver finds GPU memory.
#[derive(Debug)]
pub enum Reach {
    /// The address: of mapped memory, or one that a kernel module of the GPU's driver resolves.
    Address,
    /// A dma-buf of exactly this memory.
    DmaBuf(OwnedFd),
}

impl DeviceMemory {
    /// # Safety
    ///
    /// Until the registration is dropped, the range must stay mapped to the same memory, and
    /// nothing may rely on its contents.
    pub unsafe fn new(address: u64, len: usize, reach: Reach) -> Self {
        Self {
            address,
            len,
            reach,
        }
    }

    pub fn address(&self) -> u64 {
        self.address
    }
}

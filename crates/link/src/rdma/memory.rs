//! Memory of the link's own that devices read and write. It is shared with forked children, not
//! copied for them, so that a fork never moves pages that a device has pinned.

use std::{
    ptr::{self, NonNull},
    sync::atomic::AtomicU64,
};

use rustix::mm::{MapFlags, ProtFlags};

use crate::Error;

pub(super) struct Memory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; it is accessed through atomics, or
// through slices under the rules for the ring's only producer and only consumer.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps zeroed pages.
    pub(super) fn new(len: usize) -> Result<Self, Error> {
        const DOING: &str = "making memory for RDMA";
        let flags = MapFlags::SHARED;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, access, flags) }
            .map_err(Error::io(DOING))?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(Error::Misuse("mapped at address 0"))?;
        Ok(Self { base, len })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// The word at `offset`, a multiple of eight.
    #[inline(always)]
    pub(super) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < self.len && self.len - offset >= 8);
        // SAFETY: within the mapping and aligned; any bytes are a valid atomic, and concurrent
        // writes are allowed.
        unsafe { self.base.add(offset).cast::<AtomicU64>().as_ref() }
    }

    /// The bytes of a frame. A hostile peer can change them while they are read: a decoder copies a
    /// scalar out before it checks it, so that at worst a frame makes no sense.
    #[inline]
    pub(super) fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset <= self.len && self.len - offset >= len);
        // SAFETY: within the mapping. That the bytes do not change while borrowed is the protocol's
        // rule: the producer writes only where the consumer has given room back. Memory that is
        // written by a device whose owner breaks the rule is outside what the language describes;
        // see above.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset), len) }
    }

    /// Room for a frame.
    ///
    /// # Safety
    ///
    /// No other thread of this process has a slice of this range, and no device writes it.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn room(&self, offset: usize, len: usize) -> &mut [u8] {
        assert!(offset <= self.len && self.len - offset >= len);
        // SAFETY: within the mapping; the caller alone uses the range.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(offset), len) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and every reference into it borrows from `self`. An error would
        // mean that it is not mapped.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

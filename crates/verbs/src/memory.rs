//! Memory of this process that devices read and write. It is shared with forked children, not
//! copied for them, so that a fork never moves pages that a device has pinned.

use std::{
    ptr::{self, NonNull},
    sync::atomic::AtomicU64,
};

use rustix::mm::{MapFlags, ProtFlags};

use crate::Error;

/// Mapped pages, shared by this process and devices.
pub struct Memory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread. Its words are atomics, and its bytes
// are copied through raw pointers, or are slices whose callers fulfil the contract of `room`.
unsafe impl Send for Memory {}
// SAFETY: shared references only read the address and the length.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps zeroed pages.
    pub fn new(len: usize) -> Result<Self, Error> {
        const DOING: &str = "making memory for RDMA";
        let flags = MapFlags::SHARED;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, access, flags) }
            .map_err(Error::kernel(DOING))?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(Error::System {
            doing: DOING,
            errno: libc::EFAULT,
        })?;
        Ok(Self { base, len })
    }

    /// Returns the length, which is never 0: the kernel maps no empty range.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// The word at `offset`, a multiple of eight.
    #[inline(always)]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < self.len && self.len - offset >= 8);
        // SAFETY: within the mapping and aligned; any bytes are a valid atomic, and concurrent
        // writes are allowed.
        unsafe { self.base.add(offset).cast::<AtomicU64>().as_ref() }
    }

    /// Adds `len` bytes to `out`, copied. A hostile peer can change them meanwhile, but not the
    /// copy.
    #[inline]
    pub fn copy(&self, offset: usize, len: usize, out: &mut Vec<u8>) {
        assert!(offset <= self.len && self.len - offset >= len);
        out.reserve(len);
        let start = out.len();
        // SAFETY: the range is within the mapping, and `out` has room for it. It is read through a
        // raw pointer, because the peer's device may write it at any time; the check of a frame, or
        // the header after it, orders this copy after the writes of a peer that keeps the rules.
        unsafe {
            let from = self.base.as_ptr().add(offset);
            ptr::copy_nonoverlapping(from, out.as_mut_ptr().add(start), len);
            out.set_len(start + len);
        }
    }

    /// Room for a frame that is sent from here.
    ///
    /// # Safety
    ///
    /// No other thread of this process has a slice of this range, and no device writes it.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn room(&self, offset: usize, len: usize) -> &mut [u8] {
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

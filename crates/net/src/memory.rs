//! Memory that programs, GPUs and the adapter use at once: loads and stores as a device makes them.
//!
//! Every access is a relaxed atomic of a whole word, or a copy whose bytes nobody's promise depends
//! on before a word that is stored later says so.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    fmt::Debug,
    io,
    os::fd::BorrowedFd,
    ptr::{NonNull, null_mut},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use rustix::{
    fs::{SealFlags, fcntl_get_seals, fstat, fstatfs},
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

use crate::driver;

const PAGE_BYTES: usize = 4096;
/// Kind of the file system whose files have ordinary pages: a page of another kind may not be there
/// when it is used.
const TMPFS: i64 = 0x0102_1994;

/// A piece of memory, at an address by which programs know it.
#[derive(Clone, Debug)]
pub struct Mapped {
    at: NonNull<u8>,
    bytes: usize,
    address: u64,
    /// Keeps memory of this process's own.
    _owner: Option<Arc<Owned>>,
}

// SAFETY: all accesses are atomic, or copies of bytes that may change at any time.
unsafe impl Send for Mapped {}
// SAFETY: all accesses are atomic, or copies of bytes that may change at any time.
unsafe impl Sync for Mapped {}

#[derive(Debug)]
enum Owned {
    Allocated(NonNull<u8>, Layout),
    OfFile(NonNull<u8>, usize),
    OfDriver(NonNull<u8>),
    /// Kept mapped by this.
    Lent {
        _keeper: Arc<dyn Keeper>,
    },
}

/// Keeps memory mapped until it is dropped.
pub trait Keeper: Debug + Send + Sync {}

impl<T: Debug + Send + Sync> Keeper for T {}

// SAFETY: it is only freed, by whichever thread drops it last.
unsafe impl Send for Owned {}
// SAFETY: it is only freed, by whichever thread drops it last.
unsafe impl Sync for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        match *self {
            // SAFETY: allocated with this layout, and no `Mapped` of it is left.
            Owned::Allocated(at, layout) => unsafe { dealloc(at.as_ptr(), layout) },
            Owned::OfFile(at, bytes) => {
                // SAFETY: mapped so, and no `Mapped` of it is left.
                let _ = unsafe { munmap(at.as_ptr().cast(), bytes) };
            }
            // SAFETY: allocated so, and no `Mapped` of it is left.
            Owned::OfDriver(at) => unsafe { driver::unpin(at) },
            Owned::Lent { .. } => {}
        }
    }
}

impl Mapped {
    /// Takes memory that programs see at `address`.
    ///
    /// # Safety
    ///
    /// - `bytes` bytes at `at` stay mapped, readable and writable, until the last clone is dropped.
    /// - No reference of Rust to them is used in that time.
    #[must_use]
    pub unsafe fn new(at: NonNull<u8>, bytes: usize, address: u64) -> Mapped {
        Mapped {
            at,
            bytes,
            address,
            _owner: None,
        }
    }

    /// Takes memory that another keeps mapped until its keeper is dropped.
    ///
    /// # Safety
    ///
    /// As for [`Mapped::new`], until the keeper is dropped.
    #[must_use]
    pub unsafe fn lent(
        at: NonNull<u8>,
        bytes: usize,
        address: u64,
        keeper: Arc<dyn Keeper>,
    ) -> Mapped {
        Mapped {
            at,
            bytes,
            address,
            _owner: Some(Arc::new(Owned::Lent { _keeper: keeper })),
        }
    }

    /// Allocates zeroed pages of this process; `None` if there is no memory.
    #[must_use]
    pub fn allocate(bytes: usize) -> Option<Mapped> {
        let layout = Layout::from_size_align(bytes.max(1), PAGE_BYTES).ok()?;
        // SAFETY: the layout has at least one byte.
        let at = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let address = at.as_ptr() as u64;
        Some(Mapped {
            at,
            bytes,
            address,
            _owner: Some(Arc::new(Owned::Allocated(at, layout))),
        })
    }

    /// Allocates zeroed pages of this process that kernels of the current context reach, too, if
    /// there is one; `None` if there is no memory.
    pub(crate) fn pinned(bytes: usize) -> Option<Mapped> {
        Mapped::of_driver(bytes).or_else(|| Mapped::allocate(bytes))
    }

    /// Allocates zeroed pages that kernels of the current context reach; `None` if there are none.
    pub(crate) fn of_driver(bytes: usize) -> Option<Mapped> {
        let at = driver::pin(bytes)?;
        let address = at.as_ptr() as u64;
        Some(Mapped {
            at,
            bytes,
            address,
            _owner: Some(Arc::new(Owned::OfDriver(at))),
        })
    }

    /// Maps a file that another process may have, too: of this many bytes, which nobody can take
    /// away from it.
    pub(crate) fn of_file(file: BorrowedFd<'_>, bytes: usize) -> io::Result<Mapped> {
        let is_right = fcntl_get_seals(file)?.contains(SealFlags::SHRINK)
            && fstat(file)?.st_size == bytes as i64
            && fstatfs(file)?.f_type == TMPFS;
        if !is_right {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, of pages that stay as long as it.
        let at = unsafe { mmap(null_mut(), bytes, rights, MapFlags::SHARED, file, 0) }?;
        let at = NonNull::new(at.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapped {
            at,
            bytes,
            address: at.as_ptr() as u64,
            _owner: Some(Arc::new(Owned::OfFile(at, bytes))),
        })
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Address by which programs know the first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns true if programs know it by the addresses that it has in this process.
    pub(crate) fn is_here(&self) -> bool {
        self.at.as_ptr() as u64 == self.address
    }

    /// Returns the part at this offset; `None` if it is not within the memory.
    #[must_use]
    pub fn part(&self, offset: usize, bytes: usize) -> Option<Mapped> {
        if !self.has(offset, bytes) {
            return None;
        }
        // SAFETY: within the memory, as checked.
        let at = unsafe { self.at.add(offset) };
        Some(Mapped {
            at,
            bytes,
            address: self.address + offset as u64,
            _owner: self._owner.clone(),
        })
    }

    /// Returns the offset of the bytes that programs know by this address, if all are here.
    #[must_use]
    pub fn offset_of(&self, address: u64, bytes: u64) -> Option<usize> {
        let offset = usize::try_from(address.checked_sub(self.address)?).ok()?;
        self.has(offset, usize::try_from(bytes).ok()?)
            .then_some(offset)
    }

    /// Returns true if the first byte is aligned, for this process and for programs.
    #[must_use]
    pub fn is_aligned(&self, alignment: usize) -> bool {
        (self.at.as_ptr() as usize).is_multiple_of(alignment)
            && self.address.is_multiple_of(alignment as u64)
    }

    /// Returns an aligned word of 64 bits.
    #[must_use]
    pub fn u64(&self, offset: usize) -> &AtomicU64 {
        assert!(self.has(offset, 8), "a word beyond the memory");
        let at = self.at.as_ptr().wrapping_add(offset).cast::<u64>();
        assert!(at.is_aligned(), "a word that is not aligned");
        // SAFETY: aligned, mapped for as long as `self`, and only used atomically.
        unsafe { AtomicU64::from_ptr(at) }
    }

    /// Returns an aligned word of 32 bits.
    #[must_use]
    pub fn u32(&self, offset: usize) -> &AtomicU32 {
        assert!(self.has(offset, 4), "a word beyond the memory");
        let at = self.at.as_ptr().wrapping_add(offset).cast::<u32>();
        assert!(at.is_aligned(), "a word that is not aligned");
        // SAFETY: aligned, mapped for as long as `self`, and only used atomically.
        unsafe { AtomicU32::from_ptr(at) }
    }

    /// Reads bytes, which another thread may be changing.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(self.has(offset, into.len()), "bytes beyond the memory");
        // SAFETY: both ranges are mapped, and `into` is not part of this memory.
        unsafe {
            self.at
                .as_ptr()
                .add(offset)
                .copy_to_nonoverlapping(into.as_mut_ptr(), into.len())
        }
    }

    /// Writes bytes, which another thread may be reading: aligned words whole.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(self.has(offset, bytes.len()), "bytes beyond the memory");
        if let Ok(word) = <[u8; 8]>::try_from(bytes)
            && self
                .at
                .as_ptr()
                .wrapping_add(offset)
                .cast::<u64>()
                .is_aligned()
        {
            return self
                .u64(offset)
                .store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
        // SAFETY: both ranges are mapped, and `bytes` is not part of this memory.
        unsafe {
            self.at
                .as_ptr()
                .add(offset)
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        }
    }

    /// Copies bytes from other memory, which may be the same.
    pub fn copy(&self, offset: usize, from: &Mapped, from_offset: usize, bytes: usize) {
        assert!(
            self.has(offset, bytes) && from.has(from_offset, bytes),
            "bytes beyond the memory"
        );
        let source = from.at.as_ptr().wrapping_add(from_offset);
        let destination = self.at.as_ptr().wrapping_add(offset);
        if bytes == 8 && source.cast::<u64>().is_aligned() && destination.cast::<u64>().is_aligned()
        {
            let word = from.u64(from_offset).load(Ordering::Relaxed);
            return self.u64(offset).store(word, Ordering::Relaxed);
        }
        // SAFETY: both ranges are mapped; they may overlap.
        unsafe { source.copy_to(destination, bytes) }
    }

    fn has(&self, offset: usize, bytes: usize) -> bool {
        offset
            .checked_add(bytes)
            .is_some_and(|end| end <= self.bytes)
    }
}

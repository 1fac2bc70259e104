//! Device memory: one window of this process's address space, mapped piece by piece, so that a
//! device pointer *is* a host address. Kernels may touch only mapped ranges and registered host
//! ranges.
//!
//! Lock order: `inner` is the only lock. Running kernels hold it for reading during a time slice
//! (see [`crate::launch`]); `map` and `unmap` take it for writing, and so wait for the slice to
//! end. So memory never disappears during an access.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};

use crate::texture::Bound;
use crate::written::Written;

/// Bytes of a host page, the granularity of `map`.
pub const PAGE_BYTES: u64 = 4096;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    #[error("cannot reserve {bytes} bytes of address space at {address:#x}: {cause}")]
    Reserve {
        address: u64,
        bytes: u64,
        cause: String,
    },
    #[error(
        "device range {address:#x}+{bytes} is not inside the window, not page aligned, or empty"
    )]
    BadRange { address: u64, bytes: u64 },
    #[error("device range {address:#x}+{bytes} overlaps a mapped range")]
    Overlap { address: u64, bytes: u64 },
    #[error("device address {address:#x} is not mapped")]
    NotMapped { address: u64 },
    #[error("out of device memory: {bytes} bytes wanted")]
    OutOfMemory { bytes: u64 },
}

/// A device's memory. Cheap to clone; all clones share it.
#[derive(Clone, Debug)]
pub struct Memory {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    base: u64,
    bytes: u64,
    /// Start of the area that modules' variables are in; it extends to the window's end.
    internal: u64,
    inner: RwLock<Ranges>,
    /// Bytes of device memory that were written, once tracking was asked for.
    written: OnceLock<Mutex<Written>>,
}

/// Mapped and registered ranges, sorted by address, disjoint.
#[derive(Debug, Default)]
pub struct Ranges {
    ranges: Vec<MappedRange>,
    /// Changes with every change of `ranges`, so that caches notice.
    pub(crate) generation: u64,
    /// Textures and surfaces, by the numbers that kernels use for them.
    bound: HashMap<u64, Bound>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MappedRange {
    start: u64,
    end: u64,
    kind: RangeKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RangeKind {
    /// Mapped by `map`.
    Device,
    /// Mapped by `allocate_internal`.
    Internal,
    /// Host memory registered by its owner.
    Host,
}

impl Memory {
    /// Reserves `[base, base + bytes)` without mapping memory. The last `internal_bytes` are for
    /// modules' variables and the device heap; the caller may map the rest.
    pub fn reserve(base: u64, bytes: u64, internal_bytes: u64) -> Result<Self, MemoryError> {
        let aligned = base.is_multiple_of(PAGE_BYTES)
            && bytes.is_multiple_of(PAGE_BYTES)
            && internal_bytes.is_multiple_of(PAGE_BYTES);
        if !aligned
            || base == 0
            || bytes == 0
            || internal_bytes > bytes
            || base.checked_add(bytes).is_none_or(|end| end > 1 << 47)
        {
            return Err(MemoryError::BadRange {
                address: base,
                bytes,
            });
        }
        // SAFETY: an anonymous reservation; with MAP_FIXED_NOREPLACE the kernel replaces no
        // existing mapping.
        let got = unsafe {
            libc::mmap(
                base as *mut libc::c_void,
                bytes as usize,
                libc::PROT_NONE,
                libc::MAP_PRIVATE
                    | libc::MAP_ANONYMOUS
                    | libc::MAP_NORESERVE
                    | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        if got == libc::MAP_FAILED || got as u64 != base {
            let cause = std::io::Error::last_os_error().to_string();
            if got != libc::MAP_FAILED {
                // SAFETY: an old kernel ignored the flag and mapped elsewhere; this is that new
                // mapping, which nothing uses.
                unsafe { libc::munmap(got, bytes as usize) };
            }
            return Err(MemoryError::Reserve {
                address: base,
                bytes,
                cause,
            });
        }
        let internal = base + bytes - internal_bytes;
        Ok(Memory {
            shared: Arc::new(Shared {
                base,
                bytes,
                internal,
                inner: RwLock::default(),
                written: OnceLock::new(),
            }),
        })
    }

    /// Returns the window: first address and size in bytes, including the internal area.
    pub fn window(&self) -> (u64, u64) {
        (self.shared.base, self.shared.bytes)
    }

    /// Returns the bytes of the window that `map` may use.
    pub fn mappable_bytes(&self) -> u64 {
        self.shared.internal - self.shared.base
    }

    /// Maps zeroed memory to `[address, address + bytes)`. The address must be page aligned;
    /// `bytes` need not be, and kernels may touch exactly `bytes`.
    pub fn map(&self, address: u64, bytes: u64) -> Result<(), MemoryError> {
        let end = address.checked_add(bytes);
        if !address.is_multiple_of(PAGE_BYTES)
            || bytes == 0
            || address < self.shared.base
            || end.is_none_or(|e| e > self.shared.internal)
        {
            return Err(MemoryError::BadRange { address, bytes });
        }
        self.map_as(address, bytes, RangeKind::Device)
    }

    fn map_as(&self, address: u64, bytes: u64, kind: RangeKind) -> Result<(), MemoryError> {
        let mut ranges = self.shared.inner.write();
        let range = MappedRange {
            start: address,
            end: address + bytes,
            kind,
        };
        // Whole pages must be free; otherwise unmapping one range would remove the last page of
        // another.
        ranges.check_free(address, address + bytes.next_multiple_of(PAGE_BYTES))?;
        protect(address, bytes, true)?;
        ranges.insert(range);
        if let Some(mut written) = self.written() {
            written.clear(address, bytes);
        }
        Ok(())
    }

    /// Unmaps the range of `map` that starts at `address`. Its contents are lost.
    pub fn unmap(&self, address: u64) -> Result<(), MemoryError> {
        self.remove(address, RangeKind::Device)
    }

    fn remove(&self, address: u64, kind: RangeKind) -> Result<(), MemoryError> {
        let mut ranges = self.shared.inner.write();
        let index = ranges
            .ranges
            .binary_search_by_key(&address, |r| r.start)
            .map_err(|_| MemoryError::NotMapped { address })?;
        let range = ranges.ranges[index];
        if range.kind != kind {
            return Err(MemoryError::NotMapped { address });
        }
        if kind != RangeKind::Host {
            protect(range.start, range.end - range.start, false)?;
        }
        ranges.ranges.remove(index);
        ranges.generation += 1;
        Ok(())
    }

    /// Lets kernels touch host memory outside the window (pinned, mapped memory).
    ///
    /// # Safety
    /// The memory must stay readable and writable until `unregister_host`.
    pub unsafe fn register_host(&self, address: u64, bytes: u64) -> Result<(), MemoryError> {
        let Some(end) = address.checked_add(bytes).filter(|_| bytes > 0) else {
            return Err(MemoryError::BadRange { address, bytes });
        };
        let (base, window_end) = (self.shared.base, self.shared.base + self.shared.bytes);
        if address < window_end && end > base {
            return Err(MemoryError::BadRange { address, bytes });
        }
        let mut ranges = self.shared.inner.write();
        ranges.check_free(address, end)?;
        ranges.insert(MappedRange {
            start: address,
            end,
            kind: RangeKind::Host,
        });
        Ok(())
    }

    pub fn unregister_host(&self, address: u64) -> Result<(), MemoryError> {
        self.remove(address, RangeKind::Host)
    }

    /// Binds a texture or surface to a number. Its memory is checked only when kernels use it, so
    /// it may be freed first.
    pub fn bind(&self, number: u64, object: Bound) {
        self.shared.inner.write().bound.insert(number, object);
    }

    pub fn unbind(&self, number: u64) {
        self.shared.inner.write().bound.remove(&number);
    }

    /// Whether all of `[address, address + bytes)` lies in one mapped or registered range.
    pub fn is_mapped(&self, address: u64, bytes: u64) -> bool {
        self.shared
            .inner
            .read()
            .find(address)
            .is_some_and(|(_, end)| end - address >= bytes)
    }

    /// Copies out of device (or registered) memory.
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        let ranges = self.shared.inner.read();
        ranges.require(address, out.len() as u64)?;
        // SAFETY: the range is mapped and readable while the lock is held; kernels may write it
        // meanwhile, as on a GPU.
        unsafe { std::ptr::copy(address as *const u8, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies into device (or registered) memory.
    pub fn write(&self, address: u64, data: &[u8]) -> Result<(), MemoryError> {
        let ranges = self.shared.inner.read();
        ranges.require(address, data.len() as u64)?;
        // SAFETY: the range is mapped and writable while the lock is held.
        unsafe { std::ptr::copy(data.as_ptr(), address as *mut u8, data.len()) };
        self.mark_written(address, data.len() as u64);
        Ok(())
    }

    /// Raises a word of 8 bytes to at least `value`, atomically for every process that maps it.
    pub(crate) fn raise(&self, address: u64, value: u64) -> Result<(), MemoryError> {
        let ranges = self.shared.inner.read();
        ranges.require(address, 8)?;
        // SAFETY: the word is mapped and writable while the lock is held; it was checked to be
        // aligned when the operation was submitted.
        let word = unsafe { AtomicU64::from_ptr(address as *mut u64) };
        word.fetch_max(value, Ordering::AcqRel);
        self.mark_written(address, 8);
        Ok(())
    }

    /// Copies within device (and registered) memory; the ranges may overlap.
    pub fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), MemoryError> {
        let ranges = self.shared.inner.read();
        ranges.require(from, bytes)?;
        ranges.require(to, bytes)?;
        // SAFETY: both ranges are mapped while the lock is held; `copy` allows overlap.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes as usize) };
        if let Some(mut written) = self.written() {
            match ranges.is_device(from) {
                true => written.copy(to, from, bytes),
                false => written.set(to, bytes),
            }
        }
        Ok(())
    }

    /// Starts to track which bytes were written. To be called before anything is mapped.
    pub fn track_writes(&self) {
        self.shared.written.get_or_init(Mutex::default);
    }

    pub(crate) fn written(&self) -> Option<MutexGuard<'_, Written>> {
        self.shared.written.get().map(Mutex::lock)
    }

    pub(crate) fn mark_written(&self, address: u64, bytes: u64) {
        if let Some(mut written) = self.written() {
            written.set(address, bytes);
        }
    }

    /// Allocates memory for the engine itself, at the lowest free address of the internal area.
    pub(crate) fn allocate_internal(&self, bytes: u64, align: u64) -> Result<u64, MemoryError> {
        let align = align.max(PAGE_BYTES);
        let bytes = bytes.max(1);
        let out_of_memory = MemoryError::OutOfMemory { bytes };
        loop {
            let mut start = self.shared.internal.next_multiple_of(align);
            for range in &self.shared.inner.read().ranges {
                if range.kind == RangeKind::Internal
                    && range.start < start.saturating_add(bytes)
                    && range.end > start
                {
                    start = range.end.next_multiple_of(align);
                }
            }
            if start
                .checked_add(bytes)
                .is_none_or(|end| end > self.shared.base + self.shared.bytes)
            {
                return Err(out_of_memory);
            }
            match self.map_as(start, bytes, RangeKind::Internal) {
                // Another thread took the place first: try again.
                Err(MemoryError::Overlap { .. }) => {}
                Err(error) => return Err(error),
                Ok(()) => return Ok(start),
            }
        }
    }

    pub(crate) fn free_internal(&self, address: u64) {
        if let Err(error) = self.remove(address, RangeKind::Internal) {
            tracing::error!(%error, "module memory was not mapped");
        }
    }

    pub(crate) fn lock(&self) -> RwLockReadGuard<'_, Ranges> {
        self.shared.inner.read()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: this object made the reservation; no lock or guard is held any more, since `self`
        // is dropped.
        unsafe { libc::munmap(self.base as *mut libc::c_void, self.bytes as usize) };
    }
}

impl Ranges {
    pub(crate) fn bound(&self, number: u64) -> Option<&Bound> {
        self.bound.get(&number)
    }

    /// Returns the range that holds `address`: its first address and its end.
    pub(crate) fn find(&self, address: u64) -> Option<(u64, u64)> {
        let after = self.ranges.partition_point(|r| r.start <= address);
        let range = self.ranges.get(after.checked_sub(1)?)?;
        (address < range.end).then_some((range.start, range.end))
    }

    /// Whether the address was mapped by `map`: usable by programs, and without contents until
    /// written.
    pub(crate) fn is_device(&self, address: u64) -> bool {
        self.kind(address) == Some(RangeKind::Device)
    }

    /// Whether the address is mapped or registered.
    pub(crate) fn is_known(&self, address: u64) -> bool {
        self.kind(address).is_some()
    }

    fn kind(&self, address: u64) -> Option<RangeKind> {
        let after = self.ranges.partition_point(|r| r.start <= address);
        let range = self.ranges.get(after.checked_sub(1)?)?;
        (address < range.end).then_some(range.kind)
    }

    /// Fails unless the whole range is mapped; it may span adjoining ranges.
    fn require(&self, mut address: u64, mut bytes: u64) -> Result<(), MemoryError> {
        while bytes > 0 {
            let Some((_, end)) = self.find(address) else {
                return Err(MemoryError::NotMapped { address });
            };
            let here = bytes.min(end - address);
            (address, bytes) = (address + here, bytes - here);
        }
        Ok(())
    }

    fn check_free(&self, start: u64, end: u64) -> Result<(), MemoryError> {
        let after = self.ranges.partition_point(|r| r.start < end);
        match after.checked_sub(1).map(|i| self.ranges[i]) {
            // Device ranges own their last page whole.
            Some(r)
                if (if r.kind == RangeKind::Host {
                    r.end
                } else {
                    r.end.next_multiple_of(PAGE_BYTES)
                }) > start =>
            {
                Err(MemoryError::Overlap {
                    address: start,
                    bytes: end - start,
                })
            }
            _ => Ok(()),
        }
    }

    fn insert(&mut self, range: MappedRange) {
        let at = self.ranges.partition_point(|r| r.start < range.start);
        self.ranges.insert(at, range);
        self.generation += 1;
    }
}

/// Maps zeroed memory to reserved pages, or removes it again.
fn protect(address: u64, bytes: u64, usable: bool) -> Result<(), MemoryError> {
    let protection = if usable {
        libc::PROT_READ | libc::PROT_WRITE
    } else {
        libc::PROT_NONE
    };
    let bytes = bytes.next_multiple_of(PAGE_BYTES);
    // SAFETY: the range lies inside this object's reservation (checked by the callers), and its
    // pages belong to no other range, so replacing the mapping affects nothing else. The write lock
    // keeps kernels out.
    let got = unsafe {
        libc::mmap(
            address as *mut libc::c_void,
            bytes as usize,
            protection,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    if got == libc::MAP_FAILED {
        Err(MemoryError::OutOfMemory { bytes })
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x2100_0000_0000;

    #[test]
    fn map_read_write_unmap() {
        let memory = Memory::reserve(BASE, 1 << 30, 1 << 20).unwrap();
        memory.map(BASE + 4096, 5000).unwrap();
        memory.write(BASE + 4096 + 4990, &[7; 10]).unwrap();
        let mut out = [1; 10];
        memory.read(BASE + 4096 + 4990, &mut out).unwrap();
        assert_eq!(out, [7; 10]);
        assert_eq!(
            memory.write(BASE + 4096 + 4991, &[7; 10]),
            Err(MemoryError::NotMapped {
                address: BASE + 4096 + 5000
            })
        );
        // The rest of the second page belongs to the range, although kernels may not touch it.
        assert!(matches!(
            memory.map(BASE + 8192, 4096),
            Err(MemoryError::Overlap { .. })
        ));
        assert!(matches!(
            memory.map(BASE, 8192),
            Err(MemoryError::Overlap { .. })
        ));
        memory.map(BASE, 4096).unwrap();
        memory.unmap(BASE + 4096).unwrap();
        assert!(!memory.is_mapped(BASE + 4096, 1));
        // Fresh memory is zero again.
        memory.map(BASE + 4096, 5000).unwrap();
        memory.read(BASE + 4096 + 4990, &mut out).unwrap();
        assert_eq!(out, [0; 10]);
    }

    #[test]
    fn internal_area_is_separate() {
        let base = BASE + (1 << 32);
        let memory = Memory::reserve(base, 1 << 20, 1 << 16).unwrap();
        let internal = base + (1 << 20) - (1 << 16);
        assert!(matches!(
            memory.map(internal, 4096),
            Err(MemoryError::BadRange { .. })
        ));
        let a = memory.allocate_internal(100, 1).unwrap();
        let b = memory.allocate_internal(5000, 1).unwrap();
        assert_eq!((a, b), (internal, internal + 4096));
        memory.free_internal(a);
        assert_eq!(memory.allocate_internal(4096, 1).unwrap(), internal);
        assert!(matches!(
            memory.allocate_internal(1 << 20, 1),
            Err(MemoryError::OutOfMemory { .. })
        ));
        assert_eq!(memory.unmap(b), Err(MemoryError::NotMapped { address: b }));
    }

    #[test]
    fn host_ranges_lie_outside_the_window() {
        let base = BASE + (2 << 32);
        let memory = Memory::reserve(base, 1 << 20, 0).unwrap();
        let mut host = vec![3u8; 64];
        let address = host.as_mut_ptr() as u64;
        // SAFETY: `host` outlives the registration.
        unsafe { memory.register_host(address, 64).unwrap() };
        assert!(memory.is_mapped(address + 60, 4));
        assert!(!memory.is_mapped(address + 60, 5));
        // SAFETY: the call is refused, so nothing uses the memory.
        assert!(unsafe { memory.register_host(base, 64) }.is_err());
        memory.unregister_host(address).unwrap();
        assert!(!memory.is_mapped(address, 1));
    }
}

//! Zeroed memory of tables, on huge pages if the kernel has any.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Types of which any number may be made by zeroing memory.
///
/// # Safety
///
/// All bytes zero must be a valid value, and dropping a value must do nothing.
pub unsafe trait Zeroable {}

// SAFETY: zero is a number.
unsafe impl Zeroable for u8 {}
// SAFETY: all bytes zero are a value of each element.
unsafe impl<T: Zeroable, const N: usize> Zeroable for [T; N] {}
// SAFETY: zero is a number.
unsafe impl Zeroable for u32 {}
// SAFETY: zero is a number.
unsafe impl Zeroable for u64 {}

/// The kernel gives no memory.
#[derive(Debug, thiserror::Error)]
#[error("no memory for a table of {bytes} bytes: {errno}")]
pub struct OutOfMemory {
    pub bytes: usize,
    pub errno: rustix::io::Errno,
}

/// A fixed number of zeroed values.
pub struct Pages<T> {
    first: NonNull<T>,
    count: usize,
    map: Map,
    owned: PhantomData<T>,
}

// SAFETY: the values are owned as a Vec owns its own.
unsafe impl<T: Send> Send for Pages<T> {}
// SAFETY: a shared reference gives out shared references to the values only.
unsafe impl<T: Sync> Sync for Pages<T> {}

impl<T: Zeroable> Pages<T> {
    /// Maps `count` zeroed values, aligned to huge pages if they fill one. The kernel finds the
    /// memory when it is first written: see [`Pages::populate`].
    pub fn new(count: usize) -> Result<Pages<T>, OutOfMemory> {
        let bytes = count
            .checked_mul(size_of::<T>())
            .filter(|bytes| *bytes <= isize::MAX as usize);
        let bytes = bytes.ok_or(OutOfMemory {
            bytes: usize::MAX,
            errno: rustix::io::Errno::NOMEM,
        })?;
        let map = Map::new(bytes.max(1), align_of::<T>())?;
        Ok(Pages {
            first: map.start.cast(),
            count,
            map,
            owned: PhantomData,
        })
    }

    /// Has the kernel find the memory now, all of it, so that no later access waits for a page.
    pub fn populate(&mut self) {
        self.map.populate();
    }

    pub fn bytes(&self) -> usize {
        self.count * size_of::<T>()
    }
}

impl<T> Deref for Pages<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the map holds `count` values, zeroed, which is valid for T: Zeroable.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

impl<T> DerefMut for Pages<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: the map holds `count` values, zeroed, which is valid for T: Zeroable; `self` is
        // borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.count) }
    }
}

#[cfg(not(miri))]
const HUGE_BYTES: usize = 2 << 20;

#[cfg(not(miri))]
struct Map {
    mapped: NonNull<std::ffi::c_void>,
    mapped_bytes: usize,
    start: NonNull<u8>,
    bytes: usize,
}

#[cfg(not(miri))]
impl Map {
    fn new(bytes: usize, align: usize) -> Result<Map, OutOfMemory> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        let align = if bytes >= HUGE_BYTES {
            HUGE_BYTES
        } else {
            align.max(4096)
        };
        let mapped_bytes = bytes.next_multiple_of(align) + align;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
        let mapped = unsafe { mmap_anonymous(null, mapped_bytes, protection, flags) };
        let mapped = mapped.map_err(|errno| OutOfMemory { bytes, errno })?;
        let errno = rustix::io::Errno::NOMEM;
        let mapped = NonNull::new(mapped).ok_or(OutOfMemory { bytes, errno })?;
        let offset = mapped.as_ptr().cast::<u8>().align_offset(align);
        // SAFETY: the mapping is longer than the values by one alignment.
        let start = unsafe { mapped.cast::<u8>().add(offset) };
        let whole = bytes.next_multiple_of(align);
        // SAFETY: the range is part of the mapping. The advice changes no contents, and a kernel
        // without huge pages refuses it.
        let _ = unsafe { madvise(start.as_ptr().cast(), whole, Advice::LinuxHugepage) };
        Ok(Map {
            mapped,
            mapped_bytes,
            start,
            bytes,
        })
    }

    fn populate(&mut self) {
        use rustix::mm::{Advice, madvise};
        let bytes = self.bytes.next_multiple_of(4096);
        // SAFETY: the range is part of the mapping. Populating keeps what was written; a kernel
        // before 5.14 refuses it, and pages then come when they are first touched.
        let _ = unsafe {
            madvise(
                self.start.as_ptr().cast(),
                bytes,
                Advice::LinuxPopulateWrite,
            )
        };
    }
}

#[cfg(not(miri))]
impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: this mapping is ours, and values in it are not used after their owner.
        let _ = unsafe { rustix::mm::munmap(self.mapped.as_ptr(), self.mapped_bytes) };
    }
}

/// Miri knows no mappings: the allocator's memory stands in.
#[cfg(miri)]
struct Map {
    start: NonNull<u8>,
    layout: std::alloc::Layout,
}

#[cfg(miri)]
impl Map {
    fn new(bytes: usize, align: usize) -> Result<Map, OutOfMemory> {
        let error = || OutOfMemory {
            bytes,
            errno: rustix::io::Errno::NOMEM,
        };
        let layout = std::alloc::Layout::from_size_align(bytes, align).map_err(|_| error())?;
        // SAFETY: the layout has at least one byte.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        Ok(Map {
            start: NonNull::new(start).ok_or_else(error)?,
            layout,
        })
    }

    fn populate(&mut self) {}
}

#[cfg(miri)]
impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and freed once.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_begin_zeroed_and_stay_apart() {
        for count in [0, 1, 1000, if cfg!(miri) { 2000 } else { 3 << 20 }] {
            let mut pages = Pages::<u32>::new(count).expect("memory");
            pages.populate();
            assert!(pages.iter().all(|one| *one == 0));
            for (i, one) in pages.iter_mut().enumerate() {
                *one = i as u32;
            }
            pages.populate();
            assert!(pages.iter().enumerate().all(|(i, one)| *one == i as u32));
            assert_eq!(pages.len(), count);
        }
    }

    #[test]
    fn too_much_memory_is_an_error() {
        assert!(Pages::<u32>::new(usize::MAX / 2).is_err());
        assert!(Pages::<u32>::new(1 << 59).is_err());
    }
}

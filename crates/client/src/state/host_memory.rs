//! Pinned and registered host memory.
//!
//! Over shm, memory from `cuMemHostAlloc` is a memfd that the server maps at the same address: both sides and the GPU
//! see the same bytes. Elsewhere, and for memory that the program registers, the server has nothing until the GPU may
//! touch the memory (it is "visible"): then the server keeps a mirror at the same address, written before work that may
//! read it and read back before a wait is answered. A shadow remembers what the server has.

use std::{
    collections::BTreeMap,
    ffi::c_void,
    os::fd::{AsFd, FromRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use outboard_api::{CUresult, cuda::CUcontext};
use outboard_wire::{limits::CHUNK_BYTES_MAX, messages};
use parking_lot::Mutex;

use super::Driver;

/// Where pinned memory is placed, so that the server finds the same addresses free.
const PLACE_BASE: u64 = 0x3800_0000_0000;
const PLACE_BYTES: u64 = 1 << 40;
const PAGE_BYTES: usize = 4096;
/// What one write to a mirror compares and sends at a time.
const WORD_BYTES: usize = 4;

pub(crate) struct HostRange {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    /// `CU_MEMHOSTALLOC_*` or `CU_MEMHOSTREGISTER_*`
    pub(crate) flags: u32,
    pub(crate) context: CUcontext,
    pub(crate) registered: bool,
    /// The server sees the same pages.
    pub(crate) shared: bool,
    pub(crate) number: u64,
    /// The server keeps a mirror.
    visible: AtomicBool,
    /// What the server has. Held for moments only: whoever reads the link for everybody takes it too.
    shadow: Mutex<Vec<u8>>,
    /// Held while the range is sent.
    sending: Mutex<()>,
}

impl HostRange {
    /// What the program has changed since the server was last told, now counted as told.
    fn take_changes(&self, start: usize, end: usize, exact: bool) -> Vec<(usize, Vec<u8>)> {
        let mut shadow = self.shadow.lock();
        let Some(known) = shadow.get_mut(start..end) else {
            return Vec::new();
        };
        // SAFETY: the program's memory, alive until it is unregistered or freed. The program may write to it meanwhile;
        // what it then reads is unspecified on a local GPU too.
        let memory = unsafe {
            std::slice::from_raw_parts((self.base + start as u64) as *const u8, end - start)
        };
        if memory == known {
            return Vec::new();
        }
        let runs = if exact {
            differing_runs(memory, known)
        } else {
            vec![(0, end - start)]
        };
        runs.into_iter()
            .map(|(at, len)| {
                known[at..at + len].copy_from_slice(&memory[at..at + len]);
                (start + at, known[at..at + len].to_vec())
            })
            .collect()
    }
}

#[derive(Default)]
pub(crate) struct HostMemory {
    ranges: BTreeMap<u64, Arc<HostRange>>,
    next_place: u64,
    next_number: u64,
}

/// Ranges that the server does not see by itself: only they need a look before a launch, which must not cost a lock.
static PRIVATE: AtomicUsize = AtomicUsize::new(0);

impl HostMemory {
    /// The range that an address lies in.
    #[inline]
    pub(crate) fn find(&self, address: u64) -> Option<&HostRange> {
        let (_, range) = self.ranges.range(..=address).next_back()?;
        (address - range.base < range.bytes).then_some(range)
    }

    /// Whether any kernel argument could point to memory that the server does not see.
    #[inline]
    pub(crate) fn any_private() -> bool {
        PRIVATE.load(Ordering::Acquire) > 0
    }

    /// Whether kernels may be writing to a mirror.
    pub(crate) fn has_visible(&self) -> bool {
        HostMemory::any_private()
            && self
                .ranges
                .values()
                .any(|r| r.visible.load(Ordering::Acquire))
    }

    /// Merges what kernels wrote to a mirror into the program's memory: only bytes that changed there.
    pub(crate) fn take_pages(&self, address: u64, data: &[u8]) {
        let Some(range) = self.find(address).filter(|r| !r.shared) else {
            return;
        };
        let start = (address - range.base) as usize;
        let mut shadow = range.shadow.lock();
        let Some(known) = shadow.get_mut(start..start + data.len()) else {
            return;
        };
        for (index, (known, new)) in known.iter_mut().zip(data).enumerate() {
            if known != new {
                *known = *new;
                // SAFETY: inside a range that the program holds until it unregisters or frees it.
                unsafe { ((range.base + (start + index) as u64) as *mut u8).write(*new) };
            }
        }
    }
}

impl Driver {
    /// `cuMemHostAlloc`
    pub(crate) fn host_allocate(&self, bytes: u64, flags: u32) -> Result<u64, CUresult> {
        let context = self.contexts.current()?;
        let rounded = bytes
            .checked_next_multiple_of(PAGE_BYTES as u64)
            .filter(|b| *b > 0 && *b <= PLACE_BYTES)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let shared = self.session.shares_memory();
        let base = if shared {
            self.share_memory_as(rounded, flags)?
        } else {
            self.place(rounded, None)?
        };
        self.insert_host(base, bytes, flags, context.handle, false, shared);
        Ok(base)
    }

    /// Memory for the library's own use that the server maps at the same address; over shm.
    pub(super) fn share_memory(&self, bytes: u64) -> Result<u64, CUresult> {
        self.share_memory_as(bytes, 0)
    }

    fn share_memory_as(&self, bytes: u64, flags: u32) -> Result<u64, CUresult> {
        let fd = memfd(bytes)?;
        let base = self.place(bytes, Some(&fd))?;
        let mapped = self.session.send_fd(fd.as_fd()).and_then(|fd_tag| {
            let message = messages::HostMap {
                va: base,
                len: bytes,
                flags,
                fd_tag,
            };
            self.call(&message, |_| ())
        });
        if let Err(error) = mapped {
            // SAFETY: the mapping just made, known to nobody else.
            unsafe { libc::munmap(base as *mut c_void, bytes as usize) };
            return Err(error);
        }
        // The server's registering has made the pages. Here they are entered at once, as the driver does, not one fault at a
        // time in the middle of a copy. Kernels before 5.14 do not know the advice, and fault.
        // SAFETY: advice about a mapping just made.
        unsafe {
            libc::madvise(
                base as *mut c_void,
                bytes as usize,
                libc::MADV_POPULATE_WRITE,
            )
        };
        Ok(base)
    }

    /// `cuMemFreeHost`
    pub(crate) fn host_free(&self, base: u64) -> Result<(), CUresult> {
        let range = self.remove_host(base, false)?;
        // SAFETY: the mapping that `place` made, given back by the program.
        unsafe {
            libc::munmap(
                base as *mut c_void,
                range.bytes.next_multiple_of(PAGE_BYTES as u64) as usize,
            )
        };
        Ok(())
    }

    /// `cuMemHostRegister`
    pub(crate) fn host_register(&self, base: u64, bytes: u64, flags: u32) -> Result<(), CUresult> {
        let context = self.contexts.current()?;
        if base == 0 || bytes == 0 || base.checked_add(bytes).is_none() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let overlaps = {
            let host = self.host.read();
            host.find(base).is_some() || host.ranges.range(base..base + bytes).next().is_some()
        };
        if overlaps {
            return Err(CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        }
        if !is_mapped(base, bytes) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        self.insert_host(base, bytes, flags, context.handle, true, false);
        Ok(())
    }

    /// `cuMemHostUnregister`
    pub(crate) fn host_unregister(&self, base: u64) -> Result<(), CUresult> {
        self.remove_host(base, true).map(drop)
    }

    /// The GPU may touch the range that this address lies in, from now on.
    pub(crate) fn make_visible(&self, address: u64) -> Result<(), CUresult> {
        let range = self.host_range(address)?;
        if range.shared || range.visible.load(Ordering::Acquire) {
            return Ok(());
        }
        let _one_at_a_time = range.sending.lock();
        if range.visible.load(Ordering::Acquire) {
            return Ok(());
        }
        // The server maps whole pages; the parts outside the range stay untouched on both sides.
        let start = range.base / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        let len = (range.base + range.bytes).next_multiple_of(PAGE_BYTES as u64) - start;
        self.call(
            &messages::HostMap {
                va: start,
                len,
                flags: range.flags,
                fd_tag: 0,
            },
            |_| (),
        )?;
        // A fresh mirror holds zeros.
        *range.shadow.lock() = vec![0; range.bytes as usize];
        self.submit(&messages::HostWatch {
            va: range.base,
            len: range.bytes,
        })?;
        range.visible.store(true, Ordering::Release);
        Ok(())
    }

    fn host_range(&self, address: u64) -> Result<Arc<HostRange>, CUresult> {
        let host = self.host.read();
        let (_, range) = host
            .ranges
            .range(..=address)
            .next_back()
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if address - range.base < range.bytes {
            Ok(range.clone())
        } else {
            Err(CUresult::CUDA_ERROR_INVALID_VALUE)
        }
    }

    /// Before work that may read mirrors: brings them up to date.
    #[inline]
    pub(crate) fn push_visible(&self) -> Result<(), CUresult> {
        if HostMemory::any_private() {
            return self.push_all_visible();
        }
        Ok(())
    }

    #[cold]
    fn push_all_visible(&self) -> Result<(), CUresult> {
        // Nothing is sent under the table's lock: whoever reads the link for everybody takes it too.
        let visible: Vec<Arc<HostRange>> = {
            let host = self.host.read();
            host.ranges
                .values()
                .filter(|r| r.visible.load(Ordering::Acquire))
                .cloned()
                .collect()
        };
        // While kernels may be writing, only what the program itself changed may be sent, to the word.
        let exact = !self.progress.is_idle();
        for range in visible {
            self.push_range(&range, exact)?;
        }
        Ok(())
    }

    fn push_range(&self, range: &HostRange, exact: bool) -> Result<(), CUresult> {
        // Held from the comparison to the sending, so that a newer state is never overtaken by an older one.
        let _one_at_a_time = range.sending.lock();
        let bytes = range.bytes as usize;
        for page in (0..bytes).step_by(PAGE_BYTES) {
            let end = bytes.min(page + PAGE_BYTES);
            for (at, data) in range.take_changes(page, end, exact) {
                self.submit(&messages::HostWrite {
                    va: range.base + at as u64,
                    data: &data,
                })?;
            }
        }
        Ok(())
    }

    pub(super) fn place(&self, bytes: u64, fd: Option<&OwnedFd>) -> Result<u64, CUresult> {
        use std::os::fd::AsRawFd;
        const TRIES_MAX: u32 = 64;
        let (sharing, raw) = match fd {
            Some(fd) => (libc::MAP_SHARED, fd.as_raw_fd()),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
        };
        for _ in 0..TRIES_MAX {
            let base = {
                let mut host = self.host.write();
                let place = host.next_place;
                // A gap keeps neighbours apart: running over the end faults, as it should.
                host.next_place = (place + bytes + PAGE_BYTES as u64)
                    % (PLACE_BYTES - bytes.min(PLACE_BYTES - 1));
                PLACE_BASE + place
            };
            // SAFETY: a fresh mapping that replaces nothing.
            let got = unsafe {
                libc::mmap(
                    base as *mut c_void,
                    bytes as usize,
                    libc::PROT_READ | libc::PROT_WRITE,
                    sharing | libc::MAP_FIXED_NOREPLACE,
                    raw,
                    0,
                )
            };
            if got as u64 == base {
                return Ok(base);
            }
            if got != libc::MAP_FAILED {
                // SAFETY: an old kernel took the address as a hint only; the mapping just made is ours.
                unsafe { libc::munmap(got, bytes as usize) };
            } else if std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOMEM) {
                return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
            }
        }
        Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }

    fn insert_host(
        &self,
        base: u64,
        bytes: u64,
        flags: u32,
        context: CUcontext,
        registered: bool,
        shared: bool,
    ) {
        let mut host = self.host.write();
        host.next_number += 1;
        let number = host.next_number;
        PRIVATE.fetch_add(usize::from(!shared), Ordering::AcqRel);
        let range = HostRange {
            base,
            bytes,
            flags,
            context,
            registered,
            shared,
            number,
            visible: AtomicBool::new(false),
            shadow: Mutex::default(),
            sending: Mutex::new(()),
        };
        host.ranges.insert(base, Arc::new(range));
    }

    fn remove_host(&self, base: u64, registered: bool) -> Result<Arc<HostRange>, CUresult> {
        let mut host = self.host.write();
        let not_ours = if registered {
            CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
        } else {
            CUresult::CUDA_ERROR_INVALID_VALUE
        };
        let range = host.ranges.get(&base);
        if range.is_none_or(|r| r.registered != registered) {
            return Err(not_ours);
        }
        let range = host.ranges.remove(&base).ok_or(not_ours)?;
        PRIVATE.fetch_sub(usize::from(!range.shared), Ordering::AcqRel);
        drop(host);
        self.session.forget(range.base, range.bytes);
        if range.shared || range.visible.load(Ordering::Acquire) {
            let start = base / PAGE_BYTES as u64 * PAGE_BYTES as u64;
            self.submit(&messages::HostUnmap { va: start })?;
        }
        Ok(range)
    }
}

/// Runs of words that differ.
fn differing_runs(new: &[u8], old: &[u8]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (index, (a, b)) in new
        .chunks(WORD_BYTES)
        .zip(old.chunks(WORD_BYTES))
        .enumerate()
    {
        if a == b {
            continue;
        }
        let start = index * WORD_BYTES;
        match runs.last_mut() {
            Some((at, len)) if *at + *len == start => *len += a.len(),
            _ => runs.push((start, a.len())),
        }
    }
    debug_assert!(runs.iter().all(|(_, len)| *len <= CHUNK_BYTES_MAX));
    runs
}

pub(super) fn memfd(bytes: u64) -> Result<OwnedFd, CUresult> {
    // SAFETY: a literal name; the result is checked.
    let fd = unsafe { libc::memfd_create(c"outboard-pinned".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    // SAFETY: a descriptor just made, owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: as above; the result is checked.
    let sized =
        unsafe { libc::ftruncate(std::os::fd::AsRawFd::as_raw_fd(&fd), bytes as libc::off_t) };
    if sized == 0 {
        Ok(fd)
    } else {
        Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }
}

/// Whether the program really has memory there.
fn is_mapped(base: u64, bytes: u64) -> bool {
    let start = base / PAGE_BYTES as u64 * PAGE_BYTES as u64;
    let len = (base + bytes).next_multiple_of(PAGE_BYTES as u64) - start;
    let mut resident = vec![0u8; (len as usize).div_ceil(PAGE_BYTES)];
    // SAFETY: mincore fails for unmapped pages and writes one byte a page.
    unsafe { libc::mincore(start as *mut c_void, len as usize, resident.as_mut_ptr()) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_words_that_differ() {
        let old = [0u8; 32];
        let mut new = old;
        new[5] = 1;
        new[8] = 1;
        new[31] = 1;
        assert_eq!(differing_runs(&new, &old), vec![(4, 8), (28, 4)]);
        assert_eq!(differing_runs(&old, &old), vec![]);
    }

    #[test]
    fn unmapped_memory_is_noticed() {
        let here = [1u8; 64];
        assert!(is_mapped(here.as_ptr() as u64, 64));
        assert!(!is_mapped(0x1000, 64));
    }
}

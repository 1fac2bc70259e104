//! Pinned and registered host memory.
//!
//! Over shm, memory from `cuMemHostAlloc` is a memfd that the server maps at the same address: both
//! sides and the GPU see the same bytes. Over other links, and for memory that the program
//! registers, the server has no memory until the GPU may use it. Then it keeps a mirror
//! (`mirrors.rs`).

use std::{
    collections::BTreeMap,
    ffi::c_void,
    io,
    os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use outboard_api::{CUresult, cuda::CUcontext};
use outboard_wire::{limits::SERVERS_MAX, messages};

use super::{
    Driver,
    advice::Advices,
    are_several,
    host_functions::host_functions_pending,
    mirror::Mirror,
    private_places::{PRIVATE, PrivateBounds},
};
use crate::{log, observe::optimise::is_exempt};

/// Address range of pinned memory, chosen so that it is free in the server too.
const PLACE_BASE: u64 = 0x3800_0000_0000;
const PLACE_BYTES: u64 = 1 << 40;
const PAGE_BYTES: usize = 4096;
/// Pages that are looked up at once.
const LOOKED_UP_PAGES: usize = 4096;
/// `CU_MEMHOSTREGISTER_READ_ONLY`
const REGISTER_READ_ONLY: u32 = 8;

/// Time for which the server is asked again for memory that it may still be using.
const HOST_MAP_WAIT_MAX: Duration = Duration::from_secs(2);
const HOST_MAP_PAUSE: Duration = Duration::from_millis(20);
/// Time limit for memory that was freed at an address to come out of use at the server.
const HOST_FREE_WAIT_MAX: Duration = Duration::from_secs(10);
/// Pause before the server is asked again.
const HOST_FREE_PAUSE: Duration = Duration::from_micros(200);
/// Time limit for memory that is freed to wait for copies into it.
const FREED_COPY_WAIT_MAX: Duration = Duration::from_secs(60);

/// Asks again while memory that was freed at the address is still in use; or while the answer is
/// that there is no memory, if host functions were to run when it was asked for: with them memory
/// becomes free.
fn beside_host_functions(
    are_pending: impl Fn() -> bool,
    mut ask: impl FnMut() -> Result<(), CUresult>,
) -> Result<(), CUresult> {
    let begin = Instant::now();
    loop {
        let may_be_freed = are_pending();
        match ask() {
            Err(CUresult::CUDA_ERROR_NOT_READY) if begin.elapsed() < HOST_FREE_WAIT_MAX => {
                std::thread::sleep(HOST_FREE_PAUSE);
            }
            Err(CUresult::CUDA_ERROR_NOT_READY) => return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY),
            Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
                if may_be_freed && begin.elapsed() < HOST_MAP_WAIT_MAX =>
            {
                std::thread::sleep(HOST_MAP_PAUSE);
            }
            answer => return answer,
        }
    }
}

/// The call that created a range of host memory.
pub(crate) enum Origin {
    /// `cuMemHostAlloc`
    Pinned,
    /// `cuMemHostRegister`: the memory is the program's.
    Registered,
    /// `cuMemAllocManaged`
    Managed(Advices),
    /// A `__managed__` variable: the server's memory, mirrored by the client.
    Variable(Advices),
}

pub(crate) struct HostRange {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    /// `CU_MEMHOSTALLOC_*` or `CU_MEMHOSTREGISTER_*`
    pub(crate) flags: u32,
    pub(crate) context: CUcontext,
    pub(crate) origin: Origin,
    /// The program cannot write to a part of it: it registered memory that is mapped read-only.
    pub(crate) read_only: bool,
    /// The server sees the same pages.
    pub(crate) shared: bool,
    pub(crate) number: u64,
    pub(crate) mirror: Mirror,
    /// Kernels may use it without naming it.
    pub(super) is_reached: AtomicBool,
}

impl HostRange {
    pub(crate) fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.base) < self.bytes
    }

    pub(crate) fn is_registered(&self) -> bool {
        matches!(self.origin, Origin::Registered)
    }

    pub(crate) fn is_variable(&self) -> bool {
        matches!(self.origin, Origin::Variable(_))
    }

    /// Returns the advice of managed memory; `None` for other memory.
    pub(crate) fn advices(&self) -> Option<&Advices> {
        match &self.origin {
            Origin::Managed(advices) | Origin::Variable(advices) => Some(advices),
            Origin::Pinned | Origin::Registered => None,
        }
    }

    /// Returns its first address and end.
    pub(super) fn run(&self) -> (u64, u64) {
        (self.base, self.base + self.bytes)
    }

    /// Returns the whole pages that contain the range: first address and end.
    pub(super) fn pages(&self) -> (u64, u64) {
        outboard_pages::pages_around(self.base, self.bytes)
    }

    /// Returns the end of the memory that is certainly there: that of the last page, if the library
    /// allocated it.
    pub(crate) fn end_of_pages(&self) -> u64 {
        match self.origin {
            Origin::Pinned | Origin::Managed(_) => self.pages().1,
            Origin::Registered | Origin::Variable(_) => self.base + self.bytes,
        }
    }

    /// Copies bytes at an offset into `out`. Returns the number of bytes before the first unmapped
    /// one; an error if that could not be found out. If the program writes to them meanwhile, the
    /// result is unspecified, as on a local GPU.
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let address = self.base + offset;
        if self.is_registered() {
            return outboard_pages::read(address, out);
        }
        // SAFETY: memory of the library, inside the range, mapped until the mirror is closed.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, out.as_mut_ptr(), out.len()) };
        Ok(out.len())
    }

    /// Returns what writes to the range where the program's memory is mapped for writing.
    pub(super) fn writer(&self) -> Writer<'_> {
        Writer {
            range: self,
            writable: None,
            lost: None,
        }
    }
}

/// Writes many short pieces to a range. Memory that the program registered may be unmapped: the
/// kernel writes the first piece in each page, and the others follow without a system call.
pub(super) struct Writer<'a> {
    range: &'a HostRange,
    /// The page to which the kernel has written last.
    writable: Option<u64>,
    /// Address of the first bytes that could not be written.
    lost: Option<u64>,
}

impl Writer<'_> {
    /// Returns the address of the first bytes that could not be written: the program has unmapped,
    /// moved or protected memory that it registered.
    pub(super) fn lost(&self) -> Option<u64> {
        self.lost
    }

    /// Writes bytes at an offset, if they are mapped for writing.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let address = self.range.base + offset;
        let page_of = |address: u64| address / outboard_pages::PAGE_BYTES;
        let last = page_of(address + (data.len() as u64).saturating_sub(1));
        let is_known = self.writable == Some(last) && page_of(address) == last;
        if self.range.is_registered() && !is_known {
            let written = outboard_pages::write(address, data).unwrap_or_else(|error| {
                if self.lost.is_none() {
                    log::warn(format_args!("registered memory cannot be written: {error}"));
                }
                0
            });
            if written == data.len() {
                self.writable = Some(last);
            } else {
                self.writable = None;
                self.lost.get_or_insert(address + written as u64);
            }
            return;
        }
        // SAFETY: memory of the library, inside the range, mapped until the program frees it; or a
        // page to which the kernel has just written. The program unregisters memory before it
        // unmaps it, which waits for the lock that the caller holds.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), address as *mut u8, data.len()) };
    }
}

/// Returns where the ranges of a test's driver begin: those of drivers of tests at the same time
/// would be in their way.
#[cfg(test)]
fn place_of_test() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1 << 31, Ordering::Relaxed) % PLACE_BYTES
}

#[derive(Default)]
pub(crate) struct HostMemory {
    ranges: BTreeMap<u64, Arc<HostRange>>,
    /// First address and end of those that the server does not see. They are disjoint.
    private: BTreeMap<u64, u64>,
    next_place: u64,
    next_number: u64,
}

/// Set once the program has registered memory that is mapped read-only: a copy to pinned memory
/// looks for it only then.
static ANY_READ_ONLY: AtomicBool = AtomicBool::new(false);

impl HostMemory {
    /// `first` is the number below which no range of the server has its number. The ranges of each
    /// server begin at a place of their own, so that one server's are not in the way of another's.
    pub(crate) fn of(first: u64, server: u8) -> HostMemory {
        let begin = PLACE_BYTES / SERVERS_MAX as u64 * u64::from(server);
        #[cfg(test)]
        let begin = (begin + place_of_test()) % PLACE_BYTES;
        HostMemory {
            next_number: first,
            next_place: begin,
            ..HostMemory::default()
        }
    }

    /// Returns the range that contains an address.
    #[inline]
    pub(crate) fn find(&self, address: u64) -> Option<&HostRange> {
        let (_, range) = self.ranges.range(..=address).next_back()?;
        (address - range.base < range.bytes).then_some(range)
    }

    /// Returns the ranges that have some of these bytes.
    pub(crate) fn within(&self, address: u64, bytes: u64) -> impl Iterator<Item = &HostRange> {
        let end = address.saturating_add(bytes);
        let before = self.ranges.range(..address).next_back();
        let first = before.map(|(_, range)| &**range);
        let others = self.ranges.range(address..end).map(|(_, range)| &**range);
        first
            .filter(|range| range.contains(address))
            .into_iter()
            .chain(others)
    }

    /// True if some host memory is not mapped by the server.
    #[inline]
    pub(crate) fn any_private() -> bool {
        PRIVATE.any()
    }

    /// Returns whether some of these bytes may be of host memory that the server does not map.
    #[inline]
    pub(super) fn may_be_private(address: u64, bytes: u64) -> bool {
        HostMemory::private_bounds().overlap(address, bytes)
    }

    /// Returns the bounds of the host memory that the server does not map.
    #[inline]
    pub(crate) fn private_bounds() -> PrivateBounds {
        PRIVATE.bounds()
    }

    /// Returns the arguments that may point to host memory that the server does not map.
    #[inline]
    pub(crate) fn may_name_private(params: &[u8]) -> impl Iterator<Item = u64> {
        let bounds = HostMemory::private_bounds();
        let words = params.as_chunks::<8>().0.iter();
        let words = words.map(|word| u64::from_le_bytes(*word));
        words.filter(move |word| bounds.may_contain(*word))
    }

    fn bound_private(&self) {
        let first = self.private.first_key_value();
        let start = first.map_or(u64::MAX, |first| *first.0);
        let end = self.private.last_key_value().map_or(0, |last| *last.1);
        // Tests at the same time have a driver each.
        PRIVATE.change(start, end, || cfg!(test) || are_several());
    }
}

impl Driver {
    /// `cuMemHostAlloc`
    pub(crate) fn host_allocate(&self, bytes: u64, flags: u32) -> Result<u64, CUresult> {
        self.place_host(bytes, flags, Origin::Pinned)
    }

    /// Allocates host memory for the program.
    pub(super) fn place_host(
        &self,
        bytes: u64,
        flags: u32,
        origin: Origin,
    ) -> Result<u64, CUresult> {
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
        self.insert_host(base, bytes, flags, context.handle, origin, shared);
        Ok(base)
    }

    /// Allocates memory for the library that the server maps at the same address; over shm.
    pub(super) fn share_memory(&self, bytes: u64) -> Result<u64, CUresult> {
        self.share_memory_as(bytes, 0)
    }

    fn share_memory_as(&self, bytes: u64, flags: u32) -> Result<u64, CUresult> {
        let fd = memfd(bytes)?;
        let base = self.place(bytes, Some(&fd))?;
        if let Err(error) = self.map_on_server(base, bytes, flags, Some(fd.as_fd())) {
            // SAFETY: the mapping just made, not used elsewhere.
            unsafe { libc::munmap(base as *mut c_void, bytes as usize) };
            return Err(error);
        }
        // The server has allocated the pages by registering them. They are mapped here at once, as
        // by the driver, since page faults would slow the first copy. Kernels before 5.14 do not
        // know the advice, and fault.
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

    /// Has the server map host memory at its address here, or the shared memory of `fd`. While host
    /// functions are to run, memory that was freed at the address may still be in use there: then
    /// the server is asked again.
    pub(super) fn map_on_server(
        &self,
        va: u64,
        len: u64,
        flags: u32,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), CUresult> {
        // A refused question may leave its file at the server: there is one.
        let may_be_asked_again = || fd.is_none() && host_functions_pending();
        let mut is_asked_again = false;
        beside_host_functions(may_be_asked_again, || {
            self.session.poll();
            // The work that uses it may wait for the program's word.
            if std::mem::replace(&mut is_asked_again, true) {
                self.push_visible()?;
            }
            let fd_tag = fd.map_or(Ok(0), |fd| self.session.send_fd(fd))?;
            let message = messages::HostMap {
                va,
                len,
                flags,
                fd_tag,
            };
            self.call(&message, |_| ())
        })
    }

    /// Has the server send back what kernels write to a mirror. The server remembers its bytes, for
    /// which it may have no memory.
    pub(super) fn watch_on_server(&self, va: u64, len: u64) -> Result<(), CUresult> {
        self.call(&messages::HostWatch { va, len }, |_| ())
    }

    /// Has the server unmap memory, which is of no context: the caller's may be lost.
    pub(super) fn unmap_on_server(&self, va: u64) -> Result<(), CUresult> {
        self.submit_in(0, &messages::HostUnmap { va })
    }

    /// `cuMemFreeHost`. Memory into which a copy is still to come stays mapped.
    pub(crate) fn host_free(&self, base: u64) -> Result<(), CUresult> {
        let range = self.remove_host(base, false)?;
        if self.is_copied_to(&range) {
            return Ok(());
        }
        // SAFETY: the mapping that `place` made, freed by the program. No reply is written there.
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
            host.within(base, bytes).next().is_some()
        };
        if overlaps {
            return Err(CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        }
        let (start, end) = outboard_pages::pages_around(base, bytes);
        if !is_mapped(base, bytes) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let protection = outboard_pages::protection(start, end);
        let may_read_only = flags & REGISTER_READ_ONLY != 0;
        if !protection.readable || !(protection.writable || may_read_only) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if !protection.writable {
            ANY_READ_ONLY.store(true, Ordering::Release);
        }
        // A region that outlasted other memory there is not of these pages.
        self.session.forget(base, bytes);
        self.insert_range(HostRange {
            base,
            bytes,
            flags,
            context: context.handle,
            origin: Origin::Registered,
            read_only: !protection.writable,
            shared: false,
            number: 0,
            mirror: Mirror::default(),
            is_reached: AtomicBool::new(false),
        });
        Ok(())
    }

    /// Refuses a copy to memory that the program registered and cannot write to.
    #[inline(always)]
    pub(crate) fn refuse_read_only(&self, address: u64, bytes: u64) -> Result<(), CUresult> {
        match ANY_READ_ONLY.load(Ordering::Acquire) {
            true => self.look_for_read_only(address, bytes),
            false => Ok(()),
        }
    }

    #[cold]
    fn look_for_read_only(&self, address: u64, bytes: u64) -> Result<(), CUresult> {
        let host = self.host.read();
        match host.within(address, bytes).any(|range| range.read_only) {
            true => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
            false => Ok(()),
        }
    }

    /// `cuMemHostUnregister`
    pub(crate) fn host_unregister(&self, base: u64) -> Result<(), CUresult> {
        self.remove_host(base, true).map(drop)
    }

    /// Returns the range that contains an address, if the server does not see it.
    pub(super) fn private_range(&self, address: u64) -> Option<Arc<HostRange>> {
        self.host_range(address).ok().filter(|range| !range.shared)
    }

    /// Returns whether kernels may be writing to the memory at an address.
    pub(crate) fn is_mirrored(&self, address: u64) -> bool {
        let host = self.host.read();
        host.find(address)
            .is_some_and(|range| range.mirror.orders_copies())
    }

    /// Returns whether kernels may be writing to the first or last of these bytes. The caller holds
    /// [`Driver::copying_out`].
    pub(crate) fn is_mirrored_in(&self, address: u64, bytes: u64) -> bool {
        let last = address.saturating_add(bytes.saturating_sub(1));
        self.orders_copies() && (self.is_mirrored(address) || self.is_mirrored(last))
    }

    pub(super) fn host_range(&self, address: u64) -> Result<Arc<HostRange>, CUresult> {
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
                // A gap separates neighbours, so that an access past the end faults.
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
                // SAFETY: an old kernel took the address as a hint only; the mapping just made is
                // ours.
                unsafe { libc::munmap(got, bytes as usize) };
            } else if std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOMEM) {
                return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
            }
        }
        Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }

    pub(super) fn insert_host(
        &self,
        base: u64,
        bytes: u64,
        flags: u32,
        context: CUcontext,
        origin: Origin,
        shared: bool,
    ) {
        self.insert_range(HostRange {
            base,
            bytes,
            flags,
            context,
            origin,
            read_only: false,
            shared,
            number: 0,
            mirror: Mirror::default(),
            is_reached: AtomicBool::new(false),
        });
    }

    /// Adds a range, which gets its number.
    fn insert_range(&self, mut range: HostRange) {
        let mut host = self.host.write();
        host.next_number += 1;
        range.number = host.next_number;
        if !range.shared {
            host.private.insert(range.base, range.base + range.bytes);
        }
        host.ranges.insert(range.base, Arc::new(range));
        host.bound_private();
    }

    pub(super) fn remove_host(
        &self,
        base: u64,
        registered: bool,
    ) -> Result<Arc<HostRange>, CUresult> {
        let mut host = self.host.write();
        let not_ours = if registered {
            CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
        } else {
            CUresult::CUDA_ERROR_INVALID_VALUE
        };
        let range = host.ranges.get(&base);
        if range.is_none_or(|r| r.is_registered() != registered) {
            return Err(match host.find(base) {
                // Registered memory, but not where it begins.
                Some(r) if r.base != base => CUresult::CUDA_ERROR_INVALID_VALUE,
                _ => not_ours,
            });
        }
        let range = host.ranges.remove(&base).ok_or(not_ours)?;
        host.private.remove(&base);
        drop(host);
        // An adapter that still writes there keeps its region: without it the connection would end.
        if self.outlast_copies(&range) {
            self.session.forget(range.base, range.bytes);
        }
        self.kernels_leave(&range);
        let left = match range.shared {
            true => self.unmap_on_server(base),
            false => self.close_mirror(&range),
        };
        // Last: until no launch is held for its mirror, launches look for those that are.
        self.host.write().bound_private();
        left.map(|()| range)
    }

    /// Waits for copies into memory that the program gives up, which would be written to whatever
    /// is there by then: those that no wait for the current context covers. A copy may wait for
    /// the host function that this thread runs. Returns whether all have come.
    fn outlast_copies(&self, range: &HostRange) -> bool {
        let copies = self.session.copies_into(range.base, range.bytes, false);
        let time = match is_exempt() {
            true => Duration::ZERO,
            false => FREED_COPY_WAIT_MAX,
        };
        let have_come = self.wait_until_come(copies, time);
        if !have_come {
            log::warn(format_args!(
                "host memory at {:#x} is freed while a copy is on its way into it",
                range.base
            ));
        }
        have_come
    }

    fn is_copied_to(&self, range: &HostRange) -> bool {
        let copies = self.session.copies_into(range.base, range.bytes, false);
        !copies.is_empty()
    }
}

/// Returns a memory file whose length is sealed, as the server requires. Without one it says why.
pub(super) fn memfd(bytes: u64) -> Result<OwnedFd, CUresult> {
    sealed(bytes).map_err(|error| {
        log::warn(format_args!("no memory that the server can map: {error}"));
        CUresult::CUDA_ERROR_OUT_OF_MEMORY
    })
}

fn sealed(bytes: u64) -> io::Result<OwnedFd> {
    const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    let failed = |call: &str| {
        let error = io::Error::last_os_error();
        io::Error::new(error.kind(), format!("{call}: {error}"))
    };
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    outboard_link::shm::check_file_limit(bytes)?;
    outboard_link::fill_standard_descriptors();
    // SAFETY: a literal name; the result is checked.
    let fd = unsafe { libc::memfd_create(c"outboard-pinned".as_ptr(), flags) };
    if fd < 0 {
        return Err(failed("memfd_create"));
    }
    // SAFETY: a descriptor just made, owned by nothing else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let number = std::os::fd::AsRawFd::as_raw_fd(&fd);
    // SAFETY: calls with numbers alone; the results are checked.
    let is_made = unsafe {
        libc::ftruncate(number, bytes as libc::off_t) == 0
            && libc::fcntl(number, libc::F_ADD_SEALS, SEALS) == 0
    };
    if is_made {
        Ok(fd)
    } else {
        Err(failed("making a memory file"))
    }
}

/// Returns whether the program has memory mapped there.
pub(super) fn is_mapped(base: u64, bytes: u64) -> bool {
    let (start, end) = outboard_pages::pages_around(base, bytes);
    let mut resident = [0u8; LOOKED_UP_PAGES];
    (start..end)
        .step_by(LOOKED_UP_PAGES * PAGE_BYTES)
        .all(|at| {
            let len = ((end - at) as usize).min(LOOKED_UP_PAGES * PAGE_BYTES);
            // SAFETY: mincore fails for unmapped pages and writes one byte a page, of which there
            // are as many as `resident` has.
            unsafe { libc::mincore(at as *mut c_void, len, resident.as_mut_ptr()) == 0 }
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmapped_memory_is_noticed() {
        let here = [1u8; 64];
        assert!(is_mapped(here.as_ptr() as u64, 64));
        assert!(!is_mapped(0x1000, 64));
        // Nothing is as long as this, and looking it up allocates nothing.
        let start = here.as_ptr() as u64;
        for bytes in [1 << 45, 1 << 63, u64::MAX - start] {
            assert!(!is_mapped(start, bytes), "{bytes} bytes");
        }
    }

    #[test]
    fn memory_is_looked_up_in_pieces_to_its_end() {
        const PIECE: usize = LOOKED_UP_PAGES * PAGE_BYTES;
        // SAFETY: a new mapping.
        let memory = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(
                std::ptr::null_mut(),
                3 * PIECE,
                libc::PROT_READ,
                flags,
                -1,
                0,
            )
        };
        assert_ne!(memory, libc::MAP_FAILED);
        let base = memory as u64;
        let bytes = 2 * PIECE as u64 + 1;
        assert!(is_mapped(base, bytes));
        // SAFETY: the third piece's first page, which nobody uses.
        unsafe { libc::munmap(memory.byte_add(2 * PIECE), PAGE_BYTES) };
        assert!(!is_mapped(base, bytes));
        assert!(is_mapped(base, bytes - 1));
        // SAFETY: the mapping made above.
        unsafe { libc::munmap(memory, 3 * PIECE) };
    }

    /// A page in which every fourth byte changes takes one system call, not one a byte.
    #[test]
    fn the_kernel_writes_the_first_piece_of_a_page() {
        const PAGE: usize = outboard_pages::PAGE_BYTES as usize;
        // SAFETY: a new mapping.
        let memory = unsafe {
            let (read_write, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
            libc::mmap(
                std::ptr::null_mut(),
                3 * PAGE,
                read_write,
                kind | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(memory, libc::MAP_FAILED);
        // SAFETY: the last page of the mapping, which nobody uses.
        let status = unsafe { libc::mprotect(memory.byte_add(2 * PAGE), PAGE, libc::PROT_READ) };
        assert_eq!(status, 0);
        let range = HostRange {
            base: memory as u64,
            bytes: 3 * PAGE as u64,
            flags: 0,
            context: CUcontext(0),
            origin: Origin::Registered,
            read_only: false,
            shared: false,
            number: 1,
            mirror: Mirror::default(),
            is_reached: AtomicBool::new(false),
        };
        let first_page = range.base / outboard_pages::PAGE_BYTES;
        let mut writer = range.writer();
        let mut known = Vec::new();
        for at in (0..3 * PAGE).step_by(4) {
            writer.write(at as u64, &[7]);
            known.push(writer.writable.map(|page| page - first_page));
        }
        let pages: Vec<_> = known.chunks(PAGE / 4).collect();
        for (page, expected) in [(0, Some(0)), (1, Some(1)), (2, None)] {
            assert!(
                pages[page].iter().all(|known| *known == expected),
                "page {page}"
            );
        }
        // SAFETY: the mapping made above; nobody writes to it any more.
        let bytes = unsafe { std::slice::from_raw_parts(memory.cast::<u8>(), 3 * PAGE) };
        let set = bytes.iter().enumerate().filter(|(_, byte)| **byte == 7);
        assert!(set.clone().all(|(at, _)| at % 4 == 0 && at < 2 * PAGE));
        assert_eq!(set.count(), 2 * PAGE / 4);
        // A piece that reaches into another page is the kernel's too.
        writer.write(PAGE as u64 - 2, &[9; 4]);
        assert_eq!(writer.writable, Some(first_page + 1));
        // SAFETY: the mapping made above.
        unsafe { libc::munmap(memory, 3 * PAGE) };
    }

    #[test]
    fn memory_in_use_is_asked_for_again_while_host_functions_are_to_run() {
        let full = Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        // The functions return before the third question, whose answer counts.
        for last in [Ok(()), full] {
            let asked = std::cell::Cell::new(0);
            let answer = beside_host_functions(
                || asked.get() < 2,
                || {
                    asked.set(asked.get() + 1);
                    if asked.get() < 3 { full } else { last }
                },
            );
            assert_eq!((answer, asked.get()), (last, 3));
        }
        let refused = Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(beside_host_functions(|| true, || refused), refused);
    }
}

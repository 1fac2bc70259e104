//! Watching memory and listing its written pages.

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    ptr,
};

use crate::{
    PAGE_BYTES,
    abi::{self, Api, PageRegion, Range, Register, ScanArg},
};

/// Regions that one call of the kernel reports, at most; a scan with more continues where the last
/// call ended.
const REGIONS_MAX: usize = 128;

/// The reason why written pages cannot be found by the kernel here.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    #[error("userfaultfd is refused: {0}")]
    Refused(#[source] io::Error),
    #[error(
        "this kernel's userfaultfd has no asynchronous write protection, which came with Linux 6.7: {0}"
    )]
    TooOld(#[source] io::Error),
    #[error("/proc/self/pagemap cannot be read: {0}")]
    NoPagemap(#[source] io::Error),
    #[error("the kernel did not report a page that was written: {0}")]
    Wrong(&'static str),
}

/// Finds the written pages of the ranges that it watches. Ranges are whole pages of this process's
/// memory.
#[derive(Debug)]
pub struct Tracker {
    uffd: OwnedFd,
    pagemap: File,
}

impl Tracker {
    /// Opens the kernel's interface and tries it on two pages of its own.
    pub fn new() -> Result<Tracker, Unavailable> {
        // SAFETY: the call takes flags only; its result is checked.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_userfaultfd,
                libc::O_CLOEXEC | libc::O_NONBLOCK | abi::USER_MODE_ONLY,
            )
        };
        if fd < 0 {
            return Err(Unavailable::Refused(io::Error::last_os_error()));
        }
        // SAFETY: a descriptor just made, which has no other owner.
        let uffd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let mut api = Api {
            api: abi::UFFD_API,
            features: abi::FEATURE_WP
                | abi::FEATURE_WP_HUGETLBFS_SHMEM
                | abi::FEATURE_WP_UNPOPULATED
                | abi::FEATURE_WP_ASYNC,
            ioctls: 0,
        };
        // SAFETY: the record has the type that this request takes.
        unsafe { ioctl(uffd.as_raw_fd(), abi::UFFDIO_API, &raw mut api) }
            .map_err(Unavailable::TooOld)?;
        let pagemap = File::open("/proc/self/pagemap").map_err(Unavailable::NoPagemap)?;
        let tracker = Tracker { uffd, pagemap };
        tracker.try_out()?;
        Ok(tracker)
    }

    /// Watches the pages of `[start, end)` from now on. The first look reports every populated page
    /// as written.
    ///
    /// Fails if another userfaultfd watches the pages or the memory cannot be watched; nothing is
    /// watched then.
    pub fn watch(&self, start: u64, end: u64) -> io::Result<()> {
        let mut register = Register {
            range: Range {
                start,
                len: end - start,
            },
            mode: abi::REGISTER_WP,
            ioctls: 0,
        };
        // SAFETY: the record has the type that this request takes. The kernel checks the range, and
        // protection lifts itself, so that no access to the memory fails or waits.
        unsafe {
            ioctl(
                self.uffd.as_raw_fd(),
                abi::UFFDIO_REGISTER,
                &raw mut register,
            )
        }
    }

    /// Stops watching the pages of `[start, end)`.
    pub fn forget(&self, start: u64, end: u64) {
        let mut range = Range {
            start,
            len: end - start,
        };
        // An error means that the memory was unmapped, and so is watched no more.
        // SAFETY: the record has the type that this request takes.
        let _ = unsafe {
            ioctl(
                self.uffd.as_raw_fd(),
                abi::UFFDIO_UNREGISTER,
                &raw mut range,
            )
        };
    }

    /// Passes to `written` the runs of pages in `[start, end)` that were written since the last
    /// call for them, as first address and end. A write during the call is reported by this call or
    /// by the next.
    ///
    /// Fails if a part of the range is mapped and not watched, as after `mmap` over it; runs that
    /// were passed before remain reported.
    pub fn take_written(
        &self,
        start: u64,
        end: u64,
        written: &mut dyn FnMut(u64, u64),
    ) -> io::Result<()> {
        let mut regions = [PageRegion::default(); REGIONS_MAX];
        let mut at = start;
        while at < end {
            let mut scan = ScanArg {
                size: size_of::<ScanArg>() as u64,
                flags: abi::SCAN_WP_MATCHING | abi::SCAN_CHECK_WPASYNC,
                start: at,
                end,
                vec: regions.as_mut_ptr() as u64,
                vec_len: REGIONS_MAX as u64,
                category_mask: abi::PAGE_IS_WRITTEN,
                return_mask: abi::PAGE_IS_WRITTEN,
                ..ScanArg::default()
            };
            // SAFETY: the record has the type that this request takes, with room for as many
            // regions as it says.
            let found = unsafe {
                libc::ioctl(
                    self.pagemap.as_raw_fd(),
                    abi::PAGEMAP_SCAN as _,
                    &raw mut scan,
                )
            };
            if found < 0 {
                return Err(io::Error::last_os_error());
            }
            for region in regions.iter().take(found as usize) {
                written(region.start, region.end);
            }
            if scan.walk_end <= at {
                return Err(io::Error::other("the scan of pages does not go on"));
            }
            at = scan.walk_end;
        }
        Ok(())
    }

    /// Writes to pages of its own, directly and by a system call, and checks that the kernel
    /// reports it.
    fn try_out(&self) -> Result<(), Unavailable> {
        const PAGES: u64 = 3;
        let pages = Pages::new(PAGES * PAGE_BYTES).map_err(Unavailable::Refused)?;
        let (start, end) = (pages.start(), pages.start() + PAGES * PAGE_BYTES);
        // SAFETY: inside the mapping.
        unsafe { ptr::write_bytes(pages.memory, 1, (PAGES * PAGE_BYTES) as usize) };
        self.watch(start, end).map_err(Unavailable::TooOld)?;
        let look = || {
            let mut count = 0;
            self.take_written(start, end, &mut |from, to| {
                count += (to - from) / PAGE_BYTES
            })
            .map(|()| count)
            .map_err(Unavailable::TooOld)
        };
        if look()? != PAGES {
            return Err(Unavailable::Wrong("the first look"));
        }
        if look()? != 0 {
            return Err(Unavailable::Wrong("a page that was not written"));
        }
        // SAFETY: inside the mapping.
        unsafe { ptr::write_volatile(pages.memory, 2) };
        let by_kernel = crate::write(start + PAGE_BYTES, &[2; 16]).is_ok_and(|count| count == 16);
        match look()? {
            2 => Ok(()),
            1 if !by_kernel => Ok(()),
            _ => Err(Unavailable::Wrong("a page that was written")),
        }
    }
}

/// A few pages of this test's own; unmapped when dropped.
struct Pages {
    memory: *mut u8,
    bytes: usize,
}

impl Pages {
    fn new(bytes: u64) -> io::Result<Pages> {
        // SAFETY: a fresh mapping at an address that the kernel chooses.
        let memory = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Pages {
            memory: memory.cast(),
            bytes: bytes as usize,
        })
    }

    fn start(&self) -> u64 {
        self.memory as u64
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by this object, and no reference to it remains.
        unsafe { libc::munmap(self.memory.cast(), self.bytes) };
    }
}

/// # Safety
/// `record` must have the type that the request takes.
unsafe fn ioctl<T>(fd: i32, request: libc::c_ulong, record: *mut T) -> io::Result<()> {
    // SAFETY: a record for this request, by this function's contract.
    match unsafe { libc::ioctl(fd, request as _, record) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

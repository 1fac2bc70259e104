//! Records and numbers of `linux/userfaultfd.h` and `linux/fs.h`, as of Linux 6.7.

/// `UFFD_API`
pub(crate) const UFFD_API: u64 = 0xAA;
/// `UFFD_USER_MODE_ONLY`: allowed without privileges. Protection that lifts itself needs no more.
pub(crate) const USER_MODE_ONLY: libc::c_int = 1;
/// `UFFD_FEATURE_PAGEFAULT_FLAG_WP`
pub(crate) const FEATURE_WP: u64 = 1 << 0;
/// `UFFD_FEATURE_WP_HUGETLBFS_SHMEM`
pub(crate) const FEATURE_WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
/// `UFFD_FEATURE_WP_UNPOPULATED`
pub(crate) const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
/// `UFFD_FEATURE_WP_ASYNC`
pub(crate) const FEATURE_WP_ASYNC: u64 = 1 << 15;
/// `UFFDIO_REGISTER_MODE_WP`
pub(crate) const REGISTER_WP: u64 = 1 << 1;

/// `struct uffdio_api`
#[repr(C)]
pub(crate) struct Api {
    pub(crate) api: u64,
    pub(crate) features: u64,
    pub(crate) ioctls: u64,
}

/// `struct uffdio_range`
#[repr(C)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) len: u64,
}

/// `struct uffdio_register`
#[repr(C)]
pub(crate) struct Register {
    pub(crate) range: Range,
    pub(crate) mode: u64,
    pub(crate) ioctls: u64,
}

/// `struct page_region`
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PageRegion {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) categories: u64,
}

/// `struct pm_scan_arg`
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct ScanArg {
    pub(crate) size: u64,
    pub(crate) flags: u64,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) walk_end: u64,
    pub(crate) vec: u64,
    pub(crate) vec_len: u64,
    pub(crate) max_pages: u64,
    pub(crate) category_inverted: u64,
    pub(crate) category_mask: u64,
    pub(crate) category_anyof_mask: u64,
    pub(crate) return_mask: u64,
}

/// `struct procmap_query`, of Linux 6.11
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct MapQuery {
    pub(crate) size: u64,
    pub(crate) query_flags: u64,
    pub(crate) query_addr: u64,
    pub(crate) vma_start: u64,
    pub(crate) vma_end: u64,
    pub(crate) vma_flags: u64,
    pub(crate) vma_page_size: u64,
    pub(crate) vma_offset: u64,
    pub(crate) inode: u64,
    pub(crate) dev_major: u32,
    pub(crate) dev_minor: u32,
    pub(crate) vma_name_size: u32,
    pub(crate) build_id_size: u32,
    pub(crate) vma_name_addr: u64,
    pub(crate) build_id_addr: u64,
}

/// `PROCMAP_QUERY_VMA_READABLE`
pub(crate) const VMA_READABLE: u64 = 1 << 0;
/// `PROCMAP_QUERY_VMA_WRITABLE`
pub(crate) const VMA_WRITABLE: u64 = 1 << 1;
/// `PROCMAP_QUERY_VMA_SHARED`
pub(crate) const VMA_SHARED: u64 = 1 << 3;
/// `PROCMAP_QUERY_COVERING_OR_NEXT_VMA`
pub(crate) const COVERING_OR_NEXT_VMA: u64 = 1 << 4;

/// `PM_SCAN_WP_MATCHING`: protects again what is reported.
pub(crate) const SCAN_WP_MATCHING: u64 = 1 << 0;
/// `PM_SCAN_CHECK_WPASYNC`: memory that is not watched is an error, not skipped.
pub(crate) const SCAN_CHECK_WPASYNC: u64 = 1 << 1;
/// `PAGE_IS_WRITTEN`
pub(crate) const PAGE_IS_WRITTEN: u64 = 1 << 1;

/// The kernel's `_IOWR(kind, number, size)`.
const fn iowr(kind: u8, number: u8, bytes: usize) -> libc::c_ulong {
    (3 << 30)
        | ((bytes as libc::c_ulong) << 16)
        | ((kind as libc::c_ulong) << 8)
        | number as libc::c_ulong
}

/// The kernel's `_IOR(kind, number, size)`.
const fn ior(kind: u8, number: u8, bytes: usize) -> libc::c_ulong {
    (2 << 30)
        | ((bytes as libc::c_ulong) << 16)
        | ((kind as libc::c_ulong) << 8)
        | number as libc::c_ulong
}

pub(crate) const UFFDIO_API: libc::c_ulong = iowr(UFFD_API as u8, 0x3F, size_of::<Api>());
pub(crate) const UFFDIO_REGISTER: libc::c_ulong = iowr(UFFD_API as u8, 0x00, size_of::<Register>());
pub(crate) const UFFDIO_UNREGISTER: libc::c_ulong = ior(UFFD_API as u8, 0x01, size_of::<Range>());
pub(crate) const PAGEMAP_SCAN: libc::c_ulong = iowr(b'f', 16, size_of::<ScanArg>());
pub(crate) const PROCMAP_QUERY: libc::c_ulong = iowr(b'f', 17, size_of::<MapQuery>());

// The kernel's own numbers, as `strace` prints them.
const _: () = assert!(UFFDIO_API == 0xc018_aa3f);
const _: () = assert!(UFFDIO_REGISTER == 0xc020_aa00);
const _: () = assert!(UFFDIO_UNREGISTER == 0x8010_aa01);
const _: () = assert!(PAGEMAP_SCAN == 0xc060_6610);
const _: () = assert!(PROCMAP_QUERY == 0xc068_6611);

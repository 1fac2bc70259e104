//! Finds the pages of this process's memory that were written since the last look, by asking the
//! kernel.
//!
//! Linux 6.7 and later protect pages against writing and lift the protection by themselves at the
//! first write (userfaultfd with `UFFD_FEATURE_WP_ASYNC`). The ioctl `PAGEMAP_SCAN` lists the pages
//! whose protection was lifted, and protects them again in the same step. No thread is involved, no
//! signal is sent, and system calls that write to the memory (`read`, `recv`) are seen like any
//! other write.
//!
//! Not seen: writes by another process that maps the same memory, and writes by a device (an RDMA
//! adapter, a disk with `O_DIRECT`) that arrive after the page was last found written.

mod abi;
mod process;
mod tracker;

pub use process::{Protection, Unread, is_shared, protection, read, unread, write};
pub use tracker::{Tracker, Unavailable};

/// The unit in which writes are found.
pub const PAGE_BYTES: u64 = 4096;

/// Returns the whole pages that contain `len` bytes at `start`: first address and end.
pub fn pages_around(start: u64, len: u64) -> (u64, u64) {
    let first = start / PAGE_BYTES * PAGE_BYTES;
    let end = start.saturating_add(len).div_ceil(PAGE_BYTES);
    (first, end.saturating_mul(PAGE_BYTES))
}

//! Bytes to send that this process cannot read: the kernel finds them in the middle of a frame, and
//! cannot say where.

use std::{
    hint::black_box,
    io::IoSlice,
    sync::atomic::{AtomicBool, Ordering},
};

/// Length of the shortest page that Linux has, in bytes.
const PAGE_BYTES: usize = 4096;

static ARE_THE_PROGRAMS: AtomicBool = AtomicBool::new(false);

/// Says that what this process sends is its program's memory: a wrong pointer is the program's, and
/// comes as the signal that a copy by the process itself raises. A server's worker goes on without
/// the connection instead.
pub fn send_programs_memory() {
    ARE_THE_PROGRAMS.store(true, Ordering::Relaxed);
}

/// Reads from each page of bytes that the kernel could not read, if they are a program's. Returns
/// true if the program's handler has made all of them readable.
#[cold]
pub(crate) fn read_each_page(slices: &[IoSlice<'_>]) -> bool {
    if !ARE_THE_PROGRAMS.load(Ordering::Relaxed) {
        return false;
    }
    for bytes in slices {
        let pages = bytes.iter().step_by(PAGE_BYTES);
        pages.chain(bytes.last()).for_each(|byte| {
            black_box(*byte);
        });
    }
    true
}

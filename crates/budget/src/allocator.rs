//! The allocator that counts.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicBool, Ordering},
};

use super::{BUDGET_BYTES, LEASE_BYTES, MARGIN_BYTES, NONE, USED_BYTES};

/// Text of a worker's end. It is written without allocating.
const ENDS: &[u8] =
    b"outboard: a program needs more of the server's own memory than it may use (--host-memory, --share); its worker ends\n";

/// The system's allocator, with a count of the bytes that are allocated. It refuses to allocate
/// beyond the budget and its margin, which ends the process where the allocation cannot fail.
pub struct CountingAllocator;

// SAFETY: every call is the system allocator's, with its arguments; a NULL that is returned instead
// of a call is the contract's failure.
unsafe impl GlobalAlloc for CountingAllocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the layout is not empty, which `GlobalAlloc` asks of the caller.
        unsafe { System.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the layout is not empty, which `GlobalAlloc` asks of the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        give_back(layout.size());
        // SAFETY: the system allocator made this memory, with this layout.
        unsafe { System.dealloc(memory, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Counts both while they may exist side by side.
        if !take(size) {
            return std::ptr::null_mut();
        }
        // SAFETY: the system allocator made this memory, with this layout, and the size is not 0.
        let moved = unsafe { System.realloc(memory, layout, size) };
        give_back(if moved.is_null() { size } else { layout.size() });
        moved
    }
}

/// Counts bytes that are about to be allocated. Returns false, and counts nothing, if they are
/// beyond the budget and its margin.
#[inline]
fn take(bytes: usize) -> bool {
    let bytes = bytes as u64;
    let before = USED_BYTES.fetch_add(bytes, Ordering::Relaxed);
    let budget = BUDGET_BYTES.load(Ordering::Relaxed);
    if budget == NONE || is_within(before.saturating_add(bytes), budget) {
        return true;
    }
    USED_BYTES.fetch_sub(bytes, Ordering::Relaxed);
    say_once();
    false
}

/// Compares used bytes with the budget and the lease, each with the margin.
#[inline]
fn is_within(used: u64, budget: u64) -> bool {
    let beyond = used.saturating_sub(MARGIN_BYTES);
    beyond <= budget
        && (beyond <= LEASE_BYTES.load(Ordering::Relaxed) || super::grow(beyond).is_ok())
}

#[inline]
fn give_back(bytes: usize) {
    USED_BYTES.fetch_sub(bytes as u64, Ordering::Relaxed);
}

#[cold]
fn say_once() {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        // SAFETY: the bytes are a constant. A closed descriptor is an error, which is ignored.
        unsafe { libc::write(libc::STDERR_FILENO, ENDS.as_ptr().cast(), ENDS.len()) };
    }
}

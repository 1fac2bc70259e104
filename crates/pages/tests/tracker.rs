//! Tests that the kernel reports written pages, on memory of every kind that programs register.

#![allow(clippy::panic)]

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::FromRawFd,
    ptr,
};

use outboard_pages::{PAGE_BYTES, Tracker, Unavailable, pages_around};

const PAGES: u64 = 64;
const BYTES: usize = (PAGES * PAGE_BYTES) as usize;

/// Prints and returns `None` on a kernel without the interface, which is a fact about the machine.
fn tracker() -> Option<Tracker> {
    match Tracker::new() {
        Ok(tracker) => Some(tracker),
        Err(why @ Unavailable::Wrong(_)) => panic!("{why}"),
        Err(why) => {
            let test = std::thread::current();
            let test = test.name().unwrap_or("tracker");
            // Past the test harness, which would keep it to itself.
            let _ = writeln!(std::io::stderr().lock(), "NOT RUN: {test}: {why}");
            None
        }
    }
}

fn map(flags: i32, fd: i32) -> u64 {
    // SAFETY: a fresh mapping at an address that the kernel chooses.
    let memory = unsafe {
        libc::mmap(
            ptr::null_mut(),
            BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            fd,
            0,
        )
    };
    assert_ne!(memory, libc::MAP_FAILED);
    memory as u64
}

fn anonymous() -> u64 {
    map(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
}

fn set(address: u64, value: u8) {
    // SAFETY: memory of the test's.
    unsafe { ptr::write_volatile(address as *mut u8, value) };
}

/// Numbers of a mapping's pages that were written.
fn written(tracker: &Tracker, base: u64) -> Vec<u64> {
    let mut pages = Vec::new();
    tracker
        .take_written(base, base + BYTES as u64, &mut |from, to| {
            pages.extend((from - base) / PAGE_BYTES..(to - base) / PAGE_BYTES);
        })
        .expect("a scan of watched memory");
    pages
}

fn watched(tracker: &Tracker, base: u64) {
    tracker.watch(base, base + BYTES as u64).expect("watched");
    written(tracker, base);
    assert_eq!(written(tracker, base), []);
}

#[test]
fn pages_written_by_hand_by_system_calls_and_by_other_threads() {
    let Some(tracker) = tracker() else { return };
    let base = anonymous();
    watched(&tracker, base);
    set(base + 3 * PAGE_BYTES + 17, 1);
    let mut zeros = File::open("/dev/zero").expect("/dev/zero");
    // SAFETY: memory of the test's.
    let there = unsafe { std::slice::from_raw_parts_mut((base + 9 * PAGE_BYTES) as *mut u8, 8) };
    zeros.read_exact(there).expect("a read into watched memory");
    std::thread::spawn(move || set(base + 20 * PAGE_BYTES, 1))
        .join()
        .expect("a thread");
    assert_eq!(written(&tracker, base), [3, 9, 20]);
    assert_eq!(written(&tracker, base), []);
}

#[test]
fn more_regions_than_one_call_reports() {
    let Some(tracker) = tracker() else { return };
    let pages = 1024;
    // SAFETY: a fresh mapping at an address that the kernel chooses.
    let base = unsafe {
        libc::mmap(
            ptr::null_mut(),
            (pages * PAGE_BYTES) as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    } as u64;
    let end = base + pages * PAGE_BYTES;
    tracker.watch(base, end).expect("watched");
    tracker
        .take_written(base, end, &mut |_, _| ())
        .expect("a scan");
    for page in (0..pages).step_by(2) {
        set(base + page * PAGE_BYTES, 1);
    }
    let mut found = 0;
    tracker
        .take_written(base, end, &mut |from, to| found += (to - from) / PAGE_BYTES)
        .expect("a scan");
    assert_eq!(found, pages / 2);
}

#[test]
fn memory_that_is_given_up_and_used_again_counts_as_written() {
    let Some(tracker) = tracker() else { return };
    let base = anonymous();
    for page in 0..PAGES {
        set(base + page * PAGE_BYTES, 1);
    }
    watched(&tracker, base);
    // SAFETY: memory of the test's.
    unsafe {
        libc::madvise(
            (base + 5 * PAGE_BYTES) as *mut _,
            PAGE_BYTES as usize,
            libc::MADV_DONTNEED,
        )
    };
    assert!(written(&tracker, base).contains(&5));
    set(base + 5 * PAGE_BYTES, 2);
    assert_eq!(written(&tracker, base), [5]);
}

#[test]
fn memory_mapped_over_is_an_error_and_a_hole_is_not() {
    let Some(tracker) = tracker() else { return };
    let base = anonymous();
    watched(&tracker, base);
    // SAFETY: memory of the test's, which is not used between the two calls.
    unsafe { libc::munmap((base + 8 * PAGE_BYTES) as *mut _, PAGE_BYTES as usize) };
    set(base + 2 * PAGE_BYTES, 1);
    assert_eq!(written(&tracker, base), [2]);
    // SAFETY: the hole that was just made, which nothing else has taken.
    let again = unsafe {
        libc::mmap(
            (base + 8 * PAGE_BYTES) as *mut _,
            PAGE_BYTES as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    assert_eq!(again as u64, base + 8 * PAGE_BYTES);
    set(base + 8 * PAGE_BYTES, 1);
    let scanned = tracker.take_written(base, base + BYTES as u64, &mut |_, _| ());
    assert!(scanned.is_err(), "new memory in a watched range is noticed");
    // Watched again, the range works as before.
    tracker
        .watch(base, base + BYTES as u64)
        .expect("watched again");
    assert!(written(&tracker, base).contains(&8));
}

#[test]
fn a_fork_leaves_the_parents_pages_watched() {
    let Some(tracker) = tracker() else { return };
    let base = anonymous();
    for page in 0..PAGES {
        set(base + page * PAGE_BYTES, 1);
    }
    watched(&tracker, base);
    // SAFETY: the child only writes to its memory and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        set(base, 9);
        // SAFETY: ends the child without running anything of the test.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: the child just made.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((status, written(&tracker, base)), (0, vec![]));
    set(base + PAGE_BYTES, 2);
    assert_eq!(written(&tracker, base), [1]);
}

#[test]
fn shared_files_and_private_files_can_be_watched() {
    let Some(tracker) = tracker() else { return };
    // SAFETY: a literal name; the result is checked.
    let fd = unsafe { libc::memfd_create(c"test".as_ptr(), 0) };
    assert!(fd >= 0);
    // SAFETY: a descriptor just made.
    let mut file = unsafe { File::from_raw_fd(fd) };
    file.write_all(&[1; BYTES]).expect("written");
    for flags in [libc::MAP_SHARED, libc::MAP_PRIVATE] {
        let base = map(flags, fd);
        // SAFETY: memory of the test's.
        assert_eq!(unsafe { ptr::read_volatile(base as *const u8) }, 1);
        watched(&tracker, base);
        set(base + 4 * PAGE_BYTES, 3);
        assert_eq!(written(&tracker, base), [4], "{flags:#x}");
    }
}

#[test]
fn pages_around_bytes() {
    assert_eq!(pages_around(4097, 1), (4096, 8192));
    assert_eq!(pages_around(4095, 2), (0, 8192));
    assert_eq!(pages_around(0, 4096), (0, 4096));
}

//! Single accesses of device memory, which is shared with other threads of the launch, with copies
//! and with the host, as on a GPU. They are relaxed atomics, so races give the values that they
//! could give there.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

#[inline(always)]
pub(crate) fn read8(at: u64) -> u8 {
    // SAFETY: `pointers` has checked bounds and alignment; a running kernel holds the range lock.
    unsafe { AtomicU8::from_ptr(at as *mut u8) }.load(Relaxed)
}

#[inline(always)]
pub(crate) fn read16(at: u64) -> u16 {
    // SAFETY: `pointers` has checked bounds and alignment; a running kernel holds the range lock.
    unsafe { AtomicU16::from_ptr(at as *mut u16) }.load(Relaxed)
}

#[inline(always)]
pub(crate) fn read32(at: u64) -> u32 {
    // SAFETY: `pointers` has checked bounds and alignment; a running kernel holds the range lock.
    unsafe { AtomicU32::from_ptr(at as *mut u32) }.load(Relaxed)
}

#[inline(always)]
pub(crate) fn read64(at: u64) -> u64 {
    // SAFETY: `pointers` has checked bounds and alignment; a running kernel holds the range lock.
    unsafe { AtomicU64::from_ptr(at as *mut u64) }.load(Relaxed)
}

#[inline(always)]
pub(crate) fn write8(at: u64, value: u8) {
    // SAFETY: `pointers` has checked bounds and alignment; a running kernel holds the range lock.
    unsafe { AtomicU8::from_ptr(at as *mut u8) }.store(value, Relaxed);
}

#[inline(always)]
pub(crate) fn write16(at: u64, value: u16) {
    // SAFETY: `pointers` has checked bounds and alignment; a running kernel holds the range lock.
    unsafe { AtomicU16::from_ptr(at as *mut u16) }.store(value, Relaxed);
}

#[inline(always)]
pub(crate) fn write32(at: u64, value: u32) {
    // SAFETY: `pointers` has checked bounds and alignment; a running kernel holds the range lock.
    unsafe { AtomicU32::from_ptr(at as *mut u32) }.store(value, Relaxed);
}

#[inline(always)]
pub(crate) fn write64(at: u64, value: u64) {
    // SAFETY: `pointers` has checked bounds and alignment; a running kernel holds the range lock.
    unsafe { AtomicU64::from_ptr(at as *mut u64) }.store(value, Relaxed);
}

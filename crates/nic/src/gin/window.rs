//! Memory that all ranks have registered together: each has its own range and key.

use std::{
    ffi::{c_int, c_void},
    ptr::NonNull,
};

use outboard_net::Access;

use crate::{host::with, memory::reached};

use super::{
    Outcome,
    abi::{PTR_CUDA, PTR_HOST},
    broken,
    group::Member,
    refused, wrong,
};

const TOLD_BYTES: usize = 20;

/// Registered memory of all ranks.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) domain: u32,
    key: u32,
    /// By rank.
    ranges: Vec<Range>,
}

/// Memory of a rank.
#[derive(Clone, Copy, Debug)]
struct Range {
    address: u64,
    bytes: u64,
    key: u32,
}

impl Drop for Window {
    fn drop(&mut self) {
        let _ = with(|adapter| adapter.unregister(self.key));
    }
}

impl Window {
    /// Registers this rank's memory, and learns of the others'. Where one cannot, none has any.
    ///
    /// # Safety
    ///
    /// The memory stays mapped until it is deregistered.
    pub(super) unsafe fn register(
        member: &Member,
        memory: *mut c_void,
        bytes: usize,
        kind: c_int,
    ) -> Outcome<Window> {
        // SAFETY: the caller's duties are the same.
        let key = unsafe { key_of(member.domain, memory, bytes, kind) };
        // No bytes: this rank has failed.
        let told_bytes = if key.is_ok() { bytes as u64 } else { 0 };
        let told_key = key.as_ref().map_or(0, |key| *key);
        let mut told = [0; TOLD_BYTES];
        told[..8].copy_from_slice(&(memory as u64).to_le_bytes());
        told[8..16].copy_from_slice(&told_bytes.to_le_bytes());
        told[16..].copy_from_slice(&told_key.to_le_bytes());
        let all = member.gather(&told);
        let mut window = Window {
            domain: member.domain,
            key: key?,
            ranges: Vec::new(),
        };
        window.ranges = all?.chunks_exact(TOLD_BYTES).map(range).collect();
        match window.ranges.iter().position(|range| range.bytes == 0) {
            Some(rank) => Err(broken(format!("rank {rank} has not registered its memory"))),
            None => Ok(window),
        }
    }

    /// Returns address and key of bytes of a rank's memory, which have to be within it.
    pub(super) fn part(&self, rank: usize, offset: u64, bytes: u64) -> Outcome<(u64, u32)> {
        let range = self.ranges.get(rank);
        let end = offset.checked_add(bytes);
        match (range, end) {
            (Some(range), Some(end)) if end <= range.bytes => {
                Ok((range.address + offset, range.key))
            }
            _ => wrong(format!(
                "{bytes} bytes at {offset:#x} of rank {rank}'s memory are not registered"
            )),
        }
    }
}

fn range(told: &[u8]) -> Range {
    let little = |bytes: &[u8]| {
        let bytes = bytes.iter().rev();
        bytes.fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
    };
    Range {
        address: little(&told[..8]),
        bytes: little(&told[8..16]),
        key: little(&told[16..]) as u32,
    }
}

/// # Safety
///
/// As of [`Window::register`].
unsafe fn key_of(domain: u32, memory: *mut c_void, bytes: usize, kind: c_int) -> Outcome<u32> {
    if !matches!(kind, PTR_HOST | PTR_CUDA) {
        return wrong(format!("memory of kind {kind}"));
    }
    let none = || wrong(format!("{bytes} bytes at {memory:p} are not all there"));
    let Some(at) = NonNull::new(memory.cast::<u8>()).filter(|_| bytes > 0) else {
        return none();
    };
    // SAFETY: the caller's duties are the same.
    let Some(found) = (unsafe { reached(at, bytes, memory as u64, true) }) else {
        return none();
    };
    with(|adapter| adapter.register(domain, found, Access::ALL)).map_err(refused)
}

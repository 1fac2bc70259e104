//! Functions for frequent loads and stores.
//!
//! Neighbouring threads mostly access neighbouring words, or all the same one. If each half of a
//! warp does, the access is one bounds check and a copy; halves, because blocks are often 16 wide.
//! Every other access, including faults, goes to the functions of
//! [`crate::interp::memory::access`], which handle each lane.

use crate::code::Row;
use crate::interp::addresses::{Addresses, Pattern, SEEN};
use crate::interp::core::{Core, Stop};
use crate::interp::fast::scatter::{self, shared_lanes};
use crate::interp::isa::{HALF, Isa};
use crate::interp::step::{Body, Step};
use crate::lanes::{CHUNK, CHUNKS, Chunk};
use crate::words::{read32, write32};

/// Returns the pattern of a row of addresses, for accesses of `$size` bytes.
macro_rules! pattern {
    ($isa:ident, $follows:ident, $size:expr, $row:ident) => {
        // SAFETY: the body is compiled for this instruction set.
        unsafe {
            match $row[1].wrapping_sub($row[0]) {
                0 if $isa::$follows::<0>($row) => Pattern::Same,
                step if step == $size as _ && $isa::$follows::<{ $size }>($row) => Pattern::Spread,
                _ => Pattern::Other,
            }
        }
    };
}

/// Returns the addresses and pattern of a step's access, if it is frequent and in bounds. `c` is
/// the entry that remembers its row of addresses; `b` is the entry's bit if an earlier access
/// filled it.
macro_rules! access {
    ($isa:ident, $follows:ident, $size:expr, $core:ident, $step:ident, $row:ident, $range:expr, $base:expr) => {{
        let place = $step.c as usize & SEEN;
        if $core.known & $step.b == 0 {
            let row = $core.files.$row($step.a);
            let first = [u64::from(row[0]), u64::from(row[HALF])];
            let pattern = pattern!($isa, $follows, $size, row);
            if place == SEEN {
                return inside(first, pattern, $size, $step.offset, $range, $base);
            }
            $core.storage.seen[place] = Addresses::new(first, pattern, $size, $range, $base);
            $core.known |= 1 << place;
        }
        $core.storage.seen[place].checked($step.offset)
    }};
}

/// Returns the access at `offset`, for addresses that are not remembered.
#[inline(always)]
fn inside(
    first: [u64; 2],
    pattern: Pattern,
    size: usize,
    offset: i64,
    (low, high): (u64, u64),
    base: *mut u8,
) -> Option<([u64; 2], Pattern)> {
    let bytes = match pattern {
        Pattern::Spread => size * HALF,
        Pattern::Same => size,
        Pattern::Other => return None,
    };
    let last = (high - low).checked_sub(bytes as u64)?;
    let [a, b] = first.map(|at| at.wrapping_add(offset as u64));
    let within = a.wrapping_sub(low) <= last && b.wrapping_sub(low) <= last;
    let base = base as u64;
    (within && (a | b) & (size as u64 - 1) == 0).then(|| ([a + base, b + base], pattern))
}

/// Returns an access of mapped memory, aligned to all of its words.
#[inline(always)]
fn global<I: Isa, const SIZE: usize>(
    core: &mut Core<'_>,
    step: &Step,
) -> Option<([u64; 2], Pattern)> {
    let range = core.cached_range(step.pc);
    let none = std::ptr::null_mut();
    access!(I, follows64, SIZE, core, step, row64, range, none)
}

/// Returns an access of shared memory.
#[inline(always)]
pub(in crate::interp) fn shared<I: Isa>(
    core: &mut Core<'_>,
    step: &Step,
) -> Option<([u64; 2], Pattern)> {
    let range = (0, core.shared_bytes);
    let base = core.shared;
    access!(I, follows32, 4, core, step, row32, range, base)
}

/// Whether a parameter of `bytes` is aligned and within the first `limit` bytes.
#[inline(always)]
fn is_parameter(at: i64, bytes: u64, limit: u64) -> bool {
    let last = limit.checked_sub(bytes);
    last.is_some_and(|last| at as u64 <= last) && at as u64 & (bytes - 1) == 0
}

/// Loads the words of both halves.
///
/// # Safety
/// `first` and `pattern` must come from `global` or `shared`, for words of this size.
#[inline(always)]
unsafe fn gather<T: Copy>([low, high]: [u64; 2], pattern: Pattern) -> [[T; HALF]; 2] {
    // SAFETY: `global` or `shared` checked the bounds of everything that the pattern reads.
    unsafe {
        match pattern {
            Pattern::Spread => [
                (low as *const [T; HALF]).read_unaligned(),
                (high as *const [T; HALF]).read_unaligned(),
            ],
            _ => [
                [(low as *const T).read(); HALF],
                [(high as *const T).read(); HALF],
            ],
        }
    }
}

pub(in crate::interp) struct LdShared32;

impl Body for LdShared32 {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        if mask == u32::MAX {
            if let Some((first, pattern)) = shared::<I>(core, step) {
                // SAFETY: `shared` has checked the bounds of both halves.
                let value: [[u32; HALF]; 2] = unsafe { gather(first, pattern) };
                core.files.set_halves32(step.d, value);
                return Ok(());
            }
            if let Some(at) = shared_lanes(core, step) {
                let base = core.shared as u64;
                let mut value = [0; 32];
                for l in 0..32 {
                    value[l] = read32(base + u64::from(at[l]));
                }
                core.files.set32(step.d, mask, &value);
                return Ok(());
            }
        }
        core.any(step, mask)
    }
}

pub(in crate::interp) struct StShared32;

impl Body for StShared32 {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        if mask == u32::MAX {
            if let Some((first, Pattern::Spread)) = shared::<I>(core, step) {
                // SAFETY: `shared` has checked the bounds of both halves.
                unsafe { core.files.scatter32(step.d, first) };
                return Ok(());
            }
            if let Some(at) = shared_lanes(core, step) {
                let base = core.shared as u64;
                let value = core.files.row32(step.d);
                for l in 0..32 {
                    write32(base + u64::from(at[l]), value[l]);
                }
                return Ok(());
            }
        }
        core.any(step, mask)
    }
}

pub(in crate::interp) struct LdGlobal32;

impl Body for LdGlobal32 {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        if mask == u32::MAX
            && let Some((first, pattern)) = global::<I, 4>(core, step)
        {
            // SAFETY: `global` has checked the bounds of both halves.
            let value: [[u32; HALF]; 2] = unsafe { gather(first, pattern) };
            core.files.set_halves32(step.d, value);
            return Ok(());
        }
        scatter::gather32(core, step, mask)
    }
}

pub(in crate::interp) struct StGlobal32;

impl Body for StGlobal32 {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        if mask == u32::MAX
            && let Some((first, Pattern::Spread)) = global::<I, 4>(core, step)
        {
            // SAFETY: `global` has checked the bounds of both halves.
            unsafe { core.files.scatter32(step.d, first) };
            return Ok(());
        }
        scatter::scatter32(core, step, mask)
    }
}

pub(in crate::interp) struct LdGlobal64;

impl Body for LdGlobal64 {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        if mask == u32::MAX
            && let Some((first, pattern)) = global::<I, 8>(core, step)
        {
            // SAFETY: `global` has checked the bounds of both halves.
            let value: [[u64; HALF]; 2] = unsafe { gather(first, pattern) };
            core.files.set_halves64(step.d, value);
            return Ok(());
        }
        scatter::gather64(core, step, mask)
    }
}

pub(in crate::interp) struct StGlobal64;

impl Body for StGlobal64 {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        if mask == u32::MAX
            && let Some((first, Pattern::Spread)) = global::<I, 8>(core, step)
        {
            // SAFETY: `global` has checked the bounds of both halves.
            unsafe { core.files.scatter64(step.d, first) };
            return Ok(());
        }
        scatter::scatter64(core, step, mask)
    }
}

/// Reinterprets words as arrays of other sizes with equally many words.
#[inline(always)]
fn resized<const A: usize, const B: usize, const C: usize, const D: usize>(
    words: [[u32; A]; B],
) -> [[u32; C]; D] {
    assert!(A * B == C * D);
    // SAFETY: both types are the same number of contiguous words.
    unsafe { words.as_ptr().cast::<[[u32; C]; D]>().read() }
}

/// Loads `N` registers of neighbouring words; `d` is their list. `BYTES` is the size of a lane's
/// access.
pub(in crate::interp) struct LdVector32<const N: usize, const BYTES: usize>;

impl<const N: usize, const BYTES: usize> Body for LdVector32<N, BYTES> {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        if mask == u32::MAX
            && let Some((first, Pattern::Spread)) = global::<I, BYTES>(core, step)
        {
            let rows: [Row; N] = std::array::from_fn(|i| core.program.rows[step.d as usize + i]);
            for chunk in 0..CHUNKS {
                let (half, at) = (chunk / 2, chunk % 2 * CHUNK);
                // SAFETY: `global` has checked the bounds: each half has `HALF` lanes of `N` words.
                let lanes: [[u32; N]; CHUNK] = unsafe {
                    (first[half] as *const [u32; N])
                        .add(at)
                        .cast::<[[u32; N]; CHUNK]>()
                        .read_unaligned()
                };
                let values: [Chunk; N] = match N {
                    // SAFETY: the body is compiled for this instruction set.
                    4 => unsafe { resized(I::split4(resized(lanes))) },
                    _ => std::array::from_fn(|i| lanes.map(|lane| lane[i])),
                };
                for (&d, value) in rows.iter().zip(values) {
                    if d != crate::code::SINK {
                        core.files.set_chunk(d, chunk, u32::MAX, value);
                    }
                }
            }
            return Ok(());
        }
        core.any(step, mask)
    }
}

pub(in crate::interp) struct StVector32<const N: usize, const BYTES: usize>;

impl<const N: usize, const BYTES: usize> Body for StVector32<N, BYTES> {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        if mask == u32::MAX
            && let Some((first, Pattern::Spread)) = global::<I, BYTES>(core, step)
        {
            let rows: [Row; N] = std::array::from_fn(|i| core.program.rows[step.d as usize + i]);
            for chunk in 0..CHUNKS {
                let (half, at) = (chunk / 2, chunk % 2 * CHUNK);
                let values = rows.map(|row| core.files.chunk(row, chunk));
                let lanes: [[u32; N]; CHUNK] = match N {
                    // SAFETY: the body is compiled for this instruction set.
                    4 => unsafe { resized(I::join4(resized(values))) },
                    _ => std::array::from_fn(|l| values.map(|value| value[l])),
                };
                // SAFETY: `global` has checked the bounds: each half has `HALF` lanes of `N` words.
                unsafe {
                    (first[half] as *mut [u32; N])
                        .add(at)
                        .cast::<[[u32; N]; CHUNK]>()
                        .write_unaligned(lanes);
                }
            }
            return Ok(());
        }
        core.any(step, mask)
    }
}

/// Loads a kernel parameter, which is equal for all lanes, from `offset`.
pub(in crate::interp) struct LdParam32;

impl Body for LdParam32 {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        if is_parameter(step.offset, 4, core.env.param_bytes) {
            let value = read32(core.env.params.as_ptr() as u64 + step.offset as u64);
            for i in 0..CHUNKS {
                core.files.set_chunk(step.d, i, mask, [value; CHUNK]);
            }
            return Ok(());
        }
        core.any(step, mask)
    }
}

pub(in crate::interp) struct LdParam64;

impl Body for LdParam64 {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        if is_parameter(step.offset, 8, core.env.param_bytes) {
            let value = crate::words::read64(core.env.params.as_ptr() as u64 + step.offset as u64);
            for i in 0..CHUNKS {
                core.files.set_chunk64(step.d, i, mask, [value; CHUNK]);
            }
            return Ok(());
        }
        core.any(step, mask)
    }
}

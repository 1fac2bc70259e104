//! Bodies of the loads and stores that kernels are full of.
//!
//! Neighbouring threads mostly touch neighbouring words, or all the same one. Where every half of a warp does, the access is
//! one check of bounds and a copy; halves, because blocks are often 16 wide. Everything else, faults too, is left
//! to the functions of [`super::memory`], which look at each lane.

use super::core::{Core, Stop};
use super::isa::{HALF, Isa};
use super::lanes::{CHUNK, CHUNKS};
use super::memory::{read32, write32};
use super::step::{Body, Step};

/// How the lanes of both halves of a warp follow each other, from the first of each.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pattern {
    /// By the size of the access.
    Spread,
    /// All at one address.
    Same,
    Other,
}

/// How the lanes of a row of addresses follow each other, for accesses of `SIZE` bytes.
macro_rules! pattern {
    ($isa:ident, $follows:ident, $size:expr, $row:expr) => {{
        let row = $row;
        // SAFETY: the body is compiled for this instruction set.
        unsafe {
            match row[1].wrapping_sub(row[0]) {
                0 if $isa::$follows::<0>(row) => Pattern::Same,
                step if step == $size as _ && $isa::$follows::<{ $size }>(row) => Pattern::Spread,
                _ => Pattern::Other,
            }
        }
    }};
}

/// Whether both accesses of `bytes` lie in `[low, high)`, aligned to `size`.
#[inline(always)]
fn inside(first: [u64; 2], bytes: u64, size: u64, low: u64, high: u64) -> bool {
    let Some(last) = (high - low).checked_sub(bytes) else {
        return false;
    };
    first[0].wrapping_sub(low) <= last
        && first[1].wrapping_sub(low) <= last
        && (first[0] | first[1]) & (size - 1) == 0
}

/// Where the halves of a warp begin in mapped memory, and how their lanes follow; None if it takes a closer look.
#[inline(always)]
fn global<I: Isa, const SIZE: usize>(core: &Core<'_>, step: &Step) -> Option<([u64; 2], Pattern)> {
    let row = core.files.row64(step.a);
    let pattern = pattern!(I, follows64, SIZE, row);
    let bytes = match pattern {
        Pattern::Spread => SIZE * HALF,
        Pattern::Same => SIZE,
        Pattern::Other => return None,
    };
    let offset = step.offset as u64;
    let first = [row[0].wrapping_add(offset), row[HALF].wrapping_add(offset)];
    let (low, high) = core.cached_range(step.pc);
    // An access of several words is aligned to all of them.
    inside(first, bytes as u64, SIZE as u64, low, high).then_some((first, pattern))
}

/// The same for shared memory.
#[inline(always)]
fn shared<I: Isa>(core: &Core<'_>, step: &Step) -> Option<([u64; 2], Pattern)> {
    let row = core.files.row32(step.a);
    let pattern = pattern!(I, follows32, 4, row);
    let bytes = match pattern {
        Pattern::Spread => 4 * HALF,
        Pattern::Same => 4,
        Pattern::Other => return None,
    };
    let offset = step.offset as u64;
    let first = [
        u64::from(row[0]).wrapping_add(offset),
        u64::from(row[HALF]).wrapping_add(offset),
    ];
    if !inside(first, bytes as u64, 4, 0, core.shared_bytes) {
        return None;
    }
    let base = core.shared as u64;
    Some(([first[0] + base, first[1] + base], pattern))
}

/// Words of both halves, as checked by `global` or `shared`.
///
/// # Safety
/// `first` and `pattern` came from one of them, for words of this size.
#[inline(always)]
unsafe fn gather<T: Copy>([low, high]: [u64; 2], pattern: Pattern) -> [[T; HALF]; 2] {
    // SAFETY: bounds were checked for what the pattern reads.
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

/// Addresses of all lanes in shared memory, if none leaves it or is misaligned.
#[inline(always)]
fn shared_lanes(core: &Core<'_>, step: &Step) -> Option<[u32; 32]> {
    let offset = i32::try_from(step.offset).ok()?;
    // A row is subtracted from rather than added to, so that nothing wraps back into bounds.
    let below = offset.min(0).unsigned_abs();
    let span = core
        .shared_bytes
        .checked_sub(4 + u64::from(offset.max(0) as u32))? as u32;
    let row = core.files.row32(step.a);
    let (mut beyond, mut bits) = (0, 0);
    let mut at = [0; 32];
    for l in 0..32 {
        let lowest = row[l].wrapping_sub(below);
        beyond |= u32::from(lowest > span);
        at[l] = row[l].wrapping_add(offset as u32);
        bits |= at[l];
    }
    (beyond == 0 && bits & 3 == 0).then_some(at)
}

pub(super) struct LdShared32;

impl Body for LdShared32 {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        if mask == u32::MAX {
            if let Some((first, pattern)) = shared::<I>(core, step) {
                // SAFETY: checked by `shared`.
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

pub(super) struct StShared32;

impl Body for StShared32 {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        if mask == u32::MAX {
            if let Some((first, Pattern::Spread)) = shared::<I>(core, step) {
                // SAFETY: checked by `shared`.
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

pub(super) struct LdGlobal32;

impl Body for LdGlobal32 {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        if mask == u32::MAX
            && let Some((first, pattern)) = global::<I, 4>(core, step)
        {
            // SAFETY: checked by `global`.
            let value: [[u32; HALF]; 2] = unsafe { gather(first, pattern) };
            core.files.set_halves32(step.d, value);
            return Ok(());
        }
        core.any(step, mask)
    }
}

pub(super) struct StGlobal32;

impl Body for StGlobal32 {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        if mask == u32::MAX
            && let Some((first, Pattern::Spread)) = global::<I, 4>(core, step)
        {
            // SAFETY: checked by `global`.
            unsafe { core.files.scatter32(step.d, first) };
            return Ok(());
        }
        core.any(step, mask)
    }
}

pub(super) struct LdGlobal64;

impl Body for LdGlobal64 {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        if mask == u32::MAX
            && let Some((first, pattern)) = global::<I, 8>(core, step)
        {
            // SAFETY: checked by `global`.
            let value: [[u64; HALF]; 2] = unsafe { gather(first, pattern) };
            core.files.set_halves64(step.d, value);
            return Ok(());
        }
        core.any(step, mask)
    }
}

pub(super) struct StGlobal64;

impl Body for StGlobal64 {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        if mask == u32::MAX
            && let Some((first, Pattern::Spread)) = global::<I, 8>(core, step)
        {
            // SAFETY: checked by `global`.
            unsafe { core.files.scatter64(step.d, first) };
            return Ok(());
        }
        core.any(step, mask)
    }
}

/// `N` registers of neighbouring words; `d` is their list. `BYTES` are those of a lane.
pub(super) struct LdVector32<const N: usize, const BYTES: usize>;

impl<const N: usize, const BYTES: usize> Body for LdVector32<N, BYTES> {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        if mask == u32::MAX
            && let Some((first, Pattern::Spread)) = global::<I, BYTES>(core, step)
        {
            let program = core.program;
            for i in 0..N {
                let d = program.rows[step.d as usize + i];
                if d == crate::code::SINK {
                    continue;
                }
                let mut value = [[0; HALF]; 2];
                for half in 0..2 {
                    for l in 0..HALF {
                        // SAFETY: checked by `global`: each half has `HALF` lanes of `N` words.
                        value[half][l] =
                            unsafe { (first[half] as *const u32).add(l * N + i).read() };
                    }
                }
                core.files.set_halves32(d, value);
            }
            return Ok(());
        }
        core.any(step, mask)
    }
}

pub(super) struct StVector32<const N: usize, const BYTES: usize>;

impl<const N: usize, const BYTES: usize> Body for StVector32<N, BYTES> {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        if mask == u32::MAX
            && let Some((first, Pattern::Spread)) = global::<I, BYTES>(core, step)
        {
            let program = core.program;
            let rows: [&[u32; 32]; N] =
                std::array::from_fn(|i| core.files.row32(program.rows[step.d as usize + i]));
            for (half, at) in first.into_iter().enumerate() {
                for l in 0..HALF {
                    for (i, row) in rows.iter().enumerate() {
                        // SAFETY: checked by `global`: each half has `HALF` lanes of `N` words.
                        unsafe { (at as *mut u32).add(l * N + i).write(row[half * HALF + l]) };
                    }
                }
            }
            return Ok(());
        }
        core.any(step, mask)
    }
}

/// A kernel parameter, the same for all lanes: at `offset`.
pub(super) struct LdParam32;

impl Body for LdParam32 {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        if inside([step.offset as u64; 2], 4, 4, 0, core.env.param_bytes) {
            let value = read32(core.env.params.as_ptr() as u64 + step.offset as u64);
            for i in 0..CHUNKS {
                core.files.set_chunk(step.d, i, mask, [value; CHUNK]);
            }
            return Ok(());
        }
        core.any(step, mask)
    }
}

pub(super) struct LdParam64;

impl Body for LdParam64 {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        if inside([step.offset as u64; 2], 8, 8, 0, core.env.param_bytes) {
            let value = super::memory::read64(core.env.params.as_ptr() as u64 + step.offset as u64);
            for i in 0..CHUNKS {
                core.files.set_chunk64(step.d, i, mask, [value; CHUNK]);
            }
            return Ok(());
        }
        core.any(step, mask)
    }
}

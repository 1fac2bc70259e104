//! Functions for accesses whose lanes have no regular pattern, for narrow loads, and for atomics in
//! shared memory: all lanes are checked at once, then accessed one by one.

use std::marker::PhantomData;

use crate::code::{Op, SINK};
use crate::interp::core::{Core, Stop};
use crate::interp::fast::arithmetic::Lane2;
use crate::interp::isa::Isa;
use crate::interp::step::{Body, Step};
use crate::words::{read8, read16, read32, read64, write32, write64};

/// Returns the addresses of all lanes in mapped memory, if all are aligned and within the range of
/// this instruction's last access.
#[inline(always)]
fn global_lanes<const SIZE: u64>(core: &Core<'_>, step: &Step) -> Option<[u64; 32]> {
    let (low, high) = core.cached_range(step.pc);
    let last = (high - low).checked_sub(SIZE)?;
    let row = core.files.row64(step.a);
    let (mut beyond, mut bits) = (0, 0);
    let mut at = [0; 32];
    for l in 0..32 {
        at[l] = row[l].wrapping_add(step.offset as u64);
        let offset = at[l].wrapping_sub(low);
        // The top bit is set if the offset is "negative" or past the last possible one: both are
        // far below 2^63.
        beyond |= offset | last.wrapping_sub(offset);
        bits |= at[l];
    }
    ((beyond | last) >> 63 == 0 && bits & (SIZE - 1) == 0).then_some(at)
}

/// Loads for lanes without a pattern.
#[inline(never)]
pub(in crate::interp) fn gather32(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
    match (mask, global_lanes::<4>(core, step)) {
        (u32::MAX, Some(at)) => {
            core.files.set32(step.d, mask, &at.map(read32));
            Ok(())
        }
        _ => core.any(step, mask),
    }
}

/// Stores for lanes without a pattern, in their order.
#[inline(never)]
pub(in crate::interp) fn scatter32(
    core: &mut Core<'_>,
    step: &Step,
    mask: u32,
) -> Result<(), Stop> {
    match (mask, global_lanes::<4>(core, step)) {
        (u32::MAX, Some(at)) => {
            let value = core.files.row32(step.d);
            for l in 0..32 {
                write32(at[l], value[l]);
            }
            Ok(())
        }
        _ => core.any(step, mask),
    }
}

#[inline(never)]
pub(in crate::interp) fn gather64(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
    match (mask, global_lanes::<8>(core, step)) {
        (u32::MAX, Some(at)) => {
            core.files.set64(step.d, mask, &at.map(read64));
            Ok(())
        }
        _ => core.any(step, mask),
    }
}

#[inline(never)]
pub(in crate::interp) fn scatter64(
    core: &mut Core<'_>,
    step: &Step,
    mask: u32,
) -> Result<(), Stop> {
    match (mask, global_lanes::<8>(core, step)) {
        (u32::MAX, Some(at)) => {
            let value = core.files.row64(step.d);
            for l in 0..32 {
                write64(at[l], value[l]);
            }
            Ok(())
        }
        _ => core.any(step, mask),
    }
}

/// Loads of fewer than 32 bits.
pub(in crate::interp) trait Narrow {
    const SIZE: u64;
    fn read(at: u64) -> u32;
}

macro_rules! narrow {
    ($($name:ident: $size:expr, |$at:ident| $e:expr;)*) => {$(
        pub(in crate::interp) struct $name;
        impl Narrow for $name {
            const SIZE: u64 = $size;
            #[inline(always)]
            fn read($at: u64) -> u32 {
                $e
            }
        }
    )*};
}

narrow! {
    Byte: 1, |at| read8(at).into();
    SignedByte: 1, |at| read8(at) as i8 as u32;
    Half: 2, |at| read16(at).into();
    SignedHalf: 2, |at| read16(at) as i16 as u32;
}

pub(in crate::interp) struct LdGlobalNarrow<N>(PhantomData<N>);

impl<N: Narrow> Body for LdGlobalNarrow<N> {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let at = match (mask, N::SIZE) {
            (u32::MAX, 1) => global_lanes::<1>(core, step),
            (u32::MAX, _) => global_lanes::<2>(core, step),
            _ => None,
        };
        let Some(at) = at else {
            return core.any(step, mask);
        };
        let mut value = [0; 32];
        for l in 0..32 {
            value[l] = N::read(at[l]);
        }
        core.files.set32(step.d, mask, &value);
        Ok(())
    }
}

/// An atomic in shared memory with operand `b`; `d` receives the old value. Only the block's own
/// thread accesses that memory.
pub(in crate::interp) struct AtomShared<L>(PhantomData<L>);

impl<L: Lane2> Body for AtomShared<L> {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let at = match mask {
            u32::MAX => shared_lanes(core, step),
            _ => None,
        };
        let Some(at) = at else {
            return atomic(core, step, mask);
        };
        let base = core.shared as u64;
        let with = core.files.row32(step.b);
        let mut before = [0; 32];
        // Lanes run in order: those with one address see each other's results, as on a GPU.
        for l in 0..32 {
            let at = base + u64::from(at[l]);
            before[l] = read32(at);
            write32(at, L::lane(before[l], with[l]));
        }
        if step.d != SINK {
            core.files.set32(step.d, mask, &before);
        }
        Ok(())
    }
}

#[inline(never)]
fn atomic(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
    core.pc = step.pc;
    let program = core.program;
    match program.code[step.pc as usize].op {
        Op::Atom {
            op,
            wide,
            list,
            ref mem,
        } => core.atomic(op, wide, list, mem, mask),
        _ => Ok(()),
    }
}

/// Returns the addresses of all lanes in shared memory, if none is outside or misaligned.
#[inline(always)]
pub(in crate::interp) fn shared_lanes(core: &Core<'_>, step: &Step) -> Option<[u32; 32]> {
    let offset = i32::try_from(step.offset).ok()?;
    // The row is subtracted from, not added to, so that nothing wraps back into bounds.
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

//! Steps that depend on each other, for straight code.
//!
//! - Accesses by one row of addresses check it once (`addresses::Addresses`). Straight code is
//!   entered only at its first instruction, except by a group that starts to run, which has checked
//!   nothing.
//! - Two loads of words and the sum with their product, as in matrix products, become one step;
//!   several such triples in a row do, too.

use crate::code::{Base, FloatFlags, MemSpace, Op, Program, Rounding, Row, Width};
use crate::interp::Features;
use crate::interp::addresses::{Pattern, SEEN};
use crate::interp::core::{Core, Stop};
use crate::interp::fast::memory::shared;
use crate::interp::isa::{HALF, Isa};
use crate::interp::step::{Body, Step, compiled};
use crate::interp::steps::select::is_aligned;
use crate::lanes::{CHUNK, CHUNKS, Chunk, Files};

/// Returns the steps of a program. `singles` has one step for each instruction.
pub(in crate::interp) fn fused(
    program: &Program,
    singles: &[Step],
    features: Features,
) -> Vec<Step> {
    let mut list = singles.to_vec();
    let mut from = 0;
    while let Some(step) = singles.get(from) {
        let end = step.end as usize;
        if end <= from {
            from += 1;
            continue;
        }
        remember(program, &mut list, from..end);
        let mut at = from;
        while at < end {
            let products = (at..end).step_by(3).take(PRODUCTS_MAX);
            let count = products
                .take_while(|&pc| pc + 3 <= end && is_product(program, pc))
                .count();
            if count > 0 {
                list[at].run = compiled::<Products>(features);
                list[at].skip = 3 * count as u16 * Step::BYTES;
            }
            at += list[at].span();
        }
        from = end;
    }
    list
}

/// Triples in one step, at most, so that its length fits.
const PRODUCTS_MAX: usize = (u16::MAX / Step::BYTES) as usize / 3;

/// A row of addresses, and the size of accesses by it.
type Known = (Row, Width, MemSpace);

/// Returns the row of an instruction's addresses, if its step can remember them.
fn addresses(op: &Op) -> Option<Known> {
    use MemSpace::{Generic, Global, Shared};
    let (Op::Ld { width, mem, .. } | Op::St { width, mem, .. }) = op else {
        return None;
    };
    if !is_aligned(mem, width.bytes().into()) {
        return None;
    }
    match (*width, mem.space, mem.base) {
        (Width::B32 | Width::B64, Generic | Global, Base::Row64(row)) => {
            Some((row, *width, Global))
        }
        (Width::B32, Shared, Base::Row32(row)) => Some((row, *width, Shared)),
        _ => None,
    }
}

/// Lets accesses of straight code share a check of their addresses.
fn remember(program: &Program, list: &mut [Step], code: std::ops::Range<usize>) {
    // Each row with its first access, which need not remember anything if it stays the only one.
    let mut known: [Option<(Known, usize)>; SEEN] = [None; SEEN];
    let mut next = 0;
    for pc in code {
        let op = &program.code[pc].op;
        if let Some(row) = addresses(op) {
            let place = known
                .iter()
                .position(|k| k.is_some_and(|(seen, _)| seen == row));
            if let Some((place, (_, first))) = place.and_then(|at| Some((at, known[at]?))) {
                list[first].c = place as Row;
                list[pc].c = place as Row;
                list[pc].b = 1 << place;
            } else {
                next = (next + 1) % SEEN;
                known[next] = Some((row, pc));
            }
        }
        for k in &mut known {
            if k.is_some_and(|((row, ..), _)| may_write(op, row)) {
                *k = None;
            }
        }
    }
}

/// Whether an instruction of straight code may write a row of this number, of 32 or 64 bits.
fn may_write(op: &Op, row: Row) -> bool {
    match *op {
        Op::St { .. } | Op::StVec { .. } | Op::Setp { .. } | Op::PredOp { .. } | Op::Nop => false,
        Op::Ld { d, .. }
        | Op::Bin32 { d, .. }
        | Op::Un32 { d, .. }
        | Op::Tern32 { d, .. }
        | Op::Lop3 { d, .. }
        | Op::BinF32 { d, .. }
        | Op::FmaF32 { d, .. }
        | Op::Bin64 { d, .. }
        | Op::Un64 { d, .. }
        | Op::Tern64 { d, .. }
        | Op::BinF64 { d, .. }
        | Op::FmaF64 { d, .. }
        | Op::Shift64 { d, .. }
        | Op::MulWide { d, .. }
        | Op::MadWide { d, .. }
        | Op::Cvt { d, .. }
        | Op::Sel32 { d, .. }
        | Op::Sel64 { d, .. }
        | Op::Special32 { d, .. } => d == row,
        _ => true,
    }
}

/// Whether two loads from shared memory, and the sum with their product, begin here.
fn is_product(program: &Program, pc: usize) -> bool {
    let loads = |op: &Op| match (addresses(op), op) {
        (Some((row, _, MemSpace::Shared)), Op::Ld { d, .. }) => Some((*d, row)),
        _ => None,
    };
    let [first, second, third] = [0, 1, 2].map(|i| &program.code[pc + i].op);
    let (Some((x, _)), Some((y, row))) = (loads(first), loads(second)) else {
        return false;
    };
    let Op::FmaF32 {
        rounding: Rounding::Nearest,
        flags: FloatFlags {
            ftz: false,
            sat: false,
        },
        a,
        b,
        ..
    } = *third
    else {
        return false;
    };
    x != y && x != row && ((a, b) == (x, y) || (a, b) == (y, x))
}

/// Sums with products of loads from shared memory: two loads and an fma each, one triple after the
/// other.
struct Products;

impl Body for Products {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let steps = core.env.steps;
        let at = step.pc as usize;
        let instructions = at..at + step.span();
        let (products, _) = steps.list[instructions.clone()].as_chunks::<3>();
        let (singles, _) = steps.singles[instructions].as_chunks::<3>();
        for ([first, second, fma], singles) in products.iter().zip(singles) {
            // Both are checked in any case, because later accesses may rely on the result.
            let both = match mask {
                u32::MAX => (shared::<I>(core, first), shared::<I>(core, second)),
                _ => (None, None),
            };
            if let (Some((x, x_pattern)), Some((y, y_pattern))) = both {
                let files = core.files;
                let rows = [first.d, second.d, fma.d, fma.c];
                // SAFETY: `shared` has checked both accesses; the body is compiled for this
                // instruction set.
                unsafe {
                    match (x_pattern, y_pattern) {
                        (Pattern::Same, Pattern::Same) => {
                            product::<I, false, false>(files, rows, x, y)
                        }
                        (Pattern::Same, _) => product::<I, false, true>(files, rows, x, y),
                        (_, Pattern::Same) => product::<I, true, false>(files, rows, x, y),
                        _ => product::<I, true, true>(files, rows, x, y),
                    }
                }
                continue;
            }
            for single in singles {
                // SAFETY: the steps are of the same program; the caller guarantees the host's
                // instruction set.
                unsafe { (single.run)(core, single, mask)? };
            }
        }
        Ok(())
    }
}

/// Loads `x` and `y`, each either neighbouring words or one word for each half of the warp, and
/// adds their product.
///
/// # Safety
/// The host must have this instruction set. `x` and `y` must point to words for both halves of a
/// warp: one per lane if spread, otherwise one per half.
#[inline(always)]
unsafe fn product<I: Isa, const X_SPREAD: bool, const Y_SPREAD: bool>(
    files: Files,
    [x_row, y_row, d, c]: [Row; 4],
    x: [u64; 2],
    y: [u64; 2],
) {
    for i in 0..CHUNKS {
        // SAFETY: the caller guarantees that the words are readable.
        let (x, y) = unsafe { (words::<X_SPREAD>(x, i), words::<Y_SPREAD>(y, i)) };
        files.set_chunk(x_row, i, u32::MAX, x);
        files.set_chunk(y_row, i, u32::MAX, y);
        // Read only now, because it may be one of these rows.
        let z = files.chunk(c, i);
        // SAFETY: the caller guarantees that the host has this instruction set.
        let sum = unsafe { I::fma(x, y, z) };
        files.set_chunk(d, i, u32::MAX, sum);
    }
}

/// Returns the words of chunk `i`.
///
/// # Safety
/// As for `product`.
#[inline(always)]
unsafe fn words<const SPREAD: bool>(halves: [u64; 2], i: usize) -> Chunk {
    const IN_HALF: usize = HALF / CHUNK;
    let half = halves[i / IN_HALF];
    // SAFETY: the caller guarantees that the words are readable.
    unsafe {
        match SPREAD {
            true => (half as *const Chunk).add(i % IN_HALF).read_unaligned(),
            false => [(half as *const u32).read(); CHUNK],
        }
    }
}

//! Shuffles by all lanes of a warp. Shuffles by some lanes, and by lanes not yet together, are in
//! [`crate::interp::collective`].

use crate::code::{Row, SINK, Shfl};
use crate::interp::collective::shuffle_source;
use crate::interp::core::{Core, Stop};
use crate::interp::isa::{HALF, Isa};
use crate::interp::step::{Body, Step};
use crate::lanes::{CHUNK, CHUNKS, Chunk, Files, write_chunks};

pub(in crate::interp) const UP: u8 = 0;
pub(in crate::interp) const DOWN: u8 = 1;
pub(in crate::interp) const BFLY: u8 = 2;
pub(in crate::interp) const IDX: u8 = 3;

/// Value of `c` if the whole warp is one segment, except for upward shuffles.
const WARP: u32 = 31;

/// A shuffle. `WHOLE` says that `c` makes the warp one segment. `offset` is the predicate that
/// tells which sources are in their segment.
pub(in crate::interp) struct Shuffle<const MODE: u8, const WHOLE: bool>;

impl<const MODE: u8, const WHOLE: bool> Body for Shuffle<MODE, WHOLE> {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let mode = match MODE {
            UP => Shfl::Up,
            DOWN => Shfl::Down,
            BFLY => Shfl::Bfly,
            _ => Shfl::Idx,
        };
        let files = core.files;
        if MODE == BFLY {
            let (b, c) = (files.row32(step.b), files.row32(step.c));
            // SAFETY: the body is compiled for this instruction set.
            let is_whole = WHOLE || unsafe { c[0] == WARP && is_uniform::<I>(c) };
            // SAFETY: the body is compiled for this instruction set.
            if is_whole && unsafe { is_uniform::<I>(b) } {
                if step.d != SINK {
                    // SAFETY: the body is compiled for this instruction set.
                    unsafe { butterfly::<I>(files, step.d, step.a, b[0], mask) };
                }
                files.set_pred(step.offset as u16, mask, u32::MAX);
                return Ok(());
            }
        }
        let mut sources = [0; 32];
        let mut valid = 0;
        for i in 0..CHUNKS {
            let b = files.chunk(step.b, i);
            let c = match (WHOLE, MODE) {
                (false, _) => files.chunk(step.c, i),
                (true, UP) => [0; CHUNK],
                (true, _) => [WARP; CHUNK],
            };
            let mut inside: Chunk = [0; CHUNK];
            for l in 0..CHUNK {
                let lane = i * CHUNK + l;
                let (source, is_inside) = shuffle_source(mode, lane, b[l], c[l]);
                sources[lane] = source;
                inside[l] = if is_inside { u32::MAX } else { 0 };
            }
            // SAFETY: the body is compiled for this instruction set.
            valid |= unsafe { I::bits32(inside) } << (i * CHUNK);
        }
        if step.d != SINK {
            // SAFETY: the body is compiled for this instruction set.
            let value = unsafe { I::permute32(files.row32(step.a), &sources) };
            files.set32(step.d, mask, &value);
        }
        files.set_pred(step.offset as u16, mask, valid);
        Ok(())
    }
}

/// Whether all lanes of a row equal the first.
///
/// # Safety
/// The host must have this instruction set.
#[inline(always)]
unsafe fn is_uniform<I: Isa>(row: &[u32; 32]) -> bool {
    // SAFETY: the caller guarantees that the host has the instruction set.
    row[0] == row[HALF] && unsafe { I::follows32::<0>(row) }
}

/// Shuffles all 32 lanes as a butterfly by one number: chunks are exchanged, and lanes within them.
/// All sources are in the segment.
///
/// # Safety
/// The host must have this instruction set.
#[inline(always)]
unsafe fn butterfly<I: Isa>(files: Files, d: Row, a: Row, by: u32, mask: u32) {
    let chunks = by as usize / CHUNK % CHUNKS;
    let mut sources: Chunk = [0; CHUNK];
    for l in 0..CHUNK {
        sources[l] = l as u32 ^ by % CHUNK as u32;
    }
    // All are read before any is written, because `d` may be `a`.
    let mut out = [[0; CHUNK]; CHUNKS];
    for i in 0..CHUNKS {
        // SAFETY: the caller guarantees that the host has the instruction set.
        out[i] = unsafe { I::permute8(files.chunk(a, i ^ chunks), sources) };
    }
    write_chunks!(files, d, mask, |i| out[i]);
}

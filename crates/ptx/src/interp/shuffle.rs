//! Shuffles by all lanes of a warp: by others, and before lanes have waited for each other, [`super::collective`].

use super::collective::shuffle_source;
use super::core::{Core, Stop};
use super::isa::Isa;
use super::lanes::{CHUNK, CHUNKS, Chunk};
use super::step::{Body, Step};
use crate::code::{SINK, Shfl};

pub(super) const UP: u8 = 0;
pub(super) const DOWN: u8 = 1;
pub(super) const BFLY: u8 = 2;
pub(super) const IDX: u8 = 3;

/// `WHOLE`: what `c` says is that the warp is one segment. `offset` is the predicate that tells which sources are in their segments.
pub(super) struct Shuffle<const MODE: u8, const WHOLE: bool>;

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
        let mut sources = [0; 32];
        let mut valid = 0;
        for i in 0..CHUNKS {
            let b = files.chunk(step.b, i);
            let c = match (WHOLE, MODE) {
                (false, _) => files.chunk(step.c, i),
                (true, UP) => [0; CHUNK],
                (true, _) => [31; CHUNK],
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
            // SAFETY: as above.
            let value = unsafe { I::permute32(files.row32(step.a), &sources) };
            files.set32(step.d, mask, &value);
        }
        files.set_pred(step.offset as u16, mask, valid);
        Ok(())
    }
}

//! Instructions that the lanes of a warp execute together: shuffles, votes, matches, reductions.
//! All members are present, because the scheduler has waited for them.

use crate::code::{Pred, Redux, Row, SINK, SINK_PRED, Shfl, Vote};
use crate::interp::core::Core;
use crate::lanes::lanes;

/// Returns the source lane of a lane's shuffle, and whether it is in the lane's segment; otherwise
/// the lane keeps its own value.
///
/// PTX ISA 9.7.9.6: `c` packs the segment mask (bits 8-12) and the clamp (bits 0-4).
#[inline(always)]
pub(in crate::interp) fn shuffle_source(mode: Shfl, lane: usize, b: u32, c: u32) -> (u32, bool) {
    let (i, bval) = (lane as i32, (b & 31) as i32);
    let (segment, clamp) = ((c >> 8 & 31) as i32, (c & 31) as i32);
    let max = (i & segment) | (clamp & !segment);
    let min = i & segment;
    let (source, inside) = match mode {
        Shfl::Up => (i - bval, i - bval >= max),
        Shfl::Down => (i + bval, i + bval <= max),
        Shfl::Bfly => (i ^ bval, (i ^ bval) <= max),
        Shfl::Idx => (min | (bval & !segment), min | (bval & !segment) <= max),
    };
    let source = if inside { source } else { i };
    ((source & 31) as u32, inside)
}

impl Core<'_> {
    #[inline(never)]
    pub(crate) fn shfl(&mut self, mode: Shfl, d: Row, p: Pred, a: Row, list: u32, mask: u32) {
        let [b, c, _] = [0, 1, 2].map(|i| self.program.rows[list as usize + i]);
        let (a, b, c) = (
            self.files.get32(a),
            self.files.get32(b),
            self.files.get32(c),
        );
        let mut value = a;
        let mut valid = 0u32;
        for lane in lanes(mask) {
            let (source, inside) = shuffle_source(mode, lane, b[lane], c[lane]);
            value[lane] = a[source as usize & 31];
            valid |= u32::from(inside) << lane;
        }
        if d != SINK {
            self.files.set32(d, mask, &value);
        }
        self.files.set_pred(p, mask, valid);
    }

    #[inline(never)]
    pub(crate) fn vote(
        &mut self,
        mode: Vote,
        d: Row,
        pd: Pred,
        value: u32,
        members: u32,
        mask: u32,
    ) {
        let value = value & members;
        if mode == Vote::Ballot {
            return self.files.set32(d, mask, &[value; 32]);
        }
        let result = match mode {
            Vote::All => value == members,
            Vote::Any => value != 0,
            _ => value == members || value == 0,
        };
        if pd != SINK_PRED {
            self.files
                .set_pred(pd, mask, if result { u32::MAX } else { 0 });
        }
    }

    #[inline(never)]
    pub(crate) fn match_any(&mut self, d: Row, value: &[u64; 32], members: u32, mask: u32) {
        let mut out = [0; 32];
        for lane in lanes(mask) {
            out[lane] = lanes(members)
                .filter(|&l| value[l] == value[lane])
                .fold(0, |m, l| m | 1 << l);
        }
        self.files.set32(d, mask, &out);
    }

    #[inline(never)]
    pub(crate) fn match_all(
        &mut self,
        dests: (Row, Pred),
        value: &[u64; 32],
        members: u32,
        mask: u32,
    ) {
        let first = value[(members.trailing_zeros() & 31) as usize];
        let all = lanes(members).all(|l| value[l] == first);
        self.files
            .set32(dests.0, mask, &[if all { members } else { 0 }; 32]);
        self.files
            .set_pred(dests.1, mask, if all { u32::MAX } else { 0 });
    }

    pub(crate) fn values(&self, wide: bool, a: Row) -> [u64; 32] {
        if wide {
            self.files.get64(a)
        } else {
            self.files.get32(a).map(u64::from)
        }
    }

    #[inline(never)]
    pub(crate) fn redux(&mut self, op: Redux, d: Row, value: &[u32; 32], members: u32, mask: u32) {
        let combine = |x: u32, y: u32| match op {
            Redux::Add => x.wrapping_add(y),
            Redux::MinS => (x as i32).min(y as i32) as u32,
            Redux::MinU => x.min(y),
            Redux::MaxS => (x as i32).max(y as i32) as u32,
            Redux::MaxU => x.max(y),
            Redux::And => x & y,
            Redux::Or => x | y,
            Redux::Xor => x ^ y,
        };
        let result = lanes(members)
            .map(|l| value[l])
            .reduce(combine)
            .unwrap_or(0);
        self.files.set32(d, mask, &[result; 32]);
    }
}

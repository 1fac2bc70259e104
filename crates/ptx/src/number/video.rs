//! Video instructions, as in the ISA's pseudocode.

use crate::code::{BitField, Cmp, SINK, Video, VideoInstruction, VideoMad, VideoOp, VideoThen};
use crate::lanes::Files;

impl Files {
    #[inline(never)]
    pub(crate) fn video(&self, instruction: &VideoInstruction, mask: u32) {
        match instruction {
            VideoInstruction::Plain(video) => {
                let (a, b) = (self.get32(video.a), self.get32(video.b));
                let c = if video.c == SINK {
                    [0; 32]
                } else {
                    self.get32(video.c)
                };
                self.each32(video.d, mask, |l| plain(video, a[l], b[l], c[l]));
            }
            VideoInstruction::Mad(mad) => {
                let (a, b, c) = (self.get32(mad.a), self.get32(mad.b), self.get32(mad.c));
                self.each32(mad.d, mask, |l| multiply_add(mad, a[l], b[l], c[l]));
            }
        }
    }
}

/// Returns a part of a register, sign- or zero-extended.
fn select(value: u64, part: BitField, signed: bool) -> i64 {
    let shift = 64 - u32::from(part.bits);
    let top = value >> part.first << shift;
    if signed {
        top as i64 >> shift
    } else {
        (top >> shift) as i64
    }
}

fn clamp(value: i64, bits: u32, signed: bool) -> i64 {
    let span = 1i64 << bits;
    if signed {
        value.clamp(-span / 2, span / 2 - 1)
    } else {
        value.clamp(0, span - 1)
    }
}

fn plain(video: &Video, a: u32, b: u32, c: u32) -> u32 {
    let [d_signed, a_signed, b_signed] = video.signed;
    let both = u64::from(b) << 32 | u64::from(a);
    let mut merged = c;
    let mut accumulated = c;
    for i in 0..usize::from(video.results) {
        let Some(to) = video.d_parts[i] else {
            continue;
        };
        let x = select(both, video.a_parts[i], a_signed);
        let y = select(both, video.b_parts[i], b_signed);
        let mut value = operate(video.op, x, y);
        if video.saturate {
            value = clamp(value, to.bits.into(), d_signed);
        }
        let field = (u64::MAX >> (64 - to.bits)) as u32;
        merged = merged & !(field << to.first) | (value as u32 & field) << to.first;
        accumulated = match video.then {
            VideoThen::Merge => continue,
            VideoThen::Add => accumulated.wrapping_add(value as u32),
            VideoThen::Min | VideoThen::Max => {
                // Compared as 32-bit numbers of the result's type.
                let (x, y) = (value as u32, c);
                let less = if d_signed {
                    (x as i32) < y as i32
                } else {
                    x < y
                };
                if less == (video.then == VideoThen::Min) {
                    x
                } else {
                    y
                }
            }
        };
    }
    if video.then == VideoThen::Merge {
        merged
    } else {
        accumulated
    }
}

fn operate(op: VideoOp, x: i64, y: i64) -> i64 {
    match op {
        VideoOp::Add => x + y,
        VideoOp::Sub => x - y,
        VideoOp::AbsDiff => (x - y).abs(),
        VideoOp::Min => x.min(y),
        VideoOp::Max => x.max(y),
        VideoOp::Average => x + y + i64::from(x + y >= 0) >> 1,
        VideoOp::Shl { wrap } => x << count(y, wrap),
        VideoOp::Shr { wrap } => x >> count(y, wrap),
        VideoOp::Set(cmp) => i64::from(match cmp {
            Cmp::Eq => x == y,
            Cmp::Ne => x != y,
            Cmp::Lt => x < y,
            Cmp::Le => x <= y,
            Cmp::Gt => x > y,
            _ => x >= y,
        }),
    }
}

/// Returns a shift count: clamped to 32, or its lowest five bits. Counts are unsigned.
fn count(y: i64, wrap: bool) -> i64 {
    if wrap { y & 31 } else { y.min(32) }
}

fn multiply_add(mad: &VideoMad, a: u32, b: u32, c: u32) -> u32 {
    let [a_signed, b_signed] = mad.signed;
    let signed = a_signed || b_signed || mad.negate_product || mad.negate_c;
    let x = i128::from(select(a.into(), mad.a_part, a_signed));
    let y = i128::from(select(b.into(), mad.b_part, b_signed));
    let mut product = x * y;
    let mut c = c;
    let one = if mad.plus_one {
        1
    } else if mad.negate_product {
        product = !product;
        1
    } else if mad.negate_c {
        c = !c;
        1
    } else {
        0
    };
    let c = if signed {
        i128::from(c as i32)
    } else {
        i128::from(c)
    };
    let result = product + c + one >> mad.shift;
    if !mad.saturate {
        return result as u32;
    }
    let (low, high) = if signed {
        (i128::from(i32::MIN), i128::from(i32::MAX))
    } else {
        (0, i128::from(u32::MAX))
    };
    result.clamp(low, high) as u32
}

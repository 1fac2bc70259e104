//! Video instructions (PTX ISA 9.7.16): `vadd` to `vset4`, `vmad`.

use super::function::Lowering;
use super::insn::Insn;
use crate::code::{
    BitField, Cmp, Op, Row, SINK, Video, VideoInstruction, VideoMad, VideoOp, VideoThen,
};
use crate::error::Error;
use crate::parse::ast::{Operand, Type};

/// Whether the name is one of a video instruction.
pub(super) fn is_video(name: &str) -> bool {
    matches!(
        name.trim_end_matches(['2', '4']),
        "vadd" | "vsub" | "vabsdiff" | "vmin" | "vmax" | "vshl" | "vshr" | "vset" | "vavrg"
    ) || name == "vmad"
}

/// Parses `h10` or `b7654`: parts of `b:a`, the last one named first.
fn selection(text: &str, count: usize) -> Option<[BitField; 4]> {
    let (bits, digits) = match (text.strip_prefix('h'), text.strip_prefix('b')) {
        (Some(digits), _) => (16, digits),
        (_, Some(digits)) => (8, digits),
        _ => return None,
    };
    if digits.len() != count || (count > 1 && usize::from(bits) * count != 32) {
        return None;
    }
    let registers = if count == 1 { 1 } else { 2 };
    let mut parts = [BitField::WORD; 4];
    for (part, digit) in parts.iter_mut().zip(digits.bytes().rev()) {
        let index = digit.checked_sub(b'0')?;
        if index >= registers * (32 / bits) {
            return None;
        }
        *part = BitField {
            first: index * bits,
            bits,
        };
    }
    Some(parts)
}

impl<'a> Lowering<'_, '_, 'a> {
    pub(super) fn video(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        let instruction = if insn.name == "vmad" {
            self.video_mad(insn)?
        } else {
            self.video_plain(insn)?
        };
        let videos = &mut self.context.program.videos;
        let index = videos.len() as u32;
        videos.push(instruction);
        self.emit(Op::Video { index })
    }

    fn video_signed(&self, insn: &mut Insn<'_, 'a>) -> Result<bool, Error> {
        match insn.mods.ty() {
            Some(Type::S32) => Ok(true),
            Some(Type::U32) => Ok(false),
            _ => Err(self.unsupported("this type")),
        }
    }

    fn video_plain(&mut self, insn: &mut Insn<'_, 'a>) -> Result<VideoInstruction, Error> {
        let base = insn.name.trim_end_matches(['2', '4']);
        let results = match insn.name.len() - base.len() {
            0 => 1,
            _ if insn.name.ends_with('2') => 2,
            _ => 4,
        };
        let comparison = base == "vset";
        let result_signed = !comparison && self.video_signed(insn)?;
        let signed = [
            result_signed,
            self.video_signed(insn)?,
            self.video_signed(insn)?,
        ];
        let saturate = insn.mods.take("sat");
        let op = self.video_operation(insn, base, results, signed[2])?;
        let then = match insn.mods.take_any(&["add", "min", "max"]) {
            None => VideoThen::Merge,
            Some("add") => VideoThen::Add,
            Some("min") if results == 1 => VideoThen::Min,
            Some("max") if results == 1 => VideoThen::Max,
            Some(_) => return Err(self.unsupported("this form")),
        };
        if saturate && (comparison || results > 1 && then != VideoThen::Merge) {
            return Err(self.unsupported("`.sat` here"));
        }
        let (d, d_parts) = self.video_dest(&insn.ops[..1], results)?;
        let merges = d_parts[0].is_none_or(|p| p.bits < 32);
        let with_c = results > 1 || then != VideoThen::Merge || merges;
        self.arity(insn, &[if with_c { 4 } else { 3 }])?;
        if results == 1 && merges && then != VideoThen::Merge {
            return Err(self.unsupported("two things done to the result"));
        }
        let (a, a_parts) = self.video_source(&insn.ops[1], results, 0)?;
        let (b, b_parts) = self.video_source(&insn.ops[2], results, 32)?;
        let c = match insn.ops.get(3) {
            Some(operand) => self.src32(operand, Type::B32)?,
            None => SINK,
        };
        Ok(VideoInstruction::Plain(Video {
            op,
            results: results as u8,
            signed,
            saturate,
            then,
            a_parts,
            b_parts,
            d_parts,
            d,
            a,
            b,
            c,
        }))
    }

    fn video_operation(
        &self,
        insn: &mut Insn<'_, 'a>,
        base: &str,
        results: usize,
        b_signed: bool,
    ) -> Result<VideoOp, Error> {
        Ok(match base {
            "vadd" => VideoOp::Add,
            "vsub" => VideoOp::Sub,
            "vabsdiff" => VideoOp::AbsDiff,
            "vmin" => VideoOp::Min,
            "vmax" => VideoOp::Max,
            "vavrg" if results > 1 => VideoOp::Average,
            "vshl" | "vshr" if results == 1 && !b_signed => {
                let wrap = match insn.mods.take_any(&["clamp", "wrap"]) {
                    Some(mode) => mode == "wrap",
                    None => return Err(self.unsupported("no .clamp or .wrap")),
                };
                if base == "vshl" {
                    VideoOp::Shl { wrap }
                } else {
                    VideoOp::Shr { wrap }
                }
            }
            "vset" => {
                let cmp = insn.mods.take_map(|part| {
                    Some(match part {
                        "eq" => Cmp::Eq,
                        "ne" => Cmp::Ne,
                        "lt" => Cmp::Lt,
                        "le" => Cmp::Le,
                        "gt" => Cmp::Gt,
                        "ge" => Cmp::Ge,
                        _ => return None,
                    })
                });
                VideoOp::Set(cmp.ok_or_else(|| self.unsupported("no comparison"))?)
            }
            _ => return Err(self.unsupported("this form")),
        })
    }

    /// Splits `%r1.b3` into the register and its selector.
    fn without_selector(operand: &Operand<'a>) -> (Operand<'a>, Option<&'a str>) {
        if let Operand::Name(name) = *operand
            && let Some((register, selector)) = name.rsplit_once('.')
            && selector.starts_with(['b', 'h'])
        {
            return (Operand::Name(register), Some(selector));
        }
        (operand.clone(), None)
    }

    fn video_source(
        &mut self,
        operand: &Operand<'a>,
        results: usize,
        first: u8,
    ) -> Result<(Row, [BitField; 4]), Error> {
        let (register, selector) = Self::without_selector(operand);
        let row = self.src32(&register, Type::B32)?;
        // Several parts are numbered in `b:a`, a single one in its own register.
        let mut parts = match selector {
            Some(text) => {
                selection(text, results).ok_or_else(|| self.unsupported("this selector"))?
            }
            None => {
                let bits = 32 / results as u8;
                std::array::from_fn(|i| BitField {
                    first: first + i as u8 % results as u8 * bits,
                    bits,
                })
            }
        };
        if results == 1 && selector.is_some() {
            parts[0].first += first;
        }
        Ok((row, parts))
    }

    fn video_dest(
        &mut self,
        operand: &[Operand<'a>],
        results: usize,
    ) -> Result<(Row, [Option<BitField>; 4]), Error> {
        let Some(operand) = operand.first() else {
            return Err(self.invalid("expected a destination"));
        };
        let (register, selector) = Self::without_selector(operand);
        let row = self.dst(&register, Type::B32)?;
        let bits = 32 / results as u8;
        let mut parts = [None; 4];
        match selector {
            Some(text) if results == 1 => {
                let part = selection(text, 1).ok_or_else(|| self.unsupported("this selector"))?;
                parts[0] = Some(part[0]);
            }
            Some(text) => {
                let kind = if results == 2 { 'h' } else { 'b' };
                let digits = text.strip_prefix(kind).unwrap_or_default();
                let descending = digits.as_bytes().windows(2).all(|d| d[0] > d[1]);
                if digits.is_empty() || !descending {
                    return Err(self.unsupported("this mask"));
                }
                for digit in digits.bytes() {
                    let index = usize::from(digit.wrapping_sub(b'0'));
                    if index >= results {
                        return Err(self.unsupported("this mask"));
                    }
                    parts[index] = Some(BitField {
                        first: index as u8 * bits,
                        bits,
                    });
                }
            }
            None => {
                for (index, part) in parts.iter_mut().enumerate().take(results) {
                    *part = Some(BitField {
                        first: index as u8 * bits,
                        bits,
                    });
                }
            }
        }
        Ok((row, parts))
    }

    fn video_mad(&mut self, insn: &mut Insn<'_, 'a>) -> Result<VideoInstruction, Error> {
        self.arity(insn, &[4])?;
        // Only the sources and their signs decide how the result is computed; its type changes
        // nothing.
        self.video_signed(insn)?;
        let signed = [self.video_signed(insn)?, self.video_signed(insn)?];
        let plus_one = insn.mods.take("po");
        let saturate = insn.mods.take("sat");
        let shift = match insn.mods.take_any(&["shr7", "shr15"]) {
            None => 0,
            Some("shr7") => 7,
            Some(_) => 15,
        };
        let mut negated = [false; 3];
        let mut sources = Vec::with_capacity(3);
        for (operand, negated) in insn.ops[1..].iter().zip(&mut negated) {
            sources.push(match *operand {
                Operand::Minus(name) => {
                    *negated = true;
                    Operand::Name(name)
                }
                ref other => other.clone(),
            });
        }
        let negate_product = negated[0] != negated[1];
        let negate_c = negated[2];
        if plus_one && (negate_product || negate_c) || negate_product && negate_c {
            return Err(self.unsupported("these negations together"));
        }
        let (a, a_parts) = self.video_source(&sources[0], 1, 0)?;
        let (b, b_parts) = self.video_source(&sources[1], 1, 0)?;
        let c = self.src32(&sources[2], Type::B32)?;
        let d = self.dst(&insn.ops[0], Type::B32)?;
        Ok(VideoInstruction::Mad(VideoMad {
            signed,
            saturate,
            plus_one,
            negate_product,
            negate_c,
            shift,
            a_part: a_parts[0],
            b_part: b_parts[0],
            d,
            a,
            b,
            c,
        }))
    }
}

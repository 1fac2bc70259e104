//! Barriers and the communication of a warp's lanes (PTX ISA 9.7.13).

use super::function::Lowering;
use super::insn::Insn;
use super::operand::Fit;
use crate::code::{BarKind, Op, Pred, Redux, Row, SINK, SINK_PRED, Shfl, Vote};
use crate::error::Error;
use crate::parse::ast::{Operand, Type};

impl<'a> Lowering<'_, '_, 'a> {
    pub(super) fn barrier(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        insn.mods.take("cta");
        insn.mods.take("aligned");
        if insn.mods.take("warp") {
            if !insn.mods.take("sync") {
                return Err(self.unsupported("this form"));
            }
            self.arity(insn, &[1])?;
            let mask = self.src32(&insn.ops[0], Type::B32)?;
            return self.emit(Op::WarpSync { mask });
        }
        let Some(form) = insn.mods.take_any(&["sync", "arrive", "red"]) else {
            return Err(self.unsupported("this form"));
        };
        if form != "red" {
            self.arity(insn, &[1, 2])?;
            let kind = if form == "sync" {
                BarKind::Sync
            } else {
                BarKind::Arrive
            };
            let (id, count) = self.barrier_operands(insn.ops)?;
            if kind == BarKind::Arrive && count == SINK {
                return Err(self.invalid("expected a thread count"));
            }
            return self.emit(Op::Bar {
                kind,
                id,
                count,
                pred: SINK_PRED,
                negated: false,
                d: SINK,
            });
        }
        self.arity(insn, &[3, 4])?;
        let kind = match insn.mods.take_any(&["popc", "and", "or"]) {
            Some("popc") => BarKind::RedPopc,
            Some("and") => BarKind::RedAnd,
            Some(_) => BarKind::RedOr,
            None => return Err(self.unsupported("this reduction")),
        };
        let ty = self.need_type(insn)?;
        let d: Row = if kind == BarKind::RedPopc {
            self.dst(&insn.ops[0], ty)?
        } else {
            self.pred_dest(&insn.ops[0])?.into()
        };
        let last = insn.ops.len() - 1;
        let (id, count) = self.barrier_operands(&insn.ops[1..last])?;
        let (pred, negated) = self.pred(&insn.ops[last])?;
        self.emit(Op::Bar {
            kind,
            id,
            count,
            pred,
            negated,
            d,
        })
    }

    fn barrier_operands(&mut self, ops: &[Operand<'a>]) -> Result<(Row, Row), Error> {
        let id = self.src32(&ops[0], Type::U32)?;
        let count = match ops.get(1) {
            Some(operand) => self.src32(operand, Type::U32)?,
            None => SINK,
        };
        Ok((id, count))
    }

    fn need_sync(&self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        if insn.mods.take("sync") {
            Ok(())
        } else {
            Err(self.unsupported("the form without .sync, gone since sm_70"))
        }
    }

    /// Parses `d|p`: a row and perhaps a predicate.
    fn row_and_pred(&mut self, operand: &Operand<'a>, ty: Type) -> Result<(Row, Pred), Error> {
        match *operand {
            Operand::Pair(d, p) => {
                let (row, _) = self.dest(&Operand::Name(d), ty, Fit::Exact)?;
                Ok((row, self.pred_dest(&Operand::Name(p))?))
            }
            ref other => Ok((self.dest(other, ty, Fit::Exact)?.0, SINK_PRED)),
        }
    }

    /// Takes `.sync` if present. Texts for architectures before sm_70 may omit it.
    fn may_sync(&self, insn: &mut Insn<'_, 'a>) -> Result<bool, Error> {
        match insn.mods.take("sync") {
            false if self.target >= 70 => {
                Err(self.unsupported("the form without .sync, gone since sm_70"))
            }
            sync => Ok(sync),
        }
    }

    /// Returns the lanes that take part: without an operand, those that execute the instruction
    /// together.
    fn member_mask(&mut self, operand: Option<&Operand<'a>>) -> Result<Row, Error> {
        if let Some(operand) = operand {
            return self.src32(operand, Type::B32);
        }
        let d = self.temp32()?;
        self.emit(Op::ActiveMask { d })?;
        Ok(d)
    }

    pub(super) fn shfl(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        let sync = self.may_sync(insn)?;
        self.arity(insn, &[if sync { 5 } else { 4 }])?;
        let mode = match insn.mods.take_any(&["up", "down", "bfly", "idx"]) {
            Some("up") => Shfl::Up,
            Some("down") => Shfl::Down,
            Some("bfly") => Shfl::Bfly,
            Some(_) => Shfl::Idx,
            None => return Err(self.unsupported("this mode")),
        };
        let ty = self.need_type(insn)?;
        let (d, p) = self.row_and_pred(&insn.ops[0], ty)?;
        let (a, b) = (
            self.src32(&insn.ops[1], ty)?,
            self.src32(&insn.ops[2], Type::U32)?,
        );
        let c = self.src32(&insn.ops[3], Type::U32)?;
        let mask = self.member_mask(insn.ops.get(4))?;
        let list = self.rows(&[b, c, mask]);
        self.emit(Op::Shfl {
            mode,
            d,
            p,
            a,
            list,
        })
    }

    pub(super) fn vote(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        let sync = self.may_sync(insn)?;
        self.arity(insn, &[if sync { 3 } else { 2 }])?;
        let mode = match insn.mods.take_any(&["all", "any", "uni", "ballot"]) {
            Some("all") => Vote::All,
            Some("any") => Vote::Any,
            Some("uni") => Vote::Uni,
            Some(_) => Vote::Ballot,
            None => return Err(self.unsupported("this mode")),
        };
        let ty = self.need_type(insn)?;
        let (d, pd) = if mode == Vote::Ballot {
            (self.dst(&insn.ops[0], ty)?, SINK_PRED)
        } else {
            (SINK, self.pred_dest(&insn.ops[0])?)
        };
        let (pred, negated) = self.pred(&insn.ops[1])?;
        let mask = self.member_mask(insn.ops.get(2))?;
        self.emit(Op::Vote {
            mode,
            d,
            pd,
            pred,
            negated,
            mask,
        })
    }

    pub(super) fn match_sync(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        self.need_sync(insn)?;
        self.arity(insn, &[3])?;
        let all = insn.mods.take("all");
        if !all && !insn.mods.take("any") {
            return Err(self.unsupported("this mode"));
        }
        let ty = self.need_type(insn)?;
        let (d, p) = self.row_and_pred(&insn.ops[0], Type::B32)?;
        let d = if d == SINK { self.temp32()? } else { d };
        let a = self.src(&insn.ops[1], ty)?;
        let mask = self.src32(&insn.ops[2], Type::B32)?;
        let wide = ty.bytes() == 8;
        self.emit(if all {
            Op::MatchAll {
                wide,
                d,
                p,
                a,
                mask,
            }
        } else {
            Op::MatchAny { wide, d, a, mask }
        })
    }

    pub(super) fn redux(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        self.need_sync(insn)?;
        self.arity(insn, &[3])?;
        let name = insn
            .mods
            .take_any(&["add", "min", "max", "and", "or", "xor"]);
        let ty = self.need_type(insn)?;
        let op = match (name, ty) {
            (Some("add"), Type::U32 | Type::S32) => Redux::Add,
            (Some("min"), Type::S32) => Redux::MinS,
            (Some("min"), Type::U32) => Redux::MinU,
            (Some("max"), Type::S32) => Redux::MaxS,
            (Some("max"), Type::U32) => Redux::MaxU,
            (Some("and"), Type::B32) => Redux::And,
            (Some("or"), Type::B32) => Redux::Or,
            (Some("xor"), Type::B32) => Redux::Xor,
            _ => return Err(self.unsupported("this reduction")),
        };
        let (a, d) = (self.src32(&insn.ops[1], ty)?, self.dst(&insn.ops[0], ty)?);
        let mask = self.src32(&insn.ops[2], Type::B32)?;
        self.emit(Op::Redux { op, d, a, mask })
    }

    pub(super) fn activemask(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        self.arity(insn, &[1])?;
        let ty = self.need_type(insn)?;
        let d = self.dst(&insn.ops[0], ty)?;
        self.emit(Op::ActiveMask { d })
    }
}

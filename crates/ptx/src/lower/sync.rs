//! Barriers in shared memory and cache policies (PTX ISA 9.7.9.18, 9.7.13.15).

use super::function::Lowering;
use super::insn::Insn;
use crate::code::mbarrier::COUNT_MASK;
use crate::code::{Bin64, Mbarrier, MemSpace, Narrow, Op, Row, SINK, SINK_PRED, Un64};
use crate::error::Error;
use crate::parse::ast::Type;

/// The result of `createpolicy`. Nothing here uses a policy.
const POLICY: u64 = 0x14f0_0000_0000_0000;

impl<'a> Lowering<'_, '_, 'a> {
    pub(super) fn mbarrier(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        let Some(form) = insn.mods.take_first() else {
            return Err(self.unsupported("this form"));
        };
        let parity = insn.mods.take("parity");
        let no_complete = insn.mods.take("noComplete");
        // In the forms of sm_80 the order is within the block, whose threads take turns on one host
        // thread.
        let ordered = insn.mods.take_any(&["release", "acquire"]).is_some();
        if insn.mods.take("cta") != ordered {
            return Err(self.unsupported("this scope"));
        }
        let space = insn.mods.take_any(&["shared", "shared::cta"]);
        let space = space.map(|_| MemSpace::Shared);
        if !insn.mods.take("b64") {
            return Err(self.unsupported("this type"));
        }
        let op = match (form, parity, no_complete) {
            ("init", false, false) => Mbarrier::Init,
            ("inval", false, false) => Mbarrier::Invalidate,
            ("arrive", false, _) => Mbarrier::Arrive,
            ("arrive_drop", false, _) => Mbarrier::ArriveDrop,
            ("test_wait", false, false) => Mbarrier::TestWait,
            ("test_wait", true, false) => Mbarrier::TestParity,
            ("pending_count", false, false) => return self.pending_count(insn),
            _ => return Err(self.unsupported("this form, newer than sm_80")),
        };
        let counts = matches!(op, Mbarrier::Arrive | Mbarrier::ArriveDrop) && insn.ops.len() > 2;
        if insn.mods.rest().is_some() || counts && !no_complete {
            return Err(self.unsupported("this form, newer than sm_80"));
        }
        let (mut d, mut p, mut value) = (SINK, SINK_PRED, self.const32(1));
        let mut wide = SINK;
        let address = match op {
            Mbarrier::Init => {
                self.arity(insn, &[2])?;
                value = self.src32(&insn.ops[1], Type::U32)?;
                0
            }
            Mbarrier::Invalidate => {
                self.arity(insn, &[1])?;
                0
            }
            Mbarrier::Arrive | Mbarrier::ArriveDrop => {
                self.arity(insn, &[if no_complete { 3 } else { 2 }])?;
                d = self.dst(&insn.ops[0], Type::B64)?;
                if no_complete {
                    value = self.src32(&insn.ops[2], Type::U32)?;
                }
                1
            }
            Mbarrier::TestWait | Mbarrier::TestParity => {
                self.arity(insn, &[3])?;
                p = self.pred_dest(&insn.ops[0])?;
                if parity {
                    value = self.src32(&insn.ops[2], Type::U32)?;
                } else {
                    wide = self.src64(&insn.ops[2], Type::B64)?;
                }
                1
            }
        };
        let mem = self.mem(&insn.ops[address], space)?;
        let list = self.rows(&[d, value, wide, p.into()]);
        self.emit(Op::Mbarrier { op, list, mem })
    }

    fn pending_count(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        self.arity(insn, &[2])?;
        let a = self.src64(&insn.ops[1], Type::B64)?;
        let d = self.dst(&insn.ops[0], Type::B32)?;
        let (b, t): (Row, Row) = (self.const64(COUNT_MASK), self.temp64()?);
        self.emit(Op::Bin64 {
            op: Bin64::And,
            d: t,
            a,
            b,
        })?;
        self.emit(Op::Narrow {
            op: Narrow::Low,
            d,
            a: t,
        })
    }

    /// Lowers `cp.async.mbarrier.arrive`: copies are done when they are issued, so it is an arrival
    /// at once. Without `.noinc` the barrier does not expect this arrival, so it is added to the
    /// pending count first.
    pub(super) fn arrive_after_copies(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        self.arity(insn, &[1])?;
        let ours = insn.mods.take("noinc");
        let space = insn.mods.take_any(&["shared", "shared::cta"]);
        let space = space.map(|_| MemSpace::Shared);
        if !insn.mods.take("arrive") || !insn.mods.take("b64") {
            return Err(self.unsupported("this form"));
        }
        let mem = self.mem(&insn.ops[0], space)?;
        if !ours {
            return self.emit(Op::Nop);
        }
        let one = self.const32(1);
        let d = self.temp64()?;
        let list = self.rows(&[d, one, SINK, SINK_PRED.into()]);
        self.emit(Op::Mbarrier {
            op: Mbarrier::Arrive,
            list,
            mem,
        })
    }

    pub(super) fn create_policy(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        let form = insn.mods.take_any(&["fractional", "range", "cvt"]);
        let a = match form {
            Some("fractional") => {
                self.arity(insn, &[1, 2])?;
                if let Some(fraction) = insn.ops.get(1) {
                    self.src32(fraction, Type::F32)?;
                }
                self.const64(POLICY)
            }
            Some("range") => {
                self.arity(insn, &[4])?;
                insn.mods.take("global");
                self.mem(&insn.ops[1], None)?;
                self.src32(&insn.ops[2], Type::U32)?;
                self.src32(&insn.ops[3], Type::U32)?;
                self.const64(POLICY)
            }
            Some(_) => {
                self.arity(insn, &[2])?;
                if !insn.mods.take("L2") {
                    return Err(self.unsupported("this form"));
                }
                self.src64(&insn.ops[1], Type::B64)?
            }
            None => return Err(self.unsupported("this form")),
        };
        while insn
            .mods
            .take_map(|p| p.starts_with("L2::evict_").then_some(()))
            .is_some()
        {}
        if !insn.mods.take("b64") {
            return Err(self.unsupported("this type"));
        }
        let d = self.dst(&insn.ops[0], Type::B64)?;
        self.emit(Op::Un64 {
            op: Un64::Mov,
            d,
            a,
        })
    }
}

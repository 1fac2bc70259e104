//! Loads, stores, atomics, fences (PTX ISA 9.7.9, 9.7.13).

use super::function::Lowering;
use super::insn::Insn;
use super::operand::Fit;
use crate::code::{AtomOp, Base, MemSpace, Op, Row, SINK};
use crate::error::Error;
use crate::parse::ast::{Operand, Type};

/// Cache and ordering hints without effect here: the host's caches are coherent, and its loads and
/// stores acquire and release.
const ORDER_AND_CACHE: [&str; 15] = [
    "weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "mmio", "cta", "gpu", "sys",
    "ca", "cg", "cs", "nc", "wb",
];
const CACHE: [&str; 4] = ["lu", "cv", "wt", "unified"];

/// First architecture and first PTX version with loads and stores of 32 bytes.
const SECTOR_SM_MIN: u32 = 100;
const SECTOR_PTX_MIN: (u32, u32) = (8, 8);

/// Unwraps a vector of one element: Triton writes `{ %r1 }` for a scalar.
fn sole<'o, 'a>(operand: &'o Operand<'a>) -> &'o Operand<'a> {
    match operand {
        Operand::Vector(parts) if parts.len() == 1 => &parts[0],
        other => other,
    }
}

impl<'a> Lowering<'_, '_, 'a> {
    fn space(&self, insn: &mut Insn<'_, 'a>) -> Result<Option<MemSpace>, Error> {
        let space = insn.mods.take_any(&[
            "global",
            "shared",
            "shared::cta",
            "shared::cluster",
            "local",
            "const",
            "param",
            "param::entry",
            "param::func",
        ]);
        Ok(match space {
            None => None,
            Some("global") => Some(MemSpace::Global),
            Some("const") => Some(MemSpace::Generic),
            Some("shared" | "shared::cta") => Some(MemSpace::Shared),
            Some("local") => Some(MemSpace::Local),
            Some("param" | "param::entry" | "param::func") => Some(MemSpace::Param),
            Some(_) => return Err(self.unsupported("distributed shared memory")),
        })
    }

    /// Drops hints; returns whether a cache policy operand follows.
    fn hints(&self, insn: &mut Insn<'_, 'a>) -> bool {
        while insn.mods.take_any(&ORDER_AND_CACHE).is_some() || insn.mods.take_any(&CACHE).is_some()
        {
        }
        let policy = insn.mods.take("L2::cache_hint");
        while insn
            .mods
            .take_map(|p| (p.starts_with("L1::") || p.starts_with("L2::")).then_some(()))
            .is_some()
        {}
        policy
    }

    /// Returns the number of elements of the opcode's vector, if it names one, and their type.
    fn elements(
        &self,
        insn: &mut Insn<'_, 'a>,
        space: Option<MemSpace>,
    ) -> Result<(Option<usize>, Type), Error> {
        let n = match insn.mods.take_any(&["v2", "v4", "v8"]) {
            None => return Ok((None, self.need_type(insn)?)),
            Some("v2") => 2,
            Some("v4") => 4,
            Some(_) => 8,
        };
        let ty = self.need_type(insn)?;
        let bytes = n * ty.bytes();
        if bytes > 16 {
            self.whole_sector(bytes, space)?;
        } else if n == 8 {
            return Err(self.invalid("vectors of 8 have elements of 32 bits"));
        }
        Ok((Some(n as usize), ty))
    }

    /// Fails unless a vector of more than 16 bytes has 32, in a space, architecture and PTX version
    /// that support it.
    fn whole_sector(&self, bytes: u32, space: Option<MemSpace>) -> Result<(), Error> {
        if bytes != 32 {
            return Err(self.invalid("a vector of more than 256 bits"));
        }
        if self.target < SECTOR_SM_MIN || self.context.ast.version < SECTOR_PTX_MIN {
            let (major, minor) = SECTOR_PTX_MIN;
            return Err(self.unsupported(&format!(
                "a vector of 256 bits, which needs sm_{SECTOR_SM_MIN} and PTX {major}.{minor}, in a text for sm_{}",
                self.target
            )));
        }
        if !matches!(space, None | Some(MemSpace::Global)) {
            return Err(self.invalid("a vector of 256 bits outside global memory"));
        }
        Ok(())
    }

    pub(super) fn load(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        let policy = self.hints(insn);
        self.arity(insn, &[if policy { 3 } else { 2 }])?;
        let space = self.space(insn)?;
        let (vector, ty) = self.elements(insn, space)?;
        let mem = self.mem(&insn.ops[1], space)?;
        if ty == Type::B128 && vector.is_none() {
            return self.load_wide(sole(&insn.ops[0]), mem);
        }
        let Some(n) = vector else {
            let (d, declared) = self.dest(sole(&insn.ops[0]), ty, Fit::Wider)?;
            let d = if d != SINK {
                d
            } else if declared.bytes() == 8 {
                self.temp64()?
            } else {
                self.temp32()?
            };
            self.emit(Op::Ld {
                width: self.width(ty, declared)?,
                mem,
                d,
            })?;
            return self.narrow_signed(ty, declared, d);
        };
        let mut rows = Vec::with_capacity(n);
        let mut declared = None;
        for part in self.vector_parts(&insn.ops[0], n)? {
            let (row, of) = self.part_dest(&part, ty, Fit::Wider)?;
            if row != SINK
                && declared
                    .replace(of)
                    .is_some_and(|d| d.bytes() != of.bytes())
            {
                return Err(self.unsupported("registers of different widths in one vector"));
            }
            rows.push(row);
        }
        let declared = declared.unwrap_or(ty);
        let list = self.rows(&rows);
        self.emit(Op::LdVec {
            width: self.width(ty, declared)?,
            n: n as u8,
            list,
            mem,
        })?;
        for row in rows {
            if row != SINK {
                self.narrow_signed(ty, declared, row)?;
            }
        }
        Ok(())
    }

    /// Truncates the result of `ld.s8` into a 16-bit register, which is sign-extended to 16 bits
    /// only.
    fn narrow_signed(&mut self, ty: Type, declared: Type, d: Row) -> Result<(), Error> {
        if ty == Type::S8 && declared.bytes() == 2 || ty == Type::S16 && declared.bytes() == 2 {
            return self.truncate16(d, d);
        }
        Ok(())
    }

    pub(super) fn store(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        let policy = self.hints(insn);
        self.arity(insn, &[if policy { 3 } else { 2 }])?;
        let space = self.space(insn)?;
        let (vector, ty) = self.elements(insn, space)?;
        let mem = self.mem(&insn.ops[0], space)?;
        if mem.space == MemSpace::Param {
            return Err(self.invalid("kernel parameters are read only"));
        }
        if ty == Type::B128 && vector.is_none() {
            return self.store_wide(sole(&insn.ops[1]), mem);
        }
        let Some(n) = vector else {
            let a = if ty.bytes() == 8 {
                self.src64(sole(&insn.ops[1]), ty)?
            } else {
                self.src32_fit(sole(&insn.ops[1]), ty, Fit::Wider)?
            };
            return self.emit(Op::St {
                width: self.width(ty, ty)?,
                mem,
                a,
            });
        };
        let mut rows = Vec::with_capacity(n);
        for part in self.vector_parts(&insn.ops[1], n)? {
            rows.push(self.part_src(&part, ty, Fit::Wider)?);
        }
        let list = self.rows(&rows);
        self.emit(Op::StVec {
            width: self.width(ty, ty)?,
            n: n as u8,
            list,
            mem,
        })
    }

    pub(super) fn atomic(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        let reduction = insn.name == "red";
        let space = self.space(insn)?;
        let name = insn.mods.take_any(&[
            "add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec",
        ]);
        let Some(name) = name else {
            return Err(self.unsupported("this operation"));
        };
        let policy = self.hints(insn);
        insn.mods.take("noftz");
        let ty = self.need_type(insn)?;
        let first = usize::from(!reduction);
        let operands = first + if name == "cas" { 3 } else { 2 } + usize::from(policy);
        self.arity(insn, &[operands])?;
        let op = match (name, ty) {
            ("add", Type::U32 | Type::S32 | Type::U64) => AtomOp::Add,
            ("add", Type::F32 | Type::F64) => AtomOp::AddF,
            ("add", Type::F16) => AtomOp::AddF16,
            ("add", Type::F16x2) => AtomOp::AddF16x2,
            ("add", Type::Bf16) => AtomOp::AddBf16,
            ("add", Type::Bf16x2) => AtomOp::AddBf16x2,
            ("min", Type::U32 | Type::U64) => AtomOp::MinU,
            ("min", Type::S32 | Type::S64) => AtomOp::MinS,
            ("max", Type::U32 | Type::U64) => AtomOp::MaxU,
            ("max", Type::S32 | Type::S64) => AtomOp::MaxS,
            ("and", Type::B32 | Type::B64) => AtomOp::And,
            ("or", Type::B32 | Type::B64) => AtomOp::Or,
            ("xor", Type::B32 | Type::B64) => AtomOp::Xor,
            ("exch", Type::B32 | Type::B64) if !reduction => AtomOp::Exch,
            ("cas", Type::B32 | Type::B64) if !reduction => AtomOp::Cas,
            ("cas", Type::B16) if !reduction => AtomOp::Cas16,
            ("inc", Type::U32) => AtomOp::Inc,
            ("dec", Type::U32) => AtomOp::Dec,
            _ => return Err(self.unsupported("this operation with this type")),
        };
        let mem = self.mem(&insn.ops[first], space)?;
        if matches!(
            mem.space,
            MemSpace::Param | MemSpace::Local | MemSpace::Frame
        ) {
            return Err(self.unsupported("atomics on this state space"));
        }
        let b = self.src(&insn.ops[first + 1], ty)?;
        let c = if name == "cas" {
            self.src(&insn.ops[first + 2], ty)?
        } else {
            b
        };
        let d = if reduction {
            SINK
        } else {
            self.dest(&insn.ops[0], ty, Fit::Exact)?.0
        };
        let list = self.rows(&[d, b, c]);
        self.emit(Op::Atom {
            op,
            wide: ty.bytes() == 8,
            list,
            mem,
        })
    }

    /// Lowers prefetches and cache control to nothing, without reading the address: a prefetch
    /// never faults.
    pub(super) fn hint(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        let _ = self.space(insn)?;
        while insn
            .mods
            .take_map(|p| (p.starts_with('L') || p == "tensormap").then_some(()))
            .is_some()
        {}
        let Some(address) = insn.ops.first() else {
            return Err(self.invalid("expected an address"));
        };
        self.mem(address, None)?;
        self.emit(Op::Nop)
    }

    /// Lowers `cp.async` to a copy that is done at once, so there is nothing to wait for.
    pub(super) fn cp_async(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        if !insn.mods.take("async") || insn.mods.take("bulk") {
            return Err(self.unsupported("this form"));
        }
        if insn.mods.take("mbarrier") {
            return self.arrive_after_copies(insn);
        }
        if insn
            .mods
            .take_any(&["commit_group", "wait_group", "wait_all"])
            .is_some()
        {
            return self.emit(Op::Nop);
        }
        let only_l2 = insn.mods.take_any(&["ca", "cg"]) == Some("cg");
        if !(insn.mods.take("shared") || insn.mods.take("shared::cta")) || !insn.mods.take("global")
        {
            return Err(self.unsupported("this form"));
        }
        let policy = usize::from(self.hints(insn));
        self.arity(insn, &[3 + policy, 4 + policy])?;
        let to = self.mem(&insn.ops[0], Some(MemSpace::Shared))?;
        let from = self.mem(&insn.ops[1], Some(MemSpace::Global))?;
        let Operand::Number(size) = insn.ops[2] else {
            return Err(self.invalid("expected a size"));
        };
        let bytes = size.double_bits();
        if !matches!(bytes, 4 | 8 | 16) || only_l2 && bytes != 16 {
            return Err(self.unsupported("this size"));
        }
        let take = match &insn.ops[3..insn.ops.len() - policy] {
            [] => SINK,
            // A predicate tells that nothing is taken.
            [operand] if self.is_predicate(operand) => {
                let (p, negated) = self.pred(operand)?;
                let (none, all) = (self.const32(0), self.const32(bytes as u32));
                let d = self.temp32()?;
                self.emit(Op::Sel32 {
                    d,
                    a: none,
                    b: all,
                    p,
                    negated,
                })?;
                d
            }
            [operand, ..] => self.src32(operand, Type::U32)?,
        };
        let (base, wide) = match from.base {
            Base::None => (SINK, false),
            Base::Row32(row) => (row, false),
            Base::Row64(row) => (row, true),
        };
        let offset = from.offset as u64;
        let list = self.rows(&[base, u32::from(wide), offset as u32, (offset >> 32) as u32]);
        self.emit(Op::CpAsync {
            bytes: bytes as u8,
            take,
            to,
            list,
        })
    }

    pub(super) fn fence(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        self.arity(insn, &[0])?;
        while insn
            .mods
            .take_any(&[
                "cta", "gl", "gpu", "sys", "sc", "acq_rel", "acquire", "release",
            ])
            .is_some()
        {}
        if insn.mods.take("proxy") {
            insn.mods.take("alias");
        }
        self.emit(Op::Fence)
    }
}

//! The choice of the function that executes an instruction; frequent ones have functions of their
//! own.

use crate::code::{
    AtomOp, Base, Bin32, Bin64, BinF32, CONST, Cmp, CmpType, FloatFlags, Mem, MemSpace, Op,
    Program, Rounding, Row, Shfl, Shift64, Special, Tern32, Tern64, Un32, Un64, Width,
};
use crate::interp::Features;
use crate::interp::addresses::SEEN;
use crate::interp::fast::arithmetic::{self, Lane2, Map1};
use crate::interp::fast::convert;
use crate::interp::fast::half::{Bf16, F16, HalfFma};
use crate::interp::fast::memory;
use crate::interp::fast::scatter::{self as scatter, AtomShared, LdGlobalNarrow};
use crate::interp::fast::shuffle::{self, Shuffle};
use crate::interp::step::{Body, Step, StepKind, compiled};

/// Returns the step of an operation; `any` is the general one.
pub(in crate::interp) fn select(program: &Program, op: &Op, any: Step, features: Features) -> Step {
    let with = Chosen { any, features };
    match *op {
        Op::Ld { width, mem, d } => with.load(width, &mem, d),
        Op::St { width, mem, a } => with.store(width, &mem, a),
        Op::LdVec {
            width: Width::B32,
            n,
            list,
            mem,
        } => with.vector(n, list, &mem, true),
        Op::StVec {
            width: Width::B32,
            n,
            list,
            mem,
        } => with.vector(n, list, &mem, false),
        Op::Shfl {
            mode,
            d,
            p,
            a,
            list,
        } => {
            let [b, c] = [0, 1].map(|i| program.rows[list as usize + i]);
            // The whole warp is one segment.
            let clamp = if mode == Shfl::Up { 0 } else { 31 };
            let constants = &program.consts32;
            let whole =
                c & CONST != 0 && constants.get((c & !CONST) as usize) == Some(&[clamp; 32]);
            Step {
                kind: StepKind::Together,
                offset: p.into(),
                ..with.shuffle(mode, whole, [d, a, b, c])
            }
        }
        Op::Atom {
            op,
            wide: false,
            list,
            mem,
        } if mem.space == MemSpace::Shared => {
            let rows = [0, 1, 2].map(|i| program.rows[list as usize + i]);
            with.atom_shared(op, rows, &mem)
        }
        // Lanes that are all together need not wait.
        Op::WarpSync { .. } => Step {
            kind: StepKind::Together,
            ..with.rows::<arithmetic::Nop>([0; 4])
        },
        Op::Nop => with.rows::<arithmetic::Nop>([0; 4]),
        _ => with.arithmetic(op),
    }
}

/// Makes steps for one instruction set, or keeps `any`.
pub(in crate::interp) struct Chosen {
    pub(in crate::interp) any: Step,
    features: Features,
}

impl Chosen {
    pub(in crate::interp) fn rows<B: Body>(&self, [d, a, b, c]: [Row; 4]) -> Step {
        Step {
            run: compiled::<B>(self.features),
            d,
            a,
            b,
            c,
            ..self.any
        }
    }

    fn at<B: Body>(&self, d: Row, base: Row, mem: &Mem) -> Step {
        Step {
            offset: mem.offset,
            ..self.rows::<B>([d, base, 0, SEEN as Row])
        }
    }

    fn arithmetic(&self, op: &Op) -> Step {
        match *op {
            Op::Bin32 { op, d, a, b } => self.bin32(op, [d, a, b]),
            Op::Un32 { op, flags, d, a } => self.un32(op, flags, [d, a, 0, 0]),
            Op::Tern32 { op, d, a, b, c } => self.tern32(op, [d, a, b, c]),
            Op::BinF32 { op, flags, d, a, b } => self.bin_f32(op, flags, [d, a, b]),
            Op::FmaF32 {
                rounding: Rounding::Nearest,
                flags,
                d,
                a,
                b,
                c,
            } => match flags {
                FloatFlags {
                    ftz: false,
                    sat: false,
                } => self.rows::<arithmetic::Map3<arithmetic::Fma>>([d, a, b, c]),
                FloatFlags {
                    ftz: true,
                    sat: false,
                } => self.rows::<arithmetic::Map3<arithmetic::FmaFtz>>([d, a, b, c]),
                _ => self.any,
            },
            Op::Bin64 { op, d, a, b } => match op {
                Bin64::Add => self.rows::<arithmetic::Map64<arithmetic::Add64>>([d, a, b, 0]),
                Bin64::Sub => self.rows::<arithmetic::Map64<arithmetic::Sub64>>([d, a, b, 0]),
                Bin64::And => self.rows::<arithmetic::Map64<arithmetic::And64>>([d, a, b, 0]),
                Bin64::Or => self.rows::<arithmetic::Map64<arithmetic::Or64>>([d, a, b, 0]),
                Bin64::MulLo => self.rows::<arithmetic::Map64<arithmetic::MulLo64>>([d, a, b, 0]),
                _ => self.any,
            },
            Op::Un64 {
                op: Un64::Mov,
                d,
                a,
            } => self.rows::<arithmetic::Mov64>([d, a, 0, 0]),
            Op::Shift64 { op, d, a, b } => match op {
                Shift64::Shl => self.rows::<arithmetic::Shl64>([d, a, b, 0]),
                Shift64::ShrU => self.rows::<arithmetic::ShrU64>([d, a, b, 0]),
                Shift64::ShrS => self.any,
            },
            Op::MulWide { signed, d, a, b } => match signed {
                true => self.rows::<arithmetic::MulWide<true>>([d, a, b, 0]),
                false => self.rows::<arithmetic::MulWide<false>>([d, a, b, 0]),
            },
            Op::MadWide { signed, d, a, b, c } => match signed {
                true => self.rows::<arithmetic::MadWide<true>>([d, a, b, c]),
                false => self.rows::<arithmetic::MadWide<false>>([d, a, b, c]),
            },
            Op::Tern64 {
                op: Tern64::MadLo,
                d,
                a,
                b,
                c,
            } => self.rows::<arithmetic::MadLo64>([d, a, b, c]),
            _ => self.choice(op),
        }
    }

    /// Makes steps of conversions, comparisons, selections and special registers.
    fn choice(&self, op: &Op) -> Step {
        match *op {
            Op::Cvt { cvt, d, a } => self.cvt(cvt, d, a),
            Op::Setp {
                ty,
                cmp,
                ftz: false,
                d,
                a,
                b,
            } => self.setp(ty, cmp, [d.into(), a, b, 0]),
            Op::SetpX2 {
                bf16,
                cmp,
                ftz: _,
                d,
                q,
                a,
                b,
            } => self.setp_pair(bf16, cmp, [d, q], [a, b]),
            Op::CvtPack {
                to,
                rounding,
                relu,
                d,
                a,
                b,
            } => self.cvt_pack(to, rounding, [d, a, b, convert::relu(relu)]),
            Op::PredOp { lut, d, a, b } => {
                self.rows::<arithmetic::PredOp>([d.into(), a.into(), b.into(), lut.into()])
            }
            Op::Sel32 {
                d,
                a,
                b,
                p,
                negated,
            } => self.rows::<arithmetic::Sel32>([d, a, b, u32::from(p) << 1 | u32::from(negated)]),
            Op::Sel64 {
                d,
                a,
                b,
                p,
                negated,
            } => self.rows::<arithmetic::Sel64>([d, a, b, u32::from(p) << 1 | u32::from(negated)]),
            Op::Special32 { which, d } => match which {
                Special::Tid(axis) => self.rows::<arithmetic::Tid>([d, axis.into(), 0, 0]),
                Special::Ntid(axis) => {
                    self.rows::<arithmetic::BlockConstant>([d, axis.into(), 0, 0])
                }
                Special::Ctaid(axis) => {
                    self.rows::<arithmetic::BlockConstant>([d, axis.into(), 1, 0])
                }
                Special::Nctaid(axis) => {
                    self.rows::<arithmetic::BlockConstant>([d, axis.into(), 2, 0])
                }
                _ => self.any,
            },
            _ => self.any,
        }
    }

    fn shuffle(&self, mode: Shfl, whole: bool, rows: [Row; 4]) -> Step {
        match (mode, whole) {
            (Shfl::Up, false) => self.rows::<Shuffle<{ shuffle::UP }, false>>(rows),
            (Shfl::Up, true) => self.rows::<Shuffle<{ shuffle::UP }, true>>(rows),
            (Shfl::Down, false) => self.rows::<Shuffle<{ shuffle::DOWN }, false>>(rows),
            (Shfl::Down, true) => self.rows::<Shuffle<{ shuffle::DOWN }, true>>(rows),
            (Shfl::Bfly, false) => self.rows::<Shuffle<{ shuffle::BFLY }, false>>(rows),
            (Shfl::Bfly, true) => self.rows::<Shuffle<{ shuffle::BFLY }, true>>(rows),
            (Shfl::Idx, false) => self.rows::<Shuffle<{ shuffle::IDX }, false>>(rows),
            (Shfl::Idx, true) => self.rows::<Shuffle<{ shuffle::IDX }, true>>(rows),
        }
    }

    fn map2<L: Lane2>(&self, [d, a, b]: [Row; 3]) -> Step {
        self.rows::<arithmetic::Map2<L>>([d, a, b, 0])
    }

    fn bin32(&self, op: Bin32, rows: [Row; 3]) -> Step {
        match op {
            Bin32::Add => self.map2::<arithmetic::Add>(rows),
            Bin32::Sub => self.map2::<arithmetic::Sub>(rows),
            Bin32::MulLo => self.map2::<arithmetic::MulLo>(rows),
            Bin32::MinS => self.map2::<arithmetic::MinS>(rows),
            Bin32::MinU => self.map2::<arithmetic::MinU>(rows),
            Bin32::MaxS => self.map2::<arithmetic::MaxS>(rows),
            Bin32::MaxU => self.map2::<arithmetic::MaxU>(rows),
            Bin32::And => self.map2::<arithmetic::And>(rows),
            Bin32::Or => self.map2::<arithmetic::Or>(rows),
            Bin32::Xor => self.map2::<arithmetic::Xor>(rows),
            Bin32::Shl => self.map2::<arithmetic::Shl>(rows),
            Bin32::ShrS => self.map2::<arithmetic::ShrS>(rows),
            Bin32::ShrU => self.map2::<arithmetic::ShrU>(rows),
            Bin32::DivU => self.map2::<arithmetic::DivU>(rows),
            Bin32::RemU => self.map2::<arithmetic::RemU>(rows),
            Bin32::Pack16 => self.map2::<arithmetic::Pack16>(rows),
            Bin32::F16(op) => self.f16::<false>(op, rows),
            Bin32::F16x2(op) => self.f16::<true>(op, rows),
            Bin32::Bf16(op) => self.bf16::<false>(op, rows),
            Bin32::Bf16x2(op) => self.bf16::<true>(op, rows),
            _ => self.any,
        }
    }

    fn un32(&self, op: Un32, flags: FloatFlags, rows: [Row; 4]) -> Step {
        match op {
            Un32::Mov => self.rows::<arithmetic::Mov32>(rows),
            Un32::Not => self.rows::<Map1<arithmetic::Not>>(rows),
            Un32::Neg => self.rows::<Map1<arithmetic::Neg>>(rows),
            Un32::SignExtend8 => self.rows::<Map1<arithmetic::SignExtend8>>(rows),
            Un32::SignExtend16 => self.rows::<Map1<arithmetic::SignExtend16>>(rows),
            Un32::ZeroExtend8 => self.rows::<Map1<arithmetic::ZeroExtend8>>(rows),
            Un32::ZeroExtend16 => self.rows::<Map1<arithmetic::ZeroExtend16>>(rows),
            Un32::FlushF16 => self.rows::<Map1<arithmetic::FlushF16>>(rows),
            Un32::SaturateF16 => self.rows::<Map1<arithmetic::SaturateF16>>(rows),
            _ if flags.sat => self.any,
            _ if flags.ftz => self.un_f32::<true>(op, rows),
            _ => self.un_f32::<false>(op, rows),
        }
    }

    fn un_f32<const FTZ: bool>(&self, op: Un32, rows: [Row; 4]) -> Step {
        match op {
            Un32::NegF => self.rows::<Map1<arithmetic::NegF<FTZ>>>(rows),
            Un32::AbsF => self.rows::<Map1<arithmetic::AbsF<FTZ>>>(rows),
            Un32::RcpF(Rounding::Nearest) => self.rows::<Map1<arithmetic::RcpF<FTZ>>>(rows),
            Un32::SqrtF(Rounding::Nearest) => self.rows::<Map1<arithmetic::SqrtF<FTZ>>>(rows),
            Un32::RsqrtF => self.rows::<Map1<arithmetic::RsqrtF<FTZ>>>(rows),
            Un32::Ex2F => self.rows::<Map1<arithmetic::Ex2F<FTZ>>>(rows),
            _ => self.any,
        }
    }

    fn tern32(&self, op: Tern32, rows: [Row; 4]) -> Step {
        match op {
            Tern32::MadLo => self.rows::<arithmetic::Map3<arithmetic::MadLo>>(rows),
            Tern32::FmaF16 => self.rows::<HalfFma<F16, false, false>>(rows),
            Tern32::FmaF16x2 => self.rows::<HalfFma<F16, true, false>>(rows),
            Tern32::FmaReluF16 => self.rows::<HalfFma<F16, false, true>>(rows),
            Tern32::FmaReluF16x2 => self.rows::<HalfFma<F16, true, true>>(rows),
            Tern32::FmaBf16 => self.rows::<HalfFma<Bf16, false, false>>(rows),
            Tern32::FmaBf16x2 => self.rows::<HalfFma<Bf16, true, false>>(rows),
            Tern32::FmaReluBf16 => self.rows::<HalfFma<Bf16, false, true>>(rows),
            Tern32::FmaReluBf16x2 => self.rows::<HalfFma<Bf16, true, true>>(rows),
            _ => self.any,
        }
    }

    fn setp(&self, ty: CmpType, cmp: Cmp, rows: [Row; 4]) -> Step {
        use crate::interp::fast::compare::{Setp, Setp64, compare_by};
        match ty {
            CmpType::U32 => compare_by!(self, cmp, unsigned, |R| self.rows::<Setp<R>>(rows)),
            CmpType::S32 => compare_by!(self, cmp, signed, |R| self.rows::<Setp<R>>(rows)),
            CmpType::F32 => compare_by!(self, cmp, single, |R| self.rows::<Setp<R>>(rows)),
            CmpType::U64 => compare_by!(self, cmp, unsigned64, |R| self.rows::<Setp64<R>>(rows)),
            CmpType::S64 => compare_by!(self, cmp, signed64, |R| self.rows::<Setp64<R>>(rows)),
            CmpType::F64 => compare_by!(self, cmp, double, |R| self.rows::<Setp64<R>>(rows)),
            CmpType::F16 => self.setp_half(false, cmp, rows),
            CmpType::Bf16 => self.setp_half(true, cmp, rows),
        }
    }

    fn bin_f32(&self, op: BinF32, flags: FloatFlags, rows: [Row; 3]) -> Step {
        if flags.sat {
            return self.any;
        }
        match (op, flags.ftz) {
            (BinF32::Add, false) => self.map2::<arithmetic::AddF<false>>(rows),
            (BinF32::Sub, false) => self.map2::<arithmetic::SubF<false>>(rows),
            (BinF32::Mul, false) => self.map2::<arithmetic::MulF<false>>(rows),
            (BinF32::Div, false) => self.map2::<arithmetic::DivF<false>>(rows),
            (BinF32::Max, false) => self.map2::<arithmetic::MaxF<false>>(rows),
            (BinF32::Min, false) => self.map2::<arithmetic::MinF<false>>(rows),
            (BinF32::Add, true) => self.map2::<arithmetic::AddF<true>>(rows),
            (BinF32::Sub, true) => self.map2::<arithmetic::SubF<true>>(rows),
            (BinF32::Mul, true) => self.map2::<arithmetic::MulF<true>>(rows),
            (BinF32::Div, true) => self.map2::<arithmetic::DivF<true>>(rows),
            (BinF32::Max, true) => self.map2::<arithmetic::MaxF<true>>(rows),
            (BinF32::Min, true) => self.map2::<arithmetic::MinF<true>>(rows),
            _ => self.any,
        }
    }

    fn load(&self, width: Width, mem: &Mem, d: Row) -> Step {
        use MemSpace::{Generic, Global, Param, Shared};
        if !is_aligned(mem, width.bytes().into()) {
            return self.any;
        }
        match (width, mem.space, mem.base) {
            (Width::B32, Param, Base::None) => self.at::<memory::LdParam32>(d, 0, mem),
            (Width::B64, Param, Base::None) => self.at::<memory::LdParam64>(d, 0, mem),
            (Width::B32, Generic | Global, Base::Row64(a)) => {
                self.at::<memory::LdGlobal32>(d, a, mem)
            }
            (Width::B64, Generic | Global, Base::Row64(a)) => {
                self.at::<memory::LdGlobal64>(d, a, mem)
            }
            (Width::B32, Shared, Base::Row32(a)) => self.at::<memory::LdShared32>(d, a, mem),
            (Width::U8, Generic | Global, Base::Row64(a)) => {
                self.at::<LdGlobalNarrow<scatter::Byte>>(d, a, mem)
            }
            (Width::S8, Generic | Global, Base::Row64(a)) => {
                self.at::<LdGlobalNarrow<scatter::SignedByte>>(d, a, mem)
            }
            (Width::U16, Generic | Global, Base::Row64(a)) => {
                self.at::<LdGlobalNarrow<scatter::Half>>(d, a, mem)
            }
            (Width::S16, Generic | Global, Base::Row64(a)) => {
                self.at::<LdGlobalNarrow<scatter::SignedHalf>>(d, a, mem)
            }
            _ => self.any,
        }
    }

    fn store(&self, width: Width, mem: &Mem, a: Row) -> Step {
        use MemSpace::{Generic, Global, Shared};
        if !is_aligned(mem, width.bytes().into()) {
            return self.any;
        }
        match (width, mem.space, mem.base) {
            (Width::B32, Generic | Global, Base::Row64(base)) => {
                self.at::<memory::StGlobal32>(a, base, mem)
            }
            (Width::B64, Generic | Global, Base::Row64(base)) => {
                self.at::<memory::StGlobal64>(a, base, mem)
            }
            (Width::B32, Shared, Base::Row32(base)) => self.at::<memory::StShared32>(a, base, mem),
            _ => self.any,
        }
    }

    /// Makes the step of a 32-bit atomic in shared memory.
    fn atom_shared(&self, op: AtomOp, [d, b, _]: [Row; 3], mem: &Mem) -> Step {
        let Base::Row32(a) = mem.base else {
            return self.any;
        };
        let run = match op {
            AtomOp::Add => compiled::<AtomShared<arithmetic::Add>>(self.features),
            AtomOp::And => compiled::<AtomShared<arithmetic::And>>(self.features),
            AtomOp::Or => compiled::<AtomShared<arithmetic::Or>>(self.features),
            AtomOp::Xor => compiled::<AtomShared<arithmetic::Xor>>(self.features),
            AtomOp::MinS => compiled::<AtomShared<arithmetic::MinS>>(self.features),
            AtomOp::MinU => compiled::<AtomShared<arithmetic::MinU>>(self.features),
            AtomOp::MaxS => compiled::<AtomShared<arithmetic::MaxS>>(self.features),
            AtomOp::MaxU => compiled::<AtomShared<arithmetic::MaxU>>(self.features),
            AtomOp::AddF => compiled::<AtomShared<arithmetic::AddF<false>>>(self.features),
            _ => return self.any,
        };
        Step {
            run,
            kind: StepKind::Together,
            d,
            a,
            b,
            offset: mem.offset,
            ..self.any
        }
    }

    fn vector(&self, n: u8, list: u32, mem: &Mem, load: bool) -> Step {
        use MemSpace::{Generic, Global};
        if !is_aligned(mem, 4 * i64::from(n)) {
            return self.any;
        }
        match (mem.space, mem.base, n, load) {
            (Generic | Global, Base::Row64(a), 2, true) => {
                self.at::<memory::LdVector32<2, 8>>(list, a, mem)
            }
            (Generic | Global, Base::Row64(a), 4, true) => {
                self.at::<memory::LdVector32<4, 16>>(list, a, mem)
            }
            (Generic | Global, Base::Row64(a), 2, false) => {
                self.at::<memory::StVector32<2, 8>>(list, a, mem)
            }
            (Generic | Global, Base::Row64(a), 4, false) => {
                self.at::<memory::StVector32<4, 16>>(list, a, mem)
            }
            _ => self.any,
        }
    }
}

/// Whether the offset of an operand preserves alignment.
pub(in crate::interp) fn is_aligned(mem: &Mem, bytes: i64) -> bool {
    mem.offset % bytes == 0
}

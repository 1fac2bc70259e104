//! The choice of the function that executes an instruction; frequent ones have functions of their
//! own.

use super::Features;
use super::fast::{self, Lane2, Map1};
use super::fast_convert as convert;
use super::fast_half::{Bf16, F16, HalfFma};
use super::fast_memory as memory;
use super::fast_scatter::{self as scatter, AtomShared, LdGlobalNarrow};
use super::shuffle::{self, Shuffle};
use super::step::{Body, Step, StepKind, compiled};
use crate::code::{
    AtomOp, Base, Bin32, Bin64, BinF32, CONST, Cmp, CmpType, FloatFlags, Mem, MemSpace, Op,
    Program, Rounding, Row, Shfl, Shift64, Special, Tern32, Tern64, Un32, Un64, Width,
};

/// Returns the step of an operation; `any` is the general one.
pub(super) fn select(program: &Program, op: &Op, any: Step, features: Features) -> Step {
    let with = Chosen { any, features };
    match *op {
        Op::Bin32 { op, d, a, b } => with.bin32(op, [d, a, b]),
        Op::Un32 { op, flags, d, a } => with.un32(op, flags, [d, a, 0, 0]),
        Op::Tern32 { op, d, a, b, c } => with.tern32(op, [d, a, b, c]),
        Op::BinF32 { op, flags, d, a, b } => with.bin_f32(op, flags, [d, a, b]),
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
            } => with.rows::<fast::Map3<fast::Fma>>([d, a, b, c]),
            FloatFlags {
                ftz: true,
                sat: false,
            } => with.rows::<fast::Map3<fast::FmaFtz>>([d, a, b, c]),
            _ => any,
        },
        Op::Bin64 { op, d, a, b } => match op {
            Bin64::Add => with.rows::<fast::Map64<fast::Add64>>([d, a, b, 0]),
            Bin64::Sub => with.rows::<fast::Map64<fast::Sub64>>([d, a, b, 0]),
            Bin64::And => with.rows::<fast::Map64<fast::And64>>([d, a, b, 0]),
            Bin64::Or => with.rows::<fast::Map64<fast::Or64>>([d, a, b, 0]),
            Bin64::MulLo => with.rows::<fast::Map64<fast::MulLo64>>([d, a, b, 0]),
            _ => any,
        },
        Op::Un64 {
            op: Un64::Mov,
            d,
            a,
        } => with.rows::<fast::Mov64>([d, a, 0, 0]),
        Op::Shift64 { op, d, a, b } => match op {
            Shift64::Shl => with.rows::<fast::Shl64>([d, a, b, 0]),
            Shift64::ShrU => with.rows::<fast::ShrU64>([d, a, b, 0]),
            Shift64::ShrS => any,
        },
        Op::MulWide { signed, d, a, b } => match signed {
            true => with.rows::<fast::MulWide<true>>([d, a, b, 0]),
            false => with.rows::<fast::MulWide<false>>([d, a, b, 0]),
        },
        Op::MadWide { signed, d, a, b, c } => match signed {
            true => with.rows::<fast::MadWide<true>>([d, a, b, c]),
            false => with.rows::<fast::MadWide<false>>([d, a, b, c]),
        },
        Op::Cvt { cvt, d, a } => with.cvt(cvt, d, a),
        Op::Setp {
            ty,
            cmp,
            ftz: false,
            d,
            a,
            b,
        } => with.setp(ty, cmp, [d.into(), a, b, 0]),
        Op::SetpX2 {
            bf16,
            cmp,
            ftz: _,
            d,
            q,
            a,
            b,
        } => with.setp_pair(bf16, cmp, [d, q], [a, b]),
        Op::CvtPack {
            to,
            rounding,
            relu,
            d,
            a,
            b,
        } => with.cvt_pack(to, rounding, [d, a, b, convert::relu(relu)]),
        Op::PredOp { lut, d, a, b } => {
            with.rows::<fast::PredOp>([d.into(), a.into(), b.into(), lut.into()])
        }
        Op::Sel32 {
            d,
            a,
            b,
            p,
            negated,
        } => with.rows::<fast::Sel32>([d, a, b, u32::from(p) << 1 | u32::from(negated)]),
        Op::Sel64 {
            d,
            a,
            b,
            p,
            negated,
        } => with.rows::<fast::Sel64>([d, a, b, u32::from(p) << 1 | u32::from(negated)]),
        Op::Tern64 {
            op: Tern64::MadLo,
            d,
            a,
            b,
            c,
        } => with.rows::<fast::MadLo64>([d, a, b, c]),
        Op::Special32 { which, d } => match which {
            Special::Tid(axis) => with.rows::<fast::Tid>([d, axis.into(), 0, 0]),
            Special::Ntid(axis) => with.rows::<fast::BlockConstant>([d, axis.into(), 0, 0]),
            Special::Ctaid(axis) => with.rows::<fast::BlockConstant>([d, axis.into(), 1, 0]),
            Special::Nctaid(axis) => with.rows::<fast::BlockConstant>([d, axis.into(), 2, 0]),
            _ => any,
        },
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
            let rows = [d, a, b, c];
            // The whole warp is one segment.
            let clamp = if mode == Shfl::Up { 0 } else { 31 };
            let constants = &program.consts32;
            let whole =
                c & CONST != 0 && constants.get((c & !CONST) as usize) == Some(&[clamp; 32]);
            let step = match (mode, whole) {
                (Shfl::Up, false) => with.rows::<Shuffle<{ shuffle::UP }, false>>(rows),
                (Shfl::Up, true) => with.rows::<Shuffle<{ shuffle::UP }, true>>(rows),
                (Shfl::Down, false) => with.rows::<Shuffle<{ shuffle::DOWN }, false>>(rows),
                (Shfl::Down, true) => with.rows::<Shuffle<{ shuffle::DOWN }, true>>(rows),
                (Shfl::Bfly, false) => with.rows::<Shuffle<{ shuffle::BFLY }, false>>(rows),
                (Shfl::Bfly, true) => with.rows::<Shuffle<{ shuffle::BFLY }, true>>(rows),
                (Shfl::Idx, false) => with.rows::<Shuffle<{ shuffle::IDX }, false>>(rows),
                (Shfl::Idx, true) => with.rows::<Shuffle<{ shuffle::IDX }, true>>(rows),
            };
            Step {
                kind: StepKind::Together,
                offset: p.into(),
                ..step
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
            ..with.rows::<fast::Nop>([0; 4])
        },
        Op::Nop => with.rows::<fast::Nop>([0; 4]),
        _ => any,
    }
}

/// Makes steps for one instruction set, or keeps `any`.
pub(super) struct Chosen {
    pub(super) any: Step,
    features: Features,
}

impl Chosen {
    pub(super) fn rows<B: Body>(&self, [d, a, b, c]: [Row; 4]) -> Step {
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
            ..self.rows::<B>([d, base, 0, memory::SEEN as Row])
        }
    }

    fn map2<L: Lane2>(&self, [d, a, b]: [Row; 3]) -> Step {
        self.rows::<fast::Map2<L>>([d, a, b, 0])
    }

    fn bin32(&self, op: Bin32, rows: [Row; 3]) -> Step {
        match op {
            Bin32::Add => self.map2::<fast::Add>(rows),
            Bin32::Sub => self.map2::<fast::Sub>(rows),
            Bin32::MulLo => self.map2::<fast::MulLo>(rows),
            Bin32::MinS => self.map2::<fast::MinS>(rows),
            Bin32::MinU => self.map2::<fast::MinU>(rows),
            Bin32::MaxS => self.map2::<fast::MaxS>(rows),
            Bin32::MaxU => self.map2::<fast::MaxU>(rows),
            Bin32::And => self.map2::<fast::And>(rows),
            Bin32::Or => self.map2::<fast::Or>(rows),
            Bin32::Xor => self.map2::<fast::Xor>(rows),
            Bin32::Shl => self.map2::<fast::Shl>(rows),
            Bin32::ShrS => self.map2::<fast::ShrS>(rows),
            Bin32::ShrU => self.map2::<fast::ShrU>(rows),
            Bin32::DivU => self.map2::<fast::DivU>(rows),
            Bin32::RemU => self.map2::<fast::RemU>(rows),
            Bin32::Pack16 => self.map2::<fast::Pack16>(rows),
            Bin32::F16(op) => self.f16::<false>(op, rows),
            Bin32::F16x2(op) => self.f16::<true>(op, rows),
            Bin32::Bf16(op) => self.bf16::<false>(op, rows),
            Bin32::Bf16x2(op) => self.bf16::<true>(op, rows),
            _ => self.any,
        }
    }

    fn un32(&self, op: Un32, flags: FloatFlags, rows: [Row; 4]) -> Step {
        match op {
            Un32::Mov => self.rows::<fast::Mov32>(rows),
            Un32::Not => self.rows::<Map1<fast::Not>>(rows),
            Un32::Neg => self.rows::<Map1<fast::Neg>>(rows),
            Un32::SignExtend8 => self.rows::<Map1<fast::SignExtend8>>(rows),
            Un32::SignExtend16 => self.rows::<Map1<fast::SignExtend16>>(rows),
            Un32::ZeroExtend8 => self.rows::<Map1<fast::ZeroExtend8>>(rows),
            Un32::ZeroExtend16 => self.rows::<Map1<fast::ZeroExtend16>>(rows),
            Un32::FlushF16 => self.rows::<Map1<fast::FlushF16>>(rows),
            Un32::SaturateF16 => self.rows::<Map1<fast::SaturateF16>>(rows),
            _ if flags.sat => self.any,
            _ if flags.ftz => self.un_f32::<true>(op, rows),
            _ => self.un_f32::<false>(op, rows),
        }
    }

    fn un_f32<const FTZ: bool>(&self, op: Un32, rows: [Row; 4]) -> Step {
        match op {
            Un32::NegF => self.rows::<Map1<fast::NegF<FTZ>>>(rows),
            Un32::AbsF => self.rows::<Map1<fast::AbsF<FTZ>>>(rows),
            Un32::RcpF(Rounding::Nearest) => self.rows::<Map1<fast::RcpF<FTZ>>>(rows),
            Un32::SqrtF(Rounding::Nearest) => self.rows::<Map1<fast::SqrtF<FTZ>>>(rows),
            Un32::RsqrtF => self.rows::<Map1<fast::RsqrtF<FTZ>>>(rows),
            Un32::Ex2F => self.rows::<Map1<fast::Ex2F<FTZ>>>(rows),
            _ => self.any,
        }
    }

    fn tern32(&self, op: Tern32, rows: [Row; 4]) -> Step {
        match op {
            Tern32::MadLo => self.rows::<fast::Map3<fast::MadLo>>(rows),
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
        use super::fast_compare::{Setp, Setp64, compare_by};
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
            (BinF32::Add, false) => self.map2::<fast::AddF<false>>(rows),
            (BinF32::Sub, false) => self.map2::<fast::SubF<false>>(rows),
            (BinF32::Mul, false) => self.map2::<fast::MulF<false>>(rows),
            (BinF32::Div, false) => self.map2::<fast::DivF<false>>(rows),
            (BinF32::Max, false) => self.map2::<fast::MaxF<false>>(rows),
            (BinF32::Min, false) => self.map2::<fast::MinF<false>>(rows),
            (BinF32::Add, true) => self.map2::<fast::AddF<true>>(rows),
            (BinF32::Sub, true) => self.map2::<fast::SubF<true>>(rows),
            (BinF32::Mul, true) => self.map2::<fast::MulF<true>>(rows),
            (BinF32::Div, true) => self.map2::<fast::DivF<true>>(rows),
            (BinF32::Max, true) => self.map2::<fast::MaxF<true>>(rows),
            (BinF32::Min, true) => self.map2::<fast::MinF<true>>(rows),
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
            AtomOp::Add => compiled::<AtomShared<fast::Add>>(self.features),
            AtomOp::And => compiled::<AtomShared<fast::And>>(self.features),
            AtomOp::Or => compiled::<AtomShared<fast::Or>>(self.features),
            AtomOp::Xor => compiled::<AtomShared<fast::Xor>>(self.features),
            AtomOp::MinS => compiled::<AtomShared<fast::MinS>>(self.features),
            AtomOp::MinU => compiled::<AtomShared<fast::MinU>>(self.features),
            AtomOp::MaxS => compiled::<AtomShared<fast::MaxS>>(self.features),
            AtomOp::MaxU => compiled::<AtomShared<fast::MaxU>>(self.features),
            AtomOp::AddF => compiled::<AtomShared<fast::AddF<false>>>(self.features),
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
pub(super) fn is_aligned(mem: &Mem, bytes: i64) -> bool {
    mem.offset % bytes == 0
}

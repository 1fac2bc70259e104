//! The choice of functions for conversions and for 16-bit floats.

use crate::code::{Cmp, Cvt, CvtType, HalfOp, Pred, Rounding, Row};
use crate::interp::fast::arithmetic;
use crate::interp::fast::compare::compare_by;
use crate::interp::fast::convert::{self as convert, INTEGERS, modifiers};
use crate::interp::fast::half::{self as half, Bf16, F16, Format, HalfLane};
use crate::interp::isa::{DOWN, NEAREST, UP, ZERO};
use crate::interp::step::Step;
use crate::interp::steps::select::Chosen;

/// Returns the step of a body for a rounding mode, which is its last parameter.
macro_rules! rounded {
    ($with:expr, $rows:expr, $rounding:expr, $body:ident $(, $parameter:tt)*) => {
        match $rounding {
            Rounding::Nearest => $with.rows::<convert::$body<$($parameter,)* NEAREST>>($rows),
            Rounding::Down => $with.rows::<convert::$body<$($parameter,)* DOWN>>($rows),
            Rounding::Up => $with.rows::<convert::$body<$($parameter,)* UP>>($rows),
            Rounding::Zero => $with.rows::<convert::$body<$($parameter,)* ZERO>>($rows),
        }
    };
}

/// Returns the step of a body for one of [`INTEGERS`], whose index is its first parameter.
macro_rules! numbered {
    ($number:expr, |$n:ident| $step:expr) => {
        match $number {
            0 => {
                const $n: usize = 0;
                $step
            }
            1 => {
                const $n: usize = 1;
                $step
            }
            2 => {
                const $n: usize = 2;
                $step
            }
            3 => {
                const $n: usize = 3;
                $step
            }
            4 => {
                const $n: usize = 4;
                $step
            }
            _ => {
                const $n: usize = 5;
                $step
            }
        }
    };
}

impl Chosen {
    /// Makes the step for arithmetic of one `f16` per lane, or of two.
    pub(in crate::interp) fn f16<const PACKED: bool>(&self, op: HalfOp, rows: [Row; 3]) -> Step {
        match op {
            HalfOp::MulFtz => self.half_lane::<half::MulFtzH, F16, PACKED>(rows),
            _ => self.half::<F16, PACKED>(op, rows),
        }
    }

    pub(in crate::interp) fn bf16<const PACKED: bool>(&self, op: HalfOp, rows: [Row; 3]) -> Step {
        self.half::<Bf16, PACKED>(op, rows)
    }

    fn half<F: Format, const PACKED: bool>(&self, op: HalfOp, rows: [Row; 3]) -> Step {
        match op {
            HalfOp::Add => self.half_lane::<half::AddH, F, PACKED>(rows),
            HalfOp::Sub => self.half_lane::<half::SubH, F, PACKED>(rows),
            HalfOp::Mul => self.half_lane::<half::MulH, F, PACKED>(rows),
            HalfOp::Min => self.half_lane::<half::MinH, F, PACKED>(rows),
            HalfOp::Max => self.half_lane::<half::MaxH, F, PACKED>(rows),
            HalfOp::MinNan => self.half_lane::<half::MinNanH, F, PACKED>(rows),
            HalfOp::MaxNan => self.half_lane::<half::MaxNanH, F, PACKED>(rows),
            HalfOp::Abs => self.half_lane::<half::AbsH, F, PACKED>(rows),
            HalfOp::Neg => self.half_lane::<half::NegH, F, PACKED>(rows),
            HalfOp::MulFtz => self.any,
        }
    }

    fn half_lane<L: HalfLane, F: Format, const PACKED: bool>(&self, [d, a, b]: [Row; 3]) -> Step {
        self.rows::<half::Half2<L, F, PACKED>>([d, a, b, 0])
    }

    /// Makes the step for a comparison of `bf16` or `f16`.
    pub(in crate::interp) fn setp_half(&self, is_bf16: bool, cmp: Cmp, rows: [Row; 4]) -> Step {
        use half::SetpHalf;
        match is_bf16 {
            false => compare_by!(self, cmp, single, |R| self.rows::<SetpHalf<F16, R>>(rows)),
            true => compare_by!(self, cmp, single, |R| self.rows::<SetpHalf<Bf16, R>>(rows)),
        }
    }

    /// Makes the step for a comparison of pairs; `d` and `q` are the predicates of the low and high
    /// halves.
    pub(in crate::interp) fn setp_pair(
        &self,
        is_bf16: bool,
        cmp: Cmp,
        [d, q]: [Pred; 2],
        [a, b]: [Row; 2],
    ) -> Step {
        use half::SetpHalf2;
        let rows = [d.into(), a, b, q.into()];
        match is_bf16 {
            false => compare_by!(self, cmp, single, |R| self.rows::<SetpHalf2<F16, R>>(rows)),
            true => compare_by!(self, cmp, single, |R| self.rows::<SetpHalf2<Bf16, R>>(rows)),
        }
    }

    pub(in crate::interp) fn cvt(&self, cvt: Cvt, d: Row, a: Row) -> Step {
        use CvtType::{Bf16 as BF16, F16 as HALF, F32, S32, S64, U32, U64};
        let Cvt {
            from, to, rounding, ..
        } = cvt;
        let rows = [d, a, 0, modifiers(&cvt)];
        let number = |ty: CvtType| INTEGERS.iter().position(|&i| i == ty);
        let is_plain = modifiers(&cvt) == 0 && !cvt.integral;
        let is_nearest = rounding == Rounding::Nearest;
        if let (Some(source), Some(target), false) = (number(from), number(to), cvt.sat) {
            return self.resize(source, target, [d, a]);
        }
        match (from, to) {
            (S32, S64 | U64) if is_plain => self.rows::<arithmetic::Widen<true>>(rows),
            (U32, S64 | U64) if is_plain => self.rows::<arithmetic::Widen<false>>(rows),
            (S64 | U64, S32 | U32) if is_plain => self.rows::<convert::LowWord>(rows),
            (F32, HALF) if !cvt.integral => rounded!(self, rows, rounding, ToHalf, F16),
            (F32, BF16) if !cvt.integral => rounded!(self, rows, rounding, ToHalf, Bf16),
            (F32, F32) if cvt.integral => rounded!(self, rows, rounding, ToIntegral),
            // A NaN without modifiers stays as it is.
            (F32, F32) if is_nearest && (cvt.ftz || cvt.sat) => {
                self.rows::<convert::Modified>(rows)
            }
            (HALF, F32) if is_nearest && !cvt.integral => self.rows::<convert::FromF16>(rows),
            (BF16, F32) if is_nearest && is_plain => {
                self.rows::<arithmetic::Map1<arithmetic::UpperHalf>>(rows)
            }
            (HALF, _) if number(to).is_some() => self.half_to_integer(to, rounding, rows),
            (F32, S32) => {
                use convert::{F32, S32};
                rounded!(self, rows, rounding, ToInteger, F32, S32)
            }
            (F32, U32) => {
                use convert::{F32, U32};
                rounded!(self, rows, rounding, ToInteger, F32, U32)
            }
            (_, F32) if is_plain && is_nearest => match number(from) {
                Some(n) => numbered!(n, |N| self.rows::<convert::IntegerToF32<N>>(rows)),
                None => self.any,
            },
            (_, HALF) if is_plain => match number(from) {
                Some(n) => numbered!(n, |N| rounded!(self, rows, rounding, IntegerToF16, N)),
                None => self.any,
            },
            _ => self.any,
        }
    }

    fn half_to_integer(&self, to: CvtType, rounding: Rounding, rows: [Row; 4]) -> Step {
        use convert::{S8, S16, S32, U8, U16, U32};
        match to {
            CvtType::S32 => rounded!(self, rows, rounding, ToInteger, F16, S32),
            CvtType::U32 => rounded!(self, rows, rounding, ToInteger, F16, U32),
            CvtType::S16 => rounded!(self, rows, rounding, ToInteger, F16, S16),
            CvtType::U16 => rounded!(self, rows, rounding, ToInteger, F16, U16),
            CvtType::S8 => rounded!(self, rows, rounding, ToInteger, F16, S8),
            CvtType::U8 => rounded!(self, rows, rounding, ToInteger, F16, U8),
            _ => self.any,
        }
    }

    fn resize(&self, source: usize, target: usize, [d, a]: [Row; 2]) -> Step {
        let rows = [d, a, 0, 0];
        numbered!(source, |FROM| match INTEGERS[target] {
            CvtType::U16 | CvtType::S16 => self.rows::<convert::Resize<FROM, 0xffff>>(rows),
            CvtType::U8 | CvtType::S8 => self.rows::<convert::Resize<FROM, 0xff>>(rows),
            _ => self.rows::<convert::Resize<FROM, { u32::MAX }>>(rows),
        })
    }

    pub(in crate::interp) fn cvt_pack(
        &self,
        to: CvtType,
        rounding: Rounding,
        rows: [Row; 4],
    ) -> Step {
        match to {
            CvtType::F16 => rounded!(self, rows, rounding, ToPair, F16),
            _ => rounded!(self, rows, rounding, ToPair, Bf16),
        }
    }
}

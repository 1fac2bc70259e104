//! `cvt` between all types. Frequent pairs have their own loops; the rest goes lane by lane through
//! the widest type of its kind.

use crate::code::{Cvt, CvtType, Rounding, Row};
use crate::lanes::Files;
use crate::number::float::flush;
use crate::number::half::{Bf16, F16, Half, narrow};

impl Files {
    #[inline(always)]
    pub(crate) fn cvt(&self, cvt: Cvt, mask: u32, d: Row, a: Row) {
        use CvtType::{F32, F64, S32, S64, U32, U64};
        let plain =
            !cvt.sat && !cvt.ftz && !cvt.relu && !cvt.integral && cvt.rounding == Rounding::Nearest;
        match (cvt.from, cvt.to, plain) {
            (S32, S64 | U64, true) => {
                let a = self.get32(a);
                self.put64(d, mask, |l| a[l] as i32 as u64);
            }
            (U32, S64 | U64, true) => {
                let a = self.get32(a);
                self.put64(d, mask, |l| a[l].into());
            }
            (S64 | U64, S32 | U32, true) => {
                let a = self.get64(a);
                self.put32(d, mask, |l| a[l] as u32);
            }
            (S32, F32, true) => {
                let a = self.get32(a);
                self.put32(d, mask, |l| (a[l] as i32 as f32).to_bits());
            }
            (U32, F32, true) => {
                let a = self.get32(a);
                self.put32(d, mask, |l| (a[l] as f32).to_bits());
            }
            (F32, F64, true) => {
                let a = self.get32(a);
                self.put64(d, mask, |l| f64::from(f32::from_bits(a[l])).to_bits());
            }
            _ => self.cvt_any(cvt, mask, d, a),
        }
    }

    #[inline(never)]
    fn cvt_any(&self, cvt: Cvt, mask: u32, d: Row, a: Row) {
        let source = |l: usize| {
            if cvt.from.is_wide() {
                self.lane64(a, l)
            } else {
                self.lane32(a, l).into()
            }
        };
        let convert = |l: usize| {
            let bits = source(l);
            if cvt.from.is_float() && cvt.to.is_float() && is_nan(cvt.from, bits) {
                converted_nan(cvt, bits)
            } else if cvt.from.is_float() {
                from_float(cvt, float_value(cvt.from, bits, cvt.ftz))
            } else {
                from_integer(cvt, integer_value(cvt.from, bits))
            }
        };
        if cvt.to.is_wide() {
            self.each64(d, mask, convert);
        } else {
            self.each32(d, mask, |l| convert(l) as u32);
        }
    }

    #[inline(never)]
    pub(crate) fn cvt_pack(
        &self,
        to: CvtType,
        rounding: Rounding,
        relu: bool,
        mask: u32,
        d: Row,
        a: Row,
        b: Row,
    ) {
        let (a, b) = (self.get32(a), self.get32(b));
        let half = |bits: u32| {
            let value = f64::from(f32::from_bits(bits));
            let value = if relu && value <= 0.0 { 0.0 } else { value };
            if to == CvtType::F16 {
                F16::from_f64(value, rounding)
            } else {
                Bf16::from_f64(value, rounding)
            }
        };
        self.each32(d, mask, |l| half(a[l]) << 16 | half(b[l]));
    }

    #[inline(never)]
    pub(crate) fn cvt_tf32(&self, mask: u32, d: Row, a: Row) {
        let a = self.get32(a);
        self.each32(d, mask, |l| {
            let bits = a[l];
            // Adds half of the last kept bit to the magnitude, so ties go away from zero.
            let half = if f32::from_bits(bits).is_finite() {
                1 << 12
            } else {
                0
            };
            bits.wrapping_add(half) & !0x1fff
        });
    }
}

fn integer_value(ty: CvtType, bits: u64) -> i128 {
    match ty {
        CvtType::U8 => (bits as u8).into(),
        CvtType::S8 => (bits as i8).into(),
        CvtType::U16 => (bits as u16).into(),
        CvtType::S16 => (bits as i16).into(),
        CvtType::U32 => (bits as u32).into(),
        CvtType::S32 => (bits as i32).into(),
        CvtType::U64 => bits.into(),
        _ => (bits as i64).into(),
    }
}

fn is_nan(ty: CvtType, bits: u64) -> bool {
    match ty {
        CvtType::F16 => bits & 0x7fff > 0x7c00,
        CvtType::Bf16 => bits & 0x7fff > 0x7f80,
        CvtType::F32 => f32::from_bits(bits as u32).is_nan(),
        _ => f64::from_bits(bits).is_nan(),
    }
}

/// Converts a NaN. PTX defines it for `.sat` only; otherwise sign and payload are kept as on an
/// H200.
fn converted_nan(cvt: Cvt, bits: u64) -> u64 {
    const QUIET: u64 = 1 << 51;
    let one: u64 = match cvt.to {
        CvtType::F16 | CvtType::Bf16 => 0x7fff,
        CvtType::F32 => 0x7fff_ffff,
        _ => 0x7fff_ffff_e000_0000,
    };
    if cvt.sat {
        return 0;
    }
    // The top of the payload, made quiet, with the sign.
    let narrowed = |exponent_and_mantissa: u32, mantissa: u32| {
        let width = exponent_and_mantissa + 1;
        (bits >> 63) << (width - 1)
            | ((1 << (exponent_and_mantissa - mantissa)) - 1) << mantissa
            | (bits | QUIET) << 12 >> (64 - mantissa)
    };
    match (cvt.from, cvt.to) {
        (CvtType::F32, CvtType::F32) if !cvt.integral && !cvt.ftz => bits,
        (CvtType::F64, CvtType::F64) if cvt.integral => bits | QUIET,
        (CvtType::F64, CvtType::F64) => bits,
        (CvtType::F64, CvtType::F32) => narrowed(31, 23),
        (CvtType::F64, CvtType::F16) => narrowed(15, 10),
        (CvtType::F64, CvtType::Bf16) => narrowed(15, 7),
        (CvtType::F32, CvtType::F64) if !cvt.ftz => {
            f64::from(f32::from_bits(bits as u32)).to_bits() | QUIET
        }
        (CvtType::F16, CvtType::F64) => {
            (bits >> 15 & 1) << 63 | 0x7ff << 52 | (bits & 0x3ff) << 42 | QUIET
        }
        (CvtType::Bf16, CvtType::F32) => bits << 16,
        _ => one,
    }
}

fn float_value(ty: CvtType, bits: u64, ftz: bool) -> f64 {
    match ty {
        CvtType::F16 => F16::to_f64(bits as u32 & 0xffff),
        CvtType::Bf16 => Bf16::to_f64(bits as u32 & 0xffff),
        CvtType::F32 => {
            let value = f32::from_bits(bits as u32);
            f64::from(if ftz { flush(value) } else { value })
        }
        _ => f64::from_bits(bits),
    }
}

/// Returns the smallest and the largest value of an integer type.
fn bounds(ty: CvtType) -> (i128, i128) {
    match ty {
        CvtType::U8 => (0, u8::MAX.into()),
        CvtType::S8 => (i8::MIN.into(), i8::MAX.into()),
        CvtType::U16 => (0, u16::MAX.into()),
        CvtType::S16 => (i16::MIN.into(), i16::MAX.into()),
        CvtType::U32 => (0, u32::MAX.into()),
        CvtType::S32 => (i32::MIN.into(), i32::MAX.into()),
        CvtType::U64 => (0, u64::MAX.into()),
        _ => (i64::MIN.into(), i64::MAX.into()),
    }
}

/// Returns the register form of an integer result: narrow types are zero-extended.
fn integer_bits(ty: CvtType, value: i128) -> u64 {
    match ty {
        CvtType::U8 | CvtType::S8 => (value as u8).into(),
        CvtType::U16 | CvtType::S16 => (value as u16).into(),
        CvtType::U32 | CvtType::S32 => (value as u32).into(),
        _ => value as u64,
    }
}

fn from_integer(cvt: Cvt, value: i128) -> u64 {
    if !cvt.to.is_float() {
        let (low, high) = bounds(cvt.to);
        return integer_bits(
            cvt.to,
            if cvt.sat {
                value.clamp(low, high)
            } else {
                value
            },
        );
    }
    // 64 bits do not fit a double's mantissa: lost bits are kept as a sticky bit, then rounded
    // once.
    let sticky = if value.unsigned_abs() >> 53 == 0 {
        value as f64
    } else {
        odd_f64(value)
    };
    match cvt.to {
        CvtType::F64 => round_i128(value, cvt.rounding).to_bits(),
        _ => float_bits(cvt, sticky),
    }
}

/// Converts to a double, with the last bit set if it is inexact (round to odd).
fn odd_f64(value: i128) -> f64 {
    let magnitude = value.unsigned_abs();
    let drop = 128 - magnitude.leading_zeros() - 53;
    let kept = magnitude >> drop;
    let lost = magnitude & ((1 << drop) - 1) != 0;
    let odd = (kept | u128::from(lost)) as f64 * 2f64.powi(drop as i32);
    if value < 0 { -odd } else { odd }
}

fn round_i128(value: i128, rounding: Rounding) -> f64 {
    let nearest = value as f64;
    let exact = nearest as i128;
    let up = match rounding {
        Rounding::Nearest => return nearest,
        Rounding::Zero => value < 0,
        Rounding::Down => false,
        Rounding::Up => true,
    };
    match exact.cmp(&value) {
        std::cmp::Ordering::Less if up => nearest.next_up(),
        std::cmp::Ordering::Greater if !up => nearest.next_down(),
        _ => nearest,
    }
}

fn round_integral(value: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::Nearest => value.round_ties_even(),
        Rounding::Zero => value.trunc(),
        Rounding::Down => value.floor(),
        Rounding::Up => value.ceil(),
    }
}

fn from_float(cvt: Cvt, value: f64) -> u64 {
    if cvt.to.is_float() {
        let value = if cvt.integral {
            round_integral(value, cvt.rounding)
        } else {
            value
        };
        return float_bits(
            Cvt {
                rounding: if cvt.integral {
                    Rounding::Nearest
                } else {
                    cvt.rounding
                },
                ..cvt
            },
            value,
        );
    }
    // Out of range saturates. NaN gives zero, or only the sign bit if 64 bits are involved (PTX ISA
    // 9.7.9, cvt).
    let (low, high) = bounds(cvt.to);
    if value.is_nan() {
        let wide = cvt.from == CvtType::F64 || matches!(cvt.to, CvtType::U64 | CvtType::S64);
        let sign_bit = (high - low + 1) / 2;
        return if wide {
            integer_bits(cvt.to, sign_bit)
        } else {
            0
        };
    }
    let rounded = round_integral(value, cvt.rounding);
    let integer = if rounded >= 2f64.powi(100) {
        high
    } else if rounded <= -2f64.powi(100) {
        low
    } else {
        (rounded as i128).clamp(low, high)
    };
    integer_bits(cvt.to, integer)
}

fn float_bits(cvt: Cvt, value: f64) -> u64 {
    let value = if cvt.relu && value <= 0.0 { 0.0 } else { value };
    let value = match (cvt.sat, value.is_nan()) {
        (true, true) => 0.0,
        (true, false) => value.clamp(0.0, 1.0).abs(),
        _ => value,
    };
    match cvt.to {
        CvtType::F16 => F16::from_f64(value, cvt.rounding).into(),
        CvtType::Bf16 => Bf16::from_f64(value, cvt.rounding).into(),
        CvtType::F32 => {
            let bits = narrow(value, 23, 8, cvt.rounding).unwrap_or(0x7fff_ffff);
            // A result that only becomes normal by rounding is flushed too, as on an H200.
            let bits = if cvt.ftz && value.abs() < f64::from(f32::MIN_POSITIVE) {
                bits & 0x8000_0000
            } else {
                bits
            };
            bits.into()
        }
        _ => value.to_bits(),
    }
}

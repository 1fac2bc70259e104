//! 16-bit floats, and rounding a double to any shorter format.

use crate::code::{HalfOp, Rounding};
use crate::number::rounding::two_sum_error;

/// A 16-bit float format, in the low half of a register.
pub(crate) trait Half {
    const MANTISSA: u32;
    const EXPONENT: u32;
    /// The only NaN that arithmetic produces.
    const NAN: u32 = 0x7fff;

    fn to_f64(bits: u32) -> f64;

    fn from_f64(value: f64, rounding: Rounding) -> u32 {
        narrow(value, Self::MANTISSA, Self::EXPONENT, rounding).unwrap_or(Self::NAN)
    }
}

pub(crate) struct F16;
pub(crate) struct Bf16;

impl Half for F16 {
    const MANTISSA: u32 = 10;
    const EXPONENT: u32 = 5;

    fn to_f64(bits: u32) -> f64 {
        let (sign, exponent, mantissa) = (bits >> 15 & 1, bits >> 10 & 31, bits & 0x3ff);
        let magnitude = match exponent {
            0 => f64::from(mantissa) * 2f64.powi(-24),
            31 if mantissa == 0 => f64::INFINITY,
            31 => f64::NAN,
            _ => {
                f64::from_bits((u64::from(exponent) + 1023 - 15) << 52 | u64::from(mantissa) << 42)
            }
        };
        if sign != 0 { -magnitude } else { magnitude }
    }
}

impl Half for Bf16 {
    const MANTISSA: u32 = 7;
    const EXPONENT: u32 = 8;

    fn to_f64(bits: u32) -> f64 {
        f32::from_bits(bits << 16).into()
    }
}

/// Returns an `f16`'s value. The fields are moved into place, and a power of two corrects the
/// exponent, of subnormals too.
#[inline(always)]
pub(crate) fn single(bits: u32) -> f32 {
    let scale = f32::from_bits((127 + 112) << 23);
    let magnitude = f32::from_bits((bits & 0x7fff) << 13) * scale;
    let special = if magnitude >= 65536.0 { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude.to_bits() | special | (bits & 0x8000) << 16)
}

/// Rounds a double to a format of fewer bits; None for NaN.
pub(crate) fn narrow(value: f64, mantissa: u32, exponent: u32, rounding: Rounding) -> Option<u32> {
    if value.is_nan() {
        return None;
    }
    let bits = value.to_bits();
    let negative = bits >> 63 != 0;
    let sign = u32::from(negative) << (mantissa + exponent);
    let bias = (1i32 << (exponent - 1)) - 1;
    let infinity = ((1u32 << exponent) - 1) << mantissa;
    if value.is_infinite() {
        return Some(sign | infinity);
    }
    if value == 0.0 {
        return Some(sign);
    }
    // value = m * 2^(e - 52), with m's leading bit at 52. Subnormal doubles are far below every
    // value of the format; subnormals of bf16, whose range is that of f32, are normal doubles.
    let biased = (bits >> 52 & 0x7ff) as i32;
    let m = if biased == 0 {
        bits & ((1 << 52) - 1)
    } else {
        bits & ((1 << 52) - 1) | 1 << 52
    };
    let e = biased.max(1) - 1023;
    // Bits to drop; more in the subnormal range.
    let lowest = 1 - bias;
    let drop = 52 - mantissa as i32 + (lowest - e).max(0);
    let (kept, exact, half) = if drop > 63 {
        (0, false, std::cmp::Ordering::Less)
    } else {
        let rest = m & ((1 << drop) - 1);
        (m >> drop, rest == 0, rest.cmp(&(1 << (drop - 1))))
    };
    let up = match rounding {
        _ if exact => false,
        Rounding::Nearest => half.is_gt() || half.is_eq() && kept & 1 == 1,
        Rounding::Zero => false,
        Rounding::Down => negative,
        Rounding::Up => !negative,
    };
    let kept = kept as u32 + u32::from(up);
    let field = if e < lowest { 0 } else { e + bias };
    if field as u32 >= (1 << exponent) - 1 {
        // Overflow gives infinity, unless the rounding points towards zero.
        let to_infinity = match rounding {
            Rounding::Nearest => true,
            Rounding::Zero => false,
            Rounding::Down => negative,
            Rounding::Up => !negative,
        };
        return Some(sign | if to_infinity { infinity } else { infinity - 1 });
    }
    // The leading bit of `kept` adds one to the exponent field, and so does a carry from rounding.
    let magnitude = if field == 0 {
        kept
    } else {
        ((field as u32 - 1) << mantissa) + kept
    };
    Some(sign | magnitude)
}

/// 2^-14
const F16_NORMAL_MIN: f64 = 1.0 / 16384.0;

pub(crate) fn binary<H: Half>(op: HalfOp, a: u32, b: u32) -> u32 {
    let (x, y) = (H::to_f64(a), H::to_f64(b));
    // Sums and products of such short numbers lose nothing in a double that the final rounding
    // could notice.
    let value = match op {
        HalfOp::Add => x + y,
        HalfOp::Sub => x - y,
        HalfOp::Mul => x * y,
        // Zero also if only rounding makes it a normal number, as on an H200.
        HalfOp::MulFtz => match x * y {
            product if product.abs() < F16_NORMAL_MIN => 0f64.copysign(product),
            product => product,
        },
        HalfOp::Abs => x.abs(),
        HalfOp::Neg => -x,
        HalfOp::Min => crate::number::extremes::min_f64(x, y),
        HalfOp::Max => crate::number::extremes::max_f64(x, y),
        HalfOp::MinNan | HalfOp::MaxNan if x.is_nan() || y.is_nan() => f64::NAN,
        HalfOp::MinNan => crate::number::extremes::min_f64(x, y),
        HalfOp::MaxNan => crate::number::extremes::max_f64(x, y),
    };
    H::from_f64(value, Rounding::Nearest)
}

pub(crate) fn fma<H: Half>(a: u32, b: u32, c: u32, relu: bool) -> u32 {
    let value = fma_odd(H::to_f64(a), H::to_f64(b), H::to_f64(c));
    let value = if relu && value <= 0.0 { 0.0 } else { value };
    H::from_f64(value, Rounding::Nearest)
}

/// Computes `a * b + c`, where the product is exact, rounded to odd: rounding it again to a shorter
/// format equals a single rounding.
fn fma_odd(a: f64, b: f64, c: f64) -> f64 {
    let product = a * b;
    let sum = product + c;
    let error = two_sum_error(product, c, sum);
    if error == 0.0 || !sum.is_finite() || sum.to_bits() & 1 == 1 {
        return sum;
    }
    let bits = sum.to_bits();
    f64::from_bits(if (error > 0.0) == (sum > 0.0) {
        bits + 1
    } else {
        bits - 1
    })
}

/// Flushes a subnormal half of f16 to a zero of its sign.
pub(crate) fn flush_f16(bits: u32) -> u32 {
    if bits & 0x7c00 == 0 {
        bits & 0x8000
    } else {
        bits
    }
}

/// Clamps a half of f16 to [0, 1]; NaN becomes 0.
pub(crate) fn saturate_f16(bits: u32) -> u32 {
    const ONE: u32 = 0x3c00;
    const INFINITY: u32 = 0x7c00;
    match bits {
        // Negative, or NaN.
        _ if bits & 0x8000 != 0 || bits > INFINITY => 0,
        _ => bits.min(ONE),
    }
}

pub(crate) fn packed(a: u32, b: u32, f: impl Fn(u32, u32) -> u32) -> u32 {
    f(a & 0xffff, b & 0xffff) | f(a >> 16, b >> 16) << 16
}

pub(crate) fn packed3(a: u32, b: u32, c: u32, f: impl Fn(u32, u32, u32) -> u32) -> u32 {
    f(a & 0xffff, b & 0xffff, c & 0xffff) | f(a >> 16, b >> 16, c >> 16) << 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_survives() {
        for bits in 0..=0xffffu32 {
            let value = F16::to_f64(bits);
            let back = F16::from_f64(value, Rounding::Nearest);
            assert!(
                back == bits || value.is_nan() && back == 0x7fff,
                "{bits:#x} {back:#x}"
            );
        }
    }

    #[test]
    fn every_bf16_survives() {
        for bits in 0..=0xffffu32 {
            let value = Bf16::to_f64(bits);
            let back = Bf16::from_f64(value, Rounding::Nearest);
            assert!(
                back == bits || value.is_nan() && back == 0x7fff,
                "{bits:#x} {back:#x}"
            );
        }
    }

    #[test]
    fn rounding_at_the_edges_of_f16() {
        let f = |v, r| F16::from_f64(v, r);
        // 65504 is the largest; 65520 is halfway to the next power.
        assert_eq!(f(65519.9, Rounding::Nearest), 0x7bff);
        assert_eq!(f(65520.0, Rounding::Nearest), 0x7c00);
        assert_eq!(f(1e9, Rounding::Zero), 0x7bff);
        assert_eq!(f(-1e9, Rounding::Up), 0xfbff);
        assert_eq!(f(-1e9, Rounding::Down), 0xfc00);
        // Half of the smallest subnormal ties to zero, a little more does not.
        assert_eq!(f(2f64.powi(-25), Rounding::Nearest), 0);
        assert_eq!(f(2f64.powi(-25) * 1.0001, Rounding::Nearest), 1);
        assert_eq!(f(1e-30, Rounding::Up), 1);
        // Largest subnormal rounds up into the normals.
        assert_eq!(
            f(2f64.powi(-14) * (1.0 - 2f64.powi(-12)), Rounding::Nearest),
            0x0400
        );
    }

    #[test]
    fn f32_narrowing_agrees_with_the_host() {
        for i in 0..10_000u64 {
            let bits = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let value = f64::from_bits(bits & 0x8fff_ffff_ffff_ffff | 0x3000_0000_0000_0000);
            assert_eq!(
                narrow(value, 23, 8, Rounding::Nearest),
                Some((value as f32).to_bits()),
                "{value:e}"
            );
        }
    }
}

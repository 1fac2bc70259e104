//! Directed roundings: the nearest result, stepped by the sign of its error.

use crate::code::Rounding;

/// Moves a nearest result to where a directed rounding of the exact value `nearest + error` goes.
/// Only the sign of `error` counts, which must be exact.
fn direct_f32(nearest: f32, error: f64, rounding: Rounding) -> f32 {
    if error == 0.0 || error.is_nan() || nearest.is_nan() {
        return nearest;
    }
    if nearest.is_infinite() {
        // Overflow of the nearest result: directed roundings may stop at the largest finite number.
        let towards = match rounding {
            Rounding::Nearest => false,
            Rounding::Zero => true,
            Rounding::Down => nearest > 0.0,
            Rounding::Up => nearest < 0.0,
        };
        return if towards {
            f32::MAX.copysign(nearest)
        } else {
            nearest
        };
    }
    let below = error < 0.0;
    let negative = nearest < 0.0 || (nearest == 0.0 && below);
    match rounding {
        Rounding::Nearest => nearest,
        Rounding::Down if below => nearest.next_down(),
        Rounding::Up if !below => nearest.next_up(),
        Rounding::Zero if below && !negative => nearest.next_down(),
        Rounding::Zero if !below && nearest < 0.0 => nearest.next_up(),
        _ => nearest,
    }
}

/// Rounds the exact value `value + rest` to single, where |rest| is below half an ulp of `value`.
fn round_pair(value: f64, rest: f64, rounding: Rounding) -> f32 {
    let nearest = value as f32;
    if nearest.is_infinite() && value.is_finite() {
        return direct_f32(nearest, -f64::from(nearest).signum(), rounding);
    }
    let error = value - f64::from(nearest);
    direct_f32(nearest, if error == 0.0 { rest } else { error }, rounding)
}

/// Returns -0 for sums that are exactly zero when rounding down, unless both summands are +0.
fn zero_sum(x: f64, y: f64, rounding: Rounding) -> Option<f32> {
    let both_positive_zero = x.to_bits() | y.to_bits() == 0;
    (x + y == 0.0 && rounding == Rounding::Down && !both_positive_zero).then_some(-0.0)
}

/// Returns the error of `sum = a + b` (Knuth's two-sum).
pub(crate) fn two_sum_error(a: f64, b: f64, sum: f64) -> f64 {
    let b_part = sum - a;
    (a - (sum - b_part)) + (b - b_part)
}

pub(crate) fn add_r(x: f32, y: f32, rounding: Rounding) -> f32 {
    let (a, b) = (f64::from(x), f64::from(y));
    if let Some(zero) = zero_sum(a, b, rounding) {
        return zero;
    }
    let sum = a + b;
    round_pair(sum, two_sum_error(a, b, sum), rounding)
}

/// Multiplies with a directed rounding; `ftz` as in [`div_r`].
pub(crate) fn mul_r(x: f32, y: f32, rounding: Rounding, ftz: bool) -> f32 {
    // Exact: 24 + 24 bits.
    let product = f64::from(x) * f64::from(y);
    if ftz && product.abs() < f64::from(f32::MIN_POSITIVE) {
        return 0f32.copysign(product as f32);
    }
    round_pair(product, 0.0, rounding)
}

pub(crate) fn fma_r(x: f32, y: f32, z: f32, rounding: Rounding) -> f32 {
    let (product, c) = (f64::from(x) * f64::from(y), f64::from(z));
    if let Some(zero) = zero_sum(product, c, rounding) {
        return zero;
    }
    let sum = product + c;
    round_pair(sum, two_sum_error(product, c, sum), rounding)
}

/// Divides with a directed rounding. With `ftz` a quotient below the normal numbers is flushed
/// before rounding, as on an H200.
pub(crate) fn div_r(x: f32, y: f32, rounding: Rounding, ftz: bool) -> f32 {
    let (a, b) = (f64::from(x), f64::from(y));
    let quotient = a / b;
    if ftz && quotient.abs() < f64::from(f32::MIN_POSITIVE) {
        return 0f32.copysign(quotient as f32);
    }
    if !quotient.is_finite() || quotient == 0.0 {
        return quotient as f32;
    }
    // The residual of a correctly rounded quotient is exact with one fused operation.
    let rest = (-quotient).mul_add(b, a) * b.signum();
    round_pair(quotient, rest, rounding)
}

pub(crate) fn sqrt_r(x: f32, rounding: Rounding) -> f32 {
    let a = f64::from(x);
    let root = a.sqrt();
    if !root.is_finite() || root == 0.0 {
        return root as f32;
    }
    round_pair(root, (-root).mul_add(root, a), rounding)
}

/// As [`direct_f32`], in double precision.
fn direct_f64(nearest: f64, error: f64, rounding: Rounding) -> f64 {
    if error == 0.0 || error.is_nan() || nearest.is_nan() {
        return nearest;
    }
    if nearest.is_infinite() {
        let towards = match rounding {
            Rounding::Nearest => false,
            Rounding::Zero => true,
            Rounding::Down => nearest > 0.0,
            Rounding::Up => nearest < 0.0,
        };
        return if towards {
            f64::MAX.copysign(nearest)
        } else {
            nearest
        };
    }
    let below = error < 0.0;
    match rounding {
        Rounding::Nearest => nearest,
        Rounding::Down if below => nearest.next_down(),
        Rounding::Up if !below => nearest.next_up(),
        Rounding::Zero if below && nearest > 0.0 => nearest.next_down(),
        Rounding::Zero if !below && nearest < 0.0 => nearest.next_up(),
        _ => nearest,
    }
}

/// Returns the sign of a nearest result's error, also if it overflowed.
fn lost(nearest: f64, error: f64, finite_inputs: bool) -> f64 {
    if nearest.is_infinite() && finite_inputs {
        -nearest.signum()
    } else {
        error
    }
}

pub(crate) fn add_r64(x: f64, y: f64, rounding: Rounding) -> f64 {
    let sum = x + y;
    if sum == 0.0
        && rounding == Rounding::Down
        && !(x.is_sign_positive() && y.is_sign_positive() && x == 0.0)
    {
        return -0.0;
    }
    direct_f64(
        sum,
        lost(
            sum,
            two_sum_error(x, y, sum),
            x.is_finite() && y.is_finite(),
        ),
        rounding,
    )
}

pub(crate) fn mul_r64(x: f64, y: f64, rounding: Rounding) -> f64 {
    let product = x * y;
    direct_f64(
        product,
        lost(
            product,
            product_error(x, y, product),
            x.is_finite() && y.is_finite(),
        ),
        rounding,
    )
}

/// Returns `x * y - product` with an exact sign, scaled up if the products are so small that the
/// error would vanish.
fn product_error(x: f64, y: f64, product: f64) -> f64 {
    const SMALL_FACTOR: f64 = 1e-125;
    const SMALL_PRODUCT: f64 = 1e-250;
    if product.abs() >= SMALL_PRODUCT || x == 0.0 || y == 0.0 {
        return x.mul_add(y, -product);
    }
    // Multiplying by a power of two loses nothing, even for subnormals.
    let scale = f64::from_bits((1023 + 600) << 52);
    let (mut x, mut y, mut product) = (x, y, product);
    for factor in [&mut x, &mut y] {
        if factor.abs() < SMALL_FACTOR {
            *factor *= scale;
            product *= scale;
        }
    }
    x.mul_add(y, -product)
}

/// Computes in integers: sums of products lose bits anywhere, and these decide a directed rounding.
pub(crate) fn fma_r64(x: f64, y: f64, z: f64, rounding: Rounding) -> f64 {
    if z.is_infinite() && x.is_finite() && y.is_finite() {
        // The product is finite before it is rounded, however large.
        return z;
    }
    if !x.is_finite() || !y.is_finite() || !z.is_finite() || x == 0.0 || y == 0.0 {
        return add_r64(x * y, z, rounding);
    }
    let negative = (x < 0.0) != (y < 0.0);
    let (xm, xe) = parts(x);
    let (ym, ye) = parts(y);
    let a = Exact::new(negative, u128::from(xm) * u128::from(ym), xe + ye);
    if z == 0.0 {
        return a.round(rounding);
    }
    let (zm, ze) = parts(z);
    let b = Exact::new(z < 0.0, u128::from(zm), ze);
    let (large, small) = if (a.exponent, a.mantissa) >= (b.exponent, b.mantissa) {
        (a, b)
    } else {
        (b, a)
    };
    let small_mantissa = small.shifted((large.exponent - small.exponent) as u32);
    let mantissa = if large.negative == small.negative {
        large.mantissa + small_mantissa
    } else {
        large.mantissa - small_mantissa
    };
    if mantissa == 0 {
        return if rounding == Rounding::Down {
            -0.0
        } else {
            0.0
        };
    }
    Exact::new(large.negative, mantissa, large.exponent).round(rounding)
}

/// Splits a finite double into an integer and a power of two, whose exponent is returned second.
fn parts(x: f64) -> (u64, i32) {
    let (field, fraction) = (
        (x.to_bits() >> 52 & 0x7ff) as i32,
        x.to_bits() & ((1 << 52) - 1),
    );
    if field == 0 {
        (fraction, -1074)
    } else {
        (fraction | 1 << 52, field - 1075)
    }
}

/// The value `mantissa * 2^exponent`, with the mantissa's leading bit at 126. Sums do not overflow,
/// and the last bit, which stands for all lost bits, is far below the rounding of a double.
struct Exact {
    negative: bool,
    mantissa: u128,
    exponent: i32,
}

const LEADING_BIT: u32 = 126;

impl Exact {
    /// Normalises the value. The mantissa must not be 0.
    fn new(negative: bool, mantissa: u128, exponent: i32) -> Self {
        let zeros = mantissa.leading_zeros();
        // A sum may be one bit longer than its summands.
        let (mantissa, exponent) = if zeros == 0 {
            (mantissa >> 1 | mantissa & 1, exponent + 1)
        } else {
            (mantissa << (zeros - 1), exponent - (zeros as i32 - 1))
        };
        Exact {
            negative,
            mantissa,
            exponent,
        }
    }

    /// Shifts right; lost bits are kept in the last bit.
    fn shifted(&self, by: u32) -> u128 {
        if by == 0 {
            return self.mantissa;
        }
        let kept = self.mantissa.checked_shr(by).unwrap_or(0);
        let lost = kept.checked_shl(by).unwrap_or(0) != self.mantissa;
        kept | u128::from(lost)
    }

    fn round(&self, rounding: Rounding) -> f64 {
        // Exponent of the result's last bit: 53 bits, fewer for subnormals.
        let last = (self.exponent + LEADING_BIT as i32 - 52).max(-1074);
        let drop = (last - self.exponent) as u32;
        let kept = self.mantissa.checked_shr(drop).unwrap_or(0);
        let rest = self.mantissa - kept.checked_shl(drop).unwrap_or(0);
        let half = 1u128.checked_shl(drop - 1).unwrap_or(u128::MAX);
        let up = match rounding {
            Rounding::Nearest => rest > half || rest == half && kept & 1 == 1,
            Rounding::Zero => false,
            Rounding::Down => self.negative && rest != 0,
            Rounding::Up => !self.negative && rest != 0,
        };
        let kept = kept as u64 + u64::from(up);
        // The leading bit of `kept` adds one to the exponent field, and so does a carry from
        // rounding.
        let field = last + 1074;
        let bits = (field.max(0) as u64) << 52;
        let magnitude = f64::from_bits((bits + kept).min(f64::INFINITY.to_bits()));
        let magnitude = match (magnitude.is_infinite(), rounding) {
            (true, Rounding::Zero) => f64::MAX,
            (true, Rounding::Down) if !self.negative => f64::MAX,
            (true, Rounding::Up) if self.negative => f64::MAX,
            _ => magnitude,
        };
        if self.negative { -magnitude } else { magnitude }
    }
}

pub(crate) fn div_r64(x: f64, y: f64, rounding: Rounding) -> f64 {
    let quotient = x / y;
    if quotient.is_nan() || x == 0.0 || y == 0.0 || x.is_infinite() || y.is_infinite() {
        return quotient;
    }
    let error = -product_error(quotient, y, x) * y.signum();
    direct_f64(quotient, lost(quotient, error, true), rounding)
}

pub(crate) fn sqrt_r64(x: f64, rounding: Rounding) -> f64 {
    let root = x.sqrt();
    if !root.is_finite() || root == 0.0 {
        return root;
    }
    direct_f64(root, -product_error(root, root, x), rounding)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An H200 gives the same results; `truth fuzz` found a difference here.
    #[test]
    fn a_product_that_overflows_does_not_undo_an_infinity() {
        for rounding in [Rounding::Zero, Rounding::Down, Rounding::Up] {
            for infinity in [f64::INFINITY, f64::NEG_INFINITY] {
                assert_eq!(fma_r64(f64::MAX, f64::MAX, infinity, rounding), infinity);
                assert_eq!(fma_r64(f64::MAX, f64::MIN, infinity, rounding), infinity);
            }
            assert!(fma_r64(f64::INFINITY, 1.0, f64::NEG_INFINITY, rounding).is_nan());
            assert!(fma_r64(0.0, f64::INFINITY, f64::INFINITY, rounding).is_nan());
            assert!(fma_r64(f64::NAN, 1.0, f64::INFINITY, rounding).is_nan());
        }
    }
}

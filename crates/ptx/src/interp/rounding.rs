//! Directed roundings: the nearest result, stepped by the sign of what it lost.

use super::half::two_sum_error;
use crate::code::Rounding;

/// A nearest result moved to where a directed rounding of the exact value `nearest + error` goes.
/// Only the sign of `error` counts; it must be exact.
fn direct_f32(nearest: f32, error: f64, rounding: Rounding) -> f32 {
    if error == 0.0 || error.is_nan() || nearest.is_nan() {
        return nearest;
    }
    if nearest.is_infinite() {
        // Overflow of the nearest result: directed roundings stop at the largest finite number.
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

/// Rounds the exact value `value + rest` (|rest| below half an ulp of `value`) to single.
fn round_pair(value: f64, rest: f64, rounding: Rounding) -> f32 {
    let nearest = value as f32;
    if nearest.is_infinite() && value.is_finite() {
        return direct_f32(nearest, -f64::from(nearest).signum(), rounding);
    }
    let error = value - f64::from(nearest);
    direct_f32(nearest, if error == 0.0 { rest } else { error }, rounding)
}

/// Zero sums have the sign that the rounding says: -0 when rounding down, unless both were +0.
fn zero_sum(x: f64, y: f64, rounding: Rounding) -> Option<f32> {
    (x + y == 0.0 && x != 0.0 && rounding == Rounding::Down).then_some(-0.0)
}

pub(super) fn add_r(x: f32, y: f32, rounding: Rounding) -> f32 {
    let (a, b) = (f64::from(x), f64::from(y));
    if let Some(zero) = zero_sum(a, b, rounding) {
        return zero;
    }
    if rounding == Rounding::Down
        && a == 0.0
        && b == 0.0
        && (a.is_sign_negative() || b.is_sign_negative())
    {
        return -0.0;
    }
    let sum = a + b;
    round_pair(sum, two_sum_error(a, b, sum), rounding)
}

pub(super) fn mul_r(x: f32, y: f32, rounding: Rounding) -> f32 {
    // Exact: 24 + 24 bits.
    round_pair(f64::from(x) * f64::from(y), 0.0, rounding)
}

pub(super) fn fma_r(x: f32, y: f32, z: f32, rounding: Rounding) -> f32 {
    let (product, c) = (f64::from(x) * f64::from(y), f64::from(z));
    if let Some(zero) = zero_sum(product, c, rounding) {
        return zero;
    }
    let sum = product + c;
    round_pair(sum, two_sum_error(product, c, sum), rounding)
}

pub(super) fn div_r(x: f32, y: f32, rounding: Rounding) -> f32 {
    let (a, b) = (f64::from(x), f64::from(y));
    let quotient = a / b;
    if !quotient.is_finite() || quotient == 0.0 {
        return quotient as f32;
    }
    // The residual of a correctly rounded quotient is exact with one fused operation.
    let rest = (-quotient).mul_add(b, a) * b.signum();
    round_pair(quotient, rest, rounding)
}

pub(super) fn sqrt_r(x: f32, rounding: Rounding) -> f32 {
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

/// The sign of what an overflowed or finite nearest result lost.
fn lost(nearest: f64, error: f64, finite_inputs: bool) -> f64 {
    if nearest.is_infinite() && finite_inputs {
        -nearest.signum()
    } else {
        error
    }
}

pub(super) fn add_r64(x: f64, y: f64, rounding: Rounding) -> f64 {
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

pub(super) fn mul_r64(x: f64, y: f64, rounding: Rounding) -> f64 {
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

/// Sign-exact `x * y - product`, scaled up where the products are so small that the error would vanish.
fn product_error(x: f64, y: f64, product: f64) -> f64 {
    const SMALL_FACTOR: f64 = 1e-125;
    const SMALL_PRODUCT: f64 = 1e-250;
    if product.abs() >= SMALL_PRODUCT || x == 0.0 || y == 0.0 {
        return x.mul_add(y, -product);
    }
    // Multiplying by a power of two loses nothing, from subnormals upwards.
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

pub(super) fn fma_r64(x: f64, y: f64, z: f64, rounding: Rounding) -> f64 {
    let nearest = x.mul_add(y, z);
    if nearest == 0.0
        && rounding == Rounding::Down
        && !(z == 0.0 && z.is_sign_positive() && x * y == 0.0 && (x * y).is_sign_positive())
    {
        return -0.0;
    }
    // x*y + z - nearest, by exact parts: product = p + e, p + z = s + t, then (s - nearest) + t + e.
    let p = x * y;
    let e = product_error(x, y, p);
    let s = p + z;
    let t = two_sum_error(p, z, s);
    let u = t + e;
    let v = two_sum_error(t, e, u);
    let error = ((s - nearest) + u) + v;
    direct_f64(
        nearest,
        lost(
            nearest,
            error,
            x.is_finite() && y.is_finite() && z.is_finite(),
        ),
        rounding,
    )
}

pub(super) fn div_r64(x: f64, y: f64, rounding: Rounding) -> f64 {
    let quotient = x / y;
    if quotient.is_nan() || x == 0.0 || y == 0.0 || x.is_infinite() || y.is_infinite() {
        return quotient;
    }
    let error = -product_error(quotient, y, x) * y.signum();
    direct_f64(quotient, lost(quotient, error, true), rounding)
}

pub(super) fn sqrt_r64(x: f64, rounding: Rounding) -> f64 {
    let root = x.sqrt();
    if !root.is_finite() || root == 0.0 {
        return root;
    }
    direct_f64(root, -product_error(root, root, x), rounding)
}

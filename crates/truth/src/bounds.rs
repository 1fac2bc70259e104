//! The manual's error bounds of approximations (PTX ISA 9.7.3, 9.7.4), and its rules for special
//! values.

use crate::form::PtxType;

/// Whether the manual allows `result` for these inputs.
pub fn holds(function: &str, ftz: bool, kind: PtxType, inputs: &[u64], result: u64) -> bool {
    match kind {
        PtxType::F16x2 => (0..2).all(|half| {
            let part = |bits: u64| bits >> (16 * half) & 0xffff;
            let inputs: Vec<u64> = inputs.iter().map(|&bits| part(bits)).collect();
            holds(function, ftz, PtxType::F16, &inputs, part(result))
        }),
        _ => {
            // The double-precision approximations read only the upper word.
            let seen = |bits: u64| match kind {
                PtxType::F64 if ftz => bits & !0xffff_ffff,
                _ => bits,
            };
            let x: Vec<f64> = inputs
                .iter()
                .map(|&bits| flushed(kind, ftz, value(kind, seen(bits))))
                .collect();
            allowed(function, &x).holds(kind, ftz, value(kind, result))
        }
    }
}

/// Whether two sums of products may come from the same numbers: their order and inner precision are
/// left open (PTX ISA 9.7.14).
pub fn near(kind: PtxType, x: u64, y: u64) -> bool {
    let close = |x: f64, y: f64, bits: i32| (x - y).abs() <= 2f64.powi(-bits) * x.abs().max(1.0);
    match kind {
        PtxType::F16x2 => [0, 16].iter().all(|shift| {
            let part = |bits: u64| value(PtxType::F16, bits >> shift & 0xffff);
            close(part(x), part(y), 9)
        }),
        PtxType::F64 => close(value(kind, x), value(kind, y), 48),
        _ => close(value(kind, x), value(kind, y), 18),
    }
}

pub fn is_nan(kind: PtxType, bits: u64) -> bool {
    match kind {
        PtxType::F16x2 | PtxType::Bf16x2 | PtxType::Int(..) | PtxType::Pred => false,
        _ => value(kind, bits).is_nan(),
    }
}

pub fn is_subnormal(kind: PtxType, bits: u64) -> bool {
    match kind {
        PtxType::F32 => f32::from_bits(bits as u32).is_subnormal(),
        PtxType::F64 => f64::from_bits(bits).is_subnormal(),
        _ => false,
    }
}

/// The results allowed: an exact value, and the distance from it.
enum Allowed {
    Nan,
    /// Distance in units of the last place of the exact value, rounded to the format.
    Ulps(f64, f64),
    /// Distance as a part of the exact value.
    Relative(f64, f64),
    Absolute(f64, f64),
    /// Anything between -1 and 1, because no bound is given.
    Unit,
}

impl Allowed {
    fn holds(&self, kind: PtxType, ftz: bool, result: f64) -> bool {
        let (exact, bound) = match *self {
            Allowed::Nan => return result.is_nan(),
            Allowed::Unit => return result.abs() <= 1.0,
            Allowed::Ulps(exact, ulps) => (exact, ulps * ulp(kind, exact)),
            Allowed::Relative(exact, part) => (exact, part * exact.abs()),
            Allowed::Absolute(exact, bound) => (exact, bound),
        };
        if result.is_nan() || exact.is_nan() {
            return false;
        }
        if exact.is_infinite() {
            return result == exact;
        }
        if result.is_infinite() {
            // A value as large as this may round to infinity.
            return result.signum() == exact.signum() && exact.abs() + bound > largest(kind);
        }
        // Results below the normal numbers have their spacing, or become zero.
        let spacing = smallest(kind) * epsilon(kind);
        let flushed = ftz && exact.abs() - bound < smallest(kind) && result == 0.0;
        flushed || (result - exact).abs() <= bound.max(spacing)
    }
}

fn allowed(function: &str, x: &[f64]) -> Allowed {
    use Allowed::{Absolute, Nan, Relative, Ulps, Unit};
    let a = x[0];
    if x.iter().any(|v| v.is_nan()) {
        return Nan;
    }
    let exact = match function {
        "div.approx" | "div.full" => {
            let b = x[1];
            let huge = b.is_finite() && b.abs() > 2f64.powi(126);
            if function == "div.approx" && huge {
                return if a.is_infinite() {
                    Nan
                } else {
                    Absolute(0.0, 0.0)
                };
            }
            a / b
        }
        "rcp" | "rcp64" => 1.0 / a,
        "sqrt" => a.sqrt(),
        "rsqrt" | "rsqrt64" => 1.0 / a.sqrt(),
        "sin" => a.sin(),
        "cos" => a.cos(),
        "lg2" if a == 0.0 => f64::NEG_INFINITY,
        "lg2" => a.log2(),
        "ex2" | "ex2.f16" => a.exp2(),
        _ => a.tanh(),
    };
    if exact.is_nan() {
        return Nan;
    }
    let pi = std::f64::consts::PI;
    match function {
        "div.approx" | "div.full" => Ulps(exact, 2.0),
        "rcp" => Ulps(exact, 1.0),
        "sqrt" => Relative(exact, 2f64.powi(-23)),
        "rsqrt" => Relative(exact, 2f64.powf(-22.9)),
        // The manual gives no number for these two; the first 20 bits are right, as in the
        // hardware's table.
        "rcp64" => Relative(exact, 2f64.powi(-19)),
        "rsqrt64" => Relative(exact, 2f64.powi(-19)),
        "sin" | "cos" if a.abs() <= 2.0 * pi => Absolute(exact, 2f64.powf(-20.5)),
        "sin" | "cos" if a.abs() <= 100.0 * pi => Absolute(exact, 2f64.powf(-14.7)),
        "sin" | "cos" => Unit,
        "lg2" if a > 0.5 && a < 2.0 => Absolute(exact, 2f64.powi(-22)),
        "lg2" => Relative(exact, 2f64.powi(-22)),
        "ex2" => Relative(exact, 2f64.powi(-22)),
        "ex2.f16" => Relative(exact, 2f64.powf(-9.9)),
        "tanh" => Relative(exact, 2f64.powi(-11)),
        "tanh.f16" => Absolute(exact, 2f64.powf(-10.987)),
        // No bound is known, so only the exact value is allowed.
        _ => Ulps(exact, 0.0),
    }
}

/// Converts the bits of a result to a number.
fn value(kind: PtxType, bits: u64) -> f64 {
    match kind {
        PtxType::F64 => f64::from_bits(bits),
        PtxType::Bf16 => f32::from_bits((bits as u32) << 16).into(),
        PtxType::F16 => {
            let (exponent, mantissa) = ((bits >> 10 & 31) as i32, (bits & 0x3ff) as f64);
            let magnitude = match exponent {
                31 if mantissa == 0.0 => f64::INFINITY,
                31 => f64::NAN,
                0 => mantissa * 2f64.powi(-24),
                _ => (mantissa + 1024.0) * 2f64.powi(exponent - 25),
            };
            if bits & 0x8000 != 0 {
                -magnitude
            } else {
                magnitude
            }
        }
        _ => f32::from_bits(bits as u32).into(),
    }
}

fn flushed(kind: PtxType, ftz: bool, x: f64) -> f64 {
    if ftz && x.abs() < smallest(kind) {
        0f64.copysign(x)
    } else {
        x
    }
}

/// Returns the smallest normal number.
fn smallest(kind: PtxType) -> f64 {
    match kind {
        PtxType::F64 => f64::MIN_POSITIVE,
        PtxType::F16 => 2f64.powi(-14),
        _ => f32::MIN_POSITIVE.into(),
    }
}

fn largest(kind: PtxType) -> f64 {
    match kind {
        PtxType::F64 => f64::MAX,
        PtxType::F16 => 65504.0,
        _ => f32::MAX.into(),
    }
}

fn epsilon(kind: PtxType) -> f64 {
    match kind {
        PtxType::F64 => f64::EPSILON,
        PtxType::F16 => 2f64.powi(-10),
        _ => f32::EPSILON.into(),
    }
}

fn ulp(kind: PtxType, x: f64) -> f64 {
    let x = x.abs().max(smallest(kind));
    2f64.powi(x.log2().floor() as i32) * epsilon(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_lets_through_what_is_near_and_nothing_else() {
        let rcp = |a: f32, r: f32| {
            holds(
                "rcp",
                false,
                PtxType::F32,
                &[a.to_bits().into()],
                r.to_bits().into(),
            )
        };
        assert!(rcp(3.0, 1.0 / 3.0));
        // The nearest one is a third of a place above.
        assert!(rcp(3.0, (1.0f32 / 3.0).next_down()));
        assert!(!rcp(3.0, (1.0f32 / 3.0).next_up()));
        assert!(rcp(0.0, f32::INFINITY) && !rcp(0.0, f32::NEG_INFINITY) && !rcp(0.0, 1e38));
        assert!(rcp(f32::NAN, f32::NAN) && !rcp(f32::NAN, 0.0));
        let lg2 = |a: f32, r: f32| {
            holds(
                "lg2",
                false,
                PtxType::F32,
                &[a.to_bits().into()],
                r.to_bits().into(),
            )
        };
        assert!(lg2(1.0, 0.0) && !lg2(1.0, 1e-6) && lg2(-1.0, f32::NAN));
    }
}

//! Kernels of `data/math.cu` and `data/half.cu` against the host's functions in double precision.
//!
//! Tolerances are those of CUDA's guide for its library functions, in units of the last place of
//! single or double precision. For `--use_fast_math`, where the guide gives none or large ones,
//! they are absolute.

use crate::common::{Arg, Device};

const MATH: &str = include_str!("data/math.ptx");
const FAST: &str = include_str!("data/math_fast.ptx");
const HALF: &str = include_str!("data/half.ptx");

const INPUTS: [f32; 24] = [
    0.0, 0.1, -0.1, 0.25, 0.5, -0.7, 1.0, -1.0, 1.5, 2.0, 2.5, -2.5, 3.1, 4.4, -5.5, 7.0, 9.75,
    -12.0, 15.0, 20.25, -30.0, 1e-3, -1e-5, 3e-7,
];

type Function = (&'static str, fn(f64) -> f64, f64);

/// For each kernel number: name, the function, tolerance in ulps.
fn single() -> Vec<Function> {
    vec![
        ("sinf", f64::sin, 2.0),
        ("cosf", f64::cos, 2.0),
        ("tanf", f64::tan, 4.0),
        ("expf", f64::exp, 2.0),
        ("logf", |x| x.abs().ln(), 2.0),
        ("powf", |x| x.abs().powf(f64::from(1.7f32)), 4.0),
        ("sqrtf", |x| x.abs().sqrt(), 0.5),
        ("tanhf", f64::tanh, 2.0),
        ("erff", erf, 2.0),
        ("rsqrtf", |x| 1.0 / x.abs().sqrt(), 2.0),
        ("reciprocal", |x| 1.0 / x, 0.5),
        ("division", |x| x / f64::from(3.1f32), 0.5),
        ("exp2f", f64::exp2, 2.0),
        ("log2f", |x| x.abs().log2(), 2.0),
        ("cbrtf", f64::cbrt, 1.0),
        (
            "roundings",
            |x| x.floor() + x.ceil() * 2.0 + x.trunc() * 4.0 + x.round_ties_even() * 8.0,
            0.5,
        ),
        ("fmodf", |x| x % f64::from(0.7f32), 0.5),
        ("atan2f", |x| x.atan2(0.5), 3.0),
        ("minmax", |x| x.min(0.25) - x.max(-0.5), 0.5),
        ("copysignf", |x| 2f64.copysign(x), 0.0),
        // The formula below is good to 1e-13; near its zeros at 1 and 2 only an absolute bound
        // makes sense.
        (
            "lgammaf",
            |x| ln_gamma(f64::from(x.abs() as f32 + 0.5)),
            6.0,
        ),
        (
            "integers",
            |x| f64::from((x as f32 * 100.0) as i32) + f64::from((x.abs() as f32 * 100.0) as u32),
            0.5,
        ),
        ("ldexpf", |x| x * 8.0, 0.5),
        ("asinf", |x| f64::from(x as f32 * 0.01).asin(), 2.0),
        ("sinhf", f64::sinh, 3.0),
        ("fmaf", |x| x * x + 1.0, 0.5),
    ]
}

fn double() -> Vec<Function> {
    vec![
        ("sin", f64::sin, 2.0),
        ("cos", f64::cos, 2.0),
        ("exp", f64::exp, 1.0),
        ("log", |x| x.abs().ln(), 1.0),
        ("pow", |x| x.abs().powf(1.7), 2.0),
        ("sqrt", |x| x.abs().sqrt(), 0.0),
        ("tanh", f64::tanh, 3.0),
        ("erf", erf, 8.0),
        ("reciprocal", |x| 1.0 / x, 0.0),
        ("division", |x| x / 3.1, 0.0),
        ("rsqrt", |x| 1.0 / x.abs().sqrt(), 2.0),
        (
            "roundings",
            |x| x.floor() + x.ceil() * 2.0 + x.trunc() * 4.0 + x.round_ties_even() * 8.0,
            0.0,
        ),
        ("integers", |x| (x * 1e6).trunc() + f64::from(x as f32), 0.0),
        ("fma", |x| x.mul_add(x, 1.0), 0.0),
        ("atan", f64::atan, 2.0),
        ("minmax", |x| x.min(0.25) - x.max(-0.5), 0.0),
    ]
}

/// A series of positive terms, so that nothing cancels; a continued fraction for large arguments.
fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a < 4.0 {
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= 2.0 * x * x / f64::from(2 * n + 1);
            sum += term;
        }
        return sum * (-x * x).exp() * 2.0 / std::f64::consts::PI.sqrt();
    }
    let tail = (1..60).rev().fold(0.0, |f, k| f64::from(k) / 2.0 / (a + f));
    (1.0 - (-a * a).exp() / (a + tail) / std::f64::consts::PI.sqrt()).copysign(x)
}

/// Stirling's series, after moving the argument up.
fn ln_gamma(x: f64) -> f64 {
    let (mut y, mut shift) = (x, 0.0);
    while y < 20.0 {
        shift += y.ln();
        y += 1.0;
    }
    let series = 1.0 / (12.0 * y) - 1.0 / (360.0 * y.powi(3)) + 1.0 / (1260.0 * y.powi(5));
    (y - 0.5) * y.ln() - y + 0.5 * (2.0 * std::f64::consts::PI).ln() + series - shift
}

#[test]
fn single_precision_library() {
    let device = Device::new(MATH);
    let (pi, po) = (device.upload(&INPUTS), device.alloc(INPUTS.len() * 4));
    for (which, (name, function, ulps)) in single().into_iter().enumerate() {
        let n = INPUTS.len() as i32;
        device.run(
            "math_f32",
            1,
            32,
            &[
                Arg::Ptr(pi),
                Arg::Ptr(po),
                Arg::I32(n),
                Arg::I32(which as i32),
            ],
        );
        for (&x, got) in INPUTS.iter().zip(device.download::<f32>(po, INPUTS.len())) {
            let exact = function(f64::from(x));
            if !exact.is_finite() || !(exact as f32).is_finite() {
                assert_eq!(got, exact as f32, "{name}({x})");
                continue;
            }
            let ulp = f64::from((exact as f32).abs().next_up()) - f64::from((exact as f32).abs());
            let allowed = (ulps * ulp * 1.0001).max(if name == "lgammaf" { 1e-6 } else { 0.0 });
            assert!(
                (f64::from(got) - exact).abs() <= allowed,
                "{name}({x}) = {got:e}, exactly {exact:e}"
            );
        }
    }
}

#[test]
fn fast_math() {
    let device = Device::new(FAST);
    let (pi, po) = (device.upload(&INPUTS), device.alloc(INPUTS.len() * 4));
    for (which, (name, function, _)) in single().into_iter().enumerate() {
        let n = INPUTS.len() as i32;
        device.run(
            "math_f32",
            1,
            32,
            &[
                Arg::Ptr(pi),
                Arg::Ptr(po),
                Arg::I32(n),
                Arg::I32(which as i32),
            ],
        );
        for (&x, got) in INPUTS.iter().zip(device.download::<f32>(po, INPUTS.len())) {
            let exact = function(f64::from(x));
            if !exact.is_finite() || x == 0.0 || name == "tanf" || name == "fmodf" {
                continue;
            }
            // `__sinf` and similar: absolute 2^-21 near zero; `__expf` and `__powf`: 2 + 1.2|x|
            // ulps.
            let allowed = exact.abs() * 1e-5 + 2e-6;
            assert!(
                (f64::from(got) - exact).abs() <= allowed,
                "{name}({x}) = {got:e}, exactly {exact:e}"
            );
        }
    }
}

#[test]
fn directed_roundings() {
    let device = Device::new(MATH);
    let (pi, po) = (device.upload(&INPUTS), device.alloc(INPUTS.len() * 4));
    device.run(
        "math_f32",
        1,
        32,
        &[
            Arg::Ptr(pi),
            Arg::Ptr(po),
            Arg::I32(INPUTS.len() as i32),
            Arg::I32(99),
        ],
    );
    // Rounds to single, then steps until the result is on the wanted side of the exact value.
    let directed = |exact: f64, up: bool| {
        let near = exact as f32;
        match f64::from(near).total_cmp(&exact) {
            std::cmp::Ordering::Less if up => near.next_up(),
            std::cmp::Ordering::Greater if !up => near.next_down(),
            _ => near,
        }
    };
    for (&x, got) in INPUTS.iter().zip(device.download::<f32>(po, INPUTS.len())) {
        if x == 0.0 {
            continue;
        }
        let exact = f64::from(x);
        let sum = exact + f64::from(1e-8f32);
        let expected = directed(sum, sum < 0.0)
            + directed(exact * f64::from(1.1f32), false)
            + directed(1.0 / exact, true);
        assert_eq!(got, expected, "{x}");
    }
}

#[test]
fn double_precision_library() {
    let device = Device::new(MATH);
    let inputs = INPUTS.map(f64::from);
    let (pi, po) = (device.upload(&inputs), device.alloc(inputs.len() * 8));
    for (which, (name, function, ulps)) in double().into_iter().enumerate() {
        let n = inputs.len() as i32;
        device.run(
            "math_f64",
            1,
            32,
            &[
                Arg::Ptr(pi),
                Arg::Ptr(po),
                Arg::I32(n),
                Arg::I32(which as i32),
            ],
        );
        for (&x, got) in inputs.iter().zip(device.download::<f64>(po, inputs.len())) {
            let exact = function(x);
            if !exact.is_finite() {
                assert_eq!(got, exact, "{name}({x})");
                continue;
            }
            let ulp = exact.abs().next_up() - exact.abs();
            assert!(
                (got - exact).abs() <= ulps * ulp,
                "{name}({x}) = {got:e}, exactly {exact:e}"
            );
        }
    }
}

/// Finds the nearest f16 among all of them.
fn to_f16(x: f64) -> f64 {
    let decode = |bits: u32| {
        let (e, m) = (bits >> 10, f64::from(bits & 0x3ff));
        if e == 0 {
            m * 2f64.powi(-24)
        } else {
            (1024.0 + m) * 2f64.powi(e as i32 - 25)
        }
    };
    let (mut low, mut high) = (0u32, 0x7bffu32);
    while high - low > 1 {
        let middle = (low + high) / 2;
        if decode(middle) <= x.abs() {
            low = middle
        } else {
            high = middle
        }
    }
    let (below, above) = (x.abs() - decode(low), decode(high) - x.abs());
    let bits = if above < below || above == below && high & 1 == 0 {
        high
    } else {
        low
    };
    decode(bits).copysign(x)
}

#[test]
fn half_precision() {
    let device = Device::new(HALF);
    let (pi, po) = (device.upload(&INPUTS), device.alloc(INPUTS.len() * 48));
    device.run(
        "half_ops",
        1,
        32,
        &[Arg::Ptr(pi), Arg::Ptr(po), Arg::I32(INPUTS.len() as i32)],
    );
    let out = device.download::<f32>(po, INPUTS.len() * 12);
    for (i, &x) in INPUTS.iter().enumerate() {
        let (h, k) = (to_f16(x.into()), 0.75);
        let expected = [
            to_f16(h + k),
            to_f16(h * h),
            to_f16(h.mul_add(h, k)),
            to_f16(h / k),
            h.max(k),
            to_f16(k + k),
            to_f16(h * h),
            f64::from(u8::from(h < k)),
            to_f16(i as f64 * 33.0),
            h.trunc(),
            h.abs(),
            to_f16(h.exp()),
        ];
        for (j, (&got, want)) in out[i * 12..].iter().zip(expected).enumerate() {
            // hexp goes through an approximation; exp(20.25) overflows to infinity.
            let allowed = if j == 11 { want.abs() * 2e-3 } else { 0.0 };
            if j == 11 && h > 11.0 {
                assert_eq!(got, f32::INFINITY);
                continue;
            }
            assert!(
                (f64::from(got) - want).abs() <= allowed,
                "h({x}), result {j}: {got} {want}"
            );
        }
    }
}

#[test]
fn bfloat16() {
    let device = Device::new(HALF);
    let (pi, po) = (device.upload(&INPUTS), device.alloc(INPUTS.len() * 24));
    device.run(
        "bf16_ops",
        1,
        32,
        &[Arg::Ptr(pi), Arg::Ptr(po), Arg::I32(INPUTS.len() as i32)],
    );
    let out = device.download::<f32>(po, INPUTS.len() * 6);
    // Rounds to nearest even on the upper half of a single. Sums and products of bf16 are exact in
    // single here.
    let bf16 = |x: f32| {
        let bits = x.to_bits();
        f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
    };
    for (i, &x) in INPUTS.iter().enumerate() {
        let h = bf16(x);
        let expected = [
            bf16(h + 0.75),
            bf16(h * h),
            bf16(h.mul_add(h, 0.75)),
            h.max(0.75),
            f32::from(u8::from(h < 0.75)),
            -h,
        ];
        assert_eq!(out[i * 6..][..6], expected, "{x}");
    }
}

//! Floats of 32 and 64 bits.
//!
//! `.rn` results are the host's, which are IEEE 754's. Directed roundings take the nearest result and step by the sign of
//! its exact error. Approximations (`ex2.approx` and so on) are the host's functions, closer than the ISA demands.

use super::half::{self, Half, two_sum_error};
use super::lanes::{Files, mask_of};
use crate::code::{BinF32, BinF64, Cmp, CmpType, FloatFlags, Pred, Rounding, Row, Test, Un32, Un64};

/// The only NaN that single-precision arithmetic produces.
const NAN_BITS: u32 = 0x7fff_ffff;

#[inline(always)]
pub(crate) fn flush(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { f32::from_bits(x.to_bits() & 0x8000_0000) } else { x }
}

#[inline(always)]
fn flush_row(row: &mut [u32; 32]) {
    for bits in row {
        *bits = flush(f32::from_bits(*bits)).to_bits();
    }
}

#[inline(always)]
fn input(bits: u32, ftz: bool) -> f32 {
    let x = f32::from_bits(bits);
    if ftz { flush(x) } else { x }
}

#[inline(always)]
fn output(x: f32, flags: FloatFlags) -> u32 {
    let x = if flags.ftz { flush(x) } else { x };
    if flags.sat {
        // `max` and `min` of Rust return the number when one side is NaN.
        return x.max(0.0).min(1.0).to_bits() & 0x7fff_ffff;
    }
    if x.is_nan() { NAN_BITS } else { x.to_bits() }
}

#[inline(always)]
fn min_f32(x: f32, y: f32) -> f32 {
    if x.is_nan() {
        y
    } else if y.is_nan() {
        x
    } else if x < y || (x == y && x.is_sign_negative()) {
        x
    } else {
        y
    }
}

#[inline(always)]
fn max_f32(x: f32, y: f32) -> f32 {
    if x.is_nan() {
        y
    } else if y.is_nan() {
        x
    } else if x > y || (x == y && x.is_sign_positive()) {
        x
    } else {
        y
    }
}

#[inline(always)]
pub(crate) fn min_f64(x: f64, y: f64) -> f64 {
    if x.is_nan() {
        y
    } else if y.is_nan() {
        x
    } else if x < y || (x == y && x.is_sign_negative()) {
        x
    } else {
        y
    }
}

#[inline(always)]
pub(crate) fn max_f64(x: f64, y: f64) -> f64 {
    if x.is_nan() {
        y
    } else if y.is_nan() {
        x
    } else if x > y || (x == y && x.is_sign_positive()) {
        x
    } else {
        y
    }
}

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
        return if towards { f32::MAX.copysign(nearest) } else { nearest };
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

fn add_r(x: f32, y: f32, rounding: Rounding) -> f32 {
    let (a, b) = (f64::from(x), f64::from(y));
    if let Some(zero) = zero_sum(a, b, rounding) {
        return zero;
    }
    if rounding == Rounding::Down && a == 0.0 && b == 0.0 && (a.is_sign_negative() || b.is_sign_negative()) {
        return -0.0;
    }
    let sum = a + b;
    round_pair(sum, two_sum_error(a, b, sum), rounding)
}

fn mul_r(x: f32, y: f32, rounding: Rounding) -> f32 {
    // Exact: 24 + 24 bits.
    round_pair(f64::from(x) * f64::from(y), 0.0, rounding)
}

fn fma_r(x: f32, y: f32, z: f32, rounding: Rounding) -> f32 {
    let (product, c) = (f64::from(x) * f64::from(y), f64::from(z));
    if let Some(zero) = zero_sum(product, c, rounding) {
        return zero;
    }
    let sum = product + c;
    round_pair(sum, two_sum_error(product, c, sum), rounding)
}

fn div_r(x: f32, y: f32, rounding: Rounding) -> f32 {
    let (a, b) = (f64::from(x), f64::from(y));
    let quotient = a / b;
    if !quotient.is_finite() || quotient == 0.0 {
        return quotient as f32;
    }
    // The residual of a correctly rounded quotient is exact with one fused operation.
    let rest = (-quotient).mul_add(b, a) * b.signum();
    round_pair(quotient, rest, rounding)
}

fn sqrt_r(x: f32, rounding: Rounding) -> f32 {
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
        return if towards { f64::MAX.copysign(nearest) } else { nearest };
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
    if nearest.is_infinite() && finite_inputs { -nearest.signum() } else { error }
}

fn add_r64(x: f64, y: f64, rounding: Rounding) -> f64 {
    let sum = x + y;
    if sum == 0.0 && rounding == Rounding::Down && !(x.is_sign_positive() && y.is_sign_positive() && x == 0.0) {
        return -0.0;
    }
    direct_f64(sum, lost(sum, two_sum_error(x, y, sum), x.is_finite() && y.is_finite()), rounding)
}

fn mul_r64(x: f64, y: f64, rounding: Rounding) -> f64 {
    let product = x * y;
    direct_f64(product, lost(product, product_error(x, y, product), x.is_finite() && y.is_finite()), rounding)
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

fn fma_r64(x: f64, y: f64, z: f64, rounding: Rounding) -> f64 {
    let nearest = x.mul_add(y, z);
    if nearest == 0.0 && rounding == Rounding::Down && !(z == 0.0 && z.is_sign_positive() && x * y == 0.0 && (x * y).is_sign_positive()) {
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
    direct_f64(nearest, lost(nearest, error, x.is_finite() && y.is_finite() && z.is_finite()), rounding)
}

fn div_r64(x: f64, y: f64, rounding: Rounding) -> f64 {
    let quotient = x / y;
    if quotient.is_nan() || x == 0.0 || y == 0.0 || x.is_infinite() || y.is_infinite() {
        return quotient;
    }
    let error = -product_error(quotient, y, x) * y.signum();
    direct_f64(quotient, lost(quotient, error, true), rounding)
}

fn sqrt_r64(x: f64, rounding: Rounding) -> f64 {
    let root = x.sqrt();
    if !root.is_finite() || root == 0.0 {
        return root;
    }
    direct_f64(root, -product_error(root, root, x), rounding)
}

/// `rcp.approx.ftz.f64` and `rsqrt.approx.f64` work on the upper words: the lower half of the result is zero.
fn upper_word(x: f64) -> f64 {
    f64::from_bits(x.to_bits() & !0xffff_ffff)
}

fn flush64(x: f64) -> f64 {
    if x.abs() < f64::MIN_POSITIVE { 0f64.copysign(x) } else { x }
}

impl Files {
    #[inline(always)]
    pub(crate) fn bin_f32(&self, op: BinF32, flags: FloatFlags, mask: u32, d: Row, a: Row, b: Row) {
        let (a, b) = (self.get32(a), self.get32(b));
        macro_rules! all {
            ($e:expr) => {
                if flags == FloatFlags::default() {
                    self.put32(d, mask, |l| output($e(f32::from_bits(a[l]), f32::from_bits(b[l])), FloatFlags::default()))
                } else {
                    self.put32(d, mask, |l| output($e(input(a[l], flags.ftz), input(b[l], flags.ftz)), flags))
                }
            };
        }
        match op {
            BinF32::Add => all!(|x: f32, y: f32| x + y),
            BinF32::Sub => all!(|x: f32, y: f32| x - y),
            BinF32::Mul => all!(|x: f32, y: f32| x * y),
            BinF32::Div => all!(|x: f32, y: f32| x / y),
            BinF32::Min => all!(min_f32),
            BinF32::Max => all!(max_f32),
            _ => self.bin_f32_scalar(op, flags, mask, d, &a, &b),
        }
    }

    /// What gains nothing from vector instructions, compiled once for all of them.
    #[inline(never)]
    fn bin_f32_scalar(&self, op: BinF32, flags: FloatFlags, mask: u32, d: Row, a: &[u32; 32], b: &[u32; 32]) {
        macro_rules! each {
            ($e:expr) => {
                self.each32(d, mask, |l| output($e(input(a[l], flags.ftz), input(b[l], flags.ftz)), flags))
            };
        }
        match op {
            BinF32::MinNan => each!(|x: f32, y: f32| if x.is_nan() || y.is_nan() { f32::NAN } else { min_f32(x, y) }),
            BinF32::MaxNan => each!(|x: f32, y: f32| if x.is_nan() || y.is_nan() { f32::NAN } else { max_f32(x, y) }),
            BinF32::MinXorsign => each!(|x: f32, y: f32| xorsign(min_f32(x.abs(), y.abs()), x, y)),
            BinF32::MaxXorsign => each!(|x: f32, y: f32| xorsign(max_f32(x.abs(), y.abs()), x, y)),
            BinF32::AddR(r) => each!(|x, y| add_r(x, y, r)),
            BinF32::SubR(r) => each!(|x, y: f32| add_r(x, -y, r)),
            BinF32::MulR(r) => each!(|x, y| mul_r(x, y, r)),
            BinF32::DivR(r) => each!(|x, y| div_r(x, y, r)),
            _ => {}
        }
    }

    #[inline(always)]
    pub(crate) fn fma_f32(&self, rounding: Rounding, flags: FloatFlags, mask: u32, d: Row, rows: [Row; 3]) {
        let [a, b, c] = rows.map(|row| self.get32(row));
        let get = |v: &[u32; 32], l: usize| input(v[l], flags.ftz);
        if rounding != Rounding::Nearest {
            return self.fma_f32_directed(rounding, flags, mask, d, &[a, b, c]);
        }
        if flags == FloatFlags::default() {
            let f = f32::from_bits;
            return self.put32(d, mask, |l| output(f(a[l]).mul_add(f(b[l]), f(c[l])), FloatFlags::default()));
        }
        self.put32(d, mask, |l| output(get(&a, l).mul_add(get(&b, l), get(&c, l)), flags));
    }

    #[inline(never)]
    fn fma_f32_directed(&self, rounding: Rounding, flags: FloatFlags, mask: u32, d: Row, rows: &[[u32; 32]; 3]) {
        let get = |i: usize, l: usize| input(rows[i][l], flags.ftz);
        self.each32(d, mask, |l| output(fma_r(get(0, l), get(1, l), get(2, l), rounding), flags));
    }

    #[inline(never)]
    fn fma_f64_directed(&self, rounding: Rounding, mask: u32, d: Row, rows: &[[u64; 32]; 3]) {
        let get = |i: usize, l: usize| f64::from_bits(rows[i][l]);
        self.each64(d, mask, |l| fma_r64(get(0, l), get(1, l), get(2, l), rounding).to_bits());
    }

    #[inline(always)]
    pub(crate) fn float_un32(&self, op: Un32, flags: FloatFlags, mask: u32, d: Row, a: &[u32; 32]) {
        let a = *a;
        match op {
            // Sign operations keep NaN payloads.
            Un32::NegF if !flags.ftz && !flags.sat => self.put32(d, mask, |l| a[l] ^ 0x8000_0000),
            Un32::AbsF if !flags.ftz && !flags.sat => self.put32(d, mask, |l| a[l] & 0x7fff_ffff),
            Un32::NegF => self.put32(d, mask, |l| output(-input(a[l], flags.ftz), flags)),
            Un32::AbsF => self.put32(d, mask, |l| output(input(a[l], flags.ftz).abs(), flags)),
            Un32::RcpF(Rounding::Nearest) => self.put32(d, mask, |l| output(1.0 / input(a[l], flags.ftz), flags)),
            Un32::SqrtF(Rounding::Nearest) => self.put32(d, mask, |l| output(input(a[l], flags.ftz).sqrt(), flags)),
            Un32::RsqrtF => self.put32(d, mask, |l| output((1.0 / f64::from(input(a[l], flags.ftz)).sqrt()) as f32, flags)),
            _ => self.float_un32_scalar(op, flags, mask, d, &a),
        }
    }

    #[inline(never)]
    fn float_un32_scalar(&self, op: Un32, flags: FloatFlags, mask: u32, d: Row, a: &[u32; 32]) {
        macro_rules! each {
            ($e:expr) => {
                self.each32(d, mask, |l| output($e(input(a[l], flags.ftz)), flags))
            };
        }
        let half = |op: Un32, x: u32| match op {
            Un32::Ex2F16 => half::F16::from_f64(half::F16::to_f64(x).exp2(), Rounding::Nearest),
            Un32::TanhF16 => half::F16::from_f64(half::F16::to_f64(x).tanh(), Rounding::Nearest),
            Un32::Ex2Bf16 => half::Bf16::from_f64(half::Bf16::to_f64(x).exp2(), Rounding::Nearest),
            _ => half::Bf16::from_f64(half::Bf16::to_f64(x).tanh(), Rounding::Nearest),
        };
        match op {
            Un32::RcpF(r) => each!(|x| div_r(1.0, x, r)),
            Un32::SqrtF(r) => each!(|x| sqrt_r(x, r)),
            Un32::SinF => each!(|x: f32| x.sin()),
            Un32::CosF => each!(|x: f32| x.cos()),
            Un32::Ex2F => each!(|x: f32| x.exp2()),
            Un32::Lg2F => each!(|x: f32| x.log2()),
            Un32::TanhF => each!(|x: f32| x.tanh()),
            Un32::Ex2F16 | Un32::TanhF16 | Un32::Ex2Bf16 | Un32::TanhBf16 => self.each32(d, mask, |l| half(op, a[l])),
            _ => {
                let op = match op {
                    Un32::Ex2F16x2 => Un32::Ex2F16,
                    Un32::TanhF16x2 => Un32::TanhF16,
                    Un32::Ex2Bf16x2 => Un32::Ex2Bf16,
                    _ => Un32::TanhBf16,
                };
                self.each32(d, mask, |l| half::packed(a[l], 0, |x, _| half(op, x)));
            }
        }
    }

    #[inline(always)]
    pub(crate) fn bin_f64(&self, op: BinF64, mask: u32, d: Row, a: Row, b: Row) {
        let (a, b) = (self.get64(a), self.get64(b));
        macro_rules! all {
            ($e:expr) => {
                self.put64(d, mask, |l| $e(f64::from_bits(a[l]), f64::from_bits(b[l])).to_bits())
            };
        }
        match op {
            BinF64::Add => all!(|x: f64, y: f64| x + y),
            BinF64::Sub => all!(|x: f64, y: f64| x - y),
            BinF64::Mul => all!(|x: f64, y: f64| x * y),
            BinF64::Div => all!(|x: f64, y: f64| x / y),
            BinF64::Min => all!(min_f64),
            BinF64::Max => all!(max_f64),
            BinF64::CopySign => self.put64(d, mask, |l| b[l] & !(1 << 63) | a[l] & 1 << 63),
            _ => self.bin_f64_scalar(op, mask, d, &a, &b),
        }
    }

    /// What gains nothing from vector instructions, compiled once for all of them.
    #[inline(never)]
    fn bin_f64_scalar(&self, op: BinF64, mask: u32, d: Row, a: &[u64; 32], b: &[u64; 32]) {
        macro_rules! each {
            ($e:expr) => {
                self.each64(d, mask, |l| $e(f64::from_bits(a[l]), f64::from_bits(b[l])).to_bits())
            };
        }
        match op {
            BinF64::AddR(r) => each!(|x, y| add_r64(x, y, r)),
            BinF64::SubR(r) => each!(|x, y: f64| add_r64(x, -y, r)),
            BinF64::MulR(r) => each!(|x, y| mul_r64(x, y, r)),
            BinF64::DivR(r) => each!(|x, y| div_r64(x, y, r)),
            _ => {}
        }
    }

    #[inline(always)]
    pub(crate) fn fma_f64(&self, rounding: Rounding, mask: u32, d: Row, rows: [Row; 3]) {
        let [a, b, c] = rows.map(|row| self.get64(row));
        let f = f64::from_bits;
        if rounding == Rounding::Nearest {
            self.put64(d, mask, |l| f(a[l]).mul_add(f(b[l]), f(c[l])).to_bits());
        } else {
            self.fma_f64_directed(rounding, mask, d, &[a, b, c]);
        }
    }

    #[inline(never)]
    pub(crate) fn float_un64(&self, op: Un64, mask: u32, d: Row, a: &[u64; 32]) {
        let a = *a;
        macro_rules! each {
            ($e:expr) => {
                self.each64(d, mask, |l| $e(f64::from_bits(a[l])).to_bits())
            };
        }
        match op {
            Un64::NegF => self.put64(d, mask, |l| a[l] ^ 1 << 63),
            Un64::AbsF => self.put64(d, mask, |l| a[l] & !(1 << 63)),
            Un64::RcpF(Rounding::Nearest) => each!(|x: f64| 1.0 / x),
            Un64::RcpF(r) => each!(|x| div_r64(1.0, x, r)),
            Un64::SqrtF(Rounding::Nearest) => each!(|x: f64| x.sqrt()),
            Un64::SqrtF(r) => each!(|x| sqrt_r64(x, r)),
            Un64::RcpApproxF => each!(|x| upper_word(flush64(1.0 / flush64(upper_word(x))))),
            _ => each!(|x: f64| upper_word(1.0 / x.sqrt())),
        }
    }

    #[inline(always)]
    pub(crate) fn setp(&self, ty: CmpType, cmp: Cmp, ftz: bool, mask: u32, d: Pred, a: Row, b: Row) {
        macro_rules! ordered {
            (|$l:ident| $a:expr, $b:expr) => {
                match cmp {
                    Cmp::Eq => mask_of(|$l| $a == $b),
                    Cmp::Ne => mask_of(|$l| $a != $b),
                    Cmp::Lt => mask_of(|$l| $a < $b),
                    Cmp::Le => mask_of(|$l| $a <= $b),
                    Cmp::Gt => mask_of(|$l| $a > $b),
                    _ => mask_of(|$l| $a >= $b),
                }
            };
        }
        macro_rules! float {
            (|$l:ident| $a:expr, $b:expr) => {
                match cmp {
                    Cmp::Eq => mask_of(|$l| $a == $b),
                    Cmp::Ne => mask_of(|$l| $a < $b || $a > $b),
                    Cmp::Lt => mask_of(|$l| $a < $b),
                    Cmp::Le => mask_of(|$l| $a <= $b),
                    Cmp::Gt => mask_of(|$l| $a > $b),
                    Cmp::Ge => mask_of(|$l| $a >= $b),
                    Cmp::EqU => mask_of(|$l| !($a < $b || $a > $b)),
                    Cmp::NeU => mask_of(|$l| $a != $b),
                    Cmp::LtU => mask_of(|$l| !($a >= $b)),
                    Cmp::LeU => mask_of(|$l| !($a > $b)),
                    Cmp::GtU => mask_of(|$l| !($a <= $b)),
                    Cmp::GeU => mask_of(|$l| !($a < $b)),
                    Cmp::Num => mask_of(|$l| !$a.is_nan() && !$b.is_nan()),
                    Cmp::Nan => mask_of(|$l| $a.is_nan() || $b.is_nan()),
                }
            };
        }
        let value = match ty {
            CmpType::U32 | CmpType::S32 | CmpType::F32 | CmpType::F16 | CmpType::Bf16 => {
                let (mut a, mut b) = (self.get32(a), self.get32(b));
                match ty {
                    CmpType::U32 => ordered!(|l| a[l], b[l]),
                    CmpType::S32 => ordered!(|l| (a[l] as i32), b[l] as i32),
                    CmpType::F32 => {
                        if ftz {
                            flush_row(&mut a);
                            flush_row(&mut b);
                        }
                        float!(|l| f32::from_bits(a[l]), f32::from_bits(b[l]))
                    }
                    _ => compare_halves(ty, cmp, &a, &b),
                }
            }
            _ => {
                let (a, b) = (self.get64(a), self.get64(b));
                match ty {
                    CmpType::U64 => ordered!(|l| a[l], b[l]),
                    CmpType::S64 => ordered!(|l| (a[l] as i64), b[l] as i64),
                    _ => float!(|l| f64::from_bits(a[l]), f64::from_bits(b[l])),
                }
            }
        };
        self.set_pred(d, mask, value);
    }

    #[inline(never)]
    pub(crate) fn setp_x2(&self, bf16: bool, cmp: Cmp, mask: u32, dests: [Pred; 2], a: Row, b: Row) {
        let (a, b) = (self.get32(a), self.get32(b));
        let value = |bits: u32| if bf16 { half::Bf16::to_f64(bits & 0xffff) } else { half::F16::to_f64(bits & 0xffff) };
        for (half, d) in dests.into_iter().enumerate() {
            let shift = half * 16;
            let result = mask_of(|l| compare(cmp, value(a[l] >> shift), value(b[l] >> shift)));
            self.set_pred(d, mask, result);
        }
    }

    #[inline(never)]
    pub(crate) fn testp(&self, wide: bool, test: Test, mask: u32, d: Pred, a: Row) {
        use std::num::FpCategory;
        let category = |l: usize| {
            if wide { f64::from_bits(self.lane64(a, l)).classify() } else { f32::from_bits(self.lane32(a, l)).classify() }
        };
        let value = mask_of(|l| match (test, category(l)) {
            (Test::Finite, c) => !matches!(c, FpCategory::Nan | FpCategory::Infinite),
            (Test::Infinite, c) => c == FpCategory::Infinite,
            (Test::Number, c) => c != FpCategory::Nan,
            (Test::NotANumber, c) => c == FpCategory::Nan,
            (Test::Normal, c) => c == FpCategory::Normal,
            (Test::Subnormal, c) => c == FpCategory::Subnormal,
        });
        self.set_pred(d, mask, value);
    }
}

#[inline(never)]
fn compare_halves(ty: CmpType, cmp: Cmp, a: &[u32; 32], b: &[u32; 32]) -> u32 {
    let value = |bits: u32| if ty == CmpType::F16 { half::F16::to_f64(bits) } else { half::Bf16::to_f64(bits) };
    mask_of(|l| compare(cmp, value(a[l]), value(b[l])))
}

fn compare(cmp: Cmp, a: f64, b: f64) -> bool {
    let nan = a.is_nan() || b.is_nan();
    match cmp {
        Cmp::Eq => a == b,
        Cmp::Ne => !nan && a != b,
        Cmp::Lt => a < b,
        Cmp::Le => a <= b,
        Cmp::Gt => a > b,
        Cmp::Ge => a >= b,
        Cmp::EqU => nan || a == b,
        Cmp::NeU => nan || a != b,
        Cmp::LtU => nan || a < b,
        Cmp::LeU => nan || a <= b,
        Cmp::GtU => nan || a > b,
        Cmp::GeU => nan || a >= b,
        Cmp::Num => !nan,
        Cmp::Nan => nan,
    }
}

fn xorsign(magnitude: f32, x: f32, y: f32) -> f32 {
    let sign = (x.to_bits() ^ y.to_bits()) & 0x8000_0000;
    f32::from_bits(magnitude.to_bits() & 0x7fff_ffff | sign)
}

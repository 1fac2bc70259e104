//! Floats of 32 and 64 bits.
//!
//! `.rn` results are the host's, which follow IEEE 754. Directed roundings step from the nearest
//! result by the sign of its exact error. Approximations (`ex2.approx` and so on) are the host's
//! functions, which are more precise than the ISA demands.

use crate::code::{BinF32, BinF64, FloatFlags, Rounding, Row, Un32, Un64};
use crate::lanes::Files;
use crate::number::extremes::{max_f32, max_f64, min_f32, min_f64};
use crate::number::half::{self, Half};
use crate::number::rounding::{
    add_r, add_r64, div_r, div_r64, fma_r, fma_r64, mul_r, mul_r64, sqrt_r, sqrt_r64,
};

/// The only NaN that single-precision arithmetic produces.
pub(crate) const NAN_BITS: u32 = 0x7fff_ffff;

#[inline(always)]
pub(crate) fn flush(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE {
        f32::from_bits(x.to_bits() & 0x8000_0000)
    } else {
        x
    }
}

/// Multiplies; the product is also zero if only rounding at the end of the normal range makes it
/// normal, as on an H200.
#[inline(always)]
pub(crate) fn product_ftz(x: f32, y: f32) -> f32 {
    const UP: f32 = 18_446_744_073_709_551_616.0;
    let product = x * y;
    // Scaled up, the product has all its bits. One that overflows there is not small here.
    if (x * UP * y).abs() < f32::MIN_POSITIVE * UP {
        0f32.copysign(product)
    } else {
        product
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
    number(x)
}

/// Returns the bits of a result, with every NaN replaced by one.
#[inline(always)]
pub(crate) fn number(x: f32) -> u32 {
    if x.is_nan() { NAN_BITS } else { x.to_bits() }
}

/// Clears the lower half of a result: `rcp.approx.ftz.f64` and `rsqrt.approx.ftz.f64` work on upper
/// words.
fn upper_word(x: f64) -> f64 {
    f64::from_bits(x.to_bits() & !0xffff_ffff)
}

fn flush64(x: f64) -> f64 {
    if x.abs() < f64::MIN_POSITIVE {
        0f64.copysign(x)
    } else {
        x
    }
}

/// Chooses the NaN of a double-precision result, which PTX leaves open: the last of the operands
/// that is NaN, made quiet, as on an H200.
#[inline(always)]
fn one_of<const N: usize>(result: u64, operands: [u64; N]) -> u64 {
    const QUIET: u64 = 1 << 51;
    const NAN_BITS: u64 = 0xfff8 << 48;
    if !f64::from_bits(result).is_nan() {
        return result;
    }
    let mut nan = NAN_BITS;
    for operand in operands {
        if f64::from_bits(operand).is_nan() {
            nan = operand | QUIET;
        }
    }
    nan
}

impl Files {
    #[inline(always)]
    pub(crate) fn bin_f32(&self, op: BinF32, flags: FloatFlags, mask: u32, d: Row, a: Row, b: Row) {
        let (a, b) = (self.get32(a), self.get32(b));
        macro_rules! all {
            ($e:expr) => {
                if flags == FloatFlags::default() {
                    self.put32(d, mask, |l| {
                        output(
                            $e(f32::from_bits(a[l]), f32::from_bits(b[l])),
                            FloatFlags::default(),
                        )
                    })
                } else {
                    self.put32(d, mask, |l| {
                        output($e(input(a[l], flags.ftz), input(b[l], flags.ftz)), flags)
                    })
                }
            };
        }
        match op {
            BinF32::Add => all!(|x: f32, y: f32| x + y),
            BinF32::Sub => all!(|x: f32, y: f32| x - y),
            BinF32::Mul if flags.ftz => all!(product_ftz),
            BinF32::Mul => all!(|x: f32, y: f32| x * y),
            BinF32::Div => all!(|x: f32, y: f32| x / y),
            BinF32::Min => all!(min_f32),
            BinF32::Max => all!(max_f32),
            _ => self.bin_f32_scalar(op, flags, mask, d, &a, &b),
        }
    }

    /// Operations that gain nothing from vector instructions, compiled once for all instruction
    /// sets.
    #[inline(never)]
    fn bin_f32_scalar(
        &self,
        op: BinF32,
        flags: FloatFlags,
        mask: u32,
        d: Row,
        a: &[u32; 32],
        b: &[u32; 32],
    ) {
        macro_rules! each {
            ($e:expr) => {
                self.each32(d, mask, |l| {
                    output($e(input(a[l], flags.ftz), input(b[l], flags.ftz)), flags)
                })
            };
        }
        match op {
            BinF32::MinNan => each!(|x: f32, y: f32| if x.is_nan() || y.is_nan() {
                f32::NAN
            } else {
                min_f32(x, y)
            }),
            BinF32::MaxNan => each!(|x: f32, y: f32| if x.is_nan() || y.is_nan() {
                f32::NAN
            } else {
                max_f32(x, y)
            }),
            // According to the manual: the reciprocal of a divisor beyond 2^126 is flushed, and
            // makes NaN of infinity.
            BinF32::DivApprox => each!(|x: f32, y: f32| {
                let large = f32::from_bits((127 + 126) << 23);
                if y.abs() > large && y.is_finite() {
                    x * 0f32.copysign(y)
                } else {
                    x / y
                }
            }),
            BinF32::MinXorsign => each!(|x: f32, y: f32| xorsign(min_f32(x.abs(), y.abs()), x, y)),
            BinF32::MaxXorsign => each!(|x: f32, y: f32| xorsign(max_f32(x.abs(), y.abs()), x, y)),
            BinF32::AddR(r) => each!(|x, y| add_r(x, y, r)),
            BinF32::SubR(r) => each!(|x, y: f32| add_r(x, -y, r)),
            BinF32::MulR(r) => each!(|x, y| mul_r(x, y, r, flags.ftz)),
            BinF32::DivR(r) => each!(|x, y| div_r(x, y, r, flags.ftz)),
            _ => {}
        }
    }

    #[inline(always)]
    pub(crate) fn fma_f32(
        &self,
        rounding: Rounding,
        flags: FloatFlags,
        mask: u32,
        d: Row,
        rows: [Row; 3],
    ) {
        let [a, b, c] = [
            self.get32(rows[0]),
            self.get32(rows[1]),
            self.get32(rows[2]),
        ];
        let get = |v: &[u32; 32], l: usize| input(v[l], flags.ftz);
        if rounding != Rounding::Nearest {
            return self.fma_f32_directed(rounding, flags, mask, d, &[a, b, c]);
        }
        if flags == FloatFlags::default() {
            let f = f32::from_bits;
            return self.put32(d, mask, |l| {
                output(f(a[l]).mul_add(f(b[l]), f(c[l])), FloatFlags::default())
            });
        }
        self.put32(d, mask, |l| {
            output(get(&a, l).mul_add(get(&b, l), get(&c, l)), flags)
        });
    }

    #[inline(never)]
    fn fma_f32_directed(
        &self,
        rounding: Rounding,
        flags: FloatFlags,
        mask: u32,
        d: Row,
        rows: &[[u32; 32]; 3],
    ) {
        let get = |i: usize, l: usize| input(rows[i][l], flags.ftz);
        self.each32(d, mask, |l| {
            output(fma_r(get(0, l), get(1, l), get(2, l), rounding), flags)
        });
    }

    #[inline(never)]
    fn fma_f64_directed(&self, rounding: Rounding, mask: u32, d: Row, rows: &[[u64; 32]; 3]) {
        let get = |i: usize, l: usize| f64::from_bits(rows[i][l]);
        self.each64(d, mask, |l| {
            let result = fma_r64(get(0, l), get(1, l), get(2, l), rounding);
            one_of(result.to_bits(), [0, 2, 1].map(|i| rows[i][l]))
        });
    }

    #[inline(always)]
    pub(crate) fn float_un32(&self, op: Un32, flags: FloatFlags, mask: u32, d: Row, a: &[u32; 32]) {
        let a = *a;
        match op {
            Un32::NegF => self.put32(d, mask, |l| output(-input(a[l], flags.ftz), flags)),
            Un32::AbsF => self.put32(d, mask, |l| output(input(a[l], flags.ftz).abs(), flags)),
            Un32::RcpF(Rounding::Nearest) => {
                self.put32(d, mask, |l| output(1.0 / input(a[l], flags.ftz), flags))
            }
            Un32::SqrtF(Rounding::Nearest) => {
                self.put32(d, mask, |l| output(input(a[l], flags.ftz).sqrt(), flags))
            }
            Un32::RsqrtF => self.put32(d, mask, |l| {
                output(
                    (1.0 / f64::from(input(a[l], flags.ftz)).sqrt()) as f32,
                    flags,
                )
            }),
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
            Un32::Ex2Bf16 => {
                let bits = half::Bf16::from_f64(half::Bf16::to_f64(x).exp2(), Rounding::Nearest);
                // `ex2.approx.ftz.bf16`: subnormal results become zero.
                if bits & 0x7f80 == 0 {
                    bits & 0x8000
                } else {
                    bits
                }
            }
            _ => half::Bf16::from_f64(half::Bf16::to_f64(x).tanh(), Rounding::Nearest),
        };
        match op {
            Un32::RcpF(r) => each!(|x| div_r(1.0, x, r, flags.ftz)),
            Un32::SqrtF(r) => each!(|x| sqrt_r(x, r)),
            Un32::SinF => each!(|x: f32| x.sin()),
            Un32::CosF => each!(|x: f32| x.cos()),
            Un32::Ex2F => each!(crate::number::approx::ex2),
            Un32::Lg2F => each!(|x: f32| x.log2()),
            Un32::TanhF => each!(|x: f32| x.tanh()),
            Un32::Ex2F16 | Un32::TanhF16 | Un32::Ex2Bf16 | Un32::TanhBf16 => {
                self.each32(d, mask, |l| half(op, a[l]))
            }
            Un32::FlushF16 => {
                self.each32(d, mask, |l| {
                    half::packed(a[l], 0, |x, _| half::flush_f16(x))
                });
            }
            Un32::SaturateF16 => {
                self.each32(d, mask, |l| {
                    half::packed(a[l], 0, |x, _| half::saturate_f16(x))
                });
            }
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
                self.put64(d, mask, |l| {
                    let result: f64 = $e(f64::from_bits(a[l]), f64::from_bits(b[l]));
                    one_of(result.to_bits(), [a[l], b[l]])
                })
            };
        }
        match op {
            // The dividend's NaN takes precedence over the divisor's.
            BinF64::Div => self.put64(d, mask, |l| {
                let result = f64::from_bits(a[l]) / f64::from_bits(b[l]);
                one_of(result.to_bits(), [b[l], a[l]])
            }),
            BinF64::Add => all!(|x: f64, y: f64| x + y),
            BinF64::Sub => all!(|x: f64, y: f64| x - y),
            BinF64::Mul => all!(|x: f64, y: f64| x * y),
            BinF64::Min => all!(min_f64),
            BinF64::Max => all!(max_f64),
            BinF64::CopySign => self.put64(d, mask, |l| b[l] & !(1 << 63) | a[l] & 1 << 63),
            _ => self.bin_f64_scalar(op, mask, d, &a, &b),
        }
    }

    /// Operations that gain nothing from vector instructions, compiled once for all instruction
    /// sets.
    #[inline(never)]
    fn bin_f64_scalar(&self, op: BinF64, mask: u32, d: Row, a: &[u64; 32], b: &[u64; 32]) {
        macro_rules! each {
            ($e:expr) => {
                self.each64(d, mask, |l| {
                    let result: f64 = $e(f64::from_bits(a[l]), f64::from_bits(b[l]));
                    one_of(result.to_bits(), [a[l], b[l]])
                })
            };
        }
        match op {
            // The dividend's NaN takes precedence over the divisor's.
            BinF64::Div => self.put64(d, mask, |l| {
                let result = f64::from_bits(a[l]) / f64::from_bits(b[l]);
                one_of(result.to_bits(), [b[l], a[l]])
            }),
            BinF64::AddR(r) => each!(|x, y| add_r64(x, y, r)),
            BinF64::SubR(r) => each!(|x, y: f64| add_r64(x, -y, r)),
            BinF64::MulR(r) => each!(|x, y| mul_r64(x, y, r)),
            BinF64::DivR(r) => self.each64(d, mask, |l| {
                let result = div_r64(f64::from_bits(a[l]), f64::from_bits(b[l]), r);
                one_of(result.to_bits(), [b[l], a[l]])
            }),
            _ => {}
        }
    }

    #[inline(always)]
    pub(crate) fn fma_f64(&self, rounding: Rounding, mask: u32, d: Row, rows: [Row; 3]) {
        let [a, b, c] = [
            self.get64(rows[0]),
            self.get64(rows[1]),
            self.get64(rows[2]),
        ];
        let f = f64::from_bits;
        if rounding == Rounding::Nearest {
            self.put64(d, mask, |l| {
                let result = f(a[l]).mul_add(f(b[l]), f(c[l]));
                one_of(result.to_bits(), [a[l], c[l], b[l]])
            });
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
            Un64::NegF => self.put64(d, mask, |l| one_of(a[l] ^ 1 << 63, [a[l]])),
            Un64::AbsF => self.put64(d, mask, |l| one_of(a[l] & !(1 << 63), [a[l]])),
            Un64::RcpF(Rounding::Nearest) => each!(|x: f64| 1.0 / x),
            Un64::RcpF(r) => each!(|x| div_r64(1.0, x, r)),
            Un64::SqrtF(Rounding::Nearest) => each!(|x: f64| x.sqrt()),
            Un64::SqrtF(r) => each!(|x| sqrt_r64(x, r)),
            Un64::RcpApproxF => each!(|x| upper_word(flush64(1.0 / flush64(upper_word(x))))),
            Un64::RsqrtApproxFtzF => {
                each!(|x: f64| upper_word(1.0 / flush64(upper_word(x)).sqrt()))
            }
            _ => each!(|x: f64| 1.0 / x.sqrt()),
        }
    }
}

fn xorsign(magnitude: f32, x: f32, y: f32) -> f32 {
    let sign = (x.to_bits() ^ y.to_bits()) & 0x8000_0000;
    f32::from_bits(magnitude.to_bits() & 0x7fff_ffff | sign)
}

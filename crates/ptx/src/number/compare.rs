//! `setp` and `testp`.

use crate::code::{Cmp, CmpType, Pred, Row, Test};
use crate::lanes::{Files, mask_of};
use crate::number::float::flush;
use crate::number::half::{self, Half};

impl Files {
    #[inline(always)]
    pub(crate) fn setp(
        &self,
        ty: CmpType,
        cmp: Cmp,
        ftz: bool,
        mask: u32,
        d: Pred,
        a: Row,
        b: Row,
    ) {
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
    pub(crate) fn setp_x2(
        &self,
        bf16: bool,
        cmp: Cmp,
        mask: u32,
        dests: [Pred; 2],
        a: Row,
        b: Row,
    ) {
        let (a, b) = (self.get32(a), self.get32(b));
        let value = |bits: u32| {
            if bf16 {
                half::Bf16::to_f64(bits & 0xffff)
            } else {
                half::F16::to_f64(bits & 0xffff)
            }
        };
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
            if wide {
                f64::from_bits(self.lane64(a, l)).classify()
            } else {
                f32::from_bits(self.lane32(a, l)).classify()
            }
        };
        let value = mask_of(|l| match (test, category(l)) {
            (Test::Finite, c) => !matches!(c, FpCategory::Nan | FpCategory::Infinite),
            (Test::Infinite, c) => c == FpCategory::Infinite,
            (Test::Number, c) => c != FpCategory::Nan,
            (Test::NotANumber, c) => c == FpCategory::Nan,
            // Zero counts as normal (PTX ISA 9.7.3, testp).
            (Test::Normal, c) => matches!(c, FpCategory::Normal | FpCategory::Zero),
            (Test::Subnormal, c) => c == FpCategory::Subnormal,
        });
        self.set_pred(d, mask, value);
    }
}

#[inline(always)]
fn flush_row(row: &mut [u32; 32]) {
    for bits in row {
        *bits = flush(f32::from_bits(*bits)).to_bits();
    }
}

#[inline(never)]
fn compare_halves(ty: CmpType, cmp: Cmp, a: &[u32; 32], b: &[u32; 32]) -> u32 {
    let value = |bits: u32| {
        if ty == CmpType::F16 {
            half::F16::to_f64(bits)
        } else {
            half::Bf16::to_f64(bits)
        }
    };
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

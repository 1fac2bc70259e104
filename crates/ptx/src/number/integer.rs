//! Integer instructions. Results that the ISA leaves open (division by zero) are all ones, as on
//! GPUs.

use crate::code::{
    Bin32, Bin64, Carry, FloatFlags, Narrow, Row, Shift64, Tern32, Tern64, Un32, Un64,
};
use crate::lanes::Files;
use crate::number::half;
use crate::number::scalar::{
    bfe, bfi, byte, carry_rows, clamp_s24, dp2a, find_nth_set, flip, mul_hi, prmt, sar, shl, shr,
    szext,
};

impl Files {
    #[inline(always)]
    pub(crate) fn bin32(&self, op: Bin32, mask: u32, d: Row, a: Row, b: Row) {
        let (a, b) = (self.get32(a), self.get32(b));
        macro_rules! all {
            (|$x:ident, $y:ident| $e:expr) => {
                self.put32(d, mask, |l| {
                    let ($x, $y) = (a[l], b[l]);
                    $e
                })
            };
        }
        match op {
            Bin32::Add => all!(|x, y| x.wrapping_add(y)),
            Bin32::Sub => all!(|x, y| x.wrapping_sub(y)),
            Bin32::AddSatS => all!(|x, y| (x as i32).saturating_add(y as i32) as u32),
            Bin32::SubSatS => all!(|x, y| (x as i32).saturating_sub(y as i32) as u32),
            Bin32::MulLo => all!(|x, y| x.wrapping_mul(y)),
            Bin32::MulHiS => all!(|x, y| (i64::from(x as i32) * i64::from(y as i32) >> 32) as u32),
            Bin32::MulHiU => all!(|x, y| (u64::from(x) * u64::from(y) >> 32) as u32),
            Bin32::MinS => all!(|x, y| (x as i32).min(y as i32) as u32),
            Bin32::MinU => all!(|x, y| x.min(y)),
            Bin32::MaxS => all!(|x, y| (x as i32).max(y as i32) as u32),
            Bin32::MaxU => all!(|x, y| x.max(y)),
            Bin32::And => all!(|x, y| x & y),
            Bin32::Or => all!(|x, y| x | y),
            Bin32::Xor => all!(|x, y| x ^ y),
            Bin32::Shl => all!(|x, y| shl(x, y)),
            Bin32::ShrS => all!(|x, y| sar(x, y)),
            Bin32::ShrU => all!(|x, y| shr(x, y)),
            Bin32::CopySign => all!(|x, y| (y & 0x7fff_ffff) | (x & 0x8000_0000)),
            Bin32::Pack16 => all!(|x, y| (x & 0xffff) | y << 16),
            _ => self.bin32_scalar(op, mask, d, &a, &b),
        }
    }

    /// Operations that gain nothing from vector instructions, compiled once for all instruction
    /// sets.
    #[inline(never)]
    fn bin32_scalar(&self, op: Bin32, mask: u32, d: Row, a: &[u32; 32], b: &[u32; 32]) {
        macro_rules! each {
            (|$x:ident, $y:ident| $e:expr) => {
                self.each32(d, mask, |l| {
                    let ($x, $y) = (a[l], b[l]);
                    $e
                })
            };
        }
        match op {
            Bin32::Mul24LoS => each!(|x, y| (clamp_s24(x) * clamp_s24(y)) as u32),
            Bin32::Mul24LoU => each!(|x, y| (x & 0xff_ffff).wrapping_mul(y & 0xff_ffff)),
            Bin32::Mul24HiS => each!(|x, y| (clamp_s24(x) * clamp_s24(y) >> 16) as u32),
            Bin32::Mul24HiU => {
                each!(|x, y| (u64::from(x & 0xff_ffff) * u64::from(y & 0xff_ffff) >> 16) as u32)
            }
            Bin32::DivS => each!(|x, y| if y == 0 {
                u32::MAX
            } else {
                (x as i32).wrapping_div(y as i32) as u32
            }),
            Bin32::DivU => each!(|x, y| x.checked_div(y).unwrap_or(u32::MAX)),
            Bin32::RemS => each!(|x, y| if y == 0 {
                u32::MAX
            } else {
                (x as i32).wrapping_rem(y as i32) as u32
            }),
            Bin32::RemU => each!(|x, y| x.checked_rem(y).unwrap_or(u32::MAX)),
            Bin32::Bmsk => each!(|x, y| if x > 31 {
                0
            } else {
                ((1u64 << y.min(32)) - 1 << x) as u32
            }),
            Bin32::BmskWrap => each!(|x, y| ((1u64 << (y & 31)) - 1 << (x & 31)) as u32),
            Bin32::SzextSClamp => each!(|x, y| szext(x, y, true, false)),
            Bin32::SzextUClamp => each!(|x, y| szext(x, y, false, false)),
            Bin32::SzextSWrap => each!(|x, y| szext(x, y, true, true)),
            Bin32::SzextUWrap => each!(|x, y| szext(x, y, false, true)),
            Bin32::F16(op) => each!(|x, y| half::binary::<half::F16>(op, x, y)),
            Bin32::F16x2(op) => {
                each!(|x, y| half::packed(x, y, |x, y| half::binary::<half::F16>(op, x, y)))
            }
            Bin32::Bf16(op) => each!(|x, y| half::binary::<half::Bf16>(op, x, y)),
            Bin32::Bf16x2(op) => {
                each!(|x, y| half::packed(x, y, |x, y| half::binary::<half::Bf16>(op, x, y)))
            }
            _ => {}
        }
    }

    #[inline(always)]
    pub(crate) fn un32(&self, op: Un32, flags: FloatFlags, mask: u32, d: Row, a: Row) {
        let a = self.get32(a);
        macro_rules! all {
            (|$x:ident| $e:expr) => {
                self.put32(d, mask, |l| {
                    let $x = a[l];
                    $e
                })
            };
        }
        match op {
            Un32::Mov => self.set32(d, mask, &a),
            Un32::Not => all!(|x| !x),
            Un32::Cnot => all!(|x| u32::from(x == 0)),
            Un32::Neg => all!(|x| x.wrapping_neg()),
            Un32::Abs => all!(|x| (x as i32).wrapping_abs() as u32),
            Un32::Popc => all!(|x| x.count_ones()),
            Un32::Clz => all!(|x| x.leading_zeros()),
            Un32::SignExtend8 => all!(|x| x as i8 as u32),
            Un32::SignExtend16 => all!(|x| x as i16 as u32),
            Un32::ZeroExtend8 => all!(|x| x & 0xff),
            Un32::ZeroExtend16 => all!(|x| x & 0xffff),
            Un32::Brev | Un32::BfindU | Un32::BfindS | Un32::BfindShiftU | Un32::BfindShiftS => {
                self.un32_scalar(op, mask, d, &a);
            }
            _ => self.float_un32(op, flags, mask, d, &a),
        }
    }

    /// Operations that gain nothing from vector instructions, compiled once for all instruction
    /// sets.
    #[inline(never)]
    fn un32_scalar(&self, op: Un32, mask: u32, d: Row, a: &[u32; 32]) {
        macro_rules! each {
            (|$x:ident| $e:expr) => {
                self.each32(d, mask, |l| {
                    let $x = a[l];
                    $e
                })
            };
        }
        match op {
            Un32::Brev => each!(|x| x.reverse_bits()),
            Un32::BfindU => each!(|x| 31u32.wrapping_sub(x.leading_zeros())),
            Un32::BfindS => each!(|x| 31u32.wrapping_sub((x ^ sar(x, 31)).leading_zeros())),
            Un32::BfindShiftU => each!(|x| if x == 0 { u32::MAX } else { x.leading_zeros() }),
            Un32::BfindShiftS => each!(|x| match x ^ sar(x, 31) {
                0 => u32::MAX,
                y => y.leading_zeros(),
            }),
            _ => {}
        }
    }

    #[inline(always)]
    pub(crate) fn tern32(&self, op: Tern32, mask: u32, d: Row, a: Row, b: Row, c: Row) {
        let (a, b, c) = (self.get32(a), self.get32(b), self.get32(c));
        macro_rules! all {
            (|$x:ident, $y:ident, $z:ident| $e:expr) => {
                self.put32(d, mask, |l| {
                    let ($x, $y, $z) = (a[l], b[l], c[l]);
                    $e
                })
            };
        }
        match op {
            Tern32::MadLo => all!(|x, y, z| x.wrapping_mul(y).wrapping_add(z)),
            Tern32::MadHiS => all!(|x, y, z| ((i64::from(x as i32) * i64::from(y as i32) >> 32)
                as u32)
                .wrapping_add(z)),
            Tern32::MadHiU => {
                all!(|x, y, z| ((u64::from(x) * u64::from(y) >> 32) as u32).wrapping_add(z))
            }
            Tern32::SadS => all!(|x, y, z| (x as i32).abs_diff(y as i32).wrapping_add(z)),
            Tern32::SadU => all!(|x, y, z| x.abs_diff(y).wrapping_add(z)),
            Tern32::BfeU => all!(|x, y, z| {
                let (pos, len) = (y & 0xff, z & 0xff);
                let field = shr(x, pos);
                if len > 31 {
                    field
                } else {
                    field & ((1 << (len & 31)) - 1)
                }
            }),
            Tern32::ShfLWrap => {
                all!(|x, y, z| ((u64::from(y) << 32 | u64::from(x)) << (z & 31) >> 32) as u32)
            }
            Tern32::ShfRWrap => {
                all!(|x, y, z| ((u64::from(y) << 32 | u64::from(x)) >> (z & 31)) as u32)
            }
            Tern32::SlctS => all!(|x, y, z| if z as i32 >= 0 { x } else { y }),
            Tern32::SlctF => all!(|x, y, z| if f32::from_bits(z) >= 0.0 { x } else { y }),
            _ => self.tern32_scalar(op, mask, d, [&a, &b, &c]),
        }
    }

    /// Operations that gain nothing from vector instructions, compiled once for all instruction
    /// sets: products and bits.
    #[inline(never)]
    fn tern32_scalar(&self, op: Tern32, mask: u32, d: Row, [a, b, c]: [&[u32; 32]; 3]) {
        macro_rules! each {
            (|$x:ident, $y:ident, $z:ident| $e:expr) => {
                self.each32(d, mask, |l| {
                    let ($x, $y, $z) = (a[l], b[l], c[l]);
                    $e
                })
            };
        }
        match op {
            Tern32::MadHiSatS => {
                each!(
                    |x, y, z| ((i64::from(x as i32) * i64::from(y as i32) >> 32) as i32)
                        .saturating_add(z as i32) as u32
                )
            }
            Tern32::Mad24LoS => {
                each!(|x, y, z| ((clamp_s24(x) * clamp_s24(y)) as u32).wrapping_add(z))
            }
            Tern32::Mad24LoU => {
                each!(|x, y, z| (x & 0xff_ffff).wrapping_mul(y & 0xff_ffff).wrapping_add(z))
            }
            Tern32::Mad24HiS => {
                each!(|x, y, z| ((clamp_s24(x) * clamp_s24(y) >> 16) as u32).wrapping_add(z))
            }
            Tern32::Mad24HiSatS => {
                each!(|x, y, z| ((clamp_s24(x) * clamp_s24(y) >> 16) as i32)
                    .saturating_add(z as i32) as u32)
            }
            Tern32::Fns => each!(|x, y, z| find_nth_set(x, y, z)),
            Tern32::Mad24HiU => {
                each!(
                    |x, y, z| ((u64::from(x & 0xff_ffff) * u64::from(y & 0xff_ffff) >> 16) as u32)
                        .wrapping_add(z)
                )
            }
            Tern32::BfeS => each!(|x, y, z| bfe(u64::from(x), y, z, 32, true) as u32),
            Tern32::ShfLClamp => {
                each!(|x, y, z| ((u64::from(y) << 32 | u64::from(x)) << z.min(32) >> 32) as u32)
            }
            Tern32::ShfRClamp => {
                each!(|x, y, z| ((u64::from(y) << 32 | u64::from(x)) >> z.min(32)) as u32)
            }
            Tern32::Dp4a(sa, sb) => each!(|x, y, z| (0..4).fold(z, |sum, i| sum
                .wrapping_add(byte(x, i, sa).wrapping_mul(byte(y, i, sb))))),
            Tern32::Dp2aLo(sa, sb) => each!(|x, y, z| dp2a(x, y, z, sa, sb, 0)),
            Tern32::Dp2aHi(sa, sb) => each!(|x, y, z| dp2a(x, y, z, sa, sb, 2)),
            _ => self.permute_or_fma_half(op, mask, d, [a, b, c]),
        }
    }

    /// Permutations of bytes, and products of halves.
    #[inline(never)]
    fn permute_or_fma_half(&self, op: Tern32, mask: u32, d: Row, [a, b, c]: [&[u32; 32]; 3]) {
        macro_rules! each {
            (|$x:ident, $y:ident, $z:ident| $e:expr) => {
                self.each32(d, mask, |l| {
                    let ($x, $y, $z) = (a[l], b[l], c[l]);
                    $e
                })
            };
        }
        match op {
            Tern32::Prmt => each!(|x, y, z| prmt(x, y, [z, z >> 4, z >> 8, z >> 12])),
            Tern32::PrmtF4e => each!(|x, y, z| {
                let s = z & 3;
                prmt(x, y, [s, s + 1, s + 2, s + 3])
            }),
            Tern32::PrmtB4e => each!(|x, y, z| {
                let s = z & 3;
                prmt(
                    x,
                    y,
                    [
                        s,
                        s.wrapping_sub(1) & 7,
                        s.wrapping_sub(2) & 7,
                        s.wrapping_sub(3) & 7,
                    ],
                )
            }),
            Tern32::PrmtRc8 => each!(|x, y, z| prmt(x, y, [z & 3; 4])),
            Tern32::PrmtEcl => each!(|x, y, z| {
                let s = z & 3;
                prmt(x, y, [s, s.max(1), s.max(2), 3])
            }),
            Tern32::PrmtEcr => each!(|x, y, z| {
                let s = z & 3;
                prmt(x, y, [0, s.min(1), s.min(2), s])
            }),
            Tern32::PrmtRc16 => each!(|x, y, z| {
                let s = (z & 1) * 2;
                prmt(x, y, [s, s + 1, s, s + 1])
            }),
            Tern32::FmaF16 => each!(|x, y, z| fma::<half::F16, false>(x, y, z)),
            Tern32::FmaBf16 => each!(|x, y, z| fma::<half::Bf16, false>(x, y, z)),
            Tern32::FmaF16x2 => each!(|x, y, z| half::packed3(x, y, z, fma::<half::F16, false>)),
            Tern32::FmaBf16x2 => each!(|x, y, z| half::packed3(x, y, z, fma::<half::Bf16, false>)),
            Tern32::FmaReluF16 => each!(|x, y, z| fma::<half::F16, true>(x, y, z)),
            Tern32::FmaReluBf16 => each!(|x, y, z| fma::<half::Bf16, true>(x, y, z)),
            Tern32::FmaReluF16x2 => each!(|x, y, z| half::packed3(x, y, z, fma::<half::F16, true>)),
            Tern32::FmaReluBf16x2 => {
                each!(|x, y, z| half::packed3(x, y, z, fma::<half::Bf16, true>))
            }
            _ => {}
        }
    }

    #[inline(always)]
    pub(crate) fn pack64(&self, mask: u32, d: Row, lo: Row, hi: Row) {
        let (lo, hi) = (self.get32(lo), self.get32(hi));
        self.put64(d, mask, |l| u64::from(hi[l]) << 32 | u64::from(lo[l]));
    }

    #[inline(always)]
    pub(crate) fn lop3(&self, lut: u8, mask: u32, d: Row, a: Row, b: Row, c: Row) {
        let (a, b, c) = (self.get32(a), self.get32(b), self.get32(c));
        let mut value = [0u32; 32];
        for index in 0..8 {
            if lut >> index & 1 != 0 {
                // Each set bit of the table is a product of a, b, c or their complements.
                let (na, nb, nc) = (flip(index, 4), flip(index, 2), flip(index, 1));
                for l in 0..32 {
                    value[l] |= (a[l] ^ na) & (b[l] ^ nb) & (c[l] ^ nc);
                }
            }
        }
        self.set32(d, mask, &value);
    }

    #[inline(never)]
    pub(crate) fn bfi32(&self, mask: u32, d: Row, a: Row, b: Row, pos: Row, len: Row) {
        let (a, b, pos, len) = (
            self.get32(a),
            self.get32(b),
            self.get32(pos),
            self.get32(len),
        );
        self.each32(d, mask, |l| {
            bfi(a[l].into(), b[l].into(), pos[l], len[l], 32) as u32
        });
    }

    #[inline(never)]
    pub(crate) fn bfi64(&self, mask: u32, d: Row, a: Row, b: Row, pos: Row, len: Row) {
        let (a, b, pos, len) = (
            self.get64(a),
            self.get64(b),
            self.get32(pos),
            self.get32(len),
        );
        self.each64(d, mask, |l| bfi(a[l], b[l], pos[l], len[l], 64));
    }

    #[inline(never)]
    pub(crate) fn bfe64(&self, signed: bool, mask: u32, d: Row, a: Row, pos: Row, len: Row) {
        let (a, pos, len) = (self.get64(a), self.get32(pos), self.get32(len));
        self.each64(d, mask, |l| bfe(a[l], pos[l], len[l], 64, signed));
    }

    #[inline(always)]
    pub(crate) fn bin64(&self, op: Bin64, mask: u32, d: Row, a: Row, b: Row) {
        let (a, b) = (self.get64(a), self.get64(b));
        macro_rules! all {
            (|$x:ident, $y:ident| $e:expr) => {
                self.put64(d, mask, |l| {
                    let ($x, $y) = (a[l], b[l]);
                    $e
                })
            };
        }
        match op {
            Bin64::Add => all!(|x, y| x.wrapping_add(y)),
            Bin64::Sub => all!(|x, y| x.wrapping_sub(y)),
            Bin64::MulLo => all!(|x, y| x.wrapping_mul(y)),
            Bin64::MinS => all!(|x, y| (x as i64).min(y as i64) as u64),
            Bin64::MinU => all!(|x, y| x.min(y)),
            Bin64::MaxS => all!(|x, y| (x as i64).max(y as i64) as u64),
            Bin64::MaxU => all!(|x, y| x.max(y)),
            Bin64::And => all!(|x, y| x & y),
            Bin64::Or => all!(|x, y| x | y),
            Bin64::Xor => all!(|x, y| x ^ y),
            _ => self.bin64_scalar(op, mask, d, &a, &b),
        }
    }

    /// Operations that gain nothing from vector instructions, compiled once for all instruction
    /// sets.
    #[inline(never)]
    fn bin64_scalar(&self, op: Bin64, mask: u32, d: Row, a: &[u64; 32], b: &[u64; 32]) {
        macro_rules! each {
            (|$x:ident, $y:ident| $e:expr) => {
                self.each64(d, mask, |l| {
                    let ($x, $y) = (a[l], b[l]);
                    $e
                })
            };
        }
        match op {
            Bin64::MulHiS => each!(|x, y| mul_hi(x, y, true)),
            Bin64::MulHiU => each!(|x, y| mul_hi(x, y, false)),
            Bin64::DivS => each!(|x, y| if y == 0 {
                u64::MAX
            } else {
                (x as i64).wrapping_div(y as i64) as u64
            }),
            Bin64::DivU => each!(|x, y| x.checked_div(y).unwrap_or(u64::MAX)),
            Bin64::RemS => each!(|x, y| if y == 0 {
                u64::MAX
            } else {
                (x as i64).wrapping_rem(y as i64) as u64
            }),
            Bin64::RemU => each!(|x, y| x.checked_rem(y).unwrap_or(u64::MAX)),
            _ => {}
        }
    }

    #[inline(always)]
    pub(crate) fn un64(&self, op: Un64, mask: u32, d: Row, a: Row) {
        let a = self.get64(a);
        match op {
            Un64::Mov => self.set64(d, mask, &a),
            Un64::Not => self.put64(d, mask, |l| !a[l]),
            Un64::Cnot => self.put64(d, mask, |l| u64::from(a[l] == 0)),
            Un64::Neg => self.put64(d, mask, |l| a[l].wrapping_neg()),
            Un64::Abs => self.put64(d, mask, |l| (a[l] as i64).wrapping_abs() as u64),
            Un64::Brev => self.each64(d, mask, |l| a[l].reverse_bits()),
            _ => self.float_un64(op, mask, d, &a),
        }
    }

    #[inline(always)]
    pub(crate) fn tern64(&self, op: Tern64, mask: u32, d: Row, a: Row, b: Row, c: Row) {
        let (a, b, c) = (self.get64(a), self.get64(b), self.get64(c));
        match op {
            Tern64::MadLo => self.put64(d, mask, |l| a[l].wrapping_mul(b[l]).wrapping_add(c[l])),
            Tern64::MadHiS => self.each64(d, mask, |l| mul_hi(a[l], b[l], true).wrapping_add(c[l])),
            Tern64::MadHiU => {
                self.each64(d, mask, |l| mul_hi(a[l], b[l], false).wrapping_add(c[l]))
            }
            Tern64::SadS => self.each64(d, mask, |l| {
                (a[l] as i64).abs_diff(b[l] as i64).wrapping_add(c[l])
            }),
            Tern64::SadU => self.each64(d, mask, |l| a[l].abs_diff(b[l]).wrapping_add(c[l])),
        }
    }

    #[inline(always)]
    pub(crate) fn shift64(&self, op: Shift64, mask: u32, d: Row, a: Row, b: Row) {
        let (a, b) = (self.get64(a), self.get32(b));
        match op {
            Shift64::Shl => {
                self.put64(d, mask, |l| if b[l] > 63 { 0 } else { a[l] << (b[l] & 63) })
            }
            Shift64::ShrU => {
                self.put64(d, mask, |l| if b[l] > 63 { 0 } else { a[l] >> (b[l] & 63) })
            }
            Shift64::ShrS => self.put64(d, mask, |l| ((a[l] as i64) >> b[l].min(63)) as u64),
        }
    }

    #[inline(always)]
    pub(crate) fn narrow(&self, op: Narrow, mask: u32, d: Row, a: Row) {
        let a = self.get64(a);
        let sign = |x: u64| x ^ ((x as i64) >> 63) as u64;
        match op {
            Narrow::Low => self.put32(d, mask, |l| a[l] as u32),
            Narrow::High => self.put32(d, mask, |l| (a[l] >> 32) as u32),
            Narrow::Popc => self.each32(d, mask, |l| a[l].count_ones()),
            Narrow::Clz => self.each32(d, mask, |l| a[l].leading_zeros()),
            Narrow::BfindU => self.each32(d, mask, |l| 63u32.wrapping_sub(a[l].leading_zeros())),
            Narrow::BfindS => {
                self.each32(d, mask, |l| 63u32.wrapping_sub(sign(a[l]).leading_zeros()))
            }
            Narrow::BfindShiftU => self.each32(d, mask, |l| {
                if a[l] == 0 {
                    u32::MAX
                } else {
                    a[l].leading_zeros()
                }
            }),
            Narrow::BfindShiftS => {
                self.each32(d, mask, |l| {
                    if sign(a[l]) == 0 {
                        u32::MAX
                    } else {
                        sign(a[l]).leading_zeros()
                    }
                });
            }
        }
    }

    #[inline(always)]
    pub(crate) fn mul_wide(&self, signed: bool, mask: u32, d: Row, a: Row, b: Row) {
        let (a, b) = (self.get32(a), self.get32(b));
        if signed {
            self.put64(d, mask, |l| {
                (i64::from(a[l] as i32) * i64::from(b[l] as i32)) as u64
            });
        } else {
            self.put64(d, mask, |l| u64::from(a[l]) * u64::from(b[l]));
        }
    }

    #[inline(always)]
    pub(crate) fn mad_wide(&self, signed: bool, mask: u32, d: Row, a: Row, b: Row, c: Row) {
        let (a, b, c) = (self.get32(a), self.get32(b), self.get64(c));
        if signed {
            self.put64(d, mask, |l| {
                ((i64::from(a[l] as i32) * i64::from(b[l] as i32)) as u64).wrapping_add(c[l])
            });
        } else {
            self.put64(d, mask, |l| {
                (u64::from(a[l]) * u64::from(b[l])).wrapping_add(c[l])
            });
        }
    }

    /// Extended-precision arithmetic; `cc` holds the lanes' carry flags and is updated.
    #[inline(never)]
    pub(crate) fn carry32(
        &self,
        op: Carry,
        carry_in: u32,
        mask: u32,
        d: Row,
        rows: [Row; 3],
    ) -> u32 {
        let [a, b, c] = rows;
        let (a, b) = (self.get32(a), self.get32(b));
        let third = if matches!(op, Carry::Add | Carry::Sub) {
            b
        } else {
            self.get32(c)
        };
        let (value, carry) = carry_rows(
            op,
            carry_in,
            |l| (a[l].into(), b[l].into(), third[l].into()),
            32,
        );
        self.put32(d, mask, |l| value[l] as u32);
        carry
    }

    #[inline(never)]
    pub(crate) fn carry64(
        &self,
        op: Carry,
        carry_in: u32,
        mask: u32,
        d: Row,
        rows: [Row; 3],
    ) -> u32 {
        let [a, b, c] = rows;
        let (a, b) = (self.get64(a), self.get64(b));
        let third = if matches!(op, Carry::Add | Carry::Sub) {
            b
        } else {
            self.get64(c)
        };
        let (value, carry) = carry_rows(op, carry_in, |l| (a[l], b[l], third[l]), 64);
        self.set64(d, mask, &value);
        carry
    }
}

/// Multiplies and adds halves; with `RELU` negative sums become 0.
#[inline(always)]
fn fma<H: half::Half, const RELU: bool>(a: u32, b: u32, c: u32) -> u32 {
    half::fma::<H>(a, b, c, RELU)
}

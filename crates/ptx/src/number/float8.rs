//! 8-bit floats (PTX ISA 5.2.3), converted in pairs, from sm_89 on.

use crate::code::{Float8, Rounding, Row};
use crate::lanes::Files;
use crate::number::half::{F16, Half, narrow};

const NAN: u32 = 0x7f;
const NAN_F16: u32 = 0x7fff;

impl Files {
    /// `cvt.rn.satfinite.e4m3x2.f32 d, a, b`
    #[inline(never)]
    pub(crate) fn pack_float8(&self, format: Float8, relu: bool, mask: u32, rows: [Row; 3]) {
        let [d, a, b] = rows;
        let (a, b) = (self.get32(a), self.get32(b));
        let byte = |bits: u32| packed(format, relu, f32::from_bits(bits).into());
        self.each32(d, mask, |l| byte(a[l]) << 8 | byte(b[l]));
    }

    /// `cvt.rn.f16x2.e4m3x2 d, a`
    #[inline(never)]
    pub(crate) fn unpack_float8(&self, format: Float8, relu: bool, mask: u32, d: Row, a: Row) {
        let a = self.get32(a);
        let half = |bits: u32| unpacked(format, relu, bits & 0xff);
        self.each32(d, mask, |l| half(a[l] >> 8) << 16 | half(a[l]));
    }
}

/// Returns the nearest number of the format, ties to even; a larger one becomes the largest.
fn packed(format: Float8, relu: bool, value: f64) -> u32 {
    if value.is_nan() {
        return NAN;
    }
    if relu && value <= 0.0 {
        return 0;
    }
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let magnitude = match (format, value.abs()) {
        (Float8::E5M2, v) => narrow(v.min(57344.0), 2, 5, Rounding::Nearest),
        // The largest exponent, which other formats use for infinity: steps of 32 from 256 on.
        (Float8::E4M3, v) if v >= 256.0 => {
            let steps = ((v.min(448.0) - 256.0) / 32.0).round_ties_even();
            Some(0x78 + steps as u32)
        }
        (Float8::E4M3, v) => narrow(v, 3, 4, Rounding::Nearest),
    };
    sign | magnitude.unwrap_or(NAN)
}

/// Converts an 8-bit float to f16, which holds all of its values.
fn unpacked(format: Float8, relu: bool, bits: u32) -> u32 {
    let (negative, magnitude) = (bits & 0x80 != 0, bits & 0x7f);
    let value = match (format, magnitude) {
        (Float8::E4M3, NAN) | (Float8::E5M2, 0x7d..) => return NAN_F16,
        _ if relu && negative => return 0,
        (Float8::E5M2, _) => return bits << 8,
        (Float8::E4M3, 0..8) => f64::from(magnitude) / 512.0,
        (Float8::E4M3, _) => {
            let mantissa = f64::from(8 + (magnitude & 7));
            mantissa * 2f64.powi((magnitude >> 3) as i32 - 10)
        }
    };
    F16::from_f64(if negative { -value } else { value }, Rounding::Nearest)
}

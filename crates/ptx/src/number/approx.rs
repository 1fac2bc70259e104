//! Approximate functions without branches, so that the compiler can vectorise over lanes.

/// Computes 2 to the power of `x` with a polynomial of 2^f around 0 in double precision. Its error
/// of 1e-12 disappears in the rounding to single precision, except in some one of ten thousand
/// results, which is off by one unit in the last place.
#[inline(always)]
pub(crate) fn ex2(x: f32) -> f32 {
    /// Coefficients of the powers of f that minimise the greatest error, with 2^0 exact.
    const TERMS: [f64; 9] = [
        1.0,
        0.693_147_180_556_832_4,
        0.240_226_506_958_885_03,
        0.055_504_109_063_258_665,
        0.009_618_129_136_152_36,
        0.001_333_347_847_368_541_6,
        0.000_154_034_751_865_307_86,
        0.000_015_303_700_711_365_693,
        0.000_001_325_080_551_750_225,
    ];
    /// A number whose addition rounds to an integer, which is then in the lowest bits.
    const ROUNDING: f32 = 12_582_912.0;
    // Beyond these bounds results are zero or infinite, as at the bounds. A NaN stays NaN.
    let x = x.clamp(-200.0, 200.0);
    let shifted = x + ROUNDING;
    let f = f64::from(x - (shifted - ROUNDING));
    let mut power = TERMS[8];
    for k in (0..8).rev() {
        power = power.mul_add(f, TERMS[k]);
    }
    let scale = f64::from_bits((u64::from(shifted.to_bits()) << 52).wrapping_add(1.0f64.to_bits()));
    (power * scale) as f32
}

#[cfg(test)]
mod tests {
    use super::ex2;

    #[test]
    fn ex2_is_as_near_as_single_precision_goes() {
        let mut off = 0;
        let mut count = 0;
        let mut bits = 0u32;
        while bits < 0x4320_0000 {
            for x in [f32::from_bits(bits), -f32::from_bits(bits)] {
                let (got, want) = (ex2(x), f64::from(x).exp2() as f32);
                let apart = got.to_bits().abs_diff(want.to_bits());
                assert!(apart <= 1, "{x}: {got} for {want}");
                off += apart;
                count += 1;
            }
            bits += 10_007;
        }
        assert!(off * 10_000 < count, "{off} of {count} are one off");
        assert_eq!([ex2(f32::INFINITY), ex2(128.0)], [f32::INFINITY; 2]);
        assert_eq!([ex2(f32::NEG_INFINITY), ex2(-0.0)], [0.0, 1.0]);
        assert!(ex2(f32::NAN).is_nan());
    }
}

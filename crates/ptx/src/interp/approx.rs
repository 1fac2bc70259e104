//! Approximate functions without branches, so that lanes become vectors.

/// 2 to the power of `x`, from the polynomial of 2^f around 0 in double precision: its error of 1e-11 vanishes in the rounding
/// to single precision but for one result in some thousands, which is one unit in the last place off.
#[inline(always)]
pub(super) fn ex2(x: f32) -> f32 {
    /// ln(2)^k / k!
    const TERMS: [f64; 10] = [
        1.0,
        std::f64::consts::LN_2,
        0.240_226_506_959_100_7,
        0.055_504_108_664_821_58,
        0.009_618_129_107_628_477,
        0.001_333_355_814_642_844_3,
        0.000_154_035_303_933_816_1,
        0.000_015_252_733_804_059_84,
        0.000_001_321_548_679_014_431,
        0.000_000_101_780_860_092_396_99,
    ];
    /// Added, it rounds to an integer, which then stands in the lowest bits.
    const ROUNDING: f64 = 6_755_399_441_055_744.0;
    // Beyond, results are zero or infinite as they are at the ends. A NaN stays one.
    let x = f64::from(x).clamp(-200.0, 200.0);
    let shifted = x + ROUNDING;
    let f = x - (shifted - ROUNDING);
    let scale = f64::from_bits((shifted.to_bits() << 52).wrapping_add(1.0f64.to_bits()));
    let mut power = TERMS[9];
    for k in (0..9).rev() {
        power = power.mul_add(f, TERMS[k]);
    }
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
        assert!(off * 1000 < count, "{off} of {count} are one off");
        assert_eq!([ex2(f32::INFINITY), ex2(128.0)], [f32::INFINITY; 2]);
        assert_eq!([ex2(f32::NEG_INFINITY), ex2(-0.0)], [0.0, 1.0]);
        assert!(ex2(f32::NAN).is_nan());
    }
}

//! The lesser and the greater of two floats, as `min` and `max` define them.

#[inline(always)]
pub(crate) fn min_f32(x: f32, y: f32) -> f32 {
    // As the host's vector instruction: `y` if one is NaN, and the negative one of two zeros.
    let less = if x < y { x } else { y };
    let less = if x == y {
        f32::from_bits(x.to_bits() | y.to_bits())
    } else {
        less
    };
    if y.is_nan() { x } else { less }
}

#[inline(always)]
pub(crate) fn max_f32(x: f32, y: f32) -> f32 {
    // As the host's vector instruction: `y` if one is NaN, and the positive one of two zeros.
    let more = if x > y { x } else { y };
    let more = if x == y {
        f32::from_bits(x.to_bits() & y.to_bits())
    } else {
        more
    };
    if y.is_nan() { x } else { more }
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

//! Arithmetic of single lanes, for the integer instructions.

use crate::code::Carry;

#[inline(always)]
pub(crate) fn clamp_s24(v: u32) -> i64 {
    i64::from((v << 8) as i32 >> 8)
}

#[inline(always)]
pub(crate) fn shl(a: u32, n: u32) -> u32 {
    if n > 31 { 0 } else { a << (n & 31) }
}

#[inline(always)]
pub(crate) fn shr(a: u32, n: u32) -> u32 {
    if n > 31 { 0 } else { a >> (n & 31) }
}

#[inline(always)]
pub(crate) fn sar(a: u32, n: u32) -> u32 {
    ((a as i32) >> n.min(31)) as u32
}

pub(crate) fn szext(a: u32, b: u32, signed: bool, wrap: bool) -> u32 {
    let bits = if wrap { b & 31 } else { b.min(32) };
    match bits {
        0 => 0,
        32 => a,
        _ if signed => ((a << (32 - bits)) as i32 >> (32 - bits)) as u32,
        _ => a & (shl(1, bits) - 1),
    }
}

/// Computes an operation with carry for all lanes, and the carries out. A subtraction adds the
/// complement, as on GPUs: its flag is set if nothing was borrowed.
pub(crate) fn carry_rows(
    op: Carry,
    carry_in: u32,
    lane: impl Fn(usize) -> (u64, u64, u64),
    bits: u32,
) -> ([u64; 32], u32) {
    let field = u64::MAX >> (64 - bits);
    let mut value = [0; 32];
    let mut carry_out = 0;
    for (l, out) in value.iter_mut().enumerate() {
        let (a, b, c) = lane(l);
        let carry = u128::from(carry_in >> l & 1);
        let signed = |v: u64| ((v << (64 - bits)) as i64 >> (64 - bits)) as u64;
        let (x, y) = match op {
            Carry::Add => (a, b),
            Carry::Sub => (a, !b & field),
            Carry::MadLo => (a.wrapping_mul(b) & field, c),
            Carry::MadHiU if bits == 32 => (a * b >> 32, c),
            Carry::MadHiS if bits == 32 => ((signed(a).wrapping_mul(signed(b)) >> 32) & field, c),
            Carry::MadHiU => (mul_hi(a, b, false), c),
            Carry::MadHiS => (mul_hi(a, b, true), c),
        };
        let sum = u128::from(x) + u128::from(y) + carry;
        *out = sum as u64 & field;
        carry_out |= u32::from(sum >> bits & 1 != 0) << l;
    }
    (value, carry_out)
}

#[inline(always)]
pub(crate) fn flip(index: u32, bit: u32) -> u32 {
    if index & bit != 0 { 0 } else { u32::MAX }
}

pub(crate) fn mul_hi(a: u64, b: u64, signed: bool) -> u64 {
    if signed {
        (i128::from(a as i64) * i128::from(b as i64) >> 64) as u64
    } else {
        (u128::from(a) * u128::from(b) >> 64) as u64
    }
}

/// Extracts a bit field as the ISA's pseudocode does: the sign bit of a field that reaches past the
/// top is the top bit.
pub(crate) fn bfe(a: u64, pos: u32, len: u32, bits: u32, signed: bool) -> u64 {
    let (pos, len) = (pos & 0xff, len & 0xff);
    if len == 0 {
        return 0;
    }
    let extended = if signed {
        ((a << (64 - bits)) as i64 >> (64 - bits)) as i128 as u128
    } else {
        u128::from(a)
    };
    let field = extended >> pos.min(127);
    let kept = len.min(bits);
    if signed {
        let top = (pos + len - 1).min(bits - 1);
        let sign = a >> top & 1 != 0;
        let low = if pos > top {
            0
        } else {
            (field as u64) & mask64((top - pos + 1).min(kept))
        };
        let width = if pos > top { 0 } else { top - pos + 1 };
        let value = if sign { low | !mask64(width) } else { low };
        value & mask64(bits)
    } else {
        field as u64 & mask64(kept)
    }
}

/// Computes `fns`: the position of the n-th set bit from `base` on, upwards or downwards; all ones
/// if there is none.
pub(crate) fn find_nth_set(mask: u32, base: u32, offset: u32) -> u32 {
    let offset = offset as i32;
    let set = |pos: &u32| mask >> pos & 1 != 0;
    let nth = offset.unsigned_abs().saturating_sub(1) as usize;
    let found = match offset {
        _ if base > 31 => None,
        0 => Some(base).filter(set),
        1.. => (base..32).filter(set).nth(nth),
        _ => (0..=base).rev().filter(set).nth(nth),
    };
    found.unwrap_or(u32::MAX)
}

pub(crate) fn mask64(bits: u32) -> u64 {
    if bits > 63 { u64::MAX } else { (1 << bits) - 1 }
}

pub(crate) fn bfi(a: u64, b: u64, pos: u32, len: u32, bits: u32) -> u64 {
    let (pos, len) = (pos & 0xff, (len & 0xff).min(bits));
    if pos >= bits {
        return b;
    }
    let field = mask64(len) << pos;
    ((b & !field) | (a << pos & field)) & mask64(bits)
}

/// Selects bytes of `b:a`; bit 3 of a selector replicates the byte's sign.
pub(crate) fn prmt(a: u32, b: u32, selectors: [u32; 4]) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    let mut out = 0;
    for (i, selector) in selectors.into_iter().enumerate() {
        let byte = (bytes >> ((selector & 7) * 8)) as u8;
        let byte = if selector & 8 != 0 {
            ((byte as i8) >> 7) as u8
        } else {
            byte
        };
        out |= u32::from(byte) << (i * 8);
    }
    out
}

pub(crate) fn byte(v: u32, i: u32, signed: bool) -> u32 {
    let byte = (v >> (i * 8)) as u8;
    if signed {
        byte as i8 as u32
    } else {
        byte.into()
    }
}

pub(crate) fn dp2a(a: u32, b: u32, c: u32, sa: bool, sb: bool, first: u32) -> u32 {
    (0..2).fold(c, |sum, i| {
        let half = (a >> (i * 16)) as u16;
        let half = if sa { half as i16 as u32 } else { half.into() };
        sum.wrapping_add(half.wrapping_mul(byte(b, first + i, sb)))
    })
}

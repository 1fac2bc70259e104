//! Checks that tell memory which a device has written in full from memory that it is still writing,
//! or has not written.
//!
//! InfiniBand promises no order among the bytes of one write, nor that a word appears at once:
//! software devices copy by the processor's fastest means, which do tear words. So nothing that the
//! peer writes is believed before the 64 bits written beside it agree. They include the position in
//! the stream, so that bytes of the previous lap never agree. This is no defence against a peer
//! that lies: its values are checked as well.

use std::sync::atomic::Ordering;

use outboard_verbs::Memory;

// Odd numbers without a pattern: the first digits of pi's fraction, in hexadecimal.
const K: [u64; 4] = [
    0x243f_6a88_85a3_08d3,
    0x1319_8a2e_0370_7345,
    0xa409_3822_299f_31d1,
    0x082e_fa98_ec4e_6c89,
];

/// Folds both halves of the product, so that every bit of the factors reaches every bit of the
/// result.
#[inline(always)]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// The check of a header at `position`.
#[inline(always)]
pub(super) fn of_header(position: u64, header: u64) -> u64 {
    mix(position ^ K[0], header ^ K[1])
}

/// The check of a header at `position` and the `len` bytes after it, which are at `offset`; both
/// are multiples of 16.
#[inline]
pub(super) fn of_frame(
    position: u64,
    header: u64,
    memory: &Memory,
    offset: usize,
    len: usize,
) -> u64 {
    let mut sum = of_header(position, header);
    for at in (offset..offset + len).step_by(16) {
        let first = memory.word(at).load(Ordering::Relaxed);
        let second = memory.word(at + 8).load(Ordering::Relaxed);
        sum = mix(first ^ K[2] ^ sum, second ^ K[3] ^ sum.rotate_left(32));
    }
    sum
}

/// The check of a block of control words.
#[inline(always)]
pub(super) fn of_block(position: u64, state: u64) -> u64 {
    mix(position ^ K[2], state ^ K[3])
}

/// The check of a grant.
pub(super) fn of_grant(address: u64, bytes_and_key: u64, number: u64) -> u64 {
    mix(of_block(address, bytes_and_key), number ^ K[1])
}

/// The upper half of a header at `position`.
#[inline(always)]
pub(super) fn tag(position: u64) -> u32 {
    (mix(position ^ K[3], K[0]) >> 32) as u32
}

//! Bytes as hexadecimal digits.

use std::fmt::Write as _;

pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Returns the bytes of exactly `2 * N` digits.
pub fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    let is_hex = digits.iter().all(u8::is_ascii_hexdigit);
    if digits.len() != 2 * N || !is_hex {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

/// Returns the bytes of an even number of digits.
pub fn decode_all(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2).map(std::str::from_utf8);
    pairs
        .map(|pair| decode::<1>(pair.ok()?).map(|[byte]| byte))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_read_as_they_were_written() {
        assert_eq!(encode(&[0, 0xab, 0xff]), "00abff");
        assert_eq!(decode("00ABff"), Some([0, 0xab, 0xff]));
        for wrong in ["", "00abf", "00abfff", "00abfg", "+0abff", "0äbff"] {
            assert_eq!(decode::<3>(wrong), None, "{wrong}");
        }
    }
}

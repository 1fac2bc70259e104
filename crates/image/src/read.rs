//! Reads little-endian fields from untrusted bytes; every error says where.

use crate::Error;

pub(crate) fn bytes<'a>(
    data: &'a [u8],
    offset: usize,
    len: usize,
    what: &'static str,
) -> Result<&'a [u8], Error> {
    let available = data.len().saturating_sub(offset) as u64;
    offset
        .checked_add(len)
        .and_then(|end| data.get(offset..end))
        .ok_or(Error::Truncated {
            what,
            offset,
            needed: len as u64,
            available,
        })
}

fn array<const N: usize>(data: &[u8], offset: usize, what: &'static str) -> Result<[u8; N], Error> {
    let mut out = [0; N];
    out.copy_from_slice(bytes(data, offset, N, what)?);
    Ok(out)
}

pub(crate) fn u8(data: &[u8], offset: usize, what: &'static str) -> Result<u8, Error> {
    array::<1>(data, offset, what).map(|[byte]| byte)
}

pub(crate) fn u16(data: &[u8], offset: usize, what: &'static str) -> Result<u16, Error> {
    array(data, offset, what).map(u16::from_le_bytes)
}

pub(crate) fn u32(data: &[u8], offset: usize, what: &'static str) -> Result<u32, Error> {
    array(data, offset, what).map(u32::from_le_bytes)
}

pub(crate) fn u64(data: &[u8], offset: usize, what: &'static str) -> Result<u64, Error> {
    array(data, offset, what).map(u64::from_le_bytes)
}

/// Converts a 64-bit length or offset to `usize`; refuses more than `max`.
pub(crate) fn size(
    value: u64,
    max: usize,
    offset: usize,
    what: &'static str,
) -> Result<usize, Error> {
    usize::try_from(value)
        .ok()
        .filter(|&size| size <= max)
        .ok_or(Error::TooLarge {
            what,
            offset,
            found: value,
            max: max as u64,
        })
}

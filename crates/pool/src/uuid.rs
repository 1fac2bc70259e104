//! The UUID of a GPU.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use thiserror::Error;

const BYTES: usize = 16;
const PREFIX: &str = "GPU-";
/// Bytes before each dash.
const DASHES: [usize; 4] = [4, 6, 8, 10];
const DIGITS: &[u8; 16] = b"0123456789abcdef";
const TEXT_BYTES: usize = PREFIX.len() + 2 * BYTES + DASHES.len();

/// The UUID of a GPU; as text `GPU-` and 32 hexadecimal digits with dashes, as NVML shows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; BYTES]);

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no UUID of a GPU, as GPU-6fb2c9a1-0000-0000-0000-000000000000")]
pub struct UuidError(String);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [b'-'; TEXT_BYTES];
        text[..PREFIX.len()].copy_from_slice(PREFIX.as_bytes());
        let mut to = PREFIX.len();
        for (at, byte) in self.0.iter().enumerate() {
            to += usize::from(DASHES.contains(&at));
            text[to] = DIGITS[usize::from(byte >> 4)];
            text[to + 1] = DIGITS[usize::from(byte & 15)];
            to += 2;
        }
        f.write_str(str::from_utf8(&text).unwrap_or(PREFIX))
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Uuid {
    type Err = UuidError;

    fn from_str(text: &str) -> Result<Uuid, UuidError> {
        let wrong = || UuidError(text.chars().take(60).collect());
        let digits: String = text
            .strip_prefix(PREFIX)
            .ok_or_else(wrong)?
            .replace('-', "");
        let is_hex = digits.len() == 2 * BYTES && digits.bytes().all(|b| b.is_ascii_hexdigit());
        match u128::from_str_radix(&digits, 16) {
            Ok(number) if is_hex => Ok(Uuid(number.to_be_bytes())),
            _ => Err(wrong()),
        }
    }
}

impl Serialize for Uuid {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match to.is_human_readable() {
            true => to.collect_str(self),
            false => self.0.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for Uuid {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Uuid, D::Error> {
        match from.is_human_readable() {
            true => String::deserialize(from)?.parse().map_err(D::Error::custom),
            false => <[u8; BYTES]>::deserialize(from).map(Uuid),
        }
    }
}

#[cfg(feature = "schemas")]
impl schemars::JsonSchema for Uuid {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Uuid".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "The UUID of a GPU, as NVML shows it",
            "pattern": "^GPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_read_as_it_is_shown() {
        let uuid = Uuid(*b"\x6f\xb2outboard-soft1");
        let text = uuid.to_string();
        assert_eq!(text, "GPU-6fb26f75-7462-6f61-7264-2d736f667431");
        assert_eq!(text.len(), 40);
        assert_eq!(text.parse(), Ok(uuid));
        assert_eq!(serde_json::to_string(&uuid).unwrap(), format!("{text:?}"));
        for wrong in [
            "",
            "GPU-",
            &text[4..],
            &text[..39],
            "GPU-+fb26f75-7462-6f61-7264-2d736f667431",
        ] {
            assert!(wrong.parse::<Uuid>().is_err(), "{wrong}");
        }
    }
}

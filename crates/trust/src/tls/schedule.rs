//! Keys of the records, derived from TLS 1.3's traffic secrets (RFC 8446, section 7).

use std::fmt;

use ring::{
    aead::{AES_128_GCM, LessSafeKey, NONCE_LEN, UnboundKey},
    hkdf,
};
use serde::{Deserialize, Serialize};

pub(super) const SECRET_BYTES: usize = 32;
pub(super) const KEY_BYTES: usize = 16;

/// One direction of a connection: the secret of its keys, and the number of the next record.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Direction {
    pub(super) secret: [u8; SECRET_BYTES],
    pub(super) record: u64,
}

/// Both directions, from the view of one side; enough to go on with the connection in another
/// process. Secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsState {
    pub(super) out: Direction,
    pub(super) inward: Direction,
}

/// Shows nothing of the secrets.
impl fmt::Debug for TlsState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsState(..)")
    }
}

/// The keys of a traffic secret.
pub(super) struct Keys {
    pub(super) key: LessSafeKey,
    pub(super) iv: [u8; NONCE_LEN],
}

impl Keys {
    /// Derives the keys; None is never returned for a secret of the right length.
    pub(super) fn of(secret: &[u8; SECRET_BYTES]) -> Option<Keys> {
        let (key, iv) = raw_keys(secret)?;
        Some(Keys {
            key: LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).ok()?),
            iv,
        })
    }

    /// Returns the nonce of a record.
    pub(super) fn nonce(&self, record: u64) -> [u8; NONCE_LEN] {
        let mut nonce = self.iv;
        for (byte, of_record) in nonce[NONCE_LEN - 8..].iter_mut().zip(record.to_be_bytes()) {
            *byte ^= of_record;
        }
        nonce
    }
}

/// Derives the key and the nonce of record 0.
pub(super) fn raw_keys(secret: &[u8; SECRET_BYTES]) -> Option<([u8; KEY_BYTES], [u8; NONCE_LEN])> {
    Some((expand(secret, b"key")?, expand(secret, b"iv")?))
}

/// Returns the secret after a key update.
pub(super) fn next_secret(secret: &[u8; SECRET_BYTES]) -> Option<[u8; SECRET_BYTES]> {
    expand(secret, b"traffic upd")
}

struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-Expand-Label with an empty context.
fn expand<const N: usize>(secret: &[u8], label: &[u8]) -> Option<[u8; N]> {
    const PREFIX: &[u8] = b"tls13 ";
    let length = u16::try_from(N).ok()?.to_be_bytes();
    let label_length = [u8::try_from(PREFIX.len() + label.len()).ok()?];
    let info = [&length[..], &label_length, PREFIX, label, &[0]];
    let prk = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, secret);
    let mut out = [0; N];
    prk.expand(&info, Length(N)).ok()?.fill(&mut out).ok()?;
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hex;

    #[test]
    fn keys_are_those_of_the_published_trace() {
        // RFC 8448, section 3: the server's application traffic secret, and its keys.
        let secret = "a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643";
        let secret: [u8; SECRET_BYTES] = hex::decode(secret).unwrap();
        let key: [u8; KEY_BYTES] = expand(&secret, b"key").unwrap();
        assert_eq!(hex::encode(&key), "9f02283b6c9c07efc26bb9f2ac92e356");
        let keys = Keys::of(&secret).unwrap();
        assert_eq!(hex::encode(&keys.iv), "cf782b88dd83549aadf1e984");
        assert_eq!(hex::encode(&keys.nonce(1)), "cf782b88dd83549aadf1e985");
    }
}

//! Keys of a connection's records in the form in which a kernel takes them (TLS_TX and TLS_RX of
//! linux/tls.h), for connections whose records the kernel makes and reads.

use super::{
    error::TlsError,
    records::{Content, KEY_RECORDS_MAX, Opener, RECORD_BYTES_MAX, Sealer, content_of},
    schedule::{Direction, KEY_BYTES, next_secret, raw_keys},
};

const SALT_BYTES: usize = 4;
const IV_BYTES: usize = 8;

/// Key of AES-128-GCM, the fixed parts of its nonces, and the number of the next record. Secret.
pub struct KernelKey {
    pub key: [u8; KEY_BYTES],
    pub salt: [u8; SALT_BYTES],
    pub iv: [u8; IV_BYTES],
    pub record: [u8; 8],
}

/// The direction in which the kernel makes records.
pub struct KernelSealer {
    direction: Direction,
}

/// The direction in which the kernel reads records.
pub struct KernelOpener {
    direction: Direction,
}

impl KernelSealer {
    /// Goes on where a sealer is.
    pub fn of(sealer: &Sealer) -> KernelSealer {
        let direction = sealer.direction();
        KernelSealer { direction }
    }

    pub fn key(&self) -> Result<KernelKey, TlsError> {
        key_of(&self.direction)
    }

    /// Counts data that the kernel was given in `calls` calls: each may end with a record that is
    /// not full.
    pub fn count(&mut self, bytes: usize, calls: u64) {
        let records = (bytes / RECORD_BYTES_MAX) as u64 + calls;
        self.direction.record = self.direction.record.saturating_add(records);
    }

    /// Returns whether the key has made as many records as one key may.
    pub fn is_used_up(&self) -> bool {
        self.direction.record >= KEY_RECORDS_MAX
    }

    /// Returns the next key. The peer must have been sent [`KEY_UPDATE`](super::KEY_UPDATE) with
    /// the one before.
    pub fn update(&mut self) -> Result<KernelKey, TlsError> {
        update(&mut self.direction)
    }
}

impl KernelOpener {
    /// Goes on where an opener is; `None` if something has come that was not taken.
    pub fn of(opener: &Opener) -> Option<KernelOpener> {
        let direction = opener.direction()?;
        Some(KernelOpener { direction })
    }

    pub fn key(&self) -> Result<KernelKey, TlsError> {
        key_of(&self.direction)
    }

    /// Takes a record that is no data: returns the next key if it is a key update.
    pub fn control(&mut self, kind: u8, message: &[u8]) -> Result<KernelKey, TlsError> {
        match content_of(kind, message)? {
            Content::KeyUpdate => update(&mut self.direction),
            Content::Data => Err(TlsError::Record),
        }
    }
}

fn update(direction: &mut Direction) -> Result<KernelKey, TlsError> {
    direction.secret = next_secret(&direction.secret).ok_or(TlsError::Keys)?;
    direction.record = 0;
    key_of(direction)
}

fn key_of(direction: &Direction) -> Result<KernelKey, TlsError> {
    let (key, nonce) = raw_keys(&direction.secret).ok_or(TlsError::Keys)?;
    let (salt, iv) = nonce.split_first_chunk().ok_or(TlsError::Keys)?;
    Ok(KernelKey {
        key,
        salt: *salt,
        iv: iv.try_into().map_err(|_| TlsError::Keys)?,
        record: direction.record.to_be_bytes(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TlsState;

    fn pair() -> (KernelSealer, KernelOpener) {
        let state = TlsState::of_secrets([7; 32], [7; 32]);
        let (sealer, opener) = state.resume().unwrap();
        (
            KernelSealer::of(&sealer),
            KernelOpener::of(&opener).unwrap(),
        )
    }

    #[test]
    fn both_directions_change_to_one_key() {
        let (mut sealer, mut opener) = pair();
        let first = sealer.key().unwrap().key;
        assert_eq!(first, opener.key().unwrap().key);
        sealer.count(5 * RECORD_BYTES_MAX + 1, 1);
        assert_eq!(sealer.key().unwrap().record, 6_u64.to_be_bytes());
        let next = sealer.update().unwrap();
        let theirs = opener.control(22, &[24, 0, 0, 1, 0]).unwrap();
        assert_ne!(next.key, first);
        assert_eq!((next.key, next.salt), (theirs.key, theirs.salt));
        assert_eq!((next.iv, next.record), (theirs.iv, [0; 8]));
    }

    #[test]
    fn a_key_is_used_up_in_time() {
        let (mut sealer, _) = pair();
        sealer.count(0, KEY_RECORDS_MAX - 1);
        assert!(!sealer.is_used_up());
        sealer.count(1, 1);
        assert!(sealer.is_used_up());
        sealer.update().unwrap();
        assert!(!sealer.is_used_up());
    }

    #[test]
    fn other_records_end_the_connection() {
        for (kind, message, expected) in [
            (21, &[1, 0][..], "closed"),
            (21, &[2, 42], "alert 42"),
            (22, &[4, 0, 0, 0], "record"),
            (22, &[24, 0, 0, 1, 1], "record"),
            (23, b"data", "record"),
            (20, &[1], "record"),
        ] {
            let error = pair().1.control(kind, message).err().unwrap();
            assert!(error.to_string().contains(expected), "{kind}: {error}");
        }
    }
}

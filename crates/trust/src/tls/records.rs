//! The records of a connection after its handshake: AES-128-GCM, one direction each.

use std::ops::Range;

use ring::aead::{Aad, Nonce};

use super::{
    error::TlsError,
    schedule::{Direction, Keys, next_secret},
};

/// Data in one record, at most.
pub const RECORD_BYTES_MAX: usize = 16 << 10;
/// Records with one key, well below the bound for AES-GCM (2^24.5); then a key update follows.
pub(super) const KEY_RECORDS_MAX: u64 = 1 << 23;
const HEADER_BYTES: usize = 5;
const TAG_BYTES: usize = 16;
/// Longest body of a record (RFC 8446, section 5.2).
const BODY_BYTES_MAX: usize = RECORD_BYTES_MAX + 256;
/// Room for what is received at a time: several records of the longest kind.
const BUFFER_BYTES: usize = 16 * (HEADER_BYTES + BODY_BYTES_MAX);

/// Kind of a record that has an alert.
pub const ALERT: u8 = 21;
/// Kind of a record that has a message of the handshake.
pub const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;
/// Message of a key update that asks for none in return.
pub const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];
const CLOSE_NOTIFY: u8 = 0;
/// Alert after which nothing follows.
pub const END: [u8; 2] = [1, CLOSE_NOTIFY];

/// Makes records.
pub struct Sealer {
    direction: Direction,
    keys: Keys,
}

/// Reads records. Once it has found an error, there is nothing more to read.
pub struct Opener {
    direction: Direction,
    keys: Keys,
    buffer: Vec<u8>,
    /// Bytes that have come and are not opened.
    sealed: Range<usize>,
    /// Bytes that are opened and not taken.
    plain: Range<usize>,
    /// Error of the record after the bytes that were taken last.
    fault: Option<TlsError>,
}

impl Sealer {
    pub(super) fn new(direction: Direction) -> Result<Sealer, TlsError> {
        let keys = Keys::of(&direction.secret).ok_or(TlsError::Keys)?;
        Ok(Sealer { direction, keys })
    }

    pub(super) fn direction(&self) -> Direction {
        self.direction.clone()
    }

    /// Appends `data` to `out`, as one record or several.
    pub fn seal(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<(), TlsError> {
        for piece in data.chunks(RECORD_BYTES_MAX) {
            if self.direction.record >= KEY_RECORDS_MAX {
                self.seal_record(HANDSHAKE, &KEY_UPDATE, out)?;
                update(&mut self.direction, &mut self.keys)?;
            }
            self.seal_record(DATA, piece, out)?;
        }
        Ok(())
    }

    /// Appends one record of this kind, with at most [`RECORD_BYTES_MAX`] bytes.
    pub fn seal_record(
        &mut self,
        kind: u8,
        piece: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), TlsError> {
        let header = header(piece.len() + 1 + TAG_BYTES);
        out.extend_from_slice(&header);
        let start = out.len();
        out.extend_from_slice(piece);
        out.push(kind);
        let nonce = Nonce::assume_unique_for_key(self.keys.nonce(self.direction.record));
        // A number is used once, whatever becomes of the record.
        self.direction.record += 1;
        let sealed =
            self.keys
                .key
                .seal_in_place_separate_tag(nonce, Aad::from(header), &mut out[start..]);
        let tag = sealed.map_err(|_| TlsError::Keys)?;
        out.extend_from_slice(tag.as_ref());
        Ok(())
    }
}

/// Returns the header of a record with a body of `len` bytes, which are fewer than 2^16.
fn header(len: usize) -> [u8; HEADER_BYTES] {
    let [high, low] = (len as u16).to_be_bytes();
    [DATA, 3, 3, high, low]
}

fn update(direction: &mut Direction, keys: &mut Keys) -> Result<(), TlsError> {
    direction.secret = next_secret(&direction.secret).ok_or(TlsError::Keys)?;
    direction.record = 0;
    *keys = Keys::of(&direction.secret).ok_or(TlsError::Keys)?;
    Ok(())
}

impl Opener {
    pub(super) fn new(direction: Direction) -> Result<Opener, TlsError> {
        let keys = Keys::of(&direction.secret).ok_or(TlsError::Keys)?;
        Ok(Opener {
            direction,
            keys,
            buffer: vec![0; BUFFER_BYTES],
            sealed: 0..0,
            plain: 0..0,
            fault: None,
        })
    }

    /// Returns the direction if every byte that has come was taken.
    pub(super) fn direction(&self) -> Option<Direction> {
        self.is_empty().then(|| self.direction.clone())
    }

    /// Returns whether nothing has come that was not taken.
    pub fn is_empty(&self) -> bool {
        self.sealed.is_empty() && self.plain.is_empty() && self.fault.is_none()
    }

    /// Returns room for bytes of the connection, never none; called when [`take`](Self::take) has
    /// found nothing.
    pub fn room(&mut self) -> &mut [u8] {
        self.make_room();
        &mut self.buffer[self.sealed.end..]
    }

    /// Returns room for the bytes that the next record still lacks and no more: what follows it
    /// stays in the connection.
    pub fn room_exact(&mut self) -> &mut [u8] {
        self.make_room();
        let lacks = match self.body_bytes() {
            Ok(Some(body)) => HEADER_BYTES + body - self.sealed.len(),
            _ => HEADER_BYTES.saturating_sub(self.sealed.len()).max(1),
        };
        let end = self.sealed.end;
        &mut self.buffer[end..end + lacks]
    }

    fn make_room(&mut self) {
        self.buffer.copy_within(self.sealed.clone(), 0);
        self.sealed = 0..self.sealed.len();
        self.plain = 0..0;
    }

    /// Counts the first `len` bytes of the room as received.
    pub fn filled(&mut self, len: usize) {
        self.sealed.end = (self.sealed.end + len).min(self.buffer.len());
    }

    /// Returns the length of the next record's body, once its header has come.
    fn body_bytes(&self) -> Result<Option<usize>, TlsError> {
        let Some(header) = self.buffer[self.sealed.clone()].first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
        match (header[0], len) {
            (DATA, 17..=BODY_BYTES_MAX) => Ok(Some(len)),
            _ => Err(TlsError::Record),
        }
    }

    /// Copies opened bytes to `out`; returns their number, 0 if more has to come first. Data that
    /// came before an error is taken first: the error is returned by the next call.
    pub fn take(&mut self, out: &mut [u8]) -> Result<usize, TlsError> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        let mut taken = 0;
        while taken < out.len() {
            if self.plain.is_empty() {
                match self.open() {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(fault) if taken > 0 => {
                        self.fault = Some(fault);
                        break;
                    }
                    Err(fault) => return Err(fault),
                }
            }
            let count = self.plain.len().min(out.len() - taken);
            let from = self.plain.start..self.plain.start + count;
            out[taken..taken + count].copy_from_slice(&self.buffer[from]);
            self.plain.start += count;
            taken += count;
        }
        Ok(taken)
    }

    /// Opens the next record, if it has come.
    fn open(&mut self) -> Result<bool, TlsError> {
        let Some(len) = self.body_bytes()? else {
            return Ok(false);
        };
        let start = self.sealed.start + HEADER_BYTES;
        let Some(body) = self
            .buffer
            .get_mut(start..start + len)
            .filter(|_| self.sealed.len() >= HEADER_BYTES + len)
        else {
            return Ok(false);
        };
        let nonce = Nonce::assume_unique_for_key(self.keys.nonce(self.direction.record));
        self.direction.record += 1;
        let opened = self
            .keys
            .key
            .open_in_place(nonce, Aad::from(header(len)), body);
        let opened = opened.map_err(|_| TlsError::Record)?;
        // Zeros may follow the kind of the content, which is the last byte that is none.
        let end = opened.iter().rposition(|byte| *byte != 0);
        let end = end.ok_or(TlsError::Record)?;
        self.sealed.start = start + len;
        match content_of(opened[end], &opened[..end])? {
            Content::Data => self.plain = start..start + end,
            Content::KeyUpdate => update(&mut self.direction, &mut self.keys)?,
        }
        Ok(true)
    }
}

/// Contents of records after which a connection goes on.
pub(super) enum Content {
    Data,
    KeyUpdate,
}

/// Returns what a record has; an error for the end of the connection.
pub(super) fn content_of(kind: u8, content: &[u8]) -> Result<Content, TlsError> {
    match (kind, content) {
        (DATA, data) if data.len() <= RECORD_BYTES_MAX => Ok(Content::Data),
        (HANDSHAKE, message) if *message == KEY_UPDATE => Ok(Content::KeyUpdate),
        (ALERT, [_, CLOSE_NOTIFY]) => Err(TlsError::Closed),
        (ALERT, [_, number]) => Err(TlsError::Alert(*number)),
        _ => Err(TlsError::Record),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(record: u64) -> (Sealer, Opener) {
        let direction = Direction {
            secret: [7; 32],
            record,
        };
        (
            Sealer::new(direction.clone()).unwrap(),
            Opener::new(direction).unwrap(),
        )
    }

    /// Gives the opener `bytes` in pieces, and returns what it opens.
    fn opened(opener: &mut Opener, mut bytes: &[u8], piece: usize) -> Result<Vec<u8>, TlsError> {
        let (mut all, mut out) = (Vec::new(), [0; 1000]);
        loop {
            match opener.take(&mut out)? {
                0 if bytes.is_empty() => return Ok(all),
                0 => {
                    let room = opener.room();
                    let count = room.len().min(piece).min(bytes.len());
                    room[..count].copy_from_slice(&bytes[..count]);
                    opener.filled(count);
                    bytes = &bytes[count..];
                }
                count => all.extend_from_slice(&out[..count]),
            }
        }
    }

    #[test]
    fn data_of_any_length_arrives_in_pieces_of_any_length() {
        for len in [1, 2, 999, RECORD_BYTES_MAX, RECORD_BYTES_MAX + 1, 300_000] {
            for piece in [1, 7, 16_411, 1 << 20] {
                if len > 20_000 && piece < 16_000 {
                    continue;
                }
                let (mut sealer, mut opener) = pair(0);
                let data: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
                let mut bytes = Vec::new();
                sealer.seal(&data, &mut bytes).unwrap();
                assert_eq!(
                    opened(&mut opener, &bytes, piece).unwrap(),
                    data,
                    "{len} {piece}"
                );
                assert!(opener.is_empty());
            }
        }
    }

    #[test]
    fn keys_are_renewed_in_time() {
        let (mut sealer, mut opener) = pair(KEY_RECORDS_MAX - 1);
        let mut bytes = Vec::new();
        for _ in 0..3 {
            sealer.seal(b"some", &mut bytes).unwrap();
        }
        assert_eq!(opened(&mut opener, &bytes, 9).unwrap(), b"somesomesome");
        assert_ne!(sealer.direction.secret, [7; 32]);
        assert!(sealer.direction == opener.direction && sealer.direction.record == 2);
    }

    #[test]
    fn changed_replayed_and_exchanged_records_are_errors() {
        let (mut sealer, _) = pair(0);
        let mut bytes = Vec::new();
        sealer.seal(b"first", &mut bytes).unwrap();
        let first = bytes.len();
        sealer.seal(b"second", &mut bytes).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let (_, mut opener) = pair(0);
            let got = opened(&mut opener, &changed, 64);
            // A version is not looked at; a longer record has not come yet.
            let is_short =
                matches!(&got, Ok(data) if b"firstsecond".starts_with(data) && data.len() < 11);
            let is_version = matches!(at % first, 1 | 2) || at == first + 1 || at == first + 2;
            assert!(got.is_err() || is_short || is_version, "{at}");
        }
        let (_, mut opener) = pair(0);
        let again = [&bytes[..first], &bytes[..first]].concat();
        assert!(matches!(
            opened(&mut opener, &again, 999),
            Err(TlsError::Record)
        ));
        let (_, mut opener) = pair(0);
        let exchanged = [&bytes[first..], &bytes[..first]].concat();
        assert!(matches!(
            opened(&mut opener, &exchanged, 999),
            Err(TlsError::Record)
        ));
    }

    #[test]
    fn other_content_is_told_apart() {
        for (kind, message, expected) in [
            (ALERT, &[1, 0][..], "closed"),
            (ALERT, &[2, 42], "alert 42"),
            (ALERT, &[2], "record"),
            (HANDSHAKE, &[4, 0, 0, 0], "record"),
            (20, &[1], "record"),
            (0, &[0, 0], "record"),
        ] {
            let (mut sealer, mut opener) = pair(0);
            let mut bytes = Vec::new();
            sealer.seal_record(kind, message, &mut bytes).unwrap();
            let said = opened(&mut opener, &bytes, 99).unwrap_err().to_string();
            assert!(said.contains(expected), "{kind} {message:?}: {said}");
        }
    }

    #[test]
    fn data_before_an_error_is_taken_first() {
        for (message, expected) in [(END, "closed"), ([2, 42], "alert 42")] {
            let (mut sealer, mut opener) = pair(0);
            let mut bytes = Vec::new();
            sealer.seal(b"data", &mut bytes).unwrap();
            sealer.seal_record(ALERT, &message, &mut bytes).unwrap();
            opener.room()[..bytes.len()].copy_from_slice(&bytes);
            opener.filled(bytes.len());
            let mut out = [0; 16];
            assert_eq!(opener.take(&mut out).unwrap(), 4);
            assert_eq!(out[..4], *b"data");
            assert!(!opener.is_empty());
            let error = opener.take(&mut out).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn no_more_is_read_than_one_record() {
        let (mut sealer, mut opener) = pair(0);
        let mut bytes = Vec::new();
        sealer.seal(b"hello", &mut bytes).unwrap();
        let len = bytes.len();
        sealer.seal(b"more", &mut bytes).unwrap();
        let (mut at, mut out) = (0, [0; 16]);
        while opener.take(&mut out).unwrap() == 0 {
            let room = opener.room_exact();
            let count = room.len();
            room.copy_from_slice(&bytes[at..at + count]);
            opener.filled(count);
            at += count;
        }
        assert_eq!((at, &out[..5]), (len, &b"hello"[..]));
        assert!(opener.direction().is_some());
    }
}

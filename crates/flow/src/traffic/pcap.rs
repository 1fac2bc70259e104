//! Capture files in the classic pcap format: written with microseconds, read in either byte order
//! and with micro- or nanoseconds.

use std::io::{self, Read, Write};

const MICROSECONDS: u32 = 0xa1b2_c3d4;
const NANOSECONDS: u32 = 0xa1b2_3c4d;
const ETHERNET: u32 = 1;
/// Longest record that is read; longer ones are an error.
pub const RECORD_BYTES_MAX: u32 = 256 << 10;

/// A file that is not a capture, or not one of Ethernet frames.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("not a pcap file: it begins with {0:#010x}")]
    Magic(u32),
    #[error("the capture's link type is {0}; only Ethernet, {ETHERNET}, is read")]
    LinkType(u32),
    #[error("record {number} has {bytes} bytes, {RECORD_BYTES_MAX} at most")]
    TooLong { number: u64, bytes: u32 },
    #[error("record {number} is cut short")]
    Cut { number: u64 },
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// One frame of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Time since 1970.
    pub time_ns: u64,
    /// Length on the wire, of which `bytes` may hold only the begin.
    pub length: u32,
    pub bytes: Vec<u8>,
}

/// Writes a capture.
pub struct Writer<W>(W);

impl<W: Write> Writer<W> {
    pub fn new(mut out: W) -> io::Result<Writer<W>> {
        let words = [MICROSECONDS, 2 | 4 << 16, 0, 0, RECORD_BYTES_MAX, ETHERNET];
        words
            .iter()
            .try_for_each(|word| out.write_all(&word.to_le_bytes()))?;
        Ok(Writer(out))
    }

    /// Writes one frame of `length` bytes, of which `bytes` are kept.
    pub fn write(&mut self, time_ns: u64, length: u32, bytes: &[u8]) -> io::Result<()> {
        let too_long = || io::Error::new(io::ErrorKind::InvalidInput, "a frame too long for pcap");
        let kept = u32::try_from(bytes.len())
            .ok()
            .filter(|kept| *kept <= RECORD_BYTES_MAX);
        let kept = kept.ok_or_else(too_long)?;
        let seconds = (time_ns / 1_000_000_000) as u32;
        let micros = (time_ns % 1_000_000_000 / 1000) as u32;
        for word in [seconds, micros, kept, length.max(kept)] {
            self.0.write_all(&word.to_le_bytes())?;
        }
        self.0.write_all(bytes)
    }

    pub fn finish(mut self) -> io::Result<W> {
        self.0.flush()?;
        Ok(self.0)
    }
}

/// Reads a capture, record by record.
pub struct Reader<R> {
    input: R,
    is_swapped: bool,
    unit_ns: u64,
    number: u64,
}

impl<R: Read> Reader<R> {
    pub fn new(mut input: R) -> Result<Reader<R>, Error> {
        let mut header = [0; 24];
        input.read_exact(&mut header)?;
        let word = |at: usize| u32_at(&header, at);
        let magic = word(0);
        let is_swapped = matches!(magic.swap_bytes(), MICROSECONDS | NANOSECONDS);
        let own = |value: u32| {
            if is_swapped {
                value.swap_bytes()
            } else {
                value
            }
        };
        let unit_ns = match own(magic) {
            MICROSECONDS => 1000,
            NANOSECONDS => 1,
            _ => return Err(Error::Magic(magic)),
        };
        // The upper bits tell of frames' checksums.
        match own(word(20)) & 0x0fff_ffff {
            ETHERNET => Ok(Reader {
                input,
                is_swapped,
                unit_ns,
                number: 0,
            }),
            other => Err(Error::LinkType(other)),
        }
    }

    /// Reads the next record; `None` at the end of the file.
    pub fn read(&mut self) -> Result<Option<Record>, Error> {
        self.number += 1;
        let number = self.number;
        let mut header = Vec::new();
        (&mut self.input).take(16).read_to_end(&mut header)?;
        if header.is_empty() {
            return Ok(None);
        }
        if header.len() < 16 {
            return Err(Error::Cut { number });
        }
        let [seconds, fraction, kept, length] = [0, 4, 8, 12].map(|at| {
            let word = u32_at(&header, at);
            if self.is_swapped {
                word.swap_bytes()
            } else {
                word
            }
        });
        if kept > RECORD_BYTES_MAX {
            return Err(Error::TooLong {
                number,
                bytes: kept,
            });
        }
        let mut bytes = Vec::new();
        (&mut self.input)
            .take(kept.into())
            .read_to_end(&mut bytes)?;
        if bytes.len() < kept as usize {
            return Err(Error::Cut { number });
        }
        let time_ns = u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * self.unit_ns;
        Ok(Some(Record {
            time_ns,
            length,
            bytes,
        }))
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capture() -> Vec<u8> {
        let mut writer = Writer::new(Vec::new()).expect("memory");
        writer
            .write(1_700_000_000_123_456_000, 60, &[7; 60])
            .expect("memory");
        writer
            .write(1_700_000_001_000_001_000, 1514, &[8; 64])
            .expect("memory");
        writer.finish().expect("memory")
    }

    fn records(file: &[u8]) -> Result<Vec<Record>, Error> {
        let mut reader = Reader::new(file)?;
        std::iter::from_fn(|| reader.read().transpose()).collect()
    }

    #[test]
    fn what_was_written_is_read() {
        let read = records(&capture()).expect("a capture");
        let first = Record {
            time_ns: 1_700_000_000_123_456_000,
            length: 60,
            bytes: vec![7; 60],
        };
        let second = Record {
            time_ns: 1_700_000_001_000_001_000,
            length: 1514,
            bytes: vec![8; 64],
        };
        assert_eq!(read, [first, second]);
    }

    #[test]
    fn the_other_byte_order_and_nanoseconds_are_read() {
        let mut file = capture();
        let (header, rest) = file.split_at_mut(24);
        for word in header.chunks_mut(4).chain(rest[..16].chunks_mut(4)) {
            word.reverse();
        }
        rest[76..92].chunks_mut(4).for_each(<[u8]>::reverse);
        assert_eq!(
            records(&file).expect("a capture"),
            records(&capture()).expect("a capture")
        );
        let mut file = capture();
        file[..4].copy_from_slice(&NANOSECONDS.to_le_bytes());
        let read = records(&file).expect("a capture");
        assert_eq!(read[0].time_ns, 1_700_000_000_000_123_456);
    }

    #[test]
    fn broken_files_are_errors() {
        let file = capture();
        for end in 0..file.len() {
            let whole = [24, 24 + 76].contains(&end);
            assert_eq!(records(&file[..end]).is_ok(), whole, "cut at {end}");
        }
        let broken = |at: usize, value: u8| {
            let mut file = file.clone();
            file[at] = value;
            records(&file)
        };
        assert!(matches!(broken(0, 0), Err(Error::Magic(_))));
        assert!(matches!(broken(20, 101), Err(Error::LinkType(101))));
        assert!(matches!(
            broken(24 + 11, 0x7f),
            Err(Error::TooLong { number: 1, .. })
        ));
    }
}

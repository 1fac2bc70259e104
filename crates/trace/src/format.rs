//! Encodes and decodes the file's head, block headers, numbers and records. `docs/trace-format.md`
//! describes them.

use outboard_api::decl::Class;

use crate::{
    error::Damage,
    record::{Call, GpuWork, Mark, Record, Work},
};

/// Not text, and damaged by anything that converts text.
pub(crate) const MAGIC: [u8; 8] = *b"\x89OBTR\r\n\x1a";
/// Versions that are read: 1 has no calls about events, 2 one server. There is no 3, of which one
/// flipped bit would make 1 or 2.
pub(crate) const VERSIONS: [u32; 3] = [1, 2, VERSION];
/// Version of the format that is written.
pub const VERSION: u32 = 4;
/// Oldest version that is read.
pub const VERSION_MIN: u32 = VERSIONS[0];
pub(crate) const HEAD_BYTES: usize = MAGIC.len() + 4;

/// Header of each block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockHeader {
    pub(crate) kind: u32,
    /// Length in the file.
    pub(crate) stored_bytes: u32,
    /// Length after decompression.
    pub(crate) plain_bytes: u32,
    pub(crate) checksum: u64,
}

pub(crate) const BLOCK_HEADER_BYTES: usize = 4 + 4 + 4 + 8 + 4;

/// A JSON document: [`About`](crate::About). A later one replaces an earlier one.
pub(crate) const KIND_ABOUT: u32 = 1;
pub(crate) const KIND_RECORDS: u32 = 2;
/// The program's end; no block follows.
pub(crate) const KIND_END: u32 = 3;

impl BlockHeader {
    pub(crate) fn encode(&self) -> [u8; BLOCK_HEADER_BYTES] {
        let mut bytes = [0; BLOCK_HEADER_BYTES];
        bytes[0..4].copy_from_slice(&self.kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.stored_bytes.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.plain_bytes.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.checksum.to_le_bytes());
        let check = checksum(&bytes[..20]) as u32;
        bytes[20..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; BLOCK_HEADER_BYTES]) -> Result<BlockHeader, Damage> {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        if checksum(&bytes[..20]) as u32 != word(20) {
            return Err(Damage::HeaderChecksum);
        }
        Ok(BlockHeader {
            kind: word(0),
            stored_bytes: word(4),
            plain_bytes: word(8),
            checksum: u64::from(word(12)) | u64::from(word(16)) << 32,
        })
    }
}

/// Returns the first 8 bytes of the BLAKE3 hash.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    let hash = blake3::hash(bytes);
    hash.as_bytes()
        .first_chunk()
        .map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

// The first byte of a record.
pub(crate) const TAG_NAME: u8 = 1;
pub(crate) const TAG_CALL: u8 = 2;
pub(crate) const TAG_WORK: u8 = 3;
pub(crate) const TAG_MARK: u8 = 4;
pub(crate) const TAG_LOST: u8 = 5;
/// A call about an event. Few calls have one, so it comes after all other fields.
pub(crate) const TAG_EVENT_CALL: u8 = 6;
/// A call for another server than the first, which follows its event.
pub(crate) const TAG_SERVER_CALL: u8 = 7;

const CLASSES: [Class; 5] = [
    Class::Local,
    Class::Outstanding,
    Class::Synchronous,
    Class::Shadowed,
    Class::Unsupported,
];
const WORKS: [GpuWork; 6] = [
    GpuWork::Kernel,
    GpuWork::CopyToDevice,
    GpuWork::CopyToHost,
    GpuWork::CopyOnDevice,
    GpuWork::Memset,
    GpuWork::Graph,
];

fn code<T: PartialEq>(all: &[T], one: T) -> u8 {
    all.iter().position(|other| *other == one).unwrap_or(0) as u8
}

/// Writes a number with seven bits per byte, the lowest first.
pub(crate) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Writes a time as the difference from the one before, since times are close to each other; the
/// sign is the lowest bit.
fn put_time(out: &mut Vec<u8>, last: &mut u64, time: u64) {
    let way = time.wrapping_sub(*last) as i64;
    put(out, ((way << 1) ^ (way >> 63)) as u64);
    *last = time;
}

/// Writes a record whose name has the number `name` in the file.
pub(crate) fn put_record(out: &mut Vec<u8>, last: &mut u64, record: &Record, name: u64) {
    match record {
        Record::Call(call) => {
            let tag = match (call.server, call.event) {
                (0, 0) => TAG_CALL,
                (0, _) => TAG_EVENT_CALL,
                _ => TAG_SERVER_CALL,
            };
            out.push(tag);
            put(out, name);
            out.push(code(&CLASSES, call.class));
            put(out, call.thread.into());
            put_time(out, last, call.start_ns);
            for number in [
                call.duration_ns,
                call.request_bytes,
                call.response_bytes,
                call.stream.into(),
                call.correlation.into(),
                call.status.into(),
            ] {
                put(out, number);
            }
            if tag != TAG_CALL {
                put(out, call.event.into());
            }
            if tag == TAG_SERVER_CALL {
                out.push(call.server);
            }
        }
        Record::Work(work) => {
            out.push(TAG_WORK);
            put(out, name);
            out.push(code(&WORKS, work.kind));
            put(out, work.device.into());
            put(out, work.stream.into());
            put_time(out, last, work.start_ns);
            for number in [work.duration_ns, work.bytes, work.correlation.into()] {
                put(out, number);
            }
        }
        Record::Mark(mark) => {
            out.push(TAG_MARK);
            put(out, name);
            out.push(u8::from(mark.is_end));
            put(out, mark.thread.into());
            put_time(out, last, mark.at_ns);
        }
    }
}

/// The unread part of a block.
pub(crate) struct Bytes<'a> {
    pub(crate) left: &'a [u8],
    pub(crate) last: u64,
}

impl<'a> Bytes<'a> {
    pub(crate) fn byte(&mut self) -> Result<u8, Damage> {
        let (first, rest) = self.left.split_first().ok_or(Damage::RecordEndsEarly)?;
        self.left = rest;
        Ok(*first)
    }

    pub(crate) fn number(&mut self) -> Result<u64, Damage> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Damage::Number);
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Damage::Number)
    }

    fn small(&mut self) -> Result<u32, Damage> {
        u32::try_from(self.number()?).map_err(|_| Damage::Number)
    }

    fn time(&mut self) -> Result<u64, Damage> {
        let way = self.number()?;
        let way = (way >> 1) as i64 ^ -((way & 1) as i64);
        self.last = self.last.wrapping_add(way as u64);
        Ok(self.last)
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], Damage> {
        let (head, rest) = self
            .left
            .split_at_checked(len)
            .ok_or(Damage::RecordEndsEarly)?;
        self.left = rest;
        Ok(head)
    }

    fn name(&mut self, names: usize) -> Result<u32, Damage> {
        let name = self.small()?;
        match (name as usize) < names {
            true => Ok(name),
            false => Err(Damage::Name),
        }
    }

    /// Reads the record for a tag other than those of names and of lost records.
    pub(crate) fn record(&mut self, tag: u8, names: usize) -> Result<Record, Damage> {
        // Fields are read in the order in which they are written here.
        Ok(match tag {
            TAG_CALL | TAG_EVENT_CALL | TAG_SERVER_CALL => Record::Call(Call {
                function: self.name(names)?,
                class: *CLASSES
                    .get(usize::from(self.byte()?))
                    .ok_or(Damage::Number)?,
                thread: self.small()?,
                start_ns: self.time()?,
                duration_ns: self.number()?,
                request_bytes: self.number()?,
                response_bytes: self.number()?,
                stream: self.small()?,
                correlation: self.small()?,
                status: self.small()?,
                event: match tag {
                    TAG_EVENT_CALL | TAG_SERVER_CALL => self.small()?,
                    _ => 0,
                },
                server: match tag {
                    TAG_SERVER_CALL => match self.byte()? {
                        // Calls for the first server have the other tags.
                        0 => return Err(Damage::Number),
                        server => server,
                    },
                    _ => 0,
                },
            }),
            TAG_WORK => Record::Work(Work {
                name: self.name(names)?,
                kind: *WORKS.get(usize::from(self.byte()?)).ok_or(Damage::Number)?,
                device: self.small()?,
                stream: self.small()?,
                start_ns: self.time()?,
                duration_ns: self.number()?,
                bytes: self.number()?,
                correlation: self.small()?,
            }),
            TAG_MARK => Record::Mark(Mark {
                name: self.name(names)?,
                is_end: match self.byte()? {
                    0 => false,
                    1 => true,
                    _ => return Err(Damage::Number),
                },
                thread: self.small()?,
                at_ns: self.time()?,
            }),
            _ => return Err(Damage::RecordKind),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        for number in [
            0,
            1,
            127,
            128,
            300,
            u64::from(u32::MAX),
            u64::MAX - 1,
            u64::MAX,
        ] {
            let mut out = Vec::new();
            put(&mut out, number);
            let mut bytes = Bytes {
                left: &out,
                last: 0,
            };
            assert_eq!(bytes.number(), Ok(number));
            assert!(bytes.left.is_empty());
        }
        let too_long = [0xff; 11];
        let mut bytes = Bytes {
            left: &too_long,
            last: 0,
        };
        assert_eq!(bytes.number(), Err(Damage::Number));
    }

    #[test]
    fn times_go_both_ways() {
        let times = [5, 0, u64::MAX, 7, 1 << 63, 6];
        let (mut out, mut last) = (Vec::new(), 0);
        for time in times {
            put_time(&mut out, &mut last, time);
        }
        let mut bytes = Bytes {
            left: &out,
            last: 0,
        };
        for time in times {
            assert_eq!(bytes.time(), Ok(time));
        }
    }

    #[test]
    fn block_headers() {
        let header = BlockHeader {
            kind: KIND_RECORDS,
            stored_bytes: 7,
            plain_bytes: 1 << 20,
            checksum: 0x0123_4567_89ab_cdef,
        };
        let bytes = header.encode();
        assert_eq!(BlockHeader::decode(&bytes), Ok(header));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(BlockHeader::decode(&flipped), Err(Damage::HeaderChecksum));
        }
    }
}

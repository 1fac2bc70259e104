//! Reads and writes of memory by transactions: the end that asks, with tags and answers in pieces,
//! and the memory that answers (PCI Express Base Specification, sections 2.2.5, 2.2.9 and 2.3.1).

use crate::{
    tables::Window,
    tlp::{Id, Kind, Request, Status},
};

/// Requests do not cross a border of this many bytes.
const BORDER_BYTES: u64 = 4_096;
/// Answers of a read are cut at multiples of this.
const BOUNDARY_BYTES: u64 = 128;

/// Doublewords that have some bytes, and the enables of the first and the last of them.
struct Span {
    address: u64,
    dwords: u16,
    first: u8,
    last: u8,
}

/// Returns the span of `bytes` bytes from `address` on, which cross no border.
fn span(address: u64, bytes: usize) -> Option<Span> {
    let count = u64::try_from(bytes).ok().filter(|count| *count > 0)?;
    let end = address.checked_add(count)?;
    if (end - 1) / BORDER_BYTES != address / BORDER_BYTES {
        return None;
    }
    let begin = address & !3;
    let dwords = (end - begin).div_ceil(4) as u16;
    let first = 15 << (address & 3) & 15;
    let last = 15 >> (end.next_multiple_of(4) - end);
    let (first, last) = match dwords {
        1 => (first & last, 0),
        _ => (first, last),
    };
    Some(Span {
        address: begin,
        dwords,
        first,
        last,
    })
}

/// Makes a write of some bytes: the transaction, and its data in whole doublewords. `None` if they
/// cross a border of 4 KiB, or are none.
pub fn write(requester: Id, address: u64, bytes: &[u8]) -> Option<(Kind, Vec<u8>)> {
    let span = span(address, bytes.len())?;
    let mut data = vec![0; usize::from(span.dwords) * 4];
    let at = (address - span.address) as usize;
    data[at..at + bytes.len()].copy_from_slice(bytes);
    let kind = Kind::MemoryWrite {
        request: Request {
            requester,
            tag: 0,
            first_enable: span.first,
            last_enable: span.last,
        },
        address: span.address,
    };
    Some((kind, data))
}

/// Completion that answers no read that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CompletionError {
    #[error("a completion for tag {0}, whose read is not under way")]
    Tag(u16),
    #[error("a completion for tag {tag} with {stated} bytes left, where {left} are")]
    Count { tag: u16, stated: u16, left: usize },
    #[error(
        "a completion for tag {tag} that begins at {stated:#04x} of its line, not {place:#04x}"
    )]
    Place { tag: u16, stated: u8, place: u8 },
    #[error("a completion for tag {0} with more data than its read asked for, or none")]
    Data(u16),
}

/// Answer to a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub address: u64,
    /// Bytes that were read, or the status with which the other end refused.
    pub bytes: Result<Vec<u8>, Status>,
}

/// Reads that are under way, by tag.
#[derive(Debug)]
pub struct Reads {
    requester: Id,
    under_way: Vec<Option<UnderWay>>,
}

#[derive(Debug)]
struct UnderWay {
    address: u64,
    bytes: usize,
    got: Vec<u8>,
}

impl Reads {
    /// Makes a requester with this many tags.
    pub fn new(requester: Id, tags: u16) -> Reads {
        Reads {
            requester,
            under_way: (0..tags).map(|_| None).collect(),
        }
    }

    pub fn is_idle(&self) -> bool {
        self.under_way.iter().all(Option::is_none)
    }

    /// Begins a read, which crosses no border of 4 KiB. `None` if no tag is free.
    pub fn begin(&mut self, address: u64, bytes: usize) -> Option<Kind> {
        let span = span(address, bytes)?;
        let tag = self.under_way.iter().position(Option::is_none)?;
        self.under_way[tag] = Some(UnderWay {
            address,
            bytes,
            got: Vec::with_capacity(bytes),
        });
        Some(Kind::MemoryRead {
            request: Request {
                requester: self.requester,
                tag: tag as u16,
                first_enable: span.first,
                last_enable: span.last,
            },
            address: span.address,
            dwords: span.dwords,
        })
    }

    /// Takes a completion; returns the read's answer with its last piece.
    pub fn take(&mut self, kind: &Kind, data: &[u8]) -> Result<Option<Answer>, CompletionError> {
        let Kind::Completion {
            tag,
            status,
            byte_count,
            lower_address,
            ..
        } = *kind
        else {
            return Ok(None);
        };
        let slot = self.under_way.get_mut(usize::from(tag));
        let slot = slot.ok_or(CompletionError::Tag(tag))?;
        let read = slot.as_mut().ok_or(CompletionError::Tag(tag))?;
        if status != Status::Successful {
            let answer = Answer {
                address: read.address,
                bytes: Err(status),
            };
            *slot = None;
            return Ok(Some(answer));
        }
        let left = read.bytes - read.got.len();
        if usize::from(byte_count) != left {
            let stated = byte_count;
            return Err(CompletionError::Count { tag, stated, left });
        }
        let at = read.address + read.got.len() as u64;
        let place = (at & 0x7F) as u8;
        if lower_address != place {
            let stated = lower_address;
            return Err(CompletionError::Place { tag, stated, place });
        }
        let data = data.get((at & 3) as usize..).unwrap_or_default();
        // Bytes after the read's end fill the last doubleword.
        if data.is_empty() || data.len() >= left + 4 {
            return Err(CompletionError::Data(tag));
        }
        read.got.extend_from_slice(&data[..data.len().min(left)]);
        if read.got.len() < read.bytes {
            return Ok(None);
        }
        let done = slot.take().map(|read| Answer {
            address: read.address,
            bytes: Ok(read.got),
        });
        Ok(done)
    }
}

/// Memory behind an address register of a device.
#[derive(Debug, Clone)]
pub struct Memory {
    base: u64,
    bytes: Vec<u8>,
    payload_bytes_max: u64,
}

impl Memory {
    /// Makes memory of zeros that begins at `base`. Its answers have at most `payload_bytes_max`
    /// bytes, a multiple of 128.
    pub fn new(base: u64, bytes: usize, payload_bytes_max: u64) -> Memory {
        Memory {
            base,
            bytes: vec![0; bytes],
            payload_bytes_max: payload_bytes_max.max(BOUNDARY_BYTES),
        }
    }

    pub fn window(&self) -> Window {
        Window {
            base: self.base,
            limit: self.base + (self.bytes.len() as u64).saturating_sub(1),
        }
    }

    fn range(&self, address: u64, bytes: u64) -> Option<std::ops::Range<usize>> {
        let begin = usize::try_from(address.checked_sub(self.base)?).ok()?;
        let end = begin.checked_add(usize::try_from(bytes).ok()?)?;
        (end <= self.bytes.len()).then_some(begin..end)
    }

    /// Writes the bytes that are enabled. Returns false if there is no such memory.
    pub fn write(&mut self, request: &Request, address: u64, data: &[u8]) -> bool {
        let Some(range) = self.range(address, data.len() as u64) else {
            return false;
        };
        let dwords = data.len() / 4;
        for (at, byte) in data.iter().enumerate() {
            let enable = match at / 4 {
                0 => request.first_enable,
                dword if dword + 1 == dwords => request.last_enable,
                _ => 15,
            };
            if enable >> (at % 4) & 1 != 0 {
                self.bytes[range.start + at] = *byte;
            }
        }
        true
    }

    /// Answers a read, in pieces that end at multiples of 128 bytes.
    pub fn read(
        &self,
        completer: Id,
        request: &Request,
        address: u64,
        dwords: u16,
        mut answer: impl FnMut(Kind, &[u8]),
    ) {
        let mut completion = |status, byte_count, lower_address, data: &[u8]| {
            let kind = Kind::Completion {
                completer,
                requester: request.requester,
                tag: request.tag,
                status,
                byte_count,
                lower_address,
            };
            answer(kind, data);
        };
        let bytes = u64::from(dwords) * 4;
        let Some(range) = self.range(address, bytes) else {
            return completion(Status::UnsupportedRequest, 4, 0, &[]);
        };
        let last = match dwords {
            1 => request.first_enable,
            _ => request.last_enable,
        };
        if last == 0 {
            // A read of no byte flushes writes; its doubleword's bytes do not count.
            let data = &self.bytes[range.start..range.start + 4];
            return completion(Status::Successful, 1, (address & 0x7F) as u8, data);
        }
        let skipped = u64::from(request.first_enable.trailing_zeros().min(3));
        let unread = u64::from((last << 4).leading_zeros().min(3));
        let end = address + bytes - unread;
        let mut at = address + skipped;
        while at < end {
            let limit = (at / BOUNDARY_BYTES) * BOUNDARY_BYTES + self.payload_bytes_max;
            let to = limit.min(end);
            let from = range.start + ((at & !3) - address) as usize;
            let until = range.start + (to.next_multiple_of(4) - address) as usize;
            let data = &self.bytes[from..until];
            completion(
                Status::Successful,
                (end - at) as u16,
                (at & 0x7F) as u8,
                data,
            );
            at = to;
        }
    }
}

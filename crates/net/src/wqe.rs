//! Send queue entries (WQEs) of mlx5 adapters, big-endian, as rdma-core's `mlx5dv.h` lays them out.
//!
//! ```text
//!  16 B  control    opmod 8 | index 16 | opcode 8 ; qpn 24 | ds 8 ; signature, stream, flags ; imm
//!  16 B  remote     address 64 ; rkey 32 ; 0     writes, reads, atomics
//!  16 B  atomic     swap or add 64 ; compare 64                                        atomics
//!  16 B  wait       0 64 ; number of a completion 32 ; completion queue 32                 waits
//!  16 B  data       length 32 ; lkey 32 ; address 64                                 any number
//!   or   inline     0x8000_0000 | length 32 ; the bytes, padded to a multiple of 16
//! ```

use smallvec::SmallVec;

use crate::{
    masked::{Change, modifier, word_bytes},
    syndrome::Syndrome,
};

/// Most entries of a ring, and most that one look at a queue flushes.
pub(crate) const ENTRIES_MAX: usize = 1 << 15;
/// Bytes of a segment.
pub const SEGMENT_BYTES: usize = 16;
/// Bytes of a block. An entry begins at a block.
pub const BLOCK_BYTES: usize = 64;
/// Most segments of an entry: the field has six bits.
pub const SEGMENTS_MAX: usize = 63;
/// Most bytes inline.
pub const INLINE_BYTES_MAX: usize = 256;
/// Most bytes of a message.
pub const MESSAGE_BYTES_MAX: u64 = 1 << 31;

/// Bit of a first segment's length that says that its bytes follow inline.
pub const INLINE: u32 = 0x8000_0000;
const CE_SHIFT: u8 = 2;
const FM_SHIFT: u8 = 5;

/// Numbers of the operations.
pub mod opcode {
    pub const NOP: u8 = 0x00;
    pub const WRITE: u8 = 0x08;
    pub const WRITE_IMM: u8 = 0x09;
    pub const SEND: u8 = 0x0a;
    pub const SEND_IMM: u8 = 0x0b;
    pub const WAIT: u8 = 0x0f;
    pub const READ: u8 = 0x10;
    pub const COMPARE_SWAP: u8 = 0x11;
    pub const FETCH_ADD: u8 = 0x12;
    pub const MASKED_COMPARE_SWAP: u8 = 0x14;
    pub const MASKED_FETCH_ADD: u8 = 0x15;
    pub const DUMP: u8 = 0x23;
}

/// The flags byte of the control segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// A completion always.
    pub const SIGNALLED: Flags = Flags(2 << CE_SHIFT);
    /// Reads and atomics before this entry are over before it begins: rdma-core's bits.
    pub const FENCE: Flags = Flags(4 << FM_SHIFT);

    /// The peer's program is told of the message, if it waits for such: rdma-core's bit.
    pub const SOLICITED: Flags = Flags(2);

    #[must_use]
    pub fn solicited(self) -> bool {
        self.0 & Flags::SOLICITED.0 != 0
    }

    #[must_use]
    pub fn and(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    #[must_use]
    pub fn signalled(self) -> bool {
        self.0 >> CE_SHIFT & 3 >= 2
    }

    /// Returns true if the entry waits for earlier reads and atomics (fences 2, 4, strong order).
    #[must_use]
    pub fn fenced(self) -> bool {
        self.0 >> FM_SHIFT >= 2
    }
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    pub address: u64,
    pub rkey: u32,
}

/// Memory of the poster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub length: u32,
    pub lkey: u32,
    pub address: u64,
}

impl Segment {
    /// Bytes that the segment covers: a length of 0 is 2 GiB.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self.length {
            0 => MESSAGE_BYTES_MAX,
            length => u64::from(length),
        }
    }
}

pub type Segments = SmallVec<[Segment; 2]>;

/// Bytes to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    Gather(Segments),
    Inline(SmallVec<[u8; 32]>),
}

/// An atomic with masks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Masked {
    pub remote: Remote,
    /// Bytes of the word: 4 or 8.
    pub bytes: u64,
    pub change: Change,
    pub into: Segment,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    Nop,
    Write {
        remote: Remote,
        imm: Option<u32>,
        data: Data,
    },
    Send {
        imm: Option<u32>,
        data: Data,
    },
    Read {
        remote: Remote,
        into: Segments,
    },
    FetchAdd {
        remote: Remote,
        add: u64,
        into: Segment,
    },
    CompareSwap {
        remote: Remote,
        compare: u64,
        swap: u64,
        into: Segment,
    },
    Masked(Masked),
    /// Reads memory of this side, after all that was read into it before.
    Dump {
        from: Segments,
    },
    /// Waits until a completion queue has had a completion of this number, counted from 0.
    Wait {
        completions: u32,
        number: u32,
    },
}

impl Operation {
    #[must_use]
    pub fn opcode(&self) -> u8 {
        match self {
            Operation::Nop => opcode::NOP,
            Operation::Write { imm: None, .. } => opcode::WRITE,
            Operation::Write { imm: Some(_), .. } => opcode::WRITE_IMM,
            Operation::Send { imm: None, .. } => opcode::SEND,
            Operation::Send { imm: Some(_), .. } => opcode::SEND_IMM,
            Operation::Read { .. } => opcode::READ,
            Operation::FetchAdd { .. } => opcode::FETCH_ADD,
            Operation::CompareSwap { .. } => opcode::COMPARE_SWAP,
            Operation::Masked(masked) => match masked.change {
                Change::Add { .. } => opcode::MASKED_FETCH_ADD,
                Change::Swap { .. } => opcode::MASKED_COMPARE_SWAP,
            },
            Operation::Dump { .. } => opcode::DUMP,
            Operation::Wait { .. } => opcode::WAIT,
        }
    }

    /// Returns true if the peer changes a word, and answers with what was there.
    #[must_use]
    pub fn is_atomic(&self) -> bool {
        matches!(
            self,
            Operation::FetchAdd { .. } | Operation::CompareSwap { .. } | Operation::Masked(_)
        )
    }

    /// Returns the peer's memory, if it is about any.
    #[must_use]
    pub fn remote(&self) -> Option<&Remote> {
        match self {
            Operation::Write { remote, .. }
            | Operation::Read { remote, .. }
            | Operation::FetchAdd { remote, .. }
            | Operation::CompareSwap { remote, .. }
            | Operation::Masked(Masked { remote, .. }) => Some(remote),
            Operation::Nop
            | Operation::Send { .. }
            | Operation::Dump { .. }
            | Operation::Wait { .. } => None,
        }
    }

    /// Returns true if the peer answers with data.
    #[must_use]
    pub fn reads(&self) -> bool {
        matches!(self, Operation::Read { .. }) || self.is_atomic()
    }
}

/// One entry of a send queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Number of its first block, modulo 65,536.
    pub index: u16,
    pub qpn: u32,
    pub flags: Flags,
    pub operation: Operation,
}

impl Entry {
    /// Writes the entry: whole segments, not padded to a block.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; SEGMENT_BYTES];
        let (mut imm, mut opmod) = (0, 0);
        match &self.operation {
            Operation::Nop => {}
            Operation::Write {
                remote,
                imm: wanted,
                data,
            } => {
                imm = wanted.unwrap_or(0);
                put_remote(&mut bytes, *remote);
                put_data(&mut bytes, data);
            }
            Operation::Send { imm: wanted, data } => {
                imm = wanted.unwrap_or(0);
                put_data(&mut bytes, data);
            }
            Operation::Dump { from } => put_segments(&mut bytes, from),
            Operation::Wait {
                completions,
                number,
            } => put_wait(&mut bytes, *completions, *number),
            Operation::Read { remote, into } => {
                put_remote(&mut bytes, *remote);
                put_segments(&mut bytes, into);
            }
            Operation::FetchAdd { remote, add, into } => {
                put_remote(&mut bytes, *remote);
                bytes.extend_from_slice(&add.to_be_bytes());
                bytes.extend_from_slice(&[0; 8]);
                put_segment(&mut bytes, *into);
            }
            Operation::CompareSwap {
                remote,
                compare,
                swap,
                into,
            } => {
                put_remote(&mut bytes, *remote);
                bytes.extend_from_slice(&swap.to_be_bytes());
                bytes.extend_from_slice(&compare.to_be_bytes());
                put_segment(&mut bytes, *into);
            }
            Operation::Masked(masked) => {
                opmod = modifier(masked.bytes);
                put_remote(&mut bytes, masked.remote);
                masked.change.encode(masked.bytes, &mut bytes);
                put_segment(&mut bytes, masked.into);
            }
        }
        let segments = (bytes.len() / SEGMENT_BYTES) as u32;
        let first = u32::from(self.index) << 8 | u32::from(self.operation.opcode());
        bytes[0..4].copy_from_slice(&first.to_be_bytes());
        bytes[0] = opmod;
        bytes[4..8].copy_from_slice(&(self.qpn << 8 | segments).to_be_bytes());
        bytes[11] = self.flags.0;
        bytes[12..16].copy_from_slice(&imm.to_be_bytes());
        bytes
    }

    /// Reads the entry that a queue has at `index`, as strictly as an adapter: `bytes` are the
    /// blocks that were posted, of which the entry takes the first.
    pub fn parse(bytes: &[u8], index: u16, qpn: u32) -> Result<Entry, Syndrome> {
        let wrong = Syndrome::LOCAL_OPERATION;
        let control = Control::read(bytes).ok_or(wrong)?;
        let is_masked = matches!(
            control.opcode,
            opcode::MASKED_COMPARE_SWAP | opcode::MASKED_FETCH_ADD
        );
        if control.index != index || control.qpn != qpn || (control.opmod != 0) != is_masked {
            return Err(wrong);
        }
        let bytes = bytes.get(..control.segments * SEGMENT_BYTES).ok_or(wrong)?;
        let mut rest = Reader(bytes.get(SEGMENT_BYTES..).ok_or(wrong)?);
        let imm = Some(control.imm);
        let operation = match control.opcode {
            // It may have segments, which mean nothing: NVSHMEM's has one.
            opcode::NOP => {
                rest.0 = &[];
                Operation::Nop
            }
            opcode::WRITE => Operation::Write {
                remote: rest.remote()?,
                imm: None,
                data: rest.data()?,
            },
            opcode::WRITE_IMM => Operation::Write {
                remote: rest.remote()?,
                imm,
                data: rest.data()?,
            },
            opcode::SEND => Operation::Send {
                imm: None,
                data: rest.data()?,
            },
            opcode::SEND_IMM => Operation::Send {
                imm,
                data: rest.data()?,
            },
            opcode::READ => Operation::Read {
                remote: rest.remote()?,
                into: rest.gather()?,
            },
            opcode::FETCH_ADD => rest.fetch_add()?,
            opcode::COMPARE_SWAP => rest.compare_swap()?,
            opcode::DUMP => Operation::Dump {
                from: rest.gather()?,
            },
            opcode::WAIT => rest.wait()?,
            _ if is_masked => rest.masked(control.opcode, control.opmod)?,
            _ => return Err(wrong),
        };
        if !rest.0.is_empty() {
            return Err(wrong);
        }
        Ok(Entry {
            index,
            qpn,
            flags: control.flags,
            operation,
        })
    }
}

/// The first segment of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    pub opmod: u8,
    pub index: u16,
    pub opcode: u8,
    pub qpn: u32,
    /// Segments of the entry, this one among them.
    pub segments: usize,
    pub flags: Flags,
    pub imm: u32,
}

impl Control {
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Control> {
        let mut rest = Reader(bytes.get(..SEGMENT_BYTES)?);
        let (first, second) = (rest.u32().ok()?, rest.u32().ok()?);
        let (flags, imm) = (rest.u32().ok()?, rest.u32().ok()?);
        Some(Control {
            opmod: (first >> 24) as u8,
            index: (first >> 8) as u16,
            opcode: first as u8,
            qpn: second >> 8,
            segments: (second & 0x3f) as usize,
            flags: Flags(flags as u8),
            imm,
        })
    }

    /// Blocks that the entry takes, at least one.
    #[must_use]
    pub fn blocks(&self) -> u16 {
        (self.segments * SEGMENT_BYTES).div_ceil(BLOCK_BYTES).max(1) as u16
    }
}

fn put_remote(bytes: &mut Vec<u8>, remote: Remote) {
    bytes.extend_from_slice(&remote.address.to_be_bytes());
    bytes.extend_from_slice(&remote.rkey.to_be_bytes());
    bytes.extend_from_slice(&[0; 4]);
}

fn put_segment(bytes: &mut Vec<u8>, segment: Segment) {
    bytes.extend_from_slice(&segment.length.to_be_bytes());
    bytes.extend_from_slice(&segment.lkey.to_be_bytes());
    bytes.extend_from_slice(&segment.address.to_be_bytes());
}

fn put_segments(bytes: &mut Vec<u8>, segments: &[Segment]) {
    segments.iter().for_each(|one| put_segment(bytes, *one));
}

fn put_wait(bytes: &mut Vec<u8>, completions: u32, number: u32) {
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes.extend_from_slice(&completions.to_be_bytes());
}

fn put_data(bytes: &mut Vec<u8>, data: &Data) {
    match data {
        Data::Gather(segments) => put_segments(bytes, segments),
        Data::Inline(inline) => {
            bytes.extend_from_slice(&(INLINE | inline.len() as u32).to_be_bytes());
            bytes.extend_from_slice(inline);
            bytes.resize(bytes.len().next_multiple_of(SEGMENT_BYTES), 0);
        }
    }
}

/// Segments that are still to be read. A field that is not there is a wrong number of segments.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Syndrome> {
        let (taken, rest) = self
            .0
            .split_first_chunk::<N>()
            .ok_or(Syndrome::LOCAL_OPERATION)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u32(&mut self) -> Result<u32, Syndrome> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, Syndrome> {
        self.take().map(u64::from_be_bytes)
    }

    fn remote(&mut self) -> Result<Remote, Syndrome> {
        let remote = Remote {
            address: self.u64()?,
            rkey: self.u32()?,
        };
        self.u32()?;
        Ok(remote)
    }

    fn segment(&mut self) -> Result<Segment, Syndrome> {
        Ok(Segment {
            length: self.u32()?,
            lkey: self.u32()?,
            address: self.u64()?,
        })
    }

    fn fetch_add(&mut self) -> Result<Operation, Syndrome> {
        let remote = self.remote()?;
        let (add, _) = (self.u64()?, self.u64()?);
        Ok(Operation::FetchAdd {
            remote,
            add,
            into: self.segment()?,
        })
    }

    fn compare_swap(&mut self) -> Result<Operation, Syndrome> {
        let remote = self.remote()?;
        let (swap, compare) = (self.u64()?, self.u64()?);
        Ok(Operation::CompareSwap {
            remote,
            compare,
            swap,
            into: self.segment()?,
        })
    }

    fn masked(&mut self, opcode: u8, opmod: u8) -> Result<Operation, Syndrome> {
        let (remote, bytes) = (self.remote()?, word_bytes(opmod)?);
        let mut operands = [0; 4];
        let count = match (opcode, bytes) {
            (opcode::MASKED_FETCH_ADD, 8) => 2,
            _ => 4,
        };
        for operand in &mut operands[..count] {
            *operand = match bytes {
                4 => self.u32()?.into(),
                _ => self.u64()?,
            };
        }
        Ok(Operation::Masked(Masked {
            remote,
            bytes,
            change: Change::with(opcode == opcode::MASKED_FETCH_ADD, operands),
            into: self.segment()?,
        }))
    }

    fn wait(&mut self) -> Result<Operation, Syndrome> {
        self.u64()?;
        Ok(Operation::Wait {
            number: self.u32()?,
            completions: self.u32()?,
        })
    }

    fn gather(&mut self) -> Result<Segments, Syndrome> {
        let mut segments = Segments::new();
        while !self.0.is_empty() {
            segments.push(self.segment()?);
        }
        Ok(segments)
    }

    fn data(&mut self) -> Result<Data, Syndrome> {
        let first = self.0.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
        match first {
            Some(first) if first & INLINE != 0 => {
                self.u32()?;
                let length = (first & !INLINE) as usize;
                if length > INLINE_BYTES_MAX {
                    return Err(Syndrome::LOCAL_LENGTH);
                }
                let padded = (4 + length).next_multiple_of(SEGMENT_BYTES) - 4;
                let (inline, rest) = self
                    .0
                    .split_at_checked(padded)
                    .ok_or(Syndrome::LOCAL_OPERATION)?;
                self.0 = rest;
                Ok(Data::Inline(SmallVec::from_slice(&inline[..length])))
            }
            _ => self.gather().map(Data::Gather),
        }
    }
}

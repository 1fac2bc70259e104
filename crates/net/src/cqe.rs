//! Completions (CQEs) of mlx5 adapters: 64 bytes, big-endian.
//!
//! ```text
//!  32 source qp | 36 immediate | 44 byte count | 48 timestamp
//!  56 opcode of the entry 8 (errors) | qpn 24 | 60 index 16 | 62 signature | 63 opcode 4, owner
//!  54 vendor syndrome | 55 syndrome                                                   (errors)
//! ```

use crate::syndrome::Syndrome;

pub const CQE_BYTES: usize = 64;
/// The last byte of a completion that was never written.
pub const FRESH: u8 = 0xf1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Requester = 0,
    ReceivedWriteImm = 1,
    Received = 2,
    ReceivedImm = 3,
    RequesterError = 13,
    ResponderError = 14,
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    pub kind: Kind,
    pub qpn: u32,
    /// Opcode of the entry of a send queue.
    pub opcode: u8,
    /// Index of the entry, in its send or receive queue.
    pub index: u16,
    pub bytes: u32,
    pub imm: u32,
    pub timestamp: u64,
    /// 0 if the operation succeeded.
    pub syndrome: u8,
    pub vendor_syndrome: u8,
}

impl Completion {
    /// Lays the completion out. The last eight bytes are to be stored last, in one store.
    #[must_use]
    pub fn encode(&self, owner: bool) -> [u8; CQE_BYTES] {
        let mut bytes = [0; CQE_BYTES];
        bytes[36..40].copy_from_slice(&self.imm.to_be_bytes());
        bytes[44..48].copy_from_slice(&self.bytes.to_be_bytes());
        if self.is_error() {
            bytes[54] = self.vendor_syndrome;
            bytes[55] = self.syndrome;
        } else {
            bytes[48..56].copy_from_slice(&self.timestamp.to_be_bytes());
        }
        let of_entry = u32::from(self.opcode) << 24 | self.qpn & 0x00ff_ffff;
        bytes[56..60].copy_from_slice(&of_entry.to_be_bytes());
        bytes[60..62].copy_from_slice(&self.index.to_be_bytes());
        bytes[63] = (self.kind as u8) << 4 | u8::from(owner);
        bytes
    }

    /// Reads a completion, and its owner bit; `None` if its opcode is none of [`Kind`].
    #[must_use]
    pub fn parse(bytes: &[u8; CQE_BYTES]) -> Option<(Completion, bool)> {
        let u32_at = |at: usize| {
            bytes[at..at + 4]
                .iter()
                .fold(0, |sum, byte| sum << 8 | u32::from(*byte))
        };
        let kind = match bytes[63] >> 4 {
            0 => Kind::Requester,
            1 => Kind::ReceivedWriteImm,
            2 => Kind::Received,
            3 => Kind::ReceivedImm,
            13 => Kind::RequesterError,
            14 => Kind::ResponderError,
            _ => return None,
        };
        let error = matches!(kind, Kind::RequesterError | Kind::ResponderError);
        let completion = Completion {
            kind,
            qpn: u32_at(56) & 0x00ff_ffff,
            opcode: bytes[56],
            index: u16::from_be_bytes([bytes[60], bytes[61]]),
            bytes: u32_at(44),
            imm: u32_at(36),
            timestamp: if error {
                0
            } else {
                u64::from(u32_at(48)) << 32 | u64::from(u32_at(52))
            },
            syndrome: if error { bytes[55] } else { 0 },
            vendor_syndrome: if error { bytes[54] } else { 0 },
        };
        Some((completion, bytes[63] & 1 != 0))
    }

    #[must_use]
    pub fn is_error(&self) -> bool {
        matches!(self.kind, Kind::RequesterError | Kind::ResponderError)
    }

    /// A success of a send queue's entry.
    #[must_use]
    pub fn success(qpn: u32, opcode: u8, index: u16, bytes: u32, timestamp: u64) -> Completion {
        let kind = Kind::Requester;
        Completion {
            kind,
            qpn,
            opcode,
            index,
            bytes,
            imm: 0,
            timestamp,
            syndrome: 0,
            vendor_syndrome: 0,
        }
    }

    /// A failure of an entry, of a send queue or a receive queue.
    #[must_use]
    pub fn failure(kind: Kind, qpn: u32, opcode: u8, index: u16, syndrome: Syndrome) -> Completion {
        let syndrome = syndrome.0;
        Completion {
            kind,
            qpn,
            opcode,
            index,
            bytes: 0,
            imm: 0,
            timestamp: 0,
            syndrome,
            vendor_syndrome: 0,
        }
    }
}

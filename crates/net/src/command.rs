//! Commands to the firmware of mlx5 adapters, as far as they are given.
//!
//! The stand-ins of `outboard-nic` read them by a table of their own, so that a wrong number in one
//! of the two is noticed.

use crate::field::Field;

const fn field(at: usize, bits: usize) -> Field {
    Field::new(at, bits)
}

/// Numbers of the commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Opcode {
    CreateCompletions = 0x400,
    CreatePair = 0x500,
    ToInit = 0x502,
    InitToReceive = 0x503,
    ReceiveToSend = 0x504,
    ToError = 0x507,
    ToReset = 0x50a,
}

const OPCODE: Field = field(0, 0x10);
/// Number of the object that was made, or is meant.
pub(crate) const NUMBER: Field = field(0x48, 0x18);

/// Completion queues: the context begins at 0x80.
pub(crate) mod cq {
    use super::{Field, field};

    const CONTEXT: usize = 0x80;
    pub(crate) const COLLAPSED: Field = field(CONTEXT + 0xb, 1);
    pub(crate) const OVERRUN_IGNORED: Field = field(CONTEXT + 0xe, 1);
    pub(crate) const RECORD_IS_PAGES: Field = field(CONTEXT + 0x6, 1);
    pub(crate) const RECORD_PAGES: Field = field(CONTEXT + 0x20, 0x20);
    pub(crate) const LOG_SIZE: Field = field(CONTEXT + 0x63, 5);
    pub(crate) const PAGE: Field = field(CONTEXT + 0x68, 0x18);
    pub(crate) const EVENTS: Field = field(CONTEXT + 0xa0, 0x20);
    pub(crate) const RECORD_OFFSET: Field = field(CONTEXT + 0x1c0, 0x40);
    pub(crate) const OFFSET: Field = field(0x280, 0x40);
    pub(crate) const PAGES: Field = field(0x2c0, 0x20);
    pub(crate) const IS_PAGES: Field = field(0x2e0, 1);
    pub(crate) const BYTES: usize = 0x880 / 8;
}

/// Queue pairs: the context begins at 0xc0, and in it the way to the peer.
pub(crate) mod qp {
    use super::{Field, field};

    const CONTEXT: usize = 0xc0;
    pub(crate) const PATH_STATE: Field = field(CONTEXT + 0x13, 2);
    pub(crate) const DOMAIN: Field = field(CONTEXT + 0x28, 0x18);
    pub(crate) const MTU: Field = field(CONTEXT + 0x40, 3);
    pub(crate) const LOG_MESSAGE_MAX: Field = field(CONTEXT + 0x43, 5);
    pub(crate) const LOG_RECEIVES: Field = field(CONTEXT + 0x49, 4);
    pub(crate) const LOG_BLOCKS: Field = field(CONTEXT + 0x51, 4);
    pub(crate) const PAGE: Field = field(CONTEXT + 0x68, 0x18);
    pub(crate) const REMOTE: Field = field(CONTEXT + 0xa8, 0x18);
    pub(crate) const LOG_READS: Field = field(CONTEXT + 0x388, 3);
    pub(crate) const RETRIES: Field = field(CONTEXT + 0x38d, 3);
    pub(crate) const NOT_READY_RETRIES: Field = field(CONTEXT + 0x390, 3);
    pub(crate) const SEND_NUMBER: Field = field(CONTEXT + 0x3c8, 0x18);
    pub(crate) const SEND_COMPLETIONS: Field = field(CONTEXT + 0x3e8, 0x18);
    pub(crate) const LOG_READS_TAKEN: Field = field(CONTEXT + 0x488, 3);
    pub(crate) const ATOMICS: Field = field(CONTEXT + 0x48c, 4);
    /// Remote reads, writes and atomics are taken, a bit each.
    pub(crate) const TAKEN: Field = field(CONTEXT + 0x490, 3);
    pub(crate) const NOT_READY_TIMER: Field = field(CONTEXT + 0x4a3, 5);
    pub(crate) const RECEIVE_NUMBER: Field = field(CONTEXT + 0x4a8, 0x18);
    pub(crate) const RECEIVE_COMPLETIONS: Field = field(CONTEXT + 0x4e8, 0x18);
    pub(crate) const RECORD_OFFSET: Field = field(CONTEXT + 0x500, 0x40);
    pub(crate) const RECEIVES_KIND: Field = field(CONTEXT + 0x565, 3);
    pub(crate) const RECORD_IS_PAGES: Field = field(CONTEXT + 0x683, 1);
    pub(crate) const RECORD_PAGES: Field = field(CONTEXT + 0x720, 0x20);
    pub(crate) const OFFSET: Field = field(0x800, 0x40);
    pub(crate) const PAGES: Field = field(0x840, 0x20);
    pub(crate) const IS_PAGES: Field = field(0x860, 1);
    pub(crate) const BYTES: usize = 0x880 / 8;

    const PATH: usize = CONTEXT + 0xc0;
    pub(crate) const PARTITION: Field = field(PATH + 0x10, 0x10);
    pub(crate) const IS_GLOBAL: Field = field(PATH + 0x28, 1);
    pub(crate) const LID: Field = field(PATH + 0x30, 0x10);
    pub(crate) const TIMEOUT: Field = field(PATH + 0x40, 5);
    pub(crate) const GID_INDEX: Field = field(PATH + 0x48, 8);
    pub(crate) const HOP_LIMIT: Field = field(PATH + 0x58, 8);
    pub(crate) const TRAFFIC_CLASS: Field = field(PATH + 0x64, 8);
    /// Halves of the peer's address.
    pub(crate) const GID: [Field; 2] = [field(PATH + 0x80, 0x40), field(PATH + 0xc0, 0x40)];
    pub(crate) const DIFFERENTIATED: Field = field(PATH + 0x10a, 6);
    pub(crate) const UDP_PORT: Field = field(PATH + 0x110, 0x10);
    pub(crate) const PORT: Field = field(PATH + 0x128, 8);
    pub(crate) const STATION: Field = field(PATH + 0x130, 0x30);
}

/// A command, of fields that are 0 until they are set.
#[derive(Clone, Debug)]
pub(crate) struct Command(Vec<u8>);

impl Command {
    pub(crate) fn new(opcode: Opcode, bytes: usize) -> Command {
        Command(vec![0; bytes]).with(OPCODE, opcode as u64)
    }

    pub(crate) fn with(mut self, field: Field, value: impl Into<u64>) -> Command {
        field.set(&mut self.0, value.into());
        self
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_big_endian_and_their_neighbours_stay() {
        let command = Command::new(Opcode::CreatePair, qp::BYTES)
            .with(NUMBER, 0xabcdefu32)
            .with(qp::LOG_RECEIVES, 5u32)
            .with(qp::LOG_BLOCKS, 9u32)
            .with(qp::GID[1], 0x0102_0304_0506_0708u64);
        let bytes = command.bytes();
        assert_eq!(bytes[..12], [5, 0, 0, 0, 0, 0, 0, 0, 0, 0xab, 0xcd, 0xef]);
        // The context's word 2: receives 5 << 3, no stride; sends 9 << 3.
        assert_eq!(bytes[32..36], [0, 5 << 3, 9 << 3, 0]);
        let gid = (0xc0 + 0xc0 + 0xc0) / 8;
        assert_eq!(bytes[gid..gid + 8], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(NUMBER.of(bytes), 0xab_cdef);
        assert_eq!(bytes.iter().filter(|byte| **byte != 0).count(), 14);
    }
}

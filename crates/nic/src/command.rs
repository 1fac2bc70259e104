//! Commands to an adapter's firmware, as far as they are served. Numbers of fields are written here
//! by themselves, so that a wrong one of those that give the commands is noticed.

use outboard_net::Field;

const fn field(at: usize, bits: usize) -> Field {
    Field::new(at, bits)
}

/// Numbers of the commands.
pub(crate) mod opcode {
    pub(crate) const QUERY_HCA_CAP: u64 = 0x100;
    pub(crate) const CREATE_CQ: u64 = 0x400;
    pub(crate) const CREATE_QP: u64 = 0x500;
    pub(crate) const RST2INIT: u64 = 0x502;
    pub(crate) const INIT2RTR: u64 = 0x503;
    pub(crate) const RTR2RTS: u64 = 0x504;
    pub(crate) const RTS2RTS: u64 = 0x505;
    pub(crate) const TO_ERROR: u64 = 0x507;
    pub(crate) const TO_RESET: u64 = 0x50a;
    pub(crate) const QUERY_QP: u64 = 0x50b;
    pub(crate) const INIT2INIT: u64 = 0x50e;
    pub(crate) const QUERY_ROCE_ADDRESS: u64 = 0x760;
}

pub(crate) const OPCODE: Field = field(0, 0x10);
pub(crate) const OP_MOD: Field = field(0x30, 0x10);
/// Number of the object that was made, or is meant.
pub(crate) const NUMBER: Field = field(0x48, 0x18);

/// CREATE_CQ: its context begins at 0x80.
pub(crate) mod cq {
    use super::{Field, field};

    pub(crate) const CQE_SIZE: Field = field(0x88, 3);
    pub(crate) const COLLAPSED: Field = field(0x8b, 1);
    pub(crate) const OVERRUN_IGNORED: Field = field(0x8e, 1);
    pub(crate) const RECORD_MEMORY: Field = field(0xa0, 0x20);
    pub(crate) const LOG_SIZE: Field = field(0xe3, 5);
    pub(crate) const RECORD_OFFSET: Field = field(0x240, 0x40);
    pub(crate) const OFFSET: Field = field(0x280, 0x40);
    pub(crate) const MEMORY: Field = field(0x2c0, 0x20);
    pub(crate) const BYTES: usize = 0x300 / 8;
}

/// Commands of queue pairs: the context begins at 0xc0.
pub(crate) mod qp {
    use super::{Field, field};

    const CONTEXT: usize = 0xc0;
    pub(crate) const STATE: Field = field(CONTEXT, 4);
    pub(crate) const SERVICE: Field = field(CONTEXT + 0x8, 8);
    pub(crate) const DOMAIN: Field = field(CONTEXT + 0x28, 0x18);
    pub(crate) const MTU: Field = field(CONTEXT + 0x40, 3);
    pub(crate) const LOG_RECEIVES: Field = field(CONTEXT + 0x49, 4);
    pub(crate) const LOG_STRIDE: Field = field(CONTEXT + 0x4d, 3);
    pub(crate) const NO_SENDS: Field = field(CONTEXT + 0x50, 1);
    pub(crate) const LOG_BLOCKS: Field = field(CONTEXT + 0x51, 4);
    pub(crate) const PAGE: Field = field(CONTEXT + 0x68, 0x18);
    pub(crate) const RECORD_MODE: Field = field(CONTEXT + 0x80, 2);
    pub(crate) const REMOTE: Field = field(CONTEXT + 0xa8, 0x18);
    /// Halves of the peer's address.
    pub(crate) const PEER: [Field; 2] =
        [field(CONTEXT + 0x140, 0x40), field(CONTEXT + 0x180, 0x40)];
    pub(crate) const NOT_READY_RETRIES: Field = field(CONTEXT + 0x390, 3);
    pub(crate) const SEND_COMPLETIONS: Field = field(CONTEXT + 0x3e8, 0x18);
    pub(crate) const RECEIVE_COMPLETIONS: Field = field(CONTEXT + 0x4e8, 0x18);
    pub(crate) const RECORD_OFFSET: Field = field(CONTEXT + 0x500, 0x40);
    pub(crate) const RECEIVES_KIND: Field = field(CONTEXT + 0x565, 3);
    pub(crate) const SHARED_RECEIVES: Field = field(CONTEXT + 0x568, 0x18);
    pub(crate) const RECORD_MEMORY: Field = field(CONTEXT + 0x720, 0x20);
    pub(crate) const OFFSET: Field = field(0x800, 0x40);
    pub(crate) const MEMORY: Field = field(0x840, 0x20);
    pub(crate) const BYTES: usize = 0x880 / 8;
}

/// Answers of QUERY_HCA_CAP, by their kinds: the capabilities begin at 0x80.
pub(crate) mod capabilities {
    use super::{Field, field};

    const ANSWER: usize = 0x80;
    pub(crate) const GENERAL: u64 = 0;
    pub(crate) const LOG_PAIR_ENTRIES: Field = field(ANSWER + 0x88, 8);
    pub(crate) const LOG_PAIRS: Field = field(ANSWER + 0x9b, 5);
    pub(crate) const LOG_COMPLETIONS_ENTRIES: Field = field(ANSWER + 0xc8, 8);
    pub(crate) const LOG_COMPLETIONS: Field = field(ANSWER + 0xdb, 5);
    pub(crate) const COMPLETIONS_VERSION: Field = field(ANSWER + 0x1fc, 4);
    pub(crate) const LOG_DOORBELL_BYTES: Field = field(ANSWER + 0x26b, 5);
    pub(crate) const PORT_TYPE: Field = field(ANSWER + 0x1b6, 2);
    pub(crate) const PORTS: Field = field(ANSWER + 0x1b8, 8);
    pub(crate) const ROCE: Field = field(ANSWER + 0x21d, 1);
    pub(crate) const ATOMIC: Field = field(ANSWER + 0x21e, 1);
    pub(crate) const RELIABLE: Field = field(ANSWER + 0x23f, 1);
    pub(crate) const SEND_BYTES: Field = field(ANSWER + 0x290, 0x10);
    pub(crate) const RECEIVE_BYTES: Field = field(ANSWER + 0x2b0, 0x10);

    pub(crate) const OF_ATOMICS: u64 = 3;
    pub(crate) const ATOMIC_OPERATIONS: Field = field(ANSWER + 0x90, 0x10);
    pub(crate) const ATOMIC_SIZES: Field = field(ANSWER + 0xb0, 0x10);
    pub(crate) const ATOMIC_SIZES_DYNAMIC: Field = field(ANSWER + 0xd0, 0x10);

    pub(crate) const OF_ROCE: u64 = 4;
    pub(crate) const ROCE_ADDRESSES: Field = field(ANSWER + 0xf0, 0x10);
}

/// QUERY_ROCE_ADDRESS, and its answer: the address begins at 0x80.
pub(crate) mod address {
    use super::{Field, field};

    const ANSWER: usize = 0x80;
    pub(crate) const INDEX: Field = field(0x40, 0x10);
    pub(crate) const TYPE: Field = field(ANSWER + 0xd4, 4);
    pub(crate) const VERSION: Field = field(ANSWER + 0xd8, 8);

    /// Returns a byte of the address itself.
    pub(crate) const fn byte(at: usize) -> Field {
        field(ANSWER + 8 * at, 8)
    }
}

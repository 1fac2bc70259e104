//! Reasons of failed completions, as mlx5 adapters number them.

use outboard_verbs::abi::*;

/// The syndrome of an error completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Syndrome(pub u8);

impl Syndrome {
    pub const LOCAL_LENGTH: Syndrome = Syndrome(0x01);
    pub const LOCAL_OPERATION: Syndrome = Syndrome(0x02);
    pub const LOCAL_PROTECTION: Syndrome = Syndrome(0x04);
    /// The queue had failed before.
    pub const FLUSHED: Syndrome = Syndrome(0x05);
    /// The peer has answered what was not asked.
    pub const BAD_RESPONSE: Syndrome = Syndrome(0x10);
    pub const REMOTE_INVALID_REQUEST: Syndrome = Syndrome(0x12);
    pub const REMOTE_ACCESS: Syndrome = Syndrome(0x13);
    pub const REMOTE_OPERATION: Syndrome = Syndrome(0x14);
    /// The peer did not answer, after all retries.
    pub const RETRIES_EXCEEDED: Syndrome = Syndrome(0x15);
    /// The peer had no receive posted, after all retries.
    pub const RECEIVER_NOT_READY: Syndrome = Syndrome(0x16);
}

/// Syndromes of completions, and the states that verbs have for them.
pub const STATUSES: [(u8, u32); 12] = [
    (0x01, IBV_WC_LOC_LEN_ERR),
    (0x02, IBV_WC_LOC_QP_OP_ERR),
    (0x04, IBV_WC_LOC_PROT_ERR),
    (0x05, IBV_WC_WR_FLUSH_ERR),
    (0x06, IBV_WC_MW_BIND_ERR),
    (0x10, IBV_WC_BAD_RESP_ERR),
    (0x11, IBV_WC_LOC_ACCESS_ERR),
    (0x12, IBV_WC_REM_INV_REQ_ERR),
    (0x13, IBV_WC_REM_ACCESS_ERR),
    (0x14, IBV_WC_REM_OP_ERR),
    (0x15, IBV_WC_RETRY_EXC_ERR),
    (0x16, IBV_WC_RNR_RETRY_EXC_ERR),
];

impl Syndrome {
    /// Returns the syndrome for a state of verbs; of those that have none, that of an operation
    /// that the device could not execute.
    pub(crate) fn of_status(status: u32) -> Syndrome {
        let found = STATUSES.iter().find(|(_, of)| *of == status);
        found.map_or(Syndrome::LOCAL_OPERATION, |(syndrome, _)| {
            Syndrome(*syndrome)
        })
    }
}

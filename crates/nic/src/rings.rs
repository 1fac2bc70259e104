//! The program's halves of a queue pair's rings: entries are written here, and found again by the
//! index that their completion has.

use std::{ffi::c_int, slice};

use outboard_net::{
    Mapped,
    wqe::{BLOCK_BYTES, Entry, Flags, INLINE, Operation, Segment},
};
use outboard_verbs::abi::{
    IBV_SEND_FENCE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD,
    IBV_WC_RDMA_READ, IBV_WC_RDMA_WRITE, IBV_WC_SEND, ibv_sge,
};

/// Most entries of a send queue, and of a receive queue.
pub(crate) const ENTRIES_MAX: u32 = 1 << 15;
/// Most segments of a receive.
pub(crate) const RECEIVE_SEGMENTS_MAX: u32 = 1;
pub(crate) const RECEIVE_BYTES: usize = 16;
/// The local key of a receive without memory.
const NO_MEMORY: u32 = 0x100;

/// A request of a program.
pub(crate) struct Request {
    pub(crate) wr_id: u64,
    pub(crate) flags: u32,
    pub(crate) operation: Operation,
}

/// The part of an entry that is needed until it is complete.
#[derive(Clone, Copy, Default)]
struct Posted {
    wr_id: u64,
    /// Requests posted before it.
    number: u32,
    blocks: u16,
    opcode: u32,
}

/// The program's half of a send queue.
pub(crate) struct Sends {
    head: u16,
    tail: u16,
    posted: Vec<Posted>,
    ring: Mapped,
    /// Most blocks of an entry.
    blocks_max: u16,
    /// Requests that were posted, and those known to be complete.
    made: u32,
    done: u32,
    /// Most that are between the two: what the program was told.
    requests_max: u32,
}

/// The program's half of a receive queue.
pub(crate) struct Receives {
    head: u16,
    tail: u16,
    posted: Vec<u64>,
    ring: Option<Mapped>,
}

impl Sends {
    pub(crate) fn new(ring: Mapped, blocks_max: u16) -> Sends {
        let blocks = ring.len() / BLOCK_BYTES;
        Sends {
            head: 0,
            tail: 0,
            posted: vec![Posted::default(); blocks],
            ring,
            blocks_max,
            made: 0,
            done: 0,
            requests_max: blocks as u32 / u32::from(blocks_max),
        }
    }

    pub(crate) fn reset(&mut self) {
        (self.head, self.tail) = (0, 0);
        self.done = self.made;
    }

    /// Returns what was asked for by the entry of this index, whose blocks are free from now on.
    pub(crate) fn complete(&mut self, index: u16) -> (u64, u32) {
        let posted = self.posted[usize::from(index) & (self.posted.len() - 1)];
        self.tail = index.wrapping_add(posted.blocks);
        self.done = posted.number.wrapping_add(1);
        (posted.wr_id, posted.opcode)
    }

    /// Writes an entry, which is not rung for yet.
    pub(crate) fn push(
        &mut self,
        qpn: u32,
        signals_all: bool,
        request: &Request,
    ) -> Result<(), c_int> {
        let mut flags = Flags::default();
        if request.flags & IBV_SEND_SIGNALED != 0 || signals_all {
            flags = flags.and(Flags::SIGNALLED);
        }
        if request.flags & IBV_SEND_FENCE != 0 {
            flags = flags.and(Flags::FENCE);
        }
        if request.flags & IBV_SEND_SOLICITED != 0 {
            flags = flags.and(Flags::SOLICITED);
        }
        let entry = Entry {
            index: self.head,
            qpn,
            flags,
            operation: request.operation.clone(),
        };
        let mut bytes = entry.encode();
        bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        let blocks = bytes.len() / BLOCK_BYTES;
        if blocks > usize::from(self.blocks_max) {
            return Err(libc::EINVAL);
        }
        let mask = self.posted.len() - 1;
        let used = usize::from(self.head.wrapping_sub(self.tail));
        let is_full = self.made.wrapping_sub(self.done) >= self.requests_max;
        if is_full || used + blocks > self.posted.len() {
            return Err(libc::ENOMEM);
        }
        for (at, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
            let slot = (usize::from(self.head) + at) & mask;
            self.ring.write(slot * BLOCK_BYTES, block);
        }
        self.posted[usize::from(self.head) & mask] = Posted {
            wr_id: request.wr_id,
            number: self.made,
            blocks: blocks as u16,
            opcode: match &request.operation {
                Operation::Nop
                | Operation::Send { .. }
                | Operation::Dump { .. }
                | Operation::Wait { .. } => IBV_WC_SEND,
                Operation::Write { .. } => IBV_WC_RDMA_WRITE,
                Operation::Read { .. } => IBV_WC_RDMA_READ,
                Operation::FetchAdd { .. } => IBV_WC_FETCH_ADD,
                Operation::CompareSwap { .. } | Operation::Masked(_) => IBV_WC_COMP_SWAP,
            },
        };
        self.head = self.head.wrapping_add(blocks as u16);
        self.made = self.made.wrapping_add(1);
        Ok(())
    }

    pub(crate) fn head(&self) -> u16 {
        self.head
    }

    /// Takes back the entries from this one on, which were not rung for.
    pub(crate) fn take_back(&mut self, head: u16) {
        if self.head != head {
            self.made = self.posted[usize::from(head) & (self.posted.len() - 1)].number;
        }
        self.head = head;
    }
}

impl Receives {
    pub(crate) fn new(ring: Option<Mapped>) -> Receives {
        let count = ring.as_ref().map_or(0, |ring| ring.len() / RECEIVE_BYTES);
        Receives {
            head: 0,
            tail: 0,
            posted: vec![0; count],
            ring,
        }
    }

    pub(crate) fn reset(&mut self) {
        (self.head, self.tail) = (0, 0);
    }

    pub(crate) fn complete(&mut self, index: u16) -> u64 {
        self.tail = index.wrapping_add(1);
        let mask = self.posted.len().wrapping_sub(1);
        let posted = self.posted.get(usize::from(index) & mask);
        posted.copied().unwrap_or(0)
    }

    pub(crate) fn head(&self) -> u16 {
        self.head
    }

    pub(crate) fn push(&mut self, wr_id: u64, into: Option<Segment>) -> Result<(), c_int> {
        let used = usize::from(self.head.wrapping_sub(self.tail));
        let Some(ring) = self.ring.as_ref().filter(|_| used < self.posted.len()) else {
            return Err(libc::ENOMEM);
        };
        let bytes = encode_receive(into);
        let slot = usize::from(self.head) & (self.posted.len() - 1);
        ring.write(slot * RECEIVE_BYTES, &bytes);
        self.posted[slot] = wr_id;
        self.head = self.head.wrapping_add(1);
        Ok(())
    }
}

/// Returns the bytes of a receive.
pub(crate) fn encode_receive(into: Option<Segment>) -> [u8; RECEIVE_BYTES] {
    let into = into.unwrap_or(Segment {
        length: 0,
        lkey: NO_MEMORY,
        address: 0,
    });
    let mut bytes = [0; RECEIVE_BYTES];
    bytes[..4].copy_from_slice(&into.length.to_be_bytes());
    bytes[4..8].copy_from_slice(&into.lkey.to_be_bytes());
    bytes[8..].copy_from_slice(&into.address.to_be_bytes());
    bytes
}

/// Segments that have bytes: one without is no segment, where an entry's would be of 2 GiB. One of
/// 2 GiB or more is refused: by its highest bit an entry would have its bytes inline.
///
/// # Safety
///
/// `at` has `count` segments.
pub(crate) unsafe fn segments(at: *const ibv_sge, count: usize) -> Result<Vec<Segment>, c_int> {
    if at.is_null() || count == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: not null, and as many as the caller says.
    let given = unsafe { slice::from_raw_parts(at, count) };
    if given.iter().any(|one| one.length & INLINE != 0) {
        return Err(libc::EINVAL);
    }
    let given = given.iter().filter(|one| one.length > 0);
    let segment = |one: &ibv_sge| Segment {
        length: one.length,
        lkey: one.lkey,
        address: one.addr,
    };
    Ok(given.map(segment).collect())
}

//! Grants: memory into which one side lets the other write the data of its next long frames. The
//! consumer writes them by RDMA into a table in the producer's control page. Grants are used once
//! each, in order. The producer forgets the address after use, but the rkey stays valid until the
//! session ends: a peer that writes to used memory spoils only the data of its own copies.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
};

use outboard_verbs::{Memory, OwnRegion};

use super::{
    check,
    registry::{RdmaTarget, Registered},
};
use crate::{
    Error,
    segment::{Granted, Tail},
};

/// Grants that may be open at a time.
pub(super) const GRANTS_MAX: usize = 16;
pub(super) const GRANT_BYTES: usize = 32;
/// Offsets in the control page, after the words of both directions: our grants, which the adapter
/// sends from here, and the peer's, which it writes here.
pub(super) const OUR_GRANTS: usize = 1024;
pub(super) const TOLD_GRANTS: usize = OUR_GRANTS + GRANTS_MAX * GRANT_BYTES;

/// The producer's side: grants received.
pub(super) struct Given {
    control: Arc<Memory>,
    used: u64,
}

impl Given {
    pub(super) fn new(control: Arc<Memory>) -> Self {
        Self { control, used: 0 }
    }

    /// Returns the next grant if it has arrived and has room for `len` bytes.
    pub(super) fn look(&self, len: usize) -> Option<RdmaTarget> {
        let [address, bytes_and_key, number, sum] = read(&self.control, self.used);
        let is_next =
            number == self.used + 1 && sum == check::of_grant(address, bytes_and_key, number);
        let bytes = bytes_and_key as u32 as usize;
        (is_next && bytes >= len).then_some(RdmaTarget {
            address,
            key: (bytes_and_key >> 32) as u32,
        })
    }

    /// Marks the grant that [`look`](Self::look) returned as used.
    pub(super) fn use_up(&mut self) {
        self.used += 1;
    }
}

/// Memory that was granted and that no frame has used.
pub(super) enum Grant {
    /// The caller's: pinned memory of a device.
    Placed {
        memory: Box<dyn Granted>,
        target: RdmaTarget,
        _registered: Registered,
    },
    /// The link's own.
    Own(Arc<OwnRegion>),
}

impl Grant {
    fn target(&self) -> (RdmaTarget, usize) {
        match self {
            Grant::Placed { memory, target, .. } => (*target, memory.len()),
            Grant::Own(region) => {
                let address = region.memory().address();
                let key = region.rkey();
                (RdmaTarget { address, key }, region.memory().len())
            }
        }
    }
}

/// The consumer's side: grants given.
pub(super) struct Granting {
    control: Arc<Memory>,
    open: VecDeque<Grant>,
    made: u64,
    /// Memory of the link's own that was used before.
    own: Vec<Arc<OwnRegion>>,
}

impl Granting {
    pub(super) fn new(control: Arc<Memory>) -> Self {
        Self {
            control,
            open: VecDeque::new(),
            made: 0,
            own: Vec::new(),
        }
    }

    pub(super) fn open(&self) -> usize {
        self.open.len()
    }

    /// Takes memory of the link's own, which may have been used before.
    pub(super) fn own(
        &mut self,
        len: usize,
        make: impl FnOnce() -> Option<Arc<OwnRegion>>,
    ) -> Option<Grant> {
        let had = self.own.pop();
        had.filter(|region| region.memory().len() == len)
            .or_else(make)
            .map(Grant::Own)
    }

    /// Records a grant and returns its index in the table; the caller writes that entry to the
    /// producer.
    pub(super) fn put(&mut self, grant: Grant) -> usize {
        let (RdmaTarget { address, key }, bytes) = grant.target();
        let index = (self.made % GRANTS_MAX as u64) as usize;
        self.made += 1;
        let bytes_and_key = bytes as u64 & u64::from(u32::MAX) | u64::from(key) << 32;
        let words = [
            address,
            bytes_and_key,
            self.made,
            check::of_grant(address, bytes_and_key, self.made),
        ];
        for (at, word) in words.into_iter().enumerate() {
            let place = OUR_GRANTS + index * GRANT_BYTES + 8 * at;
            self.control.word(place).store(word, Ordering::Release);
        }
        self.open.push_back(grant);
        index
    }

    /// Takes a frame's `len` bytes of data. Those in the link's own memory are copied, because the
    /// peer may write that memory again.
    pub(super) fn take(&mut self, len: usize) -> Result<Tail, Error> {
        let grant = self.open.pop_front().ok_or_else(|| beyond(len, 0))?;
        let (_, granted) = grant.target();
        if len > granted {
            return Err(beyond(len, granted));
        }
        Ok(match grant {
            Grant::Placed { mut memory, .. } => {
                memory.truncate(len);
                Tail::Granted(memory)
            }
            Grant::Own(region) => {
                let mut data = Vec::new();
                region.memory().copy(0, len, &mut data);
                self.own.push(region);
                Tail::Own(Box::new(data))
            }
        })
    }
}

fn beyond(len: usize, granted: usize) -> Error {
    Error::PeerMisbehaved {
        what: "more data than was granted",
        got: len as u64,
        allowed: granted as u64,
    }
}

fn read(control: &Memory, number: u64) -> [u64; 4] {
    let index = (number % GRANTS_MAX as u64) as usize;
    [0, 8, 16, 24].map(|at| {
        let place = TOLD_GRANTS + index * GRANT_BYTES + at;
        control.word(place).load(Ordering::Acquire)
    })
}

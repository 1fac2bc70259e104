//! Grants: memory into which one side lets the other write the data of its next long frames. The
//! consumer writes them by RDMA into a table in the producer's control page. Grants are used once
//! each, in order. The producer forgets the address after use, but the rkey stays valid until the
//! session ends: a peer that writes to used memory spoils only the data of its own copies.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
};

use outboard_verbs::{Memory, OwnRegion};

use super::{
    check,
    registry::{RdmaTarget, Registered},
};
use crate::{Error, segment::Segment};

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

/// Granted memory.
pub(super) enum Grant {
    /// The caller's: pinned memory of a device.
    Placed(Box<dyn Segment>, Registered),
    /// The link's own.
    Own(Own),
}

/// The consumer's side: grants given.
pub(super) struct Granting {
    control: Arc<Memory>,
    open: VecDeque<Grant>,
    made: u64,
    own: Arc<Mutex<Vec<Arc<OwnRegion>>>>,
}

impl Granting {
    pub(super) fn new(control: Arc<Memory>) -> Self {
        Self {
            control,
            open: VecDeque::new(),
            made: 0,
            own: Arc::default(),
        }
    }

    pub(super) fn open(&self) -> usize {
        self.open.len()
    }

    /// Takes memory of the link's own, which may have been used before.
    pub(super) fn own(
        &self,
        len: usize,
        make: impl FnOnce() -> Option<Arc<OwnRegion>>,
    ) -> Option<Grant> {
        let had = self
            .own
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let region = had
            .filter(|region| region.memory().len() == len)
            .or_else(make)?;
        Some(Grant::Own(Own {
            region: Some(region),
            len,
            home: Arc::clone(&self.own),
        }))
    }

    /// Records a grant and returns its index in the table; the caller writes that entry to the
    /// producer.
    pub(super) fn put(&mut self, mut grant: Grant) -> usize {
        let target = match &mut grant {
            Grant::Placed(memory, registered) => {
                let room = memory.room();
                let bytes = room.len();
                (registered.target(room.as_ptr().addr() as u64), bytes)
            }
            Grant::Own(own) => own.target(),
        };
        let index = (self.made % GRANTS_MAX as u64) as usize;
        self.made += 1;
        let (RdmaTarget { address, key }, bytes) = target;
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

    /// Takes the memory that holds a frame's `len` bytes of data.
    pub(super) fn take(&mut self, len: usize) -> Result<Box<dyn Segment>, Error> {
        let mut memory = match self.open.pop_front() {
            Some(Grant::Placed(memory, _)) => memory,
            Some(Grant::Own(own)) => Box::new(own),
            None => return Err(beyond(len, 0)),
        };
        let granted = memory.room().len();
        if len > granted {
            return Err(beyond(len, granted));
        }
        memory.truncate(len);
        Ok(memory)
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

/// Memory of the link's own, which is returned to the link when dropped.
pub(super) struct Own {
    /// Present until dropped.
    region: Option<Arc<OwnRegion>>,
    len: usize,
    home: Arc<Mutex<Vec<Arc<OwnRegion>>>>,
}

impl Own {
    fn target(&self) -> (RdmaTarget, usize) {
        match &self.region {
            Some(region) => {
                let address = region.memory().address();
                let key = region.rkey();
                (RdmaTarget { address, key }, region.memory().len())
            }
            None => (RdmaTarget { address: 0, key: 0 }, 0),
        }
    }
}

impl Segment for Own {
    fn room(&mut self) -> &mut [u8] {
        let len = self.len;
        self.region.as_ref().map_or(&mut [], |region| {
            // SAFETY: only this object uses the range. A peer that breaks the rules may still have
            // its device write there; see `Memory::bytes`.
            unsafe { region.memory().room(0, len) }
        })
    }

    fn bytes(&self) -> &[u8] {
        self.region.as_ref().map_or(&[], |region| {
            // SAFETY: `take` made this object a frame's data after all of it had arrived.
            unsafe { region.memory().bytes(0, self.len) }
        })
    }

    fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(region) = self.region.take() {
            self.home
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(region);
        }
    }
}

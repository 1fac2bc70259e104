//! Memory that one side gives the other to write the data of its next long frames into: a table in the producer's control page,
//! which the consumer writes from afar. Grants are used in the order in which they were given, each once; what is told of one
//! does not outlive it, but its key does, until the session ends: a peer that writes where it may no longer spoils the data of its
//! own copies, and nobody else's.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
};

use super::{
    check,
    domain::Region,
    memory::Memory,
    registry::{RdmaTarget, Registered},
};
use crate::{Error, place::Segment};

/// Grants that may be open at a time.
pub(super) const GRANTS_MAX: usize = 16;
pub(super) const GRANT_BYTES: usize = 32;
/// In the control page, behind the words of both directions: what we grant, from where it is written to what the peer was told.
pub(super) const OUR_GRANTS: usize = 1024;
pub(super) const TOLD_GRANTS: usize = OUR_GRANTS + GRANTS_MAX * GRANT_BYTES;

/// The producer's side.
pub(super) struct Given {
    control: Arc<Memory>,
    used: u64,
}

impl Given {
    pub(super) fn new(control: Arc<Memory>) -> Self {
        Self { control, used: 0 }
    }

    /// Memory for `len` bytes, if the next grant has come and has room for them.
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

    /// The one that was [looked](Self::look) at is used.
    pub(super) fn use_up(&mut self) {
        self.used += 1;
    }
}

/// Memory that was granted.
pub(super) enum Grant {
    /// A device's.
    Placed(Box<dyn Segment>, Registered),
    /// The link's own.
    Own(Own),
}

/// The consumer's side.
pub(super) struct Granting {
    control: Arc<Memory>,
    open: VecDeque<Grant>,
    made: u64,
    own: Arc<Mutex<Vec<Arc<Region>>>>,
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

    /// Memory of the link's own, some that was used before if there is any.
    pub(super) fn own(
        &self,
        len: usize,
        make: impl FnOnce() -> Option<Arc<Region>>,
    ) -> Option<Grant> {
        let had = self
            .own
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let region = had
            .filter(|region| region.memory.len() == len)
            .or_else(make)?;
        Some(Grant::Own(Own {
            region: Some(region),
            len,
            home: Arc::clone(&self.own),
        }))
    }

    /// Notes a grant down; the entry of the table is to be written to the producer.
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

    /// The memory that a frame's `len` bytes of data are in.
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

/// Memory of the link's own, which goes back to it.
pub(super) struct Own {
    /// There until dropped.
    region: Option<Arc<Region>>,
    len: usize,
    home: Arc<Mutex<Vec<Arc<Region>>>>,
}

impl Own {
    fn target(&self) -> (RdmaTarget, usize) {
        match &self.region {
            Some(region) => {
                let address = region.memory.address();
                let key = region.rkey;
                (RdmaTarget { address, key }, region.memory.len())
            }
            None => (RdmaTarget { address: 0, key: 0 }, 0),
        }
    }
}

impl Segment for Own {
    fn room(&mut self) -> &mut [u8] {
        let len = self.len;
        self.region.as_ref().map_or(&mut [], |region| {
            // SAFETY: this object's alone. The peer's device may write it still if its owner breaks the rule; see `Memory::bytes`.
            unsafe { region.memory.room(0, len) }
        })
    }

    fn bytes(&self) -> &[u8] {
        let region = self.region.as_ref();
        region.map_or(&[], |region| region.memory.bytes(0, self.len))
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
